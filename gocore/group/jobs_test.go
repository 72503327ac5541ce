package group

import (
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/world"
)

var (
	jobs     = flag.Int("jobs", 24, "random jobs over several nodes to try")
	firstJob = flag.Int64("job", 0, "the seed of the first of them")
	jobsFor  = flag.Duration("jobs-for", 0, "how long to try random jobs, each time others; 0: as many as -jobs says")
)

// A job is ranks on several nodes that make the same collectives, one after another. At one or two of them something
// goes wrong with one rank.
type job struct {
	seed      int64
	nodes     []int
	steps     []jobStep
	accidents []accident
	slow      bool // messages take a moment
	lags      bool // and ranks come at different moments
}

// jobStep is one collective of all ranks. Those that are asynchronous are waited for at the next that is not.
type jobStep struct {
	code   op.Code
	count  int64 // of a rank's share
	dtype  op.DType
	uneven bool // the shares differ
	where  memory
	async  bool
}

// memory says where tensors lie.
type memory int

const (
	elsewhere memory = iota
	inHeaps
	someInHeaps
	memories
)

// accident is what goes wrong.
type accident struct {
	what  trouble
	at    int           // the step at which it happens
	rank  int           // to which it happens
	after time.Duration // of that step's begin
	call  int64         // or the number of the call of MPI, from that step's begin on; 0: after counts
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

// has tells whether something of the kind goes wrong.
func (j *job) has(is func(t trouble) bool) bool {
	return slices.ContainsFunc(j.accidents, func(a accident) bool { return is(a.what) })
}

func (j *job) hasAny(of ...trouble) bool {
	return j.has(func(t trouble) bool { return slices.Contains(of, t) })
}

// stood is for how many nanoseconds this process has stood still so far, because somebody stopped it or the machine slept.
var stood atomic.Int64

// watchClock counts them until done is closed.
func watchClock(done <-chan struct{}) {
	const usual, long = 100 * time.Millisecond, 3 * time.Second
	for last := time.Now(); ; {
		select {
		case <-done:
			return
		case <-time.After(usual):
		}
		if since := time.Since(last); since > long {
			stood.Add(int64(since))
		}
		last = time.Now()
	}
}

// jobLimit is how long a job may take.
const jobLimit = 90 * time.Second

// panicIfHangs ends the test if a job is not over in time.
func (j *job) panicIfHangs(done <-chan struct{}) {
	began, before := time.Now(), stood.Load()
	for time.Since(began)-time.Duration(stood.Load()-before) < jobLimit {
		select {
		case <-done:
			return
		case <-time.After(time.Second):
		}
	}
	panic(fmt.Sprintf("seed %d hangs: %+v", j.seed, *j))
}

const (
	// jobPatience is how long ranks wait for one that is late.
	jobPatience = 700 * time.Millisecond
	// jobSlack is how long a call may take, on a busy machine, when some rank has given up, died or left.
	jobSlack = 8 * time.Second
)

func randomJob(seed int64) *job {
	r := rand.New(rand.NewSource(seed))
	j := &job{seed: seed, slow: r.Intn(2) == 0, lags: r.Intn(4) == 0}
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
	oneNode := nodes == 1 && j.nodes[len(j.nodes)-1] == 0
	if r.Intn(3) == 0 { // the nodes are not in order
		r.Shuffle(len(j.nodes), func(a, b int) { j.nodes[a], j.nodes[b] = j.nodes[b], j.nodes[a] })
	}
	for range 3 + r.Intn(6) {
		j.steps = append(j.steps, randomStep(r, len(j.nodes)))
	}
	for range 1 + r.Intn(5)/4 {
		a := randomAccident(r, j)
		if a.what == killed && oneNode {
			a.what = goes // on one node it is the kernel that tells of the end of a process
		}
		if a.what != none {
			j.accidents = append(j.accidents, a)
		}
	}
	return j
}

func randomStep(r *rand.Rand, ranks int) jobStep {
	codes := []op.Code{op.AllReduce, op.AllReduce, op.AllReduce, op.AllReduceCoalesced, op.ReduceScatter, op.AllGather, op.Broadcast, op.Reduce, op.Barrier}
	s := jobStep{code: codes[r.Intn(len(codes))], dtype: op.Float32, async: r.Intn(3) == 0, where: memory(r.Intn(int(memories))), uneven: r.Intn(3) == 0}
	if r.Intn(4) == 0 {
		s.dtype = op.Float16
	}
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
	if s.code == op.ReduceScatter || s.code == op.AllGather { // each rank has a share
		s.count = s.count * 2 / int64(ranks)
	}
	return s
}

func randomAccident(r *rand.Rand, j *job) accident {
	a := accident{what: trouble(r.Intn(int(troubles))), at: r.Intn(len(j.steps)), rank: r.Intn(len(j.nodes)), after: time.Duration(r.Intn(20)) * time.Millisecond}
	if a.what == fails || a.what == killed && r.Intn(2) == 0 {
		a.call = 1 + int64(r.Intn(12))
	}
	if a.what == mismatches && j.steps[a.at].code == op.Barrier {
		j.steps[a.at].code = op.AllReduce
	}
	return a
}

// member is one rank of a job.
type member struct {
	*job
	t     *testing.T
	e     *world.Env
	g     *Group
	calls []*jobCall     // those that are not waited for
	kept  []*jobCall     // those that have failed
	until []atomic.Int64 // calls of MPI until each accident happens; none if it is below 1
	lag   *rand.Rand     // nil: it comes at once
	kill  func()         // ends this rank
}

func (m *member) fatal(format string, args ...any) {
	m.t.Errorf("rank %d: %s\nseed %d: %+v", m.g.Rank, fmt.Sprintf(format, args...), m.seed, *m.job)
}

// allowed are the codes of errors that come of each trouble.
var allowed = map[trouble][]status.Code{
	mismatches: {status.Mismatch}, refuses: {status.Refused},
	// The goroutines of a rank that is killed go on for a moment: its queued calls become refusals. After Ctrl-C a rank leaves, perhaps before the others hear of its refusal.
	late: {status.Timeout, status.GroupBroken, status.Refused}, interrupts: {status.Interrupted, status.GroupBroken, status.Refused, status.PeerLeft},
	goes: {status.PeerLeft, status.GroupBroken}, killed: {status.PeerDied, status.GroupBroken, status.GroupDestroyed, status.Refused},
	fails: {status.MPI, status.GroupBroken},
}

// play makes the calls until one breaks the group, and returns whether this rank is dead.
func (m *member) play() (dead bool) {
	for step := range m.steps {
		if m.lag != nil {
			time.Sleep(time.Duration(m.lag.Int63n(int64(3 * time.Millisecond))))
		}
		count, timeout := m.steps[step].count, time.Minute
		if m.hasAny(late) {
			timeout = jobPatience
		}
		fit := true
		for i := range m.accidents {
			a := &m.accidents[i]
			if step == a.at && !a.what.ends() {
				fit = false
			}
			if step != a.at || m.g.Rank != a.rank {
				continue
			}
			switch a.what {
			case mismatches:
				count += int64(1 + i)
			case refuses:
				_ = m.g.Refuse(m.steps[step].code)
				count = -1
			case late:
				time.Sleep(jobPatience + time.Duration(rand.Int63n(int64(jobPatience))))
			case goes:
				m.wait()
				return dead
			case interrupts:
				end := time.Now().Add(a.after)
				m.e.Interrupt = func() error {
					if time.Now().Before(end) {
						return nil
					}
					return status.New(status.Interrupted, "Ctrl-C")
				}
			case killed, fails:
				if a.what == killed {
					dead = true
				}
				if a.call == 0 {
					time.AfterFunc(a.after, m.kill)
				} else {
					m.until[i].Store(a.call)
				}
			}
		}
		if count < 0 {
			continue
		}
		c := m.begin(step, count, timeout)
		if c.async && c.err == nil {
			m.calls = append(m.calls, c)
			continue
		}
		m.wait()
		m.end(c)
		if c.err == nil && !fit {
			m.fatal("step %d has no error", step)
		}
		if m.broken() {
			return dead
		}
	}
	m.wait()
	return dead
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
		if !slices.ContainsFunc(m.accidents, func(a accident) bool {
			return slices.Contains(allowed[a.what], e.Code) && (a.what.ends() || a.at == c.step)
		}) {
			m.fatal("step %d has code %v: %v", c.step, e.Code, c.err)
		}
	}
	return m.g.Broken() != nil
}

