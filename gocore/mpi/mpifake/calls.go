package mpifake

import (
	"fmt"
	"time"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Communicator constructors meet as collectives do. These functions have no name in mpi.Fn.
const (
	fnSplitShared mpi.Fn = -1
	fnCreateGroup mpi.Fn = -2
)

var names = map[mpi.Fn]string{
	mpi.FnBarrier: "Barrier", mpi.FnBcast: "Bcast", mpi.FnAllreduce: "Allreduce", mpi.FnReduce: "Reduce",
	mpi.FnAllgather: "Allgather", mpi.FnAllgatherv: "Allgatherv", mpi.FnGather: "Gather", mpi.FnGatherv: "Gatherv",
	mpi.FnScatter: "Scatter", mpi.FnScatterv: "Scatterv", mpi.FnReduceScatter: "Reduce_scatter",
	mpi.FnReduceScatterBlock: "Reduce_scatter_block", mpi.FnAlltoall: "Alltoall", mpi.FnAlltoallv: "Alltoallv",
	mpi.FnScan: "Scan", mpi.FnExscan: "Exscan", mpi.FnSend: "Send", mpi.FnRecv: "Recv", mpi.FnMrecv: "Mrecv",
	mpi.FnDup: "Comm_dup", fnSplitShared: "Comm_split_type", fnCreateGroup: "Comm_create_group",
}

func name(f mpi.Fn) string {
	if s, ok := names[f]; ok {
		return "MPI_" + s
	}
	return fmt.Sprintf("mpi.Fn(%d)", f)
}

// request is one call under way. world.mu guards it, except ended.
type request struct {
	lib      *library
	comm     *comm
	rank     int // in comm
	call     mpi.Call
	into     []byte // where a receive writes
	blocking bool

	ended     chan struct{} // closed when the request has finished
	finished  bool
	err       *status.Error
	st        mpi.Status
	cancelled bool
	readyAt   time.Time // an injected delay hides the end until this time
	made      *comm     // the communicator that a constructor made
}

func (q *request) finish(err *status.Error) {
	if q.finished {
		return
	}
	q.finished, q.err = true, err
	delete(q.lib.w.live, q)
	close(q.ended)
}

// launch starts c; w.mu is held. It returns an error if a real MPI would refuse the call.
func (l *library) launch(c *mpi.Call, blocking bool) (*request, *status.Error) {
	if err := l.usable(name(c.Fn)); err != nil {
		return nil, err
	}
	q := &request{lib: l, call: *c, blocking: blocking, ended: make(chan struct{})}
	if c.Fn != mpi.FnMrecv {
		var err *status.Error
		if q.comm, err = l.find(c.Comm); err != nil {
			return nil, err
		}
		q.rank = q.comm.rankOf(l.rank)
	}
	l.w.live[q] = struct{}{}
	var err *status.Error
	switch c.Fn {
	case mpi.FnSend:
		err = q.send()
	case mpi.FnRecv:
		err = q.recv()
	case mpi.FnMrecv:
		err = q.mrecv()
	default:
		if _, ok := names[c.Fn]; !ok {
			err = failure(classOther, "%s is no function", name(c.Fn))
		} else if c.Fn != fnCreateGroup {
			q.comm.join(q)
		}
	}
	if err != nil {
		delete(l.w.live, q)
		return nil, err
	}
	return q, nil
}

// wait blocks until q ends or the patience runs out.
func (l *library) wait(q *request) *status.Error {
	t := time.NewTimer(l.w.patience)
	defer t.Stop()
	select {
	case <-q.ended:
	case <-t.C:
		l.w.mu.Lock()
		if !q.finished {
			q.giveUp(failure(classOther, "%s on rank %d of %s waited %v: %s", name(q.call.Fn), q.rank, q.comm,
				l.w.patience, q.comm.absent(q)))
		}
		l.w.mu.Unlock()
	}
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	return q.err
}

// runHooks calls the hooks.
func (l *library) runHooks(c *mpi.Call) (time.Duration, error) {
	l.w.mu.Lock()
	l.calls++
	k := l.calls
	l.w.mu.Unlock()
	var delay time.Duration
	for _, h := range l.w.hooks {
		d, err := h(l.rank, k, c)
		if err != nil {
			return 0, err
		}
		delay += d
	}
	return delay, nil
}

func (l *library) Run(c *mpi.Call, st *mpi.Status) error {
	delay, err := l.runHooks(c)
	if err != nil {
		return err
	}
	time.Sleep(delay)
	l.w.mu.Lock()
	q, e := l.launch(c, true)
	l.w.mu.Unlock()
	if e == nil {
		e = l.wait(q)
	}
	if e != nil {
		return e
	}
	if st != nil {
		*st = q.st
	}
	return nil
}

// started has the fake's part of a request. r keeps the request alive, because the caller may hold
// only its address.
type started struct {
	r *transport.Request
	q *request
}

func (l *library) Start(c *mpi.Call) (*transport.Request, error) {
	delay, err := l.runHooks(c)
	if err != nil {
		return nil, err
	}
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	q, e := l.launch(c, false)
	if e != nil {
		return nil, e
	}
	q.readyAt = time.Now().Add(delay)
	r := &transport.Request{Kind: int32(c.Fn), Handle: l.handle()}
	l.started[r.Address()] = &started{r, q}
	return r, nil
}

// Release panics for a request that is under way or unknown. A real MPI would still write to that
// memory.
func (l *library) Release(r *transport.Request) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	x := l.started[r.Address()]
	if x == nil {
		panic("mpifake: Release of no request of this library, or of one that was released before")
	}
	if !r.Done() {
		panic("mpifake: Release of " + name(x.q.call.Fn) + ", which is outstanding")
	}
	delete(l.started, r.Address())
}

func (l *library) Poller() work.Poller { return l }

func (l *library) Poll(requests []uintptr) int {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	now, n := time.Now(), 0
	for _, a := range requests {
		x := l.started[a]
		if x == nil || x.r.Done() || !x.q.finished || now.Before(x.q.readyAt) {
			continue
		}
		q, r := x.q, x.r
		if q.err != nil {
			r.Code = int32(max(q.err.MPIClass, 1))
		}
		if q.cancelled {
			r.Cancelled = 1
		}
		r.Source, r.Tag, r.Bytes = q.st.Source, q.st.Tag, q.st.Bytes
		if q.made != nil && q.err == nil {
			r.Made = uintptr(l.adopt(q.made))
		}
		r.Handle = 0
		r.End()
		n++
	}
	return n
}

func (l *library) Cancel(r *transport.Request) error {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	x := l.started[r.Address()]
	if x == nil {
		return failure(classRequest, "MPI_Cancel of no request")
	}
	if x.q.call.Fn != mpi.FnRecv {
		return failure(classRequest, "MPI_Cancel of %s: only a receive can be cancelled", name(x.q.call.Fn))
	}
	if q := x.q; !q.finished {
		q.comm.unpost(q)
		q.cancelled = true
		q.finish(nil)
	}
	return nil
}

func (l *library) Pace() work.Pace { return work.Seldom }

func (l *library) Err(r *transport.Request) error {
	if r.Code == 0 {
		return nil
	}
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if x := l.started[r.Address()]; x != nil && x.q.err != nil {
		return x.q.err
	}
	return failure(int(r.Code), "%s failed with error class %d", name(mpi.Fn(r.Kind)), r.Code)
}
