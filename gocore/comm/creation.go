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
	ranks := make([]int, len(members))
	for i, m := range members {
		ranks[i] = c.ranks[m]
	}
	return ranks
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
