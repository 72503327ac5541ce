package pmi

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/dl"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// rankVariable has a part as JSON. With it the test program is a rank of a job, and runs no tests.
const rankVariable = "PADDLEMPI_TEST_RANK"

// part is what a rank of a test does.
type part struct {
	Rank    int
	Node    []int
	Library string
	Store   string // the address of the store, at which the ranks meet
	Act     string // "": all_reduce and finalize; "abort"; "fail": its gather at the first barrier fails; "die": it ends there; "late": it waits there; "alone": it has started MPI before
	Long    bool   // leave the mapping out
	Timeout time.Duration
}

func TestMain(m *testing.M) {
	text, isRank := os.LookupEnv(rankVariable)
	if !isRank {
		os.Exit(m.Run())
	}
	var p part
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		panic(err)
	}
	if err := p.run(); err != nil {
		removeSegments()
		fmt.Println("error:", err)
		os.Exit(3)
	}
}

// run is the whole life of a rank.
func (p part) run() error {
	store, err := net.Dial(network(p.Store), p.Store)
	if err != nil {
		return err
	}
	if _, err := store.Write([]byte{byte(p.Rank)}); err != nil {
		return err
	}
	calls := 0
	gather := func(mine []byte) ([][]byte, error) {
		if calls++; calls == 2 && p.Act == "fail" {
			return nil, errors.New("no store here")
		} else if calls == 2 && p.Act == "die" {
			removeSegments()
			os.Exit(9)
		} else if calls == 2 && p.Act == "late" {
			time.Sleep(2 * p.Timeout)
		}
		_ = store.SetDeadline(time.Now().Add(p.Timeout))
		all, err := exchange(store, mine, len(p.Node))
		if err != nil {
			return nil, fmt.Errorf("the store has closed: %w", err)
		}
		return all, nil
	}
	if p.Long {
		maxMapping = 10
	}
	if p.Act == "alone" {
		if _, err := mpi.Open(mpi.Options{Path: p.Library}); err != nil {
			return err
		}
	}
	lib, err := Open(mpi.Options{Path: p.Library, Timeout: p.Timeout}, Job{Rank: p.Rank, Node: p.Node}, gather)
	if err != nil {
		return err
	}
	store.Close() // it is called during Open only
	for _, variable := range dl.Environ() {
		if strings.HasPrefix(variable, "PMI_") {
			return fmt.Errorf("%s is still set", variable)
		}
	}
	if p.Act == "abort" {
		lib.Abort(7)
		time.Sleep(10 * time.Second)
	}
	node, err := lib.SplitShared(lib.World())
	if err != nil {
		return err
	}
	local, err := lib.Size(node)
	if err != nil {
		return err
	}
	sum, err := allReduce(lib, int64(p.Rank+1))
	if err != nil {
		return err
	}
	fmt.Println("sum", sum, "local", local)
	_ = lib.Free(node)
	return lib.Finalize()
}

// allReduce returns the sum of the ranks' numbers.
func allReduce(lib mpi.Library, mine int64) (int64, error) {
	block, err := mem.Alloc(16)
	if err != nil {
		return 0, err
	}
	send, recv := (*int64)(block), (*int64)(unsafe.Add(block, 8))
	*send = mine
	dtype, _ := lib.TypeOf(op.Int64)
	sum, _ := lib.OpOf(op.Sum, op.Int64)
	err = lib.Run(&mpi.Call{Fn: mpi.FnAllreduce, Comm: lib.World(), SendBuf: unsafe.Pointer(send), RecvBuf: unsafe.Pointer(recv),
		SendCount: 1, RecvCount: 1, SendType: dtype, RecvType: dtype, Op: sum}, nil)
	return *recv, err
}

func network(address string) string {
	if strings.HasPrefix(address, "/") || strings.HasPrefix(address, "@") {
		return "unix"
	}
	return "tcp"
}

