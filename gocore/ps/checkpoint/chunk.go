package checkpoint

import (
	"encoding/binary"
	"hash/crc32"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// A part is a header, chunks one behind the other, and the index of the chunks. A chunk has rows of
// one table: their ids, the rows, the states, and the last uses if the table has stamps; rows and
// states are followed by zeros up to a multiple of 8 bytes. Or it is a piece of a table's sketch.
// All numbers are little-endian.
const (
	plainFormat   = 1
	stampedFormat = 2 // of cuts with a table that has stamps
	headerBytes   = 32
	entryBytes    = 16
	ofSketch      = 1 << 31 // is added to the number of the table of a piece of a sketch
)

// formatOf returns the format of a cut of these tables: what an older version can read is as it
// wrote it.
func formatOf(tables []Table) int {
	for i := range tables {
		if tables[i].Stamps {
			return stampedFormat
		}
	}
	return plainFormat
}

var magic = [8]byte{'P', 'M', 'P', 'I', 'P', 'A', 'R', 'T'}

// header returns the first bytes of a part.
func header(format int, step int64, server, servers int) [headerBytes]byte {
	var b [headerBytes]byte
	copy(b[:], magic[:])
	binary.LittleEndian.PutUint32(b[8:], uint32(format))
	binary.LittleEndian.PutUint32(b[12:], uint32(server))
	binary.LittleEndian.PutUint32(b[16:], uint32(servers))
	binary.LittleEndian.PutUint64(b[24:], uint64(step))
	return b
}

// entry is what the index has of a chunk. The sum of the ids stands by itself, so that a server
// need not read rows that others want. Of a piece of a sketch rows is the number of its bytes, ids
// the CRC-32 of all, and values 0.
type entry struct {
	table, rows uint32
	ids, values uint32 // CRC-32 of the ids, and of all that follows them
}

// sketchOf returns of which table an entry is a piece of the sketch; false: it is of rows.
func (e entry) sketchOf() (table uint32, is bool) { return e.table &^ ofSketch, e.table&ofSketch != 0 }

// size returns the bytes of the chunk, whose table is there.
func (e entry) size(tables []Table) int64 {
	if _, is := e.sketchOf(); is {
		return (int64(e.rows) + 7) &^ 7
	}
	return tables[e.table].layout(int64(e.rows)).bytes
}

func (e entry) append(b []byte) []byte {
	for _, n := range [...]uint32{e.table, e.rows, e.ids, e.values} {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	return b
}

func entryOf(b []byte) entry {
	return entry{binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])}
}

// layout says where things lie in a chunk of some rows.
type layout struct{ rows, states, stamps, bytes int64 }

func (t *Table) layout(n int64) layout {
	l := layout{rows: 8 * n}
	l.states = l.rows + (n*t.Dim*itemBytes(t.DType)+7)&^7
	l.stamps = l.states + (n*t.StateLen*4+7)&^7
	l.bytes = l.stamps
	if t.Stamps {
		l.bytes += 8 * n
	}
	return l
}

// rowBytes returns the bytes of an id, its row, its state and its last use.
func (t *Table) rowBytes() int64 {
	stamp := int64(0)
	if t.Stamps {
		stamp = 8
	}
	return 8 + t.Dim*itemBytes(t.DType) + t.StateLen*4 + stamp
}

// most returns how many rows a chunk gets.
func (t *Table) most() int64 { return max(1, chunkBytes/t.rowBytes()) }

// chunk is memory for one chunk, outside the Go heap: tables take no other.
type chunk struct {
	data []byte
	layout
	n      int64
	table  *Table
	memory unsafe.Pointer
}

// set makes room for n rows of a table. What is there is undefined.
func (c *chunk) set(t *Table, n int64) error {
	c.table, c.n, c.layout = t, n, t.layout(n)
	if c.bytes > int64(cap(c.data)) {
		c.free()
		size := max(c.bytes, chunkBytes)
		p, err := mem.Alloc(size)
		if err != nil {
			return status.New(status.NoMemory, "checkpoint: no memory for %d bytes", size)
		}
		c.memory, c.data = p, unsafe.Slice((*byte)(p), size)
	}
	c.data = c.data[:c.bytes]
	return nil
}

func (c *chunk) free() {
	mem.Free(c.memory)
	c.memory, c.data = nil, nil
}

func (c *chunk) ids() []int64 { return unsafe.Slice((*int64)(c.memory), c.n) }

func (c *chunk) values() []byte {
	return c.data[c.rows:c.states][:c.n*c.table.Dim*itemBytes(c.table.DType)]
}

func (c *chunk) stateFloats() []float32 {
	return unsafe.Slice((*float32)(unsafe.Add(c.memory, c.states)), c.n*c.table.StateLen)
}

// stampsOf returns the last uses; nil if the table has none.
func (c *chunk) stampsOf() []int64 {
	if !c.table.Stamps {
		return nil
	}
	return unsafe.Slice((*int64)(unsafe.Add(c.memory, c.stamps)), c.n)
}

// pad writes the zeros behind rows and states.
func (c *chunk) pad() {
	clear(c.data[c.rows+int64(len(c.values())) : c.states])
	clear(c.data[c.states+4*c.n*c.table.StateLen : c.stamps])
}

// entry sums the chunk up.
func (c *chunk) entry(table int) entry {
	return entry{uint32(table), uint32(c.n), crc32.ChecksumIEEE(c.data[:c.rows]), crc32.ChecksumIEEE(c.data[c.rows:])}
}

// keep leaves only the rows at places, which ascend.
func (c *chunk) keep(places []int64) {
	width, state := c.table.Dim*itemBytes(c.table.DType), c.table.StateLen
	ids, values, states, stamps := c.ids(), c.values(), c.stateFloats(), c.stampsOf()
	for to, from := range places {
		to := int64(to)
		ids[to] = ids[from]
		copy(values[to*width:(to+1)*width], values[from*width:(from+1)*width])
		copy(states[to*state:(to+1)*state], states[from*state:(from+1)*state])
		if stamps != nil {
			stamps[to] = stamps[from]
		}
	}
	c.n = int64(len(places)) // rows, states and stamps stay where they begin
}

// littleEndian refuses machines whose arrays are not those of the format.
func littleEndian() error {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return status.New(status.Unsupported, "checkpoint: this machine is not little-endian, as the files are")
	}
	return nil
}
