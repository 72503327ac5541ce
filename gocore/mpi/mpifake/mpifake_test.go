package mpifake_test

import (
	"fmt"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

func ptr[T any](s []T) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(s)) }

func dtype(t *testing.T, lib mpi.Library, d op.DType) mpi.Datatype {
	x, ok := lib.TypeOf(d)
	require.True(t, ok, "TypeOf(%s)", d)
	return x
}

// do makes a call, blocking or not, and waits for its end.
func do(lib mpi.Library, c *mpi.Call, blocking bool) error {
	if blocking {
		return lib.Run(c, nil)
	}
	r, err := lib.Start(c)
	if err != nil {
		return err
	}
	for lib.Poll([]uintptr{r.Address()}) == 0 {
		time.Sleep(time.Millisecond)
	}
	defer lib.Release(r)
	return lib.Err(r)
}

// TestCollectives runs each collective for every size, blocking and nonblocking, and in place.
// Element i of rank r's vector is 100*r+i.
func TestCollectives(t *testing.T) {
	own := func(r, n int) []int32 {
		out := make([]int32, n)
		for i := range out {
			out[i] = int32(100*r + i)
		}
		return out
	}
	same := func(n int, v int32) []int32 {
		out := make([]int32, n)
		for i := range out {
			out[i] = v
		}
		return out
	}
	// ragged: in a v form rank r's part has r+1 elements.
	ragged := func(n int) (counts, displs []int32, total int) {
		for r := range n {
			counts, displs = append(counts, int32(r+1)), append(displs, int32(total))
			total += r + 1
		}
		return
	}
	for n := 1; n <= 4; n++ {
		counts, displs, total := ragged(n)
		var joined, joinedV []int32
		sum := make([]int32, n)
		for r := range n {
			joined = append(joined, own(r, 2)...)
			joinedV = append(joinedV, own(r, r+1)...)
			for i := range n {
				sum[i] += int32(100*r + i)
			}
		}
		root := n - 1
		// Each case fills in the call of rank r, and returns the result's memory and the expected
		// result.
		cases := map[mpi.Fn]func(r int, c *mpi.Call, inPlace bool) (got, want []int32){
			mpi.FnBarrier: func(int, *mpi.Call, bool) (got, want []int32) { return nil, nil },
			mpi.FnBcast: func(r int, c *mpi.Call, _ bool) (got, want []int32) {
				b := own(r, 3)
				c.RecvBuf, c.RecvCount = ptr(b), 3
				return b, own(root, 3)
			},
			mpi.FnAllreduce: func(r int, c *mpi.Call, in bool) (got, want []int32) {
				b := own(r, n)
				c.SendBuf, c.RecvBuf, c.RecvCount = ptr(own(r, n)), ptr(b), int64(n)
				return b, sum
			},
			mpi.FnReduce: func(r int, c *mpi.Call, in bool) (got, want []int32) {
				b := own(r, n)
				c.SendBuf, c.RecvBuf, c.RecvCount = ptr(own(r, n)), ptr(b), int64(n)
				if c.InPlace = in && r == root; r == root {
					return b, sum
				}
				return b, own(r, n)
			},
			mpi.FnAllgather: func(r int, c *mpi.Call, in bool) (got, want []int32) {
				b := same(2*n, -1)
				copy(b[2*r:], own(r, 2))
				c.SendBuf, c.SendCount, c.RecvBuf, c.RecvCount = ptr(own(r, 2)), 2, ptr(b), 2
				return b, joined
			},
			mpi.FnAllgatherv: func(r int, c *mpi.Call, in bool) (got, want []int32) {
				b := same(total, -1)
				copy(b[displs[r]:], own(r, r+1))
				c.SendBuf, c.SendCount, c.RecvBuf = ptr(own(r, r+1)), int64(r+1), ptr(b)
				c.RecvCounts, c.RecvDispls = ptr(counts), ptr(displs)
				return b, joinedV
			},
			mpi.FnGather: func(r int, c *mpi.Call, in bool) (got, want []int32) {
				c.SendBuf, c.SendCount = ptr(own(r, 2)), 2
				if c.InPlace = in && r == root; r != root {
					return nil, nil
				}
				b := same(2*n, -1)
				copy(b[2*r:], own(r, 2))
				c.RecvBuf, c.RecvCount = ptr(b), 2
				return b, joined
			},
			mpi.FnGatherv: func(r int, c *mpi.Call, in bool) (got, want []int32) {
				c.SendBuf, c.SendCount = ptr(own(r, r+1)), int64(r+1)
				if c.InPlace = in && r == root; r != root {
					return nil, nil
				}
				b := same(total, -1)
				copy(b[displs[r]:], own(r, r+1))
				c.RecvBuf, c.RecvCounts, c.RecvDispls = ptr(b), ptr(counts), ptr(displs)
				return b, joinedV
			},
			mpi.FnScatter: func(r int, c *mpi.Call, in bool) (got, want []int32) {
				b := own(r, 2)
				c.RecvBuf, c.RecvCount = ptr(b), 2
				if c.InPlace = in && r == root; r == root {
					c.SendBuf, c.SendCount = ptr(joined), 2
				}
				return b, own(r, 2)
			},
			mpi.FnScatterv: func(r int, c *mpi.Call, in bool) (got, want []int32) {
				b := own(r, r+1)
				c.RecvBuf, c.RecvCount = ptr(b), int64(r+1)
				if c.InPlace = in && r == root; r == root {
					c.SendBuf, c.SendCounts, c.SendDispls = ptr(joinedV), ptr(counts), ptr(displs)
				}
				return b, own(r, r+1)
			},
			mpi.FnReduceScatterBlock: func(r int, c *mpi.Call, in bool) (got, want []int32) {
				b := own(r, n)
				c.SendBuf, c.RecvBuf, c.RecvCount = ptr(own(r, n)), ptr(b), 1
				return b[:1], sum[r : r+1]
			},
			mpi.FnReduceScatter: func(r int, c *mpi.Call, in bool) (got, want []int32) {
				// All elements go to the last rank.
				all := same(n, 0)
				all[n-1] = int32(n)
				b := own(r, n)
				c.SendBuf, c.RecvBuf, c.RecvCounts = ptr(own(r, n)), ptr(b), ptr(all)
				if r == n-1 {
					return b, sum
				}
				return nil, nil
			},
			mpi.FnAlltoall: func(r int, c *mpi.Call, in bool) (got, want []int32) {
				b := own(r, n)
				c.SendBuf, c.SendCount, c.RecvBuf, c.RecvCount = ptr(own(r, n)), 1, ptr(b), 1
				for s := range n {
					want = append(want, int32(100*s+r))
				}
				return b, want
			},
			mpi.FnAlltoallv: func(r int, c *mpi.Call, in bool) (got, want []int32) {
				// Rank r sends one element to every rank, in reverse order.
				c1, back := same(n, 1), make([]int32, n)
				for i := range back {
					back[i] = int32(n - 1 - i)
				}
				b := own(r, n)
				c.SendBuf, c.SendCounts, c.SendDispls = ptr(own(r, n)), ptr(c1), ptr(back)
				c.RecvBuf, c.RecvCounts, c.RecvDispls = ptr(b), ptr(c1), ptr(back)
				want = make([]int32, n)
				for s := range n {
					want[n-1-s] = int32(100*s + n - 1 - r)
				}
				return b, want
			},
			mpi.FnScan: func(r int, c *mpi.Call, in bool) (got, want []int32) {
				b := own(r, 1)
				c.SendBuf, c.RecvBuf, c.RecvCount = ptr(own(r, 1)), ptr(b), 1
				return b, []int32{int32(100 * r * (r + 1) / 2)}
			},
			mpi.FnExscan: func(r int, c *mpi.Call, in bool) (got, want []int32) {
				b := own(r, 1)
				c.SendBuf, c.RecvBuf, c.RecvCount = ptr(own(r, 1)), ptr(b), 1
				return b, []int32{int32(100 * r * (r - 1) / 2)}
			},
		}
		for fn, fill := range cases {
			for _, blocking := range []bool{true, false} {
				for _, inPlace := range []bool{false, true} {
					t.Run(fmt.Sprintf("fn%d/n%d/blocking=%t/inplace=%t", fn, n, blocking, inPlace), func(t *testing.T) {
						require.NoError(t, mpifake.Each(mpifake.New(n), func(r int, lib mpi.Library) error {
							i32 := dtype(t, lib, op.Int32)
							sumOp, _ := lib.OpOf(op.Sum, op.Int32)
							c := &mpi.Call{Fn: fn, Comm: lib.World(), Peer: int32(root), Op: sumOp, SendType: i32, RecvType: i32, InPlace: inPlace}
							got, want := fill(r, c, inPlace)
							if c.InPlace && fn != mpi.FnScatter && fn != mpi.FnScatterv {
								c.SendBuf = nil
							}
							if err := do(lib, c, blocking); err != nil {
								return err
							}
							assert.Equal(t, want, got, "rank %d", r)
							return nil
						}))
					})
				}
			}
		}
	}
}