// exchange is a gather at the store: lengths of 4 bytes, then the bytes.
func exchange(store net.Conn, mine []byte, size int) ([][]byte, error) {
	if _, err := store.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(mine))), mine...)); err != nil {
		return nil, err
	}
	var all [][]byte
	for range size {
		row, err := readRow(store)
		if err != nil {
			return nil, err
		}
		all = append(all, row)
	}
	return all, nil
}

func readRow(from io.Reader) ([]byte, error) {
	var n [4]byte
	if _, err := io.ReadFull(from, n[:]); err != nil {
		return nil, err
	}
	row := make([]byte, binary.LittleEndian.Uint32(n[:]))
	_, err := io.ReadFull(from, row)
	return row, err
}

// serveStore is the store: at each round it takes the bytes of all ranks, and gives them to all. It ends
// with the first rank that does.
func serveStore(l net.Listener, size int) {
	ranks := make([]net.Conn, size) // the first byte says which rank it is
	for range ranks {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		var rank [1]byte
		if _, err := io.ReadFull(c, rank[:]); err != nil {
			return
		}
		ranks[rank[0]] = c
	}
	for {
		var all []byte
		for _, c := range ranks {
			row, err := readRow(c)
			if err != nil {
				return
			}
			all = append(append(all, binary.LittleEndian.AppendUint32(nil, uint32(len(row)))...), row...)
		}
		for _, c := range ranks {
			if _, err := c.Write(all); err != nil {
				return
			}
		}
	}
}

// job runs ranks as processes on this host. change sets what each does. It returns their outputs and
// exit statuses.
func job(t *testing.T, library string, node []int, change func(*part)) (outputs []string, statuses []int) {
	address := filepath.Join(t.TempDir(), "store")
	l, err := net.Listen("unix", address)
	require.NoError(t, err)
	defer l.Close()
	go serveStore(l, len(node))
	var group sync.WaitGroup
	outputs, statuses = make([]string, len(node)), make([]int, len(node))
	for rank := range node {
		p := part{Rank: rank, Node: node, Library: library, Store: address, Timeout: 30 * time.Second}
		if change != nil {
			change(&p)
		}
		text, err := json.Marshal(p)
		require.NoError(t, err)
		var out bytes.Buffer
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), rankVariable+"="+string(text))
		c.Stdout, c.Stderr = &out, &out
		require.NoError(t, c.Start())
		group.Add(1)
		go func() {
			defer group.Done()
			over := time.AfterFunc(60*time.Second, func() { _ = c.Process.Kill() })
			defer over.Stop()
			_ = c.Wait()
			outputs[rank], statuses[rank] = out.String(), c.ProcessState.ExitCode()
		}()
	}
	group.Wait()
	return outputs, statuses
}

// libraries returns real MPIs by name: those of the environments that the tests of ranks use.
func libraries(t *testing.T) map[string]string {
	t.Helper()
	if testing.Short() {
		t.Skip("long: make test-ci runs it")
	}
	found := map[string]string{}
	for name, pattern := range map[string]string{
		"mpich": ".venv-mpich/lib/libmpi.so.12", "impi": ".venv-impi/lib/libmpi.so.12", "openmpi": ".venv-openmpi/lib/libmpi.so.40",
	} {
		if all, _ := filepath.Glob(filepath.Join("..", "..", pattern)); len(all) > 0 {
			path, err := filepath.Abs(all[0])
			require.NoError(t, err)
			found[name] = path
		}
	}
	if len(found) == 0 {
		t.Skip("no MPI in .venv-mpich, .venv-impi or .venv-openmpi: python3 tools/matrix make mpich:package makes one")
	}
	return found
}

func TestRanksStartMPIThemselves(t *testing.T) {
	for name, library := range libraries(t) {
		if name == "openmpi" {
			continue
		}
		for _, node := range [][]int{{0, 0}, {0, 1, 0}, {0, 0, 0, 1}} {
			t.Run(fmt.Sprint(name, node), func(t *testing.T) {
				outputs, statuses := job(t, library, node, nil)
				for rank := range node {
					_, local := Job{Rank: rank, Node: node}.local()
					n := len(node)
					assert.Equal(t, fmt.Sprintf("sum %d local %d\n", n*(n+1)/2, local), outputs[rank])
					assert.Equal(t, 0, statuses[rank], outputs[rank])
				}
			})
		}
	}
}

