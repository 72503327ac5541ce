package group

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/trace"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// recorded returns the operations that a rank has recorded.
func recorded(t *testing.T, e *world.Env) []trace.OperationRecord {
	t.Helper()
	s, _, err := e.Recorder.Read(e.Topo.Rank)
	if !assert.NoError(t, err) {
		return nil
	}
	assert.Zero(t, s.Damaged)
	return s.Operations
}

func TestEveryOperationIsRecorded(t *testing.T) {
	everywhere(t, func(t *testing.T, n int, nodes []int) {
		ranks(t, n, nodes, func(t *testing.T, e *world.Env, g *Group) {
			_, err := submit(g, allReduce(floats(1, 2, 3)))
			assert.NoError(t, err)
			d := allReduce(floats(1))
			d.Flags = op.FlagAsync
			h, _, err := g.Submit(d, false)
			if !assert.NoError(t, err) {
				return
			}
			_, err = h.Wait(5*time.Second, nil)
			assert.NoError(t, err)
			_, err = submit(g, desc(op.AllReduce, nil, nil)) // no tensor: it is refused
			assert.Error(t, err)
			_, err = submit(g, allReduce(floats(4)))
			assert.NoError(t, err)

			list := recorded(t, e)
			var outcomes, codes []string
			var seqs []uint64
			for i, o := range list {
				if o.Refusing {
					assert.Greater(t, n, 1)
					continue
				}
				outcomes, codes = append(outcomes, *o.Outcome), append(codes, o.Operation)
				seqs = append(seqs, *o.Seq)
				assert.Equal(t, g.ID, o.Group)
				assert.NotNil(t, o.Algorithm)
				assert.LessOrEqual(t, o.Submitted, *o.Begun)
				assert.LessOrEqual(t, *o.Begun, *o.Ended)
				assert.Equal(t, i == 1, o.Async)
				if o.Async {
					assert.LessOrEqual(t, *o.Begun, *o.Arrived)
				}
			}
			assert.Equal(t, []string{"ok", "ok", "ok"}, outcomes)
			assert.Equal(t, []string{"all_reduce", "all_reduce", "all_reduce"}, codes)
			if n == 1 {
				assert.Equal(t, []uint64{1, 2, 3}, seqs) // a group of one refuses nothing
			} else {
				assert.Equal(t, []uint64{1, 2, 4}, seqs)
			}
			assert.Equal(t, int64(3), list[0].Count)
			assert.Equal(t, "SUM", *list[0].ReduceOp)
			assert.Equal(t, "float32", *list[0].DType)
		})
	})
}

func TestMessagesAreRecorded(t *testing.T) {
	ranks(t, 2, nil, func(t *testing.T, e *world.Env, g *Group) {
		d := desc(op.Send, []op.Buf{floats(1, 2)}, nil)
		if g.Rank == 1 {
			d = desc(op.Recv, nil, []op.Buf{floats(0, 0)})
		}
		d.Peer, d.Tag = int32(1-g.Rank), 7
		_, err := submit(g, d)
		assert.NoError(t, err)
		list := recorded(t, e)
		if !assert.Len(t, list, 1) {
			return
		}
		o := list[0]
		assert.True(t, o.Message)
		assert.Equal(t, []int32{int32(1 - g.Rank)}, o.Peers)
		assert.Equal(t, []int32{7}, o.Tags)
		assert.Equal(t, int64(2), o.Count)
		assert.Equal(t, "ok", *o.Outcome)
		assert.NotNil(t, o.Begun)
		assert.Nil(t, o.Seq)
	})
}

