package shm

import (
	"encoding/binary"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// FuzzWords has three ranks at a collective, while a damaged one writes what the input says into the words
// of its chunks. The operations of the ranks that keep to the protocol end, with a result or closed, and
// name no rank that does not exist.
func FuzzWords(f *testing.F) {
	step := func(actor, what, chunk byte, value uint64) []byte {
		return binary.LittleEndian.AppendUint64([]byte{actor, what, chunk}, value)
	}
	word := func(seq uint64, owner, state int) uint64 { return seq<<20 | uint64(owner)<<4 | uint64(state) }
	for _, w := range []uint64{0, word(1, 2, 1), word(1, 2, 2), word(1, 2, 4), word(2, 0, 1), word(1, 60000, 1), word(1, 0, 1), word(1, 1, 9), ^uint64(0)} {
		seed := step(0, 0, 0, 0)
		for chunk := range byte(8) {
			seed = append(seed, step(2, 0, chunk, w)...)
			seed = append(seed, step(chunk%2, chunk, 0, 0)...)
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		const size, count, stepBytes = 3, 40000, 11
		g := newTeam(t, size, count)
		ops := g.next(t)
		for ; len(input) >= stepBytes; input = input[stepBytes:] {
			who, what, value := input[0]%4, input[1], binary.LittleEndian.Uint64(input[3:])
			if who >= 2 { // rank 2, which is damaged
				g.words[int(input[2])%len(g.words)] = value
				continue
			}
			o := ops[who]
			switch what % 8 {
			case 0, 1:
				o.Work(1 + int(what)/8)
			case 2, 3, 4:
				o.State(2)
			case 5:
				o.Close()
			case 6:
				o.Leave()
			case 7:
				o.FailPeer(2)
			}
			assert.True(t, o.Worker() >= -1 && o.Worker() < size)
			for _, r := range o.Closers() {
				assert.True(t, r >= 0 && r < size)
			}
		}
		// Rank 2 dies. The others end, whatever it has written.
		for me, o := range ops[:2] {
			for range 3 {
				o.Work(All)
				o.FailPeer(2)
				o.FailPeer(1 - me) // it works on no chunk now, so a claim in its name is rubbish
			}
			state := o.State(0)
			require.Contains(t, []State{Done, Closed}, state)
			if o.Damaged() {
				require.Equal(t, Closed, state)
			}
		}
		for _, o := range ops {
			o.Free()
		}
	})
}

// A word that no rank writes closes the operation for the rank that finds it.
func TestDamagedWords(t *testing.T) {
	for name, w := range map[string]uint64{
		"a later number":    2<<20 | 1<<4 | 2,
		"no state":          1 << 20,
		"an unknown state":  1<<20 | 5,
		"an owner too high": 1<<20 | 3<<4 | 1,
		"a claim of mine":   1<<20 | 1,
		"a chunk I left":    1<<20 | 4,
		"all bits":          ^uint64(0),
	} {
		t.Run(name, func(t *testing.T) {
			g := newTeam(t, 3, 40000)
			ops := g.next(t)
			g.words[1+2] = w // the words begin behind that of the blind ranks
			ops[0].Work(All)
			assert.Equal(t, Closed, ops[0].State(0))
			assert.True(t, ops[0].Damaged())
			assert.Equal(t, -1, ops[0].Worker())
			assert.Equal(t, Closed, ops[0].State(0), "it stays closed")
		})
	}
}

// A rank that cannot take part closes what nobody has claimed, and fails what others work on.
func TestBystander(t *testing.T) {
	g := newTeam(t, 2, 40000)
	ops := g.next(t)
	g.words[1] = 1<<20 | 1<<4 | 1 // rank 1 works on the first chunk
	o, err := NewBystander(&Collective{Seq: g.seq, Rank: 0, Size: 2, Words: unsafe.Pointer(&g.words[0]), Chunks: len(g.words)})
	require.NoError(t, err)
	defer o.Free()
	assert.Zero(t, o.Work(All))
	assert.Equal(t, Closing, o.Leave())
	assert.Equal(t, 1, o.Worker())
	assert.False(t, o.Damaged())
	g.words[1] = 1<<20 | 1<<4 | 3 // it finds the mark when it is done
	assert.Equal(t, Closed, o.Close())
	assert.Equal(t, Closed, ops[1].State(0))
	assert.False(t, ops[1].Damaged())
}
