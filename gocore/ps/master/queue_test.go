package master

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/status"
)

var start = time.Unix(1000, 0)

func data(shards int64) Data {
	return Data{Name: "train", Shards: shards, Digest: "d", Lease: time.Minute, Retries: 2}
}

func made(t *testing.T, d Data, trainers ...int) *Queue {
	t.Helper()
	q, err := New(d, trainers)
	require.NoError(t, err)
	return q
}

// requests counts the requests of all trainers of the tests.
var requests uint64

func ask(t *testing.T, q *Queue, now time.Time, from int, epoch int64) Grant {
	t.Helper()
	requests++
	g, err := q.Ask(now, from, requests, epoch)
	require.NoError(t, err)
	return g
}

// rest takes and does all shards that a trainer can get in an epoch, and returns them.
func rest(t *testing.T, q *Queue, from int, epoch int64) (list []int64, last Verdict) {
	t.Helper()
	for {
		g := ask(t, q, start, from, epoch)
		if g.Verdict != Leased {
			return list, g.Verdict
		}
		assert.True(t, q.Done(from, epoch, g.Shard, g.Fence))
		list = append(list, g.Shard)
	}
}

func TestWhoAsksFirstGetsTheNext(t *testing.T) {
	q := made(t, data(3), 4, 7)
	a, b := ask(t, q, start, 4, 0), ask(t, q, start, 7, 0)
	assert.EqualValues(t, []int64{0, 1}, []int64{a.Shard, b.Shard})
	assert.True(t, q.Done(4, 0, a.Shard, a.Fence))
	list, last := rest(t, q, 4, 0)
	assert.Equal(t, []int64{2}, list)
	assert.Equal(t, Waiting, last, "rank 7 may give its shard back")
	assert.Equal(t, Waiting, ask(t, q, start, 4, 1).Verdict, "the epoch is not over")
	change := q.Change()
	assert.True(t, q.Done(7, 0, b.Shard, b.Fence))
	<-change
	assert.Equal(t, Over, ask(t, q, start, 4, 0).Verdict)
	assert.Equal(t, Over, ask(t, q, start, 7, 0).Verdict)
	list, _ = rest(t, q, 7, 1)
	assert.Equal(t, []int64{0, 1, 2}, list)
	assert.Equal(t, Over, ask(t, q, start, 4, 0).Verdict, "an epoch before")
}

func TestARequestThatIsRepeatedGetsItsAnswerAgain(t *testing.T) {
	q := made(t, data(2), 0)
	one, err := q.Ask(start, 0, 17, 0)
	require.NoError(t, err)
	again, err := q.Ask(start.Add(time.Second), 0, 17, 0)
	require.NoError(t, err)
	assert.Equal(t, one, again)
	assert.True(t, q.Done(0, 0, one.Shard, one.Fence))
	assert.True(t, q.Done(0, 0, one.Shard, one.Fence))
	list, _ := rest(t, q, 0, 0)
	assert.Len(t, list, 1)
	last := q.shards[1].fence
	ask(t, q, start, 0, 1)
	assert.True(t, q.Done(0, 0, 1, last), "the epoch has changed since")
	assert.False(t, q.Done(0, 0, 0, one.Fence), "too old to be known")
}

func TestALeaseRunsOut(t *testing.T) {
	q, clock := made(t, data(1), 0, 1), &Clock{}
	one := ask(t, q, start, 0, 0)
	// Progress makes it last.
	for at := Interval; at < 2*time.Minute; at += Interval {
		if at%time.Second == 0 {
			assert.True(t, q.Renew(start.Add(at), 0, one.Shard, one.Fence))
			assert.False(t, q.Renew(start.Add(at), 1, one.Shard, one.Fence), "it is not rank 1's")
		}
		assert.Zero(t, clock.Tick(start.Add(at), []*Queue{q}))
	}
	assert.Equal(t, Waiting, ask(t, q, start, 1, 0).Verdict)
	change, now := q.Change(), clock.last
	for range 601 {
		now = now.Add(Interval)
		clock.Tick(now, []*Queue{q})
	}
	<-change
	two := ask(t, q, now, 1, 0)
	assert.Equal(t, Leased, two.Verdict)
	assert.False(t, q.Renew(now, 0, one.Shard, one.Fence))
	assert.False(t, q.Done(0, 0, one.Shard, one.Fence), "it was leased again")
	assert.True(t, q.Done(1, 0, two.Shard, two.Fence))
	assert.False(t, q.Done(0, 0, one.Shard, one.Fence))
}

