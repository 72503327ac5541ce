package rollcall

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// ranks are the calls of the ranks of a node, all in this process.
type ranks struct {
	calls []*call
	name  string
	mu    sync.Mutex
	lines []string
}

func newRanks(t *testing.T, n int, timeout time.Duration) *ranks {
	r := &ranks{name: fmt.Sprintf("@paddlempi-test-%d-%s", os.Getpid(), t.Name())}
	for i := range n {
		r.calls = append(r.calls, &call{place: mpi.LauncherInfo{PID: os.Getpid(), Size: n, LocalSize: n, Rank: i, LocalRank: i}, began: time.Now(),
			timeout: timeout, exit: func(int) { panic("exit") }, write: r.write})
	}
	return r
}

func (r *ranks) write(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line)
}

// gather lets some ranks come and returns their errors.
func (r *ranks) gather(which ...int) map[int]error {
	errs := map[int]error{}
	var all sync.WaitGroup
	for _, i := range which {
		all.Add(1)
		go func() {
			defer all.Done()
			r.calls[i].began = time.Now()
			err := r.calls[i].gather(r.name)
			r.mu.Lock()
			defer r.mu.Unlock()
			errs[i] = err
		}()
	}
	all.Wait()
	return errs
}

func TestAllCome(t *testing.T) {
	r := newRanks(t, 8, time.Minute)
	for range 3 { // the name is free again each time
		for i, err := range r.gather(0, 1, 2, 3, 4, 5, 6, 7) {
			require.NoError(t, err)
			assert.True(t, r.calls[i].complete)
			assert.Empty(t, r.calls[i].apart)
		}
	}
	assert.Empty(t, r.lines)
}

func TestThoseMissingAreNamed(t *testing.T) {
	r := newRanks(t, 4, 300*time.Millisecond)
	for _, c := range r.calls {
		c.ReportAfter = 100 * time.Millisecond
	}
	for _, err := range r.gather(0, 2) {
		require.ErrorContains(t, err, "rank(s) [1 3] of 4 had not called init_process_group: rank 1 has no process on this host")
		assert.Equal(t, status.Timeout, status.CodeOf(err))
		assert.Equal(t, []int{1, 3}, err.(*status.Error).Ranks)
	}
	require.Len(t, r.lines, 1, "only one rank reports")
	assert.Contains(t, r.lines[0], "s in init_process_group: rank(s) [1 3] of 4 have not called it: rank 1 has no process")
	// Those that have given up come again.
	for _, err := range r.gather(0, 1, 2, 3) {
		require.NoError(t, err)
	}
}

func TestOneWithAnEarlierDeadline(t *testing.T) {
	r := newRanks(t, 3, 400*time.Millisecond)
	r.calls[1].timeout = 150 * time.Millisecond
	began := time.Now()
	for _, err := range r.gather(0, 1) {
		assert.ErrorContains(t, err, "rank(s) [2] of 3", "not rank 1, which had come")
	}
	assert.GreaterOrEqual(t, time.Since(began), 400*time.Millisecond)
}

func TestTheRankThatCallsIsInterrupted(t *testing.T) {
	r := newRanks(t, 3, 20*time.Second)
	pressed := errors.New("Ctrl-C")
	came := make(chan bool)
	r.calls[0].Interrupt = func() error {
		select {
		case <-came:
			return pressed
		default:
			return nil
		}
	}
	first, second := make(chan error), make(chan error)
	go func() { first <- r.gather(0)[0] }()
	time.Sleep(50 * time.Millisecond)
	go func() { second <- r.gather(1)[1] }()
	time.Sleep(50 * time.Millisecond)
	close(came)
	require.ErrorIs(t, <-first, pressed)
	r.calls[0].Interrupt = nil
	for _, err := range r.gather(0, 2) {
		require.NoError(t, err)
	}
	require.NoError(t, <-second)
}

func TestTheRankThatCallsIsStopped(t *testing.T) {
	r := newRanks(t, 2, 3200*time.Millisecond)
	listener, _, err := listen(r.name)
	require.NoError(t, err)
	defer closeAll(listener)
	r.calls[1].ReportAfter = 10 * time.Millisecond
	require.ErrorContains(t, r.gather(1)[1], "had not called init_process_group: process")
	require.Len(t, r.lines, 1)
	assert.Contains(t, r.lines[0], "calls the roll of this host, does not answer: it may be stopped")
}

// TestTheSocketIsAnotherUsers runs this test again as another user, who has the socket then.
func TestTheSocketIsAnotherUsers(t *testing.T) {
	if name, there := os.LookupEnv("ROLLCALL_NAME"); there {
		_, _, err := listen(name)
		fmt.Println("listens", err)
		_, _ = os.Stdin.Read(make([]byte, 1))
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can start a process of another user")
	}
	r := newRanks(t, 2, 20*time.Second)
	self, err := os.Open("/proc/self/exe") // the other user may not enter the folder of the test
	require.NoError(t, err)
	other := exec.Command("/proc/self/fd/3", "-test.run", "^"+t.Name()+"$")
	other.ExtraFiles = []*os.File{self}
	other.Env = []string{"ROLLCALL_NAME=" + r.name}
	other.Dir = "/"
	other.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	in, err := other.StdinPipe()
	require.NoError(t, err)
	out, err := other.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, other.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "listens <nil>\n", line)
	require.NoError(t, r.gather(0)[0], "a stranger does not keep the ranks from MPI_Init")
	assert.Contains(t, r.calls[0].apart, "a process of another user has the socket")
	in.Close()
	_ = other.Wait()
}

