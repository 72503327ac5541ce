package main

import (
	"time"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

const mpiCode = status.MPI

func (w *world) next() int32 { return int32((w.rank + 1) % w.size) }
func (w *world) prev() int32 { return int32((w.rank + w.size - 1) % w.size) }

// messages sends around a ring: a nonblocking send, and a receive in each form.
func messages(w *world) {
	t, _ := w.TypeOf(op.Float64)
	out := filled(float64(w.rank), 0.5, 2)
	send := &mpi.Call{Fn: mpi.FnSend, Comm: w.comm, Peer: w.next(), Tag: 3, SendBuf: at(out), SendCount: 3, SendType: t}
	for _, blocking := range []bool{true, false} {
		in := memory[float64](5) // longer than the message
		recv := &mpi.Call{Fn: mpi.FnRecv, Comm: w.comm, Peer: w.prev(), Tag: 3, RecvBuf: at(in), RecvCount: 5, RecvType: t}
		s := w.start("isend", send)
		if s == nil {
			return
		}
		var st mpi.Status
		if blocking {
			w.ok("recv", w.Run(recv, &st))
		} else if r, ok := w.nonblocking("irecv", recv); ok {
			st = mpi.Status{Source: r.Source, Tag: r.Tag, Bytes: r.Bytes}
			want(w, "cancelled", r.Cancelled, 0)
		}
		w.wait("isend", s)
		w.Release(s)
		want(w, "status", st, mpi.Status{Source: w.prev(), Tag: 3, Bytes: 24})
		wantAll(w, "message", in, []float64{float64(w.prev()), 0.5, 2, 0, 0})
	}
	// Both sides blocking, and no status wanted.
	if w.size > 1 && w.rank < 2 {
		in := memory[float64](3)
		recv := &mpi.Call{Fn: mpi.FnRecv, Comm: w.comm, Peer: int32(1 - w.rank), RecvBuf: at(in), RecvCount: 3, RecvType: t}
		ping := *send
		ping.Peer, ping.Tag = int32(1-w.rank), 0
		if w.rank == 0 {
			w.ok("send", w.Run(&ping, nil))
			w.ok("recv", w.Run(recv, nil))
		} else {
			w.ok("recv", w.Run(recv, nil))
			w.ok("send", w.Run(&ping, nil))
		}
		want(w, "ping-pong", in[0], float64(1-w.rank))
	}
}

// wildcards makes rank 0 receive from any source with any tag.
func wildcards(w *world) {
	t, _ := w.TypeOf(op.Int32)
	if w.rank > 0 {
		b := filled(int32(w.rank))
		w.ok("send", w.Run(&mpi.Call{Fn: mpi.FnSend, Comm: w.comm, Peer: 0, Tag: int32(10 + w.rank), SendBuf: at(b), SendCount: 1, SendType: t}, nil))
		return
	}
	for i := 1; i < w.size; i++ {
		b := memory[int32](1)
		recv := &mpi.Call{Fn: mpi.FnRecv, Comm: w.comm, Peer: mpi.AnySource, Tag: mpi.AnyTag, RecvBuf: at(b), RecvCount: 1, RecvType: t}
		var st mpi.Status
		if i%2 == 0 {
			w.ok("recv from any", w.Run(recv, &st))
		} else if s, ok := w.nonblocking("irecv from any", recv); ok {
			st = mpi.Status{Source: s.Source, Tag: s.Tag, Bytes: s.Bytes}
		}
		want(w, "from any", st, mpi.Status{Source: b[0], Tag: 10 + b[0], Bytes: 4})
	}
}

// probes receives a message of unknown length, blocking and nonblocking.
func probes(w *world) {
	if _, found, err := w.Iprobe(w.comm, mpi.AnySource, mpi.AnyTag); err != nil || found {
		w.failf("iprobe of nothing: %v, %v", found, err)
	}
	w.ok("barrier", w.Run(&mpi.Call{Fn: mpi.FnBarrier, Comm: w.comm}, nil)) // no rank sends before it
	n := 1000 + w.rank
	out := memory[uint8](n)
	for i := range out {
		out[i] = uint8(i)
	}
	expected := mpi.Status{Source: w.prev(), Tag: 4, Bytes: int64(1000 + w.prev())}
	for _, blocking := range []bool{true, false} {
		s := w.start("isend", &mpi.Call{Fn: mpi.FnSend, Comm: w.comm, Peer: w.next(), Tag: 4, SendBuf: at(out), SendCount: int64(n), SendType: w.Byte()})
		if s == nil {
			return
		}
		w.eventually("iprobe", func() bool {
			st, found, err := w.Iprobe(w.comm, w.prev(), 4)
			if found {
				want(w, "iprobe", st, expected)
			}
			return found || !w.ok("iprobe", err)
		})
		var msg mpi.Message
		w.eventually("improbe", func() bool {
			m, st, found, err := w.Improbe(w.comm, mpi.AnySource, mpi.AnyTag)
			if found {
				msg = m
				want(w, "improbe", st, expected)
			}
			return found || !w.ok("improbe", err)
		})
		in := memory[uint8](int(expected.Bytes))
		recv := &mpi.Call{Fn: mpi.FnMrecv, RecvBuf: at(in), RecvCount: expected.Bytes, RecvType: w.Byte(), Message: msg}
		var st mpi.Status
		if blocking {
			w.ok("mrecv", w.Run(recv, &st))
		} else if r, ok := w.nonblocking("imrecv", recv); ok {
			st = mpi.Status{Source: r.Source, Tag: r.Tag, Bytes: r.Bytes}
		}
		want(w, "mrecv", st, expected)
		want(w, "last byte", in[len(in)-1], uint8(len(in)-1))
		w.wait("isend", s)
		w.Release(s)
	}
}

func (w *world) eventually(what string, f func() bool) {
	for end := time.Now().Add(30 * time.Second); !f(); {
		if time.Now().After(end) {
			w.failf("%s: nothing after 30 s", what)
			return
		}
	}
}

// cancels cancels a receive that no message matches.
func cancels(w *world) {
	b := memory[int32](1)
	c := &mpi.Call{Fn: mpi.FnRecv, Comm: w.comm, Peer: w.prev(), Tag: 77, RecvBuf: at(b), RecvCount: 4, RecvType: w.Byte()}
	s := w.start("irecv", c)
	if s == nil {
		return
	}
	want(w, "poll of a receive that waits", w.Poll([]uintptr{s.Address()}), 0)
	w.ok("cancel", w.Cancel(s))
	w.wait("cancelled irecv", s)
	want(w, "cancelled", s.Cancelled, 1)
	w.ok("cancel of what is done", w.Cancel(s))
	w.Release(s)
}

// refusals checks that an error of MPI comes back with the standard's error class.
func refusals(w *world) {
	b := memory[int32](8)
	send := &mpi.Call{Fn: mpi.FnSend, Comm: w.comm, Peer: w.next(), Tag: 9, SendBuf: at(b), SendCount: 32, SendType: w.Byte()}
	for _, blocking := range []bool{true, false} {
		s := w.start("isend", send)
		if s == nil {
			return
		}
		short := &mpi.Call{Fn: mpi.FnRecv, Comm: w.comm, Peer: w.prev(), Tag: 9, RecvBuf: at(memory[int32](8)), RecvCount: 8, RecvType: w.Byte()}
		var err error
		if blocking {
			err = w.Run(short, &mpi.Status{})
		} else {
			r := w.start("irecv", short)
			if r == nil {
				return
			}
			for end := time.Now().Add(30 * time.Second); !r.Done() && time.Now().Before(end); {
				w.Poll([]uintptr{r.Address(), s.Address()})
			}
			err = w.Err(r)
		}
		w.class("a message longer than its buffer", err, status.Truncate, mpi.ErrTruncate)
		w.wait("isend", s)
	}
	bad := *send
	bad.Peer = int32(w.size + 5)
	w.class("a rank out of range", w.Run(&bad, nil), status.MPI, mpi.ErrRank)
	_, err := w.Start(&bad)
	w.class("a rank out of range, nonblocking", err, status.MPI, mpi.ErrRank)
	bad = mpi.Call{Fn: mpi.FnBcast, Comm: w.comm, Peer: int32(w.size), RecvBuf: at(b), RecvCount: 1, RecvType: w.Byte()}
	w.class("a root out of range", w.Run(&bad, nil), status.MPI, mpi.ErrRoot)
	_, err = w.CreateGroup(w.comm, []int32{int32(w.size)}, 0)
	w.class("a group with a rank that does not exist", err, status.MPI, mpi.ErrRank)
}

func (w *world) class(what string, err error, code status.Code, class mpi.Class) {
	w.code(what, err, code)
	if e, ok := err.(*status.Error); ok && e.MPIClass != int(class) {
		w.failf("%s: %v: class %s, want %s", what, err, mpi.Class(e.MPIClass), class)
	}
}

// bytesTypes moves one element of n bytes for several n.
func bytesTypes(w *world) {
	for _, n := range []int64{3, 1000, 1<<20 + 7} {
		w.oneOf(n)
	}
	if _, _, err := w.Bytes(0); err == nil {
		w.failf("a type of no bytes")
	}
	// A type of more bytes than an int can count. It is only made and freed.
	t, free, err := w.Bytes(1<<33 + 1)
	if w.ok("a type of 8 GiB", err) {
		want(w, "null type", t == 0, false)
		free()
	}
}

// largeMessage moves more bytes than an int can count, from rank 0 to the last rank.
func largeMessage(w *world) { w.oneOf(1<<31 + 3) }

func (w *world) oneOf(n int64) {
	t, free, err := w.Bytes(n)
	if !w.ok("Bytes", err) {
		return
	}
	defer free()
	last := int32(w.size - 1)
	if w.rank != 0 && int32(w.rank) != last {
		return
	}
	var s *transport.Request
	if w.rank == 0 {
		out := memory[uint8](int(n))
		out[0], out[n/2], out[n-1] = 1, 2, 3
		s = w.start("isend", &mpi.Call{Fn: mpi.FnSend, Comm: w.comm, Peer: last, Tag: 6, SendBuf: at(out), SendCount: 1, SendType: t})
	}
	if int32(w.rank) == last {
		in := memory[uint8](int(n))
		var st mpi.Status
		w.ok("recv", w.Run(&mpi.Call{Fn: mpi.FnRecv, Comm: w.comm, Peer: 0, Tag: 6, RecvBuf: at(in), RecvCount: 1, RecvType: t}, &st))
		want(w, "large status", st, mpi.Status{Source: 0, Tag: 6, Bytes: n})
		wantAll(w, "large message", []uint8{in[0], in[n/2], in[n-1]}, []uint8{1, 2, 3})
	}
	if s != nil {
		w.wait("isend", s)
	}
}
