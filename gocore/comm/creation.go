package comm

import (
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/health"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// Least is how long members that have met may take to make something together, whatever is left of the call's time: the
// last one may have come when that was nearly over.
const Least = 2 * time.Second

// Creation is what members do together once they have met: they make a communicator, and build something over it. Without MPI
// they tell each other words, on the caller's thread. The calls of MPI have no deadline, so they run on a thread of their own,
// which may never come back. The caller gets an error in both cases if its time is over, a signal comes, a member has died, or
// the world ends.
type Creation struct {
	e       *world.Env
	what    string // the call
	ranks   []int  // the members
	Key     uint64 // the same on all of them, and in no other creation
	timeout time.Duration
	until   time.Time
	leftAt  time.Time // when a member was first seen to have left
	Common  bool      // an error of build is that of all members, so they free the communicator together
}

// Meet waits until all members have come to the call that what names; need says what a member has to do that has not come. It
// returns what they do together then.
func Meet(e *world.Env, what, need string, ranks []int, timeout time.Duration) (*Creation, error) {
	key, began := e.Groups.Key(ranks), time.Now()
	if err := e.Meet(what, need, key, ranks, timeout); err != nil {
		e.Groups.Unmake(ranks)
		return nil, err
	}
	return creating(e, what, ranks, key, began, timeout), nil
}

// First makes what all ranks of a world have, over the first communicator. They have come to init.
func First(e *world.Env, ranks []int, timeout time.Duration, comm transport.Comm, build func(transport.Comm) error) error {
	if _, ok := comm.(transport.Limited); !ok {
		return build(comm)
	}
	return creating(e, "init", ranks, 0, time.Now(), timeout).over(comm, build)
}

// creating returns the creation of members that have met, for a call that began then.
func creating(e *world.Env, what string, ranks []int, key uint64, began time.Time, timeout time.Duration) *Creation {
	c := &Creation{e: e, what: what, ranks: ranks, Key: key, timeout: timeout, until: began.Add(timeout)}
	if least := time.Now().Add(Least); c.until.Before(least) {
		c.until = least
	}
	return c
}

// Run makes the communicator, and calls build with it. abandoned is called if build succeeds after the caller got the error why.
func (c *Creation) Run(build func(transport.Comm) error, abandoned func(why error)) error {
	if _, ok := c.e.Base.(transport.Limited); !ok {
		return c.byMPI(build, abandoned)
	}
	comm, err := c.e.Base.Create(c.ranks, c.Key)
	if err != nil {
		return err
	}
	return c.over(comm, build)
}

// over is Run without MPI, over a communicator that it frees after an error.
func (c *Creation) over(comm transport.Comm, build func(transport.Comm) error) error {
	p := comm.(transport.Limited)
	p.WaitBy(func(done func() bool) error { return c.wait(done, p) })
	err := build(comm)
	p.WaitBy(nil)
	if err != nil {
		_ = comm.Free()
	}
	return diedOf(c.e, c.what, c.ranks, err)
}

// wait waits for words of the members.
func (c *Creation) wait(done func() bool, p transport.Limited) error {
	var lost error
	looks := 0
	err := c.e.Engine.Wait(func() bool {
		if done() {
			return true
		}
		if looks++; looks&31 == 0 {
			lost = c.lost(p)
		}
		return lost != nil
	}, c.until, c.e.Interrupt)
	switch {
	case err == nil && lost == nil:
		return nil
	case lost != nil:
		return lost
	case c.e.Ending() != nil:
		return c.e.EndingError(c.what, c.ranks)
	case err == work.ErrDeadline:
		return c.late(c.world(p.Missing()))
	}
	return err
}

// lost returns why the words for which this member waits will not come, nil if they may.
func (c *Creation) lost(p transport.Limited) error {
	if err := c.e.EndingError(c.what, c.ranks); err != nil {
		return err
	}
	if c.e.Roster.AnyDied(c.ranks) {
		return unmadeError(c.e, c.what, c.ranks, c.e.Roster.Dead(c.ranks))
	}
	left := slices.DeleteFunc(c.world(p.Missing()), func(r int) bool { return !c.e.Roster.LeftInOrder(r) })
	if now := time.Now(); len(left) == 0 || c.leftAt.IsZero() {
		c.leftAt = now
	} else if now.Sub(c.leftAt) > health.LeftGrace {
		return status.New(status.PeerLeft, "%s(ranks=%v): world rank(s) %s have ended; the group was not made", c.what, status.Brief(c.ranks), status.Brief(left)).WithRanks(left...)
	}
	return nil
}

// world returns the world ranks of members.
func (c *Creation) world(members []int) []int {
	return (&world.Members{Ranks: c.ranks}).World(members)
}

// late is the error that the time is over. It names the ranks among missing that are stalled; if none of them is, all.
func (c *Creation) late(missing []int) error {
	how := "have not done their part"
	if stalled := c.e.Recorder.Stalled(missing); len(stalled) > 0 {
		missing, how = stalled, "do not go on (are they stopped?)"
	}
	return status.New(status.Timeout, "%s(ranks=%v): all ranks had come, and after %v world rank(s) %s %s; the group was not made",
		c.what, status.Brief(c.ranks), c.timeout, status.Brief(missing), how).WithRanks(missing...)
}

// byMPI is Run with MPI.
func (c *Creation) byMPI(build func(transport.Comm) error, abandoned func(why error)) error {
	var comm transport.Comm
	ends := func() error {
		if err := c.e.EndingError(c.what, c.ranks); err != nil {
			return err
		}
		if time.Now().After(c.until) {
			others := slices.DeleteFunc(slices.Clone(c.ranks), func(r int) bool { return r == c.e.Topo.Rank })
			return c.late(others) // MPI does not say whom it waits for
		}
		if c.e.Interrupt != nil {
			return c.e.Interrupt()
		}
		return nil
	}
	ended, err := Attempt(c.e, c.what, c.ranks, ends, func() (err error) {
		if comm, err = c.e.Base.Create(c.ranks, c.Key); err != nil {
			return err
		}
		return build(comm)
	}, abandoned)
	if err != nil && ended && c.Common && comm != nil {
		_ = comm.Free()
	}
	return err
}

// Attempt runs build, which calls MPI with all members, for the call that what names. These calls block, so build runs on a
// thread of its own: if a member dies, or if ends returns why, the caller gets an error, and build may never end. It counts as a
// use of the world then, so MPI is not finalized. If it succeeds after all, abandoned is called. ended tells whether it has ended.
func Attempt(e *world.Env, what string, ranks []int, ends, build func() error, abandoned func(why error)) (ended bool, err error) {
	made, given := make(chan error), make(chan struct{})
	var why error // is set before given is closed
	done := e.Use()
	go func() {
		defer done()
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		work.ExactSleeps() // else a group takes MPICH 300 ms when ranks share cores
		err := build()
		select {
		case made <- err:
		case <-given:
			if err == nil {
				abandoned(why)
			}
		}
	}()
	tick := time.NewTicker(health.WatchEvery)
	defer tick.Stop()
	var since time.Time // when a death was seen first
	for {
		select {
		case err := <-made:
			return true, diedOf(e, what, ranks, err)
		case now := <-tick.C:
			why = ends()
			if since.IsZero() && e.Roster.AnyDied(ranks) {
				since = now
			}
			if why == nil && !since.IsZero() && now.Sub(since) > health.DeathGrace {
				why = unmadeError(e, what, ranks, e.Roster.Dead(ranks))
			}
			if why != nil {
				close(given)
				return false, why
			}
		}
	}
}

// diedOf returns err, or the error of the call that names dead members, of which MPI may tell anything.
func diedOf(e *world.Env, what string, ranks []int, err error) error {
	switch status.CodeOf(err) {
	case status.OK, status.Interrupted:
		return err
	case status.ProcFailed: // the transport may know of the death earlier than this rank
		_ = e.Engine.Wait(func() bool { return len(e.Roster.Dead(ranks)) > 0 }, time.Now().Add(e.Roster.NameLimit()), nil)
	}
	if dead := e.Roster.Dead(ranks); len(dead) > 0 {
		return unmadeError(e, what, ranks, dead)
	}
	return err
}

func unmadeError(e *world.Env, what string, ranks, dead []int) error {
	return e.Roster.DiedError(fmt.Sprintf("%s(ranks=%v)", what, status.Brief(ranks)), dead, "the group was not made")
}

// Members are those of a group, who make communicators that carry nothing else.
type Members struct{ *world.Members }

// Alone makes one for a join, also in a group of one rank. It is collective, and the members call it in the same order as
// new_group.
func (g Members) Alone(what string, timeout time.Duration) (transport.Comm, error) {
	if g.Size == 1 {
		defer g.Use()()
		if err := g.EndingError(what); err != nil {
			return nil, err
		}
		return g.Env.Base.Create(g.Ranks, 0)
	}
	return g.Separate(what, timeout, func(func([]int64) ([][]int64, error)) error { return nil })
}

// Separate makes one for another room of the core that moves bytes between the members by itself (ps/link). It is collective, and the
// members call it in the same order as new_group. meanwhile is called on each of them, and may exchange
// words: tell gives this member's, of the same number on all, and returns those of all, by rank. All
// members call tell equally often. In a group of one rank the communicator is nil.
func (g Members) Separate(what string, timeout time.Duration, meanwhile func(tell func(words []int64) ([][]int64, error)) error) (transport.Comm, error) {
	e := g.Env
	defer g.Use()()
	if err := g.EndingError(what); err != nil {
		return nil, err
	}
	if g.Size == 1 {
		return nil, meanwhile(func(words []int64) ([][]int64, error) { return [][]int64{slices.Clone(words)}, nil })
	}
	c, err := Meet(e, what, fmt.Sprintf("called %s; every member must call it, in the same order as new_group", what), g.Ranks, timeout)
	if err != nil {
		return nil, err
	}
	c.Common = true
	var made transport.Comm
	err = c.Run(func(comm transport.Comm) error {
		made = comm
		return meanwhile(func(words []int64) ([][]int64, error) { return comm.Gather(words, nil) })
	}, func(error) {})
	if err != nil {
		return nil, err
	}
	return made, nil
}
