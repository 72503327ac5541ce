package link

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/comm"
	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/world"
)

var _ Ranks = comm.Members{}

// member is one rank of a test.
type member struct {
	*testing.T
	env   *world.Env
	group *group.Group
	rank  int
	links *Links
	probe chan struct{} // shared by all ranks
	ended bool          // Close was tested

	settles bool // MPI has nothing under way at the end
}

// ranks runs f on every rank of a fake world with these nodes, after Open. It closes the links
// unless f has, and looks whether all memory was given back.
func ranks(t *testing.T, nodes, servers []int, f func(m *member), options ...mpifake.Option) {
	t.Helper()
	var wg sync.WaitGroup
	probe := make(chan struct{})
	for _, lib := range mpifake.New(len(nodes), append(options, mpifake.Nodes(nodes))...) {
		wg.Add(1)
		go func(lib mpi.Library) {
			defer wg.Done()
			e, err := world.NewEnv(mpifake.World(lib), 20*time.Second, nil)
			if !assert.NoError(t, err) {
				return
			}
			g, err := group.World(e, 0, 10*time.Second)
			if !assert.NoError(t, err) {
				return
			}
			l, err := Open(comm.Members{Members: g.Members()}, servers, 10*time.Second)
			if !assert.NoError(t, err) {
				return
			}
			m := &member{T: t, env: e, group: g, rank: g.Rank, links: l, probe: probe}
			f(m)
			if !m.ended {
				assert.NoError(t, l.Close(), "rank %d", g.Rank)
			}
			settled, _ := e.Destroy()
			assert.True(t, settled || !m.settles, "rank %d", g.Rank)
			// Close would drop the lock of this process's heap, because the ranks are one process.

		}(lib)
	}
	wg.Wait()
}

// memory takes memory and fills it.
func (m *member) memory(fill []byte) *Memory {
	mem, err := m.links.Memory(int64(max(len(fill), 1)))
	require.NoError(m, err)
	assert.Zero(m, uintptr(unsafe.Pointer(&mem.Bytes()[0]))%64)
	copy(mem.Bytes(), fill)
	return mem
}

// all is the region that has all of a memory.
func all(m *Memory) Region { return Region{m, 0, m.n} }

func soon() time.Time { return time.Now().Add(15 * time.Second) }

// worlds are one node, two nodes, and both ways of remote next to shared. Rank 0 and the last one
// are servers, and all are trainers.
var worlds = map[string][]int{
	"alone":     {0},
	"one node":  {0, 0, 0},
	"two nodes": {0, 1},
	"mixed":     {0, 0, 1, 1, 0},
}

func bothEnds(n int) []int {
	if n == 1 {
		return []int{0}
	}
	return []int{n - 1, 0}
}

// echo answers with what it has got: the header in reverse, and in Answer values and ids, as often
// as they fit.
func echo(in *Incoming) {
	header := bytes.Clone(in.Header)
	for i, j := 0, len(header)-1; i < j; i, j = i+1, j-1 {
		header[i], header[j] = header[j], header[i]
	}
	fill(in.Answer, in.Values, bytesOfIDs(in.IDs))
	in.Reply(header, nil)
}

func bytesOfIDs(ids []int64) []byte {
	return bytesOf(unsafe.Pointer(unsafe.SliceData(ids)), int64(8*len(ids)))
}

func fill(to []byte, parts ...[]byte) {
	from := bytes.Join(parts, nil)
	for n := 0; n < len(to); n += copy(to[n:], from) {
		if len(from) == 0 {
			from = []byte{1}
		}
	}
}

