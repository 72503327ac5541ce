package group

import (
	"errors"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// finish ends c, which was carried out on this thread with err, and returns the error for the caller.
func (c *collective) finish(err error) error {
	if err != nil {
		c.haveRead()
		c.g.AwaitName(err)
		err = c.breakIfFailed(c.readable(err))
	}
	if c.staged != nil || c.shadow != nil {
		err = c.unstage(err)
	}
	c.g.release()
	if err == nil {
		err = c.interrupted
	}
	return err
}

// breakIfFailed breaks the group if collective c failed half way with err, and returns the error for the
// caller. Two kinds of errors do not break it, because no data was moved: harmless ones, and a mismatch that
// the algorithm found. Algorithms name ranks of the group; the returned error names world ranks.
func (c *collective) breakIfFailed(err error) error {
	g := c.g
	if err == nil { // return before e and alike, whose addresses errors.As takes, are allocated
		return nil
	}
	var e *status.Error
	var alike harmless
	switch {
	case errors.As(err, &alike):
		return alike.error
	case errors.As(err, &e) && e.Code == status.Mismatch:
		return status.New(e.Code, "%s and the group is usable", e.Msg).WithRanks(g.World(e.Ranks)...)
	default:
		if errors.As(err, &e) && e.Code == status.Cuda {
			e.Ranks = g.World(e.Ranks)
		}
		err = c.failedInPhase(g.Named(c.numbered()+c.inPhase(), err))
		if c.form != coll.InChunks {
			g.resign(c.args.Seq, err)
		}
		g.Fail(err)
	}
	return err
}

// unstage writes results back, unless the operation failed, and frees the stagings.
func (c *collective) unstage(err error) error {
	for i := range c.staged {
		s := &c.staged[i]
		if err == nil {
			err = s.Unpack()
		}
		s.Free()
	}
	c.staged = nil
	if c.shadow != nil {
		if err == nil {
			err = c.shadow.write()
		}
		c.freeShadow()
	}
	return err
}

func (c *collective) freeShadow() {
	if c.shadow != nil {
		c.shadow.free()
		c.shadow = nil
	}
}

// drop gives back what a call holds that did not run to its end.
func (c *collective) drop() {
	for i := range c.staged {
		c.staged[i].Free()
	}
	c.staged = nil
	c.freeShadow()
	c.offer.Free(c.args.Seq)
	c.prog.Close()
	if t := c.releaseDevice(); t != nil {
		t.Release()
	}
}

// end reports how the operation ended, and that MPI is done with its memory. The caller may have
// been told of a failure before, by giveUp.
func (t *task) end(err error) {
	t.g.Env.Recorder.End(t.collective.trace, err)
	t.countOff(t.handle.Finish(work.Result{}, err))
}

// giveUp tells the caller that t failed while MPI may still use the memory.
func (t *task) giveUp(err error) {
	t.g.Env.Recorder.End(t.collective.trace, err)
	t.countOff(t.handle.GiveUp(err))
}

// endOnDevice ends t after its program. Work of t may still be queued on a device.
func (t *task) endOnDevice(err error) {
	left := t.collective.releaseDevice()
	if err != nil && left != nil {
		left.Release()
		left = nil
	}
	t.g.Env.Recorder.End(t.collective.trace, err)
	t.countOff(left.Finish(t.handle, work.Result{}, err))
}

// countOff takes t out of Group.async, when its caller is told of its end for the first time.
func (t *task) countOff(first bool) {
	if first && t.counted {
		t.g.async.Add(-1)
	}
}

// over ends t and releases the group for the next collective.
func (t *task) over(err error) {
	t.end(err)
	t.discard()
	t.g.release()
}

// discard frees what t holds. MPI has no request of t.
func (t *task) discard() {
	t.collective.haveRead()
	t.collective.drop()
}

// abandon gives t up although its memory may still be used. t goes on until it is not.
func (t *task) abandon(err error) {
	t.stage = lingering
	if t.shared != nil {
		t.g.node.Slots.Explain(t.g.cause(err))
		t.shared.Leave()
	} else {
		t.g.resign(t.collective.args.Seq, err)
		t.collective.prog.Leave()
	}
	t.giveUp(err)
	t.g.Fail(err)
}