func TestReductionsCoverTheTable(t *testing.T) {
	lib := mpifake.New(1)[0]
	for d := op.Bool; d < op.NumDTypes; d++ {
		_, known := lib.TypeOf(d)
		for r := op.Sum; r < op.NumReduceOps; r++ {
			_, ok := lib.OpOf(r, d)
			want := known && op.Defined(r, d)
			assert.Equal(t, want, ok, "%s of %s", r, d)
		}
	}
}

func TestMismatchIsAnErrorOnEveryRank(t *testing.T) {
	x, y := []int32{1, 2}, []int32{0, 0}
	base := func(lib mpi.Library) *mpi.Call {
		i32, _ := lib.TypeOf(op.Int32)
		sum, _ := lib.OpOf(op.Sum, op.Int32)
		return &mpi.Call{Fn: mpi.FnBcast, Comm: lib.World(), Op: sum, SendType: i32, RecvType: i32,
			SendBuf: ptr(x), RecvBuf: ptr(y), SendCount: 1, RecvCount: 1}
	}
	for name, change := range map[string]func(c *mpi.Call) (blocking bool){
		"function": func(c *mpi.Call) bool { c.Fn = mpi.FnBarrier; return true },
		"root":     func(c *mpi.Call) bool { c.Peer = 1; return true },
		"count":    func(c *mpi.Call) bool { c.RecvCount = 2; return true },
		"blocking": func(c *mpi.Call) bool { return false },
	} {
		t.Run(name, func(t *testing.T) {
			failed := make([]error, 3)
			_ = mpifake.Each(mpifake.New(3), func(r int, lib mpi.Library) error {
				c, blocking := base(lib), true
				c.RecvBuf = ptr(make([]int32, 2))
				if r == 1 {
					blocking = change(c)
				}
				failed[r] = do(lib, c, blocking)
				return nil
			})
			for r, err := range failed {
				assert.Error(t, err, "rank %d", r)
			}
		})
	}
}

