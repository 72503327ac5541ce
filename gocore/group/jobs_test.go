package group

import (
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
)

var jobs = flag.Int("jobs", 24, "random jobs over several nodes to try")

// A job is ranks on several nodes that make the same collectives, one after another. At one of them something goes
// wrong with one rank.
type job struct {
	nodes   []int
	steps   []jobStep
	trouble trouble
	at      int           // the step at which it happens
	rank    int           // to which it happens
	after   time.Duration // of that step's begin, or the number of the call of MPI that fails
	slow    bool          // messages take a moment
}

// jobStep is one collective of all ranks. Those that are asynchronous are waited for at the next that is not.
type jobStep struct {
	code  op.Code
	count int64 // of a rank's share
	async bool
}

type trouble int

const (
	none       trouble = iota
	mismatches         // the rank calls another thing; the group stays usable
	refuses            // the rank refuses; the group stays usable
	late               // the rank comes later than the others wait
	interrupts         // Ctrl-C on the rank, for which no other is late
	goes               // the rank ends in good order
	killed             // its process ends, perhaps inside the step
	fails              // MPI fails a call of the rank
	troubles
)

func (t trouble) String() string {
	return []string{"nothing", "a mismatch", "a refusal", "a late rank", "Ctrl-C", "a rank that leaves", "a death", "a failure of MPI"}[t]
}

// ends tells whether the group cannot be used afterwards.
func (t trouble) ends() bool { return t >= late }

// leavesRequests tells whether MPI may keep a request: of a transfer to which some rank does not come any more.
func (t trouble) leavesRequests() bool {
	return t == late || t == interrupts || t == killed || t == fails
}

const (
	// jobPatience is how long ranks wait for one that is late.
	jobPatience = 700 * time.Millisecond
	// jobSlack is how long a call may take, on a busy machine, when some rank has given up, died or left.
	jobSlack = 8 * time.Second
)

func randomJob(r *rand.Rand) *job {
	j := &job{trouble: trouble(r.Intn(int(troubles))), slow: r.Intn(2) == 0}
	nodes, most := 1+r.Intn(6), 1
	if r.Intn(2) == 0 {
		most = 1 + r.Intn(5)
	}
	for node := range nodes {
		for range 1 + r.Intn(most) {
			j.nodes = append(j.nodes, node)
		}
	}
	if len(j.nodes) == 1 {
		j.nodes = append(j.nodes, 1)
	}
	if j.trouble == killed && nodes == 1 && j.nodes[len(j.nodes)-1] == 0 {
		j.trouble = goes // on one node it is the kernel that tells of the end of a process
	}
	if r.Intn(3) == 0 { // the nodes are not in order
		r.Shuffle(len(j.nodes), func(a, b int) { j.nodes[a], j.nodes[b] = j.nodes[b], j.nodes[a] })
	}
	codes := []op.Code{op.AllReduce, op.AllReduce, op.AllReduce, op.ReduceScatter, op.AllGather, op.Broadcast, op.Barrier}
	for range 3 + r.Intn(6) {
		s := jobStep{code: codes[r.Intn(len(codes))], async: r.Intn(3) == 0}
		switch r.Intn(8) {
		case 0:
			s.count = int64(r.Intn(3))
		case 1, 2, 3:
			s.count = 1 + int64(r.Intn(1000))
		case 4, 5, 6:
			s.count = 2000 + int64(r.Intn(50000))
		default:
			s.count = 200000 + int64(r.Intn(400000))
		}
		j.steps = append(j.steps, s)
	}
	j.at, j.rank = r.Intn(len(j.steps)), r.Intn(len(j.nodes))
	j.after = time.Duration(r.Intn(20)) * time.Millisecond
	if j.trouble == fails {
		j.after = time.Duration(1 + r.Intn(12))
	}
	if j.trouble == mismatches && j.steps[j.at].code == op.Barrier {
		j.steps[j.at].code = op.AllReduce
	}
	return j
}

// member is one rank of a job.
type member struct {
	*job
	t      *testing.T
	e      *world.Env
	g      *Group
	calls  []*jobCall    // those that are not waited for
	kept   []*jobCall    // those that have failed
	failAt *atomic.Int64 // calls of MPI until one fails; none if it is below 1
}

// jobCall is one call of a rank.
type jobCall struct {
	jobStep
	step       int
	send, recv op.Buf
	handle     *work.Handle
	began      time.Time
	err        error
}

func (m *member) fatal(format string, args ...any) {
	m.t.Errorf("rank %d: %s\n%+v", m.g.Rank, fmt.Sprintf(format, args...), *m.job)
}

// input is element i of what a rank gives at a step.
func input(rank, step int, i int64) float32 { return float32(rank + 1 + step + int(i%5)) }

