package link

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/segment"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Tests with two processes that share their heaps: rank 0 is the test, and rank 1 this program once
// more, which runs one of the parts below. They talk over pipes, without MPI.

const partVariable = "PADDLEMPI_LINK_TEST_PART"

func TestMain(m *testing.M) {
	if part := parts[os.Getenv(partVariable)]; part != nil {
		part(newPair(1, os.Stdin, os.Stdout))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// pair is a group of two processes.
type pair struct {
	me     int
	from   *bufio.Reader
	to     io.Writer
	view   *heap.View
	engine *work.Engine
}

func newPair(me int, from io.Reader, to io.Writer) *pair {
	g := &pair{me: me, from: bufio.NewReader(from), to: to, engine: work.NewEngine()}
	own, err := heap.OfProcess()
	if err != nil {
		panic(err)
	}
	address := own.Address().Words()
	all, err := g.tell(address[:])
	if err != nil {
		panic(err)
	}
	if g.view, err = heap.Open(segment.Of([3]int64(all[1-me]))); err != nil {
		panic(err)
	}
	return g
}

func (g *pair) tell(words []int64) ([][]int64, error) {
	line, err := json.Marshal(words)
	if err != nil {
		return nil, err
	}
	if _, err := g.to.Write(append(line, '\n')); err != nil {
		return nil, err
	}
	if line, err = g.from.ReadBytes('\n'); err != nil {
		return nil, err
	}
	all := [][]int64{words, words}
	all[1-g.me] = nil
	return all, json.Unmarshal(line, &all[1-g.me])
}

func (g *pair) Me() (rank, size int)         { return g.me, 2 }
func (g *pair) WorldRank(member int) int     { return member }
func (g *pair) HeapOf(member int) *heap.View { return map[int]*heap.View{1 - g.me: g.view}[member] }
func (g *pair) Engine() *work.Engine         { return g.engine }
func (g *pair) Crowded() bool                { return true }
func (g *pair) Use() (done func())           { return func() {} }
func (g *pair) Separate(_ string, _ time.Duration, meanwhile func(tell func([]int64) ([][]int64, error)) error) (transport.Comm, error) {
	return nil, meanwhile(g.tell)
}

func (g *pair) Trouble(what string, member int) error {
	if dead, _ := g.view.Dead(); member != g.me && dead {
		return status.New(status.PeerDied, "%s: rank %d died", what, member).WithRanks(member)
	}
	return nil
}

// parts are what rank 1 does. The process ends when it is killed, or when the part returns.
var parts = map[string]func(*pair){
	"echo": func(g *pair) {
		l := must(Open(g, []int{1}, time.Minute))
		l.Serve(echo)
		for l.Lost(0) == nil {
			time.Sleep(time.Millisecond)
		}
		if err := l.Close(); err != nil {
			panic(err)
		}
	},
	"keep": func(g *pair) { // never replies
		must(Open(g, []int{1}, time.Minute)).Serve(func(*Incoming) {})
		select {}
	},
	"ask": func(g *pair) { // is killed while it asks
		l := must(Open(g, []int{0}, time.Minute))
		m := must(l.Memory(100_000))
		for {
			must(must(l.Start(0, &Request{Header: []byte("ask"), Values: all(m), Answer: all(m)})).Wait(time.Time{}, nil))
		}
	},
	"scribble": func(g *pair) { // writes into the ring while it asks
		l := must(Open(g, []int{0}, time.Minute))
		m := must(l.Memory(1000))
		ask := func() error {
			p, err := l.Start(0, &Request{Header: []byte("ask"), IDs: all(m), Answer: all(m)})
			if err == nil {
				_, err = p.Wait(time.Time{}, nil)
			}
			return err
		}
		if err := ask(); err != nil {
			panic(err)
		}
		s := l.outlets[0].by.(*sharedOutlet)
		for n := 0; ask() == nil; n++ {
			words := bytesOf(unsafe.Pointer(s.ring), int64(unsafe.Offsetof(ring{}.requests)))
			words[rand.IntN(len(words))] ^= 1 << rand.IntN(8)
			s.wake()
		}
		if _, err := g.tell(nil); err != nil {
			panic(err)
		}
	},
}

func must[T any](x T, err error) T {
	if err != nil {
		panic(err)
	}
	return x
}

// start starts rank 1. end kills it.
func startPart(t *testing.T, part string) (g *pair, kill func()) {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), partVariable+"="+part)
	to, err := c.StdinPipe()
	require.NoError(t, err)
	from, err := c.StdoutPipe()
	require.NoError(t, err)
	var text bytes.Buffer
	c.Stderr = &text
	require.NoError(t, c.Start())
	var once sync.Once
	kill = func() {
		once.Do(func() {
			_ = c.Process.Kill()
			_ = c.Wait()
		})
	}
	limit := time.AfterFunc(time.Minute, func() { _ = c.Process.Kill() })
	t.Cleanup(func() {
		limit.Stop()
		kill()
		if t.Failed() {
			t.Logf("rank 1: %s", text.String())
		}
	})
	return newPair(0, from, to), kill
}

