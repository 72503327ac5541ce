package master

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/status"
)

func opened(t *testing.T, dealt bool, d Data, trainers ...int) *Master {
	t.Helper()
	m := NewMaster(trainers, dealt)
	for _, rank := range trainers {
		epoch, err := m.Open(rank, d)
		require.NoError(t, err)
		assert.Zero(t, epoch)
	}
	return m
}

func within(t *testing.T, limit time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

func TestAnAskWaitsForWhatOthersHave(t *testing.T) {
	why := status.New(status.PeerDied, "rank 0 died").WithRanks(0)
	for name, c := range map[string]struct {
		then func(m *Master, g Grant)
		want Verdict
		err  status.Code
	}{
		"done": {func(m *Master, g Grant) { _, _ = m.Done(0, Lease{Name: "train", Shard: g.Shard, Fence: g.Fence}) }, Over, status.OK},
		"given up": {func(m *Master, g Grant) {
			_, _ = m.Return(0, Lease{Name: "train", Shard: g.Shard, Fence: g.Fence, Reason: ""})
		}, Leased, status.OK},
		"lost":      {func(m *Master, _ Grant) { m.Lost(0, why) }, Leased, status.OK},
		"completed": {func(m *Master, _ Grant) { _ = m.Complete(0) }, Leased, status.OK},
		"replaced":  {func(m *Master, _ Grant) { text, _ := m.Save(); _ = m.Add(1, 0, text); _, _ = m.Restore(len(text)) }, Leased, status.OK},
		"failed":    {func(m *Master, _ Grant) { m.Fail(why) }, 0, status.PeerDied},
		"nothing":   {func(*Master, Grant) {}, Waiting, status.OK},
	} {
		t.Run(name, func(t *testing.T) {
			m := opened(t, false, data(1), 0, 1)
			one, err := m.Ask(within(t, time.Minute), 0, "train", 1, 0)
			require.NoError(t, err)
			limit := time.Minute
			if name == "nothing" {
				limit = 50 * time.Millisecond
			}
			answer := make(chan Grant)
			go func() {
				g, err := m.Ask(within(t, limit), 1, "train", 1, 0)
				assert.Equal(t, c.err, status.CodeOf(err))
				answer <- g
			}()
			time.Sleep(5 * time.Millisecond)
			c.then(m, one)
			assert.Equal(t, c.want, (<-answer).Verdict)
		})
	}
}

func TestWhoMayAsk(t *testing.T) {
	m := opened(t, false, data(4), 2, 5)
	ctx := within(t, time.Minute)
	_, err := m.Ask(ctx, 3, "train", 1, 0)
	assert.ErrorContains(t, err, "rank 3 is no trainer; trainers are ranks [2 5]")
	_, err = m.Ask(ctx, 2, "other", 1, 0)
	assert.ErrorContains(t, err, `"other"`)
	other := data(5)
	_, err = m.Open(5, other)
	assert.Equal(t, status.Mismatch, status.CodeOf(err))
	bad := data(-1)
	bad.Name = "bad"
	_, err = m.Open(5, bad)
	assert.Equal(t, status.Argument, status.CodeOf(err))
	require.NoError(t, m.Complete(2))
	require.NoError(t, m.Complete(2))
	assert.Error(t, m.Complete(3))
	_, err = m.Ask(ctx, 2, "train", 1, 0)
	assert.ErrorContains(t, err, "rank 2 has completed")
	assert.Equal(t, []int{5}, m.Active())
	for name := range MostQueues {
		d := data(1)
		d.Name = strings.Repeat("x", name+1)
		_, err = m.Open(5, d)
	}
	assert.ErrorContains(t, err, "64 data sets already")
}

func TestTheEndOfAMaster(t *testing.T) {
	why := errors.New("rank 1 died")
	for _, dealt := range []bool{false, true} {
		m := NewMaster([]int{0, 1}, dealt)
		m.Lost(1, why)
		m.Lost(1, errors.New("again"))
		select {
		case <-m.Ended():
			t.Fatal("rank 0 is active")
		default:
		}
		require.NoError(t, m.Complete(0))
		<-m.Ended()
		assert.Equal(t, map[bool]error{false: nil, true: why}[dealt], m.Err())
	}
	m := NewMaster([]int{0}, false)
	m.Lost(0, why)
	<-m.Ended()
	assert.Equal(t, why, m.Err(), "all of them have died")
	m = NewMaster([]int{0}, false)
	m.Fail(why)
	<-m.Ended()
	m.Fail(errors.New("later"))
	assert.Equal(t, why, m.Err())
}

func TestAllQueuesAreRestored(t *testing.T) {
	m := opened(t, false, data(40), 0, 1)
	second := data(3)
	second.Name = "test"
	_, err := m.Open(0, second)
	require.NoError(t, err)
	ctx := within(t, time.Minute)
	g, err := m.Ask(ctx, 0, "train", 1, 0)
	require.NoError(t, err)
	counts, err := m.Done(0, Lease{Name: "train", Shard: g.Shard, Fence: g.Fence})
	assert.True(t, counts && err == nil)
	text, err := m.Save()
	require.NoError(t, err)
	later, err := m.Ask(ctx, 0, "train", 2, 0)
	require.NoError(t, err)

	require.NoError(t, m.Add(0, 0, []byte("of one that died")))
	require.NoError(t, m.Add(1, 0, text[:7]))
	assert.Error(t, m.Add(1, 6, text[7:]))
	require.NoError(t, m.Add(1, 7, text[7:]))
	names, err := m.Restore(len(text))
	require.NoError(t, err)
	assert.Equal(t, []string{"test", "train"}, names)
	_, err = m.Restore(len(text))
	assert.ErrorContains(t, err, "0 bytes of queues have come")
	counts, err = m.Done(0, Lease{Name: "train", Shard: later.Shard, Fence: later.Fence})
	assert.True(t, !counts && err == nil, "it is of a lease after the cut")
	again, err := m.Ask(ctx, 1, "train", 1, 0)
	require.NoError(t, err)
	assert.Equal(t, later.Shard, again.Shard)
	assert.Greater(t, again.Fence, later.Fence)

	// Another mode, other trainers.
	sync := NewMaster([]int{7}, true)
	require.NoError(t, sync.Add(7, 0, text))
	_, err = sync.Restore(len(text))
	assert.ErrorContains(t, err, "of another mode")
	require.NoError(t, sync.Add(7, 0, []byte("[{]")))
	_, err = sync.Restore(3)
	assert.ErrorContains(t, err, "cannot be read")
	fresh := NewMaster([]int{7}, false)
	require.NoError(t, fresh.Add(7, 0, text))
	_, err = fresh.Restore(len(text))
	require.NoError(t, err)
	changed := data(40)
	changed.Lease, changed.Retries = time.Hour, 9
	epoch, err := fresh.Open(7, changed)
	assert.True(t, epoch == 0 && err == nil)
	assert.Equal(t, time.Hour, fresh.Report().Queues[0].Lease+fresh.Report().Queues[1].Lease-data(1).Lease)
	_, err = fresh.Open(7, data(40))
	assert.Equal(t, status.Mismatch, status.CodeOf(err), "of the same job")
	names, err = fresh.Restore(0)
	assert.True(t, names == nil && err == nil)
	assert.Empty(t, fresh.Report().Queues, "at the cut there were none")
	text, err = fresh.Save()
	assert.True(t, text == nil && err == nil)
}

func TestTheReport(t *testing.T) {
	m := opened(t, false, data(3), 0, 1)
	g, err := m.Ask(within(t, time.Minute), 1, "train", 1, 0)
	require.NoError(t, err)
	_, err = m.Return(1, Lease{Name: "train", Shard: g.Shard, Fence: g.Fence, Reason: "bad"})
	require.NoError(t, err)
	_, err = m.Ask(within(t, time.Minute), 1, "train", 2, 0)
	require.NoError(t, err)
	m.Lost(0, errors.New("x"))
	m.Tick(time.Now())
	r := m.Report()
	assert.Equal(t, []TrainerReport{{0, "lost"}, {1, "active"}}, r.Trainers)
	require.Len(t, r.Queues, 1)
	q := r.Queues[0]
	assert.EqualValues(t, []int64{2, 0, 1}, []int64{q.Queued, q.Done, int64(q.Leased[0].Rank)})
	text, err := json.Marshal(r)
	require.NoError(t, err)
	assert.Contains(t, string(text), `"shard":0,"rank":1,"tries":1`)
}