func (m *member) begin(step int, count int64, timeout time.Duration) *jobCall {
	c := &jobCall{jobStep: m.steps[step], step: step, began: time.Now()}
	n, size, rank := count, int64(m.g.Size), m.g.Rank
	gives, gets := n, n
	switch c.code {
	case op.ReduceScatter:
		gives = n * size
	case op.AllGather:
		gets = n * size
	}
	make32 := func(n int64) op.Buf { return floats(make([]float32, n)...) }
	c.send, c.recv = make32(gives), make32(gets)
	fill := values(c.send)
	for i := range fill {
		fill[i] = input(rank, step, int64(i))
	}
	var d *op.Desc
	switch c.code {
	case op.AllReduce:
		d = desc(c.code, []op.Buf{c.send}, []op.Buf{c.recv})
		if step%2 == 0 { // in place
			copy(values(c.recv), fill)
			d = desc(c.code, nil, []op.Buf{c.recv})
		}
		d.ReduceOp = op.Sum
	case op.ReduceScatter:
		d = desc(c.code, []op.Buf{c.send}, []op.Buf{c.recv})
		d.ReduceOp = op.Sum
	case op.AllGather:
		d = desc(c.code, []op.Buf{c.send}, []op.Buf{c.recv})
	case op.Broadcast:
		copy(values(c.recv), fill)
		d = desc(c.code, nil, []op.Buf{c.recv})
		d.Root = int32(step) % int32(size)
	default:
		d = desc(c.code, nil, nil)
	}
	d.TimeoutNS = int64(timeout)
	if c.async {
		d.Flags = op.FlagAsync
	}
	c.handle, _, c.err = m.g.Submit(d, false)
	return c
}

// end waits for a call, and checks its result.
func (m *member) end(c *jobCall) {
	if c.async && c.err == nil {
		_, c.err = c.handle.Wait(-1, m.e.Interrupt)
	}
	if took := time.Since(c.began); took > jobSlack {
		m.fatal("step %d took %v: %v", c.step, took, c.err)
	}
	if c.err != nil {
		m.kept = append(m.kept, c)
		return
	}
	if at, got, want := c.wrong(m.g.Rank, m.g.Size); at >= 0 {
		m.fatal("step %d: element %d is %v, not %v", c.step, at, got, want)
	}
	m.free(c)
}

func (m *member) free(c *jobCall) {
	mem.Free(c.send.Data)
	mem.Free(c.recv.Data)
}

// wrong returns the first element of the result that is wrong, -1 if none is.
func (c *jobCall) wrong(rank, size int) (at int64, got, want float32) {
	if c.code == op.Barrier {
		return -1, 0, 0
	}
	for k, v := range values(c.recv) {
		i, want := int64(k), float32(0)
		sum := func(i int64) (sum float32) {
			for r := range size {
				sum += input(r, c.step, i)
			}
			return sum
		}
		switch c.code {
		case op.AllReduce:
			want = sum(i)
		case op.ReduceScatter:
			want = sum(int64(rank)*c.recv.Count + i)
		case op.AllGather:
			want = input(int(i/c.send.Count), c.step, i%c.send.Count)
		case op.Broadcast:
			want = input(c.step%size, c.step, i)
		}
		if v != want {
			return i, v, want
		}
	}
	return -1, 0, 0
}

// play makes the calls until one breaks the group, and returns whether this rank is dead.
func (m *member) play() (dead bool) {
	for step := range m.steps {
		here, mine := step == m.at && m.trouble != none, step == m.at && m.g.Rank == m.rank
		count, timeout := m.steps[step].count, time.Minute
		if m.trouble == late {
			timeout = jobPatience
		}
		if mine {
			switch m.trouble {
			case mismatches:
				count++
			case refuses:
				m.g.refuse(m.steps[step].code)
				continue
			case late:
				time.Sleep(jobPatience + time.Duration(rand.Int63n(int64(jobPatience))))
			case goes:
				m.wait()
				return false
			case interrupts:
				end := time.Now().Add(m.after)
				m.e.Interrupt = func() error {
					if time.Now().Before(end) {
						return nil
					}
					return status.New(status.Interrupted, "Ctrl-C")
				}
			case killed:
				time.AfterFunc(m.after, func() { killsIn(m.e) })
				defer func() { dead = true }()
			case fails:
				m.failAt.Store(int64(m.after))
			}
		}
		c := m.begin(step, count, timeout)
		if c.async && c.err == nil {
			m.calls = append(m.calls, c)
			continue
		}
		m.wait()
		m.end(c)
		if c.err == nil && here && (m.trouble == mismatches || m.trouble == refuses) {
			m.fatal("step %d has no error", step)
		}
		if m.broken() {
			return
		}
	}
	m.wait()
	return
}

// wait ends the asynchronous calls.
func (m *member) wait() {
	for _, c := range m.calls {
		m.end(c)
	}
	m.calls = nil
}