func TestAbsentRankIsNamed(t *testing.T) {
	libs := mpifake.New(2, mpifake.Patience(20*time.Millisecond))
	err := libs[0].Run(&mpi.Call{Fn: mpi.FnBarrier, Comm: libs[0].World()}, nil)
	assert.ErrorContains(t, err, "ranks [1] never came")
	// A rank that comes late gets the error, too.
	assert.ErrorContains(t, libs[1].Run(&mpi.Call{Fn: mpi.FnBarrier, Comm: libs[1].World()}, nil), "never came")
}

func TestMessages(t *testing.T) {
	libs := mpifake.New(2)
	a, b := libs[0], libs[1]
	send := func(lib mpi.Library, to, tag int32, data string) *mpi.Call {
		p := []byte(data)
		return &mpi.Call{Fn: mpi.FnSend, Comm: lib.World(), Peer: to, Tag: tag, SendBuf: ptr(p), SendCount: int64(len(p)), SendType: lib.Byte()}
	}
	recv := func(lib mpi.Library, from, tag int32, buf []byte) *mpi.Call {
		return &mpi.Call{Fn: mpi.FnRecv, Comm: lib.World(), Peer: from, Tag: tag, RecvBuf: ptr(buf), RecvCount: int64(len(buf)), RecvType: lib.Byte()}
	}

	t.Run("order and tags", func(t *testing.T) {
		for i, s := range []string{"one", "two", "three"} {
			require.NoError(t, a.Run(send(a, 1, int32(i%2), s), nil))
		}
		buf, st := make([]byte, 8), mpi.Status{}
		require.NoError(t, b.Run(recv(b, 0, 1, buf), &st))
		assert.Equal(t, "two", string(buf[:st.Bytes]))
		require.NoError(t, b.Run(recv(b, mpi.AnySource, mpi.AnyTag, buf), &st))
		assert.Equal(t, "one", string(buf[:st.Bytes]))
		assert.Equal(t, mpi.Status{Source: 0, Tag: 0, Bytes: 3}, st)
		require.NoError(t, b.Run(recv(b, 0, 0, buf), &st))
		assert.Equal(t, "three", string(buf[:st.Bytes]))
	})
	t.Run("to itself", func(t *testing.T) {
		require.NoError(t, a.Run(send(a, 0, 3, "self"), nil))
		buf := make([]byte, 4)
		require.NoError(t, a.Run(recv(a, 0, 3, buf), nil))
		assert.Equal(t, "self", string(buf))
	})
	t.Run("truncation", func(t *testing.T) {
		require.NoError(t, a.Run(send(a, 1, 0, "too long"), nil))
		err := b.Run(recv(b, 0, 0, make([]byte, 3)), nil)
		assert.Equal(t, status.Truncate, status.CodeOf(err))
	})
	t.Run("probe", func(t *testing.T) {
		_, found, err := b.Iprobe(b.World(), mpi.AnySource, mpi.AnyTag)
		require.NoError(t, err)
		assert.False(t, found)
		require.NoError(t, a.Run(send(a, 1, 7, "probed"), nil))
		st, found, err := b.Iprobe(b.World(), 0, 7)
		require.NoError(t, err)
		assert.True(t, found)
		assert.Equal(t, int64(6), st.Bytes)
		msg, _, found, err := b.Improbe(b.World(), mpi.AnySource, 7)
		require.NoError(t, err)
		require.True(t, found)
		_, found, _ = b.Iprobe(b.World(), 0, 7)
		assert.False(t, found, "Improbe takes the message")
		buf := make([]byte, 6)
		require.NoError(t, b.Run(&mpi.Call{Fn: mpi.FnMrecv, Message: msg, RecvBuf: ptr(buf), RecvCount: 6, RecvType: b.Byte()}, nil))
		assert.Equal(t, "probed", string(buf))
	})
	t.Run("a long send waits for its receiver", func(t *testing.T) {
		r, err := a.Start(send(a, 1, 0, string(make([]byte, 5000))))
		require.NoError(t, err)
		at := []uintptr{r.Address()}
		assert.Zero(t, a.Poll(at))
		require.NoError(t, b.Run(recv(b, 0, 0, make([]byte, 5000)), nil))
		assert.Equal(t, 1, a.Poll(at))
		assert.Zero(t, a.Poll(at), "a request becomes done once")
		a.Release(r)
	})
	t.Run("cancel", func(t *testing.T) {
		for _, sent := range []bool{false, true} {
			r, err := b.Start(recv(b, 0, 9, make([]byte, 1)))
			require.NoError(t, err)
			if sent {
				require.NoError(t, a.Run(send(a, 1, 9, "x"), nil))
			}
			assert.Panics(t, func() { b.Release(r) }, "outstanding")
			require.NoError(t, b.Cancel(r))
			require.Equal(t, 1, b.Poll([]uintptr{r.Address()}))
			assert.Equal(t, sent, r.Cancelled == 0)
			assert.NoError(t, b.Err(r))
			b.Release(r)
		}
	})
	t.Run("arguments", func(t *testing.T) {
		assert.Error(t, a.Run(send(a, 2, 0, "x"), nil), "rank")
		assert.Error(t, a.Run(send(a, 1, a.TagUB()+1, "x"), nil), "tag")
		assert.Error(t, a.Run(recv(a, 2, 0, nil), nil), "source")
	})
	t.Run("bytes", func(t *testing.T) {
		big, free, err := a.Bytes(3)
		require.NoError(t, err)
		c := send(a, 0, 0, "abcdef")
		c.SendType, c.SendCount = big, 2
		require.NoError(t, a.Run(c, nil))
		buf := make([]byte, 6)
		require.NoError(t, a.Run(recv(a, 0, 0, buf), nil))
		assert.Equal(t, "abcdef", string(buf))
		free()
		assert.Error(t, a.Run(c, nil), "after free")
	})
}

