package window

import (
	"encoding/binary"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// sendRaw sends bytes to rank 0 as a message of windows.
func (m *member) sendRaw(b []byte) {
	on, tag := m.group.Carrier()
	p, err := mem.Alloc(int64(max(1, len(b))))
	require.NoError(m, err)
	copy(unsafe.Slice((*byte)(p), len(b)), b)
	r, err := on.Send(p, int64(len(b)), 0, tag)
	require.NoError(m, err)
	require.Eventually(m, func() bool { return transport.Over(on, r) }, 10*time.Second, time.Millisecond)
}

// message returns the bytes of a message that is right but for change.
func messageOf(h head, at *box, rest int, change func(b []byte)) []byte {
	h.kind, h.seq, h.window, h.dtype = max(h.kind, kindCall), max(h.seq, 1), max(h.window, 1), op.Float32
	h.dims = int32(len(at.shape))
	b := make([]byte, headBytes+len(at.shape)*dimBytes+rest)
	h.put(b, at)
	if change != nil {
		change(b)
	}
	return b
}

// A message that cannot be ends what is under way with its sender, and nothing else.
func TestDamagedMessages(t *testing.T) {
	put := head{code: Put, count: 2, offset: 1}
	for text, b := range map[string][]byte{
		"a message of 0 bytes":                     {},
		"a message of 63 bytes":                    make([]byte, 63),
		"a message of kind 0x0":                    make([]byte, 64),
		"call 7 while 1 is next":                   messageOf(head{code: Put, count: 2, seq: 7}, &box{}, 8, nil),
		"65 dimensions in a message of":            messageOf(put, &box{}, 8, func(b []byte) { binary.LittleEndian.PutUint32(b[56:], 65) }),
		"-1 dimensions":                            messageOf(put, &box{}, 8, func(b []byte) { binary.LittleEndian.PutUint32(b[56:], 1<<32-1) }),
		"1 dimensions in a message of 72 bytes":    messageOf(put, &box{}, 8, func(b []byte) { binary.LittleEndian.PutUint32(b[56:], 1) }),
		"2 elements of the shape [3]":              messageOf(put, &box{shape: []int64{3}, steps: []int64{1}}, 8, nil),
		"2 elements of the shape [-1 -2]":          messageOf(put, &box{shape: []int64{-1, -2}, steps: []int64{1, 1}}, 8, nil),
		"call 5 was carried out, and the last one": messageOf(head{code: Put, count: 2, done: 5}, &box{}, 8, nil),
		"an answer to call 3, which there is not":  messageOf(head{kind: kindAnswer, seq: 3}, &box{}, 0, nil),
	} {
		t.Run(text, func(t *testing.T) {
			ranks(t, []int{0, 1, 2}, func(m *member) {
				own := tensor(op.Float32, make([]float32, 8)...)
				w := m.make(own)
				if m.rank == 1 {
					m.sendRaw(b)
				}
				if m.rank == 0 {
					require.Eventually(m, func() bool {
						m.env.Engine.Tick()
						return status.CodeOf(w.test(Op{Code: Flush, Rank: 1})) == status.GroupBroken
					}, 10*time.Second, time.Millisecond)
					err := w.test(Op{Code: Put, Rank: 1, Send: tensor(op.Float32, float32(1))})
					assert.ErrorContains(m, err, text)
					assert.Equal(m, []int{1}, status.Plain(err).Ranks)
				}
				if m.rank == 2 {
					require.NoError(m, w.test(Op{Code: Put, Rank: 0, Offset: 7, Send: tensor(op.Float32, float32(3))}))
					require.NoError(m, w.test(Op{Code: Flush, Rank: 0}))
				}
				require.NoError(m, collective{Group{m.group.Members(), m.group}, -1, false}.barrier())
				want := make([]float32, 8)
				want[7] = 3
				if m.rank == 0 {
					assert.Equal(m, want, valuesOf[float32](own))
				}
			})
		})
	}
}

// A call that cannot be is answered with an error, and nothing is written.
func TestCallsThatCannotBe(t *testing.T) {
	far := &box{shape: []int64{2}, steps: []int64{1 << 40}}
	for text, b := range map[string][]byte{
		"elements at 7":                     messageOf(head{code: Put, count: 2, offset: 7}, &box{}, 8, nil),
		"elements at -1":                    messageOf(head{code: Put, count: 2, offset: -1}, &box{}, 8, nil),
		"[1099511627776]":                   messageOf(head{code: Put, count: 2}, far, 8, nil),
		"12 bytes of elements where 8":      messageOf(head{code: Put, count: 2}, &box{}, 12, nil),
		"Window.put of 65537 elements":      messageOf(head{code: Put, count: 65537}, &box{}, 8, nil),
		"Window.put of -2 elements":         messageOf(head{code: Put, count: -2}, &box{}, 8, nil),
		"Window.get of 9223372036854775807": messageOf(head{code: Get, count: 1<<63 - 1}, &box{}, 0, nil),
		"operation 77":                      messageOf(head{code: 77, count: 2}, &box{}, 8, nil),
		"operation 13":                      messageOf(head{code: Free, count: 2}, &box{}, 8, nil),
		"op 77 of float32":                  messageOf(head{code: Accumulate, count: 2, reduce: 77}, &box{}, 8, nil),
		"elements of int8":                  messageOf(head{code: Put, count: 2}, &box{}, 8, func(b []byte) { binary.LittleEndian.PutUint32(b[52:], uint32(op.Int8)) }),
		"compare_and_swap of 2":             messageOf(head{code: CompareAndSwap, count: 2}, &box{}, 8, nil),
		"rank 0 has freed the window":       messageOf(head{code: Put, count: 2, window: 99}, &box{}, 8, nil),
	} {
		t.Run(text, func(t *testing.T) {
			ranks(t, []int{0, 1}, func(m *member) {
				own := tensor(op.Float32, make([]float32, 8)...)
				w := m.make(own)
				if m.rank == 1 {
					p := &pending{w: w}
					m.windows.mu.Lock()
					m.windows.post.peers[0].pending[1] = p
					m.windows.post.peers[0].sent = 1
					m.windows.mu.Unlock()
					m.sendRaw(b)
					err := w.test(Op{Code: Flush, Rank: 0})
					assert.ErrorContains(m, err, text)
					assert.NoError(m, w.test(Op{Code: Flush, Rank: 0}))
				}
				require.NoError(m, collective{Group{m.group.Members(), m.group}, -1, false}.barrier())
				assert.Equal(m, make([]float32, 8), valuesOf[float32](own))
			})
		})
	}
}

// A call that announces another one, which does not come, is told of all the same.
func TestTheNextCallDoesNotCome(t *testing.T) {
	ranks(t, []int{0, 1}, func(m *member) {
		own := tensor(op.Float32, make([]float32, 8)...)
		w := m.make(own)
		if m.rank == 1 {
			m.windows.mu.Lock()
			m.windows.post.peers[0].pending[1] = &pending{w: w}
			m.windows.post.peers[0].sent = 1
			m.windows.mu.Unlock()
			m.sendRaw(messageOf(head{code: Put, count: 2, more: true}, &box{}, 8, func(b []byte) { binary.LittleEndian.PutUint32(b[headBytes:], 0x3f800000) }))
			assert.NoError(m, w.test(Op{Code: Flush, Rank: 0, TimeoutNS: int64(5 * time.Second)}))
		}
		w.fenced(m.T)
		if m.rank == 0 {
			assert.Equal(m, float32(1), valuesOf[float32](own)[0])
		}
	})
}

// Before the process ends no receive is posted any more, and calls are carried out all the same.
func TestAMemberThatWantsToEnd(t *testing.T) {
	ranks(t, []int{0, 1}, func(m *member) {
		own := tensor(op.Float32, make([]float32, 8)...)
		w := m.make(own)
		if m.rank == 0 {
			m.windows.Close(true)
			m.windows.mu.Lock()
			assert.False(m, m.windows.post.anyPosted())
			m.windows.mu.Unlock()
		}
		require.NoError(m, collective{Group{m.group.Members(), m.group}, -1, false}.barrier())
		if m.rank == 1 {
			require.NoError(m, w.test(Op{Code: Put, Rank: 0, Send: tensor(op.Float32, float32(1))}))
			assert.Equal(m, status.GroupDestroyed, status.CodeOf(w.test(Op{Code: Flush, Rank: 0})))
		}
	})
}

// Who waits for the lock of wide elements names its holder, and goes on when it is given back.
func TestAHeldWideLock(t *testing.T) {
	for name, nodes := range map[string][]int{"one node": {0, 0, 0}, "two nodes": {0, 1, 0}} {
		t.Run(name, func(t *testing.T) {
			ranks(t, nodes, func(m *member) {
				own := tensor(op.Complex128, complex128(0))
				w := m.make(own)
				wide := word(&w.members.own.block.wide)
				if m.rank == 0 {
					atomic.StoreUint32(wide, 1+2)
				}
				require.NoError(m, collective{Group{m.group.Members(), m.group}, -1, false}.barrier())
				one := tensor(op.Complex128, complex128(1+2i))
				if m.rank == 1 {
					err := w.test(Op{Code: Accumulate, Rank: 0, Reduce: op.Sum, Send: one, TimeoutNS: int64(50 * time.Millisecond)})
					if nodes[1] == 1 {
						require.NoError(m, err)
						err = w.test(Op{Code: Flush, Rank: 0, TimeoutNS: int64(50 * time.Millisecond)})
						assert.Equal(m, []int{0}, status.Plain(err).Ranks)
					} else {
						assert.Equal(m, []int{2}, status.Plain(err).Ranks)
					}
					assert.Equal(m, status.Timeout, status.CodeOf(err))
				}
				require.NoError(m, collective{Group{m.group.Members(), m.group}, -1, false}.barrier())
				if m.rank == 0 {
					atomic.StoreUint32(wide, 0)
				}
				require.NoError(m, w.test(Op{Code: Accumulate, Rank: 0, Reduce: op.Sum, Send: one}))
				w.fenced(m.T)
				if m.rank == 0 {
					assert.Equal(m, complex(float64(3+nodes[1]), 2*float64(3+nodes[1])), valuesOf[complex128](own)[0])
				}
			})
		})
	}
}
