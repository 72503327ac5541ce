package checkpoint

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// rows is a Source whose rows are functions of the id and the step.
type rows struct {
	name   string
	config string
	dtype  op.DType
	dim    int64
	state  int64
	step   int64
	ids    []int64
	err    error // of Read
	rate   *float64

	stamped bool   // its ids come and go
	sketch  []byte // of one server
}

func (r *rows) Name() string    { return r.name }
func (r *rows) Config() []byte  { return []byte(r.config) }
func (r *rows) DType() op.DType { return r.dtype }
func (r *rows) Dim() int64      { return r.dim }
func (r *rows) StateLen() int64 { return r.state }
func (r *rows) Steps() int64    { return r.step }

func (r *rows) LearningRate() *float64  { return r.rate }
func (r *rows) Stamped() bool           { return r.stamped }
func (r *rows) Sketch() ([]byte, error) { return r.sketch, nil }

func (r *rows) IDs(most int64, give func([]int64) error) error {
	for piece := range slices.Chunk(r.ids, int(most)) {
		if err := give(piece); err != nil {
			return err
		}
	}
	return nil
}

func (r *rows) Read(ids []int64, rows []byte, states []float32, stamps []int64) error {
	for i := range stamps {
		stamps[i] = r.stampOf(ids[i])
	}
	for i, id := range ids {
		row, state := r.of(id)
		copy(rows[i*len(row):], row)
		copy(states[i*len(state):], state)
	}
	return r.err
}

// of returns the row and the state of an id. The values are exact in 16 bits where id and step are
// small.
func (r *rows) of(id int64) (row []byte, state []float32) {
	for j := range r.dim {
		x := math.Float32bits(float32(id) + float32(j)/2 + float32(r.step))
		switch r.dtype {
		case op.Float32:
			row = binary.LittleEndian.AppendUint32(row, x)
		case op.BFloat16:
			row = binary.LittleEndian.AppendUint16(row, uint16(x>>16))
		default: // float16, of small integers and halves above 0
			e := x>>23&255 - 127 + 15
			row = binary.LittleEndian.AppendUint16(row, uint16(e<<10|x>>13&1023))
		}
	}
	for j := range r.state {
		state = append(state, float32(id)-float32(j)/4)
	}
	return row, state
}

func (r *rows) stampOf(id int64) int64 { return r.step - id*id%7 }

// got is a Sink that compares every row with what the source gave.
type got struct {
	sync.Mutex
	t      testing.TB
	of     map[string]*rows // any server's: its ids do not matter
	tables []Table
	ids    map[string][]int64
	err    error
	each   func(ids []int64) // hears of rows; nil: nobody does

	own, cap int64 // what Own returns, but for 1, and Cap of the stamped table
	sketches [][]byte
}

func (g *got) Own(int) int { return int(g.own) - 1 }

func (g *got) Cap(table int) int64 {
	if g.tables[table].Stamps {
		return g.cap
	}
	return 0
}

func (g *got) Sketch(table int, sketch []byte) error {
	g.sketches = append(g.sketches, sketch)
	if !g.of[g.tables[table].Name].stamped {
		return fmt.Errorf("table %d has other values: a sketch", table)
	}
	return nil
}

func (g *got) Begin(tables []Table) error {
	g.tables, g.ids = tables, map[string][]int64{}
	return nil
}

func (g *got) Rows(table int, ids []int64, values []byte, states []float32, stamps []int64) error {
	g.Lock()
	defer g.Unlock()
	if g.each != nil {
		g.each(ids)
	}
	name := g.tables[table].Name
	g.ids[name] = append(g.ids[name], ids...)
	for i, id := range ids {
		row, state := g.of[name].of(id)
		if stamps != nil != g.of[name].stamped || stamps != nil && stamps[i] != g.of[name].stampOf(id) {
			return fmt.Errorf("%s %d has other values: its stamp", name, id)
		}
		if !slices.Equal(row, values[i*len(row):][:len(row)]) || !slices.Equal(state, states[i*len(state):][:len(state)]) {
			return fmt.Errorf("%s %d has other values", name, id)
		}
	}
	return g.err
}

