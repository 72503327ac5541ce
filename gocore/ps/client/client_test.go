package client

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/request"
	"github.com/paddlempi/paddlempi/gocore/ps/route"
	"github.com/paddlempi/paddlempi/gocore/ps/server"
	"github.com/paddlempi/paddlempi/gocore/ps/table"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// unsure tells at which servers the effect of a push is unknown.
func (one *trainer) unsure() (at []int) {
	one.progress.mu.Lock()
	defer one.progress.mu.Unlock()
	for s, here := range one.progress.here {
		if here.unsure {
			at = append(at, s)
		}
	}
	return at
}

// pulled asserts what rows of table t are.
func (one *trainer) pulled(want []float32, ids ...int64) {
	one.Helper()
	got, err := one.pull(ids...)
	require.NoError(one, err)
	assert.Equal(one, want, got)
}

func TestEachServerGetsOneRequest(t *testing.T) {
	one := newTrainer(t, 0, newServers(t, false, 0), nil)
	require.NoError(t, one.Push([]TableRows{one.rows(one.t, 2, 0, 1, 1, 3), one.rows(one.u, 5, 2)}, 0))
	for s, end := range one.link.ends {
		require.Equal(t, 1, end.came())
		head := end.last()
		assert.Equal(t, request.Head{Op: request.Push, Step: 1, Seen: -1, Number: 1, Tables: []request.TableRows{
			{Table: 0, Count: []uint32{1, 2}[s], Rate: 1}, {Table: 1, Count: []uint32{1, 0}[s], Rate: 1}}}, head, "it counts the step also without ids")
	}
	one.pulled([]float32{-2, -4, -2, 0}, 0, 1, 3, 4)
	u := one.rows(one.u, 0, 2, 1)
	require.NoError(t, one.Pull([]TableRows{one.rows(one.t, 0, 5), u}))
	assert.Equal(t, []float32{-5, -5, 0, 0}, valuesOf(u.Values))
	require.NoError(t, one.Write([]TableRows{one.rows(one.t, 7, 3, 0)}))
	one.pulled([]float32{7, 7, -4}, 0, 3, 1)

	before := one.link.ends[1].came()
	one.pulled([]float32{7}, 0)
	assert.Equal(t, before, one.link.ends[1].came(), "a pull asks only servers that have its ids")
	require.NoError(t, one.push(1, 0))
	assert.Equal(t, request.Head{Op: request.Push, Step: 2, Seen: 1, Number: 3, Tables: []request.TableRows{{Table: 0, Rate: 1}}}, one.link.ends[1].last(),
		"a push goes to all servers; update 2 was the write")
}

// A trainer cannot know whether a request that was sent without an answer was carried out. So its
// next push does not say which step it is, and a pull waits for the push before it, until a server
// answers with the number of its step.
func TestAnEffectThatIsUnknown(t *testing.T) {
	for name, c := range map[string]struct {
		fate  fate
		after float32 // of the row, after the push
	}{"the request is lost": {lost, 0}, "its answer is lost": {unheard, -2}, "its answer is damaged": {rotten, -2}} {
		t.Run(name, func(t *testing.T) {
			one := newTrainer(t, 0, newServers(t, false, 0), nil)
			one.link.ends[1].next(c.fate)
			err := one.soon(func() error { return one.push(2, 0, 1) })
			if c.fate == rotten {
				assert.ErrorContains(t, err, "an answer has a header of 23 bytes")
			} else {
				assert.Equal(t, status.Timeout, status.CodeOf(err))
				assert.ErrorContains(t, err, "the server on rank 11")
				var e *status.Error
				require.ErrorAs(t, err, &e)
				assert.Equal(t, []int{11}, e.Ranks)
			}
			assert.Equal(t, []int{1}, one.unsure())
			one.pulled([]float32{-2, c.after}, 0, 1)
			assert.EqualValues(t, 0, one.link.ends[0].last().Step)
			assert.EqualValues(t, request.AfterPush, one.link.ends[1].last().Step)

			require.NoError(t, one.push(1, 0, 1))
			assert.EqualValues(t, 2, one.link.ends[0].last().Step)
			assert.EqualValues(t, 0, one.link.ends[1].last().Step)
			assert.Empty(t, one.unsure())
			require.NoError(t, one.push(1, 0, 1))
			want := int64(2)
			if c.after != 0 {
				want = 3
			}
			assert.Equal(t, want, one.link.ends[1].last().Step, "the server has said how many of its steps it has")
			one.pulled([]float32{-4, c.after - 2}, 0, 1)
		})
	}
}

