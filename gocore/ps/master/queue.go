// Package master deals the shards of a data set out to the trainers of a job: by leases, so that a
// shard whose trainer dies or stops goes to another one. It knows a shard by its number only; what
// the number means, a file or a range of records, is the trainers' matter.
//
// Each shard of an epoch is done at least once or is on the list of failed ones. It is done exactly
// once if no trainer dies, or makes no progress for longer than a lease.
//
// A lease has a number, which fences it: what a trainer says of a shard counts as long as the shard
// was not leased again, also when the lease has run out; progress makes that lease last again. What
// does not count once never counts again, so a trainer that has stopped in the middle of a shard
// cannot end it (M. Kleppmann, "How to do distributed
// locking", 2016; the idea of leases is of Gray and Cheriton, "Leases: An Efficient Fault-Tolerant
// Mechanism for Distributed File Cache Consistency", SOSP 1989).
//
// Time is given to the methods, so that a test can choose it. A lease runs out in Tick alone, which
// first sees whether this process has been stopped: then all leases last so much longer.
package master

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// Limits of what a trainer may ask for.
const (
	MostShards  = 1 << 24
	MostEpochs  = 1 << 31
	LeastLease  = 100 * time.Millisecond
	MostLease   = 7 * 24 * time.Hour
	MostRetries = 1000
	// MostReason is the most bytes that are kept of the reason of a failure.
	MostReason = 500
	// mostTold is the most failures of earlier epochs that are kept, and the most leases and
	// failures that Status tells of.
	mostTold = 1000
)

// Data describes a data set. All trainers give the same.
type Data struct {
	Name   string `json:"name"`
	Shards int64  `json:"shards"`
	// Digest is of what the shards are.
	Digest  string `json:"digest"`
	Shuffle bool   `json:"shuffle"`
	Seed    uint64 `json:"seed"`
	// Dealt says that each trainer gets the shards of its own turns, in the order of ranks: shard k
	// of an epoch is for trainer k modulo the number of trainers. Else whoever asks first gets the
	// next one.
	Dealt bool          `json:"dealt"`
	Lease time.Duration `json:"lease_ns"` // how long a trainer may be without progress
	// Retries is how often a shard is leased again after a failure, or after a lease that has run out.
	// A dealt shard is not, unless its trainer has died: trainers that take their steps together
	// are given as many shards as was dealt to them.
	Retries int `json:"retries"`
}

// Check returns an error if a value is out of its limits.
func (d *Data) Check() error {
	switch {
	case d.Shards < 0 || d.Shards > MostShards:
		return status.New(status.Argument, "tasks %q: %d shards; there may be 0 to %d: make them larger", d.Name, d.Shards, MostShards)
	case d.Lease < LeastLease || d.Lease > MostLease:
		return status.New(status.Argument, "tasks %q: lease=%v; it may be %v to %v", d.Name, d.Lease, LeastLease, MostLease)
	case d.Retries < 0 || d.Retries > MostRetries:
		return status.New(status.Argument, "tasks %q: retries=%d; it may be 0 to %d", d.Name, d.Retries, MostRetries)
	}
	return nil
}

// differs names the first value in which two descriptions differ; "" if there is none.
func (d *Data) differs(other *Data) string {
	for _, one := range []struct {
		name         string
		mine, theirs any
	}{
		{"the number of shards", d.Shards, other.Shards}, {"the files or ranges", d.Digest, other.Digest},
		{"shuffle", d.Shuffle, other.Shuffle}, {"seed", d.Seed, other.Seed},
		{"lease", d.Lease, other.Lease}, {"retries", d.Retries, other.Retries}, {"the mode", d.Dealt, other.Dealt},
	} {
		if one.mine != one.theirs {
			return fmt.Sprintf("%s (%v, and %v before)", one.name, one.theirs, one.mine)
		}
	}
	return ""
}

// Grant is the answer to a trainer that asks for a shard.
type Grant struct {
	Verdict Verdict
	// Epoch of Leased: that which was asked for, or the one before, if another trainer has completed
	// and has left shards of it.
	Epoch int64
	Shard int64         // of Leased
	Fence uint64        // of Leased: the number of the lease
	Lease time.Duration // of Leased
}

