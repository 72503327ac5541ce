package server

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/request"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// kv is rows by key that a function of this process's program keeps.
type kv struct {
	name           string
	dim            int64
	dtype          op.DType
	pulled, pushed atomic.Int64 // rows
}

// KVCall is a call of a KV for the program's function, which has one at a time: Next, Take, and
// Finish.
type KVCall struct {
	Number     int64
	KV         string
	Dim        int64
	DType      op.DType
	From       int // rank
	Command    int64
	Keys       int64 // how many
	Push, Pull bool

	kv   *kv
	mu   sync.Mutex
	in   *Incoming // until it is answered
	over bool      // it is answered
}

// KVCalls are the calls that the program's functions have not answered, in the order in which they
// came.
type KVCalls struct {
	version *atomic.Int64 // of the Server

	mu     sync.Mutex
	last   int64
	queue  []*KVCall
	called map[int64]*KVCall // those that Next has returned
	came   chan struct{}     // has something when queue may have
	err    error             // why no more are taken
}

// DeclareKV makes the KV that a trainer names, unless it is there, and returns its number. The
// program must have a function of the name.
func (s *Server) DeclareKV(from int, name string, dim int64, dtype op.DType) (uint32, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.trainerLocked(from); err != nil {
		return 0, err
	}
	if i := slices.IndexFunc(s.kvs, func(k *kv) bool { return k.name == name }); i >= 0 {
		if k := s.kvs[i]; k.dim != dim || k.dtype != dtype {
			return 0, status.New(status.Mismatch, "KV %q: rank %d makes it with dim=%d and dtype=%v; another trainer has made it with dim=%d and dtype=%v",
				name, from, dim, dtype, k.dim, k.dtype).WithRanks(from)
		}
		return uint32(i), nil
	}
	if !slices.Contains(s.Functions, name) {
		return 0, status.New(status.Argument, "KV %q: server %d has no function of this name, it has %q: decorate one with ps.server_function(%q) before ps.init", name, s.Index, s.Functions, name)
	}
	s.kvs = append(s.kvs, &kv{name: name, dim: dim, dtype: dtype})
	return uint32(len(s.kvs) - 1), nil
}

// queueCall checks a call of a KV, and adds it to the Calls.
func (s *Server) queueCall(in *Incoming) error {
	head, err := request.DecodeKV(in.Header)
	if err != nil {
		return err
	}
	s.mu.Lock()
	t, err := s.trainerLocked(in.From)
	if err == nil {
		t.seen = time.Now()
	}
	kvs := s.kvs
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if uint64(head.KV) >= uint64(len(kvs)) {
		return status.New(status.Argument, "a call of rank %d names KV %d; server %d has %d", in.From, head.KV, s.Index, len(kvs)).WithRanks(in.From)
	}
	k := kvs[head.KV]
	bytes := uint64(head.Count) * uint64(k.dim) * uint64(k.dtype.Size())
	var push, pull uint64
	if head.Push {
		push = bytes
	}
	if head.Pull {
		pull = bytes
	}
	if uint64(head.Count) != uint64(len(in.IDs)) || push != uint64(len(in.Values)) || pull != uint64(len(in.Answer)) {
		return status.New(status.Argument, "a call of KV %q by rank %d has %d keys, %d bytes of rows and room for %d; its header has %d keys, whose rows take %d bytes",
			k.name, in.From, len(in.IDs), len(in.Values), len(in.Answer), head.Count, bytes).WithRanks(in.From)
	}
	c := &KVCall{KV: k.name, Dim: k.dim, DType: k.dtype, From: in.From, Command: head.Command, Keys: int64(head.Count), Push: head.Push, Pull: head.Pull, kv: k, in: in}
	s.counted.bytesIn.Add(uint64(len(in.Header) + 8*len(in.IDs) + len(in.Values)))
	s.counted.bytesOut.Add(uint64(len(in.Answer)))
	return s.Calls.add(c)
}

// add gives a call its number, and puts it where Next finds it.
func (w *KVCalls) add(c *KVCall) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	w.last++
	c.Number = w.last
	w.queue = append(w.queue, c)
	select {
	case w.came <- struct{}{}:
	default: // somebody looks anyway
	}
	return nil
}

