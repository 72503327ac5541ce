// Package ipc lets the ranks of a node reach into each other's device memory (CUDA IPC):
// what they tell each other in front of a collective, and what each remembers of it.
//
// A collective over this path goes like this, on every rank:
//
//  1. The library's stream waits for the tensors to be ready and records this rank's event
//     Ready; the rank writes its Record: the handles of its two events, and of the memory
//     that it lets the others read (Give) and write (Take). One MPI_Allgather of a few
//     hundred bytes a rank.
//  2. What was never seen before is mapped. If it is the first time that the ranks see
//     these records, one MPI_Allreduce tells whether all could; a rank that could not
//     refuses the path for the group, for good, and all go by staging: a container
//     without IPC, devices that cannot reach each other.
//  3. The stream waits for the Ready of the others. A rank queues its kernel over its
//     slice, or its copies out of the others' memory, and records its event Done. One
//     MPI_Allreduce of a word, which is a barrier too and tells of a rank that failed.
//  4. The stream waits for the Done of the others, and the tensors' consumer for the stream.
//
// So the host calls MPI two times, for some hundred bytes, and the devices are ordered by
// events alone: no kernel waits for another one, for ranks that share a device take turns.
//
// Bytes moved, in device memory, for tensors of S bytes on n ranks: an all_reduce reads
// and writes nS once in all, which is the floor where the ranks share a device, and each
// rank moves 2S of it; what only moves data is read once and written once.
//
// # Why two events a rank are enough
//
// A wait for an event takes what the event stands for at that moment. So an event may be
// recorded anew as soon as all waits for the record before were queued. Ready of
// collective k is waited for in front of the MPI_Allreduce of step 3, and recorded anew
// in collective k+1, which this rank begins when that MPI_Allreduce has returned: then all
// were in it. Done of collective k is waited for in step 4, and recorded anew in step 3 of
// collective k+1, behind the MPI_Allgather of that, which a rank enters only after its
// step 4: the collectives of a group run one after another. And no wait comes too early,
// for the wait for an event that was not recorded is none: Ready is recorded in front of
// the MPI_Allgather and waited for behind it, Done in front of the MPI_Allreduce and waited
// for behind it.
//
// A stream waits only for what was queued before, in real time, so no circle can arise,
// whatever groups use a device's stream in whatever order.
//
// # Memory
//
// A handle names an allocation, so a Record has the offset of the tensor in it. Mappings are
// kept, for making one takes longer than most collectives; so memory that a rank frees stays
// with the driver until the others unmap it: when something new lies at its address, when
// they have mapped more than Kept others of that rank, or when the group ends. An address
// that was allocated anew has a new ID, and is mapped anew.
package ipc