func TestTwoProcessesWithOneRank(t *testing.T) {
	r := newRanks(t, 2, 300*time.Millisecond)
	r.calls[1].place.Rank = 0
	var twice int
	for _, err := range r.gather(0, 1) {
		require.Error(t, err)
		if status.CodeOf(err) == status.Launcher {
			assert.ErrorContains(t, err, "both are rank 0 of the job")
			twice++
		}
	}
	assert.Equal(t, 1, twice)
}

func TestWhatIsNoMessageIsLeftOut(t *testing.T) {
	r := newRanks(t, 2, 10*time.Second)
	over := make(chan map[int]error)
	go func() { over <- r.gather(0) }()
	for _, text := range []string{"x", "{}", `{"Kind":"hello","Rank":7}`, `{"Kind":"hello","Rank":1,"Local":-3}`, `{"Kind":"bye"}`, strings.Repeat("a", longest)} {
		require.Eventually(t, func() bool {
			conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: r.name, Net: "unixpacket"})
			if err != nil {
				return false
			}
			defer conn.Close()
			_, err = conn.Write([]byte(text))
			return err == nil
		}, 5*time.Second, 5*time.Millisecond)
	}
	require.NoError(t, r.gather(1)[1])
	require.NoError(t, (<-over)[0])
}

func TestWhoIsMissingOnOneOfSeveralNodes(t *testing.T) {
	for _, c := range []struct {
		came, seen map[int]int // by rank, the number on the node
		text       string
	}{
		{map[int]int{4: 0, 5: 1}, nil, "rank(s) [6 7] of the 4 ranks of this host"},
		{map[int]int{4: 0}, map[int]int{7: 3}, "rank(s) [5 6 7] of the 4 ranks of this host"},
		{map[int]int{4: 0}, nil, "local rank(s) [1 2 3] of the 4 ranks of this host"},
		{map[int]int{1: 0, 3: 1}, nil, "local rank(s) [2 3] of the 4 ranks of this host"},
		{map[int]int{1: 0, 3: 1}, map[int]int{5: 2}, "rank(s) [5] and local rank(s) [3] of the 4 ranks of this host"},
	} {
		r := &roll{call: &call{place: mpi.LauncherInfo{PID: os.Getpid(), Size: 8, LocalSize: 4}}, came: map[int]guest{}, known: map[int]int{}}
		for rank, local := range c.came {
			r.came[rank] = guest{nil, local}
		}
		maps.Copy(r.known, c.seen)
		assert.Equal(t, c.text, r.absent().who)
	}
}

func TestAnMPIOfAnother(t *testing.T) {
	line := func(file string) string { return "7f00-7f01 r-xp 00000000 00:2b 123        " + file + "\n" }
	core, libmpi, theirs := line("/v/paddlempi/_core.abi3.so"), line("/v/lib/libmpi.so.12.2"), line("/v/mpi4py/MPI.mpich.abi3.so")
	assert.Empty(t, ownMPI(line("[heap]")+core))
	assert.Empty(t, ownMPI(core+libmpi), "is_available loads it")
	assert.Equal(t, "/v/lib/libmpi.so.12.2", ownMPI(libmpi))
	assert.Equal(t, "/v/lib/libmpi.so.12.2", ownMPI(core+theirs+libmpi))
}

func TestTheWatchEndsTheProcess(t *testing.T) {
	r := newRanks(t, 4, 300*time.Millisecond)
	c := r.calls[2]
	c.ReportAfter, c.complete, c.speaks = 100*time.Millisecond, true, true
	c.place.LocalSize = 2 // there are other nodes
	ended := make(chan int, 1)
	c.exit = func(code int) { ended <- code }
	stop := c.Watch()
	assert.Equal(t, endStatus, <-ended)
	stop()
	require.Len(t, r.lines, 2)
	assert.Contains(t, r.lines[0], "s in MPI_Init: all 2 ranks of this host have called init_process_group; some of the other 2 have not")
	assert.Contains(t, r.lines[1], "this process ends with status 1, at the deadline of init_process_group (300ms)")
}

func TestTheWatchIsPatientIfAllCame(t *testing.T) {
	r := newRanks(t, 2, 50*time.Millisecond)
	r.calls[0].complete = true
	stop := r.calls[0].Watch()
	time.Sleep(200 * time.Millisecond)
	stop()
	assert.Empty(t, r.lines)
}

func BenchmarkGather(b *testing.B) {
	r := &ranks{name: fmt.Sprintf("@paddlempi-bench-%d", os.Getpid())}
	for i := range 4 {
		r.calls = append(r.calls, &call{place: mpi.LauncherInfo{Size: 4, LocalSize: 4, Rank: i, LocalRank: i}})
	}
	for b.Loop() {
		r.gather(0, 1, 2, 3)
	}
}
