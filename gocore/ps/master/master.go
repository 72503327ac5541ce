package master

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// MostQueues is the most data sets of a job.
const MostQueues = 64

// MostSnapshot is the most bytes of a snapshot of all queues.
const MostSnapshot = 8 << 20

// Master has the queues of a job, and knows which trainers take part. All methods are safe for
// concurrent use.
type Master struct {
	mu       sync.Mutex
	dealt    bool // in sync mode
	order    []int
	trainers map[int]standing
	queues   map[string]*Queue
	pieces   []byte // of the snapshot that is restored next, as far as it has come
	failed   error
	lost     error // the first trainer that ended without Complete
	clock    Clock
	now      func() time.Time
	done     chan struct{} // closed when no trainer is active, or after Fail
	ended    bool
}

// standing is what became of a trainer.
type standing int

const (
	active standing = iota
	completed
	gone // it died, or ended without a word
)

func (s standing) String() string { return [...]string{"active", "completed", "lost"}[s] }

// NewMaster returns a master without queues. dealt says that shards are dealt to trainers by rank
// and round.
func NewMaster(trainers []int, dealt bool) *Master {
	m := &Master{dealt: dealt, order: slices.Clone(trainers), trainers: map[int]standing{}, queues: map[string]*Queue{}, now: time.Now, done: make(chan struct{})}
	for _, rank := range trainers {
		m.trainers[rank] = active
	}
	return m
}

// Open makes the queue of a data set, unless another trainer has, and returns its epoch.
func (m *Master) Open(from int, data Data) (epoch int64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.mayLocked(from); err != nil {
		return 0, err
	}
	data.Dealt = m.dealt
	q := m.queues[data.Name]
	if q == nil {
		if len(m.queues) == MostQueues {
			return 0, status.New(status.Argument, "tasks %q: there are %d data sets already", data.Name, MostQueues)
		}
		if q, err = New(data, m.activeLocked()); err != nil {
			return 0, err
		}
		m.queues[data.Name] = q
	} else if err := q.Same(from, &data); err != nil {
		return 0, err
	}
	return q.Epoch(), nil
}

// mayLocked returns why a trainer may not ask. The caller holds mu.
func (m *Master) mayLocked(from int) error {
	if m.failed != nil {
		return m.failed
	}
	switch state, trains := m.trainers[from]; {
	case !trains:
		return status.New(status.Argument, "tasks: rank %d is no trainer; trainers are ranks %v", from, m.order).WithRanks(from)
	case state != active:
		return status.New(status.PeerLeft, "tasks: rank %d has %s: it gets no shard any more", from, state).WithRanks(from)
	}
	return nil
}

func (m *Master) activeLocked() (ranks []int) {
	for _, rank := range m.order {
		if m.trainers[rank] == active {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// Active returns the trainers that take part, in order.
func (m *Master) Active() []int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.activeLocked()
}

// queue returns a queue for a trainer.
func (m *Master) queue(from int, name string) (*Queue, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.mayLocked(from); err != nil {
		return nil, err
	}
	q := m.queues[name]
	if q == nil {
		return nil, status.New(status.Argument, "tasks %q: there is no such data set", name)
	}
	return q, nil
}

// Ask answers a trainer that asks for a shard of an epoch (see Queue.Ask). While the answer is
// Waiting it waits, until ctx is done.
func (m *Master) Ask(ctx context.Context, from int, name string, request uint64, epoch int64) (Grant, error) {
	for {
		q, err := m.queue(from, name) // another one after Restore
		if err != nil {
			return Grant{}, err
		}
		change := q.Change()
		g, err := q.Ask(m.now(), from, request, epoch)
		if err != nil || g.Verdict != Waiting {
			return g, err
		}
		select {
		case <-change:
		case <-m.done:
		case <-ctx.Done():
			return g, nil
		}
	}
}

// Renew notes progress with a shard (see Queue.Renew).
func (m *Master) Renew(from int, l Lease) (counts bool, err error) {
	q, err := m.queue(from, l.Name)
	if err != nil {
		return false, err
	}
	return q.Renew(m.now(), from, l.Shard, l.Fence), nil
}

// Done notes that a shard was done (see Queue.Done).
func (m *Master) Done(from int, l Lease) (counts bool, err error) {
	q, err := m.queue(from, l.Name)
	if err != nil {
		return false, err
	}
	return q.Done(from, l.Epoch, l.Shard, l.Fence), nil
}

// Return takes a shard back (see Queue.Return).
func (m *Master) Return(from int, l Lease) (counts bool, err error) {
	q, err := m.queue(from, l.Name)
	if err != nil {
		return false, err
	}
	return q.Return(l.Epoch, l.Shard, l.Fence, l.Reason), nil
}

// Complete notes that a trainer is done. What it has goes to the others.
func (m *Master) Complete(from int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, trains := m.trainers[from]; !trains {
		return m.mayLocked(from)
	}
	m.leaveLocked(from, completed)
	return nil
}

// Lost notes that a trainer has died, or has ended without Complete.
func (m *Master) Lost(from int, why error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.trainers[from] != active {
		return
	}
	if m.lost == nil {
		m.lost = why
	}
	m.leaveLocked(from, gone)
}

func (m *Master) leaveLocked(rank int, as standing) {
	if m.trainers[rank] != active {
		return
	}
	m.trainers[rank] = as
	for _, q := range m.queues {
		q.Leave(rank, as == gone)
	}
	if len(m.activeLocked()) == 0 {
		m.endLocked()
	}
}

// Fail ends all waits with an error: nothing goes on any more.
func (m *Master) Fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed == nil && !m.ended {
		m.failed = err
	}
	m.endLocked()
}

func (m *Master) endLocked() {
	if !m.ended {
		m.ended = true
		close(m.done)
	}
}

// Ended is closed when no trainer is active any more, or after Fail.
func (m *Master) Ended() <-chan struct{} { return m.done }

// Err returns how the work of the master has ended: nil if the trainers have completed. In async
// mode one that has is enough.
func (m *Master) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed != nil {
		return m.failed
	}
	some := false
	for _, s := range m.trainers {
		some = some || s == completed
	}
	if m.lost != nil && (m.dealt || !some) {
		return m.lost
	}
	return nil
}

