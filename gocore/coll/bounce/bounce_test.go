package bounce

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/cma"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce"
	"github.com/paddlempi/paddlempi/gocore/threads"
	"github.com/paddlempi/paddlempi/gocore/work/worktest"
)

// newTeams makes the teams of n ranks, which are goroutines here, and returns their blocks.
func newTeams(t *testing.T, n int) (teams []*Team, blocks []unsafe.Pointer) {
	for range n {
		block, err := mem.Alloc(BlockBytes(n, Slots(n, true)))
		require.NoError(t, err)
		Clear(block)
		blocks = append(blocks, block)
	}
	for me := range n {
		team, err := NewTeam(blocks, me, Slots(n, n > 3), n%2 == 1, 4*(n%2))
		require.NoError(t, err)
		teams = append(teams, team)
	}
	t.Cleanup(func() {
		for i := range n {
			teams[i].Free()
			mem.Free(blocks[i])
		}
	})
	return teams, blocks
}

// nobody is gone.
func nobody(int) bool { return false }

// memory returns n bytes outside the Go heap.
func memory(t *testing.T, n int64) (unsafe.Pointer, []byte) {
	p, err := mem.Alloc(max(n, 1))
	require.NoError(t, err)
	t.Cleanup(func() { mem.Free(p) })
	return p, unsafe.Slice((*byte)(p), n)
}

// finish runs an operation to its end, or for so long that another rank has failed.
func finish(team *Team, most int) (state State) {
	for late := time.Now().Add(20 * time.Second); time.Now().Before(late); runtime.Gosched() {
		if state = team.Run(most, 10); state == Done || state == Damaged {
			break
		}
	}
	return state
}

// together runs f for every rank at once.
func together(n int, f func(me int)) {
	var wg sync.WaitGroup
	for me := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			f(me)
		}()
	}
	wg.Wait()
}

// Ranks make many operations of random kinds one after another, without a barrier between them: of many windows, of less than one, of rows of
// different lengths, of nothing. A rank that gives only is ahead of the others.
func TestOperationsOneAfterAnother(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5, 8} {
		t.Run(fmt.Sprint(n), func(t *testing.T) { oneAfterAnother(t, n) })
		t.Run(fmt.Sprintf("%d with helpers", n), func(t *testing.T) {
			defer threads.Use(threads.Count(), true)
			threads.Use(3, true)
			oneAfterAnother(t, n)
		})
	}
}