// Next returns the next call, which the caller then answers by Finish; nil after stop is closed.
func (w *KVCalls) Next(stop <-chan struct{}) (*KVCall, error) {
	for {
		w.mu.Lock()
		if w.err != nil {
			w.mu.Unlock()
			return nil, w.err
		}
		if len(w.queue) > 0 {
			c := w.queue[0]
			w.queue = w.queue[1:]
			w.called[c.Number] = c
			if len(w.queue) > 0 { // for another thread
				select {
				case w.came <- struct{}{}:
				default:
				}
			}
			w.mu.Unlock()
			return c, nil
		}
		w.mu.Unlock()
		select {
		case <-w.came:
		case <-stop:
			return nil, nil
		}
	}
}

func (w *KVCalls) find(number int64) (*KVCall, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.called[number]; c != nil {
		return c, nil
	}
	return nil, status.New(status.Argument, "there is no call %d of a KV that waits for its function", number)
}

// Take copies the keys and rows of a call. keys, of int64, has room for all; rows has if it is a
// push, else it is nil.
func (w *KVCalls) Take(number int64, keys, rows *op.Buf) error {
	c, err := w.find(number)
	if err != nil {
		return err
	}
	if keys.DType != op.Int64 || keys.Count != c.Keys || !keys.Contiguous() || !keys.OnHost() {
		return status.New(status.Argument, "call %d of KV %q has %d keys of int64; there is room for %d of %v", number, c.KV, c.Keys, keys.Count, keys.DType)
	}
	if c.Push != (rows != nil) {
		return status.New(status.Argument, "call %d of KV %q: push is %v, and rows are given: %v", number, c.KV, c.Push, rows != nil)
	}
	if rows != nil {
		if err := c.check(rows); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return c.late()
	}
	copy(unsafe.Slice((*int64)(keys.Data), keys.Count), c.in.IDs)
	if rows != nil {
		copy(unsafe.Slice((*byte)(rows.Data), rows.Bytes()), c.in.Values)
	}
	return nil
}

// Finish answers a call: with rows, if it is a pull; or with an error.
func (w *KVCalls) Finish(number int64, rows *op.Buf, failure error) error {
	c, err := w.find(number)
	if err != nil {
		return err
	}
	if failure == nil && c.Pull {
		if rows == nil {
			return status.New(status.Argument, "the function of KV %q has returned no rows; call %d of rank %d is a pull of %d", c.KV, number, c.From, c.Keys)
		}
		if err := c.check(rows); err != nil {
			return err
		}
	}
	w.mu.Lock()
	delete(w.called, number)
	w.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return c.late()
	}
	c.over = true
	if failure != nil {
		c.in.Reply(nil, failure)
		return nil
	}
	if c.Pull {
		copy(c.in.Answer, unsafe.Slice((*byte)(rows.Data), rows.Bytes()))
		c.kv.pulled.Add(c.Keys)
	}
	if c.Push {
		c.kv.pushed.Add(c.Keys)
	}
	c.in.Reply(request.Answer{Version: w.version.Load()}.Encode(), nil)
	return nil
}

// check returns an error about rows.
func (c *KVCall) check(rows *op.Buf) error {
	if rows.DType != c.DType || rows.Count != c.Keys*c.Dim || !rows.Contiguous() || !rows.OnHost() {
		return status.New(status.Argument, "call %d of KV %q by rank %d takes %d rows of %d %v; the function has given %d elements of %v", c.Number, c.KV, c.From, c.Keys, c.Dim, c.DType, rows.Count, rows.DType)
	}
	return nil
}

// late is the error for a call that the server has answered because it has ended.
func (c *KVCall) late() error {
	return status.New(status.NotInitialized, "call %d of KV %q by rank %d was answered before: the server has ended", c.Number, c.KV, c.From)
}

// end answers all calls with an error, and every later one.
func (w *KVCalls) end(why error) {
	w.mu.Lock()
	w.err = why
	all := w.queue
	for _, c := range w.called {
		all = append(all, c)
	}
	w.queue, w.called = nil, nil
	close(w.came)
	w.mu.Unlock()
	for _, c := range all {
		c.mu.Lock()
		if !c.over {
			c.over = true
			c.in.Reply(nil, why)
		}
		c.mu.Unlock()
	}
}