// Tick ends leases in time. It is called every Interval, by one goroutine.
func (m *Master) Tick(now time.Time) {
	m.mu.Lock()
	all := slices.Collect(maps.Values(m.queues))
	m.mu.Unlock()
	m.clock.Tick(now, all)
}

// Save returns a snapshot of all queues, as JSON; nil if there is none.
func (m *Master) Save() ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.queues) == 0 {
		return nil, nil
	}
	var all []json.RawMessage
	for _, name := range slices.Sorted(maps.Keys(m.queues)) {
		text, err := m.queues[name].Save()
		if err != nil {
			return nil, err
		}
		all = append(all, text)
	}
	text, err := json.Marshal(all)
	if err == nil && len(text) > MostSnapshot {
		err = status.New(status.Argument, "the queues of %d data sets take %d bytes of a cut, which has room for %d: make the shards larger", len(m.queues), len(text), MostSnapshot)
	}
	return text, err
}

// Add takes a piece of the snapshot that Restore reads. The first piece begins anew.
func (m *Master) Add(from, at int, piece []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if at == 0 {
		m.pieces = nil
	}
	if at != len(m.pieces) || len(piece) > MostSnapshot-len(m.pieces) {
		return status.New(status.Argument, "restore: rank %d adds %d bytes of queues at %d; %d have come, of at most %d", from, len(piece), at, len(m.pieces), MostSnapshot).WithRanks(from)
	}
	m.pieces = append(m.pieces, piece...)
	return nil
}

// Restore replaces the queues by those of the snapshot of which all bytes have come, and returns
// their names. Queues that the snapshot does not have are removed: at the cut they were not begun.
func (m *Master) Restore(bytes int) (names []string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	pieces := m.pieces
	m.pieces = nil
	if bytes == 0 {
		pieces = nil // what has come is of a trainer that has died
	}
	if bytes != len(pieces) {
		return nil, status.New(status.Argument, "restore: %d bytes of queues have come, and there were %d", len(pieces), bytes)
	}
	var all []json.RawMessage
	if bytes > 0 {
		if err := json.Unmarshal(pieces, &all); err != nil {
			return nil, status.New(status.Argument, "restore: the queues of the cut cannot be read: %v", err)
		}
	}
	queues := map[string]*Queue{}
	for _, text := range all {
		q, err := Restore(text, m.activeLocked())
		if err != nil {
			return nil, err
		}
		if before := m.queues[q.data.Name]; before != nil {
			q.fenceAbove(before)
		}
		if q.data.Dealt != m.dealt {
			return nil, status.New(status.Argument, "restore: the queue of tasks %q is of a job of another mode", q.data.Name)
		}
		queues[q.data.Name] = q
		names = append(names, q.data.Name)
	}
	for _, q := range m.queues {
		q.wake()
	}
	m.queues = queues
	return names, nil
}

// Report is what Statistics tells of a master.
type Report struct {
	Queues   []Status        `json:"queues"` // by name
	Trainers []TrainerReport `json:"trainers"`
}

// TrainerReport is a trainer as a master knows it.
type TrainerReport struct {
	Rank  int    `json:"rank"`
	State string `json:"state"` // active, completed or lost
}

// Report tells what the queues look like.
func (m *Master) Report() Report {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := Report{Queues: []Status{}, Trainers: []TrainerReport{}}
	for _, name := range slices.Sorted(maps.Keys(m.queues)) {
		r.Queues = append(r.Queues, m.queues[name].Status(m.now()))
	}
	for _, rank := range m.order {
		r.Trainers = append(r.Trainers, TrainerReport{rank, m.trainers[rank].String()})
	}
	return r
}
