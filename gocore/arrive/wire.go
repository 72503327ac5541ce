package arrive

import (
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// Wire is the arrival of a group that spans nodes, or whose members cannot share memory: messages among the members
// (doubling), with a tag of their own.
//
// The members gather each word and its complement, combined by bitwise or. A bit that is set in both differs between
// two members. They gather the payloads in the same messages: the input of a small collective travels with its
// announcement. If a word differs or a member has refused, which all members see in the same result, a second doubling
// of what each has announced follows. So the error can say which ranks called what.
//
// A doubling tells neither which members are late nor which will never come. Members ask each
// other by message (package group): Standing is the answer of this member, and Learn takes in the
// answer of another one. A member that has announced a collective may withdraw from it later.
type Wire struct {
	end   transport.Endpoint
	tag   int32
	n, me int
	seats *seats

	announced atomic.Uint64      // newest collective that this member has announced
	mu        sync.Mutex         // guards gaveUp and withdrawn
	gaveUp    *Withdrawal        // what this member answers; nil while it takes part in everything
	withdrawn map[int]Withdrawal // members that take part no more, as far as this one has learnt; by the first of them

	now     *doubling   // the one under way, or the last; its payloads are valid
	made    []*doubling // all that were made: messages of some may not have arrived yet
	entry   [entryWords]uint64
	stage   stage
	last    bool // a member has left: the doubling under way, or the one before, is the last
	state   State
	result  Result
	entries []Entry
}

// stage is what a Wire gathers.
type stage int

const (
	idle          stage = iota
	gatherWords         // the words that all members announce, and their payloads
	gatherEntries       // what each member has announced
)

// Withdrawal says that a member takes no part in collective Seq and in all later ones. Member By was the
// first that did not, for Reason: either it is the member itself, or the member follows what it has learnt.
type Withdrawal struct {
	Seq    uint64
	By     int
	Reason status.Code
}

const (
	flagsWord  = 6 // three words of the signature before, and the flags, each with its complement
	toldWords  = 8 // Payload.Told
	wireWords  = 10
	entryWords = 4
)

// WirePayloads are the bytes that the payloads of all members may have together, and WirePayload those of one. Of two members
// each gets only the other's payload, as it would anyhow, so theirs may be longer: WirePair.
const (
	WirePayloads = 64 << 10
	WirePayload  = 32 << 10
	WirePair     = 256 << 10
)

// The most bytes of the sum of the payloads of a node, and of each of these payloads. Of two nodes as many bytes leave a node as in any
// other all_reduce. Of more each gets the sums of all others, so these are short: SumsOfAll together, and SumOfMany each. The members
// on a node have OnBoard for their payloads.
const (
	SumOfTwo  = 128 << 10
	SumOfMany = 60 << 10
	SumsOfAll = 256 << 10
	OnBoard   = 1 << 20
)

// The most bytes that one of two nodes tells the other one if all of them are part of the result there, so that none crosses the wire in vain: of
// all its members together, and of one alone.
const (
	GatheredOfTwo = 256 << 10
	AloneOfTwo    = 512 << 10
)

// wireRooms returns the rooms of a group of n members on nodes of up to most members.
func wireRooms(nodes, n, most int) Rooms {
	room := wireRoom(n)
	r := Rooms{Payload: room, Gathered: room, Alone: room, Sum: sumRoom(nodes, n, most)}
	if nodes == 2 && n > 2 {
		r.Gathered, r.Alone = max(room, int64(GatheredOfTwo/most)&^63), max(room, min(AloneOfTwo, int64(OnBoard/most)&^63))
	}
	return r
}

// sumRoom returns the most bytes of the sum of a node, in a group of n members on nodes of up to most members; 0 if no node has
// several.
func sumRoom(nodes, n, most int) int64 {
	switch {
	case nodes == n || nodes < 2:
		return 0
	case nodes == 2:
		return min(SumOfTwo, int64(OnBoard/most)&^63)
	}
	return min(SumOfMany, int64(SumsOfAll/nodes), int64(OnBoard/most)) &^ 63
}

// wireRoom returns the most bytes of a payload in a group of n members: an entry always has room.
func wireRoom(n int) int64 {
	if n == 2 {
		return WirePair
	}
	return max(8*entryWords, min(WirePayload, int64(WirePayloads/n)&^7))
}

// NewWire makes the arrival of the members of end. There must be no other messages with the tag. nodes are the members by
// node, the lowest first, and board is of those on the node of this one, nil if it is alone there. If the members of some
// node have no board, each member counts as a node: OfOneEach.
func NewWire(end transport.Endpoint, tag int32, nodes [][]int, board *Board) (*Wire, error) {
	w := &Wire{end: end, tag: tag, n: end.Size(), me: end.Rank(), entries: make([]Entry, end.Size())}
	w.seats = seatsOf(w.n, w.me, nodes, board)
	_, err := w.free()
	return w, err
}

// OfOneEach returns n nodes of one member each.
func OfOneEach(n int) [][]int {
	nodes := make([][]int, n)
	for i := range nodes {
		nodes[i] = []int{i}
	}
	return nodes
}

// free returns a doubling of which no message is under way, but not the one whose payloads are valid.
func (w *Wire) free() (*doubling, error) {
	for _, g := range w.made {
		if g != w.now && g.settled() {
			return g, nil
		}
	}
	g, err := newDoubling(w.end, w.tag, w.seats)
	if err == nil {
		w.made = append(w.made, g)
	}
	return g, err
}

// Rooms returns the most bytes of payloads.
func (w *Wire) Rooms() Rooms { return w.seats.rooms.Rooms }

// Leave announces, in the place of collective seq, the next one, that this member comes to no more, because
// of reason. So no doubling of another member stays under way for ever, and each member that comes to seq
// finds it closed. If a doubling of this member is under way, it is the last: the others are told if they
// ask. The caller polls Settled afterwards. No member announces anything after a collective in which one left.
func (w *Wire) Leave(seq uint64, reason status.Code) error {
	w.GiveUp(seq, reason)
	if w.stage != idle || w.last {
		return nil
	}
	w.last = true
	_, _, err := w.Announce(seq, &Signature{uint64(reason)}, Left, Payload{}, 0)
	return err
}

// Announce starts the doubling of what this member announces.
func (w *Wire) Announce(seq uint64, sig *Signature, flags Flags, payload Payload, _ int) (State, Result, error) {
	var vec [wireWords]uint64
	for i, v := range sig {
		vec[2*i], vec[2*i+1] = v, ^v
		w.entry[i] = v
	}
	f := uint64(flags)
	vec[flagsWord], vec[flagsWord+1] = f, ^f
	copy(vec[toldWords:], payload.Told[:])
	w.entry[len(sig)] = f
	return w.double(gatherWords, seq, &vec, payload)
}

// gather starts a doubling. What was not started is not announced.
func (w *Wire) double(what stage, seq uint64, vec *[wireWords]uint64, payload Payload) (State, Result, error) {
	w.state, w.now = Pending, nil
	g, err := w.free()
	if err != nil {
		return Pending, Result{}, err
	}
	w.now = g
	over, err := g.begin(seq, uint64(what), vec, payload)
	if err != nil {
		w.stage = idle
		return Pending, Result{}, err
	}
	w.announced.Store(seq)
	if w.stage = what; over {
		return w.gathered()
	}
	return Pending, Result{}, nil
}

// Poll takes the doubling further. It ignores spin, because every look is a test of a request. A
// collective in which some member takes no part is closed, even if all have announced it: it could not end.
func (w *Wire) Poll(int) (State, Result, error) {
	if w.stage == idle {
		return w.state, w.result, nil
	}
	over, err := w.now.poll()
	switch {
	case err != nil:
		w.stage = idle
		return Pending, Result{}, err
	case over:
		return w.gathered()
	case w.closed():
		return Closed, Result{}, nil
	}
	return Pending, Result{}, nil
}

// gathered takes in what was gathered.
func (w *Wire) gathered() (State, Result, error) {
	stage := w.stage
	w.stage = idle
	w.now.push()
	if stage == gatherWords {
		w.compare()
		if w.last = w.result.Any&Left != 0; w.result.All&Left != 0 {
			w.state = Closed // all have left: nobody asks who
			return w.state, w.result, nil
		}
		// All members see in the same result whether the second doubling follows. A member that knows already that the
		// collective is closed takes part too, or that of the others would never end.
		if w.state == Agreed && w.result.Any&(Refused|Left) == 0 {
			if w.closed() {
				w.state = Closed
			}
			return w.state, w.result, nil
		}
		vec := w.now.words
		return w.double(gatherEntries, w.now.seq, &vec, Payload{Data: unsafe.Pointer(&w.entry), Bytes: 8 * entryWords})
	}
	w.takeEntries()
	switch {
	case w.last:
		w.state = Closed
	case w.result.Diff != 0:
		w.state = Differ
	default:
		w.state = Agreed
	}
	return w.state, w.result, nil
}

// takeEntries keeps what the members have announced, and who has left. A payload of another length stands for nothing.
func (w *Wire) takeEntries() {
	for i := range w.entries {
		var e [entryWords]uint64
		if payload := w.now.payloads[i]; payload.Bytes == 8*entryWords {
			e = *(*[entryWords]uint64)(payload.Data)
		}
		copy(w.entries[i].Signature[:], e[:])
		if w.entries[i].Flags = Flags(e[entryWords-1]); w.entries[i].Flags&Left != 0 {
			w.Learn(Withdrawal{w.announced.Load(), i, status.Code(e[0])})
		}
	}
}

func (w *Wire) compare() {
	got := &w.now.words
	w.result = Result{Any: Flags(got[flagsWord]), All: ^Flags(got[flagsWord+1]), Told: [2]uint64(got[toldWords:])}
	for i := 0; i < len(Signature{}); i++ {
		if got[2*i]&got[2*i+1] != 0 {
			w.result.Diff |= 1 << i
		}
	}
	w.state = Agreed
	if w.result.Diff != 0 {
		w.state = Differ
	}
}

// Payload returns the payload of member i for the collective that was announced last, at which all members have arrived. It
// stays valid until the next one is announced.
func (w *Wire) Payload(_ uint64, i int) (payload unsafe.Pointer, bytes int64) {
	return w.now.payloads[i].Data, w.now.payloads[i].Bytes
}

// Entries returns what each member has announced.
func (w *Wire) Entries() []Entry { return w.entries }

// Missing returns known = false: a doubling does not tell which members are late.
func (w *Wire) Missing() ([]int, bool) { return nil, false }

// GiveUp records that this member takes no part in seq and in all later collectives, for members that
// ask. If another member was the first, as this one has learnt, the answer names that one and its reason.
// GiveUp always returns true: each member has its own deadline, which counts after the arrival too,
// because nothing blocks across nodes.
func (w *Wire) GiveUp(seq uint64, reason status.Code) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gaveUp != nil && w.gaveUp.Seq <= seq {
		return true
	}
	w.gaveUp = &Withdrawal{seq, w.me, reason}
	for by := range w.n {
		if first, ok := w.withdrawn[by]; ok && first.Seq <= seq {
			w.gaveUp = &Withdrawal{seq, by, first.Reason}
			break
		}
	}
	return true
}

