package checkpoint

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Commit makes a cut complete, when all servers have written their parts. One server calls it.
// extra is given back in the manifest. from is the cut from which the job goes on (see Abandoned).
// Folders of smaller steps that never became complete are removed. If ctx is done already, the cut
// does not become complete.
func Commit(ctx context.Context, dir string, step int64, parts []ServerPart, extra []byte, from *Manifest) error {
	if err := given(ctx); err != nil {
		return err
	}
	folder := folderOf(dir, step)
	m, err := join(step, parts)
	if err != nil {
		return argument("%s cannot become complete: %v", folder, err)
	}
	m.Extra, m.Folder = extra, folder
	if err := m.follow(dir, from); err != nil {
		return err
	}
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
	tidy(dir, step)
	return nil
}

// join makes a manifest of what the servers say of their parts, in any order.
func join(step int64, parts []ServerPart) (*Manifest, error) {
	if len(parts) < 1 || len(parts) > MostServers {
		return nil, fmt.Errorf("%d parts; a cut has 1 to %d", len(parts), MostServers)
	}
	m := &Manifest{Step: step, Parts: make([]File, len(parts))}
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
		f := File{Name: p.File, Bytes: p.Bytes, Chunks: p.Chunks, CRC: p.CRC, Version: p.Version, Rows: make([]int64, len(m.Tables))}
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
	m.Format = formatOf(m.Tables)
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

// tidy removes the folders of smaller steps that never became complete.
func tidy(dir string, step int64) {
	steps, err := folders(dir)
	if err != nil {
		return
	}
	for _, other := range steps {
		if other < step && !hasManifest(dir, other) {
			remove(folderOf(dir, other))
		}
	}
}

// Superfluous returns which cuts of a List need not stay when that of a step is complete, so that
// keep of them do; 0: all. Only cuts that right has found whole count: that of the step, and those
// of the greatest steps of the others. Cuts that are superseded go with what is older. right reads a
// cut, and is asked only if a cut may have to go. What it finds damaged stays for its owner to look
// at. An error says that the new cut itself is damaged, or is of right.
func Superfluous(list []Listed, step int64, keep int, right func(step int64) (damaged, err error)) (old []int64, err error) {
	var others, behind []int64
	for _, one := range list {
		switch {
		case one.Why != "" || one.Step == step:
		case one.Superseded:
			behind = append(behind, one.Step)
		default:
			others = append(others, one.Step)
		}
	}
	if keep == 0 || len(others)+1 < keep || len(others)+1 == keep && len(behind) == 0 {
		return nil, nil
	}
	damaged, err := right(step)
	if err != nil || damaged != nil {
		return nil, cmp.Or(err, damaged)
	}
	kept := 1
	for _, other := range slices.Backward(others) {
		if kept == keep {
			old = append(old, other)
			continue
		}
		if damaged, err = right(other); err != nil {
			return nil, err
		}
		if damaged == nil {
			kept++
		}
	}
	if kept == keep {
		old = append(old, behind...)
	}
	return old, nil
}

// Remove removes cuts.
func Remove(dir string, steps []int64) {
	for _, step := range steps {
		remove(folderOf(dir, step))
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
