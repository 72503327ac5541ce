package checkpoint

import (
	"encoding/json"
	"fmt"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/table"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// FromTable gives the rows of a table to a cut. config is kept with it; it is JSON with at least
// what encoding/json makes of table.Config, because Restore and Python's ps.load read that. rate is
// the learning rate that was set instead of the config's; nil: none.
func FromTable(name string, config []byte, t *table.Table, rate *float64) (Source, error) {
	dtype, state, err := shape(t)
	return &tableSource{name, config, t, dtype, state, rate}, err
}

type tableSource struct {
	name     string
	config   []byte
	table    *table.Table
	dtype    op.DType
	stateLen int64
	rate     *float64
}

// shape returns the dtype of rows, and the floats of a state.
func shape(t *table.Table) (op.DType, int64, error) {
	info, err := t.Info()
	if err != nil {
		return 0, 0, err
	}
	for _, d := range []op.DType{op.Float32, op.Float16, op.BFloat16} {
		if d.String() == t.DType {
			return d, info.StateBytes / 4, nil
		}
	}
	return 0, 0, status.New(status.Panic, "checkpoint: a table is of %s", t.DType)
}

func (s *tableSource) Name() string    { return s.name }
func (s *tableSource) Config() []byte  { return s.config }
func (s *tableSource) DType() op.DType { return s.dtype }
func (s *tableSource) Dim() int64      { return s.table.Dim }
func (s *tableSource) StateLen() int64 { return s.stateLen }
func (s *tableSource) Steps() int64    { return s.table.Steps() }

func (s *tableSource) LearningRate() *float64 { return s.rate }

func (s *tableSource) Stamped() bool { return s.table.ComeAndGo() }

func (s *tableSource) Sketch() ([]byte, error) { return s.table.Sketch() }

func (s *tableSource) IDs(most int64, give func([]int64) error) error {
	var room int64
	for {
		memory, err := mem.Alloc(8 * room)
		if err != nil {
			return status.New(status.NoMemory, "checkpoint: no memory for the list of %d ids of table %q", room, s.name)
		}
		n, err := s.table.IDs(&op.Buf{Data: memory, Count: room, DType: op.Int64, DeviceType: op.DeviceCPU})
		if err != nil || n <= room {
			defer mem.Free(memory)
			for ids := unsafe.Slice((*int64)(memory), n); err == nil && len(ids) > 0; {
				piece := min(int64(len(ids)), most)
				err = give(ids[:piece])
				ids = ids[piece:]
			}
			return err
		}
		mem.Free(memory)
		room = n
	}
}

func (s *tableSource) Read(ids []int64, rows []byte, states []float32, stamps []int64) error {
	return s.table.Read(batch(ids, rows, states, stamps, s.dtype))
}

func batch(ids []int64, rows []byte, states []float32, stamps []int64, dtype op.DType) table.Batch {
	buf := func(p unsafe.Pointer, n int, d op.DType) *op.Buf {
		return &op.Buf{Data: p, Count: int64(n), DType: d, DeviceType: op.DeviceCPU}
	}
	b := table.Batch{
		IDs:    buf(unsafe.Pointer(unsafe.SliceData(ids)), len(ids), op.Int64),
		Values: buf(unsafe.Pointer(unsafe.SliceData(rows)), len(rows)/int(itemBytes(dtype.String())), dtype),
		States: buf(unsafe.Pointer(unsafe.SliceData(states)), len(states), op.Float32),
	}
	if stamps != nil {
		b.Stamps = buf(unsafe.Pointer(unsafe.SliceData(stamps)), len(stamps), op.Int64)
	}
	return b
}

// Into is a table that takes rows of a cut. Config is what FromTable was given for it, or would be.
type Into struct {
	*table.Table
	Config []byte
}

// declared is what a config says of a table.
type declared struct {
	table.Config
	Kind string  `json:"kind"` // "": sparse
	Dims []int64 `json:"dims"` // of a dense parameter
	// Layout has the shapes of what lies in a dense parameter, as a text; "": a version of
	// paddlempi wrote it that did not note them, and its dims are a number of elements.
	Layout string `json:"layout"`
}

// shapesOf returns what two tables hold in their rows. It is the same text if one may be restored
// into the other.
func shapesOf(a, b *declared) (ofA, ofB string) {
	with := a.Layout != "" && b.Layout != "" || a.Kind != b.Kind
	return a.shape(with), b.shape(with)
}

func (d *declared) shape(withLayout bool) string {
	if d.Kind != "dense" {
		return "rows by id"
	}
	if withLayout && d.Layout != "" {
		return "a dense parameter of shape " + d.Layout
	}
	elements := int64(1)
	for _, n := range d.Dims {
		elements *= n
	}
	return fmt.Sprintf("a dense parameter of %d elements", elements)
}

// IntoTables puts the rows of a cut into those of the tables that are named; nil: all. With strict
// they must be those of the cut: the same names. Without it a table that is only in the cut is left
// out, and one that the cut does not have stays as it is. Rows of tables that are left out must not
// be given. Tables of both must have the same dim, dtype, optimizer, bias correction, initializer and
// seed, and be of the same kind and shape; learning rate and limits may differ. What they held before is removed.
// The tables are those of one server of some, which deal ids as those did that wrote as many parts.
func IntoTables(tables map[string]Into, named []string, strict bool, server, servers int) Sink {
	return &tableSink{of: tables, named: named, strict: strict, server: server, servers: servers}
}

type tableSink struct {
	server  int
	servers int
	of      map[string]Into
	named   []string
	strict  bool
	order   []*table.Table // that of the cut; nil: it is left out
	dtype   []op.DType
}

func (s *tableSink) Begin(tables []Table) error {
	for i := range tables {
		c := &tables[i]
		t, taken := s.of[c.Name]
		if !taken {
			if s.strict && s.named == nil {
				return argument("the cut has a table %q, which is not there now: declare it, restore another cut, or leave the table out (strict=False, or the names of the others as tables)", c.Name)
			}
			s.order, s.dtype = append(s.order, nil), append(s.dtype, 0)
			continue
		}
		dtype, stateLen, err := shape(t.Table)
		if err != nil {
			return err
		}
		var was, is declared
		if err := json.Unmarshal(c.Config, &was); err != nil {
			return argument("the config of table %q in the cut is not that of a table: %v", c.Name, err)
		}
		if err := json.Unmarshal(t.Config, &is); err != nil {
			return status.New(status.Panic, "checkpoint: the config of table %q now is not that of a table: %v", c.Name, err)
		}
		holds, takes := shapesOf(&was, &is)
		for _, now := range []struct {
			what     string
			cut, now any
		}{
			{"it", holds, takes},
			{"dim", c.Dim, t.Dim},
			{"dtype", c.DType, t.DType},
			{"optimizer", was.Optimizer.Name, t.Optimizer.Name},
			{"bias_correction", was.Optimizer.Correction(), t.Optimizer.Correction()},
			{"floats of a state", c.StateLen, stateLen},
			{"initializer", was.Initializer, t.Initializer},
			{"seed", was.Seed, t.Seed},
		} {
			if now.cut != now.now {
				return argument("table %q: %s is %v in the cut and %v now", c.Name, now.what, now.cut, now.now)
			}
		}
		s.order, s.dtype = append(s.order, t.Table), append(s.dtype, dtype)
	}
	for name := range s.of {
		if s.strict && !has(tables, name) {
			return argument("the cut has no table %q; it has %d tables. strict=False, or the names of the others as tables, leave this one as it is", name, len(tables))
		}
	}
	for i, t := range s.order {
		if t == nil {
			continue
		}
		if err := t.Clear(); err != nil {
			return err
		}
		t.SetSteps(tables[i].Steps)
	}
	return nil
}

func has(tables []Table, name string) bool {
	for i := range tables {
		if tables[i].Name == name {
			return true
		}
	}
	return false
}

func (s *tableSink) Own(parts int) int {
	if parts == s.servers {
		return s.server
	}
	return -1
}

func (s *tableSink) Cap(table int) int64 {
	if t := s.order[table]; t != nil {
		return t.MaxRows
	}
	return 0
}

func (s *tableSink) Rows(table int, ids []int64, rows []byte, states []float32, stamps []int64) error {
	t := s.order[table]
	if !t.ComeAndGo() {
		stamps = nil
	}
	return t.Write(batch(ids, rows, states, stamps, s.dtype[table]))
}

// Sketch adds the counts of a part to those of the table, if it counts ids now.
func (s *tableSink) Sketch(table int, sketch []byte) error {
	t := s.order[table]
	if t == nil || t.AdmitAfter <= 1 {
		return nil
	}
	return t.AddSketch(sketch)
}
