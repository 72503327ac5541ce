package coll

import (
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll/bounce"
	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// The algorithm bounce serves groups on one node whose tensors lie in ordinary memory, which the other ranks cannot map.
// They go through a block in each rank's heap, window by window (package bounce), without MPI.

// Bounce is what a member of a group on one node has for the algorithm bounce. The zero values of its private fields say that
// no collective has needed it yet.
type Bounce struct {
	Rank, Size int
	Crowded    bool           // the node has more ranks than cores
	YieldEvery int            // pauses after which a wait yields the core; 0: never
	Told       unsafe.Pointer // BounceWords(Size) bytes of zeros, which all members map: each tells there where its block is
	Heap       func() (*heap.Heap, error)
	Heaps      Heaps
	Presence   Presence

	mu    sync.Mutex
	block unsafe.Pointer // this rank's, in its heap; nil: it has none yet
	freed bool           // Free was called: Told is not there any more
	reads atomic.Bool    // this rank can read the memory of all others

	// The collective that is under way owns these. They are nil before the first one.
	team *bounce.Team
	refs []heap.Ref // the blocks of the others
}

// Presence tells how far the members are. arrive.ControlSlots implements it.
type Presence interface {
	// GivenUp tells whether a member has given a collective up.
	GivenUp(seq uint64) bool
	// Gone tells whether a member has freed the group: it reads nothing any more.
	Gone(member int) bool
}

// wordsApart is how far the words of two members are from each other, in bytes.
const wordsApart = 64

// BounceWords returns the length of Bounce.Told for a group of n.
func BounceWords(n int) int64 { return int64(n) * wordsApart }

// toldRing is what a member tells of its block.
type toldRing struct {
	heap.Location
	slots int64
}

func (b *Bounce) told(member int) *toldRing {
	return (*toldRing)(unsafe.Add(b.Told, member*wordsApart))
}

// Ready takes this rank's block from its heap, and tells the others where it is, unless that was done. It is called before
// this rank announces ForBounce.
func (b *Bounce) Ready() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.block != nil || b.freed { // what is called then learns that the group was destroyed
		return nil
	}
	own, err := b.Heap()
	if err != nil {
		return err
	}
	slots := bounce.Slots(b.Size, b.Crowded)
	bytes := bounce.BlockBytes(b.Size, slots)
	block, err := own.AllocShort(bytes)
	if err != nil {
		return err
	}
	at, ok := own.Find(block, bytes)
	if !ok {
		_ = own.Free(block)
		return status.New(status.NoMemory, "the heap does not know its own block of %d bytes", bytes)
	}
	bounce.Clear(block)
	word := b.told(b.Rank)
	atomic.StoreInt64(&word.slots, int64(slots))
	atomic.StoreInt64(&word.Offset, at.Offset)
	atomic.StoreUint64(&word.Generation, at.Generation)
	b.block = block
	return nil
}

// open returns the team. It maps the blocks of the others, when all have announced ForBounce for the first time.
func (b *Bounce) open(code op.Code) (*bounce.Team, error) {
	if b.team != nil {
		return b.team, nil
	}
	blocks := make([]unsafe.Pointer, b.Size)
	slots := int64(bounce.Slots(b.Size, b.Crowded))
	for i := range blocks { // ranks may have different numbers of cores
		slots = min(slots, atomic.LoadInt64(&b.told(i).slots))
	}
	if slots < bounce.LeastSlots {
		return nil, status.New(status.GroupBroken, "%s: a member of the group tells of %d slots, which no member has: its process is damaged", code, slots)
	}
	for i := range blocks {
		if i == b.Rank {
			blocks[i] = b.block
			continue
		}
		ref, err := b.Heaps.Acquire(i, placeOf(&b.told(i).Location), bounce.BlockBytes(b.Size, int(slots)))
		if err != nil {
			b.release()
			return nil, status.New(status.NoMemory, "%s: this rank cannot map the memory through which member %d of the group sends its tensors (ulimit -v?): %v", code, i, err)
		}
		b.refs = append(b.refs, ref)
		blocks[i] = ref.Data()
	}
	team, err := bounce.NewTeam(blocks, b.Rank, int(slots), b.Crowded, b.YieldEvery)
	if err != nil {
		b.release()
		return nil, err
	}
	b.team = team
	b.reads.Store(team.Reads())
	return team, nil
}