// killsIn ends a rank whose call may be under way: it goes on with nothing.
func killsIn(e *world.Env) {
	e.Engine.Stop(status.New(status.GroupDestroyed, "dead"), 0)
	dies(e)
}

const untouched = 1234

// checkKept asserts that nobody writes into the tensors of a call that has failed, once its memory is given back.
func (m *member) checkKept() (check func()) {
	var given []*jobCall
	mark := func(int64) float32 { return untouched }
	for _, c := range m.kept {
		if c.handle == nil || c.handle.Settled() {
			given = append(given, c)
			for _, b := range slices.Concat(c.send, c.recv) {
				put(b, mark)
			}
		}
	}
	return func() {
		for _, c := range given {
			for _, b := range slices.Concat(c.send, c.recv) {
				if i := differs(b, mark); i >= 0 {
					m.fatal("step %d, which has failed (%v): somebody wrote element %d", c.step, c.err, i)
				}
			}
			c.free()
		}
	}
}

// hook makes calls of MPI take a moment, and fails or kills their rank where that is due. kills has what ends a rank.
func (j *job) hook(until []atomic.Int64, kills []atomic.Pointer[func()]) mpifake.Hook {
	return func(rank, k int, c *mpi.Call) (time.Duration, error) {
		if (c.Fn == mpi.FnSend || c.Fn == mpi.FnRecv) && c.Tag >= coll.ArrivalTag {
			for i, a := range j.accidents {
				if a.rank != rank || until[i].Load() <= 0 || until[i].Add(-1) != 0 {
					continue
				}
				if a.what == fails {
					return 0, status.New(status.MPI, "injected")
				}
				if kill := kills[rank].Load(); kill != nil {
					go (*kill)()
				}
			}
		}
		if j.slow && (int64(k)*7919+int64(rank)*31+j.seed)%11 == 0 {
			return time.Duration((int64(k)*104729+j.seed)%2000) * time.Microsecond, nil
		}
		return 0, nil
	}
}

