package arrive

import (
	"encoding/binary"
	"math/rand"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// honest is a member that keeps to the protocol, whatever is in the control slots.
type honest struct {
	t     *testing.T
	l     *ControlSlots
	seq   uint64 // the collective whose turn it is
	ahead uint64 // the newest that was announced
	state State
	over  bool // it has given up
}

// see looks at everything that a member reads of the others.
func (h *honest) see(state State) {
	h.state = state
	if state == Rubbish {
		who := h.l.Rubbish()
		assert.True(h.t, who >= 0 && who < h.l.n)
	}
	if state == Differ || state == Agreed {
		assert.Len(h.t, h.l.Entries(), h.l.n)
	}
	missing, known := h.l.Missing()
	assert.True(h.t, known && len(missing) <= h.l.n)
	begin := uintptr(unsafe.Pointer(unsafe.SliceData(h.l.mem)))
	for i := range h.l.n {
		payload, bytes := h.l.Payload(h.seq, i)
		assert.LessOrEqual(h.t, bytes, PayloadRoom(h.l.n))
		assert.GreaterOrEqual(h.t, uintptr(payload), begin)
		assert.LessOrEqual(h.t, uintptr(payload)+uintptr(bytes), begin+uintptr(len(h.l.mem)))
		if member, ok := h.l.Blamed(i); ok {
			assert.True(h.t, member >= 0 && member < h.l.n)
		}
		h.l.Why(i)
		h.l.Left(i)
	}
	for i := range h.l.Closers(h.seq) {
		assert.True(h.t, i >= 0 && i < h.l.n)
	}
}

// step does one thing that the protocol allows.
func (h *honest) step(what byte) {
	payload := [payloadBytes]byte{}
	says := Payload{Data: unsafe.Pointer(&payload), Bytes: int64(what) % payloadBytes}
	switch {
	case h.over:
	case h.state != Pending: // the turn of the next
		if h.state == Closed || h.state == Rubbish {
			h.giveUp()
			return
		}
		if h.seq++; h.ahead < h.seq {
			h.ahead = h.seq
			state, _, _ := h.l.Announce(h.seq, &Signature{1, h.seq}, Flags(what)&^Ahead, says, 1)
			h.see(state)
			return
		}
		h.l.Turn(h.seq)
		h.poll()
	case what%8 == 0:
		h.giveUp()
	case what%8 == 1 && h.l.MayAnnounce(h.ahead+1) && h.ahead < h.seq+Slots-2:
		h.ahead++
		h.l.AnnounceAhead(h.ahead, &Signature{1, h.ahead}, 0, says)
	case what%8 == 2 && h.ahead > h.seq:
		h.l.Refuse(h.ahead)
	case what%8 == 3:
		h.l.Look(h.ahead)
	default:
		h.poll()
	}
}

func (h *honest) poll() {
	state, _, err := h.l.Poll(1)
	assert.NoError(h.t, err)
	h.see(state)
}

func (h *honest) giveUp() {
	h.over = h.l.GiveUp(h.seq, status.Timeout)
	if !h.over { // all have announced, or the words say so now
		h.poll()
		if h.state != Agreed && h.state != Differ {
			h.l.Stop(h.seq, status.GroupBroken)
			h.over = true
		}
	}
}

// payloadBytes is more than fits into a slot.
const payloadBytes = 64

// FuzzLines has three members, one of which writes what the input says anywhere into the memory that
// they share, while the others go on. Every input is played step by step, so it can be played again.
func FuzzLines(f *testing.F) {
	step := func(actor byte, at uint16, value uint64) []byte {
		b := append([]byte{actor}, binary.LittleEndian.AppendUint16(nil, at)...)
		return binary.LittleEndian.AppendUint64(b, value)
	}
	var usual, future, impossible, ahead []byte
	for i := range 40 {
		usual = append(usual, append(step(0, 4, 0), append(step(1, 4, 0), step(3, 1, 0)...)...)...)
		future = append(future, append(step(0, 4, 0), step(2, uint16(i*8), 1<<40)...)...)
		impossible = append(impossible, append(step(byte(i%2), 7, 0), step(2, uint16(i*8), bothBits|uint64(i))...)...)
		ahead = append(ahead, append(step(byte(i%2), 1, 0), step(2, uint16(i), ^uint64(0))...)...)
	}
	for _, seed := range [][]byte{{}, usual, future, impossible, ahead} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		const n, stepBytes = 3, 11
		all := attach(t, n)
		rogue := honest{t: t, l: all[2], state: Agreed}
		actors := []*honest{{t: t, l: all[0], state: Agreed}, {t: t, l: all[1], state: Agreed}}
		mem := all[2].mem
		own := int(uintptr(unsafe.Pointer(&unsafe.Slice(all[2].base(), n)[2])) - uintptr(unsafe.Pointer(all[2].base())))
		for ; len(input) >= stepBytes; input = input[stepBytes:] {
			at, value := binary.LittleEndian.Uint16(input[1:]), binary.LittleEndian.Uint64(input[3:])
			switch who := input[0]; {
			case who < 2:
				actors[who].step(byte(at))
			case who == 3: // the rogue keeps to the protocol, too, now and then
				rogue.step(byte(at))
			case who&1 == 0: // its own block
				binary.LittleEndian.PutUint64(mem[own+8*int(at)%(own/2):], value)
			default:
				binary.LittleEndian.PutUint64(mem[8*int(at)%(len(mem)-8):], value)
			}
		}
		for _, h := range actors { // a member that waits can give up, whatever happened
			for range 3 {
				if !h.over && h.state == Pending {
					h.giveUp()
				}
			}
			assert.True(t, h.over || h.state != Pending)
		}
	})
}

