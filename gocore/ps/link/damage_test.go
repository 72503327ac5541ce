package link

import (
	"bytes"
	"math"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/comm"
	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// damagedWorld has server 0, trainer 1, which is damaged, and trainer 2, whose requests go on.
// After damage the server has an error that names rank 1, and so has rank 1 itself.
func damagedWorld(t *testing.T, nodes []int, text string, damage func(m *member)) {
	found, over := make(chan struct{}), make(chan struct{})
	ranks(t, nodes, []int{0}, func(m *member) {
		switch m.rank {
		case 0:
			m.links.Serve(echo)
			assert.Eventually(m, func() bool { return m.links.Lost(1) != nil }, 10*time.Second, time.Millisecond)
			err, other := m.links.Lost(1), m.links.Lost(2)
			close(found) // rank 2 may close its links from here on
			require.Error(m, err)
			assert.Equal(m, status.GroupBroken, status.CodeOf(err))
			assert.Equal(m, []int{1}, err.(*status.Error).Ranks)
			assert.ErrorContains(m, err, "a request of the trainer on rank 1 cannot be: ")
			assert.ErrorContains(m, err, text)
			assert.NoError(m, other)
		case 1:
			_, err := m.ask(&Request{Header: []byte("good")}).Wait(soon(), nil)
			require.NoError(m, err)
			damage(m)
			<-found // else the next request would hide it
			assert.Eventually(m, func() bool {
				p, err := m.links.Start(0, &Request{})
				if err == nil {
					_, err = p.Wait(soon(), nil)
				}
				return status.CodeOf(err) == status.GroupBroken
			}, 10*time.Second, time.Millisecond)
			_, err = m.links.Start(0, &Request{})
			assert.Equal(m, []int{1}, err.(*status.Error).Ranks)
			m.probe <- struct{}{}
		case 2:
			select {
			case <-m.probe:
				_, err := m.ask(&Request{Header: []byte("good")}).Wait(soon(), nil)
				assert.NoError(m, err)
			case <-time.After(30 * time.Second): // rank 1 has failed
				assert.Fail(m, "nothing was damaged")
			}
			close(over)
		}
		<-over
	})
}

func TestADamagedRing(t *testing.T) {
	good := func(s *sharedOutlet) place { return s.place() }
	region := func(change func(*[regions]place)) func(s *sharedOutlet) {
		return func(s *sharedOutlet) {
			var places [regions]place
			places[regionValues] = good(s)
			change(&places)
			s.ring.slots[3].store(5, places)
			s.ring.enter(2, 3)
		}
	}
	for text, damage := range map[string]func(s *sharedOutlet){
		"slot 200 of 16":                        func(s *sharedOutlet) { s.ring.enter(2, 200) },
		"request number 18 while 2 is next":     func(s *sharedOutlet) { s.ring.enter(18, 0) },
		"request number 72057594037927935 whi":  func(s *sharedOutlet) { atomic.StoreUint64(&s.ring.order[2], math.MaxUint64) },
		"a header of 65537 bytes":               func(s *sharedOutlet) { s.ring.slots[3].store(MaxHeader+1, [regions]place{}); s.ring.enter(2, 3) },
		"a header of 18446744073709551615":      func(s *sharedOutlet) { s.ring.slots[3].store(-1, [regions]place{}); s.ring.enter(2, 3) },
		"a region of -8 bytes":                  region(func(p *[regions]place) { p[regionIDs].bytes = -8 }),
		"a region of 17179869185 bytes":         region(func(p *[regions]place) { p[regionAnswer].bytes = MaxRegion + 1 }),
		"ids of 12 bytes":                       region(func(p *[regions]place) { p[regionIDs].bytes = 12 }),
		"Values: 128 bytes at 9223372036854775": region(func(p *[regions]place) { p[regionValues].offset = math.MaxInt64 - 1 }),
		"Values: 17179869184 bytes at":          region(func(p *[regions]place) { p[regionValues].bytes = MaxRegion }),
		"Values: 128 bytes at -1 are not in":    region(func(p *[regions]place) { p[regionValues].offset = -1 }),
		"has no segment of generation 77":       region(func(p *[regions]place) { p[regionValues].generation = 77 }),
		"has no segment of generation 0":        region(func(p *[regions]place) { p[regionAnswer] = place{bytes: 1} }),
		"which is not aligned to 8": region(func(p *[regions]place) {
			p[regionIDs] = p[regionValues]
			p[regionIDs].offset++
			p[regionIDs].bytes = 8
		}),
	} {
		t.Run(text, func(t *testing.T) {
			damagedWorld(t, []int{0, 0, 0}, text, func(m *member) {
				s := m.links.outlets[0].by.(*sharedOutlet)
				damage(s)
				s.wakeServer()
			})
		})
	}
	t.Run("a slot twice", func(t *testing.T) {
		ranks(t, []int{0, 0}, []int{0}, func(m *member) {
			if m.rank == 0 {
				came := make(chan *Incoming, 2)
				m.links.Serve(func(in *Incoming) { came <- in })
				in := <-came
				m.probe <- struct{}{}
				require.Eventually(m, func() bool { return m.links.Lost(1) != nil }, 10*time.Second, time.Millisecond)
				assert.ErrorContains(m, m.links.Lost(1), "request 2 in slot 0, where one is under way")
				in.Reply(nil, nil)
				m.probe <- struct{}{}
				return
			}
			p := m.ask(&Request{})
			s := m.links.outlets[0].by.(*sharedOutlet)
			<-m.probe
			s.ring.enter(2, 0)
			s.wakeServer()
			_, err := p.Wait(soon(), nil)
			if err != nil { // else the reply was first
				assert.Equal(m, status.GroupBroken, status.CodeOf(err))
			}
			<-m.probe
		})
	})
}

// wakeServer rings the bell.
func (s *sharedOutlet) wakeServer() {
	atomic.AddUint32(&s.door.bell, 1)
	wake(&s.door.bell)
}

func TestADamagedDoor(t *testing.T) {
	for text, damage := range map[string]func(d *door){
		"has no segment of generation 99": func(d *door) { atomic.StoreUint64(&d.generation, 99) },
		"bytes at 1048576 are not in":     func(d *door) { atomic.StoreInt64(&d.offset, 1<<20) }, // before the first segment
	} {
		t.Run(text, func(t *testing.T) {
			ranks(t, []int{0, 0}, []int{0}, func(m *member) {
				if m.rank == 0 {
					m.links.Serve(echo)
					require.Eventually(m, func() bool { return m.links.Lost(1) != nil }, 10*time.Second, time.Millisecond)
					assert.Equal(m, status.GroupBroken, status.CodeOf(m.links.Lost(1)))
					assert.ErrorContains(m, m.links.Lost(1), text)
					m.probe <- struct{}{}
					return
				}
				s := m.links.outlets[0].by.(*sharedOutlet)
				atomic.StoreUint64(&s.door.generation, s.place().generation)
				damage(s.door)
				s.wakeServer()
				<-m.probe
				_, err := m.links.Start(0, &Request{})
				assert.Equal(m, status.GroupBroken, status.CodeOf(err))
				assert.ErrorContains(m, err, "it has found requests of this rank that cannot be")
			})
		})
	}
}

// A server that is damaged causes an error on its trainers.
func TestADamagedAnswer(t *testing.T) {
	answer := func(n, failed uint32) func(s *sharedInlet, in *Incoming) {
		return func(s *sharedInlet, in *Incoming) {
			to := &s.ring.slots[in.credit]
			atomic.StoreUint32(&to.answer, n)
			atomic.StoreUint32(&to.failed, failed)
			atomic.StoreUint32(&to.answered, uint32(in.seq))
			s.rouse()
		}
	}
	for text, damage := range map[string]func(s *sharedInlet, in *Incoming){
		"a header of 65537 bytes":    answer(MaxHeader+1, 0),
		"of 10 bytes, of kind 2":     answer(10, 2),
		"12 bytes that are no error": answer(12, 1),
		"answer number 99 in the slot of": func(s *sharedInlet, in *Incoming) {
			atomic.StoreUint32(&s.ring.slots[in.credit].answered, 99)
			s.rouse()
		},
		"4711 as the reason why it ends": func(s *sharedInlet, in *Incoming) { atomic.StoreUint32(&s.door.verdict, 4711); s.rouse() },
		"answer number 4294967295 in the s": func(s *sharedInlet, in *Incoming) {
			atomic.StoreUint32(&s.ring.slots[in.credit].answered, math.MaxUint32)
			s.rouse()
		},
	} {
		t.Run(text, func(t *testing.T) {
			ranks(t, []int{0, 0}, []int{0}, func(m *member) {
				if m.rank == 0 {
					m.links.Serve(func(in *Incoming) { damage(in.inlet.by.(*sharedInlet), in) })
					<-m.probe
					return
				}
				p := m.ask(&Request{})
				_, err := p.Wait(soon(), nil)
				require.Equal(m, status.GroupBroken, status.CodeOf(err))
				assert.False(m, p.Answered())
				assert.ErrorContains(m, err, "a request to the server on rank 0: its answer cannot be: ")
				assert.ErrorContains(m, err, text)
				assert.Equal(m, []int{0}, err.(*status.Error).Ranks)
				_, err = m.links.Start(0, &Request{})
				assert.Equal(m, status.GroupBroken, status.CodeOf(err))
				m.probe <- struct{}{}
			})
		})
	}
}

// raw sends bytes as they are.
func (m *member) raw(to, tag int, b []byte) {
	block, err := mem.Alloc(int64(len(b)))
	require.NoError(m, err)
	defer mem.Free(block)
	copy(bytesOf(block, int64(len(b))), b)
	r, err := m.links.comm.Send(block, int64(len(b)), int32(to), int32(tag))
	require.NoError(m, err)
	defer m.links.comm.Release(r)
	require.Eventually(m, func() bool { return transport.Over(m.links.comm, r) }, 20*time.Second, time.Millisecond)
	require.NoError(m, m.links.comm.Err(r))
}

// message makes the bytes of a message with n bytes after its head.
func message(h head, n int) []byte {
	b := make([]byte, headBytes+n)
	h.put(b)
	return b
}

func TestADamagedMessage(t *testing.T) {
	for text, send := range map[string]func(m *member){
		"a message of 3 bytes":                             func(m *member) { m.raw(0, tagHead, []byte("abc")) },
		"a message of 0 bytes":                             func(m *member) { m.raw(0, tagHead, nil) },
		"a message of kind 0x61616161":                     func(m *member) { m.raw(0, tagHead, bytes.Repeat([]byte("a"), 64)) },
		"a message of kind 0x70736c03":                     func(m *member) { m.raw(0, tagHead, message(head{kind: kindAnswer}, 0)) },
		"request number 1 while 2 is next":                 func(m *member) { m.raw(0, tagHead, message(head{kind: kindRequest, seq: 1}, 0)) },
		"credit 16 of 16":                                  func(m *member) { m.raw(0, tagHead, message(head{kind: kindRequest, seq: 2, credit: 16}, 0)) },
		"a header of 65537 bytes":                          func(m *member) { m.raw(0, tagHead, message(head{kind: kindRequest, seq: 2, header: MaxHeader + 1}, 0)) },
		"a message of 64 bytes, of which its head says 74": func(m *member) { m.raw(0, tagHead, message(head{kind: kindRequest, seq: 2, header: 10}, 0)) },
		"a region of 17179869185 bytes": func(m *member) {
			m.raw(0, tagHead, message(head{kind: kindRequest, seq: 2, sizes: [3]int64{0, 0, MaxRegion + 1}}, 0))
		},
		"a region of -1 bytes": func(m *member) {
			m.raw(0, tagHead, message(head{kind: kindRequest, seq: 2, sizes: [3]int64{-1, 0, 0}}, 0))
		},
		"ids of 9 bytes": func(m *member) {
			m.raw(0, tagHead, message(head{kind: kindRequest, seq: 2, sizes: [3]int64{9, 0, 0}}, 9))
		},
		"with credit 0, which is in use": func(m *member) {
			m.raw(0, tagHead, message(head{kind: kindRequest, seq: 2, sizes: [3]int64{0, 50_000, 0}}, 0))
			m.raw(0, tagHead, message(head{kind: kindRequest, seq: 3, sizes: [3]int64{0, 50_000, 0}}, 0))
		},
		"50 bytes where 50000 were told": func(m *member) {
			m.raw(0, tagHead, message(head{kind: kindRequest, seq: 2, sizes: [3]int64{0, 50_000, 0}}, 0))
			m.raw(0, tagValues, make([]byte, 50))
		},
		"a buffer of 20000": func(m *member) {
			m.raw(0, tagHead, message(head{kind: kindRequest, seq: 2, sizes: [3]int64{0, 20_000, 0}}, 0))
			m.raw(0, tagValues, make([]byte, 20_001))
		},
		"a buffer of 81984": func(m *member) { m.raw(0, tagHead, make([]byte, mostMessage+1)) },
	} {
		t.Run(text, func(t *testing.T) { damagedWorld(t, []int{0, 1, 1}, text, send) })
	}
}

func TestADamagedAnswerByMPI(t *testing.T) {
	failed := head{kind: kindFailed, seq: 1, header: 12}
	for text, send := range map[string]func(m *member){
		"a message of 3 bytes":                  func(m *member) { m.raw(1, tagAnswer, []byte("abc")) },
		"a message of kind 0x70736c01":          func(m *member) { m.raw(1, tagAnswer, message(head{kind: kindRequest, seq: 1}, 0)) },
		"for request 7 with credit 0; that was": func(m *member) { m.raw(1, tagAnswer, message(head{kind: kindAnswer, seq: 7}, 0)) },
		"for request 1 with credit 3; that was": func(m *member) { m.raw(1, tagAnswer, message(head{kind: kindAnswer, seq: 1, credit: 3}, 0)) },
		"an answer of 8 bytes where 50000 were": func(m *member) {
			m.raw(1, tagAnswer, message(head{kind: kindAnswer, seq: 1, sizes: [3]int64{0, 0, 8}}, 8))
		},
		"7 bytes of an answer of 50000": func(m *member) {
			m.raw(1, tagAnswer, message(head{kind: kindAnswer, seq: 1, sizes: [3]int64{0, 0, 50_000}}, 0))
			m.raw(1, tagPayload, make([]byte, 7))
		},
		"a buffer of 50000": func(m *member) {
			m.raw(1, tagAnswer, message(head{kind: kindAnswer, seq: 1, sizes: [3]int64{0, 0, 50_000}}, 0))
			m.raw(1, tagPayload, make([]byte, 50_001))
		},
		"7 bytes of an answer of 0":     func(m *member) { m.raw(1, tagAnswer, message(failed, 12)); m.raw(1, tagPayload, make([]byte, 7)) },
		"12 bytes that are no error":    func(m *member) { m.raw(1, tagAnswer, message(failed, 12)); m.raw(1, tagPayload, nil) },
		"of 1025 bytes as its last one": func(m *member) { m.raw(1, tagBye, make([]byte, mostBye+1)) },
		"a last message that is none":   func(m *member) { m.raw(1, tagBye, make([]byte, 100)) },
	} {
		t.Run(text, func(t *testing.T) {
			ranks(t, []int{0, 1}, []int{0}, func(m *member) {
				if m.rank == 0 {
					<-m.probe
					send(m)
					if text[0] == 'a' && text[2] == 'm' || text[0] == 'f' || text[:2] == "an" {
						m.raw(1, tagPayload, nil) // so that the trainer's receive ends
					}
					<-m.probe
					return
				}
				answer := m.memory(make([]byte, 50_000))
				p := m.ask(&Request{Answer: all(answer)})
				m.probe <- struct{}{}
				_, err := p.Wait(soon(), nil)
				require.Equal(m, status.GroupBroken, status.CodeOf(err), "%v", err)
				assert.False(m, p.Answered())
				assert.ErrorContains(m, err, "a request to the server on rank 0: its answer cannot be: ")
				assert.ErrorContains(m, err, text)
				assert.Equal(m, []int{0}, err.(*status.Error).Ranks)
				answer.Free()
				m.probe <- struct{}{}
			})
		})
	}
}

// A server by MPI tells a trainer that it throws its messages away, also one whose pair is another
// way.
func TestAMessageOfAStranger(t *testing.T) {
	over := make(chan struct{})
	ranks(t, []int{0, 0, 1}, []int{0}, func(m *member) {
		switch m.rank {
		case 0:
			m.links.Serve(echo)
		case 1: // uses shared memory
			m.raw(0, tagHead, make([]byte, 100))
			_, err := m.ask(&Request{}).Wait(soon(), nil)
			assert.NoError(m, err)
			m.probe <- struct{}{}
		case 2:
			<-m.probe
			_, err := m.ask(&Request{}).Wait(soon(), nil)
			assert.NoError(m, err)
			close(over)
		}
		<-over
	})
}

func FuzzHead(f *testing.F) {
	f.Add(message(head{kind: kindRequest, seq: 2, header: 3, sizes: [3]int64{8, 8, 8}}, 19))
	f.Add(message(head{kind: kindFailed, header: 20}, 20))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := readHead(b)
		if err != nil {
			assert.Equal(t, status.GroupBroken, status.CodeOf(err))
			return
		}
		rest := int64(len(b)) - headBytes - h.inline()
		assert.Equal(t, h.header, rest)
		again := make([]byte, headBytes)
		h.put(again)
		_, err = readHead(append(again, b[headBytes:]...))
		assert.NoError(t, err)
	})
}

