package client

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/link"
	"github.com/paddlempi/paddlempi/gocore/ps/request"
	"github.com/paddlempi/paddlempi/gocore/ps/route"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// KV is rows by key that functions of the servers' programs keep. Keys are dealt to servers by
// hash.
type KV struct {
	Client *Client
	IDs    []uint32 // its number on each server
	Name   string
	Dim    int64
	DType  op.DType
}

// startedCalls are the calls of KVs that were started, by their timestamps.
type startedCalls struct {
	mu   sync.Mutex
	last int64
	of   map[int64]*startedCall
	gone bool // forget was called
}

// startedCall is a call of a KV that was started, and for which nobody has waited.
type startedCall struct {
	kv     *KV
	pull   bool
	plan   *route.Plan
	answer *link.Memory  // nil unless pull
	over   chan struct{} // closed when all servers have answered
	err    error         // before over is closed, only its own goroutine uses it
}

// KVCall is what a call of a KV takes. The tensors are contiguous, in host memory, and free again
// when Start returns.
type KVCall struct {
	Keys    *op.Buf // int64 or int32
	Rows    *op.Buf // a row for each key, each of which then appears once; nil: nothing is pushed
	Pull    bool
	Room    *op.Buf // that Wait will be given; nil: it is not known yet. It is only checked
	Command int64
}

// Start sends each server the keys that it owns, and the rows, and returns a timestamp for Wait. It
// waits only while too many requests to a server are under way.
func (kv *KV) Start(a *KVCall) (timestamp int64, err error) {
	c, row := kv.Client, kv.rowBytes()
	if err := kv.check(a); err != nil {
		return 0, err
	}
	if err := c.Completed(a.what()); err != nil {
		return 0, err
	}
	started := &startedCall{kv: kv, pull: a.Pull, over: make(chan struct{})}
	keys, err := c.links.Memory(max(1, a.Keys.Count) * 8)
	if err != nil {
		return 0, err
	}
	var pushed *link.Memory
	free := func() {
		keys.Free()
		if pushed != nil {
			pushed.Free()
		}
	}
	defer func() {
		if err != nil {
			free()
			started.free()
		}
	}()
	if started.plan, err = route.New(a.Keys, c.servers, route.ByHash, 0); err != nil {
		return 0, err
	}
	copy(unsafe.Slice((*int64)(unsafe.Pointer(unsafe.SliceData(keys.Bytes()))), a.Keys.Count), started.plan.Unique)
	n := int64(len(started.plan.Unique))
	if a.Rows != nil {
		if n != a.Keys.Count {
			return 0, status.New(status.Argument, "push: keys of KV %q appear several times; add up their rows, or call once for each", kv.Name)
		}
		if pushed, err = c.links.Memory(max(1, n*row)); err != nil {
			return 0, err
		}
		started.scatter(pushed.Bytes(), a.Rows)
	}
	if a.Pull {
		if started.answer, err = c.links.Memory(max(1, n*row)); err != nil {
			return 0, err
		}
	}
	deadline := time.Now().Add(c.timeout)
	var sent []pending
	for s := range c.servers {
		from, to := int64(started.plan.Starts[s]), int64(started.plan.Starts[s+1])
		if from == to {
			continue
		}
		head := request.KVHead{KV: kv.IDs[s], Push: a.Rows != nil, Pull: a.Pull, Command: a.Command, Count: uint32(to - from)}
		r := &link.Request{Header: head.Encode(), Deadline: deadline, Interrupt: c.interrupt, IDs: link.Region{M: keys, Offset: 8 * from, Bytes: 8 * (to - from)}}
		if pushed != nil {
			r.Values = link.Region{M: pushed, Offset: from * row, Bytes: (to - from) * row}
		}
		if a.Pull {
			r.Answer = link.Region{M: started.answer, Offset: from * row, Bytes: (to - from) * row}
		}
		var p pending
		if p, err = c.links.start(s, r); err != nil {
			break
		}
		sent = append(sent, p)
	}
	if err != nil { // the other servers' functions are called; memory that they use is freed after that
		go started.wait(sent, deadline)
		return 0, err
	}
	timestamp = c.calls.add(started)
	go func() {
		started.wait(sent, deadline)
		free()
		c.calls.ended(timestamp, started)
	}()
	return timestamp, nil
}

// wait waits for the servers' answers.
func (s *startedCall) wait(sent []pending, deadline time.Time) {
	for _, p := range sent {
		if _, err := p.Wait(deadline, nil); err != nil && s.err == nil {
			s.err = err
		}
	}
	close(s.over)
}

// scatter copies the rows, in the order of the batch, to those of the plan.
func (s *startedCall) scatter(to []byte, rows *op.Buf) {
	from, n := unsafe.Slice((*byte)(rows.Data), rows.Bytes()), s.kv.rowBytes()
	for i, u := range s.plan.Inverse {
		copy(to[int64(u)*n:], from[int64(i)*n:int64(i+1)*n])
	}
}

func (s *startedCall) free() {
	if s.plan != nil {
		s.plan.Free()
	}
	if s.answer != nil {
		s.answer.Free()
	}
}

// Wait waits until all servers have answered to a call, and copies the rows of a pull to out. The
// error is that of the first server that has one. Who waits again for a call without rows gets nil,
// as for one that nobody has waited for.
func (kv *KV) Wait(timestamp int64, out *op.Buf) error {
	c := kv.Client
	s, err := c.calls.get(kv, timestamp)
	if s == nil {
		if err == nil && out != nil {
			err = taken(kv, timestamp)
		}
		return err
	}
	if err := work.Await(s.over, time.Time{}, c.interrupt); err != nil {
		return err
	}
	if s.pull && s.err == nil {
		if out == nil {
			return status.New(status.Argument, "wait: call %d of KV %q has pulled rows, and there is no room for them", timestamp, kv.Name)
		}
		if err := kv.checkRows("wait", out, int64(len(s.plan.Inverse))); err != nil {
			return err
		}
	}
	if !c.calls.take(timestamp) { // another thread has waited for it
		if s.pull {
			return taken(kv, timestamp)
		}
		return nil
	}
	defer s.free()
	if s.pull && s.err == nil {
		s.plan.Gather(out, unsafe.Pointer(unsafe.SliceData(s.answer.Bytes())), kv.rowBytes())
	}
	return s.err
}

