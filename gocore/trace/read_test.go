package trace

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/segment"
	"github.com/paddlempi/paddlempi/gocore/status"
)

const (
	soon = 10 * time.Second
	tick = 10 * time.Millisecond
)

// bytesOf returns a ring with some operations.
func bytesOf(t testing.TB) []byte {
	r := newRing(t)
	r.Join(Group{ID: 1, Rank: 1, Ranks: []int{0, 1, 2, 3}})
	r.Join(Group{ID: 2, Rank: 1, Ranks: []int{3, 1, 2}})
	for i := uint64(1); i < 20; i++ {
		m := r.Begin(1, i, reduceOf(i), 0)
		if i < 18 {
			m.Algorithm("mpi")
			m.End(status.OK)
		}
	}
	return bytes.Clone(r.mem)
}

func TestDamagedHeader(t *testing.T) {
	whole := bytesOf(t)
	_, err := Read(bytes.NewReader(whole))
	require.NoError(t, err)
	h := header{}
	for name, change := range map[string]struct {
		offset uintptr
		value  uint32
	}{
		"magic":             {unsafe.Offsetof(h.magic), 1},
		"version":           {unsafe.Offsetof(h.version), 1},
		"size of entries":   {unsafe.Offsetof(h.entrySize), 64},
		"number of entries": {unsafe.Offsetof(h.entries), 1 << 30},
		"room for groups":   {unsafe.Offsetof(h.groups), 1 << 30},
		"process":           {unsafe.Offsetof(h.pid), 0},
		"rank":              {unsafe.Offsetof(h.rank), 4},
		"negative rank":     {unsafe.Offsetof(h.rank), 1 << 31},
		"size":              {unsafe.Offsetof(h.size), 0},
		"too large a world": {unsafe.Offsetof(h.size), 1 << 30},
		"bytes of groups":   {unsafe.Offsetof(h.joined), areaSize + 1},
		"clock":             {unsafe.Offsetof(h.clock), 9},
		"time":              {unsafe.Offsetof(h.ticks) + 4, 1 << 31},
	} {
		t.Run(name, func(t *testing.T) {
			b := bytes.Clone(whole)
			binary.LittleEndian.PutUint32(b[change.offset:], change.value)
			_, err := Read(bytes.NewReader(b))
			assert.Error(t, err)
		})
	}
}

func TestShortRing(t *testing.T) {
	whole := bytesOf(t)
	for _, n := range []int{0, 1, headerSize, fewSize - 1} {
		_, err := Read(bytes.NewReader(whole[:n]))
		assert.Error(t, err)
	}
}

func TestDamagedEntries(t *testing.T) {
	whole := bytesOf(t)
	e := entry{}
	at := headerSize + groupsSize + 5*entrySize // of operation 5
	for name, change := range map[string]struct {
		offset uintptr
		value  uint64
	}{
		"operation": {unsafe.Offsetof(e.signature), 200},
		"dtype":     {unsafe.Offsetof(e.signature), 3 | 99<<8},
		"reduce op": {unsafe.Offsetof(e.signature), 3 | 12<<8 | 99<<16},
		"root":      {unsafe.Offsetof(e.signature), 3 | 12<<8 | 1<<63},
		"submitted": {unsafe.Offsetof(e.submitted), 1 << 62},
		"begun":     {unsafe.Offsetof(e.begun), 1 << 63},
		"ended":     {unsafe.Offsetof(e.ended), 1 << 62},
	} {
		t.Run(name, func(t *testing.T) {
			b := bytes.Clone(whole)
			binary.LittleEndian.PutUint64(b[uintptr(at)+change.offset:], change.value)
			s, err := Read(bytes.NewReader(b))
			require.NoError(t, err)
			assert.Equal(t, 1, s.Damaged)
			assert.Len(t, s.Operations, 18)
		})
	}
}

// An entry that its operation writes to is not told of.
func TestEntryInTheMiddleOfAWrite(t *testing.T) {
	b := bytesOf(t)
	b[headerSize+groupsSize+5*entrySize] |= writing
	s, err := Read(bytes.NewReader(b))
	require.NoError(t, err)
	assert.Zero(t, s.Damaged)
	assert.Len(t, s.Operations, 18)
}

// Any bytes give an error or something that can be written down. What is read holds ranks of the world only.
func TestRandomDamage(t *testing.T) {
	whole := bytesOf(t)
	for range 300 {
		b := bytes.Clone(whole)
		for range 1 + rand.IntN(200) {
			b[rand.IntN(fewSize)] = byte(rand.Uint32())
			b[rand.IntN(300)+headerSize] = byte(rand.Uint32()) // groups
			b[rand.IntN(20*entrySize)+headerSize+groupsSize] = byte(rand.Uint32())
		}
		s, err := Read(bytes.NewReader(b))
		if err != nil {
			continue
		}
		text, err := json.Marshal(s)
		require.NoError(t, err)
		assert.True(t, json.Valid(text))
		for _, g := range s.Groups {
			for _, rank := range g.Ranks {
				assert.True(t, rank >= 0 && rank < s.Size)
			}
		}
	}
}

