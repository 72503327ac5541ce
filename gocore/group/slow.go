package group

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/paddlempi/paddlempi/gocore/dl"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/trace"
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

// reports is what an environment knows of its reports.
type reports struct {
	after time.Duration // 0: there are none
	write func(line string)
}

// reportAfter reads ReportVariable.
func reportAfter() (time.Duration, error) {
	text, _ := dl.Getenv(ReportVariable)
	if text == "" {
		return defaultReportAfter, nil
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if after := seconds * float64(time.Second); err == nil && (seconds == 0 || after >= float64(leastReportAfter) && after <= float64(mostReportAfter)) {
		return time.Duration(after), nil
	}
	return 0, status.New(status.Argument, "init: %s=%s is neither 0 nor a number of seconds from %v to %v", ReportVariable, text, leastReportAfter.Seconds(), mostReportAfter.Seconds())
}

// ReportAfter returns how long a wait lasts before it is reported, 0 if none is.
func (e *Env) ReportAfter() time.Duration { return e.reports.after }

func writeReport(line string) { _, _ = syscall.Write(2, []byte(line)) }

// slowness is what a wait knows for its report. The zero value is of a wait that begins.
type slowness struct {
	since time.Time
	told  bool
}

// due tells, once, that the wait has lasted so long that it is to be reported. It begins to count at the
// first call, or at since if that is later.
func (s *slowness) due(e *Env, now, since time.Time) bool {
	if s.told || e.reports.after == 0 {
		return false
	}
	if s.since.IsZero() {
		s.since = now
	}
	if since.After(s.since) {
		s.since = since
	}
	if now.Sub(s.since) < e.reports.after {
		return false
	}
	s.told = true
	return true
}

// wait is a wait that is reported.
type wait struct {
	what   string // the operation, and its group
	how    string // what a rank has not done that this one waits for
	nobody string // what is said if no rank can be named; "": nothing is reported then
	since  time.Time
	// id is the same on all ranks that wait for the same. past says that a report of another rank
	// counts even if it was made before this wait began.
	id   uint64
	past bool
	// key and seq are those of a collective, which others may have come to meanwhile. seq is 0 in other
	// waits.
	key, seq uint64
	ranks    []int // world ranks for which this one waits, as far as it knows
	moving   bool  // all of them have come: only those are named that are stalled
	still    func() bool
}

// waitID identifies what ranks wait for.
func waitID(kind string, words ...uint64) uint64 {
	h := fnv.New64a()
	h.Write([]byte(kind))
	for _, w := range words {
		h.Write(binary.LittleEndian.AppendUint64(nil, w))
	}
	return h.Sum64() | 1 // no free slot of a ring has it
}

// reportCollective reports a wait in collective seq of g.
func (g *Group) reportCollective(s *slowness, what string, seq uint64, moving bool, worker int, still func() bool) {
	w := wait{what: fmt.Sprintf("%s, number %d on the group of ranks %s", what, seq, brief(g.Ranks)), how: "has not come", nobody: "all members have come to it, and none of those that could be asked is stalled",
		since: s.since, id: waitID("collective", g.key, seq), past: true, key: g.key, seq: seq, moving: moving, still: still}
	switch {
	case moving && worker >= 0 && worker != g.Rank:
		w.ranks, w.moving = []int{g.Ranks[worker]}, false
		w.how, w.seq = "has not done its part of the transfer", 0
	case moving:
		w.ranks = slices.Clone(g.Ranks)
	default:
		missing, known := g.arrival.Missing()
		if w.ranks = g.worldRanks(missing); !known {
			w.ranks = g.notHere(seq)
		}
	}
	w.ranks = slices.DeleteFunc(w.ranks, func(r int) bool { return r == g.env.Topo.Rank })
	go g.env.report(&w)
}

// reportIfSlow reports a wait in c, in which the caller's thread is.
func (g *Group) reportIfSlow(s *slowness, c *call, moving bool, worker int) {
	if e, mark := g.env, c.trace; s.due(e, time.Now(), time.Time{}) {
		g.reportCollective(s, describe(c.sig), c.args.Seq, moving, worker, func() bool { return e.recorder.underWay(mark) })
	}
}

// notHere returns the world ranks of the members that have not answered that they have announced the
// collective.
func (g *Group) notHere(seq uint64) (ranks []int) {
	q := &g.inquiry
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, r := range g.Ranks {
		if q.seq != seq || !q.here[i] {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// reportIfSlow reports t if a caller has waited for it for long, or for a collective behind it.
func (t *collective) reportIfSlow(now time.Time) {
	e := t.g.env
	if t.slow.told || e.reports.after == 0 {
		return
	}
	if t.slow.since.IsZero() || now.Sub(t.slow.since) < e.reports.after {
		t.slow.due(e, now, time.Time{})
		return
	}
	if since := t.awaited(); !since.IsZero() && t.slow.due(e, now, since) {
		worker := -1
		if t.shared != nil && t.stage == running {
			worker = t.shared.Worker()
		}
		mark := t.call.trace
		t.g.reportCollective(&t.slow, describe(t.call.sig), t.call.args.Seq, t.stage != arriving, worker, func() bool { return e.recorder.underWay(mark) })
	}
}

// awaited returns since when a caller waits for t, or for a collective of the queue, whose turn comes
// after t. The zero time: none does.
func (t *collective) awaited() (since time.Time) {
	t.g.mu.Lock()
	defer t.g.mu.Unlock()
	for _, u := range append([]*collective{t}, t.g.queue...) {
		if at := u.handle.Awaited(); !at.IsZero() && (since.IsZero() || at.Before(since)) {
			since = at
		}
	}
	return since
}

// reportMessage reports a wait for a message, or until one is received. peers are the world ranks that
// could end it. If any rank may send, only the first such wait of a group is reported: a thread that
// serves requests waits for the next one, and that is no fault of anybody.
func (g *Group) reportMessage(s *slowness, what string, peers []int, mark trace.Mark) {
	if len(peers) == 0 {
		if g.toldOfAny.Swap(true) {
			return
		}
		peers = slices.Clone(g.Ranks)
	}
	e := g.env
	peers = slices.DeleteFunc(peers, func(r int) bool { return r == e.Topo.Rank })
	words := []uint64{g.key}
	for _, r := range peers {
		words = append(words, uint64(r))
	}
	go e.report(&wait{what: fmt.Sprintf("%s on the group of ranks %s", what, brief(g.Ranks)), how: "is awaited", nobody: "there is no other member", since: s.since,
		id: waitID("message", words...), key: g.key, ranks: peers, still: func() bool { return e.recorder.underWay(mark) }})
}

// reportInit reports a wait for ranks that have not called init. Before that nobody knows who they are, so
// only the first two ranks report it: one of them may be missing.
func (e *Env) reportInit(s *slowness, rank int) {
	if rank < 2 {
		e.reports.write(fmt.Sprintf("paddlempi: rank %d has waited for %.1f s in init_process_group: not all ranks of the job have called it.\n", rank, time.Since(s.since).Seconds()))
	}
}

// reportMeeting reports a wait of a meeting of ranks for those that have not come. If came is set they
// have: the first member decides then, and reports who is missing. It is reported if it is stalled.
func (e *Env) reportMeeting(s *slowness, what string, key uint64, ranks, missing []int, came bool, still func() bool) {
	w := wait{what: fmt.Sprintf("%s(ranks=%s)", what, brief(ranks)), how: "has not called it", since: s.since,
		id: waitID("meeting", key), key: key, ranks: slices.Clone(missing), moving: came, still: still}
	if came {
		w.id = waitID("decision", key)
	}
	go e.report(&w)
}

// report looks at the ranks for which w waits and writes the line, unless another rank has reported the
// same, or the wait has ended meanwhile.
func (e *Env) report(w *wait) {
	time.Sleep(e.turn())
	if !w.still() || !e.mayReport(w) {
		return
	}
	ranks := w.ranks[:min(len(w.ranks), lookedAt)]
	found := make([]part, len(ranks))
	var looks sync.WaitGroup
	for i, r := range ranks {
		looks.Add(1)
		go func() {
			defer looks.Done()
			found[i] = e.look(r, w.key, w.seq)
		}()
	}
	looks.Wait()
	if line := w.line(e, ranks, found); line != "" && w.still() {
		e.reports.write(line)
	}
}

// turn is how long this rank leaves it to others to report the same: those before it on its node, and of
// the nodes before it.
func (e *Env) turn() time.Duration {
	rank := time.Duration(e.Topo.LocalRank)
	d := min(rank*turnApart, lastTurn*rank/time.Duration(max(1, e.Topo.LocalSize)))
	if e.alive != nil {
		d += min(time.Duration(e.Topo.Node[e.Topo.Rank])*nodeApart, lastNode)
	}
	return d
}

// mayReport tells whether no other rank has reported w, as far as this one knows. From then on they know
// that this rank has.
func (e *Env) mayReport(w *wait) bool {
	r := &e.recorder
	r.write.Lock()
	defer r.write.Unlock()
	if r.closed {
		return false
	}
	defer r.lock()()
	ago := time.Since(w.since)
	if w.past {
		ago = math.MaxInt64
	}
	if e.alive.Noticed(uint32(w.id>>32), ago) {
		return false
	}
	for _, theirs := range r.others {
		if theirs.Told(w.id, ago) {
			return false
		}
	}
	r.ring.Tell(w.id)
	e.alive.Notify(uint32(w.id >> 32))
	return true
}

// lock keeps the ranks of this node from deciding at the same time who reports. The caller holds write.
func (r *recorder) lock() (unlock func()) {
	first := r.rank
	for other := range r.others {
		first = min(first, other)
	}
	if first == r.rank {
		return r.ring.Lock()
	}
	return r.others[first].Lock()
}

// line is the text of the report, "" if there is nothing to say. found has what is known of ranks, the first of w.ranks.
func (w *wait) line(e *Env, ranks []int, found []part) string {
	var text []string
	var rest []int
	for i, p := range found {
		switch {
		case !p.stalled && (w.moving || p.came):
		case len(text) == described:
			rest = append(rest, ranks[i])
		default:
			how := ""
			if !w.moving && !p.came {
				how = " " + w.how
			}
			if p.stalled {
				how += strings.Repeat(" and", min(1, len(how))) + " is stalled"
			}
			text = append(text, fmt.Sprintf("rank %d%s%s: %s", ranks[i], e.onHost(ranks[i]), how, p.text))
		}
	}
	if len(rest) > 0 {
		text = append(text, fmt.Sprintf("rank(s) %s likewise", brief(rest)))
	}
	if len(text) == 0 {
		if w.nobody == "" {
			return ""
		}
		text = append(text, w.nobody)
	}
	if more := len(w.ranks) - len(ranks); more > 0 {
		text = append(text, fmt.Sprintf("%d more were not looked at", more))
	}
	line := fmt.Sprintf("paddlempi: rank %d has waited for %.1f s in %s: %s", e.Topo.Rank, time.Since(w.since).Seconds(), w.what, strings.Join(text, "; "))
	line = printable(line)
	more := fmt.Sprintf(". `python -m paddlempi trace dump %s` tells more.\n", strings.Join(e.recorder.pids(), " "))
	return line[:min(len(line), longestReport-len(more))] + more
}

// onHost names the host of a rank, if the job has several nodes and that is known.
func (e *Env) onHost(r int) string {
	if host := e.alive.Host(r); host != "" {
		return " on host " + host
	}
	return ""
}
