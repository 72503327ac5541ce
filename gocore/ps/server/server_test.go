package server

import (
	"context"
	"math"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/request"
	"github.com/paddlempi/paddlempi/gocore/ps/table"
	"github.com/paddlempi/paddlempi/gocore/status"
)

const dim = 4

func meta(name string) Meta {
	return Meta{Name: name, By: "hash", Config: table.Config{Dim: dim, DType: "float32", Refuse: true,
		Initializer: table.Initializer{Name: "zeros"}, Optimizer: table.Optimizer{Name: "sgd", LearningRate: 0.1}}}
}

func newServer(t *testing.T, synchronous bool, trainers ...int) *Server {
	s := New(Config{Servers: 1, Trainers: trainers, Rule: Rule{Sync: synchronous}})
	t.Cleanup(s.Tables.Free)
	for _, rank := range trainers {
		id, err := s.Declare(rank, meta("t"))
		require.NoError(t, err)
		assert.Zero(t, id)
	}
	return s
}

func bytesOf(v []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}

type reply struct {
	answer request.Answer
	err    error
}

// send gives the server a request, and returns where its reply comes.
func send(s *Server, from int, head request.Head, ids []int64, values, answer []float32) <-chan reply {
	got := make(chan reply, 2)
	head.Tables = append(head.Tables, request.TableRows{Count: uint32(len(ids)), Rate: math.NaN()})
	in := &Incoming{From: from, Header: head.Encode(), IDs: ids, Values: bytesOf(values), Answer: bytesOf(answer)}
	in.Reply = func(header []byte, err error) {
		r := reply{err: err}
		if err == nil {
			r.answer, r.err = request.DecodeAnswer(header)
		}
		got <- r
	}
	s.Handle(in)
	return got
}

func push(s *Server, from int, step int64, ids []int64, gradients []float32) <-chan reply {
	return send(s, from, request.Head{Op: request.Push, Step: step, Seen: -1}, ids, gradients, nil)
}

func pull(t *testing.T, s *Server, from int, ids ...int64) []float32 {
	out := memory[float32](dim * len(ids))
	r := <-send(s, from, request.Head{Op: request.Pull, Seen: -1}, ids, nil, out)
	require.NoError(t, r.err)
	return out
}

// memory returns memory outside the Go heap, as that of requests is. The tests do not free it.
func memory[T any](n int) []T {
	var one T
	room, err := mem.Alloc(int64(max(1, n)) * int64(unsafe.Sizeof(one)))
	if err != nil {
		panic(err)
	}
	return unsafe.Slice((*T)(room), n)
}

func outside[T any](from ...T) []T {
	to := memory[T](len(from))
	copy(to, from)
	return to
}

func some(seed int, n int) []float32 {
	out := memory[float32](n * dim)[:0]
	for i := range n * dim {
		out = append(out, float32(math.Sin(float64(seed*1000+i))))
	}
	return out
}

func arrived(c <-chan reply) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestAStepIsAppliedWhenAllAreThereAndInRankOrder(t *testing.T) {
	ids := map[int][]int64{1: {5, 7}, 4: {7, 9}, 6: {7, 5}}
	one, err := table.New(meta("t").Config)
	require.NoError(t, err)
	defer one.Free()
	s := newServer(t, true, 1, 4, 6)
	for step := int64(1); step <= 3; step++ {
		var all []int64
		var sums []float32
		for _, rank := range []int{1, 4, 6} {
			all, sums = append(all, ids[rank]...), append(sums, some(rank+int(step), 2)...)
		}
		all, sums = outside(all...), outside(sums...)
		require.NoError(t, one.Push(table.Batch{IDs: &op.Buf{Data: unsafe.Pointer(&all[0]), Count: int64(len(all)), DType: op.Int64, NDim: 1},
			Values: &op.Buf{Data: unsafe.Pointer(&sums[0]), Count: int64(len(sums)), DType: op.Float32, NDim: 1}}, math.NaN(), step))
		last := push(s, 6, step, ids[6], some(6+int(step), 2))
		first := push(s, 1, step, ids[1], some(1+int(step), 2))
		assert.False(t, arrived(last) || arrived(first))
		middle := push(s, 4, step, ids[4], some(4+int(step), 2))
		for _, c := range []<-chan reply{first, middle, last} {
			r := <-c
			require.NoError(t, r.err)
			assert.Equal(t, step, r.answer.Version)
		}
	}
	want := memory[float32](3 * dim)
	list := outside[int64](5, 7, 9)
	require.NoError(t, one.Pull(table.Batch{IDs: &op.Buf{Data: unsafe.Pointer(&list[0]), Count: 3, DType: op.Int64, NDim: 1},
		Values: &op.Buf{Data: unsafe.Pointer(&want[0]), Count: 3 * dim, DType: op.Float32, NDim: 1}}))
	assert.Equal(t, want, pull(t, s, 4, list...))
}