func oneAfterAnother(t *testing.T, n int) {
	rng := rand.New(rand.NewSource(int64(n)))
	teams, _ := newTeams(t, n)
	type operation struct {
		call    Call
		root    int
		count   [][]int64 // elements of what a rank gives to each rank, or to all
		give    [][]unsafe.Pointer
		get     [][]unsafe.Pointer
		want    [][][]byte
		got     [][][]byte
		gets    func(me int) bool
		inPlace bool
	}
	var list []*operation
	for k := range 40 {
		o := &operation{root: -1}
		c := &o.call
		c.Kind, c.Elem, c.Last = Kind(k%3), 4, n
		c.Apart = c.Kind != Sliced && rng.Intn(2) == 0
		c.Fold = reduce.NewFold(op.Int32, op.Sum, n, 0)
		if c.Kind == Copy && rng.Intn(2) == 0 {
			o.root = rng.Intn(n)
			c.First, c.Last = o.root, o.root+1
		}
		c.Lends = c.Kind == Copy && rng.Intn(2) == 0
		one := rng.Intn(n)
		switch {
		case c.Kind != Copy && rng.Intn(3) == 0:
			o.gets = func(me int) bool { return me == one }
		default:
			o.gets = func(int) bool { return true }
		}
		o.inPlace = c.Kind == Sliced && rng.Intn(2) == 0
		lanes := 1
		if c.Apart {
			lanes = n
		}
		most := []int64{0, 1, 15, 70, 5000, 70000, 300000}[rng.Intn(7)]
		lengths := make([]int64, n) // a reduction adds up rows of one length
		for i := range lengths {
			lengths[i] = rng.Int63n(most + 1)
		}
		for me := range n {
			var counts []int64
			var give []unsafe.Pointer
			for lane := range lanes {
				count := lengths[lane]
				if c.Kind == Copy && me >= c.First && me < c.Last {
					count = rng.Int63n(most + 1)
				}
				counts = append(counts, count)
				c.Longest = max(c.Longest, 4*count)
				p, b := memory(t, 4*count)
				for i := range count {
					binary.LittleEndian.PutUint32(b[4*i:], rng.Uint32())
				}
				give = append(give, p)
			}
			o.count, o.give = append(o.count, counts), append(o.give, give)
		}
		laneOf := func(me int) int {
			if c.Apart {
				return me
			}
			return 0
		}
		for me := range n {
			var get []unsafe.Pointer
			var want, got [][]byte
			if c.Kind == Copy {
				for from := range n {
					if from < c.First || from >= c.Last {
						get, want, got = append(get, nil), append(want, nil), append(got, nil)
						continue
					}
					count := o.count[from][laneOf(me)]
					p, b := memory(t, 4*count)
					get, got = append(get, p), append(got, b)
					want = append(want, append([]byte(nil), unsafe.Slice((*byte)(o.give[from][laneOf(me)]), 4*count)...))
				}
			} else {
				count := o.count[me][laneOf(me)]
				p, b := memory(t, 4*count)
				sum := make([]byte, 4*count)
				for from := range n {
					in := unsafe.Slice((*byte)(o.give[from][laneOf(me)]), 4*count)
					for i := range count {
						binary.LittleEndian.PutUint32(sum[4*i:], binary.LittleEndian.Uint32(sum[4*i:])+binary.LittleEndian.Uint32(in[4*i:]))
					}
				}
				get, got, want = append(get, p), append(got, b), append(want, sum)
			}
			o.get, o.got, o.want = append(o.get, get), append(o.got, got), append(o.want, want)
		}
		if o.inPlace {
			for me := range n {
				o.get[me][0] = o.give[me][0]
				o.got[me][0] = unsafe.Slice((*byte)(o.give[me][0]), 4*o.count[me][0])
			}
		}
		c.Lends = c.Lends && c.Longest > 0
		list = append(list, o)
	}
	var ended atomic.Int32
	together(n, func(me int) {
		rng := rand.New(rand.NewSource(int64(100*n + me)))
		for k, o := range list {
			c := o.call
			c.Gives, c.Gets = me >= c.First && me < c.Last, o.gets(me)
			for lane := range o.give[me] {
				teams[me].Give(lane, o.give[me][lane], 4*o.count[me][lane])
			}
			for i := range o.get[me] {
				teams[me].Get(i, o.get[me][i], int64(len(o.got[me][i])))
			}
			teams[me].Begin(&c)
			if !assert.Equal(t, Done, finish(teams[me], 1+rng.Intn(40)), "rank %d, operation %d", me, k) {
				return
			}
			if !c.Gets {
				continue
			}
			for i := range o.got[me] {
				if !assert.True(t, bytes.Equal(o.want[me][i], o.got[me][i]), "rank %d, operation %d: %+v, from %d", me, k, c, i) {
					return
				}
			}
		}
		ended.Add(1)
	})
	require.EqualValues(t, n, ended.Load())
	for _, team := range teams {
		assert.True(t, team.Idle(nobody))
	}
}

// pair begins an all_reduce of many windows on both of two teams.
func pair(t *testing.T, teams []*Team, count int64) {
	for _, team := range teams {
		p, b := memory(t, 4*count)
		clear(b)
		team.Give(0, p, 4*count)
		team.Get(0, p, 4*count)
		team.Begin(&Call{Kind: Reduce, Last: len(teams), Gives: true, Gets: true, Longest: 4 * count, Elem: 4, Fold: reduce.NewFold(op.Int32, op.Sum, len(teams), 0)})
	}
}

// A rank waits for one that does not come, says so, and may leave: the other one waits too then.
func TestWaiting(t *testing.T) {
	teams, _ := newTeams(t, 2)
	pair(t, teams, 1<<20)
	assert.Equal(t, Moving, teams[0].Run(1000, 0), "it publishes its first windows")
	assert.Equal(t, Pending, teams[0].Run(1000, 0))
	assert.Equal(t, 1, teams[0].Awaited())
	assert.False(t, teams[0].Idle(nobody))
	assert.Equal(t, Moving, teams[1].Run(1, 0), "one step only")
	for teams[1].Run(1000, 0) != Pending {
	}
	assert.Equal(t, 0, teams[1].Awaited(), "rank 0 has gone")
}

