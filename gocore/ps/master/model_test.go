package master

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// This file has a model of a job: its trainers are given the records of shards, one after the other,
// while the job is troubled. A trainer pauses, with a lease or without, it is killed, completes
// early, fails, gives back, hears no answer and asks again; the master is stopped; the job is
// restored from a cut, by the same processes or by new ones.

const (
	roundsOfAModel     = 10_000
	fewRoundsOfAModel  = 1_500
	epochsOfAModel     = 3
	mostShardsOfModel  = 9
	mostRecordsOfModel = 5
	leaseOfAModel      = 8 * Interval
	// After so many steps nothing troubles the job any more: then it must end.
	troublesOfAModel = 400
)

// worker is a trainer of a model.
type worker struct {
	rank    int
	epoch   int64 // of its loop
	request uint64
	answer  bool   // to the request has come
	has     *Lease // nil: it asks for one
	at      int    // how many records it was given of that
	renewed time.Time
	wakes   time.Time
}

// of names a shard in an epoch.
type of struct{ epoch, shard int64 }

// ledger is what has come of the records. It is a part of a cut, as the rows are that they change.
type ledger struct {
	given   map[of]int // how many records of a shard, from its first
	counted map[of]int // how often it was done, and that counted
}

func (l ledger) clone() ledger { return ledger{maps.Clone(l.given), maps.Clone(l.counted)} }

// model is a job.
type model struct {
	t       *testing.T
	seed    uint64
	r       *rand.Rand
	data    Data
	records int
	kills   bool // trainers die, or fail with a shard
	ranks   []int
	now     time.Time
	m       *Master
	workers map[int]*worker // those that take part
	ledger
	cut     []byte // nil: there is none
	atCut   ledger
	request uint64
}

func newModel(t *testing.T, seed uint64) *model {
	r := rand.New(rand.NewPCG(seed, 3))
	w := &model{t: t, seed: seed, r: r, records: r.IntN(mostRecordsOfModel + 1), kills: r.IntN(2) == 0, ranks: []int{0, 1, 2, 3}[:1+r.IntN(4)], now: start,
		ledger: ledger{map[of]int{}, map[of]int{}}}
	w.data = Data{Name: "train", Shards: r.Int64N(mostShardsOfModel + 1), Digest: "d", Shuffle: r.IntN(2) == 0, Seed: seed, Lease: leaseOfAModel, Retries: MostRetries}
	if w.kills {
		w.data.Retries = r.IntN(4)
	}
	w.start(r.IntN(2) == 0)
	return w
}

// start begins with a master and trainers that know nothing.
func (w *model) start(dealt bool) {
	w.m = NewMaster(w.ranks, dealt)
	w.m.now = func() time.Time { return w.now }
	w.workers = map[int]*worker{}
	for _, rank := range w.ranks {
		w.workers[rank] = &worker{rank: rank}
	}
}

// open has all trainers learn the epoch. Some may still have what they had before.
func (w *model) open() {
	for _, rank := range w.active() {
		epoch, err := w.m.Open(rank, w.data)
		require.NoError(w.t, err)
		w.workers[rank].epoch = epoch
	}
}

func (w *model) active() []int { return slices.Sorted(maps.Keys(w.workers)) }

// queue returns the queue, of which a model looks at the number of the epoch and at failures.
func (w *model) queue() *Queue { return w.m.queues[w.data.Name] }

// step lets a tenth of a second pass, and something happen.
func (w *model) step(troubled bool) {
	w.now = w.now.Add(Interval)
	w.m.Tick(w.now)
	awake := slices.DeleteFunc(w.active(), func(rank int) bool { return w.workers[rank].wakes.After(w.now) })
	if len(awake) == 0 {
		return
	}
	t := w.workers[awake[w.r.IntN(len(awake))]]
	chance := w.r.IntN(400)
	if !troubled {
		chance = 399
	}
	switch {
	case chance < 12: // busy, or stopped
		t.wakes = w.now.Add(time.Duration(w.r.IntN(4 * int(leaseOfAModel))))
	case chance < 15: // the master is stopped, and who asks it waits
		w.now = w.now.Add(time.Duration(w.r.IntN(6 * int(leaseOfAModel))))
	case chance < 18 && w.mayGo():
		require.NoError(w.t, w.m.Complete(t.rank))
		delete(w.workers, t.rank)
	case chance < 21 && w.mayGo() && w.kills:
		w.m.Lost(t.rank, errors.New("killed"))
		delete(w.workers, t.rank)
	case chance < 25:
		w.save()
	case chance < 28:
		w.restore(chance == 25)
	case chance < 32 && t.has != nil:
		l := *t.has
		if w.kills && w.r.IntN(2) == 0 {
			l.Reason = "bad"
		}
		_, err := w.m.Return(t.rank, l)
		require.NoError(w.t, err)
		t.has = nil
	case t.has == nil:
		w.ask(t)
	case t.at == w.records:
		w.end(t)
	default:
		w.give(t)
	}
}

// mayGo tells whether a trainer may leave, so that another one does its shards. Of dealt shards
// those of the last epoch stay: who was done with its own has left its last loop.
func (w *model) mayGo() bool {
	return len(w.workers) > 1 && (!w.m.dealt || w.queue().epoch < epochsOfAModel-1)
}