func TestAPushOfATrainerThatCompletesStays(t *testing.T) {
	for _, others := range []string{"push", "complete"} {
		s := newServer(t, true, 0, 1)
		waits := push(s, 0, 1, []int64{3}, some(1, 1))
		require.NoError(t, s.Complete(0))
		assert.False(t, arrived(waits))
		if others == "push" {
			second := push(s, 1, 1, []int64{4}, some(2, 1))
			require.NoError(t, (<-second).err)
		} else {
			require.NoError(t, s.Complete(1))
			<-s.Done()
			require.NoError(t, s.Err())
		}
		require.NoError(t, (<-waits).err)
		assert.EqualValues(t, 1, s.Version.Load())
	}
}

func TestATrainerThatCompletesNoLongerCounts(t *testing.T) {
	s := newServer(t, true, 0, 1)
	waits := push(s, 0, 1, []int64{3}, some(1, 1))
	assert.False(t, arrived(waits))
	require.NoError(t, s.Complete(1))
	require.NoError(t, (<-waits).err)
	require.NoError(t, s.Complete(1))
	assert.Error(t, (<-push(s, 1, 1, []int64{3}, some(1, 1))).err)
	select {
	case <-s.Done():
		assert.Fail(t, "rank 0 is active")
	default:
	}
	require.NoError(t, s.Complete(0))
	<-s.Done()
	assert.NoError(t, s.Err())
}

func TestATrainerThatDies(t *testing.T) {
	died := status.New(status.PeerDied, "rank 1 died").WithRanks(1)
	s := newServer(t, true, 0, 1)
	waits := push(s, 0, 1, []int64{3}, some(1, 1))
	s.Lost(1, died)
	assert.Equal(t, died, (<-waits).err)
	<-s.Done()
	assert.Equal(t, died, s.Err())
	assert.Equal(t, died, s.Register(Member{Rank: 0}))

	s = newServer(t, false, 0, 1)
	s.Lost(1, died)
	require.NoError(t, (<-push(s, 0, 1, []int64{3}, some(1, 1))).err)
	assert.Equal(t, []int{0}, s.Active())
	assert.Error(t, (<-push(s, 1, 1, []int64{3}, some(1, 1))).err)
	require.NoError(t, s.Complete(0))
	<-s.Done()
	assert.NoError(t, s.Err())

	s = newServer(t, false, 0, 1) // nobody completes
	s.Lost(0, status.New(status.PeerDied, "rank 0 died"))
	s.Lost(1, died)
	<-s.Done()
	assert.Equal(t, died, s.Err())
}

// A trainer whose push has ended with an error, such as Ctrl-C, does not know whether it is a step.
func TestAPushMayLeaveItsNumberToTheServer(t *testing.T) {
	s := newServer(t, true, 0, 1)
	first := push(s, 0, 1, []int64{3}, some(1, 1))
	r := <-push(s, 0, 0, []int64{3}, some(1, 1))
	assert.ErrorContains(t, r.err, "step 1 still waits")
	require.NoError(t, (<-push(s, 1, 0, []int64{3}, some(1, 1))).err)
	require.NoError(t, (<-first).err)
	second := push(s, 1, 2, []int64{3}, some(1, 1))
	r = <-push(s, 0, 0, []int64{3}, some(1, 1))
	require.NoError(t, r.err)
	assert.Equal(t, int64(2), r.answer.Steps)
	require.NoError(t, (<-second).err)
	assert.Error(t, (<-push(s, 0, 5, []int64{3}, some(1, 1))).err)
}

// pullAfter is the pull of a trainer that has given up its push.
func pullAfter(s *Server, from int, out []float32, ids ...int64) <-chan reply {
	return send(s, from, request.Head{Op: request.Pull, Step: request.AfterPush, Seen: -1}, ids, nil, out)
}

