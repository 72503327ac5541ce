package checkpoint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

const manifestName = "manifest.json"

var (
	folderPattern = regexp.MustCompile(`^cut-(\d{8,19})$`)
	partPattern   = regexp.MustCompile(`^part-\d{5}-of-\d{5}-[0-9a-f]{16}$`)
	stagedPattern = regexp.MustCompile(`^manifest\.json\.[0-9a-f]{16}$`)
)

func folderOf(dir string, step int64) string {
	return filepath.Join(dir, fmt.Sprintf("cut-%08d", step))
}

// A manifest file is one line, {"crc32":"89abcdef","manifest":{...}}: the sum is that of the bytes
// of the value of "manifest".
const (
	before = `{"crc32":"%08x","manifest":`
	behind = "}\n"
)

func (m *Manifest) encode() ([]byte, error) {
	text, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("cannot write the manifest: %v", err)
	}
	b := fmt.Appendf(nil, before, crc32.ChecksumIEEE(text))
	b = append(append(b, text...), behind...)
	if len(b) > MostManifest {
		return nil, fmt.Errorf("the manifest would have %d bytes; %d are possible: give fewer bytes in extra", len(b), MostManifest)
	}
	return b, nil
}

// decode reads a manifest file. What it returns has been checked against itself, not against the
// parts.
func decode(b []byte) (*Manifest, error) {
	start := len(fmt.Sprintf(before, 0))
	if len(b) < start+len(behind) || !bytes.HasSuffix(b, []byte(behind)) {
		return nil, fmt.Errorf("the manifest is cut off")
	}
	text := b[start : len(b)-len(behind)]
	if sum := fmt.Sprintf(before, crc32.ChecksumIEEE(text)); string(b[:start]) != sum {
		return nil, fmt.Errorf("the manifest is damaged: its checksum is wrong")
	}
	m := &Manifest{}
	if err := json.Unmarshal(text, m); err != nil {
		return nil, fmt.Errorf("the manifest cannot be read: %v", err)
	}
	if m.Format != plainFormat && m.Format != stampedFormat {
		return nil, fmt.Errorf("the cut has format %d; this paddlempi reads formats %d and %d", m.Format, plainFormat, stampedFormat)
	}
	return m, m.check()
}

func (m *Manifest) check() error {
	if m.Step < 0 || m.Serial < 0 || m.Serial > mostSerial || len(m.Supersedes) > mostLabels {
		return fmt.Errorf("the manifest says that its step is %d, and its serial number %d, and supersedes %d cuts", m.Step, m.Serial, len(m.Supersedes))
	}
	if len(m.Parts) < 1 || len(m.Parts) > MostServers || len(m.Tables) > MostTables {
		return fmt.Errorf("the manifest has %d parts and %d tables; there may be 1 to %d, and %d", len(m.Parts), len(m.Tables), MostServers, MostTables)
	}
	for i := range m.Tables {
		if err := m.Tables[i].check(); err != nil {
			return err
		}
		if i > 0 && m.Tables[i-1].Name >= m.Tables[i].Name {
			return fmt.Errorf("the tables of the manifest are not in the order of their names: %q comes before %q", m.Tables[i-1].Name, m.Tables[i].Name)
		}
	}
	if is := formatOf(m.Tables); m.Format != is {
		return fmt.Errorf("the manifest has format %d, and its tables are those of format %d", m.Format, is)
	}
	rows := make([]int64, len(m.Tables))
	for server, p := range m.Parts {
		if !partPattern.MatchString(p.Name) {
			return fmt.Errorf("the manifest names a part %.80q, which is no name of a part", p.Name)
		}
		if p.Chunks < 0 || p.Bytes < headerBytes || p.Chunks > (p.Bytes-headerBytes)/entryBytes || len(p.Rows) != len(m.Tables) {
			return fmt.Errorf("the manifest says that part %d has %d bytes, %d chunks and rows of %d tables, of %d", server, p.Bytes, p.Chunks, len(p.Rows), len(m.Tables))
		}
		if p.Version < 0 {
			return fmt.Errorf("the manifest says that server %d had applied %d updates", server, p.Version)
		}
		for i, n := range p.Rows {
			if n < 0 || n > p.Bytes/m.Tables[i].rowBytes() {
				return fmt.Errorf("the manifest says that part %d has %d rows of table %q in %d bytes", server, n, m.Tables[i].Name, p.Bytes)
			}
			rows[i] += n // at most 2^16 numbers below 2^60: checked below
			if rows[i] < 0 {
				return fmt.Errorf("the manifest says that its parts have more rows than there are numbers")
			}
		}
	}
	for i, n := range rows {
		if m.Tables[i].Rows != n {
			return fmt.Errorf("the manifest says that table %q has %d rows, and that its parts have %d", m.Tables[i].Name, m.Tables[i].Rows, n)
		}
	}
	return nil
}

