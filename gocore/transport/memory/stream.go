package memory

// #include "rings.h"
import "C"

import (
	"math"
	"slices"
	"syscall"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/transport"
)

// A long message moves in one of two ways. Either its receiver reads it in the sender's memory, if it may (package cma): that is
// one copy, by one core, and takes longer from small pages. Or the sender copies pieces into the ring, as often as it is in a
// call, and the receiver takes them out: two copies by two cores, which go on at the same time. Which way takes less time
// depends on the pages, on the caches, on what the sender does meanwhile, and on the cores that the two have just now. So the
// receiver times its messages, and now and then takes the other way. While no piece comes it reads, whatever the way.
//
// A receiver says go for one fragment of one message of a sender at a time. If the message lies in one piece on both sides, the
// fragment is the whole, and also where only the sender has a packer. A fragment that a receiver has to unpack has
// transport.FragmentBytes at most. If it reads the message, it goes on with the next one by itself.
// The receiver says go twice for a fragment that it finds it may not read: then that comes through the ring, from its beginning. One
// that gives a message up says that it has it.
//
// Which piece is whose, a word says that both sides add to: the claims, the number of the fragment above the number of its
// first piece that nobody has claimed. The receiver sets it before it says go. What a packer has nobody reads, so there all pieces
// are the sender's.

const (
	claimBits = C.PM_CLAIM_BITS
	// packetsOfLong is how many packets a message has at least for longer packets.
	packetsOfLong = 16
	// readPieces is how many pieces the receiver reads at a time.
	readPieces = 512
	// piecePauses is for how many pauses, some microseconds, one side waits for the other one between two pieces.
	piecePauses = 64
	// patience is how often a receiver looks for a piece until it reads some itself.
	patience = 256
)

type way int

const (
	reading way = iota
	asking
)

// costs is what a receiver knows of messages from one rank, of two classes of lengths.
type costs [2]struct {
	perByte  [2]float64 // nanoseconds, by way; 0: not known
	messages uint
	trial    int     // messages until the end of a trial of the other way; 0: there is none
	other    way     // which that is
	least    float64 // of the trial so far
}

// A trial is several messages, of which the later half counts: for pieces the ring has to be in the caches again. It ends early if
// the first ones take long.
const (
	trialEvery = 256
	trialFirst = 16 // the message with which the first one begins
	trialEarly = 4
)

var trialOf = [...]int{reading: 4, asking: 16} // messages

// longer is the length of a message that caches do not hold.
const longer = 4 << 20

func class(bytes int64) int {
	if bytes >= longer {
		return 1
	}
	return 0
}

// choose returns the way of the next message.
func (c *costs) choose(bytes int64) way {
	k := &c[class(bytes)]
	k.messages++
	switch {
	case k.perByte[reading] == 0:
		return reading
	case k.perByte[asking] == 0:
		return asking
	case k.trial > 0:
		return k.other
	}
	best := reading
	if k.perByte[asking] < k.perByte[reading] {
		best = asking
	}
	if k.messages%trialEvery == trialFirst {
		k.trial, k.other, k.least = trialOf[1-best], 1-best, math.Inf(1)
		return k.other
	}
	return best
}

// learn notes how long a message took.
func (c *costs) learn(w way, bytes int64, took time.Duration) {
	k := &c[class(bytes)]
	cost, now := &k.perByte[w], float64(took)/float64(bytes)
	if k.trial > 0 && w == k.other {
		k.trial--
		k.least = min(k.least, now)
		switch {
		case k.trial == trialOf[w]-trialEarly && k.least > 2*k.perByte[1-w]:
			k.trial = 0
			return
		case k.trial > trialOf[w]/2:
			return
		case k.trial == trialOf[w]/2:
			*cost = now
		}
	}
	if *cost == 0 {
		*cost = now
	} else { // a rank that lost its core for a while says little of the way
		*cost += (min(now, 2**cost) - *cost) / 8
	}
}

// atOnce returns how many pieces of a message of so many bytes are one packet: few of a message that both sides are to copy at the
// same time, or that the bulk holds little of.
func (r *ring) atOnce(bytes int64) uint64 {
	n := uint64(1)
	for n < mostOfLong/piece && int64(n)*piece*packetsOfLong <= bytes && n*piece*8 <= uint64(r.bulk.bytes) {
		n *= 2
	}
	return n
}

func pieces(bytes int64) uint64 { return uint64(bytes+piece-1) / piece }

// receiveLong receives a long message, as soon as those before it have come.
func (in *inbox) receiveLong(r *receiving) {
	in.longs = append(in.longs, r)
	in.o.longs++
	if len(in.longs) == 1 {
		in.beginLong()
	}
}

// beginLong begins the first long message, or goes on with it: it opens the next fragment, or ends the message.
func (in *inbox) beginLong() {
	if len(in.longs) == 0 {
		return
	}
	r := in.longs[0]
	if r.wanted = r.takes(r.bytes); r.begun < r.wanted {
		in.openFragment()
	} else {
		in.endLong(0)
	}
}