const adagrad = `{"dim":3,"dtype":"float32","seed":9,"num_ids":0,"memory_limit":0,"refuse":true,` +
	`"initializer":{"name":"normal","a":0,"b":0.5},"optimizer":{"name":"adagrad","learning_rate":0.25,"weight_decay":0,` +
	`"clip_value":null,"clip_norm":2,"momentum":0,"nesterov":false,"beta1":0,"beta2":0,"epsilon":1e-6,"initial_accumulator":0.5}}`

// sketchOf returns the sketch of a server: it is no multiple of 8 bytes long.
func sketchOf(server int) []byte { return bytes.Repeat([]byte{byte(server), 7, 200}, 9) }

// sources returns the tables of one of some servers. From step 100 on there is one whose ids come
// and go, and from 200 on that alone.
func sources(step int64, server, servers int) []Source {
	some := func(from, to int64) (ids []int64) {
		for id := from; id < to; id++ {
			if int((id+64)%int64(servers)) == server {
				ids = append(ids, id)
			}
		}
		return ids
	}
	small := strings.NewReplacer(`"dim":3`, `"dim":5`, "float32", "bfloat16", `"adagrad"`, `"row_wise_adagrad"`).Replace(adagrad)
	half := strings.NewReplacer(`"dim":3`, `"dim":2`, "float32", "float16", `"adagrad"`, `"sgd"`).Replace(adagrad)
	dense := strings.NewReplacer(`"dim":3`, `"kind":"dense","dims":[3,5],"dim":8`, `"adagrad"`, `"sgd"`).Replace(adagrad)
	all := []Source{
		&rows{name: "user/emb", config: adagrad, dtype: op.Float32, dim: 3, state: 3, step: step, ids: some(-20, 13)},
		&rows{name: "item", config: small, dtype: op.BFloat16, dim: 5, state: 1, step: step, ids: some(0, 7)},
		&rows{name: "half", config: half, dtype: op.Float16, dim: 2, step: step, ids: some(1, 4)},
		&rows{name: "fc.weight", config: dense, dtype: op.Float32, dim: 8, step: step, ids: some(0, 2)},
	}
	if step >= 100 {
		all = append(all, &rows{name: "visits", config: half, dtype: op.Float16, dim: 3, state: 1, step: step, ids: some(1, 10), stamped: true, sketch: sketchOf(server)})
	}
	if step >= 200 {
		return all[4:]
	}
	return all
}

func write(t testing.TB, dir string, step int64, servers int) []ServerPart {
	t.Helper()
	parts := make([]ServerPart, servers)
	for server := range parts {
		part, err := WritePart(context.Background(), dir, step, server, servers, sources(step, server, servers), false, nil)
		require.NoError(t, err)
		// It travels as JSON.
		text, err := json.Marshal(part)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &parts[servers-1-server]))
	}
	return parts
}

func commit(t testing.TB, dir string, step int64, servers, keep int) *Manifest {
	t.Helper()
	require.NoError(t, Commit(context.Background(), dir, step, write(t, dir, step, servers), []byte("what else there is"), nil))
	old, err := Superfluous(listed(t, dir), step, keep, reading(dir))
	require.NoError(t, err)
	Remove(dir, old)
	m, err := Open(dir, step)
	require.NoError(t, err)
	return m
}

func listed(t testing.TB, dir string) []Listed {
	t.Helper()
	list, err := List(dir)
	require.NoError(t, err)
	return list
}

// reading reads cuts whole, as one server.
func reading(dir string) func(int64) (error, error) {
	var v Verifier
	return func(step int64) (error, error) { return v.Verify(context.Background(), dir, step, 0, 1, true) }
}

// newest opens the newest whole cut; nil: there is no complete one.
func newest(dir string) (*Manifest, error) {
	list, err := List(dir)
	if err != nil {
		return nil, err
	}
	step, _, err := NewestWhole(dir, list, reading(dir))
	if err != nil || step < 0 {
		return nil, err
	}
	return Open(dir, step)
}

// sink returns a Sink for the cut of a step.
func sink(t testing.TB, step int64) *got {
	g := &got{t: t, of: map[string]*rows{}}
	for _, s := range sources(step, 0, 1) {
		g.of[s.Name()] = s.(*rows)
	}
	return g
}

