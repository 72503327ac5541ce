package group

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// World makes the group of all ranks. It is collective over the world.
func (e *Env) World(id int64, timeout time.Duration) (*Group, error) {
	comm, err := e.Lib.Dup(e.base)
	if err != nil {
		return nil, err
	}
	return e.finish(id, 0, e.everyRank(), comm, e.forced, timeout)
}

// New makes a group of the given world ranks, in their order; this rank is one of them. It is
// collective over the members only. The members first meet by messages, because
// MPI_Comm_create_group (MPI-4.1 section 7.4.2) has no deadline; the error names the ranks that
// never came. The group's two communicators are made at once, not at first use. Otherwise two ranks
// could use two groups in different orders for the first time, and each would wait in the creation
// of another communicator.
func (e *Env) New(id int64, ranks []int, timeout time.Duration) (*Group, error) {
	e.makers.Add(1)
	defer e.makers.Add(-1)
	if err := e.endingError("new_group", ranks); err != nil {
		return nil, err
	}
	if len(ranks) == 1 {
		return e.finish(id, 0, ranks, 0, 0, timeout)
	}
	key := e.key(ranks)
	if missing, err := e.meet("new_group", key, ranks, timeout); err != nil {
		e.unmake(ranks)
		return nil, e.meetError("new_group", "called new_group with the same ranks; every member must call it, in the same order", err, ranks, missing, timeout)
	}
	return e.together("new_group", ranks, func() (*Group, error) {
		list := make([]int32, len(ranks))
		for i, r := range ranks {
			list[i] = int32(r)
		}
		comm, err := e.Lib.CreateGroup(e.base, list, int32(key%uint64(e.Lib.TagUB())))
		if err != nil {
			return nil, err
		}
		forced, err := e.agreeOnForced("new_group", comm)
		if err != nil {
			_ = e.Lib.Free(comm)
			return nil, err
		}
		return e.finish(id, key, ranks, comm, forced, timeout)
	})
}

// together returns what build returns, which calls MPI with all members of a new group, for the call that
// what names. These calls of MPI block, so build runs on a thread of its own: if a member dies, it may never
// return, and the caller gets an error. It counts among the makers then, so MPI is not finalized.
func (e *Env) together(what string, ranks []int, build func() (*Group, error)) (*Group, error) {
	type result struct {
		group *Group
		err   error
	}
	made, given := make(chan result), make(chan struct{})
	e.makers.Add(1)
	go func() {
		defer e.makers.Add(-1)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		work.ExactSleeps() // else a group takes MPICH 300 ms when ranks share cores
		g, err := build()
		select {
		case made <- result{g, err}:
		case <-given:
			if g != nil {
				e.forget(g) // its communicators stay: to free them takes all members
			}
		}
	}()
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	var since time.Time // when a death was seen first
	for {
		select {
		case r := <-made:
			if status.CodeOf(r.err) == status.ProcFailed { // MPI may know of the death earlier than this rank
				_ = e.Engine.Wait(func() bool { return len(e.dead(ranks)) > 0 }, time.Now().Add(e.nameLimit()), nil)
			}
			if dead := e.dead(ranks); r.err != nil && len(dead) > 0 { // MPI may tell anything of a call with a dead rank
				return nil, e.unmadeError(what, ranks, dead)
			}
			return r.group, r.err
		case now := <-tick.C:
			if since.IsZero() && e.anyDied(ranks) {
				since = now
			}
			if !since.IsZero() && now.Sub(since) > deathGrace {
				close(given)
				return nil, e.unmadeError(what, ranks, e.dead(ranks))
			}
		}
	}
}

func (e *Env) unmadeError(what string, ranks, dead []int) error {
	return e.diedError(fmt.Sprintf("%s(ranks=%v)", what, brief(ranks)), dead, "the group was not made")
}

// finish makes everything of a group but its first communicator.
func (e *Env) finish(id int64, key uint64, ranks []int, comm mpi.Comm, forced coll.Forced, timeout time.Duration) (*Group, error) {
	g := &Group{env: e, ID: id, key: key, Ranks: ranks, Size: len(ranks), Rank: indexOf(ranks, e.Topo.Rank), collComm: comm, forced: forced}
	g.timeout.Store(int64(timeout))
	if g.Size == 1 {
		g.local = true
		g.arrival = new(arrive.Alone)
		e.remember(g)
		return g, nil
	}
	var err error
	if g.msgComm, err = e.Lib.Dup(comm); err != nil {
		return nil, err
	}
	if e.Topo.OneNode(ranks) {
		lines, _, err := e.makeLines(comm, ranks)
		if err != nil {
			return nil, err
		}
		if lines != nil {
			g.local, g.arrival = true, lines
			g.node = &coll.Node{Lines: lines, Reach: g.reach, Read: g.read}
			e.remember(g)
			return g, nil
		}
	}
	if g.wire, err = arrive.NewWire(e.Lib, g.msgComm, g.Size); err != nil {
		return nil, err
	}
	g.arrival = g.wire
	e.remember(g)
	return g, nil
}

