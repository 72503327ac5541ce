package group

import (
	"flag"
	"fmt"
	"math/rand"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// A schedule says when the ranks of a job come to a collective, and what becomes of each of them.
type schedule struct {
	nodes []int
	roles []role
	slow  time.Duration // how long the transfer takes when all have come
}

// role is what becomes of a rank. Times count from the beginning; 0 is never, but for comes.
type role struct {
	comes     time.Duration
	timeout   time.Duration
	interrupt time.Duration // Ctrl-C, if it is in a call then
	dies      time.Duration
	async     bool
	leaves    bool // after an error it leaves the job; else it does something else than wait
}

// scheduleSlack is how long a rank may wait when another one has given up or died, and it has come itself.
const scheduleSlack = 2 * time.Second

var schedules = flag.Int("schedules", 12, "random schedules to try")

func randomSchedule(r *rand.Rand) *schedule {
	between := func(least, most time.Duration) time.Duration {
		return least + time.Duration(r.Int63n(int64(most-least)))
	}
	s := &schedule{}
	n, nodes := 2+r.Intn(4), 2+r.Intn(2)
	for i := range n {
		s.nodes = append(s.nodes, min(i, r.Intn(nodes)))
		p := role{timeout: time.Minute, async: r.Intn(3) == 0, leaves: r.Intn(2) == 0}
		if r.Intn(3) == 0 {
			p.comes = between(0, 2500*time.Millisecond)
		}
		switch r.Intn(6) {
		case 0, 1:
			p.timeout = between(200*time.Millisecond, 2*time.Second)
		case 2:
			p.interrupt, p.async = between(200*time.Millisecond, 2*time.Second), false
		case 3:
			p.dies, p.async = between(200*time.Millisecond, 2*time.Second), false
		}
		s.roles = append(s.roles, p)
	}
	s.nodes[n-1] = 1 // there are two nodes at least
	if r.Intn(3) == 0 {
		s.slow = between(time.Second, 3*time.Second)
	}
	return s
}

// fate is how a rank has fared.
type fate struct {
	came, ended time.Duration // its last call
	err         error
	dead        bool
}

// actor plays a role.
type actor struct {
	role
	e     *world.Env
	g     *Group
	began time.Time
	fate  fate
	gone  func()        // called when its fate is known
	over  chan struct{} // closed when the fates of all are known
}

// collective takes part in one collective of that many elements.
func (a *actor) collective(count int, timeout time.Duration) error {
	b := floats(make([]float32, count)...)
	values(b)[0] = 1
	d := allReduce(b)
	d.TimeoutNS = int64(timeout)
	if a.async {
		d.Flags = op.FlagAsync
	}
	h, _, err := a.g.Submit(d, false)
	if err == nil && h != nil {
		_, err = h.Wait(-1, a.e.Interrupt)
	}
	if err == nil && values(b)[0] != float32(a.g.Size) {
		err = fmt.Errorf("the sum is %v", values(b)[0])
	}
	return err
}

// interrupted is the Interrupt of the rank. A rank that dies does not come back from it.
func (a *actor) interrupted() error {
	now := time.Since(a.began)
	if a.dies > 0 && now > a.dies {
		a.die()
		return status.New(status.Interrupted, "dead")
	}
	if a.interrupt > 0 && now > a.interrupt {
		a.interrupt = 0
		return status.New(status.Interrupted, "Ctrl-C")
	}
	return nil
}

func (a *actor) die() {
	a.fate.dead, a.fate.ended = true, time.Since(a.began)
	a.e.Engine.StopProgress()
	dies(a.e)
	a.gone()
	<-a.over
}

// play plays the role until a call fails.
func (a *actor) play() {
	time.Sleep(a.comes)
	if a.dies > 0 && time.Since(a.began) > a.dies {
		a.die()
		return
	}
	for _, count := range []int{slowCount, 1} {
		a.fate.came = time.Since(a.began)
		err := a.collective(count, a.timeout)
		if a.fate.dead {
			return
		}
		a.fate.ended, a.fate.err = time.Since(a.began), err
		if err != nil {
			break
		}
	}
	if a.leaves && a.fate.err != nil {
		_, _ = a.e.Leave()
	}
	a.gone()
	<-a.over
}

// slowCount is how many elements the collective has that takes long, more than an arrival.
const slowCount = 10000

// run plays the schedule and returns the fates of all ranks.
func (s *schedule) run(t *testing.T) []fate {
	slowly := mpifake.WithHook(func(_, _ int, c *mpi.Call) (time.Duration, error) {
		if c.Fn == mpi.FnAllreduce && c.SendCount == slowCount || c.Fn == mpi.FnSend && c.Tag > coll.ArrivalTag && c.SendCount > slowCount {
			return s.slow, nil
		}
		return 0, nil
	})
	actors := make([]*actor, len(s.roles))
	over := make(chan struct{})
	var came, gone, all sync.WaitGroup
	for rank, lib := range mpifake.New(len(s.roles), mpifake.Nodes(s.nodes), slowly) {
		gone.Add(1)
		a := &actor{role: s.roles[rank], gone: sync.OnceFunc(gone.Done), over: over}
		actors[rank] = a
		came.Add(1)
		all.Add(1)
		go func() {
			defer all.Done()
			defer a.gone()
			var err error
			a.e, err = newEnv(t, lib)
			if err == nil {
				a.g, err = World(a.e, 0, time.Minute)
			}
			if err == nil {
				err = a.collective(1, time.Minute)
			}
			came.Done()
			if !assert.NoError(t, err) {
				return
			}
			came.Wait()
			a.began, a.e.Interrupt = time.Now(), a.interrupted
			a.play()
		}()
	}
	gone.Wait()
	close(over)
	all.Wait()
	fates := make([]fate, len(actors))
	for rank, a := range actors {
		fates[rank] = a.fate
	}
	return fates
}

// check returns what is wrong with the fates of the ranks, "" if nothing is.
func (s *schedule) check(fates []fate) string {
	first := time.Duration(-1)
	for _, f := range fates {
		if (f.dead || f.err != nil) && (first < 0 || f.ended < first) {
			first = f.ended
		}
	}
	for rank, f := range fates {
		if f.dead || f.err == nil {
			continue
		}
		if waited := f.ended - max(first, f.came); waited > scheduleSlack {
			return fmt.Sprintf("rank %d waited for %v longer than it had to: %v", rank, waited, f.err)
		}
		var e *status.Error
		if e, _ = f.err.(*status.Error); e == nil {
			return fmt.Sprintf("rank %d: %v", rank, f.err)
		}
		if e.Code == status.Interrupted {
			continue
		}
		guilty := func(r int) bool {
			p := s.roles[r]
			return p.comes > 0 || p.timeout < time.Minute || p.interrupt > 0 || fates[r].dead
		}
		if len(e.Ranks) == 0 && s.slow == 0 || slices.ContainsFunc(e.Ranks, func(r int) bool { return !guilty(r) }) {
			return fmt.Sprintf("rank %d names %v: %v", rank, e.Ranks, f.err)
		}
	}
	return ""
}

// When one rank has given up or died, all others that wait for it learn so soon, and who it was.
func TestNobodyWaitsLongAfterTheFirst(t *testing.T) {
	const together = 6
	seeds := make(chan int64)
	var workers sync.WaitGroup
	var failed int
	var mu sync.Mutex
	for range together {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for seed := range seeds {
				s := randomSchedule(rand.New(rand.NewSource(seed)))
				fates := s.run(t)
				wrong := s.check(fates)
				mu.Lock()
				for _, f := range fates {
					if f.err != nil {
						failed++
					}
				}
				mu.Unlock()
				assert.Empty(t, wrong, "seed %d, nodes %v, roles %+v, slow %v\nfates %+v", seed, s.nodes, s.roles, s.slow, fates)
			}
		}()
	}
	for seed := range *schedules {
		seeds <- int64(seed)
	}
	close(seeds)
	workers.Wait()
	assert.Greater(t, failed, *schedules/4, "most schedules have no failure")
}

