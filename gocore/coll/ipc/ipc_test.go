package ipc

import (
	"errors"
	"math/rand"
	"reflect"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// driver is a Device that only counts calls and keeps lists.
type driver struct {
	events  int
	freed   []cuda.Event
	handles int                       // number of calls of IPCHandle
	opened  map[unsafe.Pointer]Handle // mappings
	opens   int
	closed  []unsafe.Pointer
	shown   map[Handle]cuda.Event // opened events of other processes
	busy    bool                  // queued work has not ended
	fail    map[string]error
}

func newDriver() *driver {
	return &driver{opened: map[unsafe.Pointer]Handle{}, shown: map[Handle]cuda.Event{}, fail: map[string]error{}}
}

func (d *driver) NewEvent(ipc bool) (cuda.Event, error) {
	if !ipc {
		return 0, errors.New("an event that others cannot open")
	}
	d.events++
	return cuda.Event(d.events), d.fail["NewEvent"]
}

func (d *driver) FreeEvent(e cuda.Event) error {
	d.freed = append(d.freed, e)
	return nil
}

func (d *driver) Query(cuda.Event) (bool, error) { return !d.busy, d.fail["Query"] }

func (d *driver) IPCHandle(p unsafe.Pointer) (h Handle, err error) {
	d.handles++
	*(*uintptr)(unsafe.Pointer(&h)) = uintptr(p)
	return h, d.fail["IPCHandle"]
}

// room is where mappings are. It is never read.
var room [1 << 20]byte

func (d *driver) OpenIPC(h Handle) (unsafe.Pointer, error) {
	if err := d.fail["OpenIPC"]; err != nil {
		return nil, err
	}
	at := unsafe.Pointer(&room[d.opens*16%len(room)])
	d.opens++
	d.opened[at] = h
	return at, nil
}

func (d *driver) CloseIPC(p unsafe.Pointer) error {
	if _, ok := d.opened[p]; !ok {
		return errors.New("nothing is mapped there")
	}
	delete(d.opened, p)
	d.closed = append(d.closed, p)
	return d.fail["CloseIPC"]
}

func (d *driver) IPCEventHandle(e cuda.Event) (h Handle, err error) {
	h[0] = byte(e)
	return h, d.fail["IPCEventHandle"]
}

func (d *driver) OpenIPCEvent(h Handle) (cuda.Event, error) {
	d.events++
	d.shown[h] = cuda.Event(d.events)
	return d.shown[h], d.fail["OpenIPCEvent"]
}

func memory(id, base uint64, size int64) *Memory {
	m := &Memory{ID: id, Base: base, Size: size, Offset: 8}
	m.Handle[0] = byte(id)
	return m
}

func mappingsOf(t *testing.T, p *Peers, d Device) *Mappings {
	s, err := p.Mappings(d)
	require.NoError(t, err)
	return s
}

func put(t *testing.T, s *Mappings, rank int, m *Memory) unsafe.Pointer {
	at, err := s.Import(rank, m)
	require.NoError(t, err)
	return at
}

// Records are compared and sent as bytes, so they must have no undefined bytes.
func TestRecordHasNoPadding(t *testing.T) {
	var sum func(x reflect.Type) uintptr
	sum = func(x reflect.Type) (n uintptr) {
		if x.Kind() != reflect.Struct {
			require.NotEqual(t, reflect.Pointer, x.Kind())
			return x.Size()
		}
		for i := range x.NumField() {
			n += sum(x.Field(i).Type)
		}
		return n
	}
	assert.Equal(t, uintptr(Bytes), sum(reflect.TypeOf(Record{})))
}

func TestImportMapsAnAllocationOnce(t *testing.T) {
	d := newDriver()
	s := mappingsOf(t, New(0, 3), d)
	assert.Nil(t, put(t, s, 1, &Memory{}))
	assert.Zero(t, d.opens)

	m := memory(7, 0x1000, 0x100)
	at := put(t, s, 1, m)
	m.Offset = 24
	assert.Equal(t, unsafe.Add(at, 16), put(t, s, 1, m), "the offset counts from the allocation's start")
	assert.Equal(t, 1, d.opens)
	put(t, s, 2, m)
	assert.Equal(t, 2, d.opens, "another rank's memory of the same address")
	assert.Empty(t, d.closed)
}

func TestMemoryAllocatedAnewIsMappedAnew(t *testing.T) {
	for name, again := range map[string]*Memory{
		"same place":       memory(8, 0x1000, 0x100),
		"around it":        memory(8, 0x0f00, 0x300),
		"inside":           memory(8, 0x1010, 0x10),
		"reaching into it": memory(8, 0x10ff, 0x100),
	} {
		d := newDriver()
		s := mappingsOf(t, New(0, 2), d)
		old := unsafe.Add(put(t, s, 1, memory(7, 0x1000, 0x100)), -8)
		neighbour := put(t, s, 1, memory(6, 0x0e00, 0x100))
		elsewhere := put(t, s, 1, memory(5, 0x2000, 0x100))
		put(t, s, 1, again)
		assert.Equal(t, []unsafe.Pointer{old}, d.closed, name)
		assert.Equal(t, neighbour, put(t, s, 1, memory(6, 0x0e00, 0x100)), name)
		assert.Equal(t, elsewhere, put(t, s, 1, memory(5, 0x2000, 0x100)), name)
	}
}

// The mapping that was used least recently is closed, but only after queued work is done with it.
func TestNoMoreThanKeptStayMapped(t *testing.T) {
	d := newDriver()
	p := New(0, 2)
	s := mappingsOf(t, p, d)
	for i := range uint64(Kept) {
		put(t, s, 1, memory(i+1, i<<20, 16))
	}
	first := put(t, s, 1, memory(1, 0, 16)) // used again below
	d.busy = true
	put(t, s, 1, memory(Kept+1, Kept<<20, 16))
	mappingsOf(t, p, d)
	assert.Empty(t, d.closed, "queued work may use it")
	d.busy = false
	mappingsOf(t, p, d)
	assert.Len(t, d.closed, 1)
	mappingsOf(t, p, d)
	assert.Len(t, d.closed, 1)
	assert.Len(t, d.opened, Kept)
	assert.Equal(t, first, put(t, s, 1, memory(1, 0, 16)))
	opens := d.opens
	put(t, s, 1, memory(2, 1<<20, 16))
	assert.Equal(t, opens+1, d.opens, "the second was the one that went")
}

func TestExport(t *testing.T) {
	d := newDriver()
	s := mappingsOf(t, New(0, 2), d)
	base := unsafe.Pointer(&room[0])
	l := cuda.Location{Kind: cuda.OnDevice, Base: uintptr(base), Size: 256, ID: 3, IPC: true}
	m, ok, err := s.Export(unsafe.Add(base, 64), 192, l)
	require.NoError(t, err)
	assert.True(t, ok)
	assert.Equal(t, Memory{ID: 3, Base: uint64(l.Base), Size: 256, Offset: 64, Handle: m.Handle}, m)
	_, ok, _ = s.Export(base, 256, l)
	assert.True(t, ok)
	assert.Equal(t, 1, d.handles, "the handle is of the allocation")
	assert.Equal(t, l.Base, *(*uintptr)(unsafe.Pointer(&m.Handle)), "asked for by its base")
	for name, change := range map[string]func(*cuda.Location){
		"past its end":           func(l *cuda.Location) { l.Size = 255 },
		"in front of it":         func(l *cuda.Location) { l.Base++ },
		"of a pool, say":         func(l *cuda.Location) { l.IPC = false },
		"nothing the driver has": func(l *cuda.Location) { *l = cuda.Location{} },
	} {
		other := l
		change(&other)
		m, ok, err := s.Export(base, 256, other)
		assert.NoError(t, err, name)
		assert.False(t, ok, name)
		assert.Zero(t, m, name)
	}
	for i := range uint64(5 * Kept) { // an allocation that is freed and made again each time
		l.ID = 10 + i
		_, _, err := s.Export(base, 256, l)
		require.NoError(t, err)
	}
	assert.LessOrEqual(t, len(s.exports), 4*Kept)
	d.fail["IPCHandle"] = errors.New("refused")
	l.ID = 9
	_, _, err = s.Export(base, 1, l)
	assert.ErrorContains(t, err, "refused")
}

func TestEventsOfOthersAreOpenedOnce(t *testing.T) {
	d := newDriver()
	s := mappingsOf(t, New(0, 3), d)
	h, other := Handle{1}, Handle{2}
	e, err := s.Event(1, &h)
	require.NoError(t, err)
	again, err := s.Event(1, &h)
	require.NoError(t, err)
	assert.Equal(t, e, again)
	f, err := s.Event(1, &other)
	require.NoError(t, err)
	assert.NotEqual(t, e, f)
	d.fail["OpenIPCEvent"] = errors.New("refused")
	_, err = s.Event(2, &h)
	assert.ErrorContains(t, err, "refused")
}

func TestAgreedKnowsTheLatestSets(t *testing.T) {
	p := New(0, 2)
	set := func(i int) []byte { return []byte{byte(i), 1, 2} }
	assert.False(t, p.Agreed(set(0)))
	for i := range remembered {
		p.Agree(set(i))
	}
	assert.True(t, p.Agreed(set(0)), "and so it is the latest one")
	p.Agree(set(remembered))
	assert.True(t, p.Agreed(set(0)))
	assert.False(t, p.Agreed(set(1)))
	assert.True(t, p.Agreed(set(2)))
	buffer := set(100)
	p.Agree(buffer)
	buffer[0] = 101
	assert.True(t, p.Agreed(set(100)), "it keeps bytes of its own")
}

// Ranks that see the same records give the same answer whether all ranks have mapped them, and the
// answer is right: no rank has to open anything, although ranks allocate, free, and return to old
// tensors.
func TestWhatAllAgreedOnIsMapped(t *testing.T) {
	const size = 3
	rng := rand.New(rand.NewSource(6))
	var peers [size]*Peers
	var drivers [size][2]*driver
	for r := range size {
		peers[r], drivers[r] = New(r, size), [2]*driver{newDriver(), newDriver()}
	}
	next := uint64(100)
	var live [size][]Memory
	allocate := func(r int) {
		next++
		m := Memory{ID: next, Base: uint64(rng.Intn(400)) << 8, Size: int64(1+rng.Intn(3)) << 8, Handle: Handle{byte(next), byte(next >> 8)}}
		kept := live[r][:0]
		for _, old := range live[r] { // memory that the driver allocates again was freed
			if old.Base+uint64(old.Size) <= m.Base || m.Base+uint64(m.Size) <= old.Base {
				kept = append(kept, old)
			}
		}
		live[r] = append(kept, m)
	}
	agreed := 0
	for range 20000 {
		var records [size]Record
		var mappings [size]*Mappings
		var on [size]int
		for r := range size {
			if len(live[r]) == 0 || rng.Intn(200) == 0 {
				allocate(r)
			}
			on[r] = rng.Intn(40) / 39 // sometimes the rank's other device
			mappings[r] = mappingsOf(t, peers[r], drivers[r][on[r]])
			records[r].Ready = Handle{byte(r), byte(on[r])} // as the events of that device would have it
			m := live[r][len(live[r])-1-rng.Intn(min(3, len(live[r])))]
			records[r].Source = m
		}
		raw := unsafe.Slice((*byte)(unsafe.Pointer(&records[0])), size*int(Bytes))
		known := peers[0].Agreed(raw)
		for r := range size {
			if r > 0 {
				require.Equal(t, known, peers[r].Agreed(raw))
			}
			before := drivers[r][on[r]].opens
			for other := range size {
				if other != r {
					put(t, mappings[r], other, &records[other].Source)
				}
			}
			if known {
				agreed++
				require.Equal(t, before, drivers[r][on[r]].opens, "something had to be mapped though all agreed")
			} else {
				peers[r].Agree(raw)
			}
		}
	}
	assert.Greater(t, agreed, 10000, "the test is about these")
}

func TestRefusalIsForGood(t *testing.T) {
	p := New(0, 2)
	assert.False(t, p.Refused())
	assert.Empty(t, p.Refusal())
	p.Refuse(Why(status.New(status.Cuda, "no IPC here")))
	p.Refuse(Why(nil))
	assert.True(t, p.Refused())
	assert.Equal(t, "no IPC here", p.Refusal())
	assert.Equal(t, "plain", Why(errors.New("plain")))
	assert.Contains(t, Why(nil), "another rank")
}

func TestASideThatCannotHaveEvents(t *testing.T) {
	for _, call := range []string{"NewEvent", "IPCEventHandle"} {
		d := newDriver()
		d.fail[call] = errors.New("refused")
		_, err := New(0, 2).Mappings(d)
		assert.ErrorContains(t, err, "refused", call)
	}
}

func TestCloseUnmapsAndKeepsItsOwnEvents(t *testing.T) {
	d := newDriver()
	p := New(0, 2)
	s := mappingsOf(t, p, d)
	events := s.Events
	put(t, s, 1, memory(1, 0, 16))
	theirs, err := s.Event(1, &Handle{9})
	require.NoError(t, err)
	p.Close()
	assert.Empty(t, d.opened)
	assert.Equal(t, []cuda.Event{theirs}, d.freed)
	assert.True(t, p.Refused())
	p.Close() // there is nothing left to close
	assert.Len(t, d.closed, 1)

	made := d.events
	assert.Same(t, events, mappingsOf(t, New(0, 2), d).Events, "the next group's")
	assert.NotSame(t, events, mappingsOf(t, New(0, 2), d).Events, "not a third one's as well")
	assert.Equal(t, made+2, d.events)
}

func TestCloseLeavesMappedWhatQueuedWorkUses(t *testing.T) {
	defer func(was time.Duration) { drain = was }(drain)
	drain = 5 * time.Millisecond
	for name, spoil := range map[string]func(*driver){
		"work that does not end": func(d *driver) { d.busy = true },
		"a broken context":       func(d *driver) { d.fail["Query"] = errors.New("illegal address") },
	} {
		d := newDriver()
		p := New(0, 2)
		put(t, mappingsOf(t, p, d), 1, memory(1, 0, 16))
		spoil(d)
		p.Close()
		assert.Len(t, d.opened, 1, name)
	}
}

// What another rank tells of its memory must hold the tensor, without an overflow.
func TestHolds(t *testing.T) {
	good := Memory{ID: 1, Base: 1 << 20, Size: 1000, Offset: 100}
	assert.True(t, good.Holds(900))
	assert.True(t, (&Memory{}).Holds(0))
	for name, c := range map[string]struct {
		spoil func(m *Memory)
		bytes int64
	}{
		"one more byte":        {func(m *Memory) {}, 901},
		"memory for no tensor": {func(m *Memory) {}, 0},
		"no memory":            {func(m *Memory) { *m = Memory{} }, 1},
		"before its beginning": {func(m *Memory) { m.Offset = -1 }, 1},
		"behind its end":       {func(m *Memory) { m.Offset = 1001 }, 1},
		"far behind":           {func(m *Memory) { m.Offset = 1<<63 - 1 }, 1},
		"a negative length":    {func(m *Memory) { m.Size = -1 }, 1},
		"beyond all addresses": {func(m *Memory) { m.Base = 1<<64 - 10 }, 1},
		"more than all":        {func(m *Memory) {}, 1<<63 - 1},
	} {
		m := good
		c.spoil(&m)
		assert.False(t, m.Holds(c.bytes), name)
	}
}

func TestARankThatNamesEverMoreEvents(t *testing.T) {
	s := mappingsOf(t, New(0, 2), newDriver())
	var err error
	for i := range mostEvents + 1 {
		require.NoError(t, err)
		_, err = s.Event(1, &Handle{byte(i), byte(i >> 8), 1})
	}
	assert.ErrorContains(t, err, "ever more events")
}
