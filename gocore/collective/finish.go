package collective

import (
	"errors"

	"github.com/paddlempi/paddlempi/gocore/buffer"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// end ends c, whose work has ended with err. If MPI tells of a death, it waits until it is known whose.
func (c *collective) end(err error) wants {
	if err != nil {
		haveRead(&c.request)
		if c.news.Waits(c.g.Members(), err) {
			return members
		}
		f := c.failure()
		err = f.breakIfFailed(f.readable(err), c.form)
	}
	if c.copies.staged != nil || c.copies.shadow != nil {
		err = c.copies.unpack(err)
	}
	return c.isOver(err)
}

// isOver reports how c has ended, frees what it holds, and releases the group for the next collective. Work of c may still be
// queued on a device. The caller may have been told of a failure before, by abandon.
func (c *collective) isOver(err error) wants {
	g := c.g
	c.stage = over
	if c.trial.counted {
		c.trial.end(g, err)
	}
	var left *buffer.Tail
	if c.args.DeviceArgs != nil {
		if left = releaseDevice(c.args.DeviceArgs); left != nil && (err != nil || c.handle == nil) {
			left.Release()
			left = nil
		}
	}
	if err == nil {
		err = c.interrupted
	}
	if err == nil {
		c.trace.End(status.OK)
	} else {
		g.Env.Recorder.End(c.trace, err)
	}
	switch c.err = err; {
	case left != nil:
		c.countOff(left.Finish(c.handle, work.Result{}, err))
	case c.handle != nil:
		c.countOff(c.handle.Finish(work.Result{}, err))
	}
	if !c.bare {
		c.discard()
	}
	if !c.gone {
		g.turns.release()
	}
	return nothing
}

// breakIfFailed breaks the group if the collective failed half way with err, and returns the error for the
// caller. Two kinds of errors do not break it, because no data was moved: harmless ones, and a mismatch that
// the algorithm found. Algorithms name ranks of the group; the returned error names world ranks.
func (f *failure) breakIfFailed(err error, form coll.Form) error {
	g := f.g
	var e *status.Error
	var alike harmless
	switch {
	case errors.As(err, &alike):
		return alike.error
	case errors.As(err, &e) && e.Code == status.Mismatch:
		return status.New(e.Code, "%s and the group is usable", e.Msg).WithRanks(g.Members().World(e.Ranks)...)
	case e != nil && e.Code == status.Cuda:
		e.Ranks = g.Members().World(e.Ranks)
	}
	err = f.failedInPhase(g.Members().Named(f.numbered()+f.inPhase(), err))
	if form != coll.InChunks {
		g.resign(f.args.Seq, err)
	}
	g.Fail(err)
	return err
}

// drop gives back what a call holds.
func (c *collective) drop() {
	c.copies.free()
	c.offer.Free(c.args.Seq)
	c.prog.Close()
	if c.chunks.op != nil {
		c.chunks.op.Free()
		c.chunks.op = nil
	}
	if c.args.DeviceArgs != nil {
		if t := releaseDevice(c.args.DeviceArgs); t != nil {
			t.Release()
		}
	}
}

// discard frees what c holds. MPI has no request of c.
func (c *collective) discard() {
	if c.args.Neighbours != nil {
		haveRead(&c.request)
	}
	c.drop()
}

// report tells the caller of c how it has ended, and that nobody uses its memory.
func (c *collective) report(err error) {
	c.g.Env.Recorder.End(c.trace, err)
	c.countOff(c.handle.Finish(work.Result{}, err))
}

// countOff takes c out of Group.async, when its caller is told of its end for the first time.
func (c *collective) countOff(first bool) {
	if first && c.counted {
		c.g.async.Add(-1)
	}
}
