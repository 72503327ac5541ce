package client

import (
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/link"
	"github.com/paddlempi/paddlempi/gocore/ps/request"
	"github.com/paddlempi/paddlempi/gocore/ps/route"
	"github.com/paddlempi/paddlempi/gocore/ps/server"
	"github.com/paddlempi/paddlempi/gocore/ps/table"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// fate is what becomes of a request on its way.
type fate int

const (
	well    fate = iota
	full         // no credit is free until the deadline
	broken       // it cannot be sent
	lost         // the server never gets it
	unheard      // the server carries it out, and its answer is lost
	late         // its answer takes a moment
	twice        // the server gets it twice
	rotten       // the header of the answer is damaged
	dead         // the server never gets it, and dies
)

// fakeLinks are the links of one trainer to servers of this process. They do to requests what a
// test says.
type fakeLinks struct {
	link.Links // its Memory is ordinary memory
	t          *testing.T
	from       int // rank of the trainer
	ends       []*end
}

// end is the link to one server.
type end struct {
	*server.Server
	rank int

	mu      sync.Mutex
	fates   []fate         // of the next requests; those after them go well
	got     []request.Head // what the server has got of tables
	calls   int            // of KVs that the server has got
	dropped int            // requests that were claimed and not sent
	waited  int            // waits that have ended: they let go of what was sent
	replies []error        // of the server, in their order
}

// next says what becomes of the next requests.
func (e *end) next(fates ...fate) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fates = append(e.fates, fates...)
}

// last returns the newest request that the server has got.
func (e *end) last() request.Head {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.got[len(e.got)-1]
}

// came returns how many requests the server has got.
func (e *end) came() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.got)
}

// called returns how many calls of KVs the server has got, and how many waits have ended.
func (e *end) called() (calls, waited int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.calls, e.waited
}

// fakePending is a request on its way.
type fakePending struct {
	l        *fakeLinks
	e        *end
	r        *link.Request
	fate     fate
	replies  chan reply
	answered bool
}

// reply is what a server has answered. answer are the rows of a pull.
type reply struct {
	header, answer []byte
	err            error
}

func (l *fakeLinks) claim(s int, r *link.Request) (pending, error) {
	e := l.ends[s]
	e.mu.Lock()
	defer e.mu.Unlock()
	p := &fakePending{l: l, e: e, r: r, replies: make(chan reply, 2)}
	if len(e.fates) > 0 {
		p.fate, e.fates = e.fates[0], e.fates[1:]
	}
	if p.fate == full {
		return nil, status.New(status.Timeout, "a request to the server on rank %d: a free one of its credits has not come by the deadline", e.rank).WithRanks(e.rank)
	}
	return p, nil
}

func (l *fakeLinks) start(s int, r *link.Request) (pending, error) {
	p, err := l.claim(s, r)
	if err != nil {
		return nil, err
	}
	return p, p.Post()
}

func (p *fakePending) Drop() {
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	p.e.dropped++
}

func (p *fakePending) Post() error {
	switch p.fate {
	case broken:
		return status.New(status.PeerLeft, "a request to the server on rank %d: that rank has closed its links", p.e.rank).WithRanks(p.e.rank)
	case lost, dead:
		return nil
	case twice:
		p.deliver()
	}
	p.deliver()
	return nil
}

// deliver hands the server a copy of the request: the memory of one that is given up may be freed
// before the server is done.
func (p *fakePending) deliver() {
	in := &server.Incoming{From: p.l.from, Header: slices.Clone(p.r.Header), Values: p.l.copy(p.r.Values), Answer: p.l.copy(p.r.Answer)}
	if ids := p.l.copy(p.r.IDs); len(ids) > 0 {
		in.IDs = unsafe.Slice((*int64)(unsafe.Pointer(unsafe.SliceData(ids))), len(ids)/8)
	}
	in.Reply = func(header []byte, err error) {
		p.e.mu.Lock()
		p.e.replies = append(p.e.replies, err)
		p.e.mu.Unlock()
		if p.fate == late {
			time.Sleep(20 * time.Millisecond)
		}
		p.replies <- reply{slices.Clone(header), in.Answer, err}
	}
	p.e.mu.Lock()
	if head, err := request.Decode(in.Header); err == nil {
		p.e.got = append(p.e.got, head)
	} else {
		p.e.calls++
	}
	p.e.mu.Unlock()
	if p.fate == late {
		go p.e.Handle(in)
	} else {
		p.e.Handle(in)
	}
}

// copy copies a region into memory that lasts as long as the test.
func (l *fakeLinks) copy(r link.Region) []byte {
	if r.Bytes == 0 {
		return nil
	}
	room, err := mem.Alloc(r.Bytes)
	require.NoError(l.t, err)
	l.t.Cleanup(func() { mem.Free(room) })
	to := unsafe.Slice((*byte)(room), r.Bytes)
	copy(to, r.M.Bytes()[r.Offset:r.Offset+r.Bytes])
	return to
}

func (p *fakePending) Answered() bool { return p.answered }

func (p *fakePending) Trouble() error {
	if p.fate != dead {
		return nil
	}
	return status.New(status.PeerDied, "a request to the server on rank %d: that rank died", p.e.rank).WithRanks(p.e.rank)
}