func random(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

func TestEveryWayCarriesBytes(t *testing.T) {
	for name, nodes := range worlds {
		t.Run(name, func(t *testing.T) {
			servers := bothEnds(len(nodes))
			var done sync.WaitGroup
			done.Add(len(nodes))
			ranks(t, nodes, servers, func(m *member) {
				if m.links.inlets != nil {
					m.links.Serve(echo)
				}
				m.settles = true
				var sum uint64
				for _, size := range [][3]int{{0, 0, 0}, {8, 0, 8}, {0, 5, 3}, {800, 100, 1000}, {8192, 8192, mostInline}, {8192, 8193, mostInline + 1}, {16, 300_000, 5000}, {80_000, 0, 90_000}, {0, 0, 1 << 20}} {
					for s := range servers {
						header := random(size[0] % 5000)
						ids, values, answer := m.memory(random(size[0])), m.memory(random(size[1])), m.memory(make([]byte, size[2]))
						r := &Request{Header: header}
						for i, region := range []*Region{&r.IDs, &r.Values, &r.Answer} {
							if size[i] > 0 {
								*region = all([]*Memory{ids, values, answer}[i])
							}
						}
						p, err := m.links.Start(s, r)
						require.NoError(m, err)
						got, err := p.Wait(soon(), nil)
						require.NoError(m, err)
						want := bytes.Clone(header)
						for i, j := 0, len(want)-1; i < j; i, j = i+1, j-1 {
							want[i], want[j] = want[j], want[i]
						}
						assert.True(m, bytes.Equal(want, got), "header")
						full := make([]byte, size[2])
						fill(full, values.Bytes()[:size[1]], ids.Bytes()[:size[0]])
						assert.True(m, bytes.Equal(full, answer.Bytes()[:size[2]]), "answer %v", size)
						sum += uint64(2*len(header) + size[0] + size[1] + size[2])
						for _, mem := range []*Memory{ids, values, answer} {
							mem.Free()
							mem.Free()
						}
					}
				}
				a, b, c := m.links.Bytes()
				assert.Equal(m, sum, a+b+c)
				for s, by := range []uint64{local: c, shared: a, remote: b} {
					expected := false
					for _, server := range servers {
						at := remote
						switch {
						case server == m.rank:
							at = local
						case nodes[server] == nodes[m.rank]:
							at = shared
						}
						expected = expected || at == way(s)
					}
					assert.Equal(m, expected, by > 0, "rank %d, way %d", m.rank, s)
				}
				done.Done()
				done.Wait() // a server that closes early refuses requests
			})
		})
	}
}

// Many requests are under way at once, and are answered in another order.
func TestRequestsComeInOrderAndAnswersInAny(t *testing.T) {
	const each = 200
	for name, nodes := range worlds {
		t.Run(name, func(t *testing.T) {
			var done sync.WaitGroup
			done.Add(len(nodes))
			ranks(t, nodes, []int{0}, func(m *member) {
				if m.rank == 0 {
					var mu sync.Mutex
					next := map[int]byte{}
					m.links.Serve(func(in *Incoming) {
						mu.Lock()
						assert.Equal(t, next[in.From], in.Header[0], "of rank %d", in.From)
						next[in.From]++
						mu.Unlock()
						delay := time.Duration(rand.IntN(300)) * time.Microsecond
						reply := func() {
							copy(in.Answer, in.Values)
							in.Reply(in.Header, nil)
						}
						if in.Header[0]%3 == 0 {
							reply()
						} else {
							time.AfterFunc(delay, reply)
						}
					})
				}
				m.settles = true
				var waits sync.WaitGroup
				for i := range each {
					n := []int{1, 100, 30_000}[i%3]
					values, answer := m.memory(random(n)), m.memory(make([]byte, n))
					p, err := m.links.Start(0, &Request{Header: []byte{byte(i)}, Values: all(values), Answer: all(answer), Deadline: soon()})
					require.NoError(m, err)
					waits.Add(1)
					go func() {
						defer waits.Done()
						header, err := p.Wait(soon(), nil)
						assert.NoError(m, err)
						assert.Equal(m, []byte{byte(i)}, header)
						assert.True(m, bytes.Equal(values.Bytes(), answer.Bytes()))
						values.Free()
						answer.Free()
					}()
				}
				waits.Wait()
				done.Done()
				done.Wait()
			})
		})
	}
}

// twoRanks are worlds in which rank 1 asks rank 0, by each way.
func eachWay(t *testing.T, f func(m *member, asks bool, done *sync.WaitGroup)) {
	for name, nodes := range map[string][]int{"local": {0}, "shared": {0, 0}, "remote": {0, 1}} {
		t.Run(name, func(t *testing.T) {
			var done sync.WaitGroup
			done.Add(len(nodes))
			ranks(t, nodes, []int{0}, func(m *member) { f(m, m.rank == len(nodes)-1, &done) })
		})
	}
}

func finish(done *sync.WaitGroup) {
	done.Done()
	done.Wait()
}

func (m *member) ask(r *Request) *Pending {
	p, err := m.links.Start(0, r)
	require.NoError(m, err)
	return p
}

func TestErrorsTravel(t *testing.T) {
	sent := map[string]error{
		"argument": status.New(status.Argument, "ids: 7 is too much\nsecond line").WithRanks(3, 1),
		"mpi":      &status.Error{Code: status.MPI, MPIClass: 15, Msg: "é"},
		"other":    errors.New("not of this library"),
		"wrapped":  fmt.Errorf("outside: %w", status.New(status.Timeout, "inside").WithRanks(2)),
		"long":     status.New(status.NoMemory, "%s", strings.Repeat("x", 1<<20)),
		"terminal": status.New(status.Type, "a\x1b[31mb"),
	}
	want := map[string]*status.Error{
		"argument": {Code: status.Argument, Msg: "ids: 7 is too much\nsecond line", Ranks: []int{3, 1}},
		"mpi":      {Code: status.MPI, MPIClass: 15, Msg: "é"},
		"other":    {Code: status.Panic, Msg: "not of this library"},
		"wrapped":  {Code: status.Timeout, Msg: "outside: inside", Ranks: []int{2}},
		"long":     {Code: status.NoMemory, Msg: strings.Repeat("x", status.MostText)},
		"terminal": {Code: status.Type, Msg: "a?[31mb"},
		"header":   {Code: status.Argument, Msg: "the server's answer has a header of 65537 bytes, and the most are 65536"},
	}
	eachWay(t, func(m *member, asks bool, done *sync.WaitGroup) {
		if m.rank == 0 {
			m.links.Serve(func(in *Incoming) {
				if err := sent[string(in.Header)]; err != nil {
					in.Reply([]byte("nobody sees this"), err)
					return
				}
				in.Reply(make([]byte, MaxHeader+1), nil)
			})
		}
		if asks {
			for _, size := range []int{10, 100_000} {
				answer := m.memory(make([]byte, size))
				for name, e := range want {
					p := m.ask(&Request{Header: []byte(name), Answer: all(answer)})
					header, err := p.Wait(soon(), nil)
					assert.Nil(m, header)
					assert.Equal(m, e, err, name)
					assert.True(m, p.Answered(), name)
				}
				answer.Free()
			}
		}
		finish(done)
	})
}

func TestWhatACallerGivesIsChecked(t *testing.T) {
	eachWay(t, func(m *member, asks bool, done *sync.WaitGroup) {
		if m.rank == 0 {
			m.links.Serve(echo)
			assert.Panics(m, func() { m.links.Serve(echo) })
		} else {
			assert.Panics(m, func() { m.links.Serve(echo) })
		}
		if asks {
			mem := m.memory(make([]byte, 64))
			freed := m.memory(make([]byte, 64))
			freed.Free()
			foreign := &Memory{l: &Links{}, n: 64}
			for text, r := range map[string]*Request{
				"are more than 65536":      {Header: make([]byte, MaxHeader+1)},
				"of no memory":             {Values: Region{Bytes: 1}},
				"of other links":           {Values: Region{M: foreign, Bytes: 1}},
				"65 bytes at 0 are not in": {Answer: Region{M: mem, Bytes: 65}},
				"at 60 are not in":         {Answer: Region{M: mem, Offset: 60, Bytes: 5}},
				"at -1 are not in":         {Answer: Region{M: mem, Offset: -1, Bytes: 5}},
				"-1 bytes":                 {Answer: Region{M: mem, Bytes: -1}},
				"not whole elements of 8":  {IDs: Region{M: mem, Bytes: 12}},
				"at 4 are not whole":       {IDs: Region{M: mem, Offset: 4, Bytes: 8}},
				"was freed":                {Values: all(mem), Answer: Region{M: freed, Bytes: 8}},
			} {
				_, err := m.links.Start(0, r)
				assert.ErrorContains(m, err, text)
				assert.Equal(m, status.Argument, status.CodeOf(err))
			}
			_, err := m.links.Start(1, &Request{})
			assert.ErrorContains(m, err, "there are 1")
			p := m.ask(&Request{Values: all(mem)})
			_, err = p.Wait(soon(), nil)
			assert.NoError(m, err)
			_, err = p.Wait(soon(), nil)
			assert.ErrorContains(m, err, "called before")
			assert.Zero(m, mem.inUse)
			mem.Free()
		}
		finish(done)
	})
}

// Deadlines and interrupts end a wait. The memory then stays until the server has let go of it.
func TestWaitsEnd(t *testing.T) {
	eachWay(t, func(m *member, asks bool, done *sync.WaitGroup) {
		gate := make(chan struct{})
		if m.rank == 0 {
			m.links.Serve(func(in *Incoming) {
				if string(in.Header) == "open" {
					close(gate)
					in.Reply(nil, nil)
					return
				}
				go func() {
					<-gate
					for i := range in.Answer {
						in.Answer[i] = 7
					}
					in.Reply([]byte("late"), nil)
				}()
			})
		}
		if asks {
			answer := m.memory(make([]byte, 50_000))
			p := m.ask(&Request{Answer: all(answer)})
			began := time.Now()
			_, err := p.Wait(time.Now().Add(300*time.Millisecond), nil)
			assert.Equal(m, status.Timeout, status.CodeOf(err))
			assert.ErrorContains(m, err, "the server on rank 0: its answer has not come by the deadline")
			assert.GreaterOrEqual(m, time.Since(began), 250*time.Millisecond)
			assert.True(m, lingers(answer))
			assert.False(m, p.Answered())
			_, err = m.links.Start(0, &Request{Answer: all(answer)})
			assert.Equal(m, status.NotReady, status.CodeOf(err))

			stop := status.New(status.Interrupted, "Ctrl-C")
			other := m.memory(make([]byte, 50_000))
			calls := 0
			_, err = m.ask(&Request{Answer: all(other)}).Wait(time.Time{}, func() error {
				if calls++; calls == 2 {
					return stop
				}
				return nil
			})
			assert.Equal(m, error(stop), err)
			other.Free()
			assert.NotZero(m, other.inUse, "it is not given back yet")

			_, err = m.ask(&Request{Header: []byte("open")}).Wait(soon(), nil)
			assert.NoError(m, err)
			require.Eventually(m, func() bool { // the next request finds that it is free
				_, err := m.ask(&Request{}).Wait(soon(), nil)
				return assert.NoError(m, err) && !lingers(answer) && other.inUse == 0
			}, 10*time.Second, time.Millisecond)
			assert.False(m, p.Answered(), "nobody has seen the answer that came after the deadline")
			_, err = m.ask(&Request{Answer: all(answer)}).Wait(soon(), nil)
			assert.NoError(m, err)
			answer.Free()
		}
		finish(done)
	})
}

// Start waits for a credit, and its wait ends too.
func TestCredits(t *testing.T) {
	eachWay(t, func(m *member, asks bool, done *sync.WaitGroup) {
		held := make(chan *Incoming, 2*Credits)
		if m.rank == 0 {
			m.links.Serve(func(in *Incoming) { held <- in })
			go func() {
				<-m.probe
				for range Credits + 1 {
					(<-held).Reply(nil, nil)
				}
			}()
		}
		if asks {
			var list []*Pending
			for range Credits {
				list = append(list, m.ask(&Request{}))
			}
			_, err := m.links.Start(0, &Request{Deadline: time.Now().Add(200 * time.Millisecond)})
			assert.ErrorContains(m, err, "a free one of its credits has not come by the deadline")
			assert.Equal(m, status.Timeout, status.CodeOf(err))
			_, err = m.links.Start(0, &Request{Interrupt: func() error { return status.New(status.Interrupted, "") }})
			assert.Equal(m, status.Interrupted, status.CodeOf(err))
			go func() { m.probe <- struct{}{} }()
			next := m.ask(&Request{Deadline: soon()}) // nobody waits for the others
			list = append(list, next)
			for _, p := range list {
				_, err := p.Wait(soon(), nil)
				assert.NoError(m, err)
			}
		}
		finish(done)
	})
}

// lingers tells whether a request whose caller has stopped waiting still uses m.
func lingers(m *Memory) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lingering > 0
}
