package checkpoint

import (
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
)

// Restore reads all parts, and gives the sink the rows that are mine; nil: all rows. The number of servers
// may be another one than that which wrote. Of chunks without such a row only the ids are read. After an
// error the sink may have got some of the rows.
func (m *Manifest) Restore(mine func(table string, id int64) bool, sink Sink) error {
	if err := littleEndian(); err != nil {
		return err
	}
	if err := sink.Begin(m.Tables); err != nil {
		return err
	}
	var c chunk
	defer c.free()
	for server := range m.Parts {
		if err := m.restorePart(server, &c, mine, sink); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manifest) restorePart(server int, c *chunk, mine func(string, int64) bool, sink Sink) error {
	path := filepath.Join(m.Folder, m.Parts[server].Name)
	f, err := os.Open(path)
	if err != nil {
		return argument("cannot open part %d: %v", server, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return argument("cannot read %s: %v", path, err)
	}
	r := reader{m: m, server: server, path: path, file: f, size: info.Size(), chunk: c}
	return r.read(mine, sink)
}

// reader reads one part.
type reader struct {
	m      *Manifest
	server int
	path   string
	file   io.ReaderAt
	size   int64
	chunk  *chunk
}

func (r *reader) damaged(format string, args ...any) error {
	return argument("%s is damaged: %s; restore another cut, and remove this one", r.path, fmt.Sprintf(format, args...))
}

func (r *reader) at(b []byte, offset int64) error {
	if n, err := r.file.ReadAt(b, offset); n < len(b) {
		return argument("cannot read %d bytes at %d of %s: %v", len(b), offset, r.path, err)
	}
	return nil
}

// index reads and checks everything but the chunks. It returns their entries.
func (r *reader) index() ([]entry, error) {
	part := &r.m.Parts[r.server]
	if r.size != part.Bytes {
		return nil, r.damaged("it has %d bytes; it was written with %d", r.size, part.Bytes)
	}
	var first [headerBytes]byte
	if err := r.at(first[:], 0); err != nil {
		return nil, err
	}
	if first != header(r.m.Step, r.server, len(r.m.Parts)) {
		return nil, r.damaged("its beginning is not that of part %d of %d of step %d", r.server, len(r.m.Parts), r.m.Step)
	}
	// The manifest has at most as many chunks as there is room for in the part.
	b := make([]byte, part.Chunks*entryBytes)
	if err := r.at(b, part.Bytes-int64(len(b))); err != nil {
		return nil, err
	}
	if sum := crc32.ChecksumIEEE(b); sum != part.CRC {
		return nil, r.damaged("the checksum of its index is %08x instead of %08x", sum, part.CRC)
	}
	entries := make([]entry, part.Chunks)
	rows := make([]int64, len(r.m.Tables))
	left := part.Bytes - headerBytes - int64(len(b))
	for i := range entries {
		e := entryOf(b[i*entryBytes:])
		if int64(e.table) >= int64(len(rows)) {
			return nil, r.damaged("chunk %d is of table %d of %d", i, e.table, len(rows))
		}
		size := r.m.Tables[e.table].layout(int64(e.rows)).bytes
		if e.rows == 0 || size > mostChunk || size > left {
			return nil, r.damaged("chunk %d has %d rows in %d bytes; %d bytes are left, and a chunk has at most %d", i, e.rows, size, left, mostChunk)
		}
		left -= size
		rows[e.table] += int64(e.rows)
		entries[i] = e
	}
	if left != 0 {
		return nil, r.damaged("%d bytes are left between the chunks and their index", left)
	}
	for i, n := range rows {
		if n != part.Rows[i] {
			return nil, r.damaged("its chunks have %d rows of table %q; the manifest says %d", n, r.m.Tables[i].Name, part.Rows[i])
		}
	}
	return entries, nil
}

func (r *reader) read(mine func(string, int64) bool, sink Sink) error {
	entries, err := r.index()
	if err != nil {
		return err
	}
	c := r.chunk
	offset := int64(headerBytes)
	var places []int64
	for i, e := range entries {
		table := &r.m.Tables[e.table]
		if err := c.set(table, int64(e.rows)); err != nil {
			return err
		}
		if err := r.at(c.data[:c.rows], offset); err != nil {
			return err
		}
		if crc32.ChecksumIEEE(c.data[:c.rows]) != e.ids {
			return r.damaged("the checksum of the ids of chunk %d, at byte %d, is wrong", i, offset)
		}
		places = places[:0]
		for at, id := range c.ids() {
			if mine == nil || mine(table.Name, id) {
				places = append(places, int64(at))
			}
		}
		if len(places) > 0 {
			if err := r.at(c.data[c.rows:], offset+c.rows); err != nil {
				return err
			}
			if crc32.ChecksumIEEE(c.data[c.rows:]) != e.values {
				return r.damaged("the checksum of the rows of chunk %d, at byte %d, is wrong", i, offset)
			}
			if int64(len(places)) < c.n {
				c.keep(places)
			}
			if err := sink.Rows(int(e.table), c.ids(), c.values(), c.stateFloats()); err != nil {
				return err
			}
		}
		offset += c.bytes
	}
	return nil
}