func TestNamesOfOthersArePrintable(t *testing.T) {
	b := bytesOf(t)
	h := header{}
	copy(b[unsafe.Offsetof(h.host):], "a\x1b[31mb\nc\x00")
	s, err := Read(bytes.NewReader(b))
	require.NoError(t, err)
	assert.Equal(t, "a[31mbc", s.Host)
}

func TestReadProcess(t *testing.T) {
	newRing(t).Begin(1, 1, reduceOf(1), 0)
	newest := newRing(t)
	newest.Begin(1, 2, reduceOf(2), 0)
	s, err := ReadProcess(os.Getpid())
	require.NoError(t, err)
	assert.Equal(t, int64(os.Getpid()), s.PID)
	assert.Equal(t, "running", s.State)
	assert.Equal(t, uint64(2), *s.Operations[0].Seq)
	assert.Contains(t, Processes(), os.Getpid())

	folder := filepath.Join(t.TempDir(), "new")
	path, err := s.Write(folder)
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(folder, "rank-1.json"), path)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.True(t, json.Valid(b))

	for _, pid := range []int{1 << 30, os.Getppid()} { // no such process; one without a ring
		_, err = ReadProcess(pid)
		assert.Error(t, err)
	}
}

// A child has the descriptor of its parent's ring, which is not the child's.
func TestChildHasNoRing(t *testing.T) {
	r := newRing(t)
	copied, err := syscall.Dup(r.file.FD())
	require.NoError(t, err)
	f := os.NewFile(uintptr(copied), "ring")
	defer f.Close()
	child := exec.Command("sleep", "60")
	child.ExtraFiles = []*os.File{f}
	require.NoError(t, child.Start())
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	link, err := os.Readlink("/proc/" + strconv.Itoa(child.Process.Pid) + "/fd/3")
	require.NoError(t, err)
	require.Equal(t, linkName, link)
	_, err = ReadProcess(child.Process.Pid)
	assert.ErrorContains(t, err, "has no trace")
	assert.NotContains(t, Processes(), child.Process.Pid)
	assert.NoError(t, child.Process.Signal(syscall.SIGSTOP))
	assert.Eventually(t, func() bool { return State(child.Process.Pid) == "stopped" }, soon, tick)
}

// The ring is not mapped in a forked child.
func TestRingIsNotInherited(t *testing.T) {
	newRing(t)
	b, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	_, after, found := bytes.Cut(b, []byte(fileName))
	require.True(t, found)
	_, flags, _ := bytes.Cut(after, []byte("VmFlags:"))
	line, _, _ := bytes.Cut(flags, []byte("\n"))
	assert.Contains(t, string(line)+" ", " dc ") // VM_DONTCOPY
}

func TestView(t *testing.T) {
	r := newRing(t)
	r.Begin(1, 3, reduceOf(1), 0)
	v, err := Open(r.File().Address())
	require.NoError(t, err)
	defer v.Close()
	s, err := v.Read()
	require.NoError(t, err)
	assert.Equal(t, uint64(3), *s.Operations[0].Seq)
	_, err = Open(segment.Address{PID: os.Getpid(), FD: r.file.FD(), Inode: 1})
	assert.Error(t, err)
}

func TestTimeline(t *testing.T) {
	first := moment{ticks: 1e9, monotonic: 5e9}
	last := moment{ticks: 4e9, monotonic: 8e9, unix: 1e18}
	l, err := newTimeline(clockKind(), first, last)
	require.NoError(t, err)
	for ticks, want := range map[uint64]int64{1e9: 1e18 - 3e9, 2.5e9: 1e18 - 1.5e9, 4e9: 1e18,
		1e9 - 1000: 1e18 - 3e9, 4e9 + 1000: 1e18} { // the last two: clocks of two cores
		at, ok := l.at(ticks)
		assert.True(t, ok)
		assert.Equal(t, want, at)
	}
	for _, ticks := range []uint64{0, 1, 1e9 - 2e6, 4e9 + 2e6, 1 << 63, math.MaxUint64} {
		_, ok := l.at(ticks)
		assert.False(t, ok, "%d", ticks)
	}
	_, err = newTimeline(clockKind(), last, first)
	assert.Error(t, err)
	_, err = newTimeline(clockKind()+1, first, last)
	assert.Error(t, err)
}
