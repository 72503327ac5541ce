package control

import (
	"cmp"
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/trace"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// topWindow is how far traceNow looks back, where a ring reaches so far.
const topWindow = time.Second

// topAnswer is what traceNow says of a process.
type topAnswer struct {
	PID    int             `json:"pid"`
	Error  string          `json:"error"`
	Trace  *trace.Snapshot `json:"trace"`
	Window int64           `json:"window"` // nanoseconds before Trace.Taken, to which the rest refers
	Calls  int             `json:"calls"`  // that ended in them
	Bytes  int64           `json:"bytes"`  // of those calls' signatures
	Waited int64           `json:"waited"` // nanoseconds in which the rank waited for others
}

// traceNow says what processes of this host do, and have done in the last second. It writes nothing, and needs neither MPI nor
// init. Without pids it takes all processes that have a trace. Of a trace's operations it keeps those that tell where the rank
// is: what is under way, the last collective of each group, and what ended last.
func traceNow(r traceRequest, _ work.Interrupt) (any, error) {
	if r.PIDs == nil {
		r.PIDs = trace.Processes()
	}
	list := make([]topAnswer, len(r.PIDs))
	for i, pid := range r.PIDs {
		s, err := trace.ReadProcess(pid)
		if err != nil {
			list[i] = topAnswer{PID: pid, Error: err.Error()}
			continue
		}
		list[i] = topOf(s)
		list[i].PID = pid
	}
	return map[string]any{"processes": list}, nil
}

// topOf sums a snapshot up, and leaves in it only the operations that tell where the rank is.
func topOf(s *trace.Snapshot) topAnswer {
	since := max(s.Taken-topWindow.Nanoseconds(), s.Began)
	if len(s.Operations) > 0 && s.Operations[0].Number > 1 {
		// The ring has been written over: it reaches back to the first that ended of those that are there.
		since = max(since, firstEnd(s))
	}
	a := topAnswer{Trace: s, Window: s.Taken - since}
	var waits []waitSpan
	lasts, ended := map[int64]int{}, -1
	for i := range s.Operations {
		o := &s.Operations[i]
		if o.Seq != nil {
			if k, ok := lasts[o.Group]; !ok || *s.Operations[k].Seq < *o.Seq {
				lasts[o.Group] = i
			}
		}
		if o.Ended != nil && (ended < 0 || *s.Operations[ended].Ended < *o.Ended) {
			ended = i
		}
		if o.Ended != nil && *o.Ended > since {
			a.Calls++
			a.Bytes += nbytes(o)
		}
		if w := waitOf(o, s.Taken); w.until > since {
			waits = append(waits, waitSpan{max(w.since, since), w.until})
		}
	}
	a.Waited = covered(waits)
	kept := []trace.OperationRecord{}
	for i := range s.Operations {
		o := &s.Operations[i]
		k, known := lasts[o.Group]
		if o.Ended == nil || i == ended || known && k == i {
			kept = append(kept, *o)
		}
	}
	s.Operations = kept
	return a
}

func firstEnd(s *trace.Snapshot) int64 {
	first := s.Taken
	for i := range s.Operations {
		if at := s.Operations[i].Ended; at != nil {
			first = min(first, *at)
		}
	}
	return first
}

// nbytes returns the bytes of an operation's signature, 0 where there is no dtype.
func nbytes(o *trace.OperationRecord) int64 {
	dtype := op.DType(o.Signature[0] >> 8 & 0xff)
	if o.DType == nil || o.Count < 0 || !dtype.Valid() {
		return 0
	}
	return o.Count * int64(dtype.Size())
}

type waitSpan struct{ since, until int64 }

// waitOf returns when the rank waited for others in an operation: in a collective until all had come, in a message that it
// receives, or that is under way, until its end. The span is empty if it did not.
func waitOf(o *trace.OperationRecord, now int64) waitSpan {
	if o.Begun == nil {
		return waitSpan{}
	}
	end := now
	if o.Ended != nil {
		end = *o.Ended
	}
	switch {
	case o.Message && (o.Ended == nil || o.Operation == "recv" || o.Operation == "sendrecv" || o.Operation == "probe"):
		return waitSpan{*o.Begun, end}
	case o.Message:
		return waitSpan{}
	case o.Arrived != nil:
		return waitSpan{*o.Begun, *o.Arrived}
	case o.Ended == nil && o.Algorithm == nil:
		return waitSpan{*o.Begun, end}
	}
	return waitSpan{}
}

// covered returns how long spans are together, where they lie over each other once.
func covered(spans []waitSpan) int64 {
	slices.SortFunc(spans, func(a, b waitSpan) int { return cmp.Compare(a.since, b.since) })
	var long, until int64
	for _, s := range spans {
		if begin := max(s.since, until); s.until > begin {
			long += s.until - begin
			until = s.until
		}
	}
	return long
}
