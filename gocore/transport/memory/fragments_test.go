package memory

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/transport"
)

// packer has every second byte of some memory. Each fragment is there only when it was asked for the third time, as if a device
// copied it.
type packer struct {
	t      *testing.T
	all    []byte
	into   bool
	asked  int
	open   map[int64][]byte // by where they begin
	next   int64
	closed int64
	fails  int64 // where a fragment begins that cannot be opened; 0: none does
}

func newPacker(t *testing.T, length int64, into bool) *packer {
	return &packer{t: t, all: make([]byte, 2*length), into: into, open: map[int64][]byte{}}
}

func (p *packer) Open(from, n int64) (unsafe.Pointer, error) {
	assert.LessOrEqual(p.t, n, int64(transport.FragmentBytes))
	if b, ok := p.open[from]; ok {
		return unsafe.Pointer(&b[0]), nil
	}
	assert.Equal(p.t, p.next, from, "the fragments come in their order")
	if p.fails > 0 && from >= p.fails {
		return nil, errors.New("a device fails")
	}
	if p.asked++; p.asked%3 != 0 {
		return nil, nil
	}
	_, b := room(p.t, int(n))
	if !p.into {
		for i := range b {
			b[i] = p.all[2*(from+int64(i))]
		}
	}
	p.open[from], p.next = b, from+n
	assert.LessOrEqual(p.t, len(p.open), 2)
	return unsafe.Pointer(&b[0]), nil
}

func (p *packer) Close(from, n int64) error {
	b := p.open[from]
	assert.EqualValues(p.t, n, len(b))
	assert.Equal(p.t, p.closed, from)
	if p.into {
		for i := range b {
			p.all[2*(from+int64(i))] = b[i]
		}
	}
	delete(p.open, from)
	p.closed = from + n
	return nil
}

// fill fills the elements, and has compares them.
func (p *packer) fill(seed byte) *packer {
	for i := range len(p.all) / 2 {
		p.all[2*i] = byte(i*7) + byte(i>>12) + seed
	}
	return p
}

func (p *packer) has(b []byte) bool {
	for i := range b {
		if p.all[2*i] != b[i] || p.all[2*i+1] != 0 {
			return false
		}
	}
	return true
}

func (p *packer) elements() []byte {
	b := make([]byte, len(p.all)/2)
	for i := range b {
		b[i] = p.all[2*i]
	}
	return b
}

// A message goes in fragments if the tensors of a side do not lie in one piece, whichever side that is.
func TestFragments(t *testing.T) {
	lengths := []int64{short + 1, transport.FragmentBytes, 2*transport.FragmentBytes + 12345}
	for to := range 2 { // to itself, too
		for _, length := range lengths {
			for _, sides := range [][2]bool{{true, false}, {false, true}, {true, true}} {
				t.Run(fmt.Sprint(to, length, sides), func(t *testing.T) {
					ranks := world(t, 2)
					from, into := newPacker(t, length, false).fill(byte(length)), newPacker(t, length, true)
					data, b := room(t, int(length))
					want := from.elements()
					var list []*transport.Request
					start := func(receives bool) {
						var r *transport.Request
						var err error
						switch {
						case receives && sides[1]:
							r, err = ranks[to].ReceiveFragments(into, length, 0, 5)
						case receives:
							r, err = ranks[to].Receive(data, length, transport.AnySource, 5)
						case sides[0]:
							r, err = ranks[0].SendFragments(from, length, int32(to), 5)
						default:
							at, plain := room(t, int(length))
							copy(plain, want)
							r, err = ranks[0].Send(at, length, int32(to), 5)
						}
						require.NoError(t, err)
						list = append(list, r)
					}
					for turn := range 2 {
						*from, *into = *newPacker(t, length, false).fill(byte(length)), *newPacker(t, length, true)
						clear(b)
						list = nil
						start(turn == 0)
						start(turn == 1)
						pollBoth(t, ranks, list...)
						for _, r := range list {
							require.NoError(t, ranks[0].Err(r))
						}
						if sides[1] {
							assert.True(t, into.has(want))
						} else {
							assert.True(t, bytes.Equal(want, b))
						}
						assert.Zero(t, len(from.open)+len(into.open))
						assert.Zero(t, ranks[0].o.streams+ranks[to].o.longs+len(ranks[0].o.asked))
					}
				})
			}
		}
	}
}