// messageComm returns the communicator of the messages. A group of one rank gets it at its first
// message, because few programs send messages to themselves.
func (g *Group) messageComm() (mpi.Comm, error) {
	if g.Size > 1 {
		return g.msgComm, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var err error
	if g.msgComm == 0 {
		g.msgComm, err = g.env.Lib.CreateGroup(g.env.base, []int32{int32(g.Ranks[0])}, 0)
	}
	return g.msgComm, err
}

// key identifies a group before it exists. It is made of the ranks and of how many groups of the
// same ranks were made before. The members count these alike, because they make them in the same
// order.
func (e *Env) key(ranks []int) uint64 {
	h := fnv.New64a()
	var b [8]byte
	for _, r := range ranks {
		binary.LittleEndian.PutUint64(b[:], uint64(r))
		h.Write(b[:])
	}
	name := fmt.Sprint(ranks)
	e.mu.Lock()
	n := e.made[name]
	e.made[name]++
	e.mu.Unlock()
	binary.LittleEndian.PutUint64(b[:], uint64(n))
	h.Write(b[:])
	return h.Sum64()
}

// unmake takes back an attempt that failed. The next attempt on this rank then has the same key. A
// member that did not come to this attempt has that key at its next attempt, too.
func (e *Env) unmake(ranks []int) {
	e.mu.Lock()
	e.made[fmt.Sprint(ranks)]--
	e.mu.Unlock()
}

// decisionGrace is the time that a member waits for the first member's decision after its own
// deadline, if the first member has asked it.
const decisionGrace = 2 * time.Second

// readyLimit is how long after its own deadline a member answers the first member's questions. Each
// answer makes it wait for longer, and a first member that is damaged may ask without end.
const readyLimit = 10 * time.Second

// meet returns when all members have come to make group key, or to another meeting with that key.
// The first member decides; the others send it a hello.
//
// A member may have given up its attempt by the time the first member reads the hello. Therefore
// every hello has a number. Once all hellos are there, the first member asks all members whether
// they are still at the attempt of that number, and tells them to go when all have said yes. It
// also asks each member when its hello arrives. A member that was never asked therefore knows that
// its hello was not read, and need not wait past its deadline.
func (e *Env) meet(what string, key uint64, ranks []int, timeout time.Duration) (missing []int, err error) {
	m := meeting{e: e, what: what, key: key, ranks: ranks}
	defer m.over.Store(true)
	deadline := time.Now().Add(timeout)
	if e.Topo.Rank == ranks[0] {
		return m.collect(ranks[1:], deadline)
	}
	return m.attend(deadline)
}

// meeting is a call of meet.
type meeting struct {
	e     *Env
	what  string // for which call the ranks meet
	key   uint64
	ranks []int
	slow  slowness
	looks int
	over  atomic.Bool
}

// reportIfSlow reports a wait for members that have not come. came says that they have, and are named
// only if they are stalled. It looks at the clock at every 32nd call.
func (m *meeting) reportIfSlow(missing []int, came bool) {
	if m.looks++; m.looks&31 == 0 && m.slow.due(m.e, time.Now(), time.Time{}) {
		m.e.reportMeeting(&m.slow, m.what, m.key, m.ranks, missing, came, func() bool { return !m.over.Load() })
	}
}

// attempt is what the first member knows of another member's attempt.
type attempt struct {
	number []byte // number of its hello
	round  uint64 // the last round in which the member was asked
	asked  []byte // body of that question; the answer has the same
	still  bool   // the member has answered in that round
}

// collect is meet on the first member.
func (m *meeting) collect(others []int, deadline time.Time) (missing []int, err error) {
	e, key := m.e, m.key
	came, dead := map[int]*attempt{}, false
	ask := func(r int, round uint64) {
		a := came[r]
		a.round, a.still = round, false
		a.asked = binary.LittleEndian.AppendUint64(bytes.Clone(a.number), round)
		e.mail.send(r, mailReady, key, a.asked)
	}
	round := uint64(0) // round 0 asks one member whose hello has arrived; every later round asks all
	err = e.wait(func() bool {
		e.mail.pump()
		if dead = e.anyDied(others); dead {
			return true
		}
		missing = missing[:0]
		for _, r := range others {
			number, ok := e.mail.peek(mailHello, r, key)
			switch {
			case !ok:
				delete(came, r)
				missing = append(missing, r)
			case came[r] == nil || !bytes.Equal(came[r].number, number):
				came[r] = &attempt{number: number}
				ask(r, 0)
			}
		}
		if len(missing) > 0 {
			m.reportIfSlow(missing, false)
			return false
		}
		for _, r := range others {
			if came[r].round == 0 { // it is new: the others' answers may be old
				round++
				for _, r := range others {
					ask(r, round)
				}
				break
			}
		}
		for _, r := range others {
			a := came[r]
			if body, ok := e.mail.take(mailStill, r, key); ok && bytes.Equal(body, a.asked) {
				a.still = true
			}
			if !a.still {
				missing = append(missing, r)
			}
		}
		m.reportIfSlow(missing, true)
		return len(missing) == 0
	}, deadline)
	if dead {
		err, missing = work.ErrDeadline, e.dead(others)
	}
	kind, list := mailGo, []byte(nil)
	if err != nil {
		kind = mailFail
		for _, r := range missing {
			list = binary.LittleEndian.AppendUint32(list, uint32(r))
		}
	}
	for _, r := range others {
		if number, ok := e.mail.take(mailHello, r, key); ok {
			e.mail.send(r, kind, key, append(number, list...))
		}
	}
	_ = e.Engine.Wait(e.mail.sent, time.Now().Add(time.Second), nil)
	return missing, err
}

// attend is meet on the members other than the first.
func (m *meeting) attend(deadline time.Time) (missing []int, err error) {
	e, key, ranks, first := m.e, m.key, m.ranks, m.ranks[0]
	asked := false // by the first member, which reports who is missing
	number := binary.LittleEndian.AppendUint64(nil, e.hellos.Add(1))
	e.mail.send(first, mailHello, key, number)
	over, failed := false, false
	until := deadline
	err = e.wait(func() bool {
		e.mail.pump()
		if body, ok := e.mail.take(mailReady, first, key); ok && bytes.HasPrefix(body, number) && time.Now().Before(deadline.Add(readyLimit)) {
			until, asked = later(deadline, time.Now()).Add(decisionGrace), true
			e.mail.send(first, mailStill, key, body)
		}
		if body, ok := e.mail.take(mailGo, first, key); ok && bytes.Equal(body, number) {
			return true
		}
		body, ok := e.mail.take(mailFail, first, key)
		if failed = ok && bytes.HasPrefix(body, number); failed {
			for body = body[len(number):]; len(body) >= 4; body = body[4:] {
				if r := int(binary.LittleEndian.Uint32(body)); slices.Contains(ranks, r) && !slices.Contains(missing, r) {
					missing = append(missing, r)
				}
			}
			return true
		}
		over = !time.Now().Before(until)
		if e.anyDied(ranks) {
			over, missing = true, e.dead(ranks)
		}
		if !over {
			m.reportIfSlow(ranks[:1], asked)
		}
		return over
	}, time.Time{})
	if over && err == nil {
		err = work.ErrDeadline
		if len(missing) == 0 {
			missing = []int{first}
		}
	}
	if err != nil {
		e.mail.send(first, mailBye, key, nil)
	}
	if failed && err == nil {
		if err = work.ErrDeadline; len(missing) == 0 {
			missing = []int{first}
		}
	}
	return missing, err
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// MonitoredBarrier returns when all members have called it. It uses messages and has no part in the
// order of the collectives. If some members do not come within timeout, the others get an error
// that names them, and the group stays usable.
func (g *Group) MonitoredBarrier(timeout time.Duration) error {
	e := g.env
	e.makers.Add(1)
	defer e.makers.Add(-1)
	if err := g.usable(op.Barrier); err != nil || g.Size == 1 {
		return err
	}
	h := fnv.New64a()
	h.Write(binary.LittleEndian.AppendUint64([]byte("monitored_barrier"), g.key))
	missing, err := e.meet("monitored_barrier", h.Sum64(), g.Ranks, timeout)
	return e.meetError("monitored_barrier", "called monitored_barrier on this group; the group stays usable", err, g.Ranks, missing, timeout)
}

// meetError turns the error of a meeting into one that names the members that did not come.
func (e *Env) meetError(what, need string, err error, ranks, missing []int, timeout time.Duration) error {
	switch {
	case err == nil:
		return nil
	case e.ended.Load() != nil:
		return e.endingError(what, ranks)
	case err != work.ErrDeadline:
		return err
	}
	if dead := e.dead(missing); len(dead) > 0 {
		return e.diedError(fmt.Sprintf("%s(ranks=%v)", what, brief(ranks)), dead, "they will not come")
	}
	return status.New(status.Timeout, "%s(ranks=%v): after %v world rank(s) %v had not %s", what, brief(ranks), timeout, brief(missing), need).WithRanks(missing...)
}

// brief formats a list of ranks, shortened if it is long.
func brief(ranks []int) string {
	const show = 16
	if len(ranks) <= show {
		return fmt.Sprint(ranks)
	}
	return fmt.Sprintf("%v and %d more", ranks[:show], len(ranks)-show)
}
