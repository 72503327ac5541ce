package window

import (
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// lookEvery is the time between two looks whether the member lives for which a call waits.
const lookEvery = 20 * time.Millisecond

// await drives the engine until done returns true. It ends with an error at the deadline, after an interrupt, when
// the window is freed, or when the member has died or left that whom names. A wait that lasts long is reported.
func (w *Window) await(what string, deadline time.Time, whom func() int, done func() bool) error {
	return w.awaitBy(w.ws.g.Wait, what, deadline, whom, done)
}

// awaitBy is await that waits by g.Wait, or by g.WaitRung.
func (w *Window) awaitBy(wait func(func() bool, time.Time) error, what string, deadline time.Time, whom func() int, done func() bool) error {
	g := w.ws.g
	var why error
	var over atomic.Bool
	defer over.Store(true)
	began := time.Now()
	looked, reported := began, false
	err := wait(func() bool {
		if done() {
			return true
		}
		if now := time.Now(); now.Sub(looked) >= lookEvery {
			looked = now
			if why = g.Trouble(what, whom()); why == nil && w.ended.Load() {
				why = w.endedError(what)
			}
			reported = reported || g.ReportWait(what, whom(), began, func() bool { return !over.Load() })
		}
		return why != nil
	}, deadline)
	switch {
	case why != nil:
		return why
	case err == work.ErrDeadline:
		r := g.WorldRank(whom())
		return status.New(status.Timeout, "%s: the deadline has passed while this rank waited for rank %d", what, r).WithRanks(r)
	}
	return err
}

// only is a whom of await.
func only(member int) func() int { return func() int { return member } }

func (ws *Windows) noRank(what string, r int) error {
	return status.New(status.Argument, "%s: rank=%d is no rank of the window's group, which has ranks 0 to %d", what, r, ws.size-1)
}

func (w *Window) endedError(what string) error {
	if err := w.ws.g.Trouble(what, w.ws.me); err != nil {
		return err
	}
	return status.New(status.GroupDestroyed, "%s: the window was freed", what)
}

func (ws *Windows) freedThere(what string, r int) error {
	rank := ws.g.WorldRank(r)
	return status.New(status.GroupDestroyed, "%s: rank %d has freed the window", what, rank).WithRanks(rank)
}