// A rank that waits has an operation under way that not all members have announced.
func TestOperationUnderWay(t *testing.T) {
	everywhere(t, func(t *testing.T, n int, nodes []int) {
		looked := make(chan struct{})
		ranks(t, n, nodes, func(t *testing.T, e *world.Env, g *Group) {
			if g.Rank > 0 {
				<-looked
				_, err := submit(g, allReduce(floats(1)))
				assert.NoError(t, err)
				return
			}
			if n == 1 {
				close(looked)
				return
			}
			d := allReduce(floats(1))
			d.Flags = op.FlagAsync
			h, _, err := g.Submit(d, false)
			assert.NoError(t, err)
			list := recorded(t, e)
			if assert.Len(t, list, 1) {
				o := list[0]
				assert.Nil(t, o.Ended)
				assert.Nil(t, o.Outcome)
				assert.Nil(t, o.Arrived)
				assert.Nil(t, o.Algorithm)
				assert.NotNil(t, o.Begun)
				assert.Equal(t, uint64(1), *o.Seq)
			}
			close(looked)
			_, err = h.Wait(5*time.Second, nil)
			assert.NoError(t, err)
		})
	})
}

// After a timeout the rank writes its own ring and that of the rank that never came.
func TestTraceIsWrittenAfterATimeout(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("PADDLEMPI_TRACE", folder)
	over := make(chan struct{})
	ranks(t, 3, nil, func(t *testing.T, e *world.Env, g *Group) {
		switch g.Rank {
		case 0:
			g.SetTimeout(50 * time.Millisecond)
			_, err := submit(g, allReduce(floats(1)))
			assert.Equal(t, status.Timeout, status.CodeOf(err))
			close(over)
		case 1:
			_, err := submit(g, allReduce(floats(1)))
			assert.Error(t, err)
		case 2:
			<-over
		}
	})
	for _, name := range []string{"rank-0.json", "rank-1.json", "rank-2.json"} {
		b, err := os.ReadFile(filepath.Join(folder, name))
		require.NoError(t, err)
		assert.True(t, json.Valid(b))
	}
}

// An error that concerns this rank only writes nothing.
func TestNoTraceAfterAWrongArgument(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("PADDLEMPI_TRACE", folder)
	ranks(t, 1, nil, func(t *testing.T, e *world.Env, g *Group) {
		_, err := submit(g, desc(op.AllReduce, nil, nil))
		assert.Error(t, err)
	})
	list, err := os.ReadDir(folder)
	require.NoError(t, err)
	assert.Empty(t, list)
}

// The first wait for an asynchronous operation is recorded, if that has not ended; a synchronous one has none.
func TestTheBeginOfAWaitIsRecorded(t *testing.T) {
	ranks(t, 2, nil, func(t *testing.T, e *world.Env, g *Group) {
		came := desc(op.Recv, nil, []op.Buf{floats(0, 0)})
		came.Peer, came.Flags = 1, op.FlagAsync
		sum := allReduce(floats(1))
		if g.Rank == 1 {
			time.Sleep(60 * time.Millisecond)
			sent := desc(op.Send, []op.Buf{floats(1, 2)}, nil)
			sent.Peer = 0
			for _, d := range []*op.Desc{sent, sum} {
				_, err := submit(g, d)
				assert.NoError(t, err)
			}
			for _, o := range recorded(t, e) {
				assert.Nil(t, o.Waited)
			}
			return
		}
		sum.Flags = op.FlagAsync
		for i, d := range []*op.Desc{came, sum} {
			h, _, err := g.Submit(d, false)
			assert.NoError(t, err)
			assert.Nil(t, recorded(t, e)[i].Waited)
			time.Sleep(10 * time.Millisecond)
			if i == 0 {
				_, err = h.Wait(time.Millisecond, nil)
				assert.Equal(t, status.NotReady, status.CodeOf(err))
				time.Sleep(10 * time.Millisecond)
			}
			_, err = h.Wait(5*time.Second, nil)
			assert.NoError(t, err)
		}
		list := recorded(t, e)
		if o := list[0]; assert.NotNil(t, o.Waited) {
			assert.InDelta(t, float64(10*time.Millisecond), float64(*o.Waited-o.Submitted), float64(8*time.Millisecond))
			assert.Less(t, *o.Waited, *o.Ended)
		}
		if o := list[1]; o.Waited != nil { // else it had ended before
			assert.Greater(t, *o.Waited-o.Submitted, int64(9*time.Millisecond))
			assert.LessOrEqual(t, *o.Waited, *o.Ended)
		}
	})
}
