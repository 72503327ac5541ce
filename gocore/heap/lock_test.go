package heap

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/segment"
)

// ownerVariable makes this program the owner of a heap, which another process looks at.
const ownerVariable = "PADDLEMPI_TEST_HEAP_OWNER"

func TestMain(m *testing.M) {
	if os.Getenv(ownerVariable) != "" {
		owner()
		return
	}
	os.Exit(m.Run())
}

// owner tells where its heap is. It opens and closes all its files for every line that it reads.
func owner() {
	h, err := OfProcess()
	if err != nil {
		panic(err)
	}
	fmt.Println(h.Address().Words())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		files, err := filepath.Glob("/proc/self/fd/*")
		if err != nil {
			panic(err)
		}
		for _, name := range files {
			if fd, err := syscall.Open(name, syscall.O_RDONLY|syscall.O_CLOEXEC, 0); err == nil {
				syscall.Close(fd)
			}
		}
		fmt.Println("closed")
	}
}

// The owner of a heap lives until its process ends: whatever it opens and closes, and while it is stopped.
func TestDead(t *testing.T) {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), ownerVariable+"=1")
	to, err := c.StdinPipe()
	require.NoError(t, err)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	ended := false
	end := func() {
		if !ended {
			ended = true
			_ = c.Process.Kill()
			_ = c.Wait()
		}
	}
	defer end()
	from := bufio.NewReader(out)
	var words [3]int64
	_, err = fmt.Fscanf(from, "[%d %d %d]\n", &words[0], &words[1], &words[2])
	require.NoError(t, err)
	v, err := Open(segment.Of(words))
	require.NoError(t, err)
	defer v.Close()
	assert.False(t, v.DeadNow())

	_, err = fmt.Fprintln(to)
	require.NoError(t, err)
	line, err := from.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "closed\n", line)
	assert.False(t, v.DeadNow(), "it has opened and closed its files")

	again, err := Open(segment.Of(words))
	require.NoError(t, err)
	again.Close()
	assert.False(t, v.DeadNow(), "this process has opened and closed the file")

	require.NoError(t, c.Process.Signal(syscall.SIGSTOP))
	time.Sleep(20 * time.Millisecond)
	assert.False(t, v.DeadNow(), "it is stopped")

	end()
	assert.True(t, v.DeadNow())
	dead, known := v.Dead()
	assert.True(t, dead)
	assert.Positive(t, known)
}

// A heap that is not locked is not taken for dead: it may be that it could not be locked.
func TestAHeapWithoutALockIsNotDead(t *testing.T) {
	h := newHeap(t)
	v, err := Open(h.Address())
	require.NoError(t, err)
	defer v.Close()
	assert.False(t, v.DeadNow())
	h.entry(lockEntry)[0] = 1
	assert.True(t, v.DeadNow())
}
