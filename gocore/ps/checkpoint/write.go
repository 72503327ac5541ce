package checkpoint

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"sort"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// WritePart writes the rows of one server's tables, and returns when they are on the disk. It makes
// dir and the folder of the cut if they are missing. It refuses a step of which dir has a whole
// cut, unless replaces says that the new one supersedes it. What an attempt leaves that does not come to its end is removed by a later Commit. When ctx
// is done it stops between two chunks, and removes the file. copied, if not nil, is called when the
// rows are in the file and may change again: it is on its way to the disk then, which takes longer.
func WritePart(ctx context.Context, dir string, step int64, server, servers int, sources []Source, replaces bool, copied func()) (ServerPart, error) {
	part := ServerPart{Step: step, Server: server, Servers: servers}
	if err := littleEndian(); err != nil {
		return part, err
	}
	if step < 0 {
		return part, argument("step=%d is below 0", step)
	}
	if servers < 1 || servers > MostServers || server < 0 || server >= servers {
		return part, argument("server=%d of servers=%d: there may be 1 to %d, numbered from 0", server, servers, MostServers)
	}
	sources = slices.Clone(sources)
	sort.Slice(sources, func(a, b int) bool { return sources[a].Name() < sources[b].Name() })
	var err error
	if part.Tables, err = describe(sources); err != nil {
		return part, argument("%v", err)
	}
	if !replaces {
		if err := refuseComplete(dir, step); err != nil {
			return part, err
		}
	}
	folder := folderOf(dir, step)
	if err := makeFolder(folder); err != nil {
		return part, argument("cannot make %s: %v", folder, err)
	}
	part.File = fmt.Sprintf("part-%05d-of-%05d-%s", server, servers, random())
	path := filepath.Join(folder, part.File)
	if err := writeFile(ctx, path, &part, sources, copied); err != nil {
		_ = os.Remove(path)
		var named *status.Error
		if errors.As(err, &named) {
			return part, named
		}
		return part, argument("cannot write %s: %v", path, err)
	}
	return part, nil
}

// describe returns the tables, or an error about one.
func describe(sources []Source) ([]Table, error) {
	if len(sources) > MostTables {
		return nil, fmt.Errorf("%d tables are more than %d", len(sources), MostTables)
	}
	tables := make([]Table, len(sources))
	for i, s := range sources {
		// A part travels as JSON. Encode the config now, so that it is the same before and after.
		config, err := json.Marshal(json.RawMessage(s.Config()))
		if err != nil {
			return nil, fmt.Errorf("the config of table %.80q is no JSON: %w", s.Name(), err)
		}
		tables[i] = Table{Name: s.Name(), DType: s.DType().String(), Dim: s.Dim(), StateLen: s.StateLen(), Steps: s.Steps(), Config: config, LearningRate: s.LearningRate(), Stamps: s.Stamped()}
		if err := tables[i].check(); err != nil {
			return nil, err
		}
		if i > 0 && tables[i].Name == tables[i-1].Name {
			return nil, fmt.Errorf("two tables have the name %q", tables[i].Name)
		}
	}
	return tables, nil
}

// writeFile writes a part to the disk, and its numbers into part.
func writeFile(ctx context.Context, path string, part *ServerPart, sources []Source, copied func()) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer file.Close()
	first := header(formatOf(part.Tables), part.Step, part.Server, part.Servers)
	if _, err := file.Write(first[:]); err != nil {
		return err
	}
	part.Bytes = headerBytes
	var index []byte
	var c chunk
	defer c.free()
	for i, source := range sources {
		table := &part.Tables[i]
		most := table.most()
		err := source.IDs(most, func(ids []int64) error {
			if int64(len(ids)) < 1 || int64(len(ids)) > most {
				return argument("table %q gave %d ids at once, of at most %d", table.Name, len(ids), most)
			}
			if err := given(ctx); err != nil {
				return err
			}
			if err := c.set(table, int64(len(ids))); err != nil {
				return err
			}
			copy(c.ids(), ids)
			if err := source.Read(c.ids(), c.values(), c.stateFloats(), c.stampsOf()); err != nil {
				return err
			}
			c.pad()
			if _, err := file.Write(c.data); err != nil {
				return err
			}
			index = c.entry(i).append(index)
			part.Bytes += c.bytes
			part.Chunks++
			table.Rows += c.n
			return nil
		})
		if err != nil {
			return err
		}
		sketch, err := source.Sketch()
		if err != nil {
			return err
		}
		if index, err = writeSketch(ctx, file, part, i, sketch, index); err != nil {
			return err
		}
	}
	if _, err := file.Write(index); err != nil {
		return err
	}
	part.Bytes += int64(len(index))
	part.CRC = crc32.ChecksumIEEE(index)
	if copied != nil {
		copied()
	}
	if err := given(ctx); err != nil { // what follows waits for the disk
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	return flush(filepath.Dir(path))
}

// writeSketch writes the sketch of table i in pieces, and returns the index with their entries.
func writeSketch(ctx context.Context, file *os.File, part *ServerPart, i int, sketch, index []byte) ([]byte, error) {
	for piece := range slices.Chunk(sketch, chunkBytes) {
		if err := given(ctx); err != nil {
			return nil, err
		}
		n := len(piece)
		piece = append(slices.Clip(piece), make([]byte, -n&7)...)
		if _, err := file.Write(piece); err != nil {
			return nil, err
		}
		index = entry{uint32(i) | ofSketch, uint32(n), crc32.ChecksumIEEE(piece), 0}.append(index)
		part.Bytes += int64(len(piece))
		part.Chunks++
	}
	return index, nil
}

// random returns letters that no other file has in its name.
func random() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

// makeFolder makes a folder and those above it, and writes their names to the disk.
func makeFolder(folder string) error {
	if _, err := os.Stat(folder); err == nil {
		return nil
	}
	above := filepath.Dir(folder)
	if above != folder {
		if err := makeFolder(above); err != nil {
			return err
		}
	}
	if err := os.Mkdir(folder, 0o777); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return flush(above)
}

// flush writes the names in a folder to the disk.
func flush(folder string) error {
	f, err := os.Open(folder)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
