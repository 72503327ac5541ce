package table

// #cgo noescape pt_sketch_read
// #cgo nocallback pt_sketch_read
// #cgo noescape pt_sketch_add
// #cgo nocallback pt_sketch_add
// #include "table.h"
import "C"

import (
	"encoding/binary"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// sketchHead is what the bytes of a sketch begin with, little-endian. Two sketches may be joined if
// they differ in Counted and Filled only. Behind it is every counter that is not 0, in order: how
// many places it is after the one before (from -1), as an unsigned varint, and its value in a byte.
type sketchHead struct {
	Magic   [4]byte // PMSK
	Version uint32
	Rows    uint32 // of counters
	Bits    uint32 // a row has 1 << Bits counters
	Seed    uint64 // of the table: the places of an id depend on it
	Counted uint64 // ids since the counters were halved
	Filled  uint64 // counters that are not 0
}

const sketchHeadBytes = 40

func (t *Table) sketchHead() sketchHead {
	return sketchHead{Magic: [4]byte{'P', 'M', 'S', 'K'}, Version: 1, Rows: C.PT_SKETCH_ROWS, Bits: C.PT_SKETCH_BITS, Seed: t.Seed}
}

// Sketch returns how often ids without a row were seen, for AddSketch; nil if the table does not
// count them.
func (t *Table) Sketch() ([]byte, error) {
	if t.AdmitAfter <= 1 {
		return nil, nil
	}
	memory, err := mem.Alloc(C.PT_SKETCH_BYTES)
	if err != nil {
		return nil, err
	}
	defer mem.Free(memory)
	t.inUse.RLock()
	defer t.inUse.RUnlock()
	if t.t == nil {
		return nil, freed()
	}
	head := t.sketchHead()
	head.Counted = uint64(C.pt_sketch_read(t.t, (*C.uint8_t)(memory)))
	counters := unsafe.Slice((*byte)(memory), C.PT_SKETCH_BYTES)
	out := make([]byte, sketchHeadBytes, 1<<16)
	last := -1
	for at := 0; at < len(counters); at += 8 {
		if *(*uint64)(unsafe.Pointer(&counters[at])) == 0 {
			continue
		}
		for i := at; i < at+8; i++ {
			if counters[i] != 0 {
				out = append(binary.AppendUvarint(out, uint64(i-last)), counters[i])
				head.Filled++
				last = i
			}
		}
	}
	_, err = binary.Encode(out, binary.LittleEndian, head)
	return out, err
}

// AddSketch takes over what the sketch of another table of the same seed has counted, of each id
// the greater count. The bytes may come from anywhere.
func (t *Table) AddSketch(sketch []byte) error {
	if t.AdmitAfter <= 1 {
		return status.New(status.Argument, "sketch: the table counts no ids: admit_after is off")
	}
	var head sketchHead
	if _, err := binary.Decode(sketch, binary.LittleEndian, &head); err != nil {
		return badSketch("it has %d bytes, fewer than its head", len(sketch))
	}
	want := t.sketchHead()
	want.Counted, want.Filled = head.Counted, head.Filled
	switch {
	case head.Magic != want.Magic:
		return badSketch("it begins with %q, not with %q", head.Magic[:], want.Magic[:])
	case head.Version != want.Version:
		return badSketch("it is of version %d; this one reads %d", head.Version, want.Version)
	case head != want:
		return badSketch("it has %d rows of 2^%d counters and seed %d; the table has %d of 2^%d and seed %d", head.Rows, head.Bits, head.Seed, want.Rows, want.Bits, want.Seed)
	case head.Counted > 1<<62 || head.Filled > C.PT_SKETCH_BYTES:
		return badSketch("it says that %d ids fill %d counters", head.Counted, head.Filled)
	}
	memory, err := mem.Alloc(C.PT_SKETCH_BYTES)
	if err != nil {
		return err
	}
	defer mem.Free(memory)
	counters := unsafe.Slice((*byte)(memory), C.PT_SKETCH_BYTES)
	clear(counters)
	if err := fill(counters, sketch[sketchHeadBytes:], head.Filled); err != nil {
		return err
	}
	t.inUse.RLock()
	defer t.inUse.RUnlock()
	if t.t == nil {
		return freed()
	}
	C.pt_sketch_add(t.t, (*C.uint8_t)(memory), C.int64_t(head.Counted))
	return nil
}

// fill sets the counters that are listed in text.
func fill(counters, text []byte, filled uint64) error {
	at := uint64(0) // 1 + the place of the last one
	for i := range filled {
		gap, n := binary.Uvarint(text)
		if n <= 0 || len(text) == n {
			return badSketch("it ends after %d of %d counters", i, filled)
		}
		if gap == 0 || gap > uint64(len(counters))-at || text[n] == 0 {
			return badSketch("counter %d of %d is at no place of its own, or is 0", i, filled)
		}
		at += gap
		counters[at-1] = text[n]
		text = text[n+1:]
	}
	if len(text) > 0 {
		return badSketch("%d bytes are left after its %d counters", len(text), filled)
	}
	return nil
}

func badSketch(format string, arguments ...any) error {
	return status.New(status.Argument, "sketch: "+format, arguments...)
}