import (
	"bytes"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Device is what this package asks of a *cuda.Device.
type Device interface {
	NewEvent(ipc bool) (cuda.Event, error)
	FreeEvent(cuda.Event) error
	Query(cuda.Event) (bool, error)
	IPCHandle(unsafe.Pointer) ([64]byte, error)
	OpenIPC([64]byte) (unsafe.Pointer, error)
	CloseIPC(unsafe.Pointer) error
	IPCEventHandle(cuda.Event) ([64]byte, error)
	OpenIPCEvent([64]byte) (cuda.Event, error)
}

// Handle names an allocation or an event to other processes.
type Handle = [64]byte

// Memory is a tensor as the other processes find it: Offset bytes into an allocation.
// One of Size 0 is none.
type Memory struct {
	ID     uint64 // of the allocation, never used again in its process
	Base   uint64 // its address there
	Size   int64
	Offset int64
	Handle Handle
}

// State is what a rank thinks of a collective; the lowest one counts.
type State int64

const (
	Never    State = iota // the driver refuses: this rank can share nothing
	NotThese              // not this collective's tensors
	Serves                // go ahead
)

// Record is what a rank tells the others. It holds no pointer and no padding.
type Record struct {
	State       State
	Ready, Done Handle
	Give, Take  Memory
}

// Bytes is the length of a Record on its way.
const Bytes = int64(unsafe.Sizeof(Record{}))

const (
	// Kept is how many allocations of one rank stay mapped.
	Kept = 128
	// remembered is how many sets of records are known to have been mapped by all. Each
	// has two allocations of a rank at most, so none of them was unmapped: see Kept.
	remembered = 16
)

// Peers is what one member of a group knows of the others' memory. It is used by one
// collective at a time; only Refused may be called at any time.
type Peers struct {
	Rank, Size int

	refusal   atomic.Pointer[string]
	endpoints map[Device]*Endpoint
	seed      maphash.Seed
	agreed    []agreement // the latest last
}

type agreement struct {
	hash    uint64
	records []byte
}

// New returns the peers of a group of which this is member rank.
func New(rank, size int) *Peers {
	return &Peers{Rank: rank, Size: size, endpoints: map[Device]*Endpoint{}, seed: maphash.MakeSeed()}
}

// Refused tells whether the path was found not to work in this group, on all its members
// alike.
func (p *Peers) Refused() bool { return p.refusal.Load() != nil }

// Refusal says why, as far as this rank knows.
func (p *Peers) Refusal() string {
	if s := p.refusal.Load(); s != nil {
		return *s
	}
	return ""
}

// Refuse ends the use of the path in this group. All members do it in the same collective.
func (p *Peers) Refuse(why string) { p.refusal.CompareAndSwap(nil, &why) }

// Agreed tells whether all members have mapped what this set of records names: then they
// need not ask each other. All give the same answer, for they see the same sets.
func (p *Peers) Agreed(records []byte) bool {
	h := maphash.Bytes(p.seed, records)
	for i := len(p.agreed) - 1; i >= 0; i-- {
		if g := p.agreed[i]; g.hash == h && bytes.Equal(g.records, records) {
			copy(p.agreed[i:], p.agreed[i+1:])
			p.agreed[len(p.agreed)-1] = g
			return true
		}
	}
	return false
}

// Agree remembers a set of records that all members have mapped.
func (p *Peers) Agree(records []byte) {
	if len(p.agreed) == remembered {
		p.agreed = slices.Delete(p.agreed, 0, 1)
	}
	p.agreed = append(p.agreed, agreement{maphash.Bytes(p.seed, records), bytes.Clone(records)})
}

// Endpoint is what is to be seen from one device of this process.
type Endpoint struct {
	Events *Events

	peers   *Peers
	dev     Device
	exports map[uint64]Handle // by the allocation's ID
	remote  []remote          // by rank
	retired []unsafe.Pointer  // mappings that queued work may still use
}

// Events is the pair of events that this rank records.
type Events struct {
	Ready, Done             cuda.Event
	ReadyHandle, DoneHandle Handle
}

type remote struct {
	events map[Handle]cuda.Event
	maps   []mapping // the latest used last
}

type mapping struct {
	id, base uint64
	size     int64
	at       unsafe.Pointer
}

// spare holds the events of groups that ended, by device. They are never destroyed: in
// another process somebody may still wait for one, and of an event whose owner destroyed
// it nothing is promised.
var spare = struct {
	sync.Mutex
	events map[Device][]*Events
}{events: map[Device][]*Events{}}

func takeEvents(d Device) (*Events, error) {
	spare.Lock()
	if list := spare.events[d]; len(list) > 0 {
		o := list[len(list)-1]
		spare.events[d] = list[:len(list)-1]
		spare.Unlock()
		return o, nil
	}
	spare.Unlock()
	o := new(Events)
	for _, e := range []struct {
		event  *cuda.Event
		handle *Handle
	}{{&o.Ready, &o.ReadyHandle}, {&o.Done, &o.DoneHandle}} {
		var err error
		if *e.event, err = d.NewEvent(true); err != nil {
			return nil, err
		}
		if *e.handle, err = d.IPCEventHandle(*e.event); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// Endpoint returns what is to be seen from d, and unmaps what is used no more.
func (p *Peers) Endpoint(d Device) (*Endpoint, error) {
	ep := p.endpoints[d]
	if ep == nil {
		events, err := takeEvents(d)
		if err != nil {
			return nil, err
		}
		ep = &Endpoint{Events: events, peers: p, dev: d, exports: map[uint64]Handle{}, remote: make([]remote, p.Size)}
		p.endpoints[d] = ep
	}
	if len(ep.retired) > 0 {
		if over, err := d.Query(ep.Events.Done); over && err == nil {
			for _, at := range ep.retired {
				if err := d.CloseIPC(at); err != nil {
					return nil, err
				}
			}
			ep.retired = ep.retired[:0]
		}
	}
	return ep, nil
}

// Export describes n bytes at data, of which the driver says l. ok is false where they are
// no memory that can be shared: this collective's tensors are then not for this path.
func (ep *Endpoint) Export(data unsafe.Pointer, n int64, l cuda.Location) (m Memory, ok bool, err error) {
	offset := int64(uintptr(data) - l.Base)
	if !l.IPC || offset < 0 || n > l.Size-offset {
		return m, false, nil
	}
	h, known := ep.exports[l.ID]
	if !known {
		if h, err = ep.dev.IPCHandle(unsafe.Add(data, -offset)); err != nil {
			return m, false, err
		}
		if len(ep.exports) >= 4*Kept { // freed ones, most of them
			clear(ep.exports)
		}
		ep.exports[l.ID] = h
	}
	return Memory{ID: l.ID, Base: uint64(l.Base), Size: l.Size, Offset: offset, Handle: h}, true, nil
}

// Import returns where memory of another rank is in this process, nil where there is none.
// It stays there as long as it is among the Kept latest of that rank, and the other has not
// freed it.
func (ep *Endpoint) Import(rank int, m *Memory) (unsafe.Pointer, error) {
	if m.Size == 0 {
		return nil, nil
	}
	r := &ep.remote[rank]
	for i := len(r.maps) - 1; i >= 0; i-- {
		if f := r.maps[i]; f.id == m.ID && f.base == m.Base {
			copy(r.maps[i:], r.maps[i+1:])
			r.maps[len(r.maps)-1] = f
			return unsafe.Add(f.at, m.Offset), nil
		}
	}
	// What lay in this place was freed, so no work uses it: its owner's free has waited for
	// all that the owner had queued, the waits for our Done among it.
	var err error
	r.maps = slices.DeleteFunc(r.maps, func(f mapping) bool {
		stale := f.base < m.Base+uint64(m.Size) && m.Base < f.base+uint64(f.size)
		if stale && err == nil {
			err = ep.dev.CloseIPC(f.at)
		}
		return stale
	})
	if err != nil {
		return nil, err
	}
	at, err := ep.dev.OpenIPC(m.Handle)
	if err != nil {
		return nil, err
	}
	if len(r.maps) == Kept {
		ep.retired = append(ep.retired, r.maps[0].at)
		r.maps = slices.Delete(r.maps, 0, 1)
	}
	r.maps = append(r.maps, mapping{m.ID, m.Base, m.Size, at})
	return unsafe.Add(at, m.Offset), nil
}

// Event returns another rank's event.
func (ep *Endpoint) Event(rank int, h *Handle) (cuda.Event, error) {
	r := &ep.remote[rank]
	if e, ok := r.events[*h]; ok {
		return e, nil
	}
	e, err := ep.dev.OpenIPCEvent(*h)
	if err != nil {
		return 0, err
	}
	if r.events == nil {
		r.events = map[Handle]cuda.Event{}
	}
	r.events[*h] = e
	return e, nil
}

// drain is how long Close waits for work that was queued; tests shorten it.
var drain = 5 * time.Second

// Close unmaps everything. Where work that was queued does not end, because the group
// broke, the mappings stay to the end of the process. No collective is under way.
func (p *Peers) Close() {
	for d, ep := range p.endpoints {
		idle := ep.idle(time.Now().Add(drain))
		for i := range ep.remote {
			for _, e := range ep.remote[i].events {
				_ = d.FreeEvent(e) // a context that is broken keeps it; so below
			}
			for _, f := range ep.remote[i].maps {
				ep.retired = append(ep.retired, f.at)
			}
		}
		if idle {
			for _, at := range ep.retired {
				_ = d.CloseIPC(at)
			}
		}
		spare.Lock()
		spare.events[d] = append(spare.events[d], ep.Events)
		spare.Unlock()
	}
	clear(p.endpoints)
	p.agreed = nil
	p.Refuse("the group was destroyed")
}

func (ep *Endpoint) idle(deadline time.Time) bool {
	for {
		over, err := ep.dev.Query(ep.Events.Done)
		switch {
		case err != nil:
			return false
		case over:
			return true
		case time.Now().After(deadline):
			return false
		}
		time.Sleep(time.Millisecond)
	}
}

// Why is the text of a refusal: this rank's own reason, if it has one.
func Why(err error) string {
	if err == nil {
		return "another rank could not share its memory or map that of the others"
	}
	if e, ok := err.(*status.Error); ok {
		return e.Msg
	}
	return err.Error()
}