// Lease is a lease of a shard, as its trainer names it.
type Lease struct {
	Name   string // of the data set
	Epoch  int64
	Shard  int64
	Fence  uint64
	Reason string // why a shard that is returned has failed; "": it has not
}

// Verdict says what a Grant is.
type Verdict int

// The verdicts.
const (
	Leased  Verdict = 1 + iota
	Waiting         // other trainers have what is left of the epoch, and may give it back; or an earlier epoch is not over
	Over            // the epoch is over for this trainer
)

// Failure is a shard that was tried too often.
type Failure struct {
	Epoch  int64  `json:"epoch"`
	Shard  int64  `json:"shard"`
	Rank   int    `json:"rank"` // who had it last
	Reason string `json:"reason"`
}

// Queue is the queue of a data set. All methods are safe for concurrent use.
type Queue struct {
	mu       sync.Mutex
	data     Data
	turns    []int // the ranks among which shards are dealt; one entry if they are not
	epoch    int64
	hands    []hand
	shards   []shard
	leases   map[int64]*lease // by shard
	late     map[int64]*lease // those that have run out, of shards that nobody has since
	left     int64            // shards of the epoch that are neither done nor failed
	failed   []Failure        // all of this epoch, and the latest of those before
	lost     int              // how many have failed in all
	fence    uint64
	gone     map[int]bool // trainers that have left or died
	last     map[int]asked
	said     map[int]said
	restored bool          // from a cut, and nobody has opened it since
	change   chan struct{} // closed when a Grant may be another one than before
}

// hand has the shards that are to be leased, those of one trainer or of all.
type hand struct {
	list []int64
	next int
}

// shard is what is known of a shard in this epoch.
type shard struct {
	fence uint64 // of its latest lease; 0: there was none
	tries int32
	state state
}

type state uint8

const (
	queued state = iota
	leased
	done
	failed
)

type lease struct {
	owner int
	fence uint64
	until time.Time
	since time.Time
}

// asked is the latest request of a trainer, and its answer: one that is repeated gets the same.
type asked struct {
	request uint64
	grant   Grant
}

// said is the latest shard that a trainer has said to be done, and whether that counted: one that
// is repeated gets the same.
type said struct {
	epoch, number int64
	fence         uint64
	counted       bool
}

// New returns the queue of a data set for some trainers, before its first epoch.
func New(data Data, trainers []int) (*Queue, error) {
	if err := data.Check(); err != nil {
		return nil, err
	}
	q := &Queue{data: data, turns: []int{-1}, leases: map[int64]*lease{}, late: map[int64]*lease{}, gone: map[int]bool{}, last: map[int]asked{}, said: map[int]said{}, change: make(chan struct{})}
	if data.Dealt {
		q.turns = slices.Clone(trainers)
	}
	q.begin(0)
	return q, nil
}

// Same returns an error if a trainer describes the data set differently. A queue of a cut takes lease
// and retries of the first trainer that asks: the program may have changed them.
func (q *Queue) Same(from int, data *Data) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.restored {
		q.restored = false
		q.data.Lease, q.data.Retries = data.Lease, data.Retries
	}
	if text := q.data.differs(data); text != "" {
		return status.New(status.Mismatch, "tasks %q: rank %d gives another value of %s: give the same on all trainers", q.data.Name, from, text).WithRanks(from)
	}
	return nil
}

// begin begins an epoch.
func (q *Queue) begin(epoch int64) {
	q.epoch, q.left = epoch, q.data.Shards
	q.failed = slices.Clone(q.failed[max(0, len(q.failed)-mostTold):])
	q.shards = make([]shard, q.data.Shards)
	q.hands = make([]hand, len(q.turns))
	for k, s := range q.data.order(epoch) {
		h := &q.hands[k%len(q.hands)]
		h.list = append(h.list, s)
	}
	for i, rank := range q.turns {
		if q.gone[rank] {
			q.dealOut(i)
		}
	}
	q.changed()
}

// Epoch returns the number of the epoch.
func (q *Queue) Epoch() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.epoch
}

// wake has those who wait ask again: the queue was replaced.
func (q *Queue) wake() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.changed()
}