func TestCommunicators(t *testing.T) {
	libs := mpifake.New(4, mpifake.Nodes([]int{5, 6, 5, 6}))
	require.NoError(t, mpifake.Each(libs, func(r int, lib mpi.Library) error {
		shared, err := lib.SplitShared(lib.World())
		if err != nil {
			return err
		}
		size, _ := lib.Size(shared)
		rank, _ := lib.Rank(shared)
		assert.Equal(t, []int{2, r / 2}, []int{size, rank})

		dup, err := lib.Dup(shared)
		if err != nil {
			return err
		}
		assert.NotEqual(t, shared, dup)
		if err := lib.Free(shared); err != nil {
			return err
		}
		_, err = lib.Size(shared)
		assert.Error(t, err, "freed")

		// Two disjoint groups at the same time, with one tag and different orders of ranks.
		ranks := []int32{1, 0}
		if r >= 2 {
			ranks = []int32{2, 3}
		}
		g, err := lib.CreateGroup(lib.World(), ranks, 4)
		if err != nil {
			return err
		}
		rank, err = lib.Rank(g)
		assert.Equal(t, []int{1, 0, 0, 1}[r], rank)
		if err != nil {
			return err
		}
		return lib.Run(&mpi.Call{Fn: mpi.FnBarrier, Comm: g}, nil)
	}))
	assert.Error(t, libs[0].Free(libs[0].World()))
	_, err := libs[0].CreateGroup(libs[0].World(), []int32{1}, 0)
	assert.ErrorContains(t, err, "not among")

	bad := make([]error, 2)
	_ = mpifake.Each(libs[:2], func(r int, lib mpi.Library) error {
		_, bad[r] = lib.CreateGroup(lib.World(), []int32{0, 1, int32(2 + r)}, 1)
		return nil
	})
	for r, err := range bad {
		assert.ErrorContains(t, err, "says ranks", "rank %d", r)
	}
}

