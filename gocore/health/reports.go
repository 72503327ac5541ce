package health

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/paddlempi/paddlempi/gocore/liveness"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// A rank that waits long for others reports it once: for whom it waits, and what those do instead, as
// their flight recorders say. Waits look at the clock now and then anyway, and the one that finds itself
// due starts a goroutine, which asks and writes. If several ranks wait for the same, one of them reports.

// ReportVariable is the environment variable that says after how many seconds a wait is reported; with 0
// none is.
const ReportVariable = "PADDLEMPI_REPORT_AFTER"

const (
	defaultReportAfter = 30 * time.Second
	leastReportAfter   = 100 * time.Millisecond
	mostReportAfter    = 7 * 24 * time.Hour

	// lookedAt is how many ranks a report looks at, described how many of those it describes.
	lookedAt  = 16
	described = 4
	// turnApart is the time between the turns of two ranks of a node to report the same, and lastTurn
	// the most for all.
	turnApart = 50 * time.Millisecond
	lastTurn  = 3 * time.Second
	// nodeApart and lastNode are the same for two nodes.
	nodeApart = 250 * time.Millisecond
	lastNode  = 5 * time.Second
	// longestReport is the length at which a report is cut off, so that write(2) on a pipe does not mix
	// it with that of another process.
	longestReport = 4000
)

// Reports writes a line about each wait of this rank that lasts long. Its methods are safe for concurrent use.
type Reports struct {
	After time.Duration // how long a wait lasts before it is reported; 0: none is
	Write func(line string)

	roster *Roster
}

// Begin says who the ranks are. Before that only Init may be called.
func (o *Reports) Begin(roster *Roster) { o.roster = roster }

// ReportAfter returns after how long a wait is reported; 0: never. A setting that is wrong counts as none, until
// world.NewEnv tells all ranks of it.
func ReportAfter() time.Duration {
	after, err := reportAfter()
	if err != nil {
		return defaultReportAfter
	}
	return after
}

// reportAfter reads ReportVariable.
func reportAfter() (time.Duration, error) {
	return liveness.Seconds(ReportVariable, defaultReportAfter, leastReportAfter, mostReportAfter)
}

// WriteLine writes a line to the standard error of the process.
func WriteLine(line string) { _, _ = syscall.Write(2, []byte(line)) }

// Slowness is what a wait knows for its report. The zero value is of a wait that begins.
type Slowness struct {
	Since time.Time // when the wait began
	told  bool
}

// MayBeDue tells whether the wait has lasted so long that it is to be reported, and was not yet. It begins to count
// at the first call.
func (s *Slowness) MayBeDue(o *Reports, now time.Time) bool {
	if s.told || o.After == 0 {
		return false
	}
	if s.Since.IsZero() {
		s.Since = now
	}
	return now.Sub(s.Since) >= o.After
}

// Due tells, once, that the wait is to be reported, as MayBeDue does. It counts from since if that is later.
func (s *Slowness) Due(o *Reports, now, since time.Time) bool {
	if !s.MayBeDue(o, now) {
		return false
	}
	if since.After(s.Since) {
		s.Since = since
	}
	s.told = now.Sub(s.Since) >= o.After
	return s.told
}

// Wait is a wait that is reported.
type Wait struct {
	What   string // the operation, and its group
	How    string // what a rank has not done that this one waits for
	Nobody string // what is said if no rank can be named; "": nothing is reported then
	Since  time.Time
	// ID is the same on all ranks that wait for the same. Past says that a report of another rank
	// counts even if it was made before this wait began.
	ID   uint64
	Past bool
	// Key and Seq are those of a collective, which others may have come to meanwhile. Seq is 0 in other
	// waits.
	Key, Seq uint64
	Ranks    []int // world ranks for which this one waits, as far as it knows
	Moving   bool  // all of them have come: only those are named that are stalled
	Still    func() bool
}

// WaitID identifies what ranks wait for.
func WaitID(kind string, words ...uint64) uint64 {
	h := fnv.New64a()
	h.Write([]byte(kind))
	for _, w := range words {
		h.Write(binary.LittleEndian.AppendUint64(nil, w))
	}
	return h.Sum64() | 1 // no free slot of a ring has it
}

// Init reports a wait for ranks that have not called init. Before that nobody knows who they are, so
// only the first two ranks report it: one of them may be missing.
func (o *Reports) Init(s *Slowness, rank int) {
	if rank < 2 {
		o.Write(fmt.Sprintf("paddlempi: rank %d has waited for %.1f s in init_process_group: not all ranks of the job have called it.\n", rank, time.Since(s.Since).Seconds()))
	}
}