func (w *model) ask(t *worker) {
	if t.answer || t.request == 0 {
		w.request++
		t.request = w.request
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // it does not wait
	g, err := w.m.Ask(ctx, t.rank, w.data.Name, t.request, t.epoch)
	require.NoError(w.t, err)
	if t.answer = w.r.IntN(20) > 0; !t.answer {
		return // it is lost
	}
	switch g.Verdict {
	case Leased:
		t.has, t.at, t.renewed = &Lease{Name: w.data.Name, Epoch: g.Epoch, Shard: g.Shard, Fence: g.Fence}, 0, w.now
		require.LessOrEqual(w.t, g.Epoch, t.epoch)
	case Over:
		t.epoch++
		if t.epoch == epochsOfAModel {
			require.NoError(w.t, w.m.Complete(t.rank))
			delete(w.workers, t.rank)
		}
	}
}

// give gives the next record, if the lease counts. It renews it as ps.Task does.
func (w *model) give(t *worker) {
	if w.now.Sub(t.renewed) >= leaseOfAModel/4 {
		counts, err := w.m.Renew(t.rank, *t.has)
		require.NoError(w.t, err)
		t.renewed = w.now
		if !counts {
			counts, err = w.m.Done(t.rank, *t.has)
			require.NoError(w.t, err)
			require.False(w.t, counts, "seed %d: its records have ended early, after %d of %d", w.seed, t.at, w.records)
			t.has = nil
			return
		}
	}
	t.at++
	key := of{t.has.Epoch, t.has.Shard}
	w.given[key] = max(w.given[key], t.at)
}

// end says that all records were given, now and then twice.
func (w *model) end(t *worker) {
	counts, err := w.m.Done(t.rank, *t.has)
	require.NoError(w.t, err)
	if w.r.IntN(10) == 0 {
		again, err := w.m.Done(t.rank, *t.has)
		require.NoError(w.t, err)
		require.Equal(w.t, counts, again, "seed %d", w.seed)
	}
	if counts {
		w.counted[of{t.has.Epoch, t.has.Shard}]++
	}
	t.has = nil
}

func (w *model) save() {
	text, err := w.m.Save()
	require.NoError(w.t, err)
	w.cut, w.atCut = text, w.ledger.clone()
}

// restore goes back to the cut: in the same processes, or in new ones, of which there may be more or
// fewer.
func (w *model) restore(restarted bool) {
	if w.cut == nil {
		return
	}
	if restarted {
		w.ranks = []int{0, 1, 2, 3}[:1+w.r.IntN(4)]
		w.start(w.m.dealt)
	}
	require.NoError(w.t, w.m.Add(w.active()[0], 0, w.cut))
	_, err := w.m.Restore(len(w.cut))
	require.NoError(w.t, err)
	w.ledger = w.atCut.clone()
	w.open()
	for _, t := range w.workers { // a task from before does not count: its records are of a job that is gone
		if t.has == nil {
			continue
		}
		counts, err := w.m.Done(t.rank, *t.has)
		require.NoError(w.t, err)
		require.False(w.t, counts, "seed %d: done before the restore", w.seed)
		t.has, t.request = nil, 0
	}
}

// sound says what must hold at all times: a shard that is to be leased is in one hand, once, and
// others are in none.
func (w *model) sound() {
	there, q := map[int64]int{}, w.queue()
	for i, h := range q.hands {
		if i == 0 || !q.gone[q.turns[i]] {
			for _, number := range h.list[h.next:] {
				there[number]++
			}
		}
	}
	for number, s := range q.shards {
		if n := there[int64(number)]; s.state == queued && n != 1 || s.state == leased && n != 0 {
			require.Fail(w.t, "hands", "seed %d: shard %d in state %d is in %d hands", w.seed, number, s.state, n)
		}
	}
}

// check says what must hold at the end: each record was given in each epoch, and its shard was done
// once; or the shard is on the list of failures, which is empty if nobody died or failed.
func (w *model) check() {
	failures := map[of]bool{}
	for _, f := range w.queue().failed {
		failures[of{f.Epoch, f.Shard}] = true
	}
	require.True(w.t, w.kills || len(failures) == 0, "seed %d: %v", w.seed, failures)
	for epoch := range int64(epochsOfAModel) {
		for shard := range w.data.Shards {
			key := of{epoch, shard}
			if failures[key] {
				require.Zero(w.t, w.counted[key], "seed %d: %v is done and has failed", w.seed, key)
				continue
			}
			require.Equal(w.t, 1, w.counted[key], "seed %d: %v", w.seed, key)
			require.Equal(w.t, w.records, w.given[key], "seed %d: %v", w.seed, key)
		}
	}
}

// TestAnyHistory plays many jobs. Run without -short it plays 10,000.
func TestAnyHistory(t *testing.T) {
	from, to := uint64(0), uint64(roundsOfAModel)
	if testing.Short() {
		to = fewRoundsOfAModel
	} else if os.Getenv("GO_TESTS") == "long" { // only what -short leaves out
		from = fewRoundsOfAModel
	}
	for seed := from; seed < to; seed++ {
		w := newModel(t, seed)
		w.open()
		for step := 0; len(w.workers) > 0; step++ {
			require.Less(t, step, 50_000, "seed %d: it does not end: %+v", seed, w.m.Report())
			w.step(step < troublesOfAModel)
			w.sound()
		}
		w.check()
	}
}
