package cma

import (
	"bytes"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A proof holds if the process that it names has the number there.
func TestProofs(t *testing.T) {
	assert.True(t, Show().Holds())
	assert.Equal(t, Show(), Show(), "one number a process")
	assert.False(t, Proof{}.Holds())
	for name, change := range map[string]func(*Proof){
		"no process":      func(p *Proof) { p.PID = 1 << 30 },
		"another address": func(p *Proof) { p.At += 8 },
		"no address":      func(p *Proof) { p.At = 0 },
		"another number":  func(p *Proof) { p.Nonce[3]++ },
	} {
		p := Show()
		change(&p)
		assert.False(t, p.Holds(), name)
	}
	var zeros [NonceBytes]byte
	p := Show()
	p.At, p.Nonce = uint64(uintptr(unsafe.Pointer(&zeros))), zeros
	assert.False(t, p.Holds(), "zeros may be anywhere")
}

// Memory is readable if both its ends are, also of many spans of which the last one is not.
func TestReadable(t *testing.T) {
	const page = 4096
	block, err := syscall.Mmap(-1, 0, 3*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, syscall.Munmap(block)) })
	require.NoError(t, syscall.Mprotect(block[2*page:], syscall.PROT_NONE))
	span := func(from, bytes int64) Span {
		return Span{unsafe.Add(unsafe.Pointer(unsafe.SliceData(block)), from), bytes}
	}
	good, bad := span(0, 2*page), span(page, page+1)
	assert.True(t, Readable(nil))
	assert.True(t, Readable([]Span{good}))
	assert.False(t, Readable([]Span{bad}))
	assert.False(t, Readable([]Span{span(2*page, 1)}))
	assert.True(t, Readable([]Span{span(2*page, 0), {nil, 0}}), "there is nothing to read")
	for _, n := range []int{1, atOnce - 1, atOnce, atOnce + 1, 3*atOnce + 5} {
		list := make([]Span, n)
		for i := range list {
			list[i] = good
		}
		assert.True(t, Readable(list), n)
		for _, i := range []int{0, n / 2, n - 1} {
			list[i] = bad
			assert.False(t, Readable(list), "%d of %d", i, n)
			list[i] = Span{}
			assert.True(t, Readable(list))
			list[i] = good
		}
	}
}

func TestRead(t *testing.T) {
	from := []byte("what another process has")
	to := make([]byte, len(from))
	n, errno := Read(Show().PID, uint64(uintptr(unsafe.Pointer(&from[0]))), to)
	assert.Zero(t, errno)
	assert.Equal(t, len(from), n)
	assert.True(t, bytes.Equal(from, to))
	_, errno = Read(Show().PID, 8, to)
	assert.Equal(t, syscall.EFAULT, errno)
	_, errno = Read(1<<30, 8, to)
	assert.Equal(t, syscall.ESRCH, errno)
}

// A read by a proof is one of the process that has shown it, and of no other one that has its number.
func TestReadByAProof(t *testing.T) {
	from, to := []byte("what another process has"), make([]byte, 24)
	at := uint64(uintptr(unsafe.Pointer(&from[0])))
	p := Show()
	n, errno := p.Read(at, to)
	assert.Zero(t, errno)
	assert.Equal(t, len(from), n)
	assert.Equal(t, from, to)
	n, _ = p.Read(8, to)
	assert.Zero(t, n, "the kernel says how far it came")
	p.Nonce[0]++
	clear(to)
	_, errno = p.Read(at, to)
	assert.Equal(t, syscall.ESRCH, errno)
	p.PID = 1 << 30
	_, errno = p.Read(at, to)
	assert.Equal(t, syscall.ESRCH, errno)
}