func (j *job) run(t *testing.T) {
	until, kills := make([]atomic.Int64, len(j.accidents)), make([]atomic.Pointer[func()], len(j.nodes))
	libs := mpifake.New(len(j.nodes), mpifake.Nodes(j.nodes), mpifake.WithHook(j.hook(until, kills)))
	var all, played sync.WaitGroup
	for rank, lib := range libs {
		all.Add(1)
		played.Add(1)
		go func() {
			defer all.Done()
			played := sync.OnceFunc(played.Done)
			defer played()
			e, err := newEnv(t, lib)
			if !assert.NoError(t, err) {
				return
			}
			g, err := World(e, 0, time.Minute)
			if !assert.NoError(t, err) {
				return
			}
			kill := sync.OnceFunc(func() { killsIn(e) })
			kills[rank].Store(&kill)
			m := &member{job: j, t: t, e: e, g: g, until: until, kill: kill}
			if j.lags {
				m.lag = rand.New(rand.NewSource(j.seed + int64(rank)))
			}
			_, comm := mpi.Of(g.collComm)
			underWay := mpifake.UnderWay(lib, comm)
			dead := m.play()
			if dead {
				kill() // if it has made fewer calls of MPI
			}
			m.broken()
			e.Interrupt = nil
			check := m.checkKept()
			if !dead {
				_, err = e.Leave()
				assert.NoError(t, err)
				finalizable := e.Departure.AwaitDepartures()
				if !finalizable && !j.hasAny(killed, fails) {
					m.fatal("MPI cannot be finalized")
				}
				if n := underWay(); n > 0 && !j.has(trouble.leavesRequests) {
					m.fatal("%d requests were not released", n)
				}
			}
			played()
			check()
		}()
	}
	all.Wait()
}

// jobsInTurn runs this test for a while in one process after another: a job that ends in trouble keeps its memory.
func jobsInTurn(t *testing.T) {
	const inOne = 60
	began := time.Now()
	for seed := began.UnixMilli() * 1000; time.Since(began) < *jobsFor; seed += inOne {
		part := exec.Command(os.Args[0], "-test.run=^TestRandomJobsOverNodes$", "-jobs", fmt.Sprint(inOne), "-job", fmt.Sprint(seed))
		if printed, err := part.CombinedOutput(); err != nil {
			t.Errorf("jobs from seed %d on: %v\n%s", seed, err, printed)
		}
	}
}

// Ranks on any nodes make collectives of any length, and one or two of them get into trouble. Each call ends in time,
// with the right result or an error of the right kind, and nothing is left behind.
func TestRandomJobsOverNodes(t *testing.T) {
	if *jobsFor > 0 {
		jobsInTurn(t)
		return
	}
	const together = 3
	var workers sync.WaitGroup
	todo, over := make(chan int64), make(chan struct{})
	go watchClock(over)
	defer close(over)
	for range together {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for seed := range todo {
				j := randomJob(seed)
				done := make(chan struct{})
				go j.panicIfHangs(done)
				began := time.Now()
				j.run(t)
				close(done)
				if testing.Verbose() {
					t.Logf("seed %d: %v, nodes %v: %v", seed, j.accidents, j.nodes, time.Since(began))
				}
			}
		}()
	}
	for seed := range *jobs {
		todo <- *firstJob + int64(seed)
	}
	close(todo)
	workers.Wait()
}