func FuzzError(f *testing.F) {
	f.Add(status.Pack(status.New(status.PeerDied, "x").WithRanks(1, 2)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, ok := status.Unpack(b); ok {
			again, ok := status.Unpack(status.Pack(e))
			require.True(t, ok)
			assert.Equal(t, e.Ranks, again.Ranks)
			assert.Equal(t, e.Code, again.Code)
			assert.NotContains(t, e.Msg, "\x1b")
		}
	})
}

// FuzzRing spoils the words of a door and a ring between the requests of a trainer, which either go
// on or end with errors, on both sides.
func FuzzRing(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3}, uint16(100))
	f.Add([]byte{8, 0, 0, 1, 9, 0, 0, 255}, uint16(1))
	var groups [2]*group.Group
	require.NoError(f, mpifake.Each(mpifake.New(2), func(r int, lib mpi.Library) error {
		e, err := world.NewEnv(mpifake.World(lib), 20*time.Second, nil)
		if err == nil {
			groups[r], err = group.World(e, 0, 10*time.Second)
		}
		return err
	}))
	f.Fuzz(func(t *testing.T, spoil []byte, size uint16) {
		over := make(chan struct{})
		go func() {
			defer close(over)
			l, err := Open(comm.Members{Members: groups[0].Members()}, []int{0}, 10*time.Second)
			if assert.NoError(t, err) {
				l.Serve(echo)
				for i := 0; l.Lost(1) == nil && i < 2000; i++ {
					time.Sleep(time.Millisecond)
				}
				assert.Error(t, l.Lost(1))
				assert.NoError(t, l.Close())
			}
		}()
		l, err := Open(comm.Members{Members: groups[1].Members()}, []int{0}, 10*time.Second)
		require.NoError(t, err)
		s := l.outlets[0].by.(*sharedOutlet)
		spoilRing(l, s, spoil, int64(size)+1)
		_ = l.Close()
		<-over
		if !s.gone { // who is damaged may not see that the server has left
			_ = s.heap.Free(unsafe.Pointer(s.ring))
			s.free()
		}
	})
}