// openFragment says go for the next fragment of the first long message, once there is a block for it. It returns false if
// the packer has failed, which ends the message.
func (in *inbox) openFragment() bool {
	r := in.longs[0]
	n := r.wanted - r.begun
	if r.packer != nil {
		n = min(n, transport.FragmentBytes)
	}
	part, err := r.open(r.begun, n)
	if err != nil {
		in.failLong()
		return false
	}
	if part == nil {
		return true // readOn tries again
	}
	goesOn := r.begun > 0 && r.way == reading // the sender knows that this process reads all
	r.part, r.got, r.looked, r.claims = part, 0, 0, in.o.newClaims()
	if r.way, r.began = asking, (time.Time{}); r.at != 0 && in.mayRead() {
		r.way, r.began = in.costs.choose(n), time.Now()
	}
	word := r.claims << claimBits
	if r.way == reading { // the sender finds nothing to copy, and knows that its message moves
		word |= pieces(n)
	}
	in.claims.Store(word)
	if goesOn && r.way == reading {
		return true
	}
	in.out.send(&outgoing{head: packet{kind: goOn, context: uint64(r.begun), bytes: n, number: r.number, answer: r.claims}})
	return true
}

// newClaims returns the number of claims that no message has.
func (o *endpoint) newClaims() uint64 {
	o.numbers++
	return o.numbers & (1<<(64-claimBits) - 1)
}

// leaveLong ends a receive that was given up, if a long message is for it.
func (in *inbox) leaveLong(r *transport.Request) bool {
	i := slices.IndexFunc(in.longs, func(w *receiving) bool { return w.r == r })
	if i < 0 {
		return false
	}
	w := in.longs[i]
	if r.Cancelled = 1; i > 0 { // it is dropped in its turn: its sender knows of one message at a time
		in.o.end(r, 0)
		w.r, w.span = nil, span{}
		return true
	}
	in.leavePieces()
	in.endLong(0)
	return true
}

// failLong ends the first long message, which this process cannot unpack.
func (in *inbox) failLong() {
	in.leavePieces()
	in.endLong(codePacker)
}

// lostLong ends the first long message, which the rank cannot pack. It returns false if no sender says so.
func (in *inbox) lostLong(p *packet) bool {
	if slices.Contains(in.stale, p.number) {
		return true
	}
	if len(in.longs) == 0 || in.longs[0].part == nil || in.longs[0].claims != p.number {
		return false
	}
	in.endLong(codeLost)
	return true
}

// leavePieces says that nobody waits for pieces of the first long message any more. Its sender may have written some.
func (in *inbox) leavePieces() {
	if r := in.longs[0]; r.way == asking {
		in.stale = append(in.stale, r.claims)
		in.claims.Store(in.o.newClaims() << claimBits)
	}
}

// endLong ends the first long message: it has come, was given up, or has failed with a code. The next one begins.
func (in *inbox) endLong(code int32) {
	r := in.longs[0]
	in.longs = in.longs[1:]
	in.o.longs--
	in.out.send(&outgoing{head: packet{kind: took, number: r.number}})
	if code != 0 || r.r != nil && r.r.Cancelled != 0 {
		in.o.endReceive(r, code)
	} else {
		in.o.received(r)
	}
	in.beginLong()
}

// moved counts bytes of the fragment that comes. Its sender goes on with the next one while this one is unpacked.
func (in *inbox) moved(n int64) {
	r := in.longs[0]
	done := int64(len(r.part))
	if r.got += n; r.got < done {
		return
	}
	if !r.began.IsZero() {
		in.costs.learn(r.way, done, time.Since(r.began))
	}
	from := r.begun
	r.begun, r.part = from+done, nil
	if r.begun < r.wanted && !in.openFragment() {
		return
	}
	if r.close(from, done) != nil {
		in.failLong()
	} else if r.begun == r.wanted {
		in.beginLong()
	}
}

// takePieces takes pieces out of the ring, while they come: the next packet p has some. It returns false if no sender writes such a
// one.
func (in *inbox) takePieces(p *packet) bool {
	if slices.Contains(in.stale, p.number) {
		in.skip(p)
		return true
	}
	if len(in.longs) == 0 || in.longs[0].part == nil {
		return false
	}
	r := in.longs[0]
	unread := r.packer == nil && r.wanted >= longer // no cache holds it, nor what is written to it
	to, bytes := (*C.char)(unsafe.Pointer(unsafe.SliceData(r.part))), int64(len(r.part))
	n := int64(C.pm_drain(in.o.shared, C.int32_t(in.from), C.uint64_t(r.claims), to, C.int64_t(bytes), C.int64_t(bytes-r.got), C.bool(unread), piecePauses))
	if n == 0 {
		return false
	}
	r.looked, in.stale = 0, nil // those would have come before
	in.moved(n)
	return true
}

