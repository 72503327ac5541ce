package trace

import (
	"bytes"
	"encoding/json"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// FuzzRing reads a ring of which the input overwrites pieces. A piece is its offset in two bytes, its
// length in one, and its bytes.
func FuzzRing(f *testing.F) {
	piece := func(at uintptr, b ...byte) []byte {
		return append([]byte{byte(at >> 8), byte(at), byte(len(b))}, b...)
	}
	h := header{}
	f.Add([]byte{})
	f.Add(piece(unsafe.Offsetof(h.magic)/4, 1, 2, 3))
	f.Add(piece(unsafe.Offsetof(h.rank)/4, 0, 0, 0, 0, 255, 255, 15, 0))
	f.Add(append(piece(unsafe.Offsetof(h.size)/4, 0, 0, 64, 0), piece(1024, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 1, 0, 0, 0, 0, 0, 0, 0)...))
	f.Add(piece(unsafe.Offsetof(h.joined)/4, 255, 255, 255, 255, 255, 255, 255, 255))
	f.Add(piece((headerSize+groupsSize)/4, 7, 200, 200, 200, 200, 200, 200, 200, 200, 200))
	f.Add(piece((headerSize+groupsSize)/4+16, 255, 255, 255, 255, 255, 255, 255, 255))
	whole := bytesOf(f)
	f.Fuzz(func(t *testing.T, input []byte) {
		b := bytes.Clone(whole)
		for len(input) >= 3 {
			n := min(int(input[2]), len(input)-3)
			// The offsets of two bytes reach the header, the groups and the entries in steps of four.
			at := 4 * (int(input[0])<<8 | int(input[1])) % (len(b) - 255)
			copy(b[at:], input[3:3+n])
			input = input[3+n:]
		}
		s, err := Read(bytes.NewReader(b))
		if err != nil {
			return
		}
		text, err := json.Marshal(s)
		require.NoError(t, err)
		assert.True(t, json.Valid(text))
		assert.True(t, s.Rank >= 0 && s.Rank < s.Size && s.Size <= mostRanks)
		members := 0
		for _, g := range s.Groups {
			members += len(g.Ranks)
			for _, rank := range g.Ranks {
				require.True(t, rank >= 0 && rank < s.Size)
			}
		}
		assert.LessOrEqual(t, members, mostMembers)
		for _, name := range []string{s.Host, s.Boot} {
			for _, r := range name {
				assert.True(t, r > ' ' && r <= '~')
			}
		}
	})
}

// A few bytes of groups cannot stand for more memory than a reader has.
func TestGroupsOfMillions(t *testing.T) {
	var b []byte
	for range 2000 { // each stands for all ranks of a world of a million
		g := encodeGroup(Group{ID: 1, Rank: 0, Ranks: []int{0, 1}})
		g[4*4], g[4*4+1], g[4*4+2] = 0, 0, 16
		b = append(b, g...)
	}
	members := 0
	for _, g := range decodeGroups(b, 1<<20) {
		members += len(g.Ranks)
	}
	assert.LessOrEqual(t, members, mostMembers)
}
