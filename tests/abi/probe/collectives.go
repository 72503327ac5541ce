package main

import (
	"slices"
	"sync"
	"time"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// wait polls until r is done.
func (w *world) wait(what string, r *transport.Request) bool {
	for end := time.Now().Add(30 * time.Second); !transport.Over(w, r); {
		if time.Now().After(end) {
			w.failf("%s: not done after 30 s", what)
			return false
		}
	}
	return w.ok(what, w.Err(r))
}

// start starts the call. It returns nil after an error.
func (w *world) start(what string, c *mpi.Call) *transport.Request {
	r, err := w.Start(c)
	w.ok(what, err)
	return r
}

// nonblocking starts the call, waits for it, and returns its request.
func (w *world) nonblocking(what string, c *mpi.Call) (transport.Request, bool) {
	r := w.start(what, c)
	if r == nil || !w.wait(what, r) {
		return transport.Request{}, false
	}
	defer w.Release(r)
	return *r, true
}

// both makes the call in its nonblocking form. The callers make the blocking call themselves.
func (w *world) both(what string, c *mpi.Call) bool {
	_, ok := w.nonblocking(what+", nonblocking", c)
	return ok
}

// twice makes the call blocking and nonblocking, and compares recv with expected after each.
func twice[T comparable](w *world, c *mpi.Call, recv, expected []T) {
	before := slices.Clone(recv)
	if w.ok(c.Fn.String(), w.Run(c, nil)) {
		wantAll(w, c.Fn.String(), recv, expected)
	}
	copy(recv, before)
	if w.both(c.Fn.String(), c) {
		wantAll(w, c.Fn.String()+", nonblocking", recv, expected)
	}
}

func collectives(w *world) {
	t, _ := w.TypeOf(op.Int32)
	sum, _ := w.OpOf(op.Sum, op.Int32)
	n, me := w.size, int32(w.rank)
	root := int32(n - 1)
	call := func(fn mpi.Fn) *mpi.Call {
		return &mpi.Call{Fn: fn, Comm: w.comm, Peer: root, SendType: t, RecvType: t, Op: sum}
	}
	ifRoot := func(a, b []int32) []int32 {
		if me == root {
			return a
		}
		return b
	}
	zeros := func(k int) []int32 { return make([]int32, k) }
	// The block of rank r in a v-form has r+1 elements of value r.
	counts, displs := memory[int32](n), memory[int32](n)
	var all []int32 // the blocks of all ranks, one after another
	for r := range counts {
		counts[r], displs[r] = int32(r+1), int32(len(all))
		all = append(all, slices.Repeat([]int32{int32(r)}, r+1)...)
	}
	mine := filled(slices.Repeat([]int32{me}, w.rank+1)...)
	ramp := func(k int, f func(i int) int32) []int32 {
		b := memory[int32](k)
		for i := range b {
			b[i] = f(i)
		}
		return b
	}
	total := int32(n * (n - 1) / 2)

	twice(w, call(mpi.FnBarrier), []int32{}, nil)

	c := call(mpi.FnBcast)
	recv := filled(ifRoot([]int32{7, 8}, zeros(2))...)
	c.RecvBuf, c.RecvCount = at(recv), 2
	twice(w, c, recv, []int32{7, 8})

	c, recv = call(mpi.FnReduce), memory[int32](2)
	c.SendBuf, c.RecvBuf, c.RecvCount = at(filled(me, 1)), at(recv), 2
	twice(w, c, recv, ifRoot([]int32{total, int32(n)}, zeros(2)))

	c, recv = call(mpi.FnAllgather), memory[int32](n)
	c.SendBuf, c.SendCount, c.RecvBuf, c.RecvCount = at(filled(me)), 1, at(recv), 1
	ranks := ramp(n, func(i int) int32 { return int32(i) })
	twice(w, c, recv, ranks)
	recv = memory[int32](n)
	recv[me] = me
	c.InPlace, c.SendBuf, c.RecvBuf = true, nil, at(recv)
	twice(w, c, recv, ranks)

	c, recv = call(mpi.FnAllgatherv), memory[int32](len(all))
	c.SendBuf, c.SendCount, c.RecvBuf, c.RecvCounts, c.RecvDispls = at(mine), int64(len(mine)), at(recv), at(counts), at(displs)
	twice(w, c, recv, all)

	c, recv = call(mpi.FnGather), memory[int32](n)
	c.SendBuf, c.SendCount, c.RecvBuf, c.RecvCount = at(filled(me)), 1, at(recv), 1
	twice(w, c, recv, ifRoot(ranks, zeros(n)))

	c, recv = call(mpi.FnGatherv), memory[int32](len(all))
	c.SendBuf, c.SendCount, c.RecvBuf, c.RecvCounts, c.RecvDispls = at(mine), int64(len(mine)), at(recv), at(counts), at(displs)
	twice(w, c, recv, ifRoot(all, zeros(len(all))))

	c, recv = call(mpi.FnScatter), memory[int32](1)
	c.SendBuf, c.SendCount, c.RecvBuf, c.RecvCount = at(ranks), 1, at(recv), 1
	twice(w, c, recv, []int32{me})
	recv = memory[int32](1)
	c.RecvBuf, c.InPlace = at(recv), me == root // in place: the root gets no copy of its part
	twice(w, c, recv, ifRoot(zeros(1), []int32{me}))

	c, recv = call(mpi.FnScatterv), memory[int32](w.rank+1)
	c.SendBuf, c.SendCounts, c.SendDispls, c.RecvBuf, c.RecvCount = at(filled(all...)), at(counts), at(displs), at(recv), int64(len(recv))
	twice(w, c, recv, mine)

	c, recv = call(mpi.FnReduceScatter), memory[int32](w.rank+1)
	c.SendBuf, c.RecvBuf, c.RecvCounts = at(filled(all...)), at(recv), at(counts)
	twice(w, c, recv, slices.Repeat([]int32{me * int32(n)}, w.rank+1))

	c, recv = call(mpi.FnReduceScatterBlock), memory[int32](2)
	c.SendBuf, c.RecvBuf, c.RecvCount = at(ramp(2*n, func(i int) int32 { return int32(i) })), at(recv), 2
	twice(w, c, recv, []int32{2 * me * int32(n), (2*me + 1) * int32(n)})

	c, recv = call(mpi.FnAlltoall), memory[int32](n)
	c.SendBuf, c.SendCount, c.RecvBuf, c.RecvCount = at(ramp(n, func(i int) int32 { return 10*me + int32(i) })), 1, at(recv), 1
	twice(w, c, recv, ramp(n, func(i int) int32 { return 10*int32(i) + me }))

	// Rank r sends k+1 elements of value r to every rank k, so this rank receives me+1 from each.
	send, recvCounts, recvDispls := ramp(len(all), func(int) int32 { return me }), memory[int32](n), memory[int32](n)
	for r := range recvCounts {
		recvCounts[r], recvDispls[r] = me+1, int32(r)*(me+1)
	}
	c, recv = call(mpi.FnAlltoallv), memory[int32](n*(w.rank+1))
	c.SendBuf, c.SendCounts, c.SendDispls = at(send), at(counts), at(displs)
	c.RecvBuf, c.RecvCounts, c.RecvDispls = at(recv), at(recvCounts), at(recvDispls)
	twice(w, c, recv, ramp(len(recv), func(i int) int32 { return int32(i / (w.rank + 1)) }))

	c, recv = call(mpi.FnScan), memory[int32](1)
	c.SendBuf, c.RecvBuf, c.RecvCount = at(filled(me)), at(recv), 1
	twice(w, c, recv, []int32{me * (me + 1) / 2})

	c, recv = call(mpi.FnExscan), memory[int32](1)
	c.SendBuf, c.RecvBuf, c.RecvCount = at(filled(me)), at(recv), 1
	twice(w, c, recv, []int32{me * (me - 1) / 2}) // rank 0 receives nothing
}

func communicators(w *world) {
	dup, err := w.Dup(w.comm)
	if w.ok("dup", err) {
		n, err := w.Size(dup)
		w.ok("size", err)
		want(w, "size of a dup", n, w.size)
		// An error of MPI must return and not end the job: refusals in a fresh communicator.
		w.code("a send to a rank that does not exist", w.Run(&mpi.Call{Fn: mpi.FnSend, Comm: dup, Peer: 1 << 20, SendType: w.Byte()}, nil), mpiCode)
		w.ok("free", w.Free(dup))
	}
	shared, err := w.SplitShared(w.comm)
	if w.ok("split", err) {
		n, _ := w.Size(shared)
		want(w, "size on this node", n, w.size)
		w.ok("free", w.Free(shared))
	}
	var members []int32 // all ranks but 0, in reverse; rank 0 does not make the call
	for r := w.size - 1; r > 0; r-- {
		members = append(members, int32(r))
	}
	if w.rank > 0 {
		group, err := w.CreateGroup(w.comm, members, 5)
		if w.ok("create_group", err) {
			r, _ := w.Rank(group)
			want(w, "rank in the group", r, w.size-1-w.rank)
			w.ok("barrier", w.Run(&mpi.Call{Fn: mpi.FnBarrier, Comm: group}, nil))
			w.ok("free", w.Free(group))
		}
	}
}

// threads runs collectives on four threads at once, each on its own communicator.
func threads(w *world) {
	t, _ := w.TypeOf(op.Int64)
	o, _ := w.OpOf(op.Sum, op.Int64)
	var all sync.WaitGroup
	for range 4 {
		comm, err := w.Dup(w.comm)
		if !w.ok("dup", err) {
			return
		}
		all.Add(1)
		go func() {
			defer all.Done()
			b := memory[int64](1)
			for i := range 50 {
				b[0] = int64(i)
				err := w.Run(&mpi.Call{Fn: mpi.FnAllreduce, Comm: comm, InPlace: true, RecvBuf: at(b), RecvCount: 1, RecvType: t, Op: o}, nil)
				if err != nil || b[0] != int64(i*w.size) {
					panic("threads: a wrong sum")
				}
			}
			if err := w.Free(comm); err != nil {
				panic(err)
			}
		}()
	}
	all.Wait()
}