// broken tells whether the group is, and checks the errors so far.
func (m *member) broken() bool {
	for _, c := range m.kept {
		var e *status.Error
		if !errors.As(c.err, &e) {
			m.fatal("step %d: %v", c.step, c.err)
			continue
		}
		allowed := map[trouble][]status.Code{
			mismatches: {status.Mismatch}, refuses: {status.Refused},
			late: {status.Timeout, status.GroupBroken, status.Refused}, interrupts: {status.Interrupted, status.GroupBroken, status.Refused},
			goes: {status.PeerLeft, status.GroupBroken}, killed: {status.PeerDied, status.GroupBroken, status.GroupDestroyed},
			fails: {status.MPI, status.GroupBroken},
		}[m.trouble]
		if !slices.Contains(allowed, e.Code) || c.step < m.at && !m.trouble.ends() {
			m.fatal("step %d has code %v: %v", c.step, e.Code, c.err)
		}
		if !m.trouble.ends() && c.step != m.at {
			m.fatal("step %d: %v", c.step, c.err)
		}
	}
	return m.g.Broken() != nil
}

// killsIn ends a rank whose call may be under way: it goes on with nothing.
func killsIn(e *world.Env) {
	e.Engine.Stop(status.New(status.GroupDestroyed, "dead"), 0)
	dies(e)
}

const untouched = -12345

// checkKept asserts that nobody writes into the tensors of a call that has failed, once its memory is given back.
func (m *member) checkKept() (check func()) {
	var given []*jobCall
	for _, c := range m.kept {
		if c.handle == nil || c.handle.Settled() {
			given = append(given, c)
			for _, b := range []op.Buf{c.send, c.recv} {
				for i := range values(b) {
					values(b)[i] = untouched
				}
			}
		}
	}
	return func() {
		for _, c := range given {
			for _, b := range []op.Buf{c.send, c.recv} {
				if i := slices.IndexFunc(values(b), func(v float32) bool { return v != untouched }); i >= 0 {
					m.fatal("step %d, which has failed (%v): somebody wrote element %d", c.step, c.err, i)
				}
			}
			m.free(c)
		}
	}
}

func (j *job) run(t *testing.T, seed int64) {
	var failAt atomic.Int64
	hook := func(rank, k int, c *mpi.Call) (time.Duration, error) {
		if (c.Fn == mpi.FnSend || c.Fn == mpi.FnRecv) && c.Tag >= coll.ArrivalTag && rank == j.rank && failAt.Load() > 0 && failAt.Add(-1) == 0 {
			return 0, status.New(status.MPI, "injected")
		}
		if j.slow && (int64(k)*7919+int64(rank)*31+seed)%11 == 0 {
			return time.Duration((int64(k)*104729+seed)%2000) * time.Microsecond, nil
		}
		return 0, nil
	}
	libs := mpifake.New(len(j.nodes), mpifake.Nodes(j.nodes), mpifake.WithHook(hook))
	var all, played sync.WaitGroup
	for _, lib := range libs {
		all.Add(1)
		played.Add(1)
		go func() {
			defer all.Done()
			played := sync.OnceFunc(played.Done)
			defer played()
			e, err := world.NewEnv(mpifake.World(lib), 20*time.Second, nil)
			if !assert.NoError(t, err) {
				return
			}
			g, err := World(e, 0, time.Minute)
			if !assert.NoError(t, err) {
				return
			}
			m := &member{job: j, t: t, e: e, g: g, failAt: &failAt}
			_, comm := mpi.Of(g.collComm)
			underWay := mpifake.UnderWay(lib, comm)
			dead := m.play()
			m.broken()
			e.Interrupt = nil
			check := m.checkKept()
			if !dead {
				_, err = e.Leave()
				assert.NoError(t, err)
				finalizable := e.Departure.AwaitDepartures()
				if !finalizable && j.trouble != killed && j.trouble != fails {
					m.fatal("MPI cannot be finalized")
				}
				if n := underWay(); n > 0 && !j.trouble.leavesRequests() {
					m.fatal("%d requests were not released", n)
				}
			}
			played()
			check()
		}()
	}
	all.Wait()
}

// Ranks on any nodes make collectives of any length, and one of them gets into trouble. Each call ends in time, with
// the right result or an error of the right kind, and nothing is left behind.
func TestRandomJobsOverNodes(t *testing.T) {
	const together = 3
	seeds := make(chan int64)
	var workers sync.WaitGroup
	for range together {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for seed := range seeds {
				j := randomJob(rand.New(rand.NewSource(seed)))
				done := make(chan struct{})
				go func() {
					select {
					case <-done:
					case <-time.After(90 * time.Second):
						panic(fmt.Sprintf("seed %d hangs: %+v", seed, *j))
					}
				}()
				began := time.Now()
				j.run(t, seed)
				close(done)
				if testing.Verbose() {
					t.Logf("seed %d: %v at step %d of rank %d, nodes %v: %v", seed, j.trouble, j.at, j.rank, j.nodes, time.Since(began))
				}
			}
		}()
	}
	for seed := range *jobs {
		seeds <- int64(seed)
	}
	close(seeds)
	workers.Wait()
}
