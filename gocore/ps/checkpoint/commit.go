package checkpoint

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Commit makes a cut complete, when all servers have written their parts. One server calls it. extra is given
// back in the manifest. keep is how many whole cuts stay: this one, and those of the greatest steps of the
// others; 0: all. Folders of smaller steps that never became complete are removed too. Damaged cuts stay.
// If ctx is done already, the cut does not become complete.
func Commit(ctx context.Context, dir string, step int64, parts []Part, extra []byte, keep int) error {
	if keep < 0 {
		return argument("keep=%d is below 0", keep)
	}
	if err := refuseComplete(dir, step); err != nil {
		return err
	}
	if err := given(ctx); err != nil {
		return err
	}
	folder := folderOf(dir, step)
	m, err := join(step, parts)
	if err != nil {
		return argument("%s cannot become complete: %v", folder, err)
	}
	m.Extra, m.Folder = extra, folder
	if err := m.sizes(); err != nil {
		return argument("%s cannot become complete: %v", folder, err)
	}
	text, err := m.encode()
	if err != nil {
		return argument("%s cannot become complete: %v", folder, err)
	}
	if err := publish(folder, text); err != nil {
		return argument("cannot write the manifest of %s: %v", folder, err)
	}
	// The cut is complete. What cannot be removed now is removed by the next Commit.
	sweep(folder, m.Parts)
	trim(dir, step, keep)
	return nil
}

// join makes a manifest of what the servers say of their parts, in any order.
func join(step int64, parts []Part) (*Manifest, error) {
	if len(parts) < 1 || len(parts) > MostServers {
		return nil, fmt.Errorf("%d parts; a cut has 1 to %d", len(parts), MostServers)
	}
	m := &Manifest{Format: format, Step: step, Parts: make([]File, len(parts))}
	for i := range parts {
		p := &parts[i]
		if p.Step != step || p.Servers != len(parts) || p.Server < 0 || p.Server >= len(parts) || m.Parts[p.Server].Name != "" {
			return nil, fmt.Errorf("a part is of server %d of %d and of step %d; the cut of step %d needs one part of every server from 0 to %d",
				p.Server, p.Servers, p.Step, step, len(parts)-1)
		}
		if i == 0 {
			m.Tables = slices.Clone(p.Tables)
			for t := range m.Tables {
				m.Tables[t].Rows = 0
			}
		}
		if len(p.Tables) != len(m.Tables) {
			return nil, fmt.Errorf("server %d has %d tables, server %d has %d", p.Server, len(p.Tables), parts[0].Server, len(m.Tables))
		}
		f := File{Name: p.File, Bytes: p.Bytes, Chunks: p.Chunks, CRC: p.CRC, Rows: make([]int64, len(m.Tables))}
		for t := range p.Tables {
			table, of := &p.Tables[t], &m.Tables[t]
			if !table.same(of) {
				return nil, fmt.Errorf("the tables of the servers differ: server %d has %.80q (%s, dim %d, states of %d), server %d has %.80q (%s, dim %d, states of %d), or their configs differ",
					p.Server, table.Name, table.DType, table.Dim, table.StateLen, parts[0].Server, of.Name, of.DType, of.Dim, of.StateLen)
			}
			f.Rows[t] = table.Rows
			of.Rows += table.Rows
			of.Steps = max(of.Steps, table.Steps)
		}
		m.Parts[p.Server] = f
	}
	return m, m.check()
}

// publish writes the manifest to the disk, and gives it its name then.
func publish(folder string, text []byte) error {
	path := filepath.Join(folder, manifestName)
	staged := path + "." + random()
	err := writeSynced(staged, text)
	if err == nil {
		err = os.Rename(staged, path)
	}
	if err != nil {
		_ = os.Remove(staged)
		return err
	}
	if err := flush(folder); err != nil {
		return err
	}
	return flush(filepath.Dir(folder)) // whoever made the folder may have died before it did that
}

func writeSynced(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(b); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return f.Close()
}

// trim removes what a complete cut of a step has made superfluous.
func trim(dir string, step int64, keep int) {
	steps, err := folders(dir)
	if err != nil {
		return
	}
	var whole []int64
	for _, other := range steps {
		switch {
		case other == step:
		case !hasManifest(dir, other):
			if other < step {
				remove(folderOf(dir, other))
			}
		default:
			if _, err := Open(dir, other); err == nil {
				whole = append(whole, other)
			}
		}
	}
	if keep == 0 {
		return
	}
	for _, old := range whole[:max(0, len(whole)-(keep-1))] {
		remove(folderOf(dir, old))
	}
}

// remove removes a cut. The manifest goes first: a cut without parts must not look complete.
func remove(folder string) {
	if err := os.Remove(filepath.Join(folder, manifestName)); err == nil || os.IsNotExist(err) {
		if flush(folder) == nil {
			sweep(folder, nil)
			_ = os.Remove(folder) // it stays if it has files of others
		}
	}
}

// sweep removes the files of a cut that other attempts have left.
func sweep(folder string, named []File) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return
	}
	for _, e := range entries {
		name := e.Name()
		stale := stagedPattern.MatchString(name) || partPattern.MatchString(name)
		if stale && !slices.ContainsFunc(named, func(f File) bool { return f.Name == name }) {
			_ = os.Remove(filepath.Join(folder, name))
		}
	}
}