// whole fails unless a cut gives all rows, once.
func whole(t testing.TB, m *Manifest) {
	t.Helper()
	g := sink(t, m.Step)
	require.NoError(t, m.Restore(context.Background(), nil, g))
	for name, s := range g.of {
		ids := g.ids[name]
		slices.Sort(ids)
		require.Equal(t, s.ids, ids, name)
	}
}

func TestRestoreOntoAnyNumberOfServers(t *testing.T) {
	for _, from := range []int{1, 2, 5} {
		m := commit(t, t.TempDir(), 7, from, 0)
		assert.Equal(t, []byte("what else there is"), m.Extra)
		require.Len(t, m.Tables, 4)
		assert.Equal(t, []string{"fc.weight", "half", "item", "user/emb"}, []string{m.Tables[0].Name, m.Tables[1].Name, m.Tables[2].Name, m.Tables[3].Name})
		assert.EqualValues(t, 33, m.Tables[3].Rows)
		assert.EqualValues(t, 7, m.Tables[3].Steps)
		assert.JSONEq(t, adagrad, string(m.Tables[3].Config))
		whole(t, m)
		for _, to := range []int{1, 2, 3} {
			all := map[string][]int64{}
			for server := range to {
				g := sink(t, 7)
				require.NoError(t, m.Restore(context.Background(), func(table string, id int64) bool { return int((id+64+int64(len(table)))%int64(to)) == server }, g))
				for name, ids := range g.ids {
					for _, id := range ids {
						require.Equal(t, server, int((id+64+int64(len(name)))%int64(to)))
					}
					all[name] = append(all[name], ids...)
				}
			}
			for name, s := range sink(t, 7).of {
				slices.Sort(all[name])
				require.Equal(t, s.ids, all[name])
			}
		}
	}
}

// A chunk has at most chunkBytes, or one row.
func TestChunks(t *testing.T) {
	dir := t.TempDir()
	large := &rows{name: "large", config: "{}", dtype: op.Float32, dim: mostDim, state: 2 * mostDim, ids: []int64{5, -7, 9}}
	many := &rows{name: "many", config: "{}", dtype: op.BFloat16, dim: 1}
	for id := range int64(250_000) {
		many.ids = append(many.ids, id*id)
	}
	part, err := WritePart(context.Background(), dir, 0, 0, 1, []Source{large, many}, false, nil)
	require.NoError(t, err)
	assert.EqualValues(t, 3+3, part.Chunks)
	require.NoError(t, Commit(context.Background(), dir, 0, []ServerPart{part}, nil, nil))
	m, err := newest(dir)
	require.NoError(t, err)
	g := &got{t: t, of: map[string]*rows{"large": large, "many": many}}
	require.NoError(t, m.Restore(context.Background(), nil, g))
	slices.Sort(large.ids)
	for _, ids := range g.ids {
		slices.Sort(ids) // chunks come in any order
	}
	assert.Equal(t, large.ids, g.ids["large"])
	assert.Equal(t, many.ids, g.ids["many"])
}

// A server does not read rows of which none is its own: here they cannot be read.
func TestRowsOfOthersAreNotRead(t *testing.T) {
	m := commit(t, t.TempDir(), 1, 2, 0)
	path := filepath.Join(m.Folder, m.Parts[1].Name)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	b[headerBytes+8*1] ^= 1 // fc.weight has one id there
	require.NoError(t, os.WriteFile(path, b, 0o600))
	even := func(_ string, id int64) bool { return id%2 == 0 }
	require.NoError(t, m.Restore(context.Background(), even, sink(t, 1)))
	require.ErrorContains(t, m.Restore(context.Background(), nil, sink(t, 1)), "the checksum of the rows at byte 32 is wrong")
}

func TestErrorsOfOthersAreTheirs(t *testing.T) {
	dir, mine := t.TempDir(), status.New(status.NoMemory, "no memory for rows")
	bad := sources(1, 0, 1)
	bad[2].(*rows).err = mine
	_, err := WritePart(context.Background(), dir, 1, 0, 1, bad, false, nil)
	assert.Equal(t, mine, err)
	left, err := os.ReadDir(folderOf(dir, 1))
	require.NoError(t, err)
	assert.Empty(t, left)
	g := sink(t, 2)
	g.err = mine
	assert.Equal(t, error(mine), commit(t, dir, 2, 1, 0).Restore(context.Background(), nil, g))
}