func TestInjection(t *testing.T) {
	libs := mpifake.New(1, mpifake.Fail(0, 2, 16), mpifake.Delay(0, 3, 30*time.Millisecond))
	lib := libs[0]
	barrier := &mpi.Call{Fn: mpi.FnBarrier, Comm: lib.World()}
	assert.NoError(t, lib.Run(barrier, nil))
	assert.ErrorContains(t, lib.Run(barrier, nil), "injected")
	before := time.Now()
	assert.NoError(t, do(lib, barrier, false))
	assert.GreaterOrEqual(t, time.Since(before), 30*time.Millisecond)
}

func TestAbortEndsEveryWait(t *testing.T) {
	libs := mpifake.New(2)
	done := make(chan error)
	go func() { done <- libs[0].Run(&mpi.Call{Fn: mpi.FnBarrier, Comm: libs[0].World()}, nil) }()
	time.Sleep(5 * time.Millisecond)
	libs[1].Abort(3)
	assert.ErrorContains(t, <-done, "MPI_Abort(3) by rank 1")
	assert.Error(t, libs[0].Run(&mpi.Call{Fn: mpi.FnBarrier, Comm: libs[0].World()}, nil))
}

func TestFinalize(t *testing.T) {
	lib := mpifake.New(1)[0]
	var order []int
	for i := range 2 {
		require.NoError(t, lib.OnFinalize(func() {
			assert.NoError(t, lib.Run(&mpi.Call{Fn: mpi.FnBarrier, Comm: lib.World()}, nil), "MPI still works here")
			order = append(order, i)
		}))
	}
	require.NoError(t, lib.Finalize())
	assert.Equal(t, []int{1, 0}, order)
	assert.True(t, lib.Finalized())
	assert.ErrorContains(t, lib.Run(&mpi.Call{Fn: mpi.FnBarrier, Comm: lib.World()}, nil), "after MPI_Finalize")
}
