// Package ipc lets the ranks of a node read and write each other's device memory (CUDA IPC). It has
// the records that the ranks exchange before a collective, and the mappings that each rank keeps.
//
// A collective takes these steps on every rank:
//
//  1. The library's stream waits until the tensors are ready and records this rank's event Ready.
//     The rank fills in its Record: the handles of its two events, of the memory that the other ranks
//     read (Source), and of the memory that they write (Target). One MPI_Allgather, of a few hundred
//     bytes a rank, exchanges the records. If the tensors of a rank cannot be shared, its record says
//     so, and this collective takes another algorithm.
//  2. The rank maps the memory that it has not seen before. The first time that the ranks see these
//     records, an MPI_Allreduce tells whether all could map it. If a rank could not, the group never
//     uses ipc again, and the collective takes another algorithm. Reasons are a container without
//     IPC, and devices that cannot reach each other.
//  3. The stream waits for the event Ready of the other ranks. The rank queues its kernel, or its
//     copies out of the others' memory, and records its event Done. One MPI_Allreduce of a word
//     follows. It is a barrier, and it tells whether a rank has failed.
//  4. The stream waits for the event Done of the other ranks. The consumer of the tensors waits for
//     the stream.
//
// So the host calls MPI twice, for a few hundred bytes, if the records are known. Events alone order
// the devices. A kernel that waited for another kernel could wait for ever, because ranks that share
// a device take turns on it. So no kernel does.
//
// Bytes moved, in device memory, for tensors of S bytes on n ranks: an all_reduce reads and writes
// nS in all, of which each rank does S and S. If the ranks share a device, that is the least
// possible. An operation that only moves data reads and writes every byte once.
//
// # Why two events a rank are enough
//
// A wait refers to the latest record of its event when the wait is queued. So an event may be
// recorded again as soon as all waits for its latest record are queued.
//
// The waits for Ready of collective k are queued before the MPI_Allreduce of step 3. This rank
// records Ready again in collective k+1. It begins that one after the MPI_Allreduce has returned,
// and so after all ranks have entered it.
//
// The waits for Done of collective k are queued in step 4. This rank records Done again in step 3
// of collective k+1, after the MPI_Allgather there. Every rank enters that MPI_Allgather after its
// step 4, because the collectives of a group run one after another.
//
// No wait is queued too early, when its event was not recorded yet: Ready is recorded before the
// MPI_Allgather and its waits are queued after it. Done is recorded before the MPI_Allreduce and its
// waits are queued after it.
//
// A stream waits only for work that was queued earlier in real time. So the waits form no circle,
// in whatever order groups use a device's stream.
//
// # Memory
//
// A handle names an allocation, so a Record also has the offset of the tensor in it. Mappings are
// kept, because making one takes longer than most collectives. So the driver keeps memory that a
// rank has freed until the other ranks unmap it. They do so when a new allocation has its address,
// when they have mapped more than Kept other allocations of that rank, or when the group ends. A
// new allocation at an old address has a new ID, so it is mapped anew.
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

// Device has the methods of *cuda.Device that this package calls.
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

// Memory describes a tensor to other processes: it begins Offset bytes into an allocation. A Memory
// of Size 0 stands for no tensor.
type Memory struct {
	ID     uint64 // of the allocation; its process never uses the ID again
	Base   uint64 // the allocation's address in its process
	Size   int64
	Offset int64
	Handle Handle
}

// Holds tells whether a Memory that another rank has told of can hold a tensor of that many bytes, as far as
// it says. Whether its allocation is as long as it says, only the driver knows.
func (m *Memory) Holds(bytes int64) bool {
	if bytes == 0 {
		return m.Size == 0
	}
	return m.Size > 0 && m.Offset >= 0 && m.Offset <= m.Size && bytes <= m.Size-m.Offset && m.Base+uint64(m.Size) > m.Base
}

// State is a rank's answer whether it can take part in a collective. The lowest State of all ranks
// counts.
type State int64

const (
	Never    State = iota // the driver refuses: this rank can share no memory
	NotThese              // the tensors of this collective cannot be shared
	Serves                // this rank can take part
)

