package group

import (
	"time"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// This file carries out synchronous collectives on the caller's thread, without a task.

// inlineSpin is how many pauses an inline arrival spins before it waits adaptively: some 20 us.
const inlineSpin = 2000

// runInline carries out a synchronous collective on this thread if the group is idle and its
// members share a node. Otherwise it does nothing and returns done = false. If MPI may use the
// memory after an error, lingering is the handle that comes with the error.
func (c *call) runInline() (done bool, lingering *work.Handle, err error) {
	g := c.g
	if !g.local {
		return false, nil, nil
	}
	g.mu.Lock()
	if g.busy {
		g.mu.Unlock()
		return false, nil, nil
	}
	if err := g.usableLocked(c.args.Code); err != nil {
		g.mu.Unlock()
		return true, nil, err
	}
	g.busy = true
	g.mu.Unlock()

	note, err := c.note()
	if err != nil {
		return c.refuseInline()
	}
	state, res, err := c.arriveInline(note)
	if err == nil {
		g.arrived = g.turn
	}
	switch {
	case err != nil:
		g.resign(g.turn, err)
		g.Fail(err)
	case !c.agreed(state, res):
		err = c.agreementError(state, res)
	default:
		return c.carryOut(res)
	}
	g.release()
	return true, nil, err
}

// carryOut runs c on this thread; all members have arrived. It makes blocking MPI calls if every
// member waits inside its call and the algorithm does not poll. Otherwise it makes a task and waits
// for it.
func (c *call) carryOut(agreed arrive.Result) (done bool, lingering *work.Handle, err error) {
	g := c.g
	alg, err := c.choose(agreed)
	switch {
	case err != nil:
	case alg.AtOnce != nil:
		err = alg.AtOnce(&c.args)
	case alg.Shared != nil:
		lingering, err = c.workTogether(alg)
	case alg.Polled(&c.args.Sig) || agreed.All&arrive.Sync == 0:
		t := c.newCollective()
		if err = t.call.build(alg); err != nil {
			t.discard()
			break
		}
		t.run()
		g.Env.Engine.Add(t)
		g.Env.Engine.CalledMPI()
		interrupted := c.interrupted
		lingering, _, err = g.await(t)
		if err == nil {
			err = interrupted
		}
		return true, lingering, err
	default:
		if err = c.build(alg); err == nil {
			g.Env.Watcher.Start()
			g.blocking.Store(g.turn)
			err = c.prog.Run()
			g.blocking.Store(0)
		}
		g.Env.Engine.CalledMPI()
	}
	if lingering != nil {
		return true, lingering, err // the task that lingers releases the group
	}
	if err != nil {
		g.AwaitName(err)
		err = c.breakIfFailed(c.readable(err))
	}
	if c.staged != nil {
		err = c.unstage(err)
	}
	g.release()
	if err == nil {
		err = c.interrupted
	}
	return true, nil, err
}

// refuseInline makes c a task, which finds that it has no note and refuses. The group is busy with c.
func (c *call) refuseInline() (done bool, lingering *work.Handle, err error) {
	g := c.g
	c.record(0)
	t := c.newCollective()
	g.mu.Lock()
	g.takeTurn(t)
	g.mu.Unlock()
	t.begin()
	lingering, _, err = g.await(t)
	return true, lingering, err
}

// arriveInline announces c with note and waits for the other members. It fails only because of the deadline,
// an interrupt, or a member that has left; each of these breaks the group for all members. If the
// last member arrived at that very moment, there is no failure and the collective runs.
func (c *call) arriveInline(note arrive.Note) (arrive.State, arrive.Result, error) {
	g := c.g
	g.seq++
	g.turn, c.args.Seq = g.seq, g.seq
	c.record(0)
	spin := inlineSpin
	if g.Env.Node.Crowded() {
		spin = 64
	}
	flags := c.flags
	if !g.Env.Survives {
		flags |= arrive.Sync
	}
	state, res, err := g.arrival.Announce(g.turn, &c.sig, flags, note, spin)
	if state == arrive.Closed {
		return state, res, c.closedError()
	}
	if isHere(state) || err != nil {
		return state, res, err
	}
	if c.deadline.IsZero() {
		c.deadline = time.Now().Add(c.timeout)
	}
	var left error
	looks := 0
	var slow world.Slowness
	waitErr := g.Wait(func() bool {
		state, res, err = g.arrival.Poll(20)
		if state != arrive.Pending || err != nil {
			return true
		}
		if looks++; looks&63 == 0 {
			left = c.absentError()
			c.reportIfSlow(&slow, false, -1)
		}
		return left != nil
	}, c.deadline)
	switch {
	case state == arrive.Closed:
		return state, res, c.closedError()
	case state == arrive.Rubbish:
		err = c.rubbishError()
	case state != arrive.Pending || err != nil:
		c.trace.Arrived()
		return state, res, err
	case left != nil:
		err = left
	case waitErr == work.ErrDeadline:
		err = c.timeoutError()
	case g.Ending() != nil:
		err = g.EndingError(world.Describe(c.sig))
	default:
		err = waitErr
	}
	if g.arrival.GiveUp(g.turn, status.CodeOf(err)) {
		return state, res, err
	}
	if status.CodeOf(err) == status.Interrupted {
		c.interrupted = err
	}
	return c.cameAfterAll()
}
