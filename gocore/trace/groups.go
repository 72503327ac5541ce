package trace

import (
	"encoding/binary"
	"slices"
	"sync/atomic"
)

// After the header the file has two areas. One has the groups of this process, one after the other, in the order in which
// they were made; header.joined says which area that is. When it is full, what is still wanted is copied to the other one, which counts
// from then on: the groups that there are, and those that ended last, of which operations may tell. A group is one of these records, in words
// of 4 bytes:
//
//	id, low and high half of the key, rank of this process in the group, number of members,
//	step, and the world rank of the first member (step not 0: member i is first + i * step),
//	or, with step 0, the world ranks of all members.
const groupWords = 6 // before the members

// mostMembers is how many members of groups a reader keeps in all: a record of a few bytes may stand for
// as many as the world has ranks.
const mostMembers = 1 << 22

// Group is a group of this process. Key is the same on all its members.
type Group struct {
	ID    int64
	Key   uint64
	Rank  int
	Ranks []int
}

// noted is a group in the file.
type noted struct {
	id     int64
	record []byte
	ended  bool
}

// joined is a value of header.joined: how often the area has changed, and the bytes of its groups.
type joined uint64

func (j joined) changes() uint32 { return uint32(j >> 32) }
func (j joined) bytes() int      { return int(uint32(j)) }

// area returns the area of the groups in the bytes of both.
func (j joined) area(both []byte) []byte {
	at := int(j.changes()%2) * areaSize
	return both[at : at+areaSize]
}

// Join notes a group that was made. A group that finds no room is not noted: its operations have no
// members in what a reader gets.
func (r *Ring) Join(g Group) {
	if r == nil || r.mem == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n := noted{id: g.ID, record: encodeGroup(g)}
	if r.groupsBytes()+len(n.record) > areaSize && slices.ContainsFunc(r.groups, func(n noted) bool { return n.ended }) {
		r.dropEnded(len(n.record))
	}
	if r.groupsBytes()+len(n.record) <= areaSize {
		r.groups = append(r.groups, n)
		r.writeGroup(n.record)
	}
}

// Leave notes that a group has ended.
func (r *Ring) Leave(id int64) {
	if r == nil || r.mem == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.groups {
		if r.groups[i].id == id {
			r.groups[i].ended = true
		}
	}
}

func (r *Ring) groupsBytes() int { return joined(r.header().joined).bytes() }

// writeGroup writes a record behind the others, and then shows it. The caller holds mu, as of what follows.
func (r *Ring) writeGroup(record []byte) {
	h := r.header()
	j := joined(h.joined)
	copy(j.area(r.mem[headerSize : headerSize+groupsSize])[j.bytes():], record)
	atomic.StoreUint64(&h.joined, uint64(j)+uint64(len(record)))
}

// dropEnded changes the area. It keeps the groups that have not ended, and those that ended last, as far as half of the area is free then
// and there is room for more bytes.
func (r *Ring) dropEnded(more int) {
	room := areaSize/2 - more
	for _, n := range r.groups {
		if !n.ended {
			room -= len(n.record)
		}
	}
	var kept []noted
	for _, n := range slices.Backward(r.groups) {
		if n.ended {
			room -= len(n.record)
		}
		if !n.ended || room >= 0 {
			kept = append(kept, n)
		}
	}
	slices.Reverse(kept)
	r.groups = kept
	h := r.header()
	next := joined(uint64(joined(h.joined).changes()+1) << 32)
	area, bytes := next.area(r.mem[headerSize:headerSize+groupsSize]), 0
	for _, n := range r.groups {
		bytes += copy(area[bytes:], n.record)
	}
	atomic.StoreUint64(&h.joined, uint64(next)+uint64(bytes))
}

func encodeGroup(g Group) []byte {
	step := stepOf(g.Ranks)
	words := []uint32{uint32(g.ID), uint32(g.Key), uint32(g.Key >> 32), uint32(g.Rank), uint32(len(g.Ranks)), uint32(int32(step))}
	for i, rank := range g.Ranks {
		if i == 0 || step == 0 {
			words = append(words, uint32(rank))
		}
	}
	b, _ := binary.Append(nil, binary.LittleEndian, words)
	return b
}

// stepOf returns the distance of the ranks if it is always the same, else 0.
func stepOf(ranks []int) int {
	if len(ranks) < 2 {
		return 0
	}
	step := ranks[1] - ranks[0]
	for i := range ranks {
		if ranks[i] != ranks[0]+i*step {
			return 0
		}
	}
	return step
}

// decodeGroups reads groups of a world of size ranks. It returns what comes before the first record
// that is none.
func decodeGroups(b []byte, size int) (groups []Group) {
	left := mostMembers
	for len(b) >= 4*groupWords {
		var w [groupWords]uint32
		_, _ = binary.Decode(b, binary.LittleEndian, &w)
		b = b[4*groupWords:]
		rank, n, step := int(int32(w[3])), int(int32(w[4])), int(int32(w[5]))
		stored := n
		if step != 0 {
			stored = 1
		}
		if n < 1 || n > size || n > left || rank < 0 || rank >= n || 4*stored > len(b) {
			return groups
		}
		g := Group{ID: int64(w[0]), Key: uint64(w[1]) | uint64(w[2])<<32, Rank: rank, Ranks: make([]int, n)}
		for i := range g.Ranks {
			at := min(i, stored-1) // of one that is stored
			if g.Ranks[i] = int(int32(binary.LittleEndian.Uint32(b[4*at:]))) + i*step; g.Ranks[i] < 0 || g.Ranks[i] >= size {
				return groups
			}
		}
		b, left = b[4*stored:], left-n
		groups = append(groups, g)
	}
	return groups
}
