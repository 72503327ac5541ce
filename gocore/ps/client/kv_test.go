package client

import (
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/server"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// counting answers the calls of a KV on a server until the test ends: it adds rows up, and gives
// them. Command 13 is an error.
func counting(t *testing.T, s *server.Server) {
	sums, stop, over := map[int64]float32{}, make(chan struct{}), make(chan struct{})
	t.Cleanup(func() {
		close(stop)
		<-over
	})
	go func() {
		defer close(over)
		for {
			c, err := s.Calls.Next(stop)
			if c == nil || err != nil {
				return
			}
			keys, values := make([]int64, c.Keys), make([]float32, c.Keys*dim)
			rows := &op.Buf{Data: unsafe.Pointer(&values[0]), Count: int64(len(values)), DType: op.Float32}
			pushed, pulled := rows, rows
			if !c.Push {
				pushed = nil
			}
			if !c.Pull {
				pulled = nil
			}
			assert.NoError(t, s.Calls.Take(c.Number, &op.Buf{Data: unsafe.Pointer(&keys[0]), Count: c.Keys, DType: op.Int64}, pushed))
			if c.Command == 13 {
				assert.NoError(t, s.Calls.Finish(c.Number, nil, status.New(status.Refused, "KeyError: 13").WithRanks(10+s.Index)))
				continue
			}
			for i, key := range keys {
				if c.Push {
					sums[key] += values[i*dim]
				}
				values[i*dim], values[i*dim+1] = sums[key], float32(key)
			}
			assert.NoError(t, s.Calls.Finish(c.Number, pulled, nil))
		}
	}()
}

// newKV makes a trainer whose servers have functions.
func newKV(t *testing.T) *trainer {
	servers := newServers(t, false, 0)
	one := newTrainer(t, 0, servers, nil)
	for _, s := range servers {
		counting(t, s)
	}
	return one
}

// started starts a call.
func (one *trainer) started(c KVCall) int64 {
	one.Helper()
	timestamp, err := one.kv.Start(&c)
	require.NoError(one, err)
	return timestamp
}

func TestCallsOfAKV(t *testing.T) {
	one := newKV(t)
	one.started(KVCall{Keys: idsOf(t, 5, 6, 7, 8), Rows: floats(t, 1, 0, 2, 0, 3, 0, 4, 0)})
	both := one.started(KVCall{Keys: idsOf(t, 8, 5), Rows: floats(t, 10, 0, 10, 0), Pull: true})
	some := one.started(KVCall{Keys: idsOf(t, 6, 7, 6), Pull: true})
	out := floats(t, make([]float32, 6)...)
	require.NoError(t, one.kv.Wait(some, out))
	assert.Equal(t, []float32{2, 6, 3, 7, 2, 6}, valuesOf(out))
	out = floats(t, make([]float32, 4)...)
	require.NoError(t, one.kv.Wait(both, out))
	assert.Equal(t, []float32{14, 8, 11, 5}, valuesOf(out))
	assert.ErrorContains(t, one.kv.Wait(both, out), "somebody has waited for them before")
	require.NoError(t, one.kv.Wait(1, nil), "a push that has ended well")
	failed, err := one.Settle()
	assert.NoError(t, failed)
	assert.NoError(t, err)
}

func TestACallOfAKVThatFails(t *testing.T) {
	for name, c := range map[string]struct {
		fate    fate
		command int64
		code    status.Code
		text    string
	}{
		"the function raises":    {well, 13, status.Refused, "KeyError: 13"},
		"the request is lost":    {lost, 0, status.Timeout, "its answer has not come by the deadline"},
		"the answer is lost":     {unheard, 0, status.Timeout, "its answer has not come by the deadline"},
		"the answer comes later": {late, 0, status.OK, ""},
		"it comes twice":         {twice, 0, status.OK, ""}, // the function is called twice
	} {
		t.Run(name, func(t *testing.T) {
			one := newKV(t)
			for _, end := range one.link.ends {
				end.next(c.fate)
			}
			if c.code == status.Timeout {
				one.timeout = short
			}
			timestamp := one.started(KVCall{Keys: idsOf(t, 5, 6, 7, 8), Pull: true, Command: c.command})
			failed, err := one.Settle()
			require.NoError(t, err)
			assert.Equal(t, c.code, status.CodeOf(failed))
			out := floats(t, make([]float32, 8)...)
			err = one.kv.Wait(timestamp, out)
			assert.Equal(t, c.code, status.CodeOf(err))
			if c.code == status.OK {
				assert.Equal(t, []float32{0, 5, 0, 6, 0, 7, 0, 8}, valuesOf(out))
				return
			}
			assert.ErrorContains(t, failed, "call 1 of KV \"kv\" has failed, and the program has not waited for it: ")
			assert.ErrorContains(t, failed, c.text)
			var e *status.Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, []int{10}, e.Ranks, "the first server that has an error")
			failed, err = one.Settle()
			assert.NoError(t, failed, "the program knows of it")
			assert.NoError(t, err)
		})
	}
}

// If one server cannot take its part, the caller gets the error. What others have got keeps its
// memory until they are done.
func TestACallOfAKVThatCannotBeSent(t *testing.T) {
	for _, f := range []fate{full, broken} {
		one := newKV(t)
		one.link.ends[0].next(late)
		one.link.ends[1].next(f)
		_, err := one.kv.Start(&KVCall{Keys: idsOf(t, 5, 6, 7, 8), Rows: floats(t, make([]float32, 8)...)})
		assert.ErrorContains(t, err, "the server on rank 11", f)
		assert.ErrorContains(t, one.kv.Wait(1, nil), "timestamp=1 is of no call")
		calls, _ := one.link.ends[1].called()
		assert.Zero(t, calls, f)
		assert.Eventually(t, func() bool {
			calls, waited := one.link.ends[0].called()
			return calls == 1 && waited == 1
		}, 10*time.Second, time.Millisecond, f)
	}
}

func TestWrongArgumentsOfCallsOfAKV(t *testing.T) {
	one := newKV(t)
	keys, rows := idsOf(t, 5, 6), floats(t, 1, 2, 3, 4)
	for text, c := range map[string]KVCall{
		"pull: keys of KV \"kv\" are of float32":                {Keys: rows, Pull: true},
		"push: 2 keys of KV \"kv\", of dim 2, need 4 elements":  {Keys: keys, Rows: floats(t, 1)},
		"push: rows of KV \"kv\" are of int64":                  {Keys: keys, Rows: keys},
		"push: keys of KV \"kv\" appear several times":          {Keys: idsOf(t, 5, 5), Rows: rows},
		"pull: out: 2 keys of KV \"kv\", of dim 2, need 4 elem": {Keys: keys, Pull: true, Room: floats(t, 1)},
	} {
		_, err := one.kv.Start(&c)
		assert.ErrorContains(t, err, text)
	}
	timestamp := one.started(KVCall{Keys: keys, Pull: true})
	other := &KV{Client: one.Client, IDs: one.kv.IDs, Name: "other", Dim: dim, DType: op.Float32}
	assert.ErrorContains(t, other.Wait(timestamp, rows), "is of a call of KV \"kv\", not \"other\"")
	assert.ErrorContains(t, one.kv.Wait(timestamp, nil), "there is no room for them")
	assert.ErrorContains(t, one.kv.Wait(timestamp, floats(t, 1)), "need 4 elements")
	assert.NoError(t, one.kv.Wait(timestamp, rows), "an error of the arguments leaves the rows")
	one.Complete()
	_, err := one.kv.Start(&KVCall{Keys: keys, Pull: true})
	assert.ErrorContains(t, err, "this trainer has completed")
}