// A rank may wait for several others, of which it names one. It knows of each whether it waits for it.
func TestWaitingForSeveral(t *testing.T) {
	teams, _ := newTeams(t, 3)
	p, _ := memory(t, windowBytes)
	q, _ := memory(t, windowBytes)
	begin := func(me int, at unsafe.Pointer) {
		teams[me].Give(0, at, windowBytes)
		teams[me].Get(0, at, windowBytes)
		teams[me].Begin(&Call{Kind: Copy, First: 0, Last: 1, Gives: me == 0, Gets: me > 0, Longest: windowBytes})
	}
	slots := Slots(3, false)
	for range slots {
		begin(0, p)
		require.Equal(t, Done, teams[0].Run(100, 0))
	}
	begin(0, p)
	require.Equal(t, Pending, teams[0].Run(100, 0))
	assert.Equal(t, 1, teams[0].Awaited())
	assert.Equal(t, []bool{false, true, true}, []bool{teams[0].Awaits(0), teams[0].Awaits(1), teams[0].Awaits(2)})
	begin(1, q)
	require.Equal(t, Done, teams[1].Run(100, 0))
	assert.Equal(t, 2, teams[0].Awaited())
	assert.False(t, teams[0].Awaits(1))
	assert.True(t, teams[0].Awaits(2))
}

// A rank that only gives is ahead by the slots of its block, and not more.
func TestAGiverIsNotHeldUp(t *testing.T) {
	teams, _ := newTeams(t, 2)
	begin := func(me int, p unsafe.Pointer, bytes int64) {
		teams[me].Give(0, p, bytes)
		teams[me].Get(0, p, bytes)
		teams[me].Begin(&Call{Kind: Copy, First: 0, Last: 1, Gives: me == 0, Gets: me == 1, Longest: bytes})
	}
	const bytes = windowBytes
	p, b := memory(t, bytes)
	q, got := memory(t, bytes)
	for k := range Slots(2, false) {
		b[7] = byte(k)
		begin(0, p, bytes)
		require.Equal(t, Done, teams[0].Run(100, 0), "operation %d", k)
	}
	begin(0, p, bytes)
	require.Equal(t, Pending, teams[0].Run(100, 0))
	require.Equal(t, 1, teams[0].Awaited())
	assert.False(t, teams[0].Idle(nobody))
	assert.True(t, teams[0].Idle(func(rank int) bool { return rank == 1 }))
	for k := range Slots(2, false) {
		begin(1, q, bytes)
		require.Equal(t, Done, teams[1].Run(100, 0))
		require.Equal(t, byte(k), got[7])
	}
	require.Equal(t, Done, teams[0].Run(100, 0))
}

// A counter that no rank writes is damage: it is further than the slots let its owner come.
func TestDamagedCounters(t *testing.T) {
	for name, at := range map[string]uint64{"beyond its slots": uint64(Slots(2, false)) + 1, "all bits": ^uint64(0)} {
		t.Run(name, func(t *testing.T) {
			teams, blocks := newTeams(t, 2)
			pair(t, teams, 1<<20)
			*(*uint64)(blocks[1]) = at // published
			assert.Equal(t, Damaged, finish(teams[0], 100))
			assert.Equal(t, 1, teams[0].DamagedBy())
			assert.Equal(t, Damaged, teams[0].Run(100, 0), "it stays so")
		})
	}
}

// lending begins on both of two teams an operation in which rank 0 lends a row to rank 1.
func lending(t *testing.T, teams []*Team, row unsafe.Pointer, bytes int64) (got []byte) {
	into, got := memory(t, bytes)
	for me, team := range teams {
		require.True(t, team.Reads())
		team.Give(0, row, bytes)
		team.Get(0, into, bytes)
		team.Begin(&Call{Kind: Copy, First: 0, Last: 1, Gives: me == 0, Gets: me == 1, Longest: bytes, Lends: true})
		require.True(t, team.Lends())
	}
	return got
}

// A rank that lends a tensor waits until the others have read it.
func TestALenderWaits(t *testing.T) {
	teams, _ := newTeams(t, 2)
	row, b := memory(t, 3<<20)
	for k := range byte(3) {
		b[0], b[len(b)-1] = k, k+100
		got := lending(t, teams, row, int64(len(b)))
		assert.Equal(t, Moving, teams[0].Run(100, 0), "it says where its row is")
		assert.Equal(t, Pending, teams[0].Run(100, 0))
		assert.Equal(t, 1, teams[0].Awaited())
		assert.Equal(t, Moving, teams[1].Run(1, 0), "one piece")
		assert.Equal(t, Pending, teams[0].Run(100, 0))
		assert.Equal(t, Done, finish(teams[1], 100))
		assert.Equal(t, b, got)
		assert.Equal(t, Done, teams[0].Run(100, 0))
	}
}

// Memory that cannot be read is an error that names its rank.
func TestMemoryThatCannotBeRead(t *testing.T) {
	teams, _ := newTeams(t, 2)
	const bytes = 1 << 20
	closed, err := syscall.Mmap(-1, 0, bytes, syscall.PROT_NONE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, syscall.Munmap(closed)) })
	lending(t, teams, unsafe.Pointer(unsafe.SliceData(closed)), bytes)
	assert.Equal(t, Moving, teams[0].Run(100, 0))
	for range 2 {
		assert.Equal(t, Unreadable, teams[1].Run(100, 0))
		of, cause := teams[1].UnreadableOf()
		assert.Equal(t, 0, of)
		assert.Equal(t, syscall.EFAULT, cause)
	}
}

