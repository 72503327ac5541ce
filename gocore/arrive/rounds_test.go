package arrive

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// Each member gets the payloads of all, of any length, in as many rounds as the number of nodes needs.
func TestNotesReachEveryMember(t *testing.T) {
	groups := [][][]int{{{0, 1}, {2, 3}}, {{0, 2}, {1, 3}}, {{0, 1}, {2}}, {{0}, {1, 2}, {3, 4, 5}}, {{0, 5}, {1, 4}, {2, 3}}, {{0, 1, 2, 3}, {4}, {5}, {6, 7}, {8, 9}}}
	for n := 1; n <= 17; n++ {
		groups = append(groups, OfOneEach(n))
	}
	for _, nodes := range groups {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			t.Parallel()
			joined := onNodes(t, nodes)
			n := count(nodes)
			assert.NoError(t, mpifake.Each(mpifake.New(n), func(rank int, lib mpi.Library) error {
				w, err := joined(lib)
				if err != nil {
					return err
				}
				block, err := mem.Alloc(WirePair)
				if err != nil {
					return err
				}
				defer mem.Free(block)
				for seq := uint64(1); seq <= 20; seq++ {
					length := func(member int) int64 { return (int64(seq) * int64(member+1) * 13313) % (w.Rooms().Payload + 1) }
					mine := unsafe.Slice((*byte)(block), WirePair)[:length(rank)]
					for i := range mine {
						mine[i] = byte(rank + i + int(seq))
					}
					state, res, err := w.Announce(seq, &Signature{7}, 0, Payload{Data: block, Bytes: length(rank), Told: [2]uint64{seq << rank, uint64(rank)}}, 0)
					clear(mine) // the payload was copied
					for state == Pending && err == nil {
						time.Sleep(time.Microsecond)
						state, res, err = w.Poll(0)
					}
					if !assert.NoError(t, err) || !assert.Equal(t, Agreed, state) {
						return err
					}
					var told [2]uint64
					for member := range n {
						told[0] |= seq << member
						told[1] |= uint64(member)
					}
					assert.Equal(t, told, res.Told)
					for member := range n {
						payload, bytes := w.Payload(seq, member)
						if !assert.Equal(t, length(member), bytes) {
							return nil
						}
						for i, b := range unsafe.Slice((*byte)(payload), bytes) {
							if b != byte(member+i+int(seq)) {
								return fmt.Errorf("n %d, member %d: byte %d of the payload of %d is %d", n, rank, i, member, b)
							}
						}
					}
				}
				assert.Eventually(t, w.Settled, 20*time.Second, time.Millisecond)
				return w.Close()
			}))
		})
	}
}

func count(nodes [][]int) (members int) {
	for _, m := range nodes {
		members += len(m)
	}
	return members
}

// onNodes returns what makes the arrival of a member of nodes, which have boards.
func onNodes(t *testing.T, nodes [][]int) func(mpi.Library) (*Wire, error) {
	boards := map[int]unsafe.Pointer{} // by member
	for _, members := range nodes {
		if len(members) == 1 {
			continue
		}
		board, err := mem.Alloc(BoardSize(len(members), nodes))
		require.NoError(t, err)
		clear(unsafe.Slice((*byte)(board), BoardSize(len(members), nodes)))
		t.Cleanup(func() { mem.Free(board) })
		for _, m := range members {
			boards[m] = board
		}
	}
	return func(lib mpi.Library) (*Wire, error) {
		end := mpifake.World(lib)
		var board *Board
		if memory, ok := boards[end.Rank()]; ok {
			members := nodes[slices.IndexFunc(nodes, func(m []int) bool { return slices.Contains(m, end.Rank()) })]
			board = NewBoard(memory, members, end.Rank(), nodes)
		}
		return NewWire(end, 2, nodes, board)
	}
}

// counted counts the messages that a member sends.
type counted struct {
	transport.Endpoint
	sent int
}

func (c *counted) Send(data unsafe.Pointer, bytes int64, to, tag int32) (*transport.Request, error) {
	c.sent++
	return c.Endpoint.Send(data, bytes, to, tag)
}

// Only the first member of a node sends messages: one a round.
func TestOneSpeaksForANode(t *testing.T) {
	nodes := [][]int{{0, 3}, {1, 2, 5}, {4}, {6, 7}}
	joined := onNodes(t, nodes)
	var sent [8]int
	require.NoError(t, mpifake.Each(mpifake.New(8), func(rank int, lib mpi.Library) error {
		w, err := joined(lib)
		if err != nil {
			return err
		}
		end := &counted{Endpoint: w.end}
		for _, g := range w.made {
			g.end = end
		}
		w.end = end
		for seq := uint64(1); seq <= 3; seq++ {
			if state, _, err := arrive(w, seq, Signature{1}, 0); state != Agreed || err != nil {
				return fmt.Errorf("rank %d: state %d, %v", rank, state, err)
			}
		}
		sent[rank] = end.sent
		return nil
	}))
	assert.Equal(t, [8]int{6, 6, 0, 0, 6, 0, 6, 0}, sent)
}