type verdict int8

const (
	untried verdict = iota
	may
	mayNot
)

// mayRead tells whether this process can read the memory of the rank, of which a packet has come. The memory of a message stays as it
// is until its request is done.
func (in *inbox) mayRead() bool {
	if in.reads == untried {
		in.reads = mayNot
		if p := *in.proof; p.Holds() {
			in.reads, in.shown = may, p
		}
	}
	return in.reads == may
}

// readOn reads the next part of the first long message in its sender's memory. It also opens a fragment whose block was
// not free.
func (in *inbox) readOn() {
	if len(in.longs) == 0 {
		return
	}
	r := in.longs[0]
	if r.part == nil {
		in.openFragment()
		return
	}
	if r.at == 0 || !in.mayRead() {
		return
	}
	bytes := int64(len(r.part))
	from, part := r.got, min(readPieces*piece, bytes-r.got)
	if r.way == asking {
		if r.looked++; r.looked < patience {
			return
		}
		from, part = in.claim(r.claims, bytes, readPieces)
	}
	for end := from + part; from < end; {
		n, errno := in.shown.Read(r.at+uint64(r.begun+from), r.part[from:end])
		switch {
		case errno == syscall.ESRCH: // it has ended: whoever waits here hears of it
			in.reads = mayNot
			return
		case errno != 0 || n == 0:
			// What a driver has mapped nobody reads, nor what memfd_secret(2) gives; and a filter of system calls may come at any time.
			in.reads = mayNot
			in.leavePieces()
			in.openFragment()
			return
		}
		from += int64(n)
	}
	if part > 0 {
		in.moved(part)
	}
}

// goOn begins to send a fragment of a long message, or begins once more. It returns false if no receiver asks so.
func (out *outbox) goOn(p *packet) bool {
	s, from := out.o.asked[p.number], int64(p.context)
	if s == nil || s.to != out.to || out.stream != nil && out.stream != s || from < 0 || p.bytes > s.length || from > s.length-p.bytes {
		return false
	}
	s.closePart() // the receiver has all of it, or begins once more
	if s.packer != nil && from != s.begun+s.wanted {
		return false
	}
	s.begun, s.wanted, s.packed, s.claims, s.claimed = from, p.bytes, 0, p.answer, s.r == nil
	if out.stream == nil {
		out.stream = s
		out.o.streams++
	}
	return true
}

// tookAll ends a long message that its receiver has. It returns false if there is none.
func (out *outbox) tookAll(p *packet) bool {
	s := out.o.asked[p.number]
	if s == nil || s.to != out.to || out.stream != nil && out.stream != s {
		return false
	}
	s.closePart()
	out.endStream()
	delete(out.o.asked, p.number)
	out.o.endSend(s, 0)
	return true
}

func (out *outbox) endStream() {
	if out.stream != nil {
		out.stream = nil
		out.o.streams--
	}
}

// endSend ends the request of a long message, if it has not failed before.
func (o *endpoint) endSend(s *sending, code int32) {
	if s.r != nil {
		o.end(s.r, code)
		s.r = nil
	}
}

// openPart opens the next block of a packer, or all that lies in one piece. The part stays nil while there is none yet.
func (s *sending) openPart() (err error) {
	n := s.wanted - s.packed
	if s.packer != nil {
		n = min(n, transport.FragmentBytes)
	}
	if s.part, err = s.open(s.begun+s.packed, n); s.part != nil {
		s.packed += n
	}
	return err
}

// closePart ends the use of the block.
func (s *sending) closePart() {
	if n := int64(len(s.part)); n > 0 {
		s.part = nil
		_ = s.close(s.begun+s.packed-n, n) // nothing is unpacked
	}
}

// streamOn writes pieces of the fragment that goes to the rank, while there is room. It returns false if the receiver's words
// cannot be.
func (out *outbox) streamOn() bool {
	for s := out.stream; !s.claimed; {
		if s.part == nil {
			if s.openPart() != nil {
				s.claimed = true
				out.o.endSend(s, codePacker)
				out.send(&outgoing{head: packet{kind: lost, number: s.claims}})
				return true
			}
			if s.part == nil {
				return true
			}
		}
		claims, from := (*C.uint64_t)(unsafe.Pointer(out.claims)), (*C.char)(unsafe.Pointer(unsafe.SliceData(s.part)))
		done := C.pm_stream(out.o.shared, C.int32_t(out.to), claims, C.uint64_t(s.claims), from, C.int64_t(s.packed-int64(len(s.part))), C.int64_t(s.packed),
			C.uint64_t(out.atOnce(s.wanted)), piecePauses)
		if done <= 0 {
			return done == 0
		}
		s.closePart()
		s.claimed = s.packed == s.wanted || out.claims.Load()>>claimBits != s.claims // its receiver has left it
	}
	return true
}
