package group

import (
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"github.com/paddlempi/paddlempi/gocore/dl"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/segment"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/trace"
)

// This file connects the groups to the flight recorder (package trace). Every operation gets its entry
// by record or recordMessage, and ends in over.

// recorder is the trace of a world.
type recorder struct {
	rank   int
	ring   *trace.Ring         // nil if this machine has no memory files
	folder string              // where the ring is written after some errors; "": nowhere
	others map[int]*trace.View // rings of the other ranks of this node, by world rank
	write  sync.Mutex          // held while rings are read, and files written
	closed bool                // the rings are not read any more; write guards it
	// signals gets the signals at which the ring is written; nil if the user wants none.
	signals chan os.Signal
}

// start makes the ring of a world, and opens those of the other ranks of this node, so that they can be
// read when their processes have died. It is collective over base. A process works without a ring; a
// ring that this process cannot open is not read by it.
func (r *recorder) start(e *Env) error {
	r.folder, _ = dl.Getenv("PADDLEMPI_TRACE")
	ring, _ := trace.New(e.Topo.Rank, e.Topo.Size)
	r.write.Lock() // other ranks may ask for it from now on
	r.rank, r.ring = e.Topo.Rank, ring
	r.write.Unlock()
	if asked, err := traceSignal(); err == nil && asked != nil && r.folder != "" {
		r.signals = make(chan os.Signal, 1)
		signal.Notify(r.signals, asked)
		go r.onSignals()
	}
	mine := []int64{0, 0, 0, 0, rand.Int64()} // whether there is a ring, its address, and a name of the job
	if r.ring != nil {
		w := r.ring.File().Address().Words()
		copy(mine, append([]int64{1}, w[:]...))
	}
	addresses, err := e.base.Gather(mine, nil)
	if err != nil {
		return err
	}
	ring.SetJob(uint64(addresses[0][4]))
	others := map[int]*trace.View{}
	for _, other := range e.others() {
		if addresses[other][0] == 0 {
			continue
		}
		if v, err := trace.Open(segment.Of([3]int64(addresses[other][1:4]))); err == nil {
			others[other] = v
		}
	}
	r.write.Lock()
	r.others = others
	r.write.Unlock()
	return nil
}

// mostPIDs is how many processes a report names: more would not fit into its line.
const mostPIDs = 64

// pids returns the processes of this node whose rings this rank can read, in the order of their ranks, this one among them.
func (r *recorder) pids() []string {
	r.write.Lock()
	defer r.write.Unlock()
	ranks := append(slices.Collect(maps.Keys(r.others)), r.rank)
	slices.Sort(ranks)
	var pids []string
	for _, rank := range ranks[:min(len(ranks), mostPIDs)] {
		pid := os.Getpid()
		if rank != r.rank {
			pid = r.others[rank].PID()
		}
		pids = append(pids, strconv.Itoa(pid))
	}
	return pids
}

// traceSignal returns the signal on which the user wants the trace written, nil if there is none.
func traceSignal() (os.Signal, error) {
	switch name, _ := dl.Getenv("PADDLEMPI_TRACE_SIGNAL"); name {
	case "":
		return nil, nil
	case "USR1":
		return syscall.SIGUSR1, nil
	case "USR2":
		return syscall.SIGUSR2, nil
	default:
		return nil, status.New(status.Argument, "init: PADDLEMPI_TRACE_SIGNAL is %q; it takes USR1 or USR2, and PADDLEMPI_TRACE the folder", name)
	}
}

// onSignals writes the trace at each signal, until the recorder is closed.
func (r *recorder) onSignals() {
	for range r.signals {
		r.writeRings(nil)
	}
}

func (r *recorder) close() {
	if r.signals != nil {
		signal.Stop(r.signals)
		close(r.signals)
	}
	r.write.Lock()
	defer r.write.Unlock()
	r.closed = true
	r.ring.Close()
	for _, v := range r.others {
		v.Close()
	}
}

// record enters c, which gets its number later unless it has one.
func (g *Group) record(c *call, flags trace.Flags) {
	if c.async {
		flags |= trace.Async
	}
	c.trace = g.env.recorder.ring.Begin(g.ID, c.args.Seq, (*[3]uint64)(&c.sig), flags)
}

// recordMessage enters a message.
func (g *Group) recordMessage(d *op.Desc) trace.Mark {
	var flags trace.Flags
	if d.Flags&op.FlagAsync != 0 {
		flags = trace.Async
	}
	buffers := d.Sends()
	if len(buffers) == 0 {
		buffers = d.Recvs()
	}
	signature := [3]uint64{uint64(d.Code)}
	if len(buffers) > 0 {
		signature[0] |= uint64(buffers[0].DType) << 8
		signature[1] = uint64(buffers[0].Count)
	}
	return g.env.recorder.ring.BeginMessage(g.ID, &signature, flags, [2]int32{d.Peer, d.Peer2}, [2]int32{d.Tag, d.Tag2})
}

// over records how an operation ended, as its caller is told. After an error that concerns other ranks
// the trace is written, if the user wants that.
func (g *Group) over(m trace.Mark, err error) {
	code := status.CodeOf(err)
	if first := m.End(code); !first || err == nil {
		return
	}
	switch code {
	case status.Timeout, status.Mismatch, status.PeerLeft, status.PeerDied, status.ProcFailed:
		var e *status.Error
		if errors.As(err, &e) {
			g.env.recorder.writeRings(e.Ranks)
		}
	}
}

// writeRings writes the ring of this rank, and those of other ranks of its node, which may be dead. What
// cannot be written is left out: the caller has an error to tell already.
func (r *recorder) writeRings(ranks []int) {
	if r.folder == "" {
		return
	}
	r.write.Lock()
	defer r.write.Unlock()
	if s, err := r.ring.Read(); err == nil {
		_, _ = s.Write(r.folder)
	}
	for _, rank := range ranks {
		if theirs := r.others[rank]; theirs != nil {
			if s, err := theirs.Read(); err == nil && s.Rank == rank { // its file has the rank in its name
				_, _ = s.Write(r.folder)
			}
		}
	}
}
