package health

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"github.com/paddlempi/paddlempi/gocore/dl"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/segment"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/topo"
	"github.com/paddlempi/paddlempi/gocore/trace"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// Recorder is the flight recorder (package trace) of a world: the entries of this rank's operations, and the
// rings of the other ranks of its node. Its methods are safe for concurrent use.
type Recorder struct {
	topo   *topo.Topology
	ring   *trace.Ring         // nil if this machine has no memory files
	folder string              // where the ring is written after some errors; "": nowhere
	others map[int]*trace.View // rings of the other ranks of this node, by world rank
	write  sync.Mutex          // held while rings are read, and files written
	closed bool                // the rings are not read any more; write guards it
	// signals gets the signals at which the ring is written; nil if the user wants none.
	signals chan os.Signal
}

// Start makes the ring of a world, and opens those of the other ranks of this node, so that they can be
// read when their processes have died. It is collective over base. A process works without a ring; a
// ring that this process cannot open is not read by it.
func (r *Recorder) Start(base transport.Exchange, here *topo.Topology) error {
	r.folder, _ = dl.Getenv("PADDLEMPI_TRACE")
	ring, _ := trace.New(here.Rank, here.Size)
	if recorded, _ := dl.Getenv("PADDLEMPI_TIMELINE"); recorded == "1" {
		ring.Widen()
	}
	r.write.Lock() // other ranks may ask for it from now on
	r.topo, r.ring = here, ring
	r.write.Unlock()
	if asked, err := traceSignal(); err == nil && asked != nil && r.folder != "" {
		r.signals = make(chan os.Signal, 1)
		signal.Notify(r.signals, asked)
		go func() {
			for range r.signals {
				r.Write(nil)
			}
		}()
	}
	var file *segment.File
	if ring != nil {
		file = ring.File()
	}
	mine := file.Address().Words()
	addresses, err := base.Gather(append(mine[:], rand.Int64()), nil) // the last word names the job
	if err != nil {
		return err
	}
	ring.SetJob(uint64(addresses[0][3]))
	views := map[int]*trace.View{}
	for _, other := range here.Peers() {
		at := segment.Of([3]int64(addresses[other][:3]))
		if other == here.Rank || at == (segment.Address{}) {
			continue
		}
		if v, err := trace.Open(at); err == nil {
			views[other] = v
		}
	}
	r.write.Lock()
	r.others = views
	r.write.Unlock()
	return nil
}

// SetGeneration says how often the world was reformed before it became this one. The files of a later one have a folder of their own:
// its ranks are others.
func (r *Recorder) SetGeneration(n int) {
	r.ring.SetGeneration(n)
	if n > 0 {
		r.Within(fmt.Sprintf("generation-%d", n))
	}
}

// Within makes the files of the rings go into a folder of that name: the ranks of this world are others than those of the
// first one.
func (r *Recorder) Within(name string) {
	r.write.Lock()
	defer r.write.Unlock()
	if r.folder != "" {
		r.folder = filepath.Join(r.folder, name)
	}
}

// mostPIDs is how many processes a report names: more would not fit into its line.
const mostPIDs = 64

// pids returns the processes of ranks.
func (r *Recorder) pids() []string {
	r.write.Lock()
	defer r.write.Unlock()
	var pids []string
	for _, rank := range r.ranks() {
		pid := os.Getpid()
		if rank != r.topo.Rank {
			pid = r.others[rank].PID()
		}
		pids = append(pids, strconv.Itoa(pid))
	}
	return pids[:min(len(pids), mostPIDs)]
}

// ranks returns the ranks of this node whose rings this rank can read, in their order, and this rank itself. The caller holds write.
func (r *Recorder) ranks() []int {
	ranks := append(slices.Collect(maps.Keys(r.others)), r.topo.Rank)
	slices.Sort(ranks)
	return ranks
}