func spoilRing(l *Links, s *sharedOutlet, spoil []byte, size int64) {
	values, answer := must(l.Memory(size)), must(l.Memory(size))
	defer values.Free()
	defer answer.Free()
	for ; len(spoil) >= 4; spoil = spoil[4:] {
		p, err := l.Start(0, &Request{Header: spoil[:min(len(spoil), MaxHeader)], Values: all(values), Answer: all(answer), Deadline: time.Now().Add(time.Second)})
		if err != nil {
			return
		}
		words := bytesOf(unsafe.Pointer(s.ring), int64(unsafe.Offsetof(ring{}.requests)))
		if spoil[0]&8 != 0 {
			words = bytesOf(unsafe.Pointer(s.door), doorBytes)
		}
		words[(int(spoil[1])<<8|int(spoil[2]))%len(words)] ^= spoil[3]
		if spoil[0]&1 != 0 {
			s.wakeServer()
		}
		if _, err := p.Wait(time.Now().Add(100*time.Millisecond), nil); err != nil {
			return
		}
	}
}

// If MPI takes no transfer of a request, the caller is told and the server is as it was. If it has taken some, nobody
// knows what the server has, so no further request goes to it.
func TestARequestThatMPIDoesNotTake(t *testing.T) {
	for taken, refused := range map[bool]func(tag int32) bool{
		false: func(tag int32) bool { return tagAnswer <= tag && tag < tagPayload },
		true:  func(tag int32) bool { return tag == tagHead },
	} {
		var fails atomic.Bool
		refuses := mpifake.WithHook(func(rank, _ int, c *mpi.Call) (time.Duration, error) {
			if rank == 1 && fails.Load() && refused(c.Tag) {
				return 0, status.New(status.MPI, "not now")
			}
			return 0, nil
		})
		ranks(t, []int{0, 1}, []int{0}, func(m *member) {
			if m.rank == 0 {
				m.links.Serve(echo)
				<-m.probe
				return
			}
			_, err := m.ask(&Request{Header: []byte("good")}).Wait(soon(), nil)
			require.NoError(m, err)
			fails.Store(true)
			p, err := m.links.Start(0, &Request{Header: []byte("lost")})
			fails.Store(false)
			assert.Equal(m, taken, err == nil)
			if err == nil {
				_, err = p.Wait(soon(), nil)
			}
			assert.ErrorContains(m, err, "not now")
			if p, err = m.links.Start(0, &Request{Header: []byte("next")}); err == nil {
				_, err = p.Wait(soon(), nil)
			}
			if taken {
				assert.ErrorContains(m, err, "not now")
			} else {
				assert.NoError(m, err)
			}
			m.probe <- struct{}{}
		}, refuses)
	}
}