// A server that refuses a push has changed nothing, and the trainer knows it.
func TestARefusedPushIsNotApplied(t *testing.T) {
	servers := newServers(t, true, 0, 1)
	one, other := newTrainer(t, 0, servers, nil), newTrainer(t, 1, servers, nil)
	refused := make(chan error)
	go func() { refused <- other.Refuse(0) }()
	err := one.push(2, 0, 1)
	assert.Equal(t, status.Refused, status.CodeOf(err))
	assert.ErrorContains(t, err, "rank(s) [1] refused the step")
	assert.Equal(t, status.Refused, status.CodeOf(<-refused))
	assert.Empty(t, one.unsure())
	one.pulled([]float32{0, 0}, 0, 1)
	assert.EqualValues(t, 0, one.link.ends[1].last().Step, "there is no push to wait for")
	go func() { refused <- other.push(4, 0) }()
	require.NoError(t, one.push(2, 0, 1))
	require.NoError(t, <-refused)
	assert.EqualValues(t, 1, one.link.ends[1].last().Step, "the step that was refused is none")
	one.pulled([]float32{-6, -2}, 0, 1)
}

// What is not applied says nothing about an earlier push whose effect is unknown.
func TestAnUnknownEffectStaysUnknown(t *testing.T) {
	servers := newServers(t, true, 0, 1)
	one, other := newTrainer(t, 0, servers, nil), newTrainer(t, 1, servers, nil)
	err := one.soon(func() error { return one.push(2, 0, 1) })
	assert.Equal(t, status.Timeout, status.CodeOf(err), "the other one has not pushed")
	assert.Equal(t, []int{0, 1}, one.unsure())
	err = one.push(3, 0, 1)
	assert.Equal(t, status.Mismatch, status.CodeOf(err))
	assert.ErrorContains(t, err, "its step 1 still waits for other trainers")
	assert.Equal(t, []int{0, 1}, one.unsure())
	pulled := make(chan []float32)
	go func() {
		rows, _ := one.pull(0, 1)
		pulled <- rows
	}()
	require.NoError(t, other.push(1, 0))
	assert.Equal(t, []float32{-3, -2}, <-pulled, "the rows after the step")
}

// A request that comes twice is carried out once: the number of its step tells.
func TestAPushThatComesTwiceIsAppliedOnce(t *testing.T) {
	one := newTrainer(t, 0, newServers(t, false, 0), nil)
	one.link.ends[0].next(twice, twice)
	require.NoError(t, one.push(2, 0, 1))
	require.NoError(t, one.push(2, 0, 1))
	one.pulled([]float32{-4, -4}, 0, 1)
	replies := one.link.ends[0].replies
	require.Len(t, replies, 5)
	for i, copied := range []bool{false, true, false, true, false} {
		if copied {
			assert.ErrorContains(t, replies[i], "rank 0 pushes step", i)
		} else {
			assert.NoError(t, replies[i], i)
		}
	}
}

func TestAnAnswerThatTakesAMoment(t *testing.T) {
	one := newTrainer(t, 0, newServers(t, false, 0), nil)
	one.link.ends[0].next(late, late)
	require.NoError(t, one.push(2, 0, 1))
	one.pulled([]float32{-2, -2}, 0, 1)
}

