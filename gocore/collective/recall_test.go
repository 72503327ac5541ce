package collective

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// allOf returns an all_reduce of one element in place, of a group of two.
func allOf(bufs []op.Buf) *op.Desc {
	return &op.Desc{Code: op.AllReduce, ReduceOp: op.Sum, Scale: 1, Root: -1, NRecv: 1, Recv: unsafe.Pointer(&bufs[0])}
}

// What differs from the call that was checked is checked.
func TestACallThatIsNotRepeated(t *testing.T) {
	x := make([]float32, 4)
	tensor := op.Buf{Data: unsafe.Pointer(&x[0]), Count: 1, DType: op.Float32, DeviceType: op.DeviceCPU}
	var calls checkedCalls
	d := allOf([]op.Buf{tensor})
	place, _, ok := callPlace(d)
	require.True(t, ok)
	g := &Group{Member: Member{Size: 2, Ranks: []int{0, 1}}}
	calls.kept[place].Store(&checkedCall{code: d.Code, reduce: d.ReduceOp, scale: 1, root: -1, tensor: tensor,
		found: request{g: g, args: coll.Args{Recv: make([]coll.Part, 1)}}})
	other := tensor
	other.Data = unsafe.Pointer(&x[2])
	repeated := allOf([]op.Buf{other})
	again, b := calls.find(repeated)
	require.NotNil(t, again)
	c := again.repeat(repeated, b)
	assert.Equal(t, []coll.Part{{Data: other.Data, Count: 1}}, c.args.Recv)
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
		bufs := []op.Buf{tensor, tensor}
		d := allOf(bufs)
		change(d, &bufs[0])
		found, _ := calls.find(d)
		assert.Nil(t, found, what)
	}
}

// A prepared operation knows its own memory.
func TestWhatAPreparedOperationKnows(t *testing.T) {
	x := make([]float32, 4)
	tensor := op.Buf{Data: unsafe.Pointer(&x[0]), Count: 1, DType: op.Float32, DeviceType: op.DeviceCPU}
	p := &Prepared{known: true, recvs: []op.Buf{tensor}}
	p.found.args.Code, p.found.args.Reduce, p.found.args.Scale = op.AllReduce, op.Sum, 1
	assert.True(t, p.knows(allOf([]op.Buf{tensor})))
	other := tensor
	other.Data = unsafe.Pointer(&x[2])
	assert.False(t, p.knows(allOf([]op.Buf{other})))
}
