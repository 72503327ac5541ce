package health

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/mailbox"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/topo"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// spanning is a group that spans nodes.
type spanning struct{ standing arrive.Standing }

func (s *spanning) Standing() arrive.Standing                   { return s.standing }
func (s *spanning) Learn(int, uint64, bool, *arrive.Withdrawal) {}

// withQuestions runs f on every rank of a fake world whose ranks share no memory.
func withQuestions(t *testing.T, n int, f func(t *testing.T, rank int, mail *mailbox.Mailbox, q *Questions)) {
	nodes := make([]int, n)
	for i := range nodes {
		nodes[i] = i
	}
	each(t, n, nodes, func(t *testing.T, base transport.Comm, here *topo.Topology) {
		if control, err := base.Dup(nil); assert.NoError(t, err) {
			mail := mailbox.New(control)
			f(t, here.Rank, mail, NewQuestions(mail))
		}
	})
}

// Members may ask about groups that this rank has freed. It answers for the last ones, and keeps nothing of the others.
func TestGroupsThatWereFreed(t *testing.T) {
	withQuestions(t, 1, func(t *testing.T, _ int, _ *mailbox.Mailbox, q *Questions) {
		const groups = 3 * mostFreed
		for k := range uint64(groups) {
			g := &spanning{standing: arrive.Standing{Announced: k}}
			q.Join(k, 1, g)
			assert.Same(t, g, q.groups[k].Respondent)
			g.standing.GaveUp = &arrive.Withdrawal{Seq: k + 1, By: 1, Reason: status.GroupDestroyed}
			q.Forget(k)
			q.Forget(k) // as one that was never used, and is freed
			assert.Equal(t, freed(g.standing), q.groups[k].Respondent)
		}
		assert.Len(t, q.groups, mostFreed)
		assert.Len(t, q.freed, mostFreed)
		for k := range uint64(groups) {
			g, ok := q.respondent(k)
			assert.Equal(t, k >= groups-mostFreed, ok)
			if ok {
				assert.Equal(t, 1, g.member)
				says, because := standing(g.Standing(), g.member, k, false)
				assert.Equal(t, answerHere, says)
				says, because = standing(g.Standing(), g.member, k+1, false)
				assert.Equal(t, answerNever, says)
				assert.Equal(t, status.GroupDestroyed, because.Reason)
			}
		}
	})
}

// A rank that has left says so when it is asked, and nobody asks before a while.
func TestARankIsAskedWhetherItHasLeft(t *testing.T) {
	var left sync.WaitGroup
	left.Add(1)
	withQuestions(t, 2, func(t *testing.T, rank int, mail *mailbox.Mailbox, q *Questions) {
		if rank == 0 {
			q.Leave()
			left.Done()
			assert.Eventually(t, func() bool { mail.Pump(); return mail.Has(mailbox.Absent) }, 20*time.Second, time.Millisecond)
			return
		}
		left.Wait()
		assert.False(t, q.left(0, AskAfter/2))
		assert.Eventually(t, func() bool { mail.Pump(); return q.left(0, 2*AskAfter) }, 20*time.Second, time.Millisecond)
		mail.Send(0, mailbox.Absent, mailbox.OfProcess, nil)
		assert.Eventually(t, mail.Sent, 20*time.Second, time.Millisecond)
	})
}