// Record is what a rank tells the other ranks. It has no pointer and no padding.
type Record struct {
	State          State
	Ready, Done    Handle
	Source, Target Memory
}

// Bytes is the length of a Record in a message.
const Bytes = int64(unsafe.Sizeof(Record{}))

const (
	// Kept is how many allocations of one rank stay mapped.
	Kept = 128
	// mostEvents is how many events of one rank are opened. It has two on each of its devices.
	mostEvents = 256
	// remembered is how many sets of records a rank remembers as mapped by all ranks. A set has at
	// most two allocations of each rank. So the sets name fewer than Kept allocations of a rank,
	// and all of them are still mapped.
	remembered = 16
)

// Peers is what one member of a group knows of the other members' memory. One collective at a time
// uses it. Only Refused may be called at any time.
type Peers struct {
	Rank, Size int

	refusal  atomic.Pointer[string]
	mappings map[Device]*Mappings
	seed     maphash.Seed
	agreed   []agreement // the latest one is the last
}

type agreement struct {
	hash    uint64
	records []byte
}

// New returns the Peers of member rank of a group of size members.
func New(rank, size int) *Peers {
	return &Peers{Rank: rank, Size: size, mappings: map[Device]*Mappings{}, seed: maphash.MakeSeed()}
}

// Refused tells whether the members have found that ipc does not work in this group. All members
// give the same answer.
func (p *Peers) Refused() bool { return p.refusal.Load() != nil }

// Refusal returns the reason as this rank knows it, or "".
func (p *Peers) Refusal() string {
	if s := p.refusal.Load(); s != nil {
		return *s
	}
	return ""
}

// Refuse ends the use of ipc in this group. All members call it in the same collective.
func (p *Peers) Refuse(why string) { p.refusal.CompareAndSwap(nil, &why) }

// Agreed tells whether all members have mapped the memory that these records name, so that they
// need not ask each other. All members give the same answer, because they see the same sets of
// records.
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

// Agree remembers records whose memory all members have mapped.
func (p *Peers) Agree(records []byte) {
	if len(p.agreed) == remembered {
		p.agreed = slices.Delete(p.agreed, 0, 1)
	}
	p.agreed = append(p.agreed, agreement{maphash.Bytes(p.seed, records), bytes.Clone(records)})
}

// Mappings are what one device of this process shares in one group: the events that this rank records, the
// handles of its memory, and the mappings of other ranks' memory.
type Mappings struct {
	Events *Events

	dev     Device
	exports map[uint64]Handle // by the allocation's ID
	remote  []remote          // by rank
	retired []unsafe.Pointer  // mappings to be closed when the queued work that may use them is over
}

// Events are the two events that this rank records.
type Events struct {
	Ready, Done             cuda.Event
	ReadyHandle, DoneHandle Handle
}

type remote struct {
	events map[Handle]cuda.Event
	maps   []mapping // the one used last is the last
}

type mapping struct {
	id, base uint64
	size     int64
	at       unsafe.Pointer
}

// spare holds the Events of groups that ended, by device. They are never destroyed: another process
// may still wait for one, and CUDA promises nothing about an event whose owner has destroyed it.
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

// Mappings returns the mappings of d, and closes retired mappings that are no longer in use.
func (p *Peers) Mappings(d Device) (*Mappings, error) {
	ms := p.mappings[d]
	if ms == nil {
		events, err := takeEvents(d)
		if err != nil {
			return nil, err
		}
		ms = &Mappings{Events: events, dev: d, exports: map[uint64]Handle{}, remote: make([]remote, p.Size)}
		p.mappings[d] = ms
	}
	if len(ms.retired) > 0 {
		if over, err := d.Query(ms.Events.Done); over && err == nil {
			for _, at := range ms.retired {
				if err := d.CloseIPC(at); err != nil {
					return nil, err
				}
			}
			ms.retired = ms.retired[:0]
		}
	}
	return ms, nil
}