func (b *Bounce) release() {
	for _, ref := range b.refs {
		ref.Release()
	}
	b.refs = nil
}

// Free gives back what Ready and open took, and tells whether it did: it does not while another member may still copy from the
// block. Told stays until then. No collective of the group is under way.
func (b *Bounce) Free() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.freed = true
	if b.team != nil {
		if !b.team.Idle(b.Presence.Gone) {
			return false
		}
		b.team.Free()
		b.team = nil
	}
	b.release()
	if b.block != nil {
		_ = heap.IfMade().Free(b.block) // it fails only for memory that is not the heap's
	}
	b.block = nil
	return true
}

// Awaited returns the member for which the operation waits; -1: none.
func (b *Bounce) Awaited() int {
	if b.team == nil {
		return -1
	}
	return b.team.Awaited()
}

// Awaits tells whether the operation waits for a member, perhaps among others.
func (b *Bounce) Awaits(member int) bool { return b.team != nil && b.team.Awaits(member) }

// HasEnded tells whether a member has ended its part in every operation that this one has begun.
func (b *Bounce) HasEnded(member int) bool { return b.team == nil || b.team.HasEnded(member) }

// DamagedBlock is the error that the block of a member holds what no member writes there.
type DamagedBlock struct{ Member int }

func (e *DamagedBlock) Error() string { return "a block of the algorithm bounce is damaged" }

// UnreadableTensor is the error that this rank cannot read a tensor in the memory of a member, as it could before.
type UnreadableTensor struct {
	Member int
	Cause  syscall.Errno
}

func (e *UnreadableTensor) Error() string {
	return "a tensor of the algorithm cma cannot be read: " + e.Cause.Error()
}

// WantsBounce tells whether this rank has to announce ForBounce with a call, which announces flags, because the call may be
// carried out by bounce. All members have the same answer, unless their tensors are in memory of different kinds or they exchange shares of different
// lengths.
func WantsBounce(a *Args, flags arrive.Flags) bool {
	code := a.Code
	if code == op.AllReduceCoalesced {
		code = op.AllReduce // of the blocks in which the tensors are packed
	}
	if a.Bounce == nil || !hasAlgorithm("bounce", code) {
		return false
	}
	if alg := a.Forced.of(code); a.NoMPI || alg != nil && (alg.Name == "bounce" || alg.Name == "cma") {
		return true
	}
	sig := a.Sig
	sig.Agreed, sig.Any = flags, flags
	return bounceWins(&sig)
}

// bounced serves every collective whose rounds all ranks know by what they have announced. Bytes moved: package
// bounce.
var bounced = Algorithm{Name: "bounce", Memory: hostMemory, Enabled: func(s *Sig) bool {
	return byBounce(s) && !unevenPairs(s)
}, wins: bounceWins, polls: always, scratch: apartScratch, rounds: func(a *Args, p *Program) error {
	return beginRounds(a, p, false)
}, build: func(a *Args, p *Program) error {
	addRounds(a, p, func(*bounce.Team) error { return beginRounds(a, p, false) })
	return nil
}}

// allToAllUnevenBounce, behind bounced in the registry, first tells all ranks the lengths of all shares, as a table: so all know how many rounds there are, and lengths
// that do not match are the same error on all ranks. Bytes moved by each rank: those of the shares, as by bounce, and 8n squared for the
// lengths.
var allToAllUnevenBounce = Algorithm{Name: "bounce", Memory: hostMemory, Enabled: byBounce, wins: bounceWins, polls: always, scratch: func(a *Args) int64 {
	return apartScratch(a) + pairsScratch(a)
}, build: func(a *Args, p *Program) error {
	sends, err := keepApart(a, p)
	if err != nil {
		return err
	}
	return exchangeByBounce(a, p, perRank(a, sends), perRank(a, a.Recv), false)
}}

func byBounce(s *Sig) bool { return s.Local && s.Size > 1 && s.Agreed&ForBounce != 0 }

// unevenPairs tells whether the ranks know the lengths of all shares only when they have told each other.
func unevenPairs(s *Sig) bool { return s.Trait().Shares == op.Pairwise && s.Agreed&Even == 0 }