// Requests are sent when all servers can take theirs. If one cannot, no server gets any.
func TestNoServerGetsWhatOneCannotTake(t *testing.T) {
	one := newTrainer(t, 0, newServers(t, false, 0), nil)
	one.link.ends[1].next(full)
	err := one.push(2, 0, 1)
	assert.Equal(t, status.Timeout, status.CodeOf(err))
	assert.ErrorContains(t, err, "the server on rank 11: a free one of its credits")
	assert.Zero(t, one.link.ends[0].came())
	assert.Equal(t, 1, one.link.ends[0].dropped)
	assert.Empty(t, one.unsure())
	require.NoError(t, one.push(1, 0, 1))
	assert.EqualValues(t, 1, one.link.ends[0].last().Step)
	assert.EqualValues(t, 1, one.link.ends[0].last().Number)
}

// A link that breaks while the others send: those have the push, and the error names the one that
// has not.
func TestALinkThatBreaks(t *testing.T) {
	one := newTrainer(t, 0, newServers(t, false, 0), nil)
	one.link.ends[0].next(broken)
	err := one.push(2, 0, 1)
	assert.Equal(t, status.PeerLeft, status.CodeOf(err))
	assert.ErrorContains(t, err, "rank 10")
	assert.Empty(t, one.unsure())
	one.pulled([]float32{0, -2}, 0, 1)
	require.NoError(t, one.push(1, 0, 1))
	assert.EqualValues(t, 1, one.link.ends[0].last().Step)
	assert.EqualValues(t, 2, one.link.ends[1].last().Step)
	assert.Equal(t, one.link.ends[0].last().Number, one.link.ends[1].last().Number, "an update has one number on all servers")
}

// The first server waits for a trainer that the death of the second one has stopped.
func TestADeadServerEndsTheWaitForAnother(t *testing.T) {
	one := newTrainer(t, 0, newServers(t, false, 0), nil)
	one.link.ends[0].next(lost, late)
	one.link.ends[1].next(dead, dead)
	began := time.Now()
	_, err := one.pull(1, 0)
	assert.Equal(t, status.PeerDied, status.CodeOf(err))
	assert.ErrorContains(t, err, "rank 11")
	assert.GreaterOrEqual(t, time.Since(began), grace, "the first one may still answer")
	assert.Less(t, time.Since(began), patience)
	assert.ErrorContains(t, one.push(2, 0, 1), "rank 11")
	assert.Equal(t, []int{1}, one.unsure(), "its answer came within that time")
}

func TestTheFirstErrorInTheOrderOfServers(t *testing.T) {
	one := newTrainer(t, 0, newServers(t, false, 0), nil)
	one.link.ends[0].next(lost)
	one.link.ends[1].next(lost)
	err := one.soon(func() error {
		_, err := one.pull(1, 0)
		return err
	})
	assert.ErrorContains(t, err, "rank 10")
	assert.Empty(t, one.unsure(), "a pull is no step")
}

// A write goes into one table after the other, so a server that refuses it may have written some.
func TestARefusedWrite(t *testing.T) {
	one := newTrainer(t, 0, newServers(t, false, 0), nil)
	for _, c := range []struct {
		tables int
		want   Effect
	}{{1, NotApplied}, {2, Unknown}} {
		rows := []TableRows{one.rows(one.t, 1, 0), one.rows(one.u, 1, 0)}[:c.tables]
		one.u.IDs, one.t.IDs = []uint32{9, 9}, []uint32{9, 9} // no such table
		plan, err := one.plan(request.Write, rows)
		require.NoError(t, err)
		results, err := one.ask(request.Write, plan, nil)
		plan.free()
		assert.ErrorContains(t, err, "names table 9; server 0 has 2 tables")
		assert.Equal(t, c.want, results[0].effect)
	}
	assert.Equal(t, []string{"not applied", "unknown", "applied", "Effect(3)"}, []string{NotApplied.String(), Unknown.String(), Applied.String(), Effect(3).String()})
}

// Ctrl-C ends the wait for an answer, not what the server does.
func TestAnInterrupt(t *testing.T) {
	var stopped atomic.Bool
	stop := status.New(status.Interrupted, "Ctrl-C")
	one := newTrainer(t, 0, newServers(t, false, 0), func() error {
		if stopped.Load() {
			return stop
		}
		return nil
	})
	one.link.ends[1].next(unheard)
	stopped.Store(true)
	assert.Equal(t, stop, one.push(2, 0, 1))
	stopped.Store(false)
	assert.Contains(t, one.unsure(), 1)
	one.pulled([]float32{-2, -2}, 0, 1)
}