func TestAPullAfterAPushThatWasGivenUpWaitsForItsStep(t *testing.T) {
	s := newServer(t, true, 0, 1)
	ids, ones := outside[int64](7), outside[float32](1, 1, 1, 1)
	first := push(s, 0, 1, ids, ones)
	// Another thread of the same trainer gets the rows before the step.
	assert.Equal(t, make([]float32, dim), pull(t, s, 0, 7))
	out := memory[float32](dim)
	later := pullAfter(s, 0, out, ids...)
	// What comes after it comes after the step, too.
	rows := outside[float32](9, 9, 9, 9)
	write := send(s, 0, request.Head{Op: request.Write, Step: request.AfterPush, Seen: -1}, ids, rows, nil)
	assert.False(t, arrived(first) || arrived(later) || arrived(write))
	// The other trainer has given up nothing, and waits for nobody.
	assert.True(t, arrived(pullAfter(s, 1, memory[float32](dim), ids...)))
	require.NoError(t, (<-push(s, 1, 1, ids, ones)).err)
	got := <-later
	require.NoError(t, got.err)
	assert.EqualValues(t, 1, got.answer.Version)
	assert.InDelta(t, -0.2, out[0], 1e-6)
	require.NoError(t, (<-write).err)
	assert.Equal(t, float32(9), pull(t, s, 0, 7)[0])
	// No push is under way: it does not wait.
	assert.True(t, arrived(pullAfter(s, 0, out, ids...)))

	// The step is refused: the rows are those before.
	send(s, 0, request.Head{Op: request.Push, Seen: -1, Tables: []request.TableRows{{Rate: 0.5}}}, ids, ones, nil)
	later = pullAfter(s, 0, out, ids...)
	refused := send(s, 1, request.Head{Op: request.Push, Seen: -1, Tables: []request.TableRows{{Rate: 0.25}}}, ids, ones, nil)
	assert.Error(t, (<-refused).err)
	require.NoError(t, (<-later).err)
	assert.Equal(t, float32(9), out[0])

	// The server ends: the pull ends with it.
	push(s, 0, 0, ids, ones)
	later = pullAfter(s, 0, out, ids...)
	died := status.New(status.PeerDied, "rank 1 has died").WithRanks(1)
	s.Lost(1, died)
	assert.Equal(t, error(died), (<-later).err)
}

func TestAsynchronousPushesAreAppliedAtOnceAndTellTheirStaleness(t *testing.T) {
	s := newServer(t, false, 0, 1)
	gradient := outside[float32](1, 1, 1, 1)
	for step := int64(1); step <= 3; step++ {
		require.NoError(t, (<-push(s, 1, step, []int64{3}, gradient)).err)
	}
	r := <-send(s, 0, request.Head{Op: request.Push, Step: 1, Seen: 1}, []int64{3}, gradient, nil)
	require.NoError(t, r.err)
	assert.Equal(t, request.Answer{Version: 4, Staleness: 2, Steps: 1}, r.answer)
	assert.Equal(t, 2.0, s.Statistics().Staleness)
	assert.InDelta(t, -0.4, pull(t, s, 0, 3)[0], 1e-6)
	require.NoError(t, s.Tables.SetLearningRate("t", 0.5))
	require.NoError(t, (<-push(s, 0, 2, []int64{3}, gradient)).err)
	assert.InDelta(t, -0.9, pull(t, s, 0, 3)[0], 1e-6)
	assert.Error(t, s.Tables.SetLearningRate("u", 0.5))
	assert.Error(t, s.Tables.SetLearningRate("t", math.NaN()))
}

