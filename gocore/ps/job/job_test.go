package job

import (
	"encoding/json"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// member is one rank of a test. The ranks are goroutines, and each has a Process.
type member struct {
	*testing.T
	*Process
	rank int
	ends []func(bool) // of AtEnd
}

// reply calls a method and returns its reply.
func (m *member) reply(name, request string) (map[string]any, error) {
	got, err := m.Methods()[name]([]byte(request), nil)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(got)
	require.NoError(m, err)
	var reply map[string]any
	require.NoError(m, json.Unmarshal(text, &reply))
	return reply, nil
}

// ask calls a method that succeeds.
func (m *member) ask(name, request string) map[string]any {
	m.Helper()
	reply, err := m.reply(name, request)
	require.NoError(m, err, "rank %d: %s %s", m.rank, name, request)
	return reply
}

// ranks runs f on every rank of a fake world of one node.
func ranks(t *testing.T, n int, f func(m *member)) {
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("TMPDIR", t.TempDir())
	var all sync.WaitGroup
	for _, lib := range mpifake.New(n, mpifake.Nodes(make([]int, n))) {
		all.Add(1)
		go func(lib mpi.Library) {
			defer all.Done()
			e, err := world.NewEnv(mpifake.World(lib), 20*time.Second, nil)
			if !assert.NoError(t, err) {
				return
			}
			g, err := group.World(e, 0, 20*time.Second)
			if !assert.NoError(t, err) {
				return
			}
			m := &member{T: t, rank: g.Rank}
			m.Process = New(Core{
				Healthy: func() error { return nil },
				Group:   func(int64) (*group.Group, work.Interrupt, error) { return g, nil, nil },
				AtEnd: func(end func(bool)) func() {
					m.ends = append(m.ends, end)
					return func() { m.ends = nil }
				},
				Poison: func(why string) { t.Error(why) },
			})
			f(m)
			_, _ = e.Destroy()
		}(lib)
	}
	all.Wait()
}

// twoAndTwo begins a job whose ranks 0 and 2 are servers and 1 and 3 trainers.
func (m *member) twoAndTwo(mode string) (trains bool) {
	m.ask("ps_init", fmt.Sprintf(`{"roles":[["pserver"],["trainer"],["pserver"],["trainer"]],"mode":%q,"timeout":20,"functions":["kv"]}`, mode))
	return m.rank%2 == 1
}

// table declares a table of rows of one float.
func (m *member) table(name string) int64 {
	reply := m.ask("ps_declare", fmt.Sprintf(`{"name":%q,"dim":1,"initializer":{"name":"zeros"},"optimizer":{"name":"sgd","learning_rate":1}}`, name))
	return int64(reply["table"].(float64))
}

// row carries out a call for one row, and returns its value after it.
func (m *member) row(code Code, table, id int64, value float32) float32 {
	m.Helper()
	ids, values := oneID(m.T, id, value)
	_, err := m.Call([]TableOp{{Code: code, Table: table, IDs: ids, Values: values, Rate: math.NaN()}})
	require.NoError(m, err)
	return *(*float32)(values.Data)
}

// served is the end of a job: trainers complete, and servers then return.
func (m *member) served(trains bool) {
	if trains {
		assert.Equal(m, map[string]any{}, m.ask("ps_complete", ""))
		m.ask("ps_complete", "") // once is enough
	} else {
		m.ask("ps_serve", "")
	}
	assert.Equal(m, map[string]any{"deaths": 0.0}, m.ask("ps_close", ""))
	assert.Nil(m, m.ends)
	_, err := m.reply("ps_stats", "")
	assert.Equal(m, status.NotInitialized, status.CodeOf(err))
}

func TestAJob(t *testing.T) {
	ranks(t, 4, func(m *member) {
		trains := m.twoAndTwo("sync")
		_, err := m.reply("ps_init", `{"roles":[["pserver"],["trainer"],["pserver"],["trainer"]],"mode":"sync"}`)
		assert.Equal(m, status.AlreadyInitialized, status.CodeOf(err))
		if !trains {
			for _, name := range []string{"ps_barrier", "ps_last_push", "ps_refuse", "ps_learning_rate", "ps_save", "ps_restore", "ps_latest", "ps_declare", "ps_kv_declare", "ps_complete"} {
				_, err := m.reply(name, "{}")
				assert.ErrorContains(m, err, fmt.Sprintf("%s: rank %d is no trainer; trainers are ranks [1 3]", name, m.rank))
			}
			m.served(false)
			return
		}
		for _, name := range []string{"ps_serve", "ps_kv_next", "ps_kv_fail"} {
			_, err := m.reply(name, "{}")
			assert.ErrorContains(m, err, fmt.Sprintf("%s: rank %d is no server; servers are ranks [0 2]", name, m.rank))
		}
		table := m.table("t")
		m.row(TablePush, table, 7, float32(m.rank))
		assert.EqualValues(m, -4, m.row(TablePull, table, 7, 0), "a step is of all trainers")
		m.ask("ps_barrier", `{"name":"here"}`)
		m.ask("ps_learning_rate", `{"name":"t","rate":0.5}`)
		m.row(TablePush, table, 7, 1)
		assert.EqualValues(m, -5, m.row(TablePull, table, 7, 0))

		stats := m.ask("ps_stats", "")
		servers := stats["servers"].([]any)
		require.Len(m, servers, 2)
		for i, s := range servers {
			assert.EqualValues(m, 2*i, s.(map[string]any)["rank"])
			assert.EqualValues(m, 2, s.(map[string]any)["step"])
		}
		for text, o := range map[string]TableOp{
			"ps.save writes its rows, ps.export reads them":      {Code: TableRead},
			"push: step=3: the servers count the steps of table": {Code: TablePush, Step: 3},
			"the states of table \"t\" lie on the servers":       {Code: TablePull, States: op.Buf{DType: op.Float32}},
		} {
			o.Table = table
			o.IDs, o.Values = oneID(m.T, 7, 0)
			_, err := m.Call([]TableOp{o})
			assert.ErrorContains(m, err, text)
		}
		m.served(true)
		_, err = m.Call([]TableOp{{Code: TablePull, Table: table}})
		assert.ErrorContains(m, err, fmt.Sprintf("there is no table %d (or it was closed)", table))
	})
}

func TestAJobThatCannotBe(t *testing.T) {
	ranks(t, 2, func(m *member) {
		for text, request := range map[string]string{
			`mode="other" is none of`:                    `{"roles":[["pserver"],["trainer"]],"mode":"other"}`,
			"geo_step=0 is below 1":                      `{"roles":[["pserver"],["trainer"]],"mode":"geo"}`,
			"staleness=-1; it is from 0":                 `{"roles":[["pserver"],["trainer"]],"mode":"ssp","staleness":-1}`,
			"roles has 1 entries; the group has 2 ranks": `{"roles":[["pserver"]],"mode":"sync"}`,
			`rank 1 has the role "king"`:                 `{"roles":[["pserver"],["king"]],"mode":"sync"}`,
			"ranks 0 and 1 are masters":                  `{"roles":[["pserver","master"],["trainer","master"]],"mode":"sync"}`,
			"there are 2 trainers and 0 servers":         `{"roles":[["trainer"],["trainer"]],"mode":"sync"}`,
		} {
			_, err := m.reply("ps_init", request)
			assert.Equal(m, status.Argument, status.CodeOf(err))
			assert.ErrorContains(m, err, text)
		}
	})
}

// Functions of the servers' program answer the calls of a KV.
func TestAKVOfAJob(t *testing.T) {
	ranks(t, 4, func(m *member) {
		trains := m.twoAndTwo("async")
		if !trains {
			m.answerCalls()
			return
		}
		kv := int64(m.ask("ps_kv_declare", `{"name":"kv","dim":1,"dtype":"float32"}`)["table"].(float64))
		_, err := m.reply("ps_kv_declare", `{"name":"none","dim":1,"dtype":"float32"}`)
		assert.ErrorContains(m, err, "has no function of this name")
		_, err = m.reply("table_info", fmt.Sprintf(`{"table":%d}`, kv))
		assert.Equal(m, status.Unsupported, status.CodeOf(err))
		call := func(o TableOp) (int64, error) {
			o.Table = kv
			return m.Call([]TableOp{o})
		}
		for id := range int64(10) {
			keys, values := oneID(m.T, id, 5)
			timestamp, err := call(TableOp{Code: KVPushPull, IDs: keys, Values: values, Step: 4})
			require.NoError(m, err)
			_, room := oneID(m.T, 0, 0)
			_, err = call(TableOp{Code: KVWait, Values: room, Step: timestamp})
			require.NoError(m, err)
			assert.EqualValues(m, 20+float32(id), *(*float32)(room.Data), "command times value plus key")
		}
		keys, values := oneID(m.T, 3, 5)
		_, err = call(TableOp{Code: KVPush, IDs: keys, Values: values, Step: -1})
		require.NoError(m, err)
		timestamp, err := call(TableOp{Code: KVPull, IDs: keys, Step: -1})
		require.NoError(m, err)
		_, err = call(TableOp{Code: KVWait, Values: values, Step: timestamp})
		assert.Equal(m, status.Refused, status.CodeOf(err))
		assert.ErrorContains(m, err, "KeyError: -1")
		reply := m.ask("ps_complete", "")
		assert.Contains(m, reply["failed"].(map[string]any)["message"], "has failed, and the program has not waited for it: KeyError: -1")
		m.ask("ps_close", "")
	})
}

// answerCalls is the program of a server. It ends with the job.
func (m *member) answerCalls() {
	var over sync.WaitGroup
	over.Add(1)
	go func() {
		defer over.Done()
		for {
			c, err := m.reply("ps_kv_next", "")
			if err != nil || len(c) == 0 {
				return
			}
			number := int64(c["call"].(float64))
			ids, rows := oneID(m.T, 0, 0)
			take := TableOp{Code: KVTake, Step: number, IDs: ids}
			if c["push"].(bool) {
				take.Values = rows
			}
			_, err = m.Call([]TableOp{take})
			assert.NoError(m, err)
			command := float32(c["command"].(float64))
			if command < 0 {
				m.ask("ps_kv_fail", fmt.Sprintf(`{"call":%d,"message":"KeyError: %v"}`, number, command))
				continue
			}
			*(*float32)(rows.Data) = command**(*float32)(rows.Data) + float32(*(*int64)(ids.Data))
			_, err = m.Call([]TableOp{{Code: KVReply, Step: number, Values: rows}})
			assert.NoError(m, err)
		}
	}()
	m.ask("ps_serve", "")
	m.ask("ps_close", "")
	over.Wait()
}

// One trainer saves and restores for all, and all get the same answer.
func TestACutOfAJob(t *testing.T) {
	dir := t.TempDir()
	ranks(t, 4, func(m *member) {
		trains := m.twoAndTwo("sync")
		if !trains {
			m.served(false)
			return
		}
		table := m.table("t")
		assert.Equal(m, map[string]any{}, m.ask("ps_latest", fmt.Sprintf(`{"dir":%q}`, dir)))
		m.row(TablePush, table, 7, 1)
		m.ask("ps_save", fmt.Sprintf(`{"dir":%q,"step":5,"extra":"bW9kZWw="}`, dir))
		m.row(TablePush, table, 7, 1)
		assert.EqualValues(m, -4, m.row(TablePull, table, 7, 0))

		_, err := m.reply("ps_save", fmt.Sprintf(`{"dir":%q,"step":%d}`, dir, m.rank))
		assert.Equal(m, status.Mismatch, status.CodeOf(err), "they ask for different things: %v", err)
		_, err = m.reply("ps_save", fmt.Sprintf(`{"dir":%q,"step":6,"keep":-1}`, dir))
		assert.ErrorContains(m, err, "ps_save: keep=-1 is below 0")
		assert.Equal(m, map[string]any{"step": 5.0}, m.ask("ps_latest", fmt.Sprintf(`{"dir":%q}`, dir)))
		told := m.ask("ps_restore", fmt.Sprintf(`{"dir":%q}`, dir))
		assert.WithinDuration(m, time.Now(), time.UnixMilli(int64(1e3*told["time"].(float64))), time.Minute)
		delete(told, "time")
		assert.Equal(m, map[string]any{"step": 5.0, "extra": "bW9kZWw=", "rows": 1.0, "tables": []any{"t"}, "tasks": []any{}, "skipped": []any{}}, told)
		assert.EqualValues(m, -2, m.row(TablePull, table, 7, 0))
		_, err = m.reply("ps_restore", fmt.Sprintf(`{"dir":%q,"step":4}`, dir))
		assert.Equal(m, status.Argument, status.CodeOf(err))
		m.served(true)
	})
}
