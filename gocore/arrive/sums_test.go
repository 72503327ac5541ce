package arrive

import (
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
)

// sumOf sums up payloads of n int32, as int64: the sum is longer, as that of 16-bit floats is.
func sumOf(n int) *NodeSum {
	return &NodeSum{Bytes: int64(8 * n), Run: func(to unsafe.Pointer, from []unsafe.Pointer) {
		sums := unsafe.Slice((*int64)(to), n)
		for i := range sums {
			sum := int64(0)
			for _, f := range from {
				sum += int64(unsafe.Slice((*int32)(f), n)[i])
			}
			sums[i] = sum
		}
	}}
}

// Each member gets the sum of each node, as the payload of the first member there. Where a node does not sum up, because some
// member there announces something else, nothing comes from it.
func TestNodesSumUp(t *testing.T) {
	nodesSumUp(t, false)
}

// What is for others they get alike, and the members of a node keep each other's payloads.
func TestNodesSumUpForOthers(t *testing.T) {
	nodesSumUp(t, true)
}

func nodesSumUp(t *testing.T, forOthers bool) {
	for _, nodes := range [][][]int{{{0, 1}, {2, 3}}, {{0, 2}, {1, 3}}, {{0, 1}, {2}}, {{0}, {1, 2}, {3, 4, 5}}, {{0, 5}, {1, 4}, {2, 3}}, {{0, 1, 2, 3}, {4}, {5}, {6, 7}, {8, 9}}} {
		if forOthers && len(nodes) > 2 {
			continue
		}
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			t.Parallel()
			joined := onNodes(t, nodes)
			n := count(nodes)
			assert.NoError(t, mpifake.Each(mpifake.New(n), func(rank int, lib mpi.Library) error {
				w, err := joined(lib)
				if err != nil {
					return err
				}
				most := int(w.Rooms().Sum / 8)
				block, err := mem.Alloc(int64(4 * most))
				if err != nil {
					return err
				}
				defer mem.Free(block)
				for seq := uint64(1); seq <= 24; seq++ {
					length := int(seq) * most / 24
					value := func(member, i int) int32 { return int32((member+1)*1000 + i + int(seq)) }
					mine := unsafe.Slice((*int32)(block), most)
					for i := range mine {
						mine[i] = value(rank, i)
					}
					odd := -1 // who announces something else, if anybody
					if seq%3 == 0 {
						odd = int(seq) % n
					}
					sig, flags, payload := Signature{7}, Summed, Payload{Data: block, Bytes: int64(4 * length), Sum: sumOf(length)}
					payload.Sum.ForOthers = forOthers
					if rank == odd {
						flags, payload = 0, Payload{Data: block, Bytes: 8}
						if seq%2 == 0 {
							sig[0] = 8
						}
					}
					state, res, err := w.Announce(seq, &sig, flags, payload, 0)
					clear(mine) // the payload was copied
					for state == Pending && err == nil {
						time.Sleep(time.Microsecond)
						state, res, err = w.Poll(0)
					}
					want := Agreed
					if odd >= 0 && seq%2 == 0 {
						want = Differ
					}
					if !assert.NoError(t, err) || !assert.Equal(t, want, state) || !assert.Equal(t, odd < 0, res.All&Summed != 0) {
						return err
					}
					for _, members := range nodes {
						if want == Differ || odd >= 0 {
							continue // no algorithm takes these payloads
						}
						if forOthers && slices.Contains(members, rank) {
							for _, m := range members {
								payload, bytes := w.Payload(seq, m)
								given := unsafe.Slice((*int32)(payload), length)
								if bytes != int64(4*length) || given[0] != value(m, 0) || given[length-1] != value(m, length-1) {
									return fmt.Errorf("rank %d has %d bytes of rank %d, not its payload", rank, bytes, m)
								}
							}
							continue
						}
						payload, bytes := w.Payload(seq, members[0])
						if !assert.Equal(t, int64(8*length), bytes) {
							return nil
						}
						for i, sum := range unsafe.Slice((*int64)(payload), length) {
							right := int64(0)
							for _, m := range members {
								right += int64(value(m, i))
							}
							if sum != right {
								return fmt.Errorf("rank %d of %d: element %d of the sum of %v is %d, not %d", rank, n, i, members, sum, right)
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

// Payloads that are too long to go together go nowhere: that happens where members on a node call different operations.
func TestPayloadsThatAreTooLongTogether(t *testing.T) {
	joined := onNodes(t, [][]int{{0, 1}, {2, 3}})
	require.NoError(t, mpifake.Each(mpifake.New(4), func(rank int, lib mpi.Library) error {
		w, err := joined(lib)
		if err != nil {
			return err
		}
		room := w.Rooms().Alone
		block, err := mem.Alloc(room)
		if err != nil {
			return err
		}
		defer mem.Free(block)
		for seq := uint64(1); seq <= 4; seq++ {
			var payload Payload
			if seq%2 == 1 || rank == 1 { // all have one, or one alone, which has room
				payload = Payload{Data: block, Bytes: room}
			}
			state, _, err := arriveWith(w, seq, Signature{1 + seq%2*uint64(rank)}, 0, payload)
			if want := []State{Agreed, Differ}[seq%2]; state != want || err != nil {
				return fmt.Errorf("rank %d: state %d, not %d, %v", rank, state, want, err)
			}
			if _, bytes := w.Payload(seq, 1); seq%2 == 0 && bytes != room {
				return fmt.Errorf("rank %d has %d bytes of rank 1", rank, bytes)
			}
		}
		return nil
	}))
}

// A refusal has no payload: nothing is summed up, also if all members of a node refuse.
func TestRefusalsAreNotSummedUp(t *testing.T) {
	joined := onNodes(t, [][]int{{0, 1}, {2, 3}})
	require.NoError(t, mpifake.Each(mpifake.New(4), func(rank int, lib mpi.Library) error {
		w, err := joined(lib)
		if err != nil {
			return err
		}
		for seq, refusing := range []int{2, 4, 1} { // the first so many ranks
			flags, payload := Summed, Payload{Sum: sumOf(0)}
			if rank < refusing {
				flags, payload = Summed|Refused, Payload{}
			}
			state, res, err := arriveWith(w, uint64(seq+1), Signature{1}, flags, payload)
			if state != Agreed || res.Any&Refused == 0 || err != nil {
				return fmt.Errorf("rank %d: state %d, %v, %v", rank, state, res, err)
			}
		}
		return nil
	}))
}

// What is no sum of a node is an error that names who sent it.
func TestSumsAreNotBelieved(t *testing.T) {
	nodes := [][]int{{0}, {1, 2}}
	for name, record := range map[string][2]uint32{
		"of a member that is not the first": {sumRecord | 2, 0},
		"of a member out of range":          {sumRecord | 3, 0},
		"longer than a sum":                 {sumRecord | 1, SumOfTwo + 8},
		"of the receiver":                   {sumRecord, 0},
	} {
		t.Run(name, func(t *testing.T) {
			libs := mpifake.New(3)
			w, err := onNodes(t, nodes)(libs[0])
			require.NoError(t, err)
			block, err := mem.Alloc(headerBytes + 8)
			require.NoError(t, err)
			defer mem.Free(block)
			*(*[headerWords]uint64)(block) = [headerWords]uint64{1, uint64(gatherWords), 8}
			*(*[2]uint32)(unsafe.Add(block, headerBytes)) = record
			_, err = mpifake.World(libs[1]).Send(block, headerBytes+8, 0, 2)
			require.NoError(t, err)
			_, _, err = arrive(w, 1, Signature{1}, 0)
			var damaged *Damaged
			if assert.ErrorAs(t, err, &damaged) {
				assert.Equal(t, 1, damaged.Member)
			}
		})
	}
}
