package collective

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/op"
)

// A tensor that is not contiguous is packed on ranks that read it and unpacked on ranks that write
// it, and on no other rank.
func TestWhatIsStagedIsReadOrWritten(t *testing.T) {
	for rank := range 2 {
		g := &Group{Member: Member{Rank: rank, Size: 2, Ranks: []int{0, 1}}}
		shape, strides := []int64{2}, []int64{2}
		wide, short := make([]float32, 4), make([]float32, 4)
		of := func(n int64) []op.Buf {
			return []op.Buf{{Data: unsafe.Pointer(&short[0]), Count: n, DType: op.Float32, DeviceType: op.DeviceCPU}}
		}
		every := op.Buf{Data: unsafe.Pointer(&wide[0]), Count: 2, DType: op.Float32, DeviceType: op.DeviceCPU, NDim: 1,
			Shape: unsafe.Pointer(&shape[0]), Strides: unsafe.Pointer(&strides[0])}
		for _, c := range []struct {
			code    op.Code
			send    []op.Buf
			in, out [2]bool // by rank; rank 0 is the root
		}{
			{op.Broadcast, nil, [2]bool{true, false}, [2]bool{false, true}},
			{op.AllReduce, nil, [2]bool{true, true}, [2]bool{true, true}},
			{op.AllReduce, of(2), [2]bool{}, [2]bool{true, true}},
			{op.Scatter, of(4), [2]bool{}, [2]bool{true, true}},
			{op.Exscan, nil, [2]bool{true, true}, [2]bool{false, true}},
			{op.Exscan, of(2), [2]bool{}, [2]bool{false, true}},
		} {
			d := allOf([]op.Buf{every})
			if d.Code, d.Root = c.code, 0; c.send != nil {
				d.NSend, d.Send = 1, unsafe.Pointer(&c.send[0])
			}
			got := &collective{request: request{g: g}}
			trait := c.code.Trait()
			if assert.NoError(t, (checker{&got.request}).check(d, trait), c.code) && assert.Len(t, got.copies.staged, 1, c.code) {
				s := got.copies.staged[0]
				assert.Equal(t, c.in[g.Rank], s.In, "%s is packed on rank %d", c.code, g.Rank)
				assert.Equal(t, c.out[g.Rank], s.Out, "%s is unpacked on rank %d", c.code, g.Rank)
			}
			got.drop()
		}
	}
}
