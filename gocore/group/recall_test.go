package group

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// A call that repeats one that was checked has the result of its own tensor, also where only some members repeat.
func TestARepeatedCall(t *testing.T) {
	ranks(t, 3, nil, func(t *testing.T, _ *world.Env, g *Group) {
		for turn := range 20 {
			b := floats(float32(turn), float32(g.Rank))
			d := allReduce(b)
			if (turn+g.Rank)%4 == 0 {
				g.calls = checkedCalls{}
			}
			repeated := g.calls.find(d) != nil
			assert.Equal(t, turn > 0 && (turn+g.Rank)%4 != 0, repeated)
			_, err := submit(g, d)
			require.NoError(t, err)
			assert.Equal(t, []float32{float32(3 * turn), 3}, values(b))
			assert.Equal(t, "inline", g.Algorithm())
			mem.Free(b.Data)
		}
	})
}

// What differs from the call that was checked is checked.
func TestACallThatIsNotRepeated(t *testing.T) {
	ranks(t, 2, nil, func(t *testing.T, _ *world.Env, g *Group) {
		_, err := submit(g, allReduce(floats(1)))
		require.NoError(t, err)
		require.NotNil(t, g.calls.find(allReduce(floats(2))))
		for what, change := range map[string]func(d *op.Desc, b *op.Buf){
			"reduce op":   func(d *op.Desc, _ *op.Buf) { d.ReduceOp = op.Max },
			"factor":      func(d *op.Desc, _ *op.Buf) { d.Scale = 2 },
			"operation":   func(d *op.Desc, _ *op.Buf) { d.Code = op.Broadcast },
			"root":        func(d *op.Desc, _ *op.Buf) { d.Root = 0 },
			"dtype":       func(_ *op.Desc, b *op.Buf) { b.DType = op.Int32 },
			"length":      func(_ *op.Desc, b *op.Buf) { b.Count++ },
			"device":      func(_ *op.Desc, b *op.Buf) { b.DeviceType = op.DeviceCUDA },
			"no memory":   func(_ *op.Desc, b *op.Buf) { b.Data = nil },
			"strides":     func(_ *op.Desc, b *op.Buf) { b.Strides = b.Data },
			"two tensors": func(d *op.Desc, _ *op.Buf) { d.NRecv = 2 },
			"an input":    func(d *op.Desc, _ *op.Buf) { d.NSend, d.Send = 1, d.Recv },
		} {
			bufs := []op.Buf{floats(1, 2), floats(1, 2)}
			bufs[0].Count, bufs[1].Count = 1, 1
			d := desc(op.AllReduce, nil, bufs)
			d.NRecv, d.ReduceOp = 1, op.Sum
			change(d, &bufs[0])
			assert.Nil(t, g.calls.find(d), what)
		}
	})
}

// Members that repeat different calls get the same errors as others.
func TestRepeatedCallsThatDiffer(t *testing.T) {
	ranks(t, 2, nil, func(t *testing.T, _ *world.Env, g *Group) {
		calls := []*op.Desc{allReduce(floats(1)), allReduce(floats(1, 2))}
		for range 2 {
			for _, d := range calls {
				_, err := submit(g, d)
				require.NoError(t, err)
			}
		}
		_, err := submit(g, calls[g.Rank])
		assert.Equal(t, status.Mismatch, status.CodeOf(err))
		_, err = submit(g, calls[0])
		assert.NoError(t, err)
	})
}