// MPI compares the names of the hosts if it is not told the nodes.
func TestMPIFindsTheNodesItself(t *testing.T) {
	for name, library := range libraries(t) {
		if name == "openmpi" {
			continue
		}
		outputs, statuses := job(t, library, []int{0, 1, 0}, func(p *part) { p.Long = true })
		for rank, out := range outputs {
			assert.Equal(t, "sum 6 local 3\n", out, name) // all are on this host
			assert.Equal(t, 0, statuses[rank], out)
		}
	}
}

func TestARankThatFailsEndsTheStartOfAll(t *testing.T) {
	for name, library := range libraries(t) {
		if name == "openmpi" {
			continue
		}
		for act, texts := range map[string][2]string{
			"fail": {"error: no store here", "error: the store has closed"},
			"die":  {"", "error: the store has closed"},
			"late": {"error: the store has closed", "error: the store has closed"},
		} {
			t.Run(name+" "+act, func(t *testing.T) {
				outputs, statuses := job(t, library, []int{0, 1, 0}, func(p *part) {
					p.Timeout = time.Second
					if p.Rank == 1 {
						p.Act = act
					}
				})
				for rank, out := range outputs {
					if rank == 1 {
						assert.Contains(t, out, texts[0])
					} else {
						assert.Contains(t, out, texts[1])
					}
					if rank == 1 && act == "die" {
						assert.Equal(t, 9, statuses[rank])
					} else {
						assert.Equal(t, 3, statuses[rank], out)
					}
				}
			})
		}
	}
}

func TestAbortEndsThisProcessWithItsStatus(t *testing.T) {
	for name, library := range libraries(t) {
		if name == "openmpi" {
			continue
		}
		_, statuses := job(t, library, []int{0, 1}, func(p *part) { p.Act = "abort" })
		assert.Equal(t, []int{7, 7}, statuses, name)
	}
}

func TestRanksThatCannotStartTogether(t *testing.T) {
	all := libraries(t)
	need := func(t *testing.T, name string) string {
		if all[name] == "" {
			t.Skipf("no MPI in .venv-%s: python3 tools/matrix make %s:package makes one", name, name)
		}
		return all[name]
	}
	t.Run("Open MPI", func(t *testing.T) {
		library := need(t, "openmpi")
		outputs, _ := job(t, library, []int{0, 1}, nil)
		for _, out := range outputs {
			assert.Contains(t, out, library)
			assert.Contains(t, out, "pip install mpich, or pip install impi-rt")
		}
	})
	t.Run("two MPIs", func(t *testing.T) {
		outputs, statuses := job(t, need(t, "mpich"), []int{0, 1, 1}, func(p *part) {
			if p.Rank == 2 {
				p.Library = need(t, "impi")
			}
		})
		for rank, out := range outputs {
			assert.Contains(t, out, "rank 0 has \"MPICH Version")
			assert.Contains(t, out, "ranks [2] have \"Intel")
			assert.Equal(t, 3, statuses[rank])
		}
	})
	t.Run("none on one rank", func(t *testing.T) {
		outputs, _ := job(t, need(t, "mpich"), []int{0, 1}, func(p *part) {
			if p.Rank == 1 {
				p.Library = "/nowhere/libmpi.so.12"
			}
		})
		assert.Contains(t, outputs[0], "rank 1 cannot start MPI: /nowhere/libmpi.so.12")
		assert.Contains(t, outputs[1], "/nowhere/libmpi.so.12 is named by init_process_group(mpi=...), but there is no such file")
	})
	t.Run("started alone before", func(t *testing.T) {
		outputs, _ := job(t, need(t, "mpich"), []int{0, 1}, func(p *part) {
			if p.Rank == 1 {
				p.Act = "alone"
			}
		})
		assert.Contains(t, outputs[0], "rank 1 cannot start MPI: rank 1 of 2: MPI")
		assert.Contains(t, outputs[1], "has started as rank 0 of a job of 1")
	})
}