// A process that has ended, and one that has taken its place, are waited for: whoever watches the processes knows more.
func TestAProcessThatHasEnded(t *testing.T) {
	for name, end := range map[string]func(*cma.Proof){
		"no process":      func(p *cma.Proof) { p.PID = 1 << 30 },
		"another process": func(p *cma.Proof) { p.Nonce[0]++ },
	} {
		t.Run(name, func(t *testing.T) {
			teams, _ := newTeams(t, 2)
			row, b := memory(t, 1<<20)
			lending(t, teams, row, int64(len(b)))
			assert.Equal(t, Moving, teams[0].Run(100, 0))
			end((*cma.Proof)(unsafe.Pointer(teams[1].c.owner)))
			for range 2 {
				assert.Equal(t, Pending, teams[1].Run(100, 0))
				assert.Equal(t, 0, teams[1].Awaited())
			}
		})
	}
}

// Ranks of which one cannot read another one's memory lend nothing.
func TestWhoShowsNothingIsNotRead(t *testing.T) {
	blocks := make([]unsafe.Pointer, 2)
	for i := range blocks {
		blocks[i], _ = memory(t, BlockBytes(2, LeastSlots))
		Clear(blocks[i])
	}
	*ownerIn(blocks[1]) = cma.Proof{}
	for me, reads := range []bool{false, true} {
		team, err := NewTeam(blocks, me, LeastSlots, false, 0)
		require.NoError(t, err)
		assert.Equal(t, reads, team.Reads())
		team.Free()
	}
}

// FuzzBlocks has a rank whose process writes anything into its block. The other one ends, waits, or finds the damage; it writes
// nothing outside of its result.
func FuzzBlocks(f *testing.F) {
	f.Add([]byte{0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 5, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{0, 255, 255, 255, 255, 255, 255, 255, 255})
	f.Add([]byte{207, 0, 0, 0, 0, 0, 0, 0, 0, 5, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}) // lent, from an address that nobody has
	f.Fuzz(func(t *testing.T, input []byte) {
		teams, blocks := newTeams(t, 3)
		const count = 50000
		p, b := memory(t, 4*count+128)
		for i := range b {
			b[i] = 0xA5
		}
		kind, lends := Sliced, false
		if len(input) > 0 {
			kind = Kind(input[0] % 3)
			lends = kind == Copy && input[0] > 127
		}
		for i := range 3 {
			teams[0].Get(i, unsafe.Add(p, 64), 4*count)
		}
		teams[0].Give(0, unsafe.Add(p, 64), 4*count)
		teams[0].Begin(&Call{Kind: kind, Last: 3, Gives: true, Gets: true, Longest: 4 * count, Elem: 4, Fold: reduce.NewFold(op.Int32, op.Sum, 3, 0), Lends: lends})
		for ; len(input) >= 9; input = input[9:] {
			for rank := 1; rank < 3; rank++ {
				*(*uint64)(unsafe.Add(blocks[rank], int64(input[0])%6*128)) = binary.LittleEndian.Uint64(input[1:])
			}
			state := teams[0].Run(50, 1)
			require.Contains(t, []State{Pending, Moving, Done, Damaged, Unreadable}, state)
			who := teams[0].Awaited()
			require.True(t, who >= -1 && who < 3)
			switch state {
			case Damaged:
				require.Contains(t, []int{1, 2}, teams[0].DamagedBy())
			case Unreadable:
				of, _ := teams[0].UnreadableOf()
				require.Contains(t, []int{1, 2}, of)
			}
			if state == Done {
				break
			}
		}
		for i := range 64 {
			require.Equal(t, byte(0xA5), b[i])
			require.Equal(t, byte(0xA5), b[len(b)-1-i])
		}
	})
}

// A rank rings when it has done a step that others may wait for.
func TestRoundsRing(t *testing.T) {
	teams, _ := newTeams(t, 2)
	pair(t, teams, 1<<20)
	assert.True(t, worktest.Rings(t, func() { teams[0].Run(1, 0) }), "it publishes a window")
	for teams[0].Run(1000, 0) != Pending {
	}
	assert.False(t, worktest.Rings(t, func() { teams[0].Run(1000, 0) }), "it waits")
	for i := range 50 {
		assert.True(t, worktest.Rings(t, func() { teams[1-i%2].Run(1, 0) }), "the other one goes on")
		if t.Failed() {
			return
		}
	}
}
