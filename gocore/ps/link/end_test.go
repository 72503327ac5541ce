package link

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/comm"
	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// used returns how much of this process's heap is allocated.
func used(t *testing.T) int64 {
	h, err := heap.OfProcess()
	require.NoError(t, err)
	_, n, _ := h.Sizes()
	return n
}

func TestAllMemoryIsGivenBack(t *testing.T) {
	before := used(t)
	eachWay(t, func(m *member, asks bool, done *sync.WaitGroup) {
		if m.rank == 0 {
			m.links.Serve(echo)
		}
		if asks {
			answer := m.memory(make([]byte, 40_000))
			for range 3 * Credits {
				_, err := m.ask(&Request{Answer: all(answer)}).Wait(soon(), nil)
				require.NoError(m, err)
			}
			answer.Free()
		}
		finish(done)
	})
	assert.Equal(t, before, used(t))
}

// A server that closes ends the waits of its trainers, and late replies are thrown away.
func TestAServerCloses(t *testing.T) {
	eachWay(t, func(m *member, asks bool, done *sync.WaitGroup) {
		var late *Incoming
		came := make(chan *Incoming, 1)
		if m.rank == 0 {
			m.links.Serve(func(in *Incoming) { came <- in })
		}
		var waits sync.WaitGroup
		if asks {
			values, answer := m.memory(random(50_000)), m.memory(make([]byte, 50_000))
			p := m.ask(&Request{Values: all(values), Answer: all(answer)})
			waits.Add(1)
			go func() {
				defer waits.Done()
				_, err := p.Wait(soon(), nil)
				want, text := status.PeerLeft, "rank 0"
				if m.rank == 0 {
					want, text = status.GroupDestroyed, "the links of this rank were closed"
				}
				assert.Equal(m, want, status.CodeOf(err))
				assert.ErrorContains(m, err, text)
				assert.False(m, p.Answered())
				_, err = m.links.Start(0, &Request{})
				assert.Equal(m, want, status.CodeOf(err))
				values.Free()
				answer.Free()
			}()
		}
		if m.rank == 0 {
			late = <-came
			assert.NoError(m, m.links.Close())
			assert.NoError(m, m.links.Close())
		}
		waits.Wait()
		finish(done)
		if late != nil {
			late.Reply(nil, nil)
		}
	})
}

func TestATrainerCloses(t *testing.T) {
	for name, nodes := range map[string][]int{"shared": {0, 0}, "remote": {0, 1}} {
		t.Run(name, func(t *testing.T) {
			var done sync.WaitGroup
			done.Add(2)
			ranks(t, nodes, []int{0}, func(m *member) {
				came := make(chan *Incoming, 1)
				if m.rank == 0 {
					m.links.Serve(func(in *Incoming) { came <- in })
					in := <-came
					assert.NoError(m, m.links.Lost(1))
					m.probe <- struct{}{}
					require.Eventually(m, func() bool { return m.links.Lost(1) != nil }, 10*time.Second, time.Millisecond)
					err := m.links.Lost(1)
					assert.Equal(m, status.PeerLeft, status.CodeOf(err))
					assert.ErrorContains(m, err, "a request of the trainer on rank 1: that rank has closed its links")
					assert.NoError(m, m.links.Lost(0), "this rank itself")
					<-m.probe
					in.Reply([]byte("nobody waits"), nil)
				} else {
					p := m.ask(&Request{})
					var waits sync.WaitGroup
					waits.Add(1)
					go func() {
						defer waits.Done()
						_, err := p.Wait(soon(), nil)
						assert.Equal(m, status.GroupDestroyed, status.CodeOf(err))
					}()
					<-m.probe
					time.Sleep(20 * time.Millisecond) // so that it usually waits
					assert.NoError(m, m.links.Close())
					waits.Wait()
					m.probe <- struct{}{}
					_, err := m.links.Start(0, &Request{})
					assert.Equal(m, status.GroupDestroyed, status.CodeOf(err))
					assert.NoError(m, m.links.Lost(0), "a rank that is no server")
				}
				finish(&done)
			})
		})
	}
}

// A trainer that has closed has other things where the door was. A server that closes later writes
// nothing there.
func TestAServerClosesAfterItsTrainer(t *testing.T) {
	var done sync.WaitGroup
	done.Add(2)
	ranks(t, []int{0, 0}, []int{0}, func(m *member) {
		if m.rank == 0 {
			m.links.Serve(echo)
			<-m.probe
			assert.NoError(m, m.links.Close())
			m.probe <- struct{}{}
		} else {
			_, err := m.ask(&Request{}).Wait(soon(), nil)
			assert.NoError(m, err)
			place := m.links.outlets[0].by.(*sharedOutlet).door
			assert.NoError(m, m.links.Close())
			before := *place
			m.probe <- struct{}{}
			<-m.probe
			assert.Equal(m, before, *place)
		}
		finish(&done)
	})
}