// Who has a job asks its servers for which trainers they wait.
func TestSomebodyKnowsMoreOfADeadline(t *testing.T) {
	one := newTrainer(t, 0, newServers(t, false, 0), nil)
	more := errors.New("rank 3 has not pushed")
	one.Late = func(what string, err error) error {
		assert.Equal(t, "push", what)
		assert.Equal(t, status.Timeout, status.CodeOf(err))
		return more
	}
	one.link.ends[0].next(lost)
	assert.Equal(t, more, one.soon(func() error { return one.push(2, 0) }))
	one.link.ends[0].next(broken)
	assert.Equal(t, status.PeerLeft, status.CodeOf(one.push(2, 0)), "it is not asked about other errors")
}

func TestStalenessOfOthersUpdates(t *testing.T) {
	servers := newServers(t, false, 0, 1)
	one, other := newTrainer(t, 0, servers, nil), newTrainer(t, 1, servers, nil)
	assert.Zero(t, one.Staleness())
	one.pulled([]float32{0, 0}, 0, 1)
	for range 3 {
		require.NoError(t, other.push(1, 0, 1))
	}
	require.NoError(t, one.push(1, 0, 1))
	assert.Equal(t, 3.0, one.Staleness())
	require.NoError(t, one.push(1, 0, 1), "its own push does not count")
	assert.Equal(t, 3.0, one.Staleness())
}

func TestNothingIsSentOfWrongArguments(t *testing.T) {
	one := newTrainer(t, 0, newServers(t, false, 0), nil)
	strided := one.rows(one.t, 1, 0)
	shape, strides := []int64{1, dim}, []int64{dim, 2}
	strided.Values.NDim, strided.Values.Shape, strided.Values.Strides = 2, unsafe.Pointer(&shape[0]), unsafe.Pointer(&strides[0])
	rate := one.rows(one.t, 1, 0)
	rate.Rate = -1
	wide := one.rows(one.t, 1, 0)
	wide.Values.Count++
	of64 := one.rows(one.t, 1, 0)
	of64.Values.DType = op.Float64
	floating := one.rows(one.t, 1, 0)
	floating.IDs.DType = op.Float32
	for text, rows := range map[string][]TableRows{
		"learning_rate=-1 of table \"t\"":                 {rate},
		"1 ids of table \"t\", of dim 2, need":            {wide},
		"gradients or rows of table \"t\" are of float64": {of64},
		"ids of table \"t\" are of float32":               {floating},
		"a tensor of table \"t\" is not contiguous":       {strided},
		"table \"t\" is named twice":                      {one.rows(one.t, 1, 0), one.rows(one.t, 1, 1)},
		"65537 tables are more than one request takes":    make([]TableRows, request.MostTables+1),
	} {
		err := one.Push(rows, 0)
		assert.ErrorContains(t, err, "push: "+text)
	}
	one.t.NumIDs, one.t.Refuse = 4, true
	assert.ErrorContains(t, one.push(1, 3, 4), "push: id 4 is not in table \"t\", which takes ids from 0 to 3")
	assert.ErrorContains(t, one.push(float32(math.Inf(1)), 2), "the gradient of id 2 in table \"t\" is not finite: +Inf at element 0; nothing was pushed")
	assert.ErrorContains(t, one.Write([]TableRows{one.rows(one.t, 1, 2, 2)}), "ids of table \"t\" appear several times")
	one.Complete()
	assert.ErrorContains(t, one.push(1, 0), "push: this trainer has completed")
	_, err := one.pull(0)
	assert.ErrorContains(t, err, "pull: this trainer has completed")
	for _, end := range one.link.ends {
		assert.Zero(t, end.came())
	}
}