// Standing is how far a member has come.
type Standing struct {
	Announced uint64      // the newest collective that it has announced
	GaveUp    *Withdrawal // from which on it takes no part; nil: there is none
}

// At returns whether the member has announced seq, and its withdrawal if it takes no part in seq, or none any more.
func (s Standing) At(seq uint64) (announced bool, gaveUp *Withdrawal) {
	if s.GaveUp != nil && s.GaveUp.Seq <= seq {
		gaveUp = s.GaveUp
	}
	return s.Announced >= seq, gaveUp
}

// Standing returns how far this member has come. It is safe for concurrent use, also after Close.
func (w *Wire) Standing() Standing {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Standing{w.announced.Load(), w.gaveUp}
}

// GaveUp returns the withdrawal of this member, nil while it takes part in everything.
func (w *Wire) GaveUp() *Withdrawal { return w.Standing().GaveUp }

// Learn records what another member has answered. It is safe for concurrent use.
func (w *Wire) Learn(about Withdrawal) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.withdrawn == nil {
		w.withdrawn = map[int]Withdrawal{}
	}
	if known, ok := w.withdrawn[about.By]; !ok || about.Seq < known.Seq {
		w.withdrawn[about.By] = about
	}
}

// Closers returns the members that take no part in seq and were the first, as far as this one has learnt.
func (w *Wire) Closers(seq uint64) map[int]status.Code {
	w.mu.Lock()
	defer w.mu.Unlock()
	var who map[int]status.Code
	for member, g := range w.withdrawn {
		if g.Seq <= seq {
			if who == nil {
				who = map[int]status.Code{}
			}
			who[member] = g.Reason
		}
	}
	return who
}

// closed tells whether some member takes no part in the current collective.
func (w *Wire) closed() bool { return len(w.Closers(w.announced.Load())) > 0 }

// Settled tests the messages that are under way. A doubling that was given up ends when the other members have come.
func (w *Wire) Settled() bool {
	if w.stage != idle {
		_, _, _ = w.Poll(0)
	}
	return w.stage == idle && !slices.ContainsFunc(w.made, func(g *doubling) bool { return !g.settled() })
}

// Close frees the buffers, except for those of messages that are under way: the transport may still use them.
func (w *Wire) Close() error {
	if w.stage != idle {
		return nil
	}
	w.made = slices.DeleteFunc(w.made, func(g *doubling) bool {
		over := g.settled()
		if over {
			g.free()
		}
		return over
	})
	return nil
}

var _ Arrival = (*Wire)(nil)