func TestArguments(t *testing.T) {
	dir := t.TempDir()
	source := func(change func(*rows)) []Source {
		r := &rows{name: "a", config: "{}", dtype: op.Float32, dim: 1}
		change(r)
		return []Source{r}
	}
	for want, of := range map[string][]Source{
		"a table's name has 0 bytes":     source(func(r *rows) { r.name = "" }),
		"or is not UTF-8":                source(func(r *rows) { r.name = "\xff" }),
		"has dtype \"int64\"":            source(func(r *rows) { r.dtype = op.Int64 }),
		"has dim 65537":                  source(func(r *rows) { r.dim = 65537 }),
		"states of -1 floats":            source(func(r *rows) { r.state = -1 }),
		"-2 steps":                       source(func(r *rows) { r.step = -2 }),
		"the config of table \"a\" is":   source(func(r *rows) { r.config = "{" }),
		"two tables have the name \"a\"": append(source(func(*rows) {}), source(func(*rows) {})...),
	} {
		_, err := WritePart(context.Background(), dir, 1, 0, 1, of, false, nil)
		require.ErrorContains(t, err, want)
		assert.Equal(t, status.Argument, status.CodeOf(err))
	}
	for _, numbers := range [][2]int{{0, 0}, {2, 2}, {-1, 1}, {0, MostServers + 1}} {
		_, err := WritePart(context.Background(), dir, 1, numbers[0], numbers[1], nil, false, nil)
		require.ErrorContains(t, err, "server=")
	}
	_, err := WritePart(context.Background(), dir, -1, 0, 1, nil, false, nil)
	require.ErrorContains(t, err, "step=-1 is below 0")
	require.ErrorContains(t, Commit(context.Background(), dir, 1, write(t, dir, 1, 1), make([]byte, MostManifest), nil), "give fewer bytes in extra")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, entries, 1)
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = WritePart(context.Background(), file, 1, 0, 1, nil, false, nil)
	require.ErrorContains(t, err, "cannot make "+file)
	_, err = newest(file)
	require.ErrorContains(t, err, "cannot read "+file)
}

func TestCommitWantsOnePartOfEveryServer(t *testing.T) {
	dir := t.TempDir()
	for want, change := range map[string]func(p []ServerPart) []ServerPart{
		"0 parts":                    func(p []ServerPart) []ServerPart { return nil },
		"a part is of server 1 of 2": func(p []ServerPart) []ServerPart { return p[:1] },
		"of server 1 of 2 and of":    func(p []ServerPart) []ServerPart { return []ServerPart{p[0], p[0]} },
		"and of step 4":              func(p []ServerPart) []ServerPart { p[0].Step = 4; return p },
		"of server 2 of 2":           func(p []ServerPart) []ServerPart { p[0].Server = 2; return p },
		"of server -1 of 2":          func(p []ServerPart) []ServerPart { p[0].Server = -1; return p },
		"which is no name of a part": func(p []ServerPart) []ServerPart { p[0].File = "../" + p[0].File; return p },
		"no such file": func(p []ServerPart) []ServerPart {
			p[0].File = p[0].File[:len(p[0].File)-16] + strings.Repeat("0", 16)
			return p
		},
		"bytes; it was written with": func(p []ServerPart) []ServerPart { p[0].Bytes++; return p },
		"chunks and rows":            func(p []ServerPart) []ServerPart { p[0].Chunks = p[0].Bytes; return p },
		"server 0 has 3 tables":      func(p []ServerPart) []ServerPart { p[1].Tables = p[1].Tables[1:]; return p },
		"the tables of the servers":  func(p []ServerPart) []ServerPart { p[1].Tables[0].Config = json.RawMessage("{}"); return p },
		"rows of table \"item\" in":  func(p []ServerPart) []ServerPart { p[1].Tables[2].Rows = p[1].Bytes; return p },
		"has dim 0":                  func(p []ServerPart) []ServerPart { p[0].Tables[0].Dim, p[1].Tables[0].Dim = 0, 0; return p },
		"are not in the order of":    func(p []ServerPart) []ServerPart { p[0].Tables[0].Name, p[1].Tables[0].Name = "z", "z"; return p },
	} {
		err := Commit(context.Background(), dir, 3, change(write(t, dir, 3, 2)), nil, nil)
		require.ErrorContains(t, err, want)
		assert.Equal(t, status.Argument, status.CodeOf(err))
		m, err := newest(dir)
		require.NoError(t, err)
		assert.Nil(t, m)
	}
}