// The end of the world ends the threads and waits of links that nobody has closed, and finds MPI
// settled.
func TestTheWorldEnds(t *testing.T) {
	for name, nodes := range map[string][]int{"local": {0}, "shared": {0, 0}, "remote": {0, 1}} {
		t.Run(name, func(t *testing.T) {
			var done sync.WaitGroup
			done.Add(len(nodes))
			ranks(t, nodes, []int{0}, func(m *member) {
				came := make(chan *Incoming, 1)
				if m.rank == 0 {
					m.links.Serve(func(in *Incoming) { came <- in })
				}
				var waits sync.WaitGroup
				if m.rank == len(nodes)-1 {
					p := m.ask(&Request{})
					waits.Add(1)
					go func() {
						defer waits.Done()
						_, err := p.Wait(soon(), nil)
						assert.Contains(m, []status.Code{status.GroupDestroyed, status.PeerLeft}, status.CodeOf(err))
					}()
				}
				if m.rank == 0 {
					<-came
				}
				finish(&done)
				settled, err := m.env.Destroy()
				assert.NoError(m, err)
				assert.True(m, settled)
				waits.Wait()
				if m.rank == 0 {
					assert.NotNil(m, m.links.Lost(len(nodes)-1))
				}
				_, err = m.links.Start(0, &Request{})
				assert.Error(m, err)
			})
		})
	}
}

func TestCloseDoesNotWaitForHandlersWithoutEnd(t *testing.T) {
	gate := make(chan struct{})
	eachWay(t, func(m *member, asks bool, done *sync.WaitGroup) {
		inside := make(chan struct{}, 1)
		if m.rank == 0 {
			m.links.Serve(func(in *Incoming) {
				inside <- struct{}{}
				<-gate
				in.Reply(nil, nil)
			})
		}
		if asks {
			m.ask(&Request{})
		}
		if m.rank == 0 {
			<-inside
			assert.ErrorContains(m, m.links.Close(), "a handler of requests had not returned")
			m.ended = true
		}
		finish(done)
	})
	close(gate)
}

func TestOpenRefuses(t *testing.T) {
	open := func(nodes []int, servers func(rank int) []int, timeout time.Duration) []error {
		libs := mpifake.New(len(nodes), mpifake.Nodes(nodes))
		errs := make([]error, len(libs))
		_ = mpifake.Each(libs, func(r int, lib mpi.Library) error {
			e, err := world.NewEnv(mpifake.World(lib), 20*time.Second, nil)
			require.NoError(t, err)
			g, err := group.World(e, 0, 10*time.Second)
			require.NoError(t, err)
			if list := servers(r); list != nil {
				_, errs[r] = Open(comm.Members{Members: g.Members()}, list, timeout)
			}
			return nil
		})
		return errs
	}
	for _, nodes := range [][]int{{0, 0, 0}, {0, 1, 0}} {
		for text, list := range map[string][]int{"is empty": {}, "-1 is no rank": {-1}, "3 is no rank of the group, which has 3": {0, 3}, "1 occurs twice": {1, 0, 1}} {
			errs := open(nodes, func(r int) []int {
				if r == 1 {
					return list
				}
				return []int{0}
			}, 10*time.Second)
			assert.ErrorContains(t, errs[1], text)
			for _, r := range []int{0, 2} {
				assert.Equal(t, status.Refused, status.CodeOf(errs[r]))
				assert.Equal(t, []int{1}, errs[r].(*status.Error).Ranks)
			}
		}
		errs := open(nodes, func(r int) []int { return []int{r / 2} }, 10*time.Second)
		for r, others := range [][]int{{2}, {2}, {0, 1}} {
			assert.Equal(t, status.Mismatch, status.CodeOf(errs[r]))
			assert.Equal(t, others, errs[r].(*status.Error).Ranks)
		}
		errs = open(nodes, func(r int) []int { return [][]int{{0}, {0}, nil}[r] }, 500*time.Millisecond)
		for r := range 2 {
			assert.Equal(t, status.Timeout, status.CodeOf(errs[r]), "%v", errs[r])
			assert.ErrorContains(t, errs[r], "the links to parameter servers")
		}
	}
}

func TestAPanicOfAHandlerIsTold(t *testing.T) {
	eachWay(t, func(m *member, asks bool, done *sync.WaitGroup) {
		told := make(chan any, 1)
		if m.rank == 0 {
			m.env.Engine.Panicked = func(why any) { told <- why }
			m.links.Serve(func(in *Incoming) {
				in.Reply(nil, nil)
				in.Reply(nil, nil)
			})
		}
		if asks {
			_, err := m.ask(&Request{}).Wait(soon(), nil)
			assert.NoError(m, err)
		}
		if m.rank == 0 {
			assert.Equal(m, "link: a second Reply to one request", <-told)
		}
		finish(done)
	})
}
