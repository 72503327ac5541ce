package checkpoint

import (
	"cmp"
	"path/filepath"
	"slices"
)

// This file has which cuts a job has left behind. A job that goes back to an older cut goes on from
// there: newer ones are of a course that it has given up, although their steps may be greater than
// all that it will write. So each cut says which others it supersedes, and what the latest one says
// counts. A cut that is superseded is no newest cut, may be written again, and goes with older ones.

// Label names a cut of a directory, also after another one of the same step was written.
type Label struct {
	Step   int64 `json:"step"`
	Serial int64 `json:"serial"`
}

// Limits of what is read: the most cuts that one supersedes, and the greatest serial number.
const (
	mostLabels = 1 << 16
	mostSerial = 1 << 62
)

func (m *Manifest) label() Label { return Label{m.Step, m.Serial} }

// later compares when two cuts became complete. Versions that did not count them wrote steps that
// grow.
func later(a, b *Manifest) int {
	return cmp.Or(cmp.Compare(a.Serial, b.Serial), cmp.Compare(a.Step, b.Step))
}

// manifests returns the manifests of a directory that can be read, from the earliest to the latest.
// Their parts may be missing.
func manifests(dir string) (all []*Manifest, err error) {
	steps, err := complete(dir)
	if err != nil {
		return nil, argument("cannot read %s: %v", dir, err)
	}
	for _, step := range steps {
		if m, err := manifestOf(dir, step); err == nil {
			all = append(all, m)
		}
	}
	slices.SortFunc(all, later)
	return all, nil
}

// superseded returns the cuts that the latest one supersedes.
func superseded(all []*Manifest) []Label {
	if len(all) == 0 {
		return nil
	}
	return all[len(all)-1].Supersedes
}

// Abandoned returns the cuts of a directory that the next one supersedes. from is the cut that the
// job has read or written last: what came after it, and what it superseded itself, is of another
// course. nil: the job has begun anew, and leaves things as they are.
func Abandoned(dir string, from *Manifest) ([]Label, error) {
	all, err := manifests(dir)
	return abandoned(all, from), err
}

func abandoned(all []*Manifest, from *Manifest) (labels []Label) {
	for _, m := range all {
		if from == nil && slices.Contains(superseded(all), m.label()) ||
			from != nil && (later(m, from) > 0 || slices.Contains(from.Supersedes, m.label())) {
			labels = append(labels, m.label())
		}
	}
	return labels
}

// follow makes a new cut the latest one of its directory. It returns an error if there is a whole cut
// of its step that it does not supersede.
func (m *Manifest) follow(dir string, from *Manifest) error {
	all, err := manifests(dir)
	if err != nil {
		return err
	}
	if len(all) > 0 {
		m.Serial = all[len(all)-1].Serial + 1
	}
	m.Supersedes = abandoned(all, from)
	own := func(other Label) bool { return other.Step == m.Step }
	if !slices.ContainsFunc(m.Supersedes, own) {
		return refuseComplete(dir, m.Step)
	}
	m.Supersedes = slices.DeleteFunc(m.Supersedes, own)
	return nil
}

// manifestOf reads the manifest of a step.
func manifestOf(dir string, step int64) (*Manifest, error) {
	folder := folderOf(dir, step)
	b, err := readManifest(filepath.Join(folder, manifestName))
	if err != nil {
		return nil, argument("%s is no whole cut: %v", folder, err)
	}
	m, err := decode(b)
	if err != nil {
		return nil, argument("%s is no whole cut: %v", folder, err)
	}
	if m.Step != step {
		return nil, argument("%s is no whole cut: its manifest is of step %d", folder, m.Step)
	}
	m.Folder = folder
	return m, nil
}

// Place returns the path of a directory that is the same whatever a program calls it.
func Place(dir string) string {
	path, err := filepath.Abs(dir)
	if err != nil {
		path = dir
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return filepath.Clean(path)
}
