package checkpoint

import (
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
)

// Restore reads all parts, and gives the sink the rows that are mine; nil: all rows. The number of
// servers may be another one than that which wrote. mine may be called by several goroutines at
// once. Of chunks without such a row only the ids are read. A sink with room for some rows of a
// table gets those of the last uses. When ctx is done it stops between two chunks. After an error
// the sink may have got some of the rows.
func (m *Manifest) Restore(ctx context.Context, mine func(table string, id int64) bool, sink Sink) error {
	if err := littleEndian(); err != nil {
		return err
	}
	if err := given(ctx); err != nil { // Begin sets the steps of tables
		return err
	}
	if err := sink.Begin(m.Tables); err != nil {
		return err
	}
	oldest, err := m.oldest(ctx, mine, sink)
	if err != nil {
		return err
	}
	for server := range m.Parts {
		if err := m.restorePart(ctx, server, mine, oldest, sink); err != nil {
			return err
		}
	}
	return nil
}

// restorePart reads a part. oldest has, of some tables, the row before which rows are left out.
func (m *Manifest) restorePart(ctx context.Context, server int, mine func(string, int64) bool, oldest map[int]use, sink Sink) error {
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
	r := reader{m: m, server: server, path: path, file: f, size: info.Size(), oldest: oldest}
	return r.read(ctx, mine, sink)
}

// reader reads one part.
type reader struct {
	m      *Manifest
	server int
	path   string
	file   io.ReaderAt
	size   int64
	oldest map[int]use
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

// index reads and checks everything but the chunks. It returns their entries, and where they begin.
func (r *reader) index() ([]entry, []int64, error) {
	part := &r.m.Parts[r.server]
	if r.size != part.Bytes {
		return nil, nil, r.damaged("it has %d bytes; it was written with %d", r.size, part.Bytes)
	}
	var first [headerBytes]byte
	if err := r.at(first[:], 0); err != nil {
		return nil, nil, err
	}
	if first != header(r.m.Format, r.m.Step, r.server, len(r.m.Parts)) {
		return nil, nil, r.damaged("its beginning is not that of part %d of %d of step %d", r.server, len(r.m.Parts), r.m.Step)
	}
	// The manifest has at most as many chunks as there is room for in the part.
	b := make([]byte, part.Chunks*entryBytes)
	if err := r.at(b, part.Bytes-int64(len(b))); err != nil {
		return nil, nil, err
	}
	if sum := crc32.ChecksumIEEE(b); sum != part.CRC {
		return nil, nil, r.damaged("the checksum of its index is %08x instead of %08x", sum, part.CRC)
	}
	entries, offsets := make([]entry, part.Chunks), make([]int64, part.Chunks)
	rows := make([]int64, len(r.m.Tables))
	end := part.Bytes - int64(len(b))
	left := end - headerBytes
	for i := range entries {
		e := entryOf(b[i*entryBytes:])
		table, sketch := e.sketchOf()
		if int64(table) >= int64(len(rows)) {
			return nil, nil, r.damaged("chunk %d is of table %d of %d", i, table, len(rows))
		}
		if sketch && (!r.m.Tables[table].Stamps || e.values != 0) {
			return nil, nil, r.damaged("chunk %d is of the sketch of table %q, which has none", i, r.m.Tables[table].Name)
		}
		size := e.size(r.m.Tables)
		if e.rows == 0 || size > mostChunk || size > left {
			return nil, nil, r.damaged("chunk %d has %d rows in %d bytes; %d bytes are left, and a chunk has at most %d", i, e.rows, size, left, mostChunk)
		}
		entries[i], offsets[i] = e, end-left
		left -= size
		if !sketch {
			rows[table] += int64(e.rows)
		}
	}
	if left != 0 {
		return nil, nil, r.damaged("%d bytes are left between the chunks and their index", left)
	}
	for i, n := range rows {
		if n != part.Rows[i] {
			return nil, nil, r.damaged("its chunks have %d rows of table %q; the manifest says %d", n, r.m.Tables[i].Name, part.Rows[i])
		}
	}
	return entries, offsets, nil
}

// read gives the sink the rows that are mine. Several goroutines do it, each with a chunk at a
// time: what takes the time is to put rows into a table.
func (r *reader) read(ctx context.Context, mine func(string, int64) bool, sink Sink) error {
	entries, offsets, err := r.index()
	if err != nil {
		return err
	}
	var next atomic.Int64
	errs := make([]error, min(len(entries), runtime.GOMAXPROCS(0), mostReaders))
	var readers sync.WaitGroup
	for i := range errs {
		readers.Add(1)
		go func() {
			defer readers.Done()
			var c chunk
			defer c.free()
			for errs[i] == nil {
				at := int(next.Add(1)) - 1
				if at >= len(entries) {
					return
				}
				if _, is := entries[at].sketchOf(); is {
					continue
				}
				if errs[i] = given(ctx); errs[i] == nil {
					errs[i] = r.chunk(&c, entries[at], offsets[at], mine, sink)
				}
			}
			next.Store(int64(len(entries))) // the others end too
		}()
	}
	readers.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return r.sketches(ctx, entries, offsets, sink)
}

// chunk reads one chunk, which begins at an offset, into c.
func (r *reader) chunk(c *chunk, e entry, offset int64, mine func(string, int64) bool, sink Sink) error {
	table := &r.m.Tables[e.table]
	if err := c.set(table, int64(e.rows)); err != nil {
		return err
	}
	if err := r.at(c.data[:c.rows], offset); err != nil {
		return err
	}
	if crc32.ChecksumIEEE(c.data[:c.rows]) != e.ids {
		return r.damaged("the checksum of the ids at byte %d is wrong", offset)
	}
	var places []int64
	for at, id := range c.ids() {
		if mine == nil || mine(table.Name, id) {
			places = append(places, int64(at))
		}
	}
	if len(places) == 0 {
		return nil
	}
	if err := r.at(c.data[c.rows:], offset+c.rows); err != nil {
		return err
	}
	if crc32.ChecksumIEEE(c.data[c.rows:]) != e.values {
		return r.damaged("the checksum of the rows at byte %d is wrong", offset)
	}
	if oldest, capped := r.oldest[int(e.table)]; capped {
		if places = oldest.notBefore(c, places); len(places) == 0 {
			return nil
		}
	}
	if int64(len(places)) < c.n {
		c.keep(places)
	}
	return sink.Rows(int(e.table), c.ids(), c.values(), c.stateFloats(), c.stampsOf())
}
