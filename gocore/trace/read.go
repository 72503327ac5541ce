package trace

import (
	"encoding/binary"
	"io"
	"sort"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// What a ring says is checked like any input: its process may have been damaged, and any process can
// make a file of that name.

// mostRanks is the largest world that a reader believes.
const mostRanks = 1 << 22

// image is a copy of a ring, read from its file with pread(2): no access of the reader can fail because
// the file is cut meanwhile.
type image struct {
	header  header
	groups  []byte
	entries []entry
}

// copies is how often a reader copies the ring at most, until no entry changes any more.
const copies = 8

// read copies a ring.
func read(file io.ReaderAt) (*image, error) {
	before, err := readOnce(file)
	if err != nil {
		return nil, err
	}
	var settled []entry
	for range copies {
		after, err := readOnce(file)
		if err != nil {
			return nil, err
		}
		settled = settled[:0]
		changing := len(after.entries) != len(before.entries) // somebody has begun to record
		for i := range min(len(after.entries), len(before.entries)) {
			e := &after.entries[i]
			switch {
			case *e != before.entries[i] || e.word&writing != 0:
				changing = true
			case e.word != 0:
				settled = append(settled, *e)
			}
		}
		before = after
		if !changing {
			break
		}
	}
	before.entries = settled
	return before, nil
}

func readOnce(file io.ReaderAt) (*image, error) {
	for tries := 1; ; tries++ {
		i, err := readWhole(file)
		if err != nil {
			return nil, err
		}
		var now [8]byte
		if _, err := file.ReadAt(now[:], int64(unsafe.Offsetof(header{}.joined))); err != nil {
			return nil, status.New(status.Argument, "the ring was cut (%v)", err)
		}
		// The area that was copied is written again when the one that follows it is full.
		if joined(binary.NativeEndian.Uint64(now[:])).changes()-joined(i.header.joined).changes() < 2 {
			return i, nil
		}
		if tries == copies {
			i.groups = nil
			return i, nil
		}
	}
}

func readWhole(file io.ReaderAt) (*image, error) {
	b := make([]byte, fewSize)
	if n, err := file.ReadAt(b, 0); n < len(b) {
		return nil, status.New(status.Argument, "the ring has %d bytes instead of %d (%v)", n, len(b), err)
	}
	i := &image{header: *(*header)(unsafe.Pointer(&b[0]))}
	h := &i.header
	if err := h.check(); err != nil {
		return nil, err
	}
	if h.counts.widened != 0 {
		b = append(b, make([]byte, ringSize-fewSize)...)
		if n, err := file.ReadAt(b[headerSize+groupsSize:], headerSize+groupsSize); n < len(b)-headerSize-groupsSize {
			return nil, status.New(status.Argument, "the ring was cut (%v)", err)
		}
	}
	i.entries = unsafe.Slice((*entry)(unsafe.Pointer(&b[headerSize+groupsSize])), (len(b)-headerSize-groupsSize)/entrySize)
	i.groups = joined(h.joined).area(b[headerSize : headerSize+groupsSize])[:joined(h.joined).bytes()]
	return i, nil
}

// check tells whether a ring of this version, and of a rank that can be, has this header.
func (h *header) check() error {
	switch {
	case h.magic != magic:
		return status.New(status.Argument, "the file is no ring of paddlempi, or its process is about to make it")
	case h.version != version || h.entrySize != entrySize || h.entries != room || h.groups != groupsSize:
		return status.New(status.Argument, "the ring has version %d and %d entries of %d bytes; this paddlempi reads version %d, %d of %d: read it with that of the process",
			h.version, h.entries, h.entrySize, version, room, entrySize)
	case h.size < 1 || h.size > mostRanks || h.rank < 0 || h.rank >= h.size:
		return status.New(status.Argument, "the ring says that it is of rank %d of %d", h.rank, h.size)
	case h.pid < 1:
		return status.New(status.Argument, "the ring says that it is of process %d", h.pid)
	case joined(h.joined).bytes() > areaSize:
		return status.New(status.Argument, "the ring says that it has %d bytes of groups; there is room for %d", joined(h.joined).bytes(), areaSize)
	}
	return nil
}

// snapshotVersion is that of the JSON. Newer ones may add fields.
const snapshotVersion = 1

// Snapshot is what a ring says, as it is written as JSON (docs/my-job-hangs.md). Times are nanoseconds since
// 1970.
type Snapshot struct {
	Format      string            `json:"format"`
	Version     int               `json:"version"`
	Rank        int               `json:"rank"`
	Size        int               `json:"size"`
	Job         string            `json:"job"`        // the same on all ranks of a world, and another one for each world
	Generation  int               `json:"generation"` // how often that world was reformed before
	Host        string            `json:"host"`
	Boot        string            `json:"boot"`
	PID         int64             `json:"pid"`
	State       string            `json:"state"`
	Began       int64             `json:"began"`
	Taken       int64             `json:"taken"`
	NotRecorded uint64            `json:"not_recorded"`
	Damaged     int               `json:"damaged"`
	Groups      []GroupRecord     `json:"groups"`
	Operations  []OperationRecord `json:"operations"`
}

// GroupRecord is a group in a Snapshot.
type GroupRecord struct {
	ID    int64  `json:"id"`
	Key   string `json:"key"`
	Rank  int    `json:"rank"`
	Ranks []int  `json:"ranks"`
}

// OperationRecord is an operation in a Snapshot.
type OperationRecord struct {
	Number    uint64  `json:"number"`
	Group     int64   `json:"group"`
	Seq       *uint64 `json:"seq"`
	Operation string  `json:"operation"`
	DType     *string `json:"dtype"`
	Count     int64   `json:"count"`
	ReduceOp  *string `json:"reduce_op"`
	Root      *int    `json:"root"`
	Detail    string  `json:"detail"`
	Message   bool    `json:"message"`
	Async     bool    `json:"async"`
	Refusing  bool    `json:"refusing"`
	Peers     []int32 `json:"peers"`
	Tags      []int32 `json:"tags"`
	Algorithm *string `json:"algorithm"`
	Phase     *string `json:"phase"`   // of a collective over nodes
	Rail      *int    `json:"rail"`    // of that phase
	Partner   *int    `json:"partner"` // the member that is awaited in it
	Submitted int64   `json:"submitted"`
	Begun     *int64  `json:"begun"`
	Arrived   *int64  `json:"arrived"`
	Waited    *int64  `json:"waited"` // the caller of an asynchronous operation began to wait
	Share     *int64  `json:"share"`  // bytes that this rank has in a collective whose members have different ones
	Ended     *int64  `json:"ended"`
	Outcome   *string `json:"outcome"`

	Signature [3]uint64 `json:"-"` // an arrive.Signature
}

// Read reads a ring of a process of this host from its file.
func Read(file io.ReaderAt) (*Snapshot, error) {
	i, err := read(file)
	if err != nil {
		return nil, err
	}
	h, at := &i.header, takeMoment()
	line, err := newTimeline(h.clock, moment{ticks: h.ticks, monotonic: h.monotonic}, at)
	if err != nil {
		return nil, err
	}
	began, _ := line.at(h.ticks)
	s := &Snapshot{Format: fileName, Version: snapshotVersion, Rank: int(h.rank), Size: int(h.size), Job: hex(h.job), Generation: int(uint32(h.generation)), Host: text(h.host[:]), Boot: text(h.boot[:]),
		PID: h.pid, State: "running", Began: began, Taken: at.unix, NotRecorded: h.counts.lost, Groups: []GroupRecord{}, Operations: []OperationRecord{}}
	for _, g := range decodeGroups(i.groups, int(h.size)) {
		s.Groups = append(s.Groups, GroupRecord{g.ID, hex(g.Key), g.Rank, g.Ranks})
	}
	sort.Slice(i.entries, func(a, b int) bool { return i.entries[a].word < i.entries[b].word })
	for k := range i.entries {
		if o, ok := i.entries[k].record(&line); ok {
			s.Operations = append(s.Operations, o)
		} else {
			s.Damaged++
		}
	}
	return s, nil
}

// record returns what an entry says. ok is false if it cannot be the record of an operation.
func (e *entry) record(line *timeline) (o OperationRecord, ok bool) {
	code, dtype, reduce := op.Code(e.signature[0]&0xff), op.DType(e.signature[0]>>8&0xff), op.ReduceOp(e.signature[0]>>16&0xff)
	trait, known := op.TraitOf(code)
	if e.flags&Access != 0 {
		if known = int(code) < len(Accesses); known {
			trait = op.Trait{Name: Accesses[code]}
		}
	}
	if !known || dtype != 0 && !dtype.Valid() || reduce != 0 && !reduce.Valid() {
		return o, false
	}
	o = OperationRecord{Number: e.word >> numberFrom, Group: int64(e.group), Operation: trait.Name, Count: int64(e.signature[1]), Detail: hex(e.signature[2]), Signature: e.signature,
		Message: e.flags&Message != 0, Async: e.flags&Async != 0, Refusing: e.flags&Refusing != 0}
	if e.seq != 0 {
		o.Seq = &e.seq
	}
	if trait.Neighbours {
		o.Count = 0 // that word has something else
	}
	if dtype != 0 {
		o.DType = ptr(dtype.String())
	}
	if reduce != 0 {
		o.ReduceOp = ptr(reduce.String())
	}
	if root := int64(e.signature[0] >> 32); root > mostRanks {
		return o, false
	} else if root > 0 {
		o.Root = ptr(int(root) - 1)
	}
	if o.Message {
		n := 1
		if trait.Send != op.None && trait.Recv != op.None {
			n = 2
		}
		o.Peers, o.Tags = e.peer[:n], e.tag[:n]
	}
	if share := e.share(); share > 0 {
		o.Share = ptr(share - 1)
	}
	if e.algorithm[0] != 0 {
		o.Algorithm = ptr(text(e.algorithm[:]))
	}
	name := e.phase.name
	if o.Message {
		name = 0 // that word has something else
	}
	if int64(name) > int64(len(Phases)) {
		return o, false
	} else if name > 0 {
		o.Phase, o.Rail = ptr(Phases[name-1]), ptr(int(e.phase.rail))
		if e.peer[0] >= 0 {
			o.Partner = ptr(int(e.peer[0]))
		}
	}
	if o.Submitted, ok = line.at(e.submitted); !ok {
		return o, false
	}
	for _, at := range []struct {
		ticks uint64
		unix  **int64
	}{{e.begun, &o.Begun}, {e.arrived, &o.Arrived}, {*e.waited(), &o.Waited}, {e.endedAt(), &o.Ended}} {
		if at.ticks == 0 {
			continue
		}
		unix, ok := line.at(at.ticks)
		if !ok {
			return o, false
		}
		*at.unix = &unix
	}
	if o.Ended != nil {
		o.Outcome = ptr(outcome(e.outcome))
	}
	return o, true
}

// endedAt returns when the operation ended, 0 if it is under way: then the field is of an earlier one.
func (e *entry) endedAt() uint64 {
	if e.word&ended == 0 {
		return 0
	}
	return e.ended
}
