package segment

import (
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/status"
)

const soon = 10 * time.Second

// same tells whether two files are the same memory. It writes to one and reads the other.
func same(t *testing.T, a, b *File) bool {
	t.Helper()
	x, err := a.Map()
	require.NoError(t, err)
	defer syscall.Munmap(x)
	y, err := b.Map()
	require.NoError(t, err)
	defer syscall.Munmap(y)
	x[0]++
	return x[0] == y[0] && len(x) == len(y)
}

func TestOpen(t *testing.T) {
	f, err := New("paddlempi-test", 5000)
	require.NoError(t, err)
	defer f.Close()
	assert.Equal(t, int64(5000), f.Size())
	a := Of(f.Address().Words())
	assert.Equal(t, f.Address(), a)
	g, err := Open(a, 5000)
	require.NoError(t, err)
	assert.True(t, same(t, f, g))
	g.Close()
	g.Close() // does nothing

	other, err := New("paddlempi-test", 5000)
	require.NoError(t, err)
	defer other.Close()
	wrong := a
	wrong.FD = other.Address().FD // as if the process id stood for another process
	_, err = Open(wrong, 5000)
	assert.Equal(t, status.Unsupported, status.CodeOf(err), "another memory file of the same size")
	_, err = Open(a, 4999)
	assert.Equal(t, status.Unsupported, status.CodeOf(err))
	_, err = Open(Address{1 << 30, 0, 0}, 5000)
	assert.ErrorContains(t, err, "cannot open the shared memory at /proc/1073741824/fd/0")
}

func TestGive(t *testing.T) {
	f, err := New("paddlempi-test", 100)
	require.NoError(t, err)
	defer f.Close()
	g, err := NewGiver(f)
	require.NoError(t, err)
	defer g.Close()
	rendezvous := RendezvousOf(g.Rendezvous().Words())
	assert.Equal(t, g.Rendezvous(), rendezvous)
	before := descriptors(t)
	var wg sync.WaitGroup
	var comparing sync.Mutex // same writes to the memory that all have
	for range 5 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			taken, err := Take(rendezvous, f.Address(), 100, time.Now().Add(soon))
			if assert.NoError(t, err) {
				comparing.Lock()
				defer comparing.Unlock()
				assert.True(t, same(t, f, taken))
				taken.Close()
			}
		}()
	}
	assert.NoError(t, g.Give(5, time.Now().Add(soon)))
	wg.Wait()
	assert.LessOrEqual(t, descriptors(t), before, "no descriptor is left")
}

// A process of another user gets nothing where the secret may be known to others.
func TestGiveToTheSameUserOnly(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	f, err := New("paddlempi-test", 100)
	require.NoError(t, err)
	defer f.Close()
	g, err := NewGiver(f)
	require.NoError(t, err)
	defer g.Close()
	g.SameUser = true
	refused := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with this goroutine
		const keep, nobody = ^uintptr(0), 65534
		_, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, keep, nobody, keep)
		assert.Zero(t, errno)
		_, err := Take(g.Rendezvous(), f.Address(), 100, time.Now().Add(soon))
		refused <- err
	}()
	given := make(chan error)
	go func() { given <- g.Give(1, time.Now().Add(soon)) }()
	assert.Error(t, <-refused)
	taken, err := Take(g.Rendezvous(), f.Address(), 100, time.Now().Add(soon))
	require.NoError(t, err)
	taken.Close()
	assert.NoError(t, <-given)
}

// Strangers get nothing, and do not keep other processes from getting the file.
func TestGiveTurnsStrangersAway(t *testing.T) {
	f, err := New("paddlempi-test", 100)
	require.NoError(t, err)
	defer f.Close()
	g, err := NewGiver(f)
	require.NoError(t, err)
	defer g.Close()
	name := g.Rendezvous().address().Name
	for _, said := range []string{"", "short", "sixteen letters!", "a long line that goes on and on, past what the giver reads of anybody"} {
		c, err := net.Dial("unix", name)
		require.NoError(t, err)
		defer c.Close()
		_, err = c.Write([]byte(said))
		require.NoError(t, err)
		if said == "" {
			c.Close() // a stranger that sends nothing and closes
		}
	}
	silent, err := net.Dial("unix", name) // a stranger that sends nothing and stays
	require.NoError(t, err)
	defer silent.Close()
	wrong := g.Rendezvous()
	wrong.Secret[1]++
	refused := make(chan error, 1)
	go func() {
		_, err := Take(wrong, f.Address(), 100, time.Now().Add(soon))
		refused <- err
	}()
	got := make(chan error, 1)
	go func() {
		time.Sleep(50 * time.Millisecond)
		taken, err := Take(g.Rendezvous(), f.Address(), 100, time.Now().Add(soon))
		if err == nil {
			taken.Close()
		}
		got <- err
	}()
	assert.NoError(t, g.Give(1, time.Now().Add(soon)))
	assert.NoError(t, <-got)
	assert.Equal(t, status.Unsupported, status.CodeOf(<-refused))
}

func TestGiveAndTakeHaveDeadlines(t *testing.T) {
	f, err := New("paddlempi-test", 100)
	require.NoError(t, err)
	defer f.Close()
	g, err := NewGiver(f)
	require.NoError(t, err)
	assert.Equal(t, status.Timeout, status.CodeOf(g.Give(1, time.Now().Add(20*time.Millisecond))))
	_, err = Take(g.Rendezvous(), f.Address(), 100, time.Now().Add(20*time.Millisecond)) // no Give runs
	assert.Equal(t, status.Unsupported, status.CodeOf(err))
	g.Close()
	_, err = Take(g.Rendezvous(), f.Address(), 100, time.Now().Add(soon))
	assert.ErrorContains(t, err, "connection refused")
}

func TestTakeChecksWhatItGets(t *testing.T) {
	f, err := New("paddlempi-test", 100)
	require.NoError(t, err)
	defer f.Close()
	g, err := NewGiver(f)
	require.NoError(t, err)
	defer g.Close()
	go func() { _ = g.Give(1, time.Now().Add(soon)) }()
	_, err = Take(g.Rendezvous(), f.Address(), 200, time.Now().Add(soon))
	assert.ErrorContains(t, err, "not the shared memory of 200 bytes")
}

func descriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}