func taken(kv *KV, timestamp int64) error {
	return status.New(status.Argument, "wait: the rows of call %d of KV %q are not there: somebody has waited for them before, or it pulled none", timestamp, kv.Name)
}

// add gives a call its timestamp.
func (c *startedCalls) add(s *startedCall) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[int64]*startedCall{}
	}
	c.last++
	c.of[c.last] = s
	return c.last
}

// ended forgets a push that has succeeded: who waits for it has nothing to learn.
func (c *startedCalls) ended(timestamp int64, s *startedCall) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[timestamp] == s && (c.gone || s.err == nil && !s.pull) {
		delete(c.of, timestamp)
		s.free()
	}
}

// get returns the call of a timestamp; nil if it has ended and nobody needs it.
func (c *startedCalls) get(kv *KV, timestamp int64) (*startedCall, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if timestamp < 1 || timestamp > c.last {
		return nil, status.New(status.Argument, "wait: timestamp=%d is of no call; that of the last one is %d", timestamp, c.last)
	}
	s := c.of[timestamp]
	if s != nil && s.kv != kv {
		return nil, status.New(status.Argument, "wait: timestamp=%d is of a call of KV %q, not %q", timestamp, s.kv.Name, kv.Name)
	}
	return s, nil
}

// take removes a call, and tells whether it was there.
func (c *startedCalls) take(timestamp int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, there := c.of[timestamp]
	delete(c.of, timestamp)
	return there
}

// Settle waits until every call of a KV that was started has ended. failed is the error of the
// first one that has failed and for which nobody has waited. It stays for those who still wait. err
// is an interrupt's.
func (c *Client) Settle() (failed, err error) {
	c.calls.mu.Lock()
	all := maps.Clone(c.calls.of)
	c.calls.mu.Unlock()
	for _, timestamp := range slices.Sorted(maps.Keys(all)) {
		s := all[timestamp]
		if err := work.Await(s.over, time.Time{}, c.interrupt); err != nil {
			return nil, err
		}
		if s.err != nil && failed == nil {
			failed = s.unawaited(timestamp)
		}
	}
	return failed, nil
}

// unawaited is the error of a call that has failed, for a program that has not waited for it.
func (s *startedCall) unawaited(timestamp int64) error {
	var e *status.Error
	if !errors.As(s.err, &e) {
		return s.err
	}
	said := *e
	said.Msg = fmt.Sprintf("call %d of KV %q has failed, and the program has not waited for it: %s", timestamp, s.kv.Name, e.Msg)
	return &said
}

// Forget frees what calls of KVs hold for those who never wait. No call may be started any more.
func (c *Client) Forget() {
	c.geo.free()
	c.calls.mu.Lock()
	defer c.calls.mu.Unlock()
	c.calls.gone = true
	for timestamp, s := range c.calls.of {
		select {
		case <-s.over:
			delete(c.calls.of, timestamp)
			s.free()
		default: // ended frees it
		}
	}
}

// what names a call in errors.
func (a *KVCall) what() string {
	if a.Rows != nil {
		return "push"
	}
	return "pull"
}

// check returns an error about an argument of a call.
func (kv *KV) check(a *KVCall) error {
	keys, name, what := a.Keys, kv.Name, a.what()
	switch {
	case keys.DType != op.Int64 && keys.DType != op.Int32:
		return status.New(status.Type, "%s: keys of KV %q are of %v; they must be of int64 or int32", what, name, keys.DType)
	case keys.Count > math.MaxInt32:
		return status.New(status.Argument, "%s: %d keys of KV %q are more than one call takes, %d", what, keys.Count, name, math.MaxInt32)
	case !keys.Contiguous():
		return status.New(status.Argument, "%s: the keys of KV %q are not contiguous; pass a contiguous copy", what, name)
	case !keys.OnHost():
		return status.New(status.Unsupported, "%s: the keys of KV %q are in device memory; move them to the CPU", what, name)
	}
	if a.Rows != nil {
		if err := kv.checkRows(what, a.Rows, keys.Count); err != nil {
			return err
		}
	}
	if a.Room != nil {
		return kv.checkRows("pull: out", a.Room, keys.Count)
	}
	return nil
}

func (kv *KV) rowBytes() int64 { return kv.Dim * int64(kv.DType.Size()) }

func (kv *KV) checkRows(what string, rows *op.Buf, n int64) error {
	switch {
	case rows.DType != kv.DType:
		return status.New(status.Type, "%s: rows of KV %q are of %v; they must be of %v", what, kv.Name, rows.DType, kv.DType)
	case rows.Count != n*kv.Dim:
		return status.New(status.Argument, "%s: %d keys of KV %q, of dim %d, need %d elements, and there are %d", what, n, kv.Name, kv.Dim, n*kv.Dim, rows.Count)
	case !rows.Contiguous():
		return status.New(status.Argument, "%s: the rows of KV %q are not contiguous; pass a contiguous copy", what, kv.Name)
	case !rows.OnHost():
		return status.New(status.Unsupported, "%s: the rows of KV %q are in device memory; a KV takes host memory: move them to the CPU", what, kv.Name)
	}
	return nil
}