// Open returns the cut of one step, if it is whole.
func Open(dir string, step int64) (*Manifest, error) {
	if step < 0 {
		return nil, argument("step=%d is below 0", step)
	}
	m, err := manifestOf(dir, step)
	if err != nil {
		return nil, err
	}
	if err := m.sizes(); err != nil {
		return nil, argument("%s is no whole cut: %v", m.Folder, err)
	}
	return m, nil
}

func readManifest(path string) ([]byte, error) {
	// To open a pipe would wait for whoever writes into it.
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, MostManifest+1))
	if err == nil && len(b) > MostManifest {
		err = fmt.Errorf("the manifest has more than %d bytes", MostManifest)
	}
	return b, err
}

// sizes compares the sizes of the parts with the manifest.
func (m *Manifest) sizes() error {
	for server, p := range m.Parts {
		info, err := os.Stat(filepath.Join(m.Folder, p.Name))
		if err != nil {
			return fmt.Errorf("part %d: %v", server, err)
		}
		if !info.Mode().IsRegular() || info.Size() != p.Bytes {
			return fmt.Errorf("part %d, %s, has %d bytes; it was written with %d", server, p.Name, info.Size(), p.Bytes)
		}
	}
	return nil
}

// Listed is a complete cut of a directory.
type Listed struct {
	Step int64  `json:"step"`
	Why  string `json:"why"` // what is wrong with its manifest, or the sizes of its parts; "" if nothing is
	// Superseded says that the job has gone back behind it, and has written others since.
	Superseded bool `json:"superseded,omitempty"`
}

// List returns the complete cuts of a directory, in ascending order of their steps. It reads no
// rows: Verify does.
func List(dir string) ([]Listed, error) {
	steps, err := complete(dir)
	if err != nil {
		return nil, argument("cannot read %s: %v", dir, err)
	}
	all, err := manifests(dir)
	if err != nil {
		return nil, err
	}
	behind := superseded(all)
	list := make([]Listed, len(steps))
	for i, step := range steps {
		list[i].Step = step
		m, err := manifestOf(dir, step)
		if err == nil {
			list[i].Superseded = slices.Contains(behind, m.label())
			_, err = Open(dir, step)
		}
		if err != nil {
			list[i].Why = err.Error()
		}
	}
	return list, nil
}

// NewestWhole returns the step of the newest cut that right finds whole, and why newer ones are
// not; -1 if there is no complete cut. If none is whole, that is an error: to begin anew would hide
// the loss. Cuts that are superseded do not count.
func NewestWhole(dir string, list []Listed, right func(step int64) (damaged, err error)) (step int64, skipped []Listed, err error) {
	for _, one := range slices.Backward(list) {
		if one.Superseded {
			continue
		}
		if one.Why == "" {
			damaged, err := right(one.Step)
			if err != nil {
				return -1, nil, err
			}
			if damaged == nil {
				return one.Step, skipped, nil
			}
			one.Why = damaged.Error()
		}
		skipped = append(skipped, one)
	}
	if len(skipped) > 0 {
		return -1, nil, argument("of %d complete cuts in %s none is whole; the newest: %s", len(skipped), dir, skipped[0].Why)
	}
	return -1, nil, nil
}

// folders returns the steps whose folders dir has, in ascending order.
func folders(dir string) ([]int64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	var steps []int64
	for _, e := range entries {
		if name := folderPattern.FindStringSubmatch(e.Name()); name != nil {
			step, err := strconv.ParseInt(name[1], 10, 64)
			if err == nil && filepath.Base(folderOf(dir, step)) == e.Name() {
				steps = append(steps, step)
			}
		}
	}
	slices.Sort(steps)
	return steps, nil
}

// complete returns the steps whose folders have a manifest, in ascending order.
func complete(dir string) ([]int64, error) {
	steps, err := folders(dir)
	return slices.DeleteFunc(steps, func(step int64) bool { return !hasManifest(dir, step) }), err
}

func hasManifest(dir string, step int64) bool {
	_, err := os.Lstat(filepath.Join(folderOf(dir, step), manifestName))
	return err == nil
}

func refuseComplete(dir string, step int64) error {
	if _, err := Open(dir, step); err == nil {
		return argument("%s is complete, and cuts are not overwritten: remove it, or choose another step or directory", folderOf(dir, step))
	}
	return nil
}