// The manifest of 65,536 tables, and of what a program adds, is 50 MB long. This is a third of it.
func TestACutOfManyTables(t *testing.T) {
	dir := t.TempDir()
	config := `{"x":"` + strings.Repeat("x", 500) + `"}` // is as long as that of a table with Adam
	list := make([]Source, MostTables/2)
	for i := range list {
		list[i] = &rows{name: fmt.Sprintf("table %05d", i), config: config, dtype: op.Float32, dim: 1}
	}
	part, err := WritePart(context.Background(), dir, 1, 0, 1, list, false, nil)
	require.NoError(t, err)
	require.NoError(t, Commit(context.Background(), dir, 1, []ServerPart{part}, nil, nil))
	m, err := Open(dir, 1)
	require.NoError(t, err)
	assert.Len(t, m.Tables, len(list))
}

func TestACompleteCutIsNotOverwritten(t *testing.T) {
	dir := t.TempDir()
	again := write(t, dir, 3, 2)
	m := commit(t, dir, 3, 1, 0)
	_, err := WritePart(context.Background(), dir, 3, 0, 1, sources(3, 0, 1), false, nil)
	require.ErrorContains(t, err, "is complete, and cuts are not overwritten")
	require.ErrorContains(t, Commit(context.Background(), dir, 3, again, nil, nil), "is complete, and cuts are not overwritten")
	whole(t, m)
	// Only what the manifest names is left.
	left, err := os.ReadDir(m.Folder)
	require.NoError(t, err)
	assert.Len(t, left, 2)
}

func TestOlderCutsGo(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "there")
	latest := func() (steps []int64) {
		t.Helper()
		steps, err := folders(dir)
		require.NoError(t, err)
		return steps
	}
	for step := range int64(5) {
		commit(t, dir, step*10, 1, 3)
	}
	assert.Equal(t, []int64{20, 30, 40}, latest())
	write(t, dir, 35, 2) // its servers died
	write(t, dir, 45, 2)
	foreign := filepath.Join(folderOf(dir, 20), "notes.txt")
	require.NoError(t, os.WriteFile(foreign, nil, 0o600))
	commit(t, dir, 42, 2, 2)
	assert.Equal(t, []int64{20, 40, 42, 45}, latest())
	assert.FileExists(t, foreign)
	left, err := os.ReadDir(filepath.Dir(foreign))
	require.NoError(t, err)
	assert.Len(t, left, 1)
	// A smaller step than those there: it stays, and the greatest of the others.
	commit(t, dir, 7, 2, 2)
	m, err := newest(dir)
	require.NoError(t, err)
	assert.EqualValues(t, 42, m.Step)
	commit(t, dir, 45, 1, 1)
	m, err = newest(dir)
	require.NoError(t, err)
	assert.EqualValues(t, 45, m.Step)
	assert.Equal(t, []int64{20, 45}, latest())
	whole(t, m)
}

func TestLatestOfNothing(t *testing.T) {
	for _, dir := range []string{t.TempDir(), filepath.Join(t.TempDir(), "missing")} {
		m, err := newest(dir)
		require.NoError(t, err)
		assert.Nil(t, m)
	}
	_, err := Open(t.TempDir(), 3)
	require.ErrorContains(t, err, "cut-00000003 is no whole cut")
	assert.False(t, errors.Is(err, os.ErrNotExist)) // a *status.Error
}

var update = flag.Bool("update", false, "write testdata/golden anew")

// The formats stay: testdata/golden and testdata/golden-stamped are read, and what is written now has
// the same bytes. Python's tests read them too.
func TestGolden(t *testing.T) {
	for step, name := range map[int64]string{42: "golden", 142: "golden-stamped"} {
		t.Run(name, func(t *testing.T) { stays(t, filepath.Join("testdata", name), step) })
	}
}