// Export describes n bytes at data to other processes. l is what the driver knows of that memory.
// ok is false if it cannot be shared; this collective then has to take another algorithm.
func (ms *Mappings) Export(data unsafe.Pointer, n int64, l cuda.Location) (m Memory, ok bool, err error) {
	offset := int64(uintptr(data) - l.Base)
	if !l.IPC || offset < 0 || n > l.Size-offset {
		return m, false, nil
	}
	h, known := ms.exports[l.ID]
	if !known {
		if h, err = ms.dev.IPCHandle(unsafe.Add(data, -offset)); err != nil {
			return m, false, err
		}
		if len(ms.exports) >= 4*Kept { // most of them were freed
			clear(ms.exports)
		}
		ms.exports[l.ID] = h
	}
	return Memory{ID: l.ID, Base: uint64(l.Base), Size: l.Size, Offset: offset, Handle: h}, true, nil
}

// Import returns the address in this process of another rank's memory, or nil if m is of Size 0.
// The mapping stays while it is among the Kept latest of that rank and that rank has not freed the
// memory.
func (ms *Mappings) Import(rank int, m *Memory) (unsafe.Pointer, error) {
	if m.Size == 0 {
		return nil, nil
	}
	r := &ms.remote[rank]
	for i := len(r.maps) - 1; i >= 0; i-- {
		if f := r.maps[i]; f.id == m.ID && f.base == m.Base {
			copy(r.maps[i:], r.maps[i+1:])
			r.maps[len(r.maps)-1] = f
			return unsafe.Add(f.at, m.Offset), nil
		}
	}
	// A mapping of these addresses is of memory that its owner has freed. No work uses it: to free
	// the memory, the owner has waited for all that it had queued, and so for our event Done.
	var err error
	r.maps = slices.DeleteFunc(r.maps, func(f mapping) bool {
		stale := f.base < m.Base+uint64(m.Size) && m.Base < f.base+uint64(f.size)
		if stale && err == nil {
			err = ms.dev.CloseIPC(f.at)
		}
		return stale
	})
	if err != nil {
		return nil, err
	}
	at, err := ms.dev.OpenIPC(m.Handle)
	if err != nil {
		return nil, err
	}
	if len(r.maps) == Kept {
		ms.retired = append(ms.retired, r.maps[0].at)
		r.maps = slices.Delete(r.maps, 0, 1)
	}
	r.maps = append(r.maps, mapping{m.ID, m.Base, m.Size, at})
	return unsafe.Add(at, m.Offset), nil
}

// Event returns another rank's event in this process.
func (ms *Mappings) Event(rank int, h *Handle) (cuda.Event, error) {
	r := &ms.remote[rank]
	if e, ok := r.events[*h]; ok {
		return e, nil
	}
	if len(r.events) == mostEvents {
		return 0, status.New(status.Cuda, "rank %d of the group names ever more events: it is damaged", rank)
	}
	e, err := ms.dev.OpenIPCEvent(*h)
	if err != nil {
		return 0, err
	}
	if r.events == nil {
		r.events = map[Handle]cuda.Event{}
	}
	r.events[*h] = e
	return e, nil
}

// drain is how long Close waits for queued work. Tests shorten it.
var drain = 5 * time.Second

// Close unmaps all memory. If queued work does not end, because the group broke, its device's
// mappings stay until the process ends. No collective may be under way.
func (p *Peers) Close() {
	for d, ms := range p.mappings {
		idle := ms.idle(time.Now().Add(drain))
		for i := range ms.remote {
			for _, e := range ms.remote[i].events {
				_ = d.FreeEvent(e) // fails in a broken context, and so does CloseIPC below
			}
			for _, f := range ms.remote[i].maps {
				ms.retired = append(ms.retired, f.at)
			}
		}
		if idle {
			for _, at := range ms.retired {
				_ = d.CloseIPC(at)
			}
		}
		spare.Lock()
		spare.events[d] = append(spare.events[d], ms.Events)
		spare.Unlock()
	}
	clear(p.mappings)
	p.agreed = nil
	p.Refuse("the group was destroyed")
}

func (ms *Mappings) idle(deadline time.Time) bool {
	for {
		over, err := ms.dev.Query(ms.Events.Done)
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

// Why returns the text of a refusal: this rank's reason, if it has one.
func Why(err error) string {
	if err == nil {
		return "another rank could not share its memory or map that of the others"
	}
	if e, ok := err.(*status.Error); ok {
		return e.Msg
	}
	return err.Error()
}
