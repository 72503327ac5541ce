package arrive

import (
	"math/bits"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// A doubling gives every member the words of all members, combined by bitwise or, and the payload of each. It is
// recursive doubling by messages: in round i the members exchange what they know with the member at distance 2^i,
// so it takes log2 n rounds. If n is no power of two, some members give what they have to a partner first, and get
// the result from it at the end (Thakur, Rabenseifner, Gropp 2005).
//
// Where the members on a node have a Board, only one of them exchanges messages, for all of them: their leader. So the
// rounds are of nodes, and a node has one message a round, however many members it has.
//
// A message is a header of headerWords, and a record for every member whose payload the sender knows. Records are
// untrusted: their lengths are checked before they are read.

// step is one round of a doubling as one member sees it.
type step struct {
	peer        int32
	sends       bool
	receives    bool
	out, in     int64 // the most bytes of the messages
	outAt, inAt int64 // where these lie in the block of a doubling
}

// layout finds the places of the messages of steps. It returns the bytes of a block, which begins with this member's own payload, or
// the sum of its node.
func (r *rooms) layout(steps []step) (size int64) {
	size = (r.most + 7) &^ 7
	for i := range steps {
		s := &steps[i]
		if s.sends {
			s.outAt = size
			size += s.out
		}
		if s.receives {
			s.inAt = size
			size += s.in
		}
	}
	return size
}

// rooms are the most bytes of what a group tells.
type rooms struct {
	Rooms
	most int64   // of any payload or sum
	node []int64 // records of each node
	all  int64   // records of all nodes
}

func roomsOf(nodes [][]int) *rooms {
	n, most := 0, 0
	for _, members := range nodes {
		n, most = n+len(members), max(most, len(members))
	}
	r := &rooms{Rooms: wireRooms(len(nodes), n, most), node: make([]int64, len(nodes))}
	r.most = max(r.Payload, r.Gathered, r.Alone, r.Sum)
	for k, members := range nodes {
		here := int64(len(members))
		r.node[k] = max(here*recordBytes(r.Payload), here*recordBytes(r.Gathered), recordBytes(r.Alone)+(here-1)*recordBytes(0), recordBytes(r.Sum))
		r.all += r.node[k]
	}
	return r
}

// plan returns the steps of the leader of node me, without their places. nodes are the members by node; the first of a
// node speaks for it.
func (r *rooms) plan(nodes [][]int, me int) (steps []step) {
	whole := 1 << (bits.Len(uint(len(nodes))) - 1) // the nodes that take part in the rounds
	extra := len(nodes) - whole                    // those that give theirs to a partner
	leader := func(node int) int32 { return int32(nodes[node][0]) }
	if me < 2*extra && me%2 == 0 {
		partner := leader(me + 1)
		return []step{{peer: partner, sends: true, out: headerBytes + r.node[me]}, {peer: partner, receives: true, in: headerBytes + r.all - r.node[me]}}
	}
	// A node of the rounds has a number there, and the nodes of a block of numbers have payloads of these members.
	number := me - extra
	if me < 2*extra {
		number = me / 2
	}
	of := func(v int) int {
		if v < extra {
			return 2*v + 1
		}
		return v + extra
	}
	message := func(from, to int) int64 {
		bytes := int64(headerBytes)
		for v := from; v < to; v++ {
			if bytes += r.node[of(v)]; v < extra {
				bytes += r.node[of(v)-1]
			}
		}
		return bytes
	}
	if me < 2*extra {
		steps = append(steps, step{peer: leader(me - 1), receives: true, in: headerBytes + r.node[me-1]})
	}
	for d := 1; d < whole; d *= 2 {
		mine, theirs := number&^(d-1), number&^(d-1)^d
		steps = append(steps, step{peer: leader(of(number ^ d)), sends: true, receives: true,
			out: message(mine, mine+d), in: message(theirs, theirs+d)})
	}
	if me < 2*extra {
		steps = append(steps, step{peer: leader(me - 1), sends: true, out: headerBytes + r.all - r.node[me-1]})
	}
	return steps
}

// seats says where the members of a group are, and what one of them does in a doubling.
type seats struct {
	nodes [][]int
	node  []int  // of each member
	here  int    // the node of this member
	board *Board // of the members on this node; nil if this one is alone there
	steps []step // none if another member speaks for the node
	rooms *rooms
	size  int64 // bytes of the block of a doubling
}

// seatsOf returns the seats of member me of n.
func seatsOf(n, me int, nodes [][]int, board *Board) *seats {
	s := &seats{nodes: nodes, node: make([]int, n), board: board, rooms: roomsOf(nodes)}
	for k, members := range nodes {
		for _, m := range members {
			s.node[m] = k
		}
	}
	s.here = s.node[me]
	if nodes[s.here][0] == me {
		s.steps = s.rooms.plan(nodes, s.here)
	}
	s.size = s.rooms.layout(s.steps)
	return s
}

// The header of a message: the number and the kind of the doubling, the words, and the bytes of the records.
const (
	headerWords = 3 + wireWords
	headerBytes = 8 * headerWords
)

// recordBytes returns what the record of a payload takes: member and length as 32-bit words, and the payload.
func recordBytes(payload int64) int64 { return 8 + (payload+7)&^7 }

// doubling is one doubling of a member. Its messages lie in one block outside the Go heap.
type doubling struct {
	*seats
	end   transport.Endpoint
	tag   int32
	n, me int
	block unsafe.Pointer

	seq, kind uint64
	words     [wireWords]uint64
	payloads  []Payload // by member; those of the others are in the block, or on the board
	had       []bool    // whose payloads are known
	known     int
	summed    []bool // the nodes whose first member has the sum of all payloads there
	sums      nodeSums
	heard     int   // members on the board
	at        int   // the step under way; len(steps): none
	number    round // on the board
	onBoard   bool  // it waits for the others on the node
	receiving *transport.Request
	got       int64 // bytes of the message that is received
	sending   transport.UnderWay
}

// newDoubling makes a doubling of the members of end.
func newDoubling(end transport.Endpoint, tag int32, seats *seats) (*doubling, error) {
	n := end.Size()
	g := &doubling{seats: seats, end: end, tag: tag, n: n, me: end.Rank(), at: len(seats.steps),
		payloads: make([]Payload, n), had: make([]bool, n), summed: make([]bool, len(seats.nodes))}
	g.sending.By = end
	var err error
	g.block, err = mem.Alloc(seats.size)
	return g, err
}

// begin starts a doubling of words, and of a payload, which is copied. It returns what poll returns.
func (g *doubling) begin(seq, kind uint64, words *[wireWords]uint64, payload Payload) (over bool, err error) {
	g.seq, g.kind, g.words = seq, kind, *words
	clear(g.had)
	clear(g.summed)
	g.known, g.heard, g.sums = 0, 0, nodeSums{sum: payload.Sum}
	if g.board != nil {
		g.at = len(g.steps)
		g.number, g.onBoard = g.board.put(seq, kind, words, payload), true
		return g.poll()
	}
	own := g.firstPayload()
	switch {
	case payload.Sum == nil:
		payload.write(own)
		g.learn(g.me, Payload{Data: own, Bytes: payload.Bytes})
	case payload.Sum.ForOthers:
		payload.write(g.block)
		g.learn(g.me, Payload{Data: g.block, Bytes: payload.Bytes})
		g.sums.alike = true
	default:
		payload.Sum.Run(own, []unsafe.Pointer{payload.Data})
		g.learnSum(g.here, Payload{Data: own, Bytes: payload.Sum.Bytes})
	}
	g.at = -1
	return g.next()
}

// firstPayload returns where the payload of this member, or the sum of its node, lies: in the first message, if that has no other
// payload, else at the beginning of the block.
func (g *doubling) firstPayload() unsafe.Pointer {
	if len(g.steps) > 0 && g.steps[0].sends {
		return unsafe.Add(g.block, g.steps[0].outAt+headerBytes+8)
	}
	return g.block
}

// combine takes in the words of other members.
func (g *doubling) combine(words []uint64) {
	for i := range g.words {
		g.words[i] |= words[i]
	}
}

// learn keeps the payload of a member.
func (g *doubling) learn(member int, payload Payload) {
	g.payloads[member], g.had[member] = payload, true
	g.known++
}

// next goes on to the next step, and over those that wait for nothing.
func (g *doubling) next() (over bool, err error) {
	for {
		if g.at++; g.at == len(g.steps) {
			if g.known != g.n {
				return false, &Damaged{g.me, "it lacks the payloads of some members"}
			}
			if g.board != nil {
				g.tellNode()
			}
			return true, nil
		}
		s := &g.steps[g.at]
		if s.receives {
			g.got = 0
			if err = g.receive(s, s.in); err != nil {
				return false, err
			}
		}
		if s.sends {
			if err = g.send(s); err != nil {
				g.giveUp()
				return false, err
			}
		}
		if s.receives {
			return false, nil
		}
	}
}

// eagerParts is in how many parts of up to Eager a message goes at most. A longer one goes in one part.
const eagerParts = 10

// partOf returns how many bytes of the rest of a message of so many bytes go in the next part.
func (g *doubling) partOf(bytes, rest int64) int64 {
	if most := g.end.Eager(); bytes > most && bytes <= eagerParts*most {
		return min(most, rest)
	}
	return rest
}

// receive receives up to bytes bytes more of the message of a step.
func (g *doubling) receive(s *step, bytes int64) (err error) {
	if g.receiving, err = g.end.Receive(unsafe.Add(g.block, s.inAt+g.got), bytes, s.peer, g.tag); err != nil {
		g.receiving, g.at = nil, len(g.steps)
	}
	return err
}

// send sends what this member knows.
func (g *doubling) send(s *step) error {
	data := unsafe.Add(g.block, s.outAt)
	bytes := g.write(data, g.node[s.peer])
	for sent := int64(0); sent < bytes; {
		part := g.partOf(bytes, bytes-sent)
		if err := g.sending.Add(g.end.Send(unsafe.Add(data, sent), part, s.peer, g.tag)); err != nil {
			return err
		}
		sent += part
	}
	return nil
}

// write writes the message of what this member knows, and returns its length. The members of node but know their own
// payloads.
func (g *doubling) write(to unsafe.Pointer, but int) int64 {
	bytes := int64(headerBytes)
	for member, payload := range g.payloads {
		node := g.node[member]
		if !g.had[member] || node == but {
			continue
		}
		record, replaced := uint32(member), node == g.here && g.sums.forOthers()
		if g.summed[node] || replaced {
			if g.nodes[node][0] != member {
				continue
			}
			record |= sumRecord
		}
		if replaced {
			payload = g.sumForOthers()
		}
		*(*[2]uint32)(unsafe.Add(to, bytes)) = [2]uint32{record, uint32(payload.Bytes)}
		payload.write(unsafe.Add(to, bytes+8))
		bytes += recordBytes(payload.Bytes)
	}
	header := (*[headerWords]uint64)(to)
	header[0], header[1], header[2] = g.seq, g.kind, uint64(bytes-headerBytes)
	copy(header[3:], g.words[:])
	return bytes
}

// poll takes the doubling further, and tells whether this member knows everything. Its messages may still be under
// way then: see settled. After an error the doubling is given up.
func (g *doubling) poll() (over bool, err error) {
	if g.onBoard {
		if over, err := g.look(); over || err != nil || g.onBoard {
			return over, err
		}
	}
	for g.at < len(g.steps) {
		if !transport.Over(g.end, g.receiving) {
			return false, nil
		}
		s := &g.steps[g.at]
		g.got += g.receiving.Bytes
		err := g.end.Err(g.receiving)
		g.end.Release(g.receiving)
		g.receiving = nil
		if err == nil {
			if more := g.rest(s); more > 0 {
				if err := g.receive(s, more); err != nil {
					return false, err
				}
				continue
			}
			err = g.takeIn(unsafe.Add(g.block, s.inAt), g.got, int(s.peer))
		}
		if err != nil {
			g.at = len(g.steps)
			return false, err
		}
		if over, err := g.next(); over || err != nil {
			return over, err
		}
	}
	return true, nil
}

// rest returns how many bytes the next part of a message has, of which the parts before were received.
func (g *doubling) rest(s *step) int64 {
	most := g.end.Eager()
	if most == 0 || g.got == 0 || g.got%most != 0 {
		return 0
	}
	bytes := headerBytes + (*(*[headerWords]uint64)(unsafe.Add(g.block, s.inAt)))[2]
	if bytes > uint64(min(s.in, eagerParts*most)) {
		return 0 // it went in one part, or is damaged: see takeIn
	}
	return g.partOf(int64(bytes), int64(bytes)-g.got)
}

// takeIn takes in what a member has told in bytes bytes. Each word is read once: on a board it may change.
func (g *doubling) takeIn(from unsafe.Pointer, bytes int64, by int) error {
	if bytes < headerBytes {
		return &Damaged{by, "its message is not of this collective"}
	}
	header := *(*[headerWords]uint64)(from)
	if header[0] != g.seq || header[1] != g.kind || header[2] != uint64(bytes-headerBytes) {
		return &Damaged{by, "its message is not of this collective"}
	}
	g.combine(header[headerWords-wireWords:])
	for at := int64(headerBytes); at < bytes; {
		if bytes-at < 8 {
			return &Damaged{by, "its message is cut off"}
		}
		record := *(*[2]uint32)(unsafe.Add(from, at))
		member, length := int(record[0]&^sumRecord), int64(record[1])
		payload, sum := Payload{Data: unsafe.Add(from, at+8), Bytes: length}, record[0]&sumRecord != 0
		switch node := g.nodeOfSum(member); {
		case recordBytes(length) > bytes-at:
		case sum && node >= 0 && length <= g.rooms.Sum:
			g.learnSum(node, payload)
			at += recordBytes(length)
			continue
		case !sum && member < g.n && !g.had[member] && length <= g.rooms.most:
			g.learn(member, payload)
			at += recordBytes(length)
			continue
		}
		return &Damaged{by, "its message has a payload that no member announces"}
	}
	return nil
}

// Damaged is the error of an arrival that a member has sent what no member sends.
type Damaged struct {
	Member int // in the group
	Why    string
}

func (d *Damaged) Error() string { return "arrive: " + d.Why }

// giveUp gives the doubling up: what this member waits for comes no more.
func (g *doubling) giveUp() {
	g.at, g.onBoard = len(g.steps), false
	if g.receiving != nil {
		_ = g.end.Cancel(g.receiving)
	}
}

// push lets the transport send what it has held back. MPICH waits for the next call, which may come late.
func (g *doubling) push() {
	if g.sending.Len() > 0 {
		g.sending.Poll()
	}
}

// settled tells whether no message of the doubling is under way. It tests them.
func (g *doubling) settled() bool {
	if g.receiving != nil {
		if g.at < len(g.steps) || !transport.Over(g.end, g.receiving) {
			return false
		}
		g.end.Release(g.receiving)
		g.receiving = nil
	}
	if g.sending.Len() > 0 {
		g.sending.Poll()
		_ = g.sending.Reap() // the receiver tells of its trouble itself
	}
	return g.sending.Len() == 0
}

func (g *doubling) free() {
	mem.Free(g.block)
	g.block = nil
}