// A message of another length than the room of a packer is dropped, and a receive in one piece has the beginning of a longer one.
func TestFragmentsOfAnotherLength(t *testing.T) {
	const length = transport.FragmentBytes + 100
	for to := range 2 {
		ranks := world(t, 2)
		for _, other := range []int64{length - 1, length + 1, 8} {
			into := newPacker(t, other, true)
			s, err := ranks[0].SendFragments(newPacker(t, length, false).fill(1), length, int32(to), 0)
			require.NoError(t, err)
			r, err := ranks[to].ReceiveFragments(into, other, 0, 0)
			require.NoError(t, err)
			pollBoth(t, ranks, s, r)
			assert.NoError(t, ranks[0].Err(s))
			assert.EqualValues(t, length, r.Bytes)
			assert.Zero(t, into.next)
		}
		for _, n := range []int64{0, 8, 15, 16, length - 1} {
			from := newPacker(t, length, false).fill(2)
			s, err := ranks[0].SendFragments(from, length, int32(to), 0)
			require.NoError(t, err)
			data, b := room(t, max(int(n), 1))
			r, err := ranks[to].Receive(data, n, 0, 0)
			require.NoError(t, err)
			pollBoth(t, ranks, s, r)
			assert.NoError(t, ranks[0].Err(s))
			assert.ErrorContains(t, ranks[to].Err(r), fmt.Sprintf("a message of %d bytes", length))
			assert.True(t, bytes.Equal(from.elements()[:n], b[:n]))
		}
		s, err := ranks[0].SendFragments(newPacker(t, length, false), length, int32(to), 0)
		require.NoError(t, err)
		for found := false; !found; {
			var m transport.Message
			ranks[0].o.Poll(nil)
			m, found, err = ranks[to].Match(transport.AnySource, transport.AnyTag)
			require.NoError(t, err)
			if found {
				r, err := ranks[to].Refuse(m)
				require.NoError(t, err)
				pollBoth(t, ranks, s, r)
			}
		}
	}
}

// A receive that is given up while fragments come ends at once, and its sender too. The next message comes.
func TestFragmentsThatAreGivenUp(t *testing.T) {
	const length = 3 * transport.FragmentBytes
	for to := range 2 {
		for _, polls := range []int{0, 1, 3, 5, 8} {
			ranks := world(t, 2)
			from, into := newPacker(t, length, false).fill(1), newPacker(t, length, true)
			s, err := ranks[0].SendFragments(from, length, int32(to), 0)
			require.NoError(t, err)
			r, err := ranks[to].ReceiveFragments(into, length, 0, 0)
			require.NoError(t, err)
			for range polls {
				ranks[0].o.Poll(nil)
				ranks[1].o.Poll(nil)
			}
			if polls == 0 {
				ranks[to].o.Poll(nil)
			}
			require.NoError(t, ranks[to].Cancel(r))
			require.True(t, r.Done())
			s2, err := ranks[0].SendFragments(newPacker(t, length, false).fill(4), length, int32(to), 0)
			require.NoError(t, err)
			last := newPacker(t, length, true)
			r2, err := ranks[to].ReceiveFragments(last, length, 0, 0)
			require.NoError(t, err)
			pollBoth(t, ranks, s, s2, r2)
			require.NoError(t, ranks[to].Err(r2))
			assert.True(t, last.has(newPacker(t, length, false).fill(4).elements()))
		}
	}
}

// A packer that fails ends the message on both sides, and the next message comes.
func TestAPackerThatFails(t *testing.T) {
	const length = 3 * transport.FragmentBytes
	for to := range 2 {
		for _, fails := range []bool{false, true} { // of the receiver
			ranks := world(t, 2)
			from, into := newPacker(t, length, false), newPacker(t, length, true)
			from.fails = transport.FragmentBytes
			if fails {
				from.fails, into.fails = 0, transport.FragmentBytes
			}
			s, err := ranks[0].SendFragments(from, length, int32(to), 0)
			require.NoError(t, err)
			r, err := ranks[to].ReceiveFragments(into, length, 0, 0)
			require.NoError(t, err)
			pollBoth(t, ranks, s, r)
			assert.Equal(t, fails, ranks[0].Err(s) == nil)
			want := "rank 0 could not read"
			if fails {
				want = "could not be packed or unpacked"
			}
			assert.ErrorContains(t, ranks[to].Err(r), want)
			s, err = ranks[0].SendFragments(newPacker(t, length, false).fill(4), length, int32(to), 0)
			require.NoError(t, err)
			into = newPacker(t, length, true)
			r, err = ranks[to].ReceiveFragments(into, length, 0, 0)
			require.NoError(t, err)
			pollBoth(t, ranks, s, r)
			assert.True(t, into.has(newPacker(t, length, false).fill(4).elements()))
			assert.Zero(t, ranks[0].o.streams+ranks[to].o.longs+len(ranks[0].o.asked))
		}
	}
}
