package memory

import "math"

// Pieces of messages in the bulk are written into the caches, or past them. Where the cores of a pair share a cache, the first is
// faster for both. Where they do not, the reader fetches each line out of the writer's cache, which takes it several times as long
// as from memory. Neither side knows that beforehand, it changes when the kernel moves a rank, and the writer alone does not
// notice it. So both sides time their copies, and the reader shows what its own take.

const (
	near = iota // into the caches
	past
)

// kinds has what copies of both kinds cost one side, in ticks for each KiB; 0: not known.
type kinds [2]float64

// learn notes what a copy took.
func (k *kinds) learn(kind int, cost uint32) {
	switch {
	case cost == 0: // there is no clock
	case k[kind] == 0:
		k[kind] = float64(cost)
	default: // a rank that lost its core for a while says little of the copy
		k[kind] += (min(float64(cost), 4*k[kind]) - k[kind]) / 16
	}
}

// word packs what the reader shows.
func (k *kinds) word() uint64 {
	return uint64(min(k[near], math.MaxUint32)) | uint64(min(k[past], math.MaxUint32))<<32
}

// A trial of copies into the caches is long enough for the bulk to be in them again, unless it takes long from the beginning on.
// One of copies past them need not be. After one in vain it takes longer until the next one.
const (
	trialBytes = 2 * mostBulk
	earlyBytes = 512 << 10
	firstTrial = 8 << 20 // bytes before it
	leastPause = 128 << 20
	mostPause  = 512 << 20
)

// writer chooses how pieces for one rank are written.
type writer struct {
	own   kinds
	kind  int
	trial int64 // bytes until the end of a trial; 0: there is none
	until int64 // bytes until the next one
	pause int64
}

// choose returns how the next piece is written.
func (w *writer) choose() int {
	if w.trial > 0 {
		return 1 - w.kind
	}
	return w.kind
}

// learn notes what it took to write n bytes. read is what the reader shows.
func (w *writer) learn(kind int, cost uint32, n int, read uint64) {
	w.own.learn(kind, cost)
	if w.trial == 0 {
		if w.pause == 0 {
			w.pause, w.until = leastPause/2, firstTrial
		}
		if w.until -= int64(n); w.until <= 0 && cost > 0 {
			w.trial, w.own[1-w.kind] = trialBytes, 0
		}
		return
	}
	w.trial -= int64(n)
	if w.trial > trialBytes-earlyBytes {
		return
	}
	reads := [2]float64{float64(uint32(read)), float64(read >> 32)}
	now, other := w.own[w.kind]+reads[w.kind], w.own[1-w.kind]+reads[1-w.kind]
	if w.trial > 0 && w.kind == past && other < 3*now {
		return
	}
	w.trial, w.pause = 0, min(mostPause, 2*w.pause)
	if reads[1-w.kind] > 0 && other < 7*now/8 {
		w.kind, w.pause = 1-w.kind, leastPause
	}
	w.until = w.pause
}
