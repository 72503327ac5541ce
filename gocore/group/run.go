package group

import (
	"time"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// run carries out c on this thread. If MPI may use the memory after an error, it returns the handle of the task that
// waits for that.
func (c *collective) run(alg *coll.Algorithm) (lingering *work.Handle, err error) {
	g := c.g
	switch c.form {
	case coll.AtOnce:
		return nil, alg.Compute(&c.args)
	case coll.InChunks:
		return c.workMapped(alg)
	case coll.InRounds:
		return nil, c.runRounds(alg)
	}
	if err = c.build(alg); err == nil {
		g.Env.Watcher.Start()
		g.blocking.Store(g.turn)
		err = c.prog.Run()
		g.blocking.Store(0)
	}
	g.Env.Engine.CalledMPI()
	return nil, err
}

// runTask carries out c by a task, and waits for it.
func (c *collective) runTask(alg *coll.Algorithm) (lingering *work.Handle, err error) {
	t := c.newTask()
	if err = t.collective.build(alg); err != nil {
		t.discard()
		return nil, c.finish(err)
	}
	t.run()
	c.g.Env.Engine.Add(t)
	c.g.Env.Engine.CalledMPI()
	interrupted := c.interrupted
	if lingering, _, err = t.await(); err == nil {
		err = interrupted
	}
	return lingering, err
}

// build packs staged tensors and makes the steps of c. The other members have arrived and run their
// steps, so an error here breaks the group.
func (c *collective) build(alg *coll.Algorithm) error {
	switch {
	case c.form != coll.AtOnce: // that reads the payloads, for which they were packed
		if err := c.pack(); err != nil {
			return err
		}
	case c.waitsForReaders():
		c.buildLent(alg)
		return nil
	}
	return c.prog.Build(alg, &c.args)
}

// pack copies the tensors that are not contiguous to memory that is.
func (c *collective) pack() error {
	for i := range c.staged {
		if err := c.staged[i].Pack(); err != nil {
			return err
		}
	}
	return nil
}

// start makes the steps of t by alg, once all members have arrived.
func (t *task) start(alg *coll.Algorithm) (err error) {
	if t.collective.form == coll.InChunks {
		if err = t.share(alg); t.stage == lingering {
			return nil
		}
	} else if err = t.collective.build(alg); err == nil {
		t.g.Env.Engine.CalledMPI()
	}
	if err == nil {
		t.run()
	}
	return err
}

// run begins the program. It may take the whole timeout, whatever the arrival took.
func (t *task) run() {
	t.stage = running
	t.collective.deadline = time.Now().Add(t.collective.timeout)
}

// pollProgram takes the program further, and ends t with it.
func (t *task) pollProgram() bool {
	done, err := t.news.Err != nil, t.news.Err
	if !done {
		done, err = t.collective.prog.Poll()
		t.collective.notePhase()
	}
	if t.news.Waits(&t.g.Members, err) {
		return false
	}
	if done {
		if t.shared == nil {
			t.g.Env.Engine.CalledMPI() // its last messages may not have left yet
		}
		t.endOnDevice(t.collective.unstage(t.collective.breakIfFailed(t.collective.readable(err))))
		t.discard()
		if !t.gone {
			t.g.release()
		}
		return true
	}
	if t.stage != running {
		return false
	}
	if err = t.overdue(); err == nil {
		err = t.g.EndingError(world.Describe(t.collective.sig))
	}
	if err == nil && t.handle.Done() {
		_, err = t.handle.Result()
	}
	if err != nil {
		t.abandon(err)
	}
	return false
}