// What stands on a board and is of no member is an error that names the member.
func TestADoublingBelievesNoBoard(t *testing.T) {
	nodes := [][]int{{0, 1}, {2}}
	for name, damage := range map[string]func(slot, told *[16]uint64){
		"a number of no member":     func(slot, _ *[16]uint64) { slot[slotNumber] = 7 },
		"another collective":        func(slot, _ *[16]uint64) { slot[slotNumber], slot[slotSeq], slot[slotKind] = 1, 2, 1 },
		"another kind":              func(slot, _ *[16]uint64) { slot[slotNumber], slot[slotSeq], slot[slotKind] = 1, 1, 2 },
		"a length beyond a payload": func(slot, _ *[16]uint64) { copy(slot[:], []uint64{1, 1, 1, 1 << 40}) },
		"a message too long": func(slot, told *[16]uint64) {
			copy(slot[:], []uint64{1, 1, 1, 0})
			copy(told[:], []uint64{1, 0, 0, 1 << 40})
		},
		"a message of nothing": func(slot, told *[16]uint64) {
			copy(slot[:], []uint64{1, 1, 1, 0})
			copy(told[:], []uint64{1, 0, 0, 0})
		},
	} {
		for me := range 2 {
			t.Run(fmt.Sprint(name, me), func(t *testing.T) {
				w, err := onNodes(t, nodes)(mpifake.New(3)[me])
				require.NoError(t, err)
				b := w.seats.board
				told := (*[16]uint64)(b.told(1))
				damage((*[16]uint64)(b.slot(1-me, 1)), told)
				if me == 0 && told[0] != 0 || me == 1 && name == "a number of no member" {
					return // the leader does not read what it tells, and the others do not wait for each other
				}
				if me == 1 && told[0] == 0 {
					told[0] = 1 // so that the member looks at the slots
				}
				_, _, err = w.Announce(1, &Signature{1}, 0, Payload{}, 0)
				var damaged *Damaged
				if assert.ErrorAs(t, err, &damaged) {
					assert.Equal(t, 1-me, damaged.Member)
				}
			})
		}
	}
}

// What a damaged member sends is an error, whatever it is, and never more than was received is read.
func TestADoublingBelievesNoLength(t *testing.T) {
	header := func(seq, kind, records uint64) []byte {
		b := make([]byte, headerBytes)
		for i, v := range []uint64{seq, kind, records} {
			binary.LittleEndian.PutUint64(b[8*i:], v)
		}
		return b
	}
	record := func(member, bytes uint32, data int) []byte {
		b := binary.LittleEndian.AppendUint32(nil, member)
		return append(binary.LittleEndian.AppendUint32(b, bytes), make([]byte, data)...)
	}
	for name, message := range map[string][]byte{
		"nothing":                   {},
		"half a header":             header(1, 1, 0)[:40],
		"another collective":        append(header(2, 1, 8), record(1, 0, 0)...),
		"another kind":              append(header(1, 2, 8), record(1, 0, 0)...),
		"fewer records":             append(header(1, 1, 16), record(1, 0, 0)...),
		"no records":                header(1, 1, 0),
		"half a record":             append(header(1, 1, 4), 1, 0, 0, 0),
		"a member out of range":     append(header(1, 1, 8), record(2, 0, 0)...),
		"a sum where none is made":  append(header(1, 1, 8), record(sumRecord|1, 0, 0)...),
		"the receiver's payload":    append(header(1, 1, 8), record(0, 0, 0)...),
		"a length beyond it":        append(header(1, 1, 16), record(1, 9, 8)...),
		"a length beyond a payload": append(header(1, 1, 8), record(1, WirePayload+1, 0)...),
		"a length of 2^32 - 1":      append(header(1, 1, 8), record(1, 1<<32-1, 0)...),
		"a payload twice":           append(header(1, 1, 16), append(record(1, 0, 0), record(1, 0, 0)...)...),
	} {
		t.Run(name, func(t *testing.T) {
			libs := mpifake.New(2)
			w, err := flat(libs[0])
			require.NoError(t, err)
			block, err := mem.Alloc(1 << 10)
			require.NoError(t, err)
			defer mem.Free(block)
			copy(unsafe.Slice((*byte)(block), 1<<10), message)
			_, err = mpifake.World(libs[1]).Send(block, int64(len(message)), 0, 2)
			require.NoError(t, err)
			state, _, err := w.Announce(1, &Signature{1}, 0, Payload{}, 0)
			for state == Pending && err == nil {
				state, _, err = w.Poll(0)
			}
			var damaged *Damaged
			if assert.ErrorAs(t, err, &damaged) && name != "no records" {
				assert.Equal(t, 1, damaged.Member)
			}
		})
	}
}