func TestTwoProcesses(t *testing.T) {
	before := used(t)
	g, _ := startPart(t, "echo")
	l, err := Open(g, []int{1}, time.Minute)
	require.NoError(t, err)
	ids, values, answer := must(l.Memory(8000)), must(l.Memory(100_000)), must(l.Memory(200_000))
	for range 20 {
		copy(ids.Bytes(), random(8000))
		copy(values.Bytes(), random(100_000))
		p, err := l.Start(0, &Request{Header: []byte("abc"), IDs: all(ids), Values: all(values), Answer: all(answer)})
		require.NoError(t, err)
		header, err := p.Wait(soon(), nil)
		require.NoError(t, err)
		assert.Equal(t, "cba", string(header))
		want := make([]byte, 200_000)
		fill(want, values.Bytes(), ids.Bytes())
		require.True(t, bytes.Equal(want, answer.Bytes()))
	}
	shared, remote, local := l.Bytes()
	assert.Equal(t, []uint64{20 * 308_006, 0, 0}, []uint64{shared, remote, local})
	for _, m := range []*Memory{ids, values, answer} {
		m.Free()
	}
	assert.NoError(t, l.Close())
	assert.Equal(t, before, used(t))
}

// The death of a server ends a wait, and gives the memory back that only the server used.
func TestAServerDies(t *testing.T) {
	before := used(t)
	g, kill := startPart(t, "keep")
	l, err := Open(g, []int{1}, time.Minute)
	require.NoError(t, err)
	answer := must(l.Memory(1000))
	var list []*Pending
	for range Credits {
		list = append(list, must(l.Start(0, &Request{Answer: all(answer)})))
	}
	go func() {
		time.Sleep(100 * time.Millisecond)
		kill()
	}()
	began := time.Now()
	_, err = l.Start(0, &Request{}) // waits for a credit
	assert.Equal(t, status.PeerDied, status.CodeOf(err))
	for _, p := range list {
		_, err = p.Wait(time.Time{}, nil)
		assert.Equal(t, status.PeerDied, status.CodeOf(err))
		assert.ErrorContains(t, err, "a request to the server on rank 1: rank 1 died")
	}
	assert.Less(t, time.Since(began), 10*time.Second)
	assert.Zero(t, answer.inUse)
	answer.Free()
	assert.NoError(t, l.Close())
	assert.Equal(t, before, used(t))
}

// The death of a trainer takes nothing from its server but its requests.
func TestATrainerDies(t *testing.T) {
	g, kill := startPart(t, "ask")
	l, err := Open(g, []int{0}, time.Minute)
	require.NoError(t, err)
	last := make(chan *Incoming, 1)
	n := 0
	l.Serve(func(in *Incoming) {
		if in.From == 0 {
			echo(in)
		} else if n++; n < 100 {
			echo(in)
		} else {
			last <- in
		}
	})
	in := <-last
	assert.NoError(t, l.Lost(1))
	kill()
	require.Eventually(t, func() bool { return l.Lost(1) != nil }, 10*time.Second, 10*time.Millisecond)
	assert.Equal(t, status.PeerDied, status.CodeOf(l.Lost(1)))
	echo(in) // its memory is still there
	p, err := l.Start(0, &Request{Header: []byte("own")})
	require.NoError(t, err)
	header, err := p.Wait(soon(), nil)
	assert.NoError(t, err)
	assert.Equal(t, "nwo", string(header))
	assert.NoError(t, l.Close())
}

// A trainer that writes into its ring loses its server, which goes on.
func TestATrainerScribbles(t *testing.T) {
	for range 5 {
		g, _ := startPart(t, "scribble")
		l, err := Open(g, []int{0}, time.Minute)
		require.NoError(t, err)
		l.Serve(func(in *Incoming) { in.Reply(nil, nil) })
		_, err = g.tell(nil)
		require.NoError(t, err, "rank 1 got an error, and did not crash")
		p, err := l.Start(0, &Request{Header: []byte("own")})
		require.NoError(t, err)
		_, err = p.Wait(soon(), nil)
		assert.NoError(t, err)
		assert.NoError(t, l.Close())
	}
}
