package server

import (
	"context"
	"math/rand"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/ps/request"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// numbered is a push of a trainer, with the number of its update.
func numbered(s *Server, from int, number int64) <-chan reply {
	ids, ones := outside[int64](7), outside[float32](1, 1, 1, 1)
	return send(s, from, request.Head{Op: request.Push, Seen: -1, Number: number}, ids, ones, nil)
}

func written(s *Server, from int, number int64, value float32) <-chan reply {
	ids, row := outside[int64](9), outside[float32](value, value, value, value)
	return send(s, from, request.Head{Op: request.Write, Number: number}, ids, row, nil)
}

func ok(t *testing.T, c <-chan reply) {
	t.Helper()
	select {
	case r := <-c:
		require.NoError(t, r.err)
	case <-time.After(10 * time.Second):
		require.Fail(t, "no reply")
	}
}

func held(t *testing.T, s *Server, from int) Point {
	t.Helper()
	p, err := s.Hold(context.Background(), from)
	require.NoError(t, err)
	return p
}

func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestAHoldKeepsUpdatesAndLetsThoseOfItsPointThrough(t *testing.T) {
	s := newServer(t, false, 0, 3)
	ok(t, numbered(s, 0, 1))
	ok(t, numbered(s, 3, 1))
	assert.Equal(t, Point{Updates: []int64{1, 1}}, held(t, s, 0))
	second, third, write := numbered(s, 0, 2), numbered(s, 0, 3), written(s, 3, 2, 5)
	assert.InDelta(t, -0.2, pull(t, s, 3, 7)[0], 1e-6, "pulls go on")
	assert.False(t, arrived(second) || arrived(third) || arrived(write))
	assert.Equal(t, 3, s.Statistics().Queue)

	// Another server has the second push of rank 0, and two of rank 3, one of which is on its way
	// here.
	reached := make(chan error, 1)
	go func() { reached <- s.Reach(soon(t), 0, Point{Updates: []int64{2, 3}}) }()
	ok(t, second)
	ok(t, write)
	ok(t, numbered(s, 3, 3))
	require.NoError(t, <-reached)
	assert.InDelta(t, -0.4, pull(t, s, 3, 7)[0], 1e-6)
	assert.False(t, arrived(third))
	s.Release(3) // it is not the hold of rank 3
	assert.False(t, arrived(third))
	s.Release(0)
	ok(t, third)
	ok(t, numbered(s, 0, 4))
	assert.Equal(t, Point{Updates: []int64{4, 3}}, held(t, s, 3))
}

// What is refused has come, too: nobody waits for it. It does not overtake.
func TestAHoldCountsWhatIsRefused(t *testing.T) {
	s := newServer(t, false, 0)
	require.Error(t, (<-send(s, 0, request.Head{Op: request.Push, Number: 1, Tables: []request.TableRows{{Table: 8}}}, nil, nil, nil)).err)
	assert.Equal(t, Point{Updates: []int64{1}}, held(t, s, 0))
	good := numbered(s, 0, 2)
	between := send(s, 0, request.Head{Op: request.LookZeros, Step: request.AfterPush, Seen: -1}, outside[int64](7), nil, memory[float32](dim))
	bad := send(s, 0, request.Head{Op: request.Push, Number: 3, Tables: []request.TableRows{{Table: 8}}}, nil, nil, nil)
	after := send(s, 0, request.Head{Op: request.Pull, Step: request.AfterPush, Seen: -1}, outside[int64](7), nil, memory[float32](dim))
	assert.False(t, arrived(good) || arrived(between) || arrived(bad) || arrived(after))
	require.NoError(t, s.Reach(soon(t), 0, Point{Updates: []int64{2}}))
	ok(t, good)
	ok(t, between) // a lookup changes nothing, so the hold lets it through
	assert.False(t, arrived(bad) || arrived(after))
	s.Release(0)
	require.Error(t, (<-bad).err)
	ok(t, after)
}

func TestAHoldOfSynchronousSteps(t *testing.T) {
	s := newServer(t, true, 0, 1)
	first := numbered(s, 0, 1)
	ok(t, numbered(s, 1, 1))
	ok(t, first)
	// Rank 0 is a step ahead, and waits for rank 1, which is in ps.save: nobody waits for that
	// push.
	ahead := numbered(s, 0, 2)
	assert.Equal(t, Point{Steps: 1, Updates: []int64{0, 0}}, held(t, s, 1))
	require.NoError(t, s.Reach(soon(t), 1, Point{Steps: 1, Updates: []int64{0, 0}}))
	last := numbered(s, 1, 2)
	assert.False(t, arrived(ahead) || arrived(last))
	s.Release(1)
	ok(t, ahead)
	ok(t, last)

	// Another server has applied the next step. A write that its trainer sent after it is kept with
	// it.
	held(t, s, 1)
	ahead = numbered(s, 0, 3)
	later := send(s, 0, request.Head{Op: request.Write, Step: request.AfterPush, Number: 4}, outside[int64](9), outside[float32](5, 5, 5, 5), nil)
	reached := make(chan error, 1)
	go func() { reached <- s.Reach(soon(t), 1, Point{Steps: 3, Updates: []int64{0, 0}}) }()
	ok(t, numbered(s, 1, 3))
	ok(t, ahead)
	require.NoError(t, <-reached)
	assert.False(t, arrived(later), "no server has it yet")
	s.Release(1)
	ok(t, later)
	assert.Equal(t, Point{Steps: 3, Updates: []int64{4, 0}}, held(t, s, 0))
}

func TestHowAHoldEnds(t *testing.T) {
	s := newServer(t, false, 0, 1)
	waits := func(end func()) {
		t.Helper()
		kept := send(s, 1, request.Head{Op: request.Push, Seen: -1}, outside[int64](7), outside[float32](1, 1, 1, 1), nil)
		assert.False(t, arrived(kept))
		end()
		ok(t, kept)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	_, err := s.Hold(ctx, 0)
	require.NoError(t, err)
	waits(func() {}) // after the deadline
	assert.Equal(t, status.Timeout, status.CodeOf(s.Reach(soon(t), 0, Point{Updates: []int64{0, 0}})))

	held(t, s, 0)
	held(t, s, 1) // it takes the place of the other
	assert.Equal(t, status.Timeout, status.CodeOf(s.Reach(soon(t), 0, Point{Updates: []int64{0, 0}})))
	s.Release(0)
	waits(func() { s.Release(1) })

	// What another server has does not come.
	held(t, s, 1)
	ctx, cancel = context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	err = s.Reach(ctx, 1, Point{Updates: []int64{0, 9}})
	assert.Equal(t, status.Timeout, status.CodeOf(err), "%v", err)
	s.Release(1)

	// Its trainer has died, and it does not wait for what will not come.
	held(t, s, 1)
	reached := make(chan error, 1)
	go func() { reached <- s.Reach(soon(t), 1, Point{Updates: []int64{9, 0}}) }()
	s.Lost(0, status.New(status.PeerDied, "rank 0 died"))
	require.NoError(t, <-reached)
	s.Release(1)

	s = newServer(t, false, 0, 1)
	held(t, s, 0)
	waits(func() { s.Lost(0, status.New(status.PeerDied, "rank 0 died")) })

	held(t, s, 1)
	kept, died := numbered(s, 1, 1), status.New(status.PeerDied, "a server died")
	s.Fail(died)
	assert.Equal(t, error(died), (<-kept).err)
	_, err = s.Hold(context.Background(), 1)
	assert.Equal(t, error(died), err)
}

func TestPointsAreJoined(t *testing.T) {
	p, err := Point{3, []int64{1, 9}}.Join(Point{4, []int64{2, 0}})
	require.NoError(t, err)
	assert.Equal(t, Point{4, []int64{2, 9}}, p)
	_, err = p.Join(Point{Updates: []int64{1}})
	assert.Error(t, err)
}

// Trainers push to two servers, and write, while cuts are made: both servers have the same at each.
func TestServersStandAtTheSamePoint(t *testing.T) {
	for _, synchronous := range []bool{true, false} {
		servers := []*Server{newServer(t, synchronous, 0, 1, 2), newServer(t, synchronous, 0, 1, 2)}
		var trainers sync.WaitGroup
		stop := make(chan struct{})
		for from := range 3 {
			trainers.Add(1)
			go func() {
				defer trainers.Done()
				random := rand.New(rand.NewSource(int64(from)))
				for number := int64(1); ; number++ {
					var replies []<-chan reply
					write := from == 0 && random.Intn(2) == 0
					for _, s := range servers {
						if write {
							replies = append(replies, written(s, from, number, float32(number)))
						} else {
							replies = append(replies, numbered(s, from, number))
						}
						time.Sleep(time.Duration(random.Intn(300)) * time.Microsecond)
					}
					for _, c := range replies {
						if r := <-c; r.err != nil {
							assert.Equal(t, status.NotInitialized, status.CodeOf(r.err), "%v", r.err)
							return
						}
					}
					select {
					case <-stop:
						return
					default:
					}
				}
			}()
		}
		var before []float32
		moved := 0
		for range 200 {
			to := held(t, servers[0], 1)
			to, err := to.Join(held(t, servers[1], 1))
			require.NoError(t, err)
			reached := make(chan error, 1)
			go func() { reached <- servers[1].Reach(soon(t), 1, to) }()
			require.NoError(t, servers[0].Reach(soon(t), 1, to))
			mine := pull(t, servers[0], 1, 7, 9)
			servers[0].Release(1)
			require.NoError(t, <-reached)
			assert.Equal(t, mine, pull(t, servers[1], 1, 7, 9))
			servers[1].Release(1)
			if before == nil || before[0] != mine[0] {
				moved++
			}
			before = mine
			time.Sleep(time.Millisecond)
		}
		assert.Greater(t, moved, 20)
		close(stop)
		for _, s := range servers {
			s.Fail(status.New(status.NotInitialized, "the test ends"))
		}
		trainers.Wait()
	}
}
