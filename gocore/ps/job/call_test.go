package job

import (
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/client"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// alone returns a process that is well and has no job.
func alone() *Process { return New(Core{Healthy: func() error { return nil }}) }

// newTable makes a table of rows of one float, by its method.
func newTable(t *testing.T, p *Process) int64 {
	t.Helper()
	reply, err := p.Methods()["table_new"]([]byte(`{"dim":1,"dtype":"float32","initializer":{"name":"zeros"},"optimizer":{"name":"sgd","learning_rate":1}}`), nil)
	require.NoError(t, err)
	id := reply.(map[string]any)["table"].(int64)
	t.Cleanup(func() { _, _ = p.tableFree([]byte(`{"table":1}`), nil) })
	return id
}

// oneID returns the tensors of a batch of one id.
func oneID(t *testing.T, id int64, value float32) (ids, values op.Buf) {
	t.Helper()
	room, err := mem.Alloc(16)
	require.NoError(t, err)
	t.Cleanup(func() { mem.Free(room) })
	*(*int64)(room), *(*float32)(unsafe.Add(room, 8)) = id, value
	return op.Buf{Data: room, Count: 1, DType: op.Int64, NDim: 1}, op.Buf{Data: unsafe.Add(room, 8), Count: 1, DType: op.Float32, NDim: 1}
}

func TestCallsOfATableOfThisProcess(t *testing.T) {
	p := alone()
	id := newTable(t, p)
	ids, values := oneID(t, 7, 2)
	value := (*float32)(values.Data)
	for _, one := range []struct {
		code  Code
		count int64
		value float32 // after the call
	}{
		{TableWrite, 0, 2},
		{TableLook, 0, 2},
		{TablePush, 0, 2}, // the row becomes 2 - 1 * 2
		{TablePull, 0, 0},
		{TableLookZeros, 0, 0},
		{TableRead, 0, 0},
		{TableIDs, 1, 0},
		{TableRemove, 1, 0},
		{TableRemove, 0, 0},
	} {
		count, err := p.Call([]TableOp{{Code: one.code, Table: id, IDs: ids, Values: values, Rate: math.NaN()}})
		require.NoError(t, err, one.code)
		assert.Equal(t, one.count, count, one.code)
		assert.Equal(t, one.value, *value, one.code)
	}
	assert.EqualValues(t, 7, *(*int64)(ids.Data))
}

func TestCallsOfWhatIsNotThere(t *testing.T) {
	p := alone()
	local := newTable(t, p)
	kv := p.tables.add(entry{kv: &client.KV{Name: "counts"}})
	remote := p.tables.add(entry{remote: &client.Table{Name: "users"}})
	for text, ops := range map[string][]TableOp{
		"there is no table 7000 (or it was closed)":             {{Code: TablePull, Table: 7000}},
		"code 90 is none of PMPI_TABLE_*":                       {{Code: 90, Table: local}},
		"code -1 is none of PMPI_TABLE_*":                       {{Code: -1, Table: local}},
		"ops[1] has code 2 and ops[0] has 1":                    {{Code: TablePull, Table: local}, {Code: TablePush, Table: local}},
		"2 is a KV, and code 1 is for a table":                  {{Code: TablePull, Table: kv}},
		"code 6 is for a KV, and 1 is none":                     {{Code: KVPush, Table: local}},
		"code 7 is for a KV, and 3 is none":                     {{Code: KVPull, Table: remote}},
		"tables of this process or tables of servers, not both": {{Code: TablePull, Table: local}, {Code: TablePull, Table: remote}},
		"a call takes one KV":                                   {{Code: KVPull, Table: kv}, {Code: KVPull, Table: kv}},
	} {
		_, err := p.Call(ops)
		assert.Equal(t, status.Argument, status.CodeOf(err), text)
		assert.ErrorContains(t, err, text)
	}
	for _, code := range []Code{KVTake, KVReply} {
		_, err := p.Call([]TableOp{{Code: code}})
		assert.Equal(t, status.NotInitialized, status.CodeOf(err), code)
	}
	_, err := p.tableInfo([]byte(`{"table":3}`), nil)
	assert.Equal(t, status.Unsupported, status.CodeOf(err))
}

// A client that has ended takes its tables and KVs with it, and those of others stay.
func TestTablesOfAClientAreForgotten(t *testing.T) {
	p, c := alone(), client.New(nil, 1, false, 0, nil)
	local := newTable(t, p)
	for _, gone := range []int64{p.tables.add(entry{kv: &client.KV{Client: c}}), p.tables.add(entry{remote: &client.Table{Client: c}})} {
		p.tables.forget(c)
		_, err := p.tables.find(gone)
		assert.ErrorContains(t, err, "it was closed")
	}
	_, err := p.tables.find(local)
	assert.NoError(t, err)
	other := p.tables.add(entry{kv: &client.KV{Client: client.New(nil, 1, false, 0, nil)}})
	p.tables.forget(c)
	_, err = p.tables.kv(KVPull, other)
	assert.NoError(t, err)
}

// After a panic of the core nothing is called any more.
func TestACoreThatIsPoisonedTakesNoCalls(t *testing.T) {
	why := status.New(status.Panic, "the core has panicked")
	p := New(Core{Healthy: func() error { return why }})
	_, err := p.Call([]TableOp{{Code: TablePull, Table: 1}})
	assert.Equal(t, why, err)
	for name, request := range map[string]string{"table_new": "{}", "ps_stats": "", "ps_barrier": "{}", "ps_serve": ""} {
		_, err := p.Methods()[name]([]byte(request), nil)
		assert.Equal(t, why, err, name)
	}
}

func TestErrorsOfDeathsAreCounted(t *testing.T) {
	p := alone()
	p.Told(status.New(status.PeerDied, "rank 2 died"))
	p.Told(status.New(status.Timeout, "late"))
	p.Told(nil)
	reply, err := p.Methods()["ps_close"](nil, nil)
	require.NoError(t, err)
	assert.Equal(t, map[string]any{"deaths": 1}, reply)
}
