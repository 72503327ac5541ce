package segment

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// connected returns the two ends of a connection.
func connected(t testing.TB) (a, b int) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	return fds[0], fds[1]
}

// FuzzStranger sends what the input says to a process that gives its memory away. Only the secret gets a
// descriptor, and nothing behind a wrong one is read.
func FuzzStranger(f *testing.F) {
	const secretBytes = 16
	file, err := New("paddlempi-fuzz", 100)
	require.NoError(f, err)
	g := &Giver{file: file.fd, rendezvous: Rendezvous{1, [2]uint64{0x1122334455667788, 0x99aabbccddeeff00}}}
	secret := g.rendezvous.secret()
	f.Add([]byte{})
	f.Add([]byte("short"))
	f.Add(bytes.Repeat([]byte{7}, 100))
	f.Add(secret)
	f.Add(append(bytes.Clone(secret), 1, 2, 3))
	f.Add(secret[:secretBytes-1])
	f.Add(append([]byte{0}, secret...))
	f.Fuzz(func(t *testing.T, sent []byte) {
		here, there := connected(t)
		defer syscall.Close(here)
		kept, err := syscall.Dup(there) // shows what was not read
		require.NoError(t, err)
		defer syscall.Close(kept)
		sent = sent[:min(len(sent), 4096)]
		if len(sent) > 0 {
			_, err = syscall.Write(here, sent)
			require.NoError(t, err)
		}
		require.NoError(t, syscall.Shutdown(here, syscall.SHUT_WR))
		knows := bytes.HasPrefix(sent, secret)
		assert.Equal(t, knows, g.serve(there))
		syscall.Close(there)
		left := make([]byte, len(sent)+1)
		n, err := syscall.Read(kept, left)
		require.NoError(t, err)
		assert.Equal(t, max(0, len(sent)-secretBytes), n)
		require.NoError(t, syscall.Shutdown(kept, syscall.SHUT_RDWR))
		fd, err := receive(here)
		assert.Equal(t, knows, err == nil)
		if err == nil {
			syscall.Close(fd)
		}
	})
}

// FuzzGiven hands a process what the input says in place of the memory that it asks for: no descriptor, one
// of something else, several. It gets an error, or the memory, and keeps no other descriptor.
func FuzzGiven(f *testing.F) {
	file, err := New("paddlempi-fuzz", 100)
	require.NoError(f, err)
	other, err := New("paddlempi-fuzz", 100)
	require.NoError(f, err)
	long, err := New("paddlempi-fuzz", 200)
	require.NoError(f, err)
	plain, err := os.Create(filepath.Join(f.TempDir(), "plain"))
	require.NoError(f, err)
	require.NoError(f, plain.Truncate(100))
	folder, err := os.Open(f.TempDir())
	require.NoError(f, err)
	for _, c := range []io.Closer{plain, folder} {
		defer c.Close() // until then the garbage collector does not close it
	}
	kinds := []int{file.FD(), other.FD(), long.FD(), int(plain.Fd()), int(folder.Fd()), 0}
	f.Add([]byte{1}, []byte{})
	for i := range kinds {
		f.Add([]byte{1}, []byte{byte(i)})
	}
	f.Add([]byte{1, 2, 3}, []byte{0, 1, 2, 3})
	f.Add([]byte{}, []byte{0})
	f.Fuzz(func(t *testing.T, said, which []byte) {
		here, there := connected(t)
		defer syscall.Close(here)
		var fds []int
		for _, i := range which[:min(len(which), 100)] {
			fds = append(fds, kinds[int(i)%len(kinds)])
		}
		var rights []byte
		if len(fds) > 0 {
			rights = syscall.UnixRights(fds...)
		}
		before := descriptors(t)
		if len(said) > 0 {
			require.NoError(t, syscall.Sendmsg(there, said[:min(len(said), 1000)], rights, nil, 0))
		}
		syscall.Close(there)
		fd, err := receive(here)
		if err == nil {
			var got *File
			if got, err = adopt(fd); err == nil {
				if got, err = got.check(file.Address(), 100, "what a socket gave"); err == nil {
					require.Equal(t, file.FD(), fds[0])
					got.Close()
				}
			}
		}
		if err == nil {
			assert.Equal(t, file.FD(), fds[0])
		}
		assert.Equal(t, before-1, descriptors(t), "descriptors are left")
	})
}

// A stranger that sends a byte now and then does not hold the others up for longer than another one.
func TestAStrangerThatIsSlow(t *testing.T) {
	file, err := New("paddlempi-test", 100)
	require.NoError(t, err)
	defer file.Close()
	g := &Giver{rendezvous: Rendezvous{1, [2]uint64{2, 3}}}
	here, there := connected(t)
	defer syscall.Close(there)
	stop := make(chan struct{})
	go func() {
		defer syscall.Close(here)
		for {
			select {
			case <-stop:
				return
			case <-time.After(200 * time.Millisecond):
				_, _ = syscall.Write(here, []byte{1})
			}
		}
	}()
	began := time.Now()
	assert.False(t, g.serve(there))
	assert.Less(t, time.Since(began), 15*strangerLimit/10+time.Second)
	close(stop)
}

// Nobody can cut memory that ranks share, or add a seal that keeps others from mapping it.
func TestSeals(t *testing.T) {
	file, err := New("paddlempi-test", 100)
	require.NoError(t, err)
	defer file.Close()
	assert.Equal(t, syscall.EPERM, syscall.Ftruncate(file.FD(), 10))
	assert.Equal(t, syscall.EPERM, syscall.Ftruncate(file.FD(), 1000))
	_, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(file.FD()), fAddSeals, 8)
	assert.Equal(t, syscall.EPERM, errno)

	loose, err := create("paddlempi-test", 100)
	require.NoError(t, err)
	defer loose.Close()
	_, err = Open(loose.Address(), 100)
	assert.ErrorContains(t, err, "is not sealed")
	assert.Equal(t, status.Unsupported, status.CodeOf(err))
	again, err := OpenForeign(loose.Address())
	require.NoError(t, err)
	again.Close()
}