// Report looks at the ranks for which w waits and writes the line, unless another rank has reported the
// same, or the wait has ended meanwhile. It does so on a goroutine of its own.
func (o *Reports) Report(w *Wait) { go o.report(w) }

func (o *Reports) report(w *Wait) {
	time.Sleep(o.turn())
	if !w.Still() || !o.mayReport(w) {
		return
	}
	ranks := w.Ranks[:min(len(w.Ranks), lookedAt)]
	found := ofEach(ranks, func(r int) activity { return o.look(r, w.Key, w.Seq) })
	if line := w.line(o, ranks, found); line != "" && w.Still() {
		o.Write(line)
	}
}

// ofEach calls f for all of some ranks at once, and returns what it returns for each.
func ofEach[T any](ranks []int, f func(rank int) T) []T {
	found := make([]T, len(ranks))
	var all sync.WaitGroup
	for i, rank := range ranks {
		all.Add(1)
		go func() {
			defer all.Done()
			found[i] = f(rank)
		}()
	}
	all.Wait()
	return found
}

// turn is how long this rank leaves it to others to report the same: those before it on its node, and of
// the nodes before it.
func (o *Reports) turn() time.Duration {
	rank := time.Duration(o.roster.topo.LocalRank)
	d := min(rank*turnApart, lastTurn*rank/time.Duration(max(1, o.roster.topo.LocalSize)))
	if o.roster.unwatched == "" {
		d += min(time.Duration(o.roster.topo.Node[o.roster.topo.Rank])*nodeApart, lastNode)
	}
	return d
}

// mayReport tells whether no other rank has reported w, as far as this one knows. From then on they know
// that this rank has.
func (o *Reports) mayReport(w *Wait) bool {
	r := o.roster.recorder
	r.write.Lock()
	defer r.write.Unlock()
	if r.closed {
		return false
	}
	defer r.lock()()
	ago := time.Since(w.Since)
	if w.Past {
		ago = math.MaxInt64
	}
	if o.roster.alive.Noticed(uint32(w.ID>>32), ago) {
		return false
	}
	for _, theirs := range r.others {
		if theirs.Told(w.ID, ago) {
			return false
		}
	}
	r.ring.Tell(w.ID)
	o.roster.alive.Notify(uint32(w.ID >> 32))
	return true
}

// lock keeps the ranks of this node from deciding at the same time who reports. The caller holds write.
func (r *Recorder) lock() (unlock func()) {
	if theirs := r.others[r.ranks()[0]]; theirs != nil {
		return theirs.Lock()
	}
	return r.ring.Lock()
}

// line is the text of the report, "" if there is nothing to say. found has what is known of ranks, the first of w.Ranks.
func (w *Wait) line(o *Reports, ranks []int, found []activity) string {
	var text []string
	var rest []int
	for i, a := range found {
		switch {
		case !a.Stalled && (w.Moving || a.Came):
		case len(text) == described:
			rest = append(rest, ranks[i])
		default:
			how := ""
			if !w.Moving && !a.Came {
				how = " " + w.How
			}
			if a.Stalled {
				how += strings.Repeat(" and", min(1, len(how))) + " is stalled"
			}
			text = append(text, fmt.Sprintf("rank %d%s%s: %s", ranks[i], o.onHost(ranks[i]), how, a.Text))
		}
	}
	if len(rest) > 0 {
		text = append(text, fmt.Sprintf("rank(s) %s likewise", status.Brief(rest)))
	}
	if len(text) == 0 {
		if w.Nobody == "" {
			return ""
		}
		text = append(text, w.Nobody)
	}
	if more := len(w.Ranks) - len(ranks); more > 0 {
		text = append(text, fmt.Sprintf("%d more were not looked at", more))
	}
	line := fmt.Sprintf("paddlempi: rank %d has waited for %.1f s in %s: %s", o.roster.topo.Rank, time.Since(w.Since).Seconds(), w.What, strings.Join(text, "; "))
	line = status.ASCII(line)
	more := fmt.Sprintf(". `python -m paddlempi trace dump %s` tells more.\n", strings.Join(o.roster.recorder.pids(), " "))
	return line[:min(len(line), longestReport-len(more))] + more
}

// onHost names the host of a rank, if the job has several nodes and that is known.
func (o *Reports) onHost(r int) string {
	if host := o.roster.alive.Host(r); host != "" {
		return " on host " + host
	}
	return ""
}
