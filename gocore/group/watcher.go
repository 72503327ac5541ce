package group

import (
	"fmt"
	"sync"
	"syscall"
	"time"
)

// A blocking MPI call does not return if a member dies in it, and nothing can give it up. So a watcher
// ends the process then, after it has written one line. It does not call MPI_Abort, which may hang as
// well. If Env.Survives is set, no call blocks in MPI, and the caller gets an error instead.

const (
	// watchEvery is the time between two looks of the watcher.
	watchEvery = 100 * time.Millisecond
	// diedStatus is the status with which the watcher ends the process.
	diedStatus = 1
)

// watcher is a goroutine that looks at the groups whose members are inside blocking MPI calls. It
// starts with the first such call.
type watcher struct {
	started, stopped sync.Once
	stop             chan struct{}
	running          sync.WaitGroup
}

// watch starts the watcher, unless it runs.
func (e *Env) watch() {
	w := &e.watcher
	w.started.Do(func() {
		w.running.Add(1)
		go e.runWatcher()
	})
}

// watchNoMore stops the watcher and waits for its end. No collective begins any more.
func (e *Env) watchNoMore() {
	w := &e.watcher
	w.started.Do(func() {})
	w.stopped.Do(func() { close(w.stop) })
	w.running.Wait()
}

func (e *Env) runWatcher() {
	defer e.watcher.running.Done()
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-e.watcher.stop:
			return
		case now := <-tick.C:
			for _, g := range e.liveGroups() {
				if dead := g.stuckFor(now); dead != nil {
					g.endProcess(dead)
				}
			}
		}
	}
}

// stuck is a collective that is inside MPI, and what the watcher knows of the members.
type stuck struct {
	seq  uint64
	slow slowness
	mourning
}

// stuckFor returns the dead members for which a thread of this process waits inside a blocking MPI call
// of g, which cannot end.
func (g *Group) stuckFor(now time.Time) (dead []int) {
	seq := g.blocking.Load()
	if seq == 0 {
		g.stuck = stuck{}
		return nil
	}
	s := &g.stuck
	if s.seq != seq {
		*s = stuck{seq: seq}
	}
	if s.slow.due(g.env, now, time.Time{}) {
		g.reportCollective(&s.slow, g.recordedAs(seq), seq, true, -1, func() bool { return g.blocking.Load() == seq })
	}
	return s.over(g, now)
}

// endProcess ends the process, because a thread is inside MPI in a collective of g and these members are
// dead. One of the living members of the node writes a line.
func (g *Group) endProcess(dead []int) {
	if g.speaks() {
		line := fmt.Sprintf("paddlempi: rank %d: %s; this process waits for it inside MPI (collective %d of the group of ranks %s), so it ends with status %d. "+
			"init_process_group(abort_on_death=False) raises an error instead.\n",
			g.env.Topo.Rank, g.env.deaths(g.worldRanks(dead)), g.blocking.Load(), brief(g.Ranks), diedStatus)
		_, _ = syscall.Write(2, []byte(line))
	}
	g.env.recorder.writeRings(g.worldRanks(dead))
	syscall.Exit(diedStatus)
}

// speaks tells whether this member is the first of those of its node that live.
func (g *Group) speaks() bool {
	for _, r := range g.Ranks {
		if r == g.env.Topo.Rank {
			return true
		}
		if v := g.env.views[r]; v != nil && !v.DeadNow() {
			return false
		}
	}
	return true
}
