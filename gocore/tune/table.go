package tune

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"math/bits"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/paddlempi/paddlempi/gocore/op"
)

// Format is the version of the format of a table.
const Format = 1

// The bounds of a table: what is beyond them is damaged.
const (
	MostBytes = 256 << 10 // of its text
	mostRows  = 1000
	mostName  = 64  // bytes of the name of a way
	mostTime  = 1e6 // seconds
)

// Table is what was measured of the ways of all ranks of a world: with which way a class begins. It is written by python -m paddlempi
// tune. Nil is a table without rows.
type Table struct {
	For  Fingerprint
	rows map[Class]row
}

// row is what a table knows of a class.
type row struct {
	ways  []string
	times []time.Duration // 0: it was not measured
	best  int
}

// Fingerprint says where the times of a table hold.
type Fingerprint struct {
	MPI     string `json:"mpi"`
	Version string `json:"version"`
	Fabric  string `json:"fabric"` // as far as it can be read
	CPU     string `json:"cpu"`
	Shape   string `json:"shape"` // nodes x ranks a node
}

// Name returns the name of the file of a table: what a user looks for, and a hash of everything.
func (f Fingerprint) Name() string {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%q", []string{f.MPI, f.Version, f.Fabric, f.CPU, f.Shape})
	plain := regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(f.MPI+" "+f.Shape), "-")
	return fmt.Sprintf("%s-%016x.json", strings.Trim(plain, "-"), h.Sum64())
}

// Differs returns what other does not have in common with f, in words; "" if they are equal.
func (f Fingerprint) Differs(other Fingerprint) string {
	var list []string
	for _, part := range []struct{ name, here, there string }{
		{"MPI", f.MPI, other.MPI}, {"version of MPI", f.Version, other.Version}, {"fabric", f.Fabric, other.Fabric}, {"CPU", f.CPU, other.CPU},
		{"shape", f.Shape, other.Shape},
	} {
		if part.here != part.there {
			list = append(list, fmt.Sprintf("its %s is %.100q, here it is %.100q", part.name, part.there, part.here))
		}
	}
	return strings.Join(list, "; ")
}

// file is the text of a table.
type file struct {
	Format int         `json:"format"`
	For    Fingerprint `json:"for"`
	Rows   []fileRow   `json:"rows"`
}

type fileRow struct {
	Operation string    `json:"operation"`
	Half      bool      `json:"half"`
	From      int64     `json:"from"` // bytes; the class ends below twice as many
	Best      string    `json:"best"`
	Ways      []string  `json:"ways"`
	Times     []float64 `json:"times"` // seconds; 0: not measured
}

// Decode reads the text of a table, which may come from anybody. It leaves out the rows of operations that it does not know.
func Decode(text []byte) (*Table, error) {
	if len(text) > MostBytes {
		return nil, fmt.Errorf("it has %d bytes, and a table has %d at most", len(text), MostBytes)
	}
	var f file
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, fmt.Errorf("it is no table: %w", err)
	}
	if f.Format != Format {
		return nil, fmt.Errorf("its format is %d, and this version of paddlempi reads %d", f.Format, Format)
	}
	if len(f.Rows) > mostRows {
		return nil, fmt.Errorf("it has %d rows, and a table has %d at most", len(f.Rows), mostRows)
	}
	t := &Table{For: f.For, rows: map[Class]row{}}
	for i, r := range f.Rows {
		code, known := codeOf(r.Operation)
		if !known {
			continue
		}
		made, err := r.read()
		if err != nil {
			return nil, fmt.Errorf("its row %d is wrong: %w", i, err)
		}
		of := ClassOf(code, r.Half, r.From)
		if _, twice := t.rows[of]; twice {
			return nil, fmt.Errorf("its row %d is there twice", i)
		}
		t.rows[of] = made
	}
	return t, nil
}

// read checks a row.
func (r *fileRow) read() (made row, err error) {
	switch made.best = slices.Index(r.Ways, r.Best); {
	case r.From < 1 || bits.OnesCount64(uint64(r.From)) != 1:
		return made, fmt.Errorf("from=%d is no power of two", r.From)
	case len(r.Ways) < 2 || len(r.Ways) > Most || len(r.Times) != len(r.Ways):
		return made, fmt.Errorf("%d ways and %d times", len(r.Ways), len(r.Times))
	case made.best < 0:
		return made, fmt.Errorf("the best way is none of its ways")
	}
	for i, way := range r.Ways {
		if way == "" || len(way) > mostName || slices.Contains(r.Ways[:i], way) {
			return made, fmt.Errorf("the name of way %d", i)
		}
		if s := r.Times[i]; !(s >= 0 && s <= mostTime) {
			return made, fmt.Errorf("the time of way %d", i)
		}
		made.times = append(made.times, time.Duration(math.Round(r.Times[i]*float64(time.Second))))
	}
	made.ways = r.Ways
	return made, nil
}

// codeOf finds an operation by its name.
func codeOf(name string) (op.Code, bool) {
	for c := op.Code(1); ; c++ {
		trait, ok := op.TraitOf(c)
		if !ok || trait.Name == name {
			return c, ok
		}
	}
}

// Rows returns how many rows there are. t may be nil.
func (t *Table) Rows() int {
	if t == nil {
		return 0
	}
	return len(t.rows)
}

// row returns what is known of a class that has these ways. t may be nil.
func (t *Table) row(of Class, ways []string) (row, bool) {
	if t == nil {
		return row{}, false
	}
	r, ok := t.rows[of]
	return r, ok && slices.Equal(r.ways, ways)
}