func TestALateCompletionCounts(t *testing.T) {
	q := made(t, data(2), 0, 1)
	one := ask(t, q, start, 0, 0)
	q.expire(start.Add(time.Hour))
	assert.True(t, q.Done(0, 0, one.Shard, one.Fence))
	assert.False(t, q.Renew(start.Add(time.Hour), 0, one.Shard, one.Fence), "it has ended")
	list, last := rest(t, q, 1, 0)
	assert.Equal(t, []int64{1}, list)
	assert.Equal(t, Over, last)
}

// A trainer that was busy for longer than its lease goes on, if nobody has taken its shard: else it
// would stop in the middle, and would be told that the shard is done.
func TestALateLeaseLastsAgain(t *testing.T) {
	for _, dealt := range []bool{false, true} {
		d := data(2)
		d.Dealt = dealt
		q, now := made(t, d, 0, 1), start
		one := ask(t, q, now, 0, 0)
		for range 2 * (d.Retries + 2) { // it is no try
			now = now.Add(3 * d.Lease)
			q.expire(now)
			assert.False(t, q.Renew(now, 1, one.Shard, one.Fence), "it is not rank 1's")
			assert.False(t, q.Renew(now, 0, one.Shard, one.Fence+1))
			assert.True(t, q.Renew(now, 0, one.Shard, one.Fence))
			q.expire(now.Add(d.Lease))
			assert.EqualValues(t, 1, q.Status(now).Queued, "nobody else gets it")
		}
		assert.Zero(t, q.shards[one.Shard].tries)
		two := ask(t, q, now, 0, 0)
		assert.Equal(t, dealt, two.Verdict == Over)
		assert.True(t, q.Done(0, 0, one.Shard, one.Fence))
		assert.False(t, q.Renew(now, 0, one.Shard, one.Fence))

		if dealt { // its trainer alone may have the other one
			continue
		}
		q.expire(now.Add(2 * d.Lease))
		three := ask(t, q, now, 1, 0)
		assert.Equal(t, two.Shard, three.Shard)
		assert.False(t, q.Renew(now, 0, two.Shard, two.Fence), "rank 1 has it")
		assert.False(t, q.Done(0, 0, two.Shard, two.Fence))
		q.expire(now.Add(4 * d.Lease))
		assert.False(t, q.Renew(now, 0, two.Shard, two.Fence), "rank 1 had it last")
		assert.True(t, q.Renew(now, 1, two.Shard, three.Fence))
		q.expire(now.Add(8 * d.Lease))
		q.Leave(1, false)
		assert.False(t, q.Renew(now, 1, two.Shard, three.Fence), "it has left")
	}
}

func TestAMasterThatWasStoppedGivesTime(t *testing.T) {
	q, clock := made(t, data(1), 0, 1), &Clock{}
	clock.Tick(start, []*Queue{q})
	one := ask(t, q, start, 0, 0)
	assert.Equal(t, 10*time.Minute, clock.Tick(start.Add(10*time.Minute+Interval), []*Queue{q}))
	assert.Equal(t, Waiting, ask(t, q, start, 1, 0).Verdict)
	assert.True(t, q.Renew(start.Add(10*time.Minute+2*Interval), 0, one.Shard, one.Fence))
	assert.Zero(t, clock.Tick(start.Add(10*time.Minute+2*Interval+slack), []*Queue{q}), "a busy machine")
}

func TestTriesAreBounded(t *testing.T) {
	q := made(t, data(2), 0, 1)
	for try := range 3 {
		g := ask(t, q, start, try%2, 0)
		assert.Equal(t, int64(0), g.Shard, "it comes back where it was")
		assert.True(t, q.Return(0, 0, g.Fence, fmt.Sprintf("bad record %d", try)))
		assert.False(t, q.Return(0, 0, g.Fence, "again"))
	}
	list, last := rest(t, q, 0, 0)
	assert.Equal(t, []int64{1}, list)
	assert.Equal(t, Over, last)
	status := q.Status(start)
	assert.Equal(t, []Failure{{0, 0, 0, "bad record 2"}}, status.Failed)
	assert.Equal(t, 1, status.Lost)
	list, _ = rest(t, q, 0, 1)
	assert.Equal(t, []int64{0, 1}, list, "the next epoch tries again")
	assert.Len(t, q.Status(start).Failed, 1)
}

func TestWhatIsGivenBackCountsNoTry(t *testing.T) {
	d := data(1)
	d.Retries = 0
	q := made(t, d, 0)
	for range 5 {
		g := ask(t, q, start, 0, 0)
		assert.True(t, q.Return(0, g.Shard, g.Fence, ""))
	}
	list, _ := rest(t, q, 0, 0)
	assert.Len(t, list, 1)
}