// traceSignal returns the signal on which the user wants the trace written, nil if there is none.
func traceSignal() (os.Signal, error) {
	name, _ := dl.Getenv("PADDLEMPI_TRACE_SIGNAL")
	asked, known := map[string]os.Signal{"": nil, "USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2}[name]
	if !known {
		return nil, status.New(status.Argument, "init: PADDLEMPI_TRACE_SIGNAL is %q; it takes USR1 or USR2, and PADDLEMPI_TRACE the folder", name)
	}
	return asked, nil
}

// Close ends the recorder. The rings are not read any more.
func (r *Recorder) Close() {
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

// Ring returns the ring, for groups and for entries of collectives.
func (r *Recorder) Ring() *trace.Ring { return r.ring }

// BeginMessage enters a message.
func (r *Recorder) BeginMessage(group int64, d *op.Desc) trace.Mark {
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
	return r.ring.BeginMessage(group, &signature, flags, [2]int32{d.Peer, d.Peer2}, [2]int32{d.Tag, d.Tag2})
}

// BeginAccess enters a call of a window that concerns a member. Calls in mapped memory that need no wait are not entered: an
// entry would take as long as they do.
func (r *Recorder) BeginAccess(group int64, code uint8, d op.DType, count int64, member, number int) trace.Mark {
	signature := [3]uint64{uint64(code) | uint64(d)<<8, uint64(count)}
	return r.ring.BeginAccess(group, &signature, int32(member), int32(number))
}

// End records how an operation ended, as its caller is told. After an error that concerns other ranks
// the trace is written, if the user wants that.
func (r *Recorder) End(m trace.Mark, err error) {
	code := status.CodeOf(err)
	if first := m.End(code); !first || err == nil {
		return
	}
	switch code {
	case status.Timeout, status.Mismatch, status.PeerLeft, status.PeerDied, status.ProcFailed:
		r.Write(status.Plain(err).Ranks)
	}
}

// Write writes the ring of this rank, and those of other ranks of its node, which may be dead. What
// cannot be written is left out: the caller has an error to tell already.
func (r *Recorder) Write(ranks []int) {
	if r.folder == "" {
		return
	}
	r.write.Lock()
	defer r.write.Unlock()
	for _, rank := range append([]int{r.topo.Rank}, ranks...) {
		if s, err := r.snapshot(rank); err == nil && s.Rank == rank { // its file has the rank in its name
			_, _ = s.Write(r.folder)
		}
	}
}

// snapshot reads the ring of a rank of this node. The caller holds write.
func (r *Recorder) snapshot(rank int) (*trace.Snapshot, error) {
	theirs := r.others[rank]
	switch {
	case r.closed:
		return nil, status.New(status.GroupDestroyed, "this rank has ended")
	case rank == r.topo.Rank:
		return r.ring.Read()
	case theirs == nil:
		return nil, status.New(status.Unsupported, "its trace cannot be read")
	}
	return theirs.Read()
}

// Read reads the ring of a rank of this node. why says why the rank is stalled, "" if it is not.
func (r *Recorder) Read(rank int) (s *trace.Snapshot, why string, err error) {
	r.write.Lock()
	theirs := r.others[rank]
	s, err = r.snapshot(rank)
	r.write.Unlock()
	if err == nil && theirs != nil {
		why = theirs.Stalled()
	}
	return s, why, err
}

// Stalled returns those of some ranks that live and do not go on, as far as this rank can see that.
func (r *Recorder) Stalled(ranks []int) (list []int) {
	r.write.Lock()
	others := r.others
	r.write.Unlock()
	stalled := ofEach(ranks, func(rank int) bool { return others[rank] != nil && others[rank].Stalled() != "" })
	for i, rank := range ranks {
		if stalled[i] {
			list = append(list, rank)
		}
	}
	return list
}

// UnderWay tells whether an operation has not ended.
func (r *Recorder) UnderWay(m trace.Mark) bool {
	r.write.Lock()
	defer r.write.Unlock()
	return !r.closed && m.UnderWay()
}

// Signature returns the signature of collective seq of a group, which is under way, as this rank has recorded it.
func (r *Recorder) Signature(group int64, seq uint64) (signature [3]uint64, ok bool) {
	if s, _, err := r.Read(r.topo.Rank); err == nil {
		for i := range s.Operations {
			if o := &s.Operations[i]; o.Ended == nil && o.Group == group && o.Seq != nil && *o.Seq == seq {
				return o.Signature, true
			}
		}
	}
	return signature, false
}