// bothBits are bits that no slot has together: closed, and here.
const bothBits = 1<<63 | 1<<61

// A member overwrites its slots while the others arrive, on other cores. They find that, each for itself or
// because another one did.
func TestAMemberWritesRubbishWhileOthersArrive(t *testing.T) {
	const n = 3
	for seed := range int64(20) {
		all := attach(t, n)
		var others sync.WaitGroup
		var stop atomic.Bool
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			rng := rand.New(rand.NewSource(seed))
			mine := unsafe.Slice(all[2].base(), n)[2].slot[:]
			for seq := uint64(1); !stop.Load(); seq++ {
				if seq < 20 { // it takes part for a while
					_, _, _ = all[2].Announce(seq, &Signature{1, seq}, 0, Payload{}, 100)
					continue
				}
				atomic.StoreUint64((*uint64)(unsafe.Pointer(&mine[rng.Intn(Slots)].seq)), 1<<40|rng.Uint64()>>rng.Intn(64))
				runtime.Gosched()
			}
		}()
		for i := range 2 {
			others.Add(1)
			go func() {
				defer others.Done()
				h := honest{t: t, l: all[i], state: Agreed}
				for end := time.Now().Add(time.Minute); !h.over && time.Now().Before(end); {
					h.step(4)
					// The other one may have found rubbish where this one had read a collective before.
					h.over = h.over || len(h.l.Closers(h.seq)) > 0
				}
				assert.True(t, h.over, "the arrival did not end")
			}()
		}
		others.Wait()
		stop.Store(true)
		<-gone
	}
}

func TestASlotFromTheFuture(t *testing.T) {
	for name, seq := range map[string]uint64{
		"a later number":          1 + Slots,
		"another slot's number":   2,
		"far away":                1 << 60,
		"all bits":                ^uint64(0),
		"here, and not refused":   1 | 1<<61,
		"closed and refused":      1 | 1<<63 | 1<<62,
		"closed, of another slot": 2 | 1<<63,
		"closed, of the future":   1 + 2*Slots | 1<<63,
	} {
		t.Run(name, func(t *testing.T) {
			all := attach(t, 3)
			slot := (*uint64)(unsafe.Pointer(&unsafe.Slice(all[2].base(), 3)[2].slot[1].seq))
			state, _, err := all[0].Announce(1, &Signature{1}, 0, Payload{}, 0)
			require.NoError(t, err)
			require.Equal(t, Pending, state)
			state, _, _ = all[1].Announce(1, &Signature{1}, 0, Payload{}, 0)
			require.Equal(t, Pending, state)
			atomic.StoreUint64(slot, seq)
			state, _, err = all[0].Poll(10)
			require.NoError(t, err)
			require.Equal(t, Rubbish, state)
			assert.Equal(t, 2, all[0].Rubbish())
			missing, _ := all[0].Missing()
			assert.Equal(t, []int{2}, missing)
			require.True(t, all[0].GiveUp(1, status.GroupBroken))

			// The others see that it was given up, and why.
			state, _, _ = all[1].Poll(10)
			require.Equal(t, Closed, state)
			require.Equal(t, map[int]status.Code{0: status.GroupBroken}, all[1].Closers(1))
			who, ok := all[1].Blamed(0)
			assert.True(t, ok)
			assert.Equal(t, 2, who)
			// And the member itself, if it comes after all.
			state, _, _ = all[2].Announce(1, &Signature{1}, 0, Payload{}, 0)
			assert.Equal(t, Closed, state)
		})
	}
}