func TestTrainersThatGo(t *testing.T) {
	for _, died := range []bool{false, true} {
		d := data(3)
		d.Retries = 0
		q := made(t, d, 0, 1)
		one := ask(t, q, start, 0, 0)
		ask(t, q, start, 0, 0)
		q.Leave(0, died)
		q.Leave(0, !died)
		assert.Equal(t, !died, q.Done(0, 0, one.Shard, one.Fence), "what it has done counts unless it was leased again, or has failed")
		list, last := rest(t, q, 1, 0)
		assert.Equal(t, map[bool][]int64{false: {1, 2}, true: {2}}[died], list)
		assert.Equal(t, Over, last)
		_, err := q.Ask(start, 0, 1<<60, 0)
		assert.Equal(t, status.PeerLeft, status.CodeOf(err))
		assert.Equal(t, map[bool]int{false: 0, true: 2}[died], q.Status(start).Lost)
		assert.Equal(t, []int{0}, q.Status(start).Gone)
	}
}

func TestShardsAreDealt(t *testing.T) {
	d := data(8)
	d.Dealt, d.Shuffle, d.Seed = true, true, 5
	q := made(t, d, 2, 3, 9)
	var all [3][]int64
	for i, rank := range []int{9, 2, 3} { // who comes first does not matter
		list, last := rest(t, q, rank, 0)
		assert.Equal(t, Over, last)
		all[[]int{2, 0, 1}[i]] = list
	}
	order := d.order(0)
	for i, list := range all {
		var want []int64
		for k := i; k < 8; k += 3 {
			want = append(want, order[k])
		}
		assert.Equal(t, want, list)
	}
	// One leaves in the middle: the others get the rest in turns.
	order = d.order(1)
	g := ask(t, q, start, 9, 1)
	assert.Equal(t, order[2], g.Shard)
	q.Leave(9, false)
	two, _ := rest(t, q, 2, 1)
	three, _ := rest(t, q, 3, 1)
	assert.Equal(t, []int64{order[0], order[3], order[6], order[2]}, two)
	assert.Equal(t, []int64{order[1], order[4], order[7], order[5]}, three)
	// It gets none of the next epoch.
	two, _ = rest(t, q, 2, 2)
	three, _ = rest(t, q, 3, 2)
	assert.Len(t, two, 4)
	assert.Len(t, three, 4)
}

// A trainer that completes early leaves shards to others that wait for the next epoch already. They
// get them, and the next epoch begins behind them.
func TestWhoWaitsGetsWhatIsLeftOfTheEpochBefore(t *testing.T) {
	for _, has := range []bool{false, true} {
		d := data(6)
		d.Dealt = true
		q := made(t, d, 0, 1, 2)
		for _, rank := range []int{1, 2} {
			list, last := rest(t, q, rank, 0)
			assert.Equal(t, Over, last)
			assert.Len(t, list, 2)
			assert.Equal(t, Waiting, ask(t, q, start, rank, 1).Verdict)
		}
		if has {
			ask(t, q, start, 0, 0)
		}
		change := q.Change()
		q.Leave(0, false)
		<-change
		for rank, shard := range map[int]int64{1: 0, 2: 3} {
			g := ask(t, q, start, rank, 1)
			assert.Equal(t, Grant{Leased, 0, shard, g.Fence, d.Lease}, g)
			assert.Equal(t, Waiting, ask(t, q, start, rank, 1).Verdict)
			assert.True(t, q.Done(rank, 0, shard, g.Fence))
		}
		g := ask(t, q, start, 2, 1)
		assert.Equal(t, Grant{Leased, 1, 2, g.Fence, d.Lease}, g)
	}
}

// Trainers in sync mode take as many steps as each other: one that has failed with a shard, before
// a step or in the middle of one, gets no more shards than if it had not.
func TestADealtShardThatFailsIsLeftOut(t *testing.T) {
	d := data(4)
	d.Dealt = true
	q := made(t, d, 0, 1)
	g := ask(t, q, start, 0, 0)
	assert.True(t, q.Return(0, g.Shard, g.Fence, "no such file"))
	assert.False(t, q.Done(0, 0, g.Shard, g.Fence))
	mine, _ := rest(t, q, 0, 0)
	assert.Equal(t, []int64{2}, mine)
	assert.Equal(t, []Failure{{0, 0, 0, "no such file"}}, q.Status(start).Failed)
	// What is given back comes again: the loop was left, and goes on.
	g = ask(t, q, start, 1, 0)
	assert.True(t, q.Return(0, g.Shard, g.Fence, ""))
	theirs, _ := rest(t, q, 1, 0)
	assert.Equal(t, []int64{1, 3}, theirs)
	mine, _ = rest(t, q, 0, 1)
	assert.Equal(t, []int64{0, 2}, mine, "the next epoch tries again")
}