// A pull brings rows of 16 bits as they are; the rows of the next table begin at a whole float32.
func TestPullsOf16BitsAndOf32InOneRequest(t *testing.T) {
	s := New(Config{Servers: 1, Trainers: []int{0}})
	t.Cleanup(s.Tables.Free)
	for name, dtype := range map[string]string{"half": "bfloat16", "whole": "float32"} {
		m := meta(name)
		m.Config.Dim, m.Config.DType = 3, dtype
		_, err := s.Declare(0, m)
		require.NoError(t, err)
	}
	half, whole := s.Tables.byName["half"], s.Tables.byName["whole"]
	write := request.Head{Op: request.Write, Tables: []request.TableRows{{Table: half, Count: 1}, {Table: whole, Count: 1}}}
	values := outside[float32](1, -2, 0.5, 1, 2, 3)
	ask := func(h request.Head, values, answer []byte) error {
		got := make(chan error, 1)
		s.Handle(&Incoming{From: 0, Header: h.Encode(), IDs: outside[int64](7, 9), Values: values, Answer: answer, Reply: func(_ []byte, err error) { got <- err }})
		return <-got
	}
	require.NoError(t, ask(write, bytesOf(values), nil))
	pull := write
	pull.Op, pull.Seen = request.Pull, -1
	room := memory[byte](64)
	clear(room)
	require.NoError(t, ask(pull, nil, room[:8+12]))
	assert.Equal(t, []byte{0x80, 0x3f, 0, 0xc0, 0, 0x3f, 0, 0}, room[:8], "three numbers of bfloat16, and two bytes between")
	assert.Equal(t, bytesOf(values)[12:], room[8:20])
	for _, wrong := range [][]byte{room[:24], room[:18], room[2:22], room[1:21]} {
		assert.ErrorContains(t, ask(pull, nil, wrong), "whose rows take 20 bytes")
	}
	alone := request.Head{Op: request.Pull, Seen: -1, Tables: []request.TableRows{{Table: half, Count: 2}}}
	require.NoError(t, ask(alone, nil, room[2:14]))
	assert.Error(t, ask(alone, nil, room[1:13]))
}

func TestWhatIsWrongIsRefusedAndTheServerGoesOn(t *testing.T) {
	s := newServer(t, true, 0, 1)
	nan := some(1, 1)
	nan[2] = float32(math.NaN())
	err := (<-push(s, 0, 1, []int64{3}, nan)).err
	assert.ErrorContains(t, err, `table "t" on server 0`)
	assert.ErrorContains(t, err, "not finite")
	assert.Equal(t, status.Mismatch, status.CodeOf((<-push(s, 0, 2, []int64{3}, some(1, 1))).err))
	for name, head := range map[string]request.Head{
		"unknown table":   {Op: request.Pull, Tables: []request.TableRows{{Table: 8, Count: 1}}},
		"two tables":      {Op: request.Pull, Tables: []request.TableRows{{Count: 1}, {Count: 1}}},
		"too many ids":    {Op: request.Pull, Tables: []request.TableRows{{Count: 2}}},
		"ids without end": {Op: request.Push, Step: 1, Tables: []request.TableRows{{Count: math.MaxUint32}}},
	} {
		got := make(chan error, 1)
		s.Handle(&Incoming{From: 0, Header: head.Encode(), IDs: []int64{1}, Values: make([]byte, 4*dim), Answer: make([]byte, 4*dim),
			Reply: func(_ []byte, err error) { got <- err }})
		assert.Error(t, <-got, name)
	}
	got := make(chan error, 1)
	s.Handle(&Incoming{From: 0, Header: []byte("rubbish"), Reply: func(_ []byte, err error) { got <- err }})
	assert.Error(t, <-got)
	assert.Error(t, (<-push(s, 9, 1, []int64{3}, some(1, 1))).err)
	other := meta("t")
	other.Config.Dim++
	_, err = s.Declare(1, other)
	assert.Equal(t, status.Mismatch, status.CodeOf(err))
	_, err = s.Declare(1, meta(string(make([]byte, MostName+1))))
	assert.Error(t, err)
	require.NoError(t, s.Register(Member{0, 7, "h"}))
	require.NoError(t, s.Register(Member{0, 7, "h"}))
	assert.Error(t, s.Register(Member{0, 8, "h"}))

	last := push(s, 1, 1, []int64{3}, some(1, 1))
	require.NoError(t, (<-push(s, 0, 1, []int64{3}, some(2, 1))).err)
	require.NoError(t, (<-last).err)
}

func TestTheTrainersOfAStepAgreeOnTheRate(t *testing.T) {
	s := newServer(t, true, 0, 1)
	with := func(from int, step int64, rate float64) <-chan error {
		got := make(chan error, 1)
		head := request.Head{Op: request.Push, Step: step, Tables: []request.TableRows{{Count: 1, Rate: rate}}}
		s.Handle(&Incoming{From: from, Header: head.Encode(), IDs: []int64{3}, Values: bytesOf(some(1, 1)),
			Reply: func(_ []byte, err error) { got <- err }})
		return got
	}
	first, second := with(0, 1, 0.1), with(1, 1, 0.2)
	assert.Equal(t, status.Mismatch, status.CodeOf(<-first))
	assert.Equal(t, status.Mismatch, status.CodeOf(<-second))
	assert.Zero(t, pull(t, s, 0, 3)[0])
	first, second = with(0, 1, 0.2), with(1, 1, 0.2)
	require.NoError(t, <-first)
	require.NoError(t, <-second)
}