// fenceAbove has all leases numbered above those of another queue, so that what is said of those
// does not count.
func (q *Queue) fenceAbove(other *Queue) {
	other.mu.Lock()
	defer other.mu.Unlock()
	q.fence = max(q.fence, other.fence)
}

// changed wakes those who wait.
func (q *Queue) changed() {
	close(q.change)
	q.change = make(chan struct{})
}

// Change is closed when the answer to a request that was Waiting may be another one.
func (q *Queue) Change() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.change
}

// Ask answers a trainer that asks for a shard of an epoch. request counts the requests of the
// trainer: one with the number of the one before gets its answer again, if that was a lease.
func (q *Queue) Ask(now time.Time, from int, request uint64, epoch int64) (Grant, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if epoch < 0 || epoch > MostEpochs {
		return Grant{}, status.New(status.Argument, "tasks %q: epoch=%d; it may be 0 to %d", q.data.Name, epoch, int64(MostEpochs))
	}
	if q.gone[from] {
		return Grant{}, status.New(status.PeerLeft, "tasks %q: rank %d has left, or the master has seen it dead", q.data.Name, from).WithRanks(from)
	}
	if before := q.last[from]; before.request == request && before.grant.Verdict == Leased {
		return before.grant, nil
	}
	if epoch > q.epoch && q.left == 0 {
		q.begin(q.epoch + 1)
	}
	g := q.grant(now, from, epoch)
	q.last[from] = asked{request, g}
	return g, nil
}

func (q *Queue) grant(now time.Time, from int, epoch int64) Grant {
	if epoch < q.epoch {
		return Grant{Verdict: Over}
	}
	// Also to a trainer that is done with this epoch and asks for the next one: it waits until the
	// epoch is over, and nobody else can do what was dealt to it meanwhile.
	h := q.handOf(from)
	for h.next < len(h.list) {
		s := h.list[h.next]
		h.next++
		if q.shards[s].state != queued { // its late completion has counted
			continue
		}
		q.fence++
		q.shards[s].state, q.shards[s].fence = leased, q.fence
		q.leases[s] = &lease{owner: from, fence: q.fence, until: now.Add(q.data.Lease), since: now}
		delete(q.late, s)
		return Grant{Leased, q.epoch, s, q.fence, q.data.Lease}
	}
	if epoch == q.epoch && (q.left == 0 || q.data.Dealt) {
		return Grant{Verdict: Over} // dealt shards do not move, unless their trainer leaves
	}
	return Grant{Verdict: Waiting}
}

// handOf returns the hand from which a trainer gets shards.
func (q *Queue) handOf(rank int) *hand {
	return &q.hands[max(0, slices.Index(q.turns, rank))]
}

// Renew notes that a trainer has made progress with a shard. A lease that has run out lasts again, if
// nobody else has had the shard since. It returns false if the lease counts no more: then Done of it
// does not count either.
func (q *Queue) Renew(now time.Time, from int, number int64, fence uint64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.leases[number]
	if l == nil {
		l = q.late[number]
	}
	if l == nil || l.fence != fence || l.owner != from {
		return false
	}
	if q.late[number] == l {
		q.revive(number)
	}
	l.until = later(l.until, now.Add(q.data.Lease))
	return true
}

