package coll

import (
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll/bounce"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// scattering begins a scatter of rows of so many bytes, from rank 0, on two ranks. row is what rank 1 is to get.
func scattering(t *testing.T, w *fakeWorld, row Part) (calls []*rankCall) {
	calls = w.calls(Args{Sig: Sig{Code: op.Scatter, DType: op.UInt8, Local: true, Count: row.Count, Agreed: Even | ForBounce | ForCMA}})
	for rank, s := range calls {
		own := s.tensor(make([]byte, row.Count))
		s.args.Recv = []Part{own.Part}
		if rank == 0 {
			s.args.Send = []Part{own.Part, row}
		}
		t.Cleanup(own.free)
		var p Program
		require.NoError(t, copiedByCMA.Begin(&s.args, &p))
	}
	return calls
}

// What a rank has read counts only if no member has given the call up meanwhile: such a member's tensor may hold something else by then.
func TestWhatWasReadFromAMemberThatGaveUp(t *testing.T) {
	w := newWorld(2)
	there := &present{}
	for rank := range 2 {
		w.bounce(rank).Presence = there
	}
	const bytes = 3 << 20
	row := newTensor(op.UInt8, make([]byte, bytes))
	defer row.free()
	for _, up := range []bool{false, true} {
		if up {
			there.gaveUp = 7
		}
		calls := scattering(t, w, row.Part)
		a := &calls[1].args
		a.Seq = 7
		state, err := calls[0].args.RunRounds(1000, 0)
		require.NoError(t, err)
		require.Equal(t, bounce.Moving, state)
		for range 2 {
			state, err = a.RunRounds(1000, 0)
			require.NoError(t, err)
			require.Equal(t, map[bool]bounce.State{false: bounce.Done, true: bounce.Pending}[up], state)
		}
		if !up {
			state, err = calls[0].args.RunRounds(1000, 0)
			require.NoError(t, err)
			require.Equal(t, bounce.Done, state)
		}
	}
}

// A member that gave the call up may have freed its tensor, too. Else this is an error.
func TestATensorThatCannotBeRead(t *testing.T) {
	w := newWorld(2)
	there := &present{}
	w.bounce(1).Presence = there
	const bytes = 1 << 20
	closed, err := syscall.Mmap(-1, 0, bytes, syscall.PROT_NONE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, syscall.Munmap(closed)) })
	calls := scattering(t, w, Part{Data: unsafe.Pointer(unsafe.SliceData(closed)), Count: bytes})
	_, err = calls[0].args.RunRounds(1000, 0)
	require.NoError(t, err)
	state, err := calls[1].args.RunRounds(1000, 0)
	assert.Equal(t, bounce.Unreadable, state)
	assert.Equal(t, &UnreadableTensor{0, syscall.EFAULT}, err)
	assert.ErrorContains(t, err, "bad address")
	there.gaveUp, calls[1].args.Seq = 1, 1
	state, err = calls[1].args.RunRounds(1000, 0)
	assert.NoError(t, err)
	assert.Equal(t, bounce.Pending, state)
}

// Which calls a rank lends its tensors to.
func TestMayLend(t *testing.T) {
	const long = leastForAll
	w := newWorld(3)
	pair := newWorld(2)
	for _, b := range []*Bounce{w.bounce(0), pair.bounce(0)} {
		b.reads.Store(true)
	}
	x := newTensor(op.UInt8, make([]byte, 6*long))
	y := newTensor(op.UInt8, make([]byte, 6*long))
	defer x.free()
	defer y.free()
	part := func(of *tensor, from, n int64) Part { return Part{Data: unsafe.Add(of.Data, from), Count: n} }
	whole := func(n int64) []Part { return []Part{part(x, 0, n)} }
	result := func(n int64) []Part { return []Part{part(y, 0, n)} }
	for _, c := range []struct {
		what  string
		world *fakeWorld
		code  op.Code
		send  []Part
		recv  []Part
		flags arrive.Flags
		want  bool
	}{
		{"long rows", w, op.AllToAll, whole(3 * leastByCMA), result(3 * leastByCMA), 0, true},
		{"short rows", w, op.AllToAll, whole(3*leastByCMA - 3), result(3*leastByCMA - 3), 0, false},
		{"one long row is sent", w, op.AllToAll, []Part{part(x, 0, 1), part(x, 1, leastByCMA), part(x, long, 0)}, []Part{part(y, 0, 1), part(y, 1, 1), part(y, 2, 1)}, 0, true},
		{"one long row comes", w, op.AllToAll, []Part{part(x, 0, 1), part(x, 1, 1), part(x, 2, 1)}, []Part{part(y, 0, 1), part(y, 1, 1), part(y, 2, leastByCMA)}, 0, true},
		{"rows overlap", w, op.AllToAll, whole(3 * leastByCMA), whole(3 * leastByCMA), 0, false},
		{"with gaps", w, op.AllToAll, whole(3 * leastByCMA), result(3 * leastByCMA), Piecewise, false},
		{"on a device", w, op.AllToAll, whole(3 * leastByCMA), result(3 * leastByCMA), Device, false},
		{"the root's rows", w, op.Scatter, whole(3 * leastByCMA), result(leastByCMA), 0, true},
		{"short rows of the root", w, op.Scatter, whole(3*leastByCMA - 3), result(leastByCMA - 1), 0, false},
		{"an all_gather of three", w, op.AllGather, whole(long), result(3 * long), 0, false},
		{"an all_gather of two", pair, op.AllGather, whole(long), result(2 * long), 0, true},
		{"a short all_gather of two", pair, op.AllGather, whole(long - 1), result(2*long - 2), 0, false},
		{"a broadcast", w, op.Broadcast, nil, whole(long), 0, false},
		{"a reduction", w, op.ReduceScatter, whole(3 * long), result(long), 0, false},
	} {
		s := c.world.calls(Args{Sig: Sig{Code: c.code, DType: op.UInt8, Reduce: op.Sum, Local: true}})[0]
		s.args.Send, s.args.Recv = c.send, c.recv
		assert.Equal(t, c.want, MayUseCMA(&s.args, c.flags), c.what)
		s.args.Bounce = &Bounce{}
		assert.False(t, MayUseCMA(&s.args, c.flags), "%s, where this rank may not read", c.what)
	}
	forced, err := ParseForced("all_gather:cma")
	require.NoError(t, err)
	s := w.calls(Args{Sig: Sig{Code: op.AllGather, DType: op.UInt8, Local: true, Forced: forced}})[0]
	s.args.Send, s.args.Recv = whole(1), result(3)
	assert.True(t, MayUseCMA(&s.args, 0), "it is forced")
	s.args.Send, s.args.Recv = whole(0), result(0)
	assert.False(t, MayUseCMA(&s.args, 0), "there is nothing")
}