func stays(t *testing.T, golden string, step int64) {
	if *update {
		require.NoError(t, os.RemoveAll(golden))
		commit(t, golden, step, 2, 0)
	}
	m, err := newest(golden)
	require.NoError(t, err)
	whole(t, m)
	now := commit(t, t.TempDir(), step, 2, 0)
	for i := range m.Parts {
		then, err := os.ReadFile(filepath.Join(m.Folder, m.Parts[i].Name))
		require.NoError(t, err)
		b, err := os.ReadFile(filepath.Join(now.Folder, now.Parts[i].Name))
		require.NoError(t, err)
		assert.Equal(t, then, b)
		now.Parts[i].Name = m.Parts[i].Name
	}
	now.Folder = m.Folder
	assert.Equal(t, m, now)
}

// stopping is a Source whose caller gives up after some chunks were read.
type stopping struct {
	*rows
	after int
	stop  func()
}

func (s *stopping) Read(ids []int64, rows []byte, states []float32, stamps []int64) error {
	if s.after--; s.after == 0 {
		s.stop()
	}
	return s.rows.Read(ids, rows, states, stamps)
}

func TestWhoeverGivesUpLeavesTheLastCutWhole(t *testing.T) {
	large := &rows{name: "large", config: "{}", dtype: op.Float32, dim: 1 << 16, step: 1}
	for id := range int64(100) { // a chunk has three of such rows
		large.ids = append(large.ids, id)
	}
	dir := t.TempDir()
	part, err := WritePart(context.Background(), dir, 1, 0, 1, []Source{large}, false, nil)
	require.NoError(t, err)
	require.NoError(t, Commit(context.Background(), dir, 1, []ServerPart{part}, nil, nil))

	for after, want := range map[int]status.Code{1: status.Interrupted, 5: status.Interrupted, 34: status.Interrupted, 0: status.Timeout} {
		ctx, stop := context.WithCancel(context.Background())
		if after == 0 {
			ctx, stop = context.WithTimeout(context.Background(), 0)
		}
		defer stop()
		given := &stopping{large, after, stop}
		_, err := WritePart(ctx, dir, 2, 0, 1, []Source{given}, false, nil)
		require.Equal(t, want, status.CodeOf(err), "after %d of 34 chunks: %v", after, err)
		require.ErrorContains(t, err, "complete cuts are as they were")
		require.Zero(t, given.after, "it goes on after its caller")
		files, err := os.ReadDir(folderOf(dir, 2))
		require.NoError(t, err)
		require.Empty(t, files)
	}
	m, err := newest(dir)
	require.NoError(t, err)
	require.EqualValues(t, 1, m.Step)
	g := &got{t: t, of: map[string]*rows{"large": large}}
	require.NoError(t, m.Restore(context.Background(), nil, g))
	require.Len(t, g.ids["large"], 100)

	ctx, stop := context.WithCancel(context.Background())
	some := 0
	err = m.Restore(ctx, nil, &got{t: t, of: g.of, each: func(ids []int64) { some += len(ids); stop() }})
	require.Equal(t, status.Interrupted, status.CodeOf(err))
	require.LessOrEqual(t, some, 3*mostReaders, "each goroutine ends its chunk")
}

// A cut says how far each server was, so that its reader can tell how far apart two cuts are.
func TestTheManifestHasEachServersVersion(t *testing.T) {
	dir := t.TempDir()
	parts := write(t, dir, 3, 2)
	for i := range parts {
		parts[i].Version = int64(100 + parts[i].Server)
	}
	require.NoError(t, Commit(context.Background(), dir, 3, parts, nil, nil))
	m, err := Open(dir, 3)
	require.NoError(t, err)
	assert.EqualValues(t, 100, m.Parts[0].Version)
	assert.EqualValues(t, 101, m.Parts[1].Version)
	parts = write(t, dir, 4, 2)
	parts[0].Version = -1
	require.ErrorContains(t, Commit(context.Background(), dir, 4, parts, nil, nil), "had applied -1 updates")
}