// revive gives a shard back to the trainer whose lease of it has run out: it was slow, which is no
// try.
func (q *Queue) revive(number int64) {
	l, s := q.late[number], &q.shards[number]
	delete(q.late, number)
	q.leases[number] = l
	s.state = leased
	if !q.data.Dealt {
		s.tries--
	}
	h := q.handOf(l.owner)
	at := h.next + slices.Index(h.list[h.next:], number)
	copy(h.list[h.next+1:at+1], h.list[h.next:at])
	h.list[h.next] = number
	h.next++
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Done notes that a trainer has done a shard. It counts if the shard was not leased again, and
// returns whether it does. Said again, it returns the same.
func (q *Queue) Done(from int, epoch, number int64, fence uint64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if before := q.said[from]; before.epoch == epoch && before.number == number && before.fence == fence && fence != 0 {
		return before.counted
	}
	s := q.find(epoch, number, fence)
	counts := s != nil && (s.state == queued || s.state == leased)
	if counts {
		delete(q.leases, number)
		delete(q.late, number)
		s.state = done
		q.end()
	}
	q.said[from] = said{epoch, number, fence, counts}
	return counts
}

// Return takes a shard back that a trainer has not done: another trainer gets it. A reason counts
// as a failure; "" says that the trainer could not go on with it for reasons that are not the
// shard's. A dealt shard that has failed is left out of its epoch: its trainer alone would get it
// again, and would take more steps than the others, which wait for each of them. It returns whether
// that counts.
func (q *Queue) Return(epoch, number int64, fence uint64, reason string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.find(epoch, number, fence)
	if s == nil || s.state != leased {
		return false
	}
	q.takeBack(number, reason, !q.data.Dealt)
	return true
}

// find returns the shard of a lease that is the latest one of its shard; nil if it is not.
func (q *Queue) find(epoch, number int64, fence uint64) *shard {
	if epoch != q.epoch || number < 0 || number >= int64(len(q.shards)) || fence == 0 || q.shards[number].fence != fence {
		return nil
	}
	return &q.shards[number]
}

// takeBack ends a lease whose shard was not done. A reason counts as a try; after one that is not
// tried again the shard has failed.
func (q *Queue) takeBack(number int64, reason string, again bool) {
	l, s := q.leases[number], &q.shards[number]
	delete(q.leases, number)
	if reason != "" {
		s.tries++
	}
	if reason != "" && (!again || int(s.tries) > q.data.Retries) {
		s.state = failed
		q.failed = append(q.failed, Failure{q.epoch, number, l.owner, clip(reason)})
		q.lost++
		q.end()
		return
	}
	s.state = queued
	h := q.handOf(l.owner)
	if h.next > 0 { // where it was
		h.next--
		h.list[h.next] = number
	} else {
		h.list = append(h.list, number)
	}
	if q.gone[l.owner] {
		q.dealOut(slices.Index(q.turns, l.owner))
	}
	q.changed()
}

func clip(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), MostReason)], "?")
}

// end counts a shard of the epoch as ended.
func (q *Queue) end() {
	q.left--
	if q.left == 0 {
		q.changed()
	}
}

// Leave notes that a trainer has left; with died its shards count as tried. Its leases end.
func (q *Queue) Leave(rank int, died bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.gone[rank] {
		return
	}
	q.gone[rank] = true
	delete(q.last, rank)
	delete(q.said, rank)
	reason := ""
	if died {
		reason = fmt.Sprintf("rank %d died with it", rank)
	}
	for _, number := range q.ofOwner(rank) {
		q.takeBack(number, reason, true)
	}
	maps.DeleteFunc(q.late, func(_ int64, l *lease) bool { return l.owner == rank })
	if i := slices.Index(q.turns, rank); i >= 0 {
		q.dealOut(i)
	}
	q.changed()
}

// ofOwner returns the shards that a trainer has, in their order.
func (q *Queue) ofOwner(rank int) (numbers []int64) {
	for number, l := range q.leases {
		if l.owner == rank {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// dealOut deals what is left of the hand of a trainer that has gone to the others, in their order.
func (q *Queue) dealOut(from int) {
	if from < 0 {
		return
	}
	var others []int
	for i, rank := range q.turns {
		if !q.gone[rank] {
			others = append(others, i)
		}
	}
	h := &q.hands[from]
	rest := h.list[h.next:]
	if len(others) == 0 {
		return // nobody is left to do them
	}
	for k, number := range rest {
		to := &q.hands[others[k%len(others)]]
		to.list = append(to.list, number)
	}
	h.list = h.list[:h.next]
}

// expire ends the leases that have run out. Of a dealt shard that is no try: nobody else can have it.
func (q *Queue) expire(now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var late []int64
	for number, l := range q.leases {
		if now.After(l.until) {
			late = append(late, number)
		}
	}
	slices.Sort(late)
	for _, number := range late {
		l, reason := q.leases[number], ""
		if !q.data.Dealt {
			reason = fmt.Sprintf("rank %d made no progress with it for %v", l.owner, q.data.Lease)
		}
		q.takeBack(number, reason, true)
		if q.shards[number].state == queued {
			q.late[number] = l
		}
	}
}

// extend lets all leases last longer.
func (q *Queue) extend(by time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.leases {
		l.until = l.until.Add(by)
	}
}