// Rows that one server might have no room for are made on all servers before a push.
func TestRowsAreMadeBeforeAPushOfTablesWithALimit(t *testing.T) {
	one := newTrainer(t, 0, newServers(t, false, 0), nil)
	one.t.Limit = true
	ops := func(s int) (all []request.Op) {
		for _, head := range one.link.ends[s].got {
			all = append(all, head.Op)
		}
		one.link.ends[s].got = nil
		return all
	}
	ids := idsOf(t, 0, 1)
	push := func() error {
		return one.Push([]TableRows{{Table: one.t, IDs: ids, Values: floats(t, 1, 1, 1, 1), Rate: 1}}, 0)
	}
	require.NoError(t, push())
	assert.Equal(t, []request.Op{request.Reserve, request.Push}, ops(1))
	require.NoError(t, push())
	assert.Equal(t, []request.Op{request.Push}, ops(1), "they are there")
	one.Removed()
	one.link.ends[1].next(lost)
	assert.Equal(t, status.Timeout, status.CodeOf(one.soon(push)))
	assert.Equal(t, []request.Op{request.Push, request.Push, request.Reserve}, ops(0)[1:], "restored: they may be gone")
	assert.Empty(t, ops(1))
	assert.Empty(t, one.unsure(), "the push was not sent")
}

// A request may name more tables than a header has room for: they are named before the ids.
func TestManyTablesInOneRequest(t *testing.T) {
	const n = request.MostInHeader + 1
	for _, mode := range []string{"one server", "two servers", "geo"} {
		servers := newServers(t, false, 0)
		if mode == "one server" {
			servers = servers[:1]
			servers[0].Servers = 1
		}
		one := newTrainer(t, 0, servers, nil)
		var push, pull []TableRows
		for i := range n {
			name := fmt.Sprintf("many %d", i)
			c := table.Config{Dim: dim, DType: "float32", Initializer: table.Initializer{Name: "zeros"}, Optimizer: plainSGD}
			on := &Table{Client: one.Client, Name: name, Dim: dim, Rows: op.Float32, By: route.ByModulo, Config: c}
			for _, s := range servers {
				number, err := s.Declare(0, server.Meta{Name: name, By: "modulo", Config: c})
				require.NoError(t, err)
				on.IDs = append(on.IDs, number)
			}
			t.Cleanup(on.Forget)
			ids := []int64{int64(i)}
			if i%3 == 0 {
				ids = []int64{0, 1, 0}
			}
			push = append(push, one.rows(on, float32(i), ids...))
			pull = append(pull, one.rows(on, -99, ids...))
		}
		if mode == "geo" {
			one.SetGeo(1, 1)
		}
		require.NoError(t, one.Push(push, 0))
		require.NoError(t, one.Pull(pull))
		for i, r := range pull {
			want := []float32{-float32(i), -float32(i)}
			if i%3 == 0 {
				want = []float32{-2 * float32(i), -2 * float32(i), -float32(i), -float32(i), -2 * float32(i), -2 * float32(i)}
			}
			if got := valuesOf(r.Values); !slices.Equal(got, want) {
				t.Fatalf("%s, table %d: %v instead of %v", mode, i, got, want)
			}
		}
		if mode != "geo" {
			assert.EqualValues(t, 1, servers[0].Statistics().Pushes, "a push is one request")
			require.NoError(t, one.Push([]TableRows{}, 0))
			assert.ErrorContains(t, one.Push(append(push, push[7]), 0), `table "many 7" is named twice`)
		}
	}
}

// In a step of all trainers the others learn that one cannot push.
func TestATrainerWithoutRoomRefusesTheStep(t *testing.T) {
	servers := newServers(t, true, 0, 1)
	one, other := newTrainer(t, 0, servers, nil), newTrainer(t, 1, servers, nil)
	one.t.Limit = true
	one.link.ends[1].next(lost)
	assert.ErrorContains(t, one.soon(func() error { return one.push(1, 0, 1) }), "the server on rank 11")
	err := other.push(1, 0, 1)
	assert.Equal(t, status.Refused, status.CodeOf(err))
	assert.ErrorContains(t, err, "rank(s) [0] refused the step")
}