func (p *fakePending) Wait(deadline time.Time, interrupt work.Interrupt) ([]byte, error) {
	defer func() {
		p.e.mu.Lock()
		defer p.e.mu.Unlock()
		p.e.waited++
	}()
	replies := p.replies
	if p.fate == unheard {
		replies = nil
	}
	for {
		ended := !deadline.IsZero() && time.Now().After(deadline) // an answer that is there counts
		select {
		case a := <-replies:
			if p.answered = true; a.err != nil {
				return nil, a.err
			}
			if p.fate == rotten {
				return a.header[1:], nil
			}
			if r := p.r.Answer; r.Bytes > 0 {
				copy(r.M.Bytes()[r.Offset:r.Offset+r.Bytes], a.answer)
			}
			return a.header, nil
		case <-time.After(time.Millisecond):
		}
		if interrupt != nil {
			if err := interrupt(); err != nil {
				return nil, err
			}
		}
		if err := p.Trouble(); err != nil {
			return nil, err
		}
		if ended {
			return nil, status.New(status.Timeout, "a request to the server on rank %d: its answer has not come by the deadline", p.e.rank).WithRanks(p.e.rank)
		}
	}
}

const dim = 2

// The timeout of the clients, and so long a test waits for an answer that does not come.
const (
	patience = 20 * time.Second
	short    = 200 * time.Millisecond
)

// newServers makes two servers, of ranks 10 and 11, with tables t and u of rows of zeros, whose
// optimizer subtracts the gradients, and with a KV.
func newServers(t *testing.T, synchronous bool, trainers ...int) (all []*server.Server) {
	for i := range 2 {
		s := server.New(server.Config{Index: i, Servers: 2, Trainers: trainers, Rule: server.Rule{Sync: synchronous}, Functions: []string{"kv"}})
		t.Cleanup(s.Tables.Free)
		for _, name := range []string{"t", "u"} {
			_, err := s.Declare(trainers[0], server.Meta{Name: name, By: "modulo", Config: table.Config{Dim: dim, DType: "float32",
				Initializer: table.Initializer{Name: "zeros"}, Optimizer: table.Optimizer{Name: "sgd", LearningRate: 1}}})
			require.NoError(t, err)
		}
		_, err := s.DeclareKV(trainers[0], "kv", dim, op.Float32)
		require.NoError(t, err)
		all = append(all, s)
	}
	return all
}

// trainer is a client with its links and its tables.
type trainer struct {
	*Client
	*testing.T
	link *fakeLinks
	t, u *Table
	kv   *KV
}

// newTrainer makes the trainer of a rank.
func newTrainer(t *testing.T, rank int, servers []*server.Server, interrupt work.Interrupt) *trainer {
	l := &fakeLinks{t: t, from: rank}
	for i, s := range servers {
		l.ends = append(l.ends, &end{Server: s, rank: 10 + i})
	}
	one := &trainer{T: t, link: l}
	one.Client = newClient(l, len(servers), len(servers[0].Trainers) > 1, patience, interrupt)
	tableOf := func(number uint32, name string) *Table {
		made := &Table{Client: one.Client, IDs: []uint32{number, number}, Name: name, Dim: dim, Rows: op.Float32, By: route.ByModulo}
		t.Cleanup(made.Forget)
		return made
	}
	one.t, one.u = tableOf(0, "t"), tableOf(1, "u")
	one.kv = &KV{Client: one.Client, IDs: []uint32{0, 0}, Name: "kv", Dim: dim, DType: op.Float32}
	t.Cleanup(one.Forget)
	return one
}

// floats makes a tensor of float32.
func floats(t *testing.T, values ...float32) *op.Buf {
	t.Helper()
	p, err := mem.Alloc(int64(4 * max(1, len(values))))
	require.NoError(t, err)
	t.Cleanup(func() { mem.Free(p) })
	copy(unsafe.Slice((*float32)(p), len(values)), values)
	return &op.Buf{Data: p, Count: int64(len(values)), DType: op.Float32}
}

func valuesOf(b *op.Buf) []float32 {
	return slices.Clone(unsafe.Slice((*float32)(b.Data), b.Count))
}

// rows says what a call does to a table: ids, and a value for all elements of a row.
func (one *trainer) rows(on *Table, value float32, ids ...int64) TableRows {
	return TableRows{Table: on, IDs: idsOf(one.T, ids...), Values: floats(one.T, slices.Repeat([]float32{value}, dim*len(ids))...), Rate: 1}
}

// soon runs f with a short timeout.
func (one *trainer) soon(f func() error) error {
	one.timeout = short
	defer func() { one.timeout = patience }()
	return f()
}

// push pushes a gradient for ids of table t.
func (one *trainer) push(value float32, ids ...int64) error {
	return one.Push([]TableRows{one.rows(one.t, value, ids...)}, 0)
}

// pull returns the first elements of rows of table t.
func (one *trainer) pull(ids ...int64) (firsts []float32, err error) {
	r := one.rows(one.t, -99, ids...)
	err = one.Pull([]TableRows{r})
	for i, v := range valuesOf(r.Values) {
		if i%dim == 0 {
			firsts = append(firsts, v)
		}
	}
	return firsts, err
}