// A collective whose turn did not come in time is refused, also if the refusal is announced ahead of its turn: it waits as long as the
// group does, and the group stays usable.
func TestARefusalAnnouncedAhead(t *testing.T) {
	var later sync.WaitGroup
	later.Add(1)
	ranks(t, 2, nil, func(t *testing.T, _ *world.Env, g *Group) {
		sum := allReduce(floats(1))
		if g.Rank == 1 {
			later.Wait()
			_, err := submit(g, sum)
			assert.NoError(t, err)
			for range 2 {
				_, err = submit(g, desc(op.Barrier, nil, nil))
				assert.Equal(t, status.Refused, status.CodeOf(err))
			}
			_, err = submit(g, sum)
			assert.NoError(t, err)
			return
		}
		sum.Flags = op.FlagAsync
		first, _, err := g.Submit(sum, false)
		assert.NoError(t, err)
		g.SetTimeout(300 * time.Millisecond)
		_, err = submit(g, desc(op.Barrier, nil, nil))
		assert.Equal(t, status.Timeout, status.CodeOf(err))
		late := desc(op.Barrier, nil, nil)
		late.Flags = op.FlagAsync
		second, _, err := g.Submit(late, false)
		assert.NoError(t, err)
		_, err = second.Wait(time.Minute, nil)
		assert.Equal(t, status.Timeout, status.CodeOf(err))
		g.SetTimeout(time.Minute)
		later.Done()
		_, err = first.Wait(time.Minute, nil)
		assert.NoError(t, err)
		_, err = submit(g, allReduce(floats(1)))
		assert.NoError(t, err)
	})
}