// bounceWins tells whether bounce is worth a block in a group with MPI. It is faster than the MPIs that were measured, but what fits into an
// announcement needs neither.
func bounceWins(s *Sig) bool {
	elements := s.Count
	if s.Trait().Send.PerRank() {
		elements *= int64(s.Size)
	}
	return s.Trait().Prefix || s.Agreed&Even == 0 || elements*int64(s.DType.Size()) > arrive.PayloadRoom(s.Size)
}

// stepsAtOnce is how many steps a poll does, some 100 us.
const stepsAtOnce = 16

// addRounds appends an operation that begin begins.
func addRounds(a *Args, p *Program, begin func(*bounce.Team) error) {
	begun := false
	p.untilLeft(func() (bool, error) {
		if !begun {
			team, err := a.Bounce.open(a.Code)
			if err == nil {
				err = begin(team)
			}
			if err != nil {
				return false, err
			}
			begun = true
		}
		state, err := a.RunRounds(stepsAtOnce, 0)
		return state == bounce.Done, err
	})
}

// RunRounds takes the rounds of the call further, with up to most steps, and pauses up to spin times in a row until it can do one.
func (a *Args) RunRounds(most, spin int) (bounce.State, error) {
	team := a.Bounce.team
	state := team.Run(most, spin)
	switch {
	case state == bounce.Damaged:
		return state, &DamagedBlock{team.DamagedBy()}
	case team.Lends() && (state == bounce.Done || state == bounce.Unreadable) && a.Bounce.Presence.GivenUp(a.Seq):
		return bounce.Pending, nil // whoever gave the call up may have changed what was read: this rank waits for its own end
	case state == bounce.Unreadable:
		member, cause := team.UnreadableOf()
		return state, &UnreadableTensor{member, cause}
	}
	return state, nil
}

// beginRounds begins the rounds of a call at which all members have arrived. lends says that others read what this rank gives where it lies:
// it lies apart from the results then.
func beginRounds(a *Args, p *Program, lends bool) error {
	team, err := a.Bounce.open(a.Code)
	if err != nil {
		return err
	}
	given, err := givenApart(a, p)
	if err != nil {
		return err
	}
	t, elem := a.Trait(), a.elem()
	c := bounce.Call{Kind: bounce.Copy, Apart: t.Send.PerRank(), Last: a.Size, Gives: Gives(a), Gets: a.WritesRecv(), Result: totalCount(a.Recv) * elem, Elem: elem, Lends: lends}
	if t.Gives == op.Root {
		c.First, c.Last = a.Root, a.Root+1
	}
	if t.Shares == op.NoShares {
		c.Longest = a.Count * elem
	} else {
		for r := range a.Size {
			c.Longest = max(c.Longest, a.shareCount(r)*elem)
		}
	}
	if a.Code == op.Gather {
		c.Gives = a.Rank != a.Root
	}
	if t.Reduces {
		c.Fold = reduce.NewFold(a.DType, a.Reduce, a.Size, a.Scale)
		shareOut(a, &c)
	}
	if c.Apart {
		given = perRank(a, given)
	}
	for i, part := range given {
		team.Give(i, part.Data, part.Count*elem)
	}
	switch {
	case !c.Gets:
	case t.Recv.PerRank():
		getParts(team, perRank(a, a.Recv), elem)
	case c.Kind == bounce.Copy:
		team.Get(a.Root, a.Recv[0].Data, a.Recv[0].Count*elem)
	default:
		team.Get(0, a.Recv[0].Data, a.Recv[0].Count*elem)
	}
	team.Begin(&c)
	return nil
}

// getParts says where what each rank gives goes.
func getParts(team *bounce.Team, parts []Part, elem int64) {
	for i, part := range parts {
		team.Get(i, part.Data, part.Count*elem)
	}
}

// shareOut says who reduces what.
func shareOut(a *Args, c *bounce.Call) {
	c.Kind = bounce.Reduce
	switch {
	case a.Trait().Prefix:
		c.Last = a.Rank + 1
		if exclusive(a) {
			c.Last = a.Rank
		}
		c.Gives = a.Rank < a.Size-1
	case a.Code == op.ReduceScatter || a.Code == op.AllReduce && a.Size == 2:
	case a.Code == op.Reduce && a.Size == 2:
		c.Gives = a.Rank != a.Root
	default:
		c.Kind = bounce.Sliced
	}
}