func TestBarriers(t *testing.T) {
	s := newServer(t, true, 0, 1, 2)
	for range 3 {
		var all sync.WaitGroup
		for rank := range 3 {
			all.Add(1)
			go func() {
				defer all.Done()
				assert.NoError(t, s.Barrier(context.Background(), rank, "b"))
			}()
		}
		all.Wait()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	err := s.Barrier(ctx, 1, "b")
	assert.Equal(t, status.Timeout, status.CodeOf(err))
	assert.ErrorContains(t, err, "[0 2]")
	require.NoError(t, s.Complete(0))
	done := make(chan error, 1)
	go func() { done <- s.Barrier(context.Background(), 1, "b") }()
	time.Sleep(20 * time.Millisecond)
	require.NoError(t, s.Complete(2))
	require.NoError(t, <-done)
	assert.Error(t, s.Barrier(context.Background(), 0, "b"))
}

func TestABarrierSaysWhoWaitsElsewhere(t *testing.T) {
	s := newServer(t, true, 1, 4)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	other := make(chan error)
	go func() { other <- s.Barrier(ctx, 4, "evening") }()
	for {
		s.mu.Lock()
		waits := s.barriers["evening"] != nil
		s.mu.Unlock()
		if waits {
			break
		}
		time.Sleep(time.Millisecond)
	}
	past, end := context.WithDeadline(context.Background(), time.Now())
	defer end()
	assert.EqualError(t, s.Barrier(past, 1, "morning"), `barrier "morning": trainers of ranks [4] have not come; rank 4 waits at "evening"`)
	cancel()
	assert.ErrorContains(t, <-other, "ranks [1]")
}

func TestARefusedStepFailsForAll(t *testing.T) {
	s := newServer(t, true, 0, 1)
	ids, ones := memory[int64](1), memory[float32](dim)
	copy(ids, []int64{0})
	copy(ones, []float32{1, 1, 1, 1})
	refuse := func(rank int, step int64) <-chan reply {
		in := &Incoming{From: rank, Header: (&request.Head{Op: request.Refuse, Step: step, Seen: -1}).Encode()}
		got := make(chan reply, 2)
		in.Reply = func(_ []byte, err error) { got <- reply{err: err} }
		s.Handle(in)
		return got
	}
	refused := refuse(1, 1)
	assert.Empty(t, refused, "it waits for the push of rank 0")
	for _, r := range []reply{<-push(s, 0, 1, ids, ones), <-refused} {
		require.Error(t, r.err)
		assert.Equal(t, status.Refused, status.CodeOf(r.err))
		assert.Contains(t, r.err.Error(), "[1]")
	}
	assert.Zero(t, pull(t, s, 0, 0)[0])
	first := push(s, 0, 1, ids, ones) // the step again
	for _, r := range []reply{<-push(s, 1, 1, ids, ones), <-first} {
		require.NoError(t, r.err)
	}
	assert.InDelta(t, -0.2, pull(t, s, 0, 0)[0], 1e-6)
}

func TestATableCountsItsOwnSteps(t *testing.T) {
	s := newServer(t, false, 0)
	second, err := s.Declare(0, meta("second"))
	require.NoError(t, err)
	ids, ones := memory[int64](1), memory[float32](dim)
	copy(ids, []int64{0})
	copy(ones, []float32{1, 1, 1, 1})
	for range 3 {
		require.NoError(t, (<-push(s, 0, 0, ids, ones)).err)
	}
	in := request.Head{Op: request.Push, Seen: -1, Tables: []request.TableRows{{Table: second, Rate: math.NaN()}}}
	require.NoError(t, (<-send(s, 0, in, ids, ones, nil)).err) // its ids are all of other servers
	steps := func(i int) int64 { return s.Tables.All()[i].Table.Steps() }
	assert.Equal(t, []int64{4, 1}, []int64{steps(0), steps(1)})
}