func TestTheOrderOfAnEpoch(t *testing.T) {
	d := data(1000)
	assert.True(t, slices.IsSorted(d.order(3)))
	d.Shuffle = true
	seen := map[string]bool{}
	for epoch := range int64(3) {
		for seed := range uint64(3) {
			d.Seed = seed
			list := d.order(epoch)
			assert.Equal(t, list, d.order(epoch))
			seen[fmt.Sprint(list)] = true
			slices.Sort(list)
			for i, s := range list {
				require.EqualValues(t, i, s)
			}
		}
	}
	assert.Len(t, seen, 9)
	// The same on every machine, in every version.
	d = Data{Shards: 8, Shuffle: true, Seed: 1}
	assert.Equal(t, []int64{3, 2, 1, 6, 4, 7, 5, 0}, d.order(2))
}

func TestASnapshotIsRestored(t *testing.T) {
	d := data(6)
	d.Shuffle = true
	q := made(t, d, 0, 1)
	_, _ = rest(t, q, 0, 0)
	order := d.order(1)
	one := ask(t, q, start, 0, 1)
	assert.True(t, q.Done(0, 1, one.Shard, one.Fence))
	two := ask(t, q, start, 1, 1)
	for range 3 {
		g := ask(t, q, start, 0, 1)
		require.Equal(t, order[2], g.Shard)
		q.Return(1, g.Shard, g.Fence, "bad")
	}
	three := ask(t, q, start, 0, 1)
	q.Return(1, three.Shard, three.Fence, "bad once")
	text, err := q.Save()
	require.NoError(t, err)
	assert.True(t, q.Done(1, 1, two.Shard, two.Fence), "after the cut, so it is lost")

	back, err := Restore(text, []int{5, 6})
	require.NoError(t, err)
	back.fenceAbove(q)
	assert.False(t, back.Done(1, 1, two.Shard, two.Fence))
	assert.EqualValues(t, 1, back.shards[order[3]].tries)
	list, last := rest(t, back, 6, 1)
	assert.Equal(t, []int64{order[1], order[3], order[4], order[5]}, list)
	assert.Equal(t, Over, last)
	assert.Equal(t, q.Status(start).Failed, back.Status(start).Failed)
	assert.Greater(t, back.shards[order[1]].fence, q.shards[order[1]].fence)

	for _, bad := range []string{
		``, `[]`, `{"data":{"shards":-1}}`, `{"data":{"shards":2,"lease_ns":1000000000},"epoch":-1}`,
		`{"data":{"shards":2,"lease_ns":1000000000},"done":"BA=="}`, `{"data":{"shards":2,"lease_ns":1000000000},"done":"AwA=","failed":[{"shard":1}]}`,
		`{"data":{"shards":2,"lease_ns":1000000000},"tries":[{"shard":-1}]}`, `{"data":{"shards":2,"lease_ns":1000000000},"failed":[{"shard":9}]}`,
	} {
		_, err := Restore([]byte(bad), []int{0})
		assert.Equal(t, status.Argument, status.CodeOf(err), bad)
	}
}

func TestAllTrainersDescribeTheSame(t *testing.T) {
	d := data(3)
	q := made(t, d, 0)
	assert.NoError(t, q.Same(1, &d))
	for word, change := range map[string]func(*Data){
		"number of shards": func(d *Data) { d.Shards++ }, "files or ranges": func(d *Data) { d.Digest = "e" }, "shuffle": func(d *Data) { d.Shuffle = true },
		"seed": func(d *Data) { d.Seed++ }, "lease": func(d *Data) { d.Lease++ }, "retries": func(d *Data) { d.Retries++ }, "mode": func(d *Data) { d.Dealt = true },
	} {
		other := d
		change(&other)
		err := q.Same(1, &other)
		assert.Equal(t, status.Mismatch, status.CodeOf(err), word)
		assert.ErrorContains(t, err, word)
	}
	for _, change := range []func(*Data){
		func(d *Data) { d.Shards = -1 }, func(d *Data) { d.Shards = MostShards + 1 }, func(d *Data) { d.Lease = time.Millisecond },
		func(d *Data) { d.Lease = MostLease + 1 }, func(d *Data) { d.Retries = -1 }, func(d *Data) { d.Retries = MostRetries + 1 },
	} {
		other := d
		change(&other)
		_, err := New(other, nil)
		assert.Equal(t, status.Argument, status.CodeOf(err))
	}
}
