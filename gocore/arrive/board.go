package arrive

import (
	"slices"
	"sync/atomic"
	"unsafe"
)

// Board is memory in which the members on a node tell their leader what they announce, and the leader tells them
// what all members of the group have announced. So only the leader of a node exchanges messages (Wire).
//
// The doublings of a group are numbered from 1. Each member has a slot for odd numbers and one for even ones, and so has
// what the leader tells. That suffices: a member begins doubling k + 2 when k + 1 is over, so all have begun k + 1, and
// are through with what was told in k. A number is stored behind what it stands for, in release order.
//
// Every member can write everything here, and one whose process is damaged may. So what is read is checked, and read once.
type Board struct {
	mem     unsafe.Pointer
	members []int // on this node; the first is the leader
	me      int   // the place of this member among them
	rooms   *rooms
	last    round
}

// round is the number of a doubling of a group; 0 is none.
type round uint64

// A slot is a line of words, and the payload. What the leader tells is the same line, and a message (doubling.write).
const (
	slotNumber = iota
	slotSeq
	slotKind
	slotBytes // of the payload, or of the message
	slotWords
	slotBytesOfWords = (8*(slotWords+wireWords) + 63) &^ 63
)

// BoardSize returns the bytes of a board of here members. nodes are those of the whole group.
func BoardSize(here int, nodes [][]int) int64 { return 2 * roomsOf(nodes).halfOfBoard(here) }

// halfOfBoard returns the bytes for the doublings of one parity: the slots, and behind them what the leader tells.
func (r *rooms) halfOfBoard(here int) int64 { return int64(here)*r.slotSize() + r.toldSize() }

func (r *rooms) slotSize() int64 { return (slotBytesOfWords + r.most + 63) &^ 63 }

func (r *rooms) toldSize() int64 { return (slotBytesOfWords + headerBytes + r.all + 63) &^ 63 }

// NewBoard makes the board of members in mem, which they share: BoardSize bytes, all 0 before the first doubling, a multiple
// of 64 its address. me is among them. nodes are those of the whole group.
func NewBoard(mem unsafe.Pointer, members []int, me int, nodes [][]int) *Board {
	return &Board{mem: mem, members: members, me: slices.Index(members, me), rooms: roomsOf(nodes)}
}

// slot returns the slot of a place for doubling k.
func (b *Board) slot(place int, k round) unsafe.Pointer {
	return unsafe.Add(b.mem, int64(k&1)*b.rooms.halfOfBoard(len(b.members))+int64(place)*b.rooms.slotSize())
}

// told returns what the leader tells in doubling k.
func (b *Board) told(k round) unsafe.Pointer { return b.slot(len(b.members), k) }

func number(slot unsafe.Pointer) *uint64 { return (*uint64)(slot) }

// has tells whether a slot is of doubling k. It returns an error if it holds what no member stores there.
func (b *Board) has(slot unsafe.Pointer, k round, member int) (bool, error) {
	switch round(atomic.LoadUint64(number(slot))) {
	case k:
		return true, nil
	case k - min(k, 2):
		return false, nil
	}
	return false, &Damaged{member, "its slot on the board of its node holds what no member stores there"}
}

// put begins the next doubling: it tells the leader what this member announces. The payload is copied.
func (b *Board) put(seq, kind uint64, words *[wireWords]uint64, payload Payload) round {
	b.last++
	slot := b.slot(b.me, b.last)
	line := (*[slotWords + wireWords]uint64)(slot)
	line[slotSeq], line[slotKind], line[slotBytes] = seq, kind, uint64(payload.Bytes)
	copy(line[slotWords:], words[:])
	payload.write(unsafe.Add(slot, slotBytesOfWords))
	atomic.StoreUint64(number(slot), uint64(b.last))
	return b.last
}

// look looks at the board. The leader begins the rounds when all members on the node have announced; another member is
// through when the leader has told the rest. After an error the doubling is given up.
func (g *doubling) look() (over bool, err error) {
	if g.board.me == 0 {
		over, err = g.hear()
	} else {
		over, err = g.listen()
	}
	if err != nil {
		g.onBoard = false
	}
	return over, err
}

// hear takes in what the members on the node have announced, in their order.
func (g *doubling) hear() (over bool, err error) {
	b := g.board
	for g.heard < len(b.members) {
		member := b.members[g.heard]
		slot := b.slot(g.heard, g.number)
		if there, err := b.has(slot, g.number, member); !there {
			return false, err
		}
		if err := g.takeSlot(slot, member); err != nil {
			return false, err
		}
	}
	if g.sums.forAll() {
		g.sumUp()
	} else {
		g.learnNode()
	}
	g.onBoard, g.at = false, -1
	return g.next()
}

// takeSlot takes in what a member on the node has announced.
func (g *doubling) takeSlot(slot unsafe.Pointer, member int) error {
	line := *(*[slotWords + wireWords]uint64)(slot)
	words, bytes := line[slotWords:], line[slotBytes]
	summed := stage(g.kind) == gatherWords && Flags(words[flagsWord])&(Summed|Refused) == Summed
	if line[slotSeq] != g.seq || line[slotKind] != g.kind || bytes > uint64(g.rooms.most) {
		return &Damaged{member, "its slot on the board of its node is not of this collective"}
	}
	g.combine(words)
	g.payloads[member] = Payload{Data: unsafe.Add(slot, slotBytesOfWords), Bytes: int64(bytes)}
	g.sums.hear(summed, words, int64(bytes))
	g.heard++
	return nil
}

// learnNode keeps the payloads of the members on the node. If somebody there has announced something else, so that the collective fails,
// or another algorithm carries it out, some may be too long to go together, or without being summed up. They count for nothing then.
func (g *doubling) learnNode() {
	records := int64(0)
	for _, member := range g.board.members {
		records += recordBytes(g.payloads[member].Bytes)
	}
	drop := !g.sums.alike && (g.sums.any || records > g.rooms.node[g.here])
	for _, member := range g.board.members {
		if drop {
			g.payloads[member].Bytes = 0
		}
		g.learn(member, g.payloads[member])
	}
}

// tellNode tells the other members on the node what all members have announced. They know what lies in their slots.
func (g *doubling) tellNode() {
	told, but := g.board.told(g.number), g.here
	if g.sums.forAll() {
		but = -1
	}
	bytes := g.write(unsafe.Add(told, slotBytesOfWords), but)
	(*[slotWords]uint64)(told)[slotBytes] = uint64(bytes)
	atomic.StoreUint64(number(told), uint64(g.number))
}

// listen takes in what the leader tells, if it has told it.
func (g *doubling) listen() (over bool, err error) {
	b, k := g.board, g.number
	told, leader := b.told(k), b.members[0]
	if there, err := b.has(told, k, leader); !there {
		return false, err
	}
	for place, member := range b.members {
		if err := g.takeSlot(b.slot(place, k), member); err != nil {
			return false, err
		}
	}
	if !g.sums.forAll() {
		g.learnNode()
	}
	bytes := (*[slotWords]uint64)(told)[slotBytes]
	if bytes > uint64(b.rooms.toldSize()-slotBytesOfWords) {
		return false, &Damaged{leader, "its slot on the board of its node has a length that no message has"}
	}
	if err := g.takeIn(unsafe.Add(told, slotBytesOfWords), int64(bytes), leader); err != nil {
		return false, err
	}
	if g.known != g.n {
		return false, &Damaged{leader, "it lacks the payloads of some members"}
	}
	g.onBoard = false
	return true, nil
}
