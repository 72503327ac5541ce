package health

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// A blocking MPI call does not return if a member dies in it, and nothing can give it up. So a watcher
// ends the process then, after it has written one line. It does not call MPI_Abort, which may hang as
// well. If world.Groups.Survives is set, no call blocks in MPI, and the caller gets an error
// instead.

const (
	// WatchEvery is the time between two looks of the watcher.
	WatchEvery = 100 * time.Millisecond
	// diedStatus is the status with which the watcher ends the process.
	diedStatus = 1
)

// Watcher is a goroutine that looks at the groups whose members are inside blocking MPI calls. It
// starts with the first such call (Start).
type Watcher struct {
	roster           *Roster
	stuck            func(now time.Time) *Stuck
	started, stopped sync.Once
	stop             chan struct{}
	running          sync.WaitGroup
}

// Stuck is a collective in which a thread of this process is inside a blocking call of MPI that cannot end. Ranks are world
// ranks.
type Stuck struct {
	Seq   uint64
	Ranks []int // of the group
	Dead  []int // those for which the thread waits
}

// NewWatcher makes the watcher of a process. stuck returns a collective that cannot end; nil if there is none.
func NewWatcher(roster *Roster, stuck func(now time.Time) *Stuck) *Watcher {
	return &Watcher{roster: roster, stuck: stuck, stop: make(chan struct{})}
}

// Start starts the watcher, unless it runs.
func (w *Watcher) Start() {
	w.started.Do(func() {
		w.running.Add(1)
		go w.run()
	})
}

// End stops the watcher and waits for its end. No collective begins any more.
func (w *Watcher) End() {
	w.started.Do(func() {})
	w.stopped.Do(func() { close(w.stop) })
	w.running.Wait()
}

func (w *Watcher) run() {
	defer w.running.Done()
	tick := time.NewTicker(WatchEvery)
	defer tick.Stop()
	for {
		select {
		case <-w.stop:
			return
		case now := <-tick.C:
			if s := w.stuck(now); s != nil {
				w.endProcess(s)
			}
		}
	}
}

// endProcess ends the process, because a thread is inside MPI and ranks are dead. One of the living members of the node
// writes a line.
func (w *Watcher) endProcess(s *Stuck) {
	if w.speaks(s) {
		WriteLine(fmt.Sprintf("paddlempi: rank %d: %s; this process waits for it inside MPI (collective %d of the group of ranks %s), so it ends with status %d. "+
			"init_process_group(abort_on_death=False) raises an error instead.\n",
			w.roster.topo.Rank, w.roster.Deaths(s.Dead), s.Seq, status.Brief(s.Ranks), diedStatus))
	}
	w.roster.recorder.Write(s.Dead)
	syscall.Exit(diedStatus)
}

// speaks tells whether this rank is the first on its node of those that outlived the dead. It does not ask who lives now:
// the first may have written its line, and ended, a moment ago.
func (w *Watcher) speaks(s *Stuck) bool {
	for _, r := range s.Ranks {
		if r == w.roster.topo.Rank {
			return true
		}
		if w.roster.here.Views[r] != nil && !slices.Contains(s.Dead, r) {
			return false
		}
	}
	return true
}