// givenApart returns what this rank gives: a copy if it shares memory with a part of the result in another way than in place.
func givenApart(a *Args, p *Program) ([]Part, error) {
	given := Input(a)
	if separate(a) {
		return given, nil
	}
	copied, err := laidOut(a, p, given)
	if err == nil {
		copyParts(a, copied, given)
	}
	return copied, err
}

// pairs has the lengths of the shares of an all_to_all: a row for each rank, with what it sends to each rank, and then what it expects from
// each.
type pairs struct {
	rows []int64
	n    int
}

func (t *pairs) row(r int) []int64           { return t.rows[r*2*t.n : (r+1)*2*t.n] }
func (t *pairs) sent(from, to int) int64     { return t.row(from)[to] }
func (t *pairs) expected(from, to int) int64 { return t.row(to)[t.n+from] }

// longest returns the length of the longest share.
func (t *pairs) longest() (most int64) {
	for from := range t.n {
		most = max(most, slices.Max(t.row(from)[:t.n]))
	}
	return most
}

// pairsScratch returns what addPairs takes.
func pairsScratch(a *Args) int64 { return pad(16 * int64(a.Size) * int64(a.Size)) }

// addPairs appends rounds in which all ranks tell each other the lengths of their shares, and compare them.
func addPairs(a *Args, p *Program, sends, recvs []Part) (*pairs, error) {
	n := a.Size
	block, err := p.Alloc(pairsScratch(a))
	if err != nil {
		return nil, err
	}
	table := &pairs{unsafe.Slice((*int64)(block), 2*n*n), n}
	mine := table.row(a.Rank)
	for i := range n {
		mine[i], mine[n+i] = sends[i].Count, recvs[i].Count
	}
	gatherByBounce(a, p, inRows(block, n, 16*int64(n)), 1)
	p.Do(func() error { return compareLengths(a, table.sent, table.expected) })
	return table, nil
}

// exchangeByBounce is exchange without messages. Lengths may not match. What is sent lies apart from what is received.
func exchangeByBounce(a *Args, p *Program, sends, recvs []Part, lends bool) error {
	table, err := addPairs(a, p, sends, recvs)
	if err != nil {
		return err
	}
	addRounds(a, p, func(team *bounce.Team) error {
		c := bounce.Call{Kind: bounce.Copy, Apart: true, Last: a.Size, Gives: true, Gets: true, Longest: table.longest() * a.elem(), Elem: a.elem(), Lends: lends,
			Result: totalCount(recvs) * a.elem()}
		for r, part := range sends {
			team.Give(r, part.Data, part.Count*a.elem())
		}
		getParts(team, recvs, a.elem())
		team.Begin(&c)
		return nil
	})
	return nil
}

// What follows is for parts of other algorithms in a group without MPI.

// gatherByBounce appends rounds in which all ranks get what each has in its part. An element has elem bytes, and no part is longer than the
// first one.
func gatherByBounce(a *Args, p *Program, parts []Part, elem int64) {
	addRounds(a, p, func(team *bounce.Team) error {
		getParts(team, parts, elem)
		team.Give(0, parts[a.Rank].Data, parts[a.Rank].Count*elem)
		team.Begin(&bounce.Call{Kind: bounce.Copy, Last: a.Size, Gives: true, Gets: true, Longest: parts[0].Count * elem, Elem: 1})
		return nil
	})
}

// inRows returns n rows of so many bytes, one after the other.
func inRows(at unsafe.Pointer, n int, bytes int64) []Part {
	return views(Part{Data: at}, cutSlices(int64(n)*bytes, n, bytes), 1)
}

// leastByBounce appends rounds in which all ranks get the least of what each has in words[0], in words[1].
func leastByBounce(a *Args, p *Program, words []int32) {
	addRounds(a, p, func(team *bounce.Team) error {
		bytes := int64(op.Int32.Size())
		team.Give(0, unsafe.Pointer(&words[0]), bytes)
		team.Get(0, unsafe.Pointer(&words[1]), bytes)
		team.Begin(&bounce.Call{Kind: bounce.Reduce, Last: a.Size, Gives: true, Gets: true, Longest: bytes, Elem: bytes,
			Fold: reduce.NewFold(op.Int32, op.Min, a.Size, 0)})
		return nil
	})
}
