package checkpoint

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// checked is a Sink that looks at lengths only.
type checked struct {
	sync.Mutex
	t      testing.TB
	tables []Table
	rows   []int64
}

func (c *checked) Begin(tables []Table) error {
	c.tables, c.rows = tables, make([]int64, len(tables))
	return nil
}

func (c *checked) Own(int) int   { return -1 }
func (c *checked) Cap(int) int64 { return 1 }

func (c *checked) Sketch(table int, _ []byte) error {
	assert.True(c.t, c.tables[table].Stamps)
	return nil
}

func (c *checked) Rows(table int, ids []int64, rows []byte, states []float32, stamps []int64) error {
	c.Lock()
	defer c.Unlock()
	of := &c.tables[table]
	assert.NotEmpty(c.t, ids)
	assert.EqualValues(c.t, int64(len(ids))*of.Dim*itemBytes(of.DType), len(rows))
	assert.EqualValues(c.t, int64(len(ids))*of.StateLen, len(states))
	if of.Stamps {
		assert.Len(c.t, stamps, len(ids))
	}
	c.rows[table] += int64(len(ids))
	return nil
}

// FuzzPart reads a part of any bytes, with a manifest that fits where it can: sizes and checksums
// are made right, so that what lies behind them is reached.
func FuzzPart(f *testing.F) {
	m := commit(f, f.TempDir(), 142, 1, 0) // with a sketch
	b, err := os.ReadFile(filepath.Join(m.Folder, m.Parts[0].Name))
	require.NoError(f, err)
	f.Add(b, uint16(m.Parts[0].Chunks), true)
	f.Add(b, uint16(1), false)
	f.Add(b[:headerBytes], uint16(0), true)
	f.Fuzz(func(t *testing.T, b []byte, chunks uint16, mend bool) {
		damaged := *m
		part := File{Name: "part", Bytes: int64(len(b)), Chunks: int64(chunks), Rows: make([]int64, len(m.Tables))}
		index := int64(len(b)) - int64(chunks)*entryBytes
		if index < headerBytes {
			return // Manifest.check does not let that pass
		}
		if mend {
			first := header(m.Format, m.Step, 0, 1)
			copy(b, first[:])
			mendChunks(m.Tables, b, index, part.Rows)
			part.CRC = crc32.ChecksumIEEE(b[index:])
		}
		damaged.Parts = []File{part}
		r := reader{m: &damaged, path: "part", file: bytes.NewReader(b), size: int64(len(b))}
		sink := &checked{t: t}
		require.NoError(t, sink.Begin(m.Tables))
		if r.read(context.Background(), nil, sink) == nil {
			require.Equal(t, part.Rows, sink.rows)
		}
	})
}

// mendChunks makes the checksums of the index those of the chunks, and counts the rows.
func mendChunks(tables []Table, b []byte, index int64, rows []int64) {
	offset := int64(headerBytes)
	for at := index; at < int64(len(b)); at += entryBytes {
		e := entryOf(b[at:])
		if of, is := e.sketchOf(); is && int(of) < len(tables) && e.size(tables) <= index-offset {
			binary.LittleEndian.PutUint32(b[at+8:], crc32.ChecksumIEEE(b[offset:offset+e.size(tables)]))
			offset += e.size(tables)
			continue
		}
		if int(e.table) >= len(tables) {
			return
		}
		l := tables[e.table].layout(int64(e.rows))
		if l.bytes > index-offset {
			return
		}
		rows[e.table] += int64(e.rows)
		binary.LittleEndian.PutUint32(b[at+8:], crc32.ChecksumIEEE(b[offset:offset+l.rows]))
		binary.LittleEndian.PutUint32(b[at+12:], crc32.ChecksumIEEE(b[offset+l.rows:offset+l.bytes]))
		offset += l.bytes
	}
}

// FuzzManifest decodes a manifest of any text, with the right checksum.
func FuzzManifest(f *testing.F) {
	for _, step := range []int64{42, 142} {
		b, err := commit(f, f.TempDir(), step, 2, 0).encode()
		require.NoError(f, err)
		f.Add(b[len(fmt.Sprintf(before, 0)):len(b)-len(behind)], true)
	}
	b := []byte(`{"format":2,"parts":[{"file":"part-00000-of-00001-0123456789abcdef","bytes":32,"chunks":0,"crc32":0,"rows":[]}]}`)
	f.Add(b, true)
	f.Add(b, false)
	f.Add([]byte(`{"format":1,"serial":3,"supersedes":[{"step":7,"serial":-2},{}],"parts":[{"file":"part-00000-of-00001-0123456789abcdef","bytes":32,"chunks":0,"crc32":0,"rows":[]}]}`), true)
	f.Add([]byte(`{"format":1,"parts":[{"file":"part-00000-of-00001-0123456789abcdef","bytes":32,"chunks":0,"crc32":0,"rows":[]}]}`), true)
	f.Fuzz(func(t *testing.T, text []byte, mend bool) {
		if mend {
			text = append(append(fmt.Appendf(nil, before, crc32.ChecksumIEEE(text)), text...), behind...)
		}
		m, err := decode(text)
		if err != nil {
			return
		}
		for _, table := range m.Tables {
			l := table.layout(1)
			require.Less(t, l.bytes, int64(mostChunk))
			require.NotEqual(t, op.Int64.String(), table.DType)
		}
		for _, part := range m.Parts {
			require.Equal(t, part.Name, filepath.Base(part.Name))
		}
		again, err := m.encode()
		require.NoError(t, err)
		same, err := decode(again)
		require.NoError(t, err)
		require.Equal(t, m.Parts, same.Parts)
	})
}
