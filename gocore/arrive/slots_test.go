package arrive

import (
	"bufio"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/segment"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work/worktest"
)

// attach makes the control slots of n members, each with its own mapping, as in n processes.
func attach(t testing.TB, n int) (all []*ControlSlots) {
	t.Helper()
	file, err := segment.New("paddlempi-test", ControlSlotsSize(n))
	require.NoError(t, err)
	defer file.Close()
	for i := 0; i < n; i++ {
		l, err := NewControlSlots(file, n, i)
		require.NoError(t, err)
		all = append(all, l)
	}
	for _, l := range all {
		l.YieldEvery(8)
		t.Cleanup(func() { assert.NoError(t, l.Close()) })
	}
	return all
}

// arrive announces, and polls until all members have arrived.
func arrive(a Arrival, seq uint64, sig Signature, flags Flags) (State, Result, error) {
	return arriveWith(a, seq, sig, flags, Payload{})
}

func arriveWith(a Arrival, seq uint64, sig Signature, flags Flags, payload Payload) (State, Result, error) {
	state, res, err := a.Announce(seq, &sig, flags, payload, 10)
	for state == Pending && err == nil {
		time.Sleep(time.Microsecond)
		state, res, err = a.Poll(50)
	}
	return state, res, err
}

// script is what member i announces as collective seq. All members can compute it. Signatures are
// mostly alike.
func script(seq uint64, i int) (Signature, Flags) {
	rng := rand.New(rand.NewSource(int64(seq)))
	sig := Signature{rng.Uint64() | 1, rng.Uint64(), rng.Uint64()}
	odd, word := rng.Intn(40), rng.Intn(3) // member odd differs, if there is one of that number
	if i == odd {
		sig[word]++
	}
	rng = rand.New(rand.NewSource(int64(seq)<<8 + int64(i)))
	return sig, Flags(rng.Intn(8))
}

// expected is the result that all members must get for seq.
func expected(seq uint64, n int) (State, Result, []Entry) {
	res, entries := Result{All: ^Flags(0)}, make([]Entry, n)
	for i := range entries {
		sig, flags := script(seq, i)
		entries[i] = Entry{sig, flags}
		res.All &= flags
		res.Any |= flags
		for w := range sig {
			if sig[w] != entries[0].Signature[w] {
				res.Diff |= 1 << w
			}
		}
	}
	if res.Diff != 0 {
		return Differ, res, entries
	}
	return Agreed, res, entries
}

// follow goes through rounds of the script as member i, with random delays, and checks all results.
func follow(t *testing.T, a Arrival, i, n int, rounds uint64) {
	rng := rand.New(rand.NewSource(int64(i)))
	for seq := uint64(1); seq <= rounds; seq++ {
		nap(rng)
		sig, flags := script(seq, i)
		state, res, err := arrive(a, seq, sig, flags)
		wantState, wantRes, entries := expected(seq, n)
		nap(rng) // a delay before the words are read
		if !assert.NoError(t, err) || !assert.Equal(t, wantState, state, "collective %d", seq) ||
			!assert.Equal(t, wantRes, res, "collective %d", seq) {
			return
		}
		if state == Differ || res.Any&Refused != 0 {
			if !assert.Equal(t, entries, a.Entries(), "collective %d", seq) {
				return
			}
		}
	}
}

func nap(rng *rand.Rand) {
	if rng.Intn(8) == 0 {
		time.Sleep(time.Duration(rng.Intn(50)) * time.Microsecond)
	}
}

// Two slots are enough: whatever the delays, no member reads words of another collective than the
// current one.
func TestMembersReadTheWordsOfTheCurrentCollective(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			var wg sync.WaitGroup
			for i, l := range attach(t, n) {
				wg.Add(1)
				go func() {
					defer wg.Done()
					follow(t, l, i, n, 1500)
				}()
			}
			wg.Wait()
		})
	}
}

func TestMissing(t *testing.T) {
	ls := attach(t, 4)
	sig := Signature{1}
	state, _, err := ls[2].Announce(1, &sig, 0, Payload{}, 0)
	require.NoError(t, err)
	assert.Equal(t, Pending, state)
	missing, known := ls[2].Missing()
	assert.True(t, known)
	assert.Equal(t, []int{0, 1, 3}, missing)
	_, _, _ = ls[0].Announce(1, &sig, 0, Payload{}, 0)
	_, _, _ = ls[1].Announce(1, &sig, 0, Payload{}, 0)
	missing, _ = ls[2].Missing()
	assert.Equal(t, []int{3}, missing)
	state, _, _ = ls[3].Announce(1, &sig, Sync, Payload{}, 0)
	assert.Equal(t, Agreed, state)
	missing, _ = ls[2].Missing()
	assert.Empty(t, missing)

	// A member that is a collective ahead is not missing from this one.
	_, _, _ = ls[3].Announce(2, &sig, 0, Payload{}, 0)
	state, res, _ := ls[0].Poll(0)
	assert.Equal(t, Agreed, state)
	assert.Equal(t, Result{Any: Sync}, res)
	missing, _ = ls[0].Missing()
	assert.Empty(t, missing)
}

func TestLeft(t *testing.T) {
	ls := attach(t, 3)
	for i := range ls {
		assert.False(t, ls[0].Left(i))
	}
	ls[1].Leave()
	for _, l := range ls {
		assert.Equal(t, []bool{false, true, false}, []bool{l.Left(0), l.Left(1), l.Left(2)})
	}
}

func TestALateMemberFindsTheCollectiveClosed(t *testing.T) {
	ls := attach(t, 3)
	sig := Signature{1}
	_, _, _ = ls[0].Announce(1, &sig, 0, Payload{}, 0)
	_, _, _ = ls[1].Announce(1, &sig, 0, Payload{}, 0)
	assert.True(t, ls[0].GiveUp(1, status.Timeout))
	state, _, _ := ls[1].Poll(0)
	assert.Equal(t, Closed, state, "a member that waits sees it")
	state, _, _ = ls[2].Announce(1, &sig, 0, Payload{}, 0)
	assert.Equal(t, Closed, state, "so does a member that comes late")
	assert.Equal(t, map[int]status.Code{0: status.Timeout}, ls[2].Closers(1))
	assert.Equal(t, map[int]status.Code{0: status.Timeout}, ls[2].Closers(2), "nor does it take part later")
	assert.Empty(t, ls[2].Closers(0))
	missing, _ := ls[0].Missing()
	assert.Equal(t, []int{2}, missing, "an announcement in a closed slot does not count")
	assert.True(t, ls[1].GiveUp(1, status.Interrupted), "a second member closes it too")
	assert.Equal(t, map[int]status.Code{0: status.Timeout, 1: status.Interrupted}, ls[2].Closers(1))
}

func TestWhatAllHaveAnnouncedCannotBeGivenUp(t *testing.T) {
	ls := attach(t, 2)
	sig := Signature{1}
	_, _, _ = ls[0].Announce(1, &sig, 0, Payload{}, 0)
	_, _, _ = ls[1].Announce(1, &sig, 0, Payload{}, 0)
	assert.False(t, ls[0].GiveUp(1, status.Timeout))
	state, _, _ := ls[0].Poll(0)
	assert.Equal(t, Agreed, state)
	assert.Empty(t, ls[1].Closers(1))
	// The next one can be closed before any member announces it.
	assert.True(t, ls[0].GiveUp(2, status.GroupBroken))
	state, _, _ = ls[1].Announce(2, &sig, 0, Payload{}, 0)
	assert.Equal(t, Closed, state)
	assert.Equal(t, map[int]status.Code{0: status.GroupBroken}, ls[1].Closers(2))
}

// A member that wants to give up what all have announced runs it as they do. They never see what it wanted.
func TestACloseThatLosesIsNeverSeen(t *testing.T) {
	ls := attach(t, 2)
	sig := Signature{1}
	for seq := uint64(1); seq <= 3; seq++ {
		for _, l := range ls {
			_, _, _ = l.Announce(seq, &sig, 0, Payload{}, 0)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range 200_000 {
				assert.False(t, ls[0].GiveUp(seq, status.Timeout))
			}
		}()
		for going := true; going; {
			if closers := ls[1].Closers(seq); len(closers) > 0 {
				assert.Fail(t, "seen", "collective %d is closed by %v", seq, closers)
				going = false
			}
			select {
			case <-done:
				going = false
			default:
			}
		}
		<-done
		assert.Zero(t, ls[1].Why(0))
	}
}

// Members give up and announce at the same moment: either all run the collective, or none does.
func TestGivingUpAndArrivingAtOnce(t *testing.T) {
	outcomes := map[bool]int{}
	for trial := range 300 {
		const n = 3
		ls := attach(t, n)
		states := make([]State, n)
		start := make(chan struct{})
		var wg sync.WaitGroup
		closed := false
		for i, l := range ls {
			wg.Add(1)
			go func() {
				defer wg.Done()
				rng := rand.New(rand.NewSource(int64(n*trial + i)))
				<-start
				time.Sleep(time.Duration(rng.Intn(100)) * time.Microsecond)
				if i > 0 {
					states[i], _, _ = arrive(l, 1, Signature{7}, 0)
					return
				}
				var sig Signature
				sig[0] = 7
				states[0], _, _ = l.Announce(1, &sig, 0, Payload{}, 0)
				if closed = l.GiveUp(1, status.Timeout); !closed {
					states[0], _, _ = l.Poll(0)
				} else {
					states[0] = Closed
				}
			}()
		}
		close(start)
		wg.Wait()
		want := Agreed
		if closed {
			want = Closed
		}
		require.Equal(t, []State{want, want, want}, states, "trial %d", trial)
		outcomes[closed]++
		for _, l := range ls {
			require.NoError(t, l.Close())
		}
	}
	t.Logf("given up %d times, arrived %d times", outcomes[true], outcomes[false])
}

// Members are processes: this test runs itself once more as member 1.
func TestAnotherProcess(t *testing.T) {
	const rounds, variable = 300, "PADDLEMPI_TEST_LINES"
	if at := os.Getenv(variable); at != "" {
		var a segment.Address
		_, err := fmt.Sscan(at, &a.PID, &a.FD, &a.Inode)
		require.NoError(t, err)
		file, err := segment.Open(a, ControlSlotsSize(2))
		require.NoError(t, err)
		l, err := NewControlSlots(file, 2, 1)
		require.NoError(t, err)
		file.Close()
		fmt.Println("attached")
		follow(t, l, 1, 2, rounds)
		l.Leave()
		return
	}
	file, err := segment.New("paddlempi-test", ControlSlotsSize(2))
	require.NoError(t, err)
	l, err := NewControlSlots(file, 2, 0)
	require.NoError(t, err)
	defer l.Close()
	a := file.Address()
	child := exec.Command(os.Args[0], "-test.run=^TestAnotherProcess$")
	child.Env = append(os.Environ(), fmt.Sprint(variable, "=", a.PID, " ", a.FD, " ", a.Inode))
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	slots := bufio.NewScanner(out)
	for slots.Scan() && !strings.Contains(slots.Text(), "attached") {
	}
	file.Close()
	l.YieldEvery(8)
	follow(t, l, 0, 2, rounds)
	for slots.Scan() {
	}
	assert.NoError(t, child.Wait())
	assert.True(t, l.Left(1))
}

func TestAlone(t *testing.T) {
	var a Arrival = new(Alone)
	sig := Signature{1}
	state, res, err := a.Announce(1, &sig, 0, Payload{}, 0)
	assert.NoError(t, err)
	assert.Equal(t, Agreed, state)
	assert.Equal(t, Sync, res.All)
	missing, known := a.Missing()
	assert.Empty(t, missing)
	assert.True(t, known)
	assert.False(t, a.GiveUp(1, status.Timeout))
	assert.Empty(t, a.Closers(1))
	assert.Empty(t, a.Entries())
	assert.NoError(t, a.Close())
}

func BenchmarkArrive(b *testing.B) {
	ls := attach(b, 1)
	sig := Signature{1}
	for i := range b.N {
		_, _, _ = ls[0].Announce(uint64(i+1), &sig, Sync, Payload{}, 0)
	}
}

// announceAll makes all members announce seq in their turn. They all agree.
func announceAll(t *testing.T, ls []*ControlSlots, seq uint64) {
	t.Helper()
	sig := Signature{1}
	for _, l := range ls {
		_, _, err := l.Announce(seq, &sig, 0, Payload{}, 0)
		require.NoError(t, err)
	}
	for _, l := range ls {
		state, _, _ := l.Poll(0)
		require.Equal(t, Agreed, state)
	}
}

func TestTheRing(t *testing.T) {
	ls := attach(t, 2)
	sig := Signature{1}
	announceAll(t, ls, 1)
	last := uint64(Slots - 1)
	for seq := uint64(2); seq <= last; seq++ {
		require.True(t, ls[0].MayAnnounce(seq))
		ls[0].AnnounceAhead(seq, &sig, 0, Payload{})
	}
	assert.False(t, ls[0].MayAnnounce(last+1), "no member has finished with the first one")
	ls[0].Turn(2)
	assert.False(t, ls[0].MayAnnounce(last+1), "the other has not")
	assert.False(t, ls[0].Finished(1))
	state, res, _ := ls[1].Announce(2, &sig, 0, Payload{}, 0)
	assert.Equal(t, Agreed, state, "member 0 was there before")
	assert.Equal(t, Result{Any: Ahead}, res)
	assert.True(t, ls[0].Finished(1))
	assert.True(t, ls[0].MayAnnounce(last+1))
	state, _, _ = ls[0].Poll(0)
	assert.Equal(t, Agreed, state)
	state, _ = ls[0].Look(3)
	assert.Equal(t, Pending, state)
	missing, _ := ls[1].Missing()
	assert.Empty(t, missing)

	// A member that stops says so without a slot.
	ls[0].Stop(last+1, status.GroupBroken)
	assert.Empty(t, ls[1].Closers(last))
	assert.Equal(t, map[int]status.Code{0: status.GroupBroken}, ls[1].Closers(last+1))
	ls[0].Stop(last+2, status.Timeout)
	assert.Equal(t, map[int]status.Code{0: status.GroupBroken}, ls[1].Closers(last+2), "the first reason stays")
	assert.True(t, ls[0].GiveUp(3, status.Timeout))
	state, _, _ = ls[1].Announce(3, &sig, 0, Payload{}, 0)
	assert.Equal(t, Closed, state, "what was announced ahead can be given up")
}

func TestRefusingLate(t *testing.T) {
	ls := attach(t, 3)
	sig := Signature{1}
	announceAll(t, ls, 1)
	ls[0].AnnounceAhead(2, &sig, 0, Payload{})
	assert.True(t, ls[0].Refuse(2))
	_, _, _ = ls[2].Announce(2, &sig, 0, Payload{}, 0)
	state, res, _ := ls[1].Announce(2, &sig, 0, Payload{}, 0)
	assert.Equal(t, Agreed, state)
	assert.Equal(t, Result{Any: Refused | Ahead}, res)
	assert.True(t, ls[2].Refuse(2), "it was refused before")
	ls[0].Turn(2)
	for _, l := range ls {
		state, res, _ = l.Poll(0)
		assert.Equal(t, Agreed, state)
		assert.NotZero(t, res.Any&Refused)
		assert.NotZero(t, l.Entries()[0].Flags&Refused)
		assert.Zero(t, l.Entries()[1].Flags&Refused)
	}
	announceAll(t, ls, 3)
	assert.False(t, ls[1].Refuse(3), "all have announced it")
	_, res, _ = ls[0].Poll(0)
	assert.Zero(t, res.Any&Refused)
	assert.Zero(t, ls[0].Entries()[1].Flags&Refused)
}

// PayloadRoom repeats pa_room without a call. What the control slots take says what pa_room is.
func TestPayloadRoom(t *testing.T) {
	for _, n := range []int{1, 2, 3, 15, 16, 17, 64, 100, 127, 128, 1000, 1024, 1025, 5000} {
		fixed := int64(n)*(Slots+2)*64 + Slots*8*int64(max(128, n+1))
		assert.Equal(t, (ControlSlotsSize(n)-fixed)/int64(n)/Slots, PayloadRoom(n), "%d members", n)
	}
}

// A member's slot may say anything about the length of its payload. What follows the longest payload belongs
// to something else.
func TestAPayloadThatIsTooLong(t *testing.T) {
	ls := attach(t, 2)
	payload := make([]byte, PayloadRoom(2))
	for seq, bytes := range []int64{0, 1, 24, 25, PayloadRoom(2)} {
		for _, l := range ls {
			sig := Signature{uint64(seq)}
			_, _, err := l.Announce(uint64(seq)+1, &sig, 0, Payload{Data: unsafe.Pointer(&payload[0]), Bytes: bytes}, 0)
			require.NoError(t, err)
		}
		_, got := ls[0].Payload(uint64(seq)+1, 1)
		assert.Equal(t, bytes, got)
	}
	const slot, lengthAt = 64, 36 // the length of a slot, and where the length of its payload lies
	second := (Slots + 2) * slot  // the slots of member 1
	length := (*uint16)(unsafe.Pointer(&ls[0].mem[second+5*slot+lengthAt]))
	require.EqualValues(t, PayloadRoom(2), *length, "the layout of a slot")
	*length++
	_, got := ls[0].Payload(5, 1)
	assert.Zero(t, got)
}

// Whatever a member writes for which others may wait, it rings for.
func TestSlotsRing(t *testing.T) {
	ls := attach(t, 2)
	sig := Signature{1}
	for _, act := range []struct {
		name string
		do   func(one, other *ControlSlots)
	}{
		{"announce", func(one, _ *ControlSlots) { _, _, _ = one.Announce(1, &sig, 0, Payload{}, 0) }},
		{"announce ahead", func(one, _ *ControlSlots) { one.AnnounceAhead(2, &sig, 0, Payload{}) }},
		{"finish", func(one, _ *ControlSlots) { one.Finish(1) }},
		{"turn", func(one, _ *ControlSlots) { one.Turn(2) }},
		{"refuse late", func(one, _ *ControlSlots) { assert.True(t, one.Refuse(2)) }},
		{"give up", func(_, other *ControlSlots) { assert.True(t, other.GiveUp(3, status.Timeout)) }},
		{"stop", func(one, _ *ControlSlots) { one.Stop(4, status.Timeout) }},
		{"leave", func(one, _ *ControlSlots) { one.Leave() }},
	} {
		assert.True(t, worktest.Rings(t, func() { act.do(ls[0], ls[1]) }), act.name)
	}
	assert.False(t, worktest.Rings(t, func() { _, _ = ls[0].Look(1) }), "a look")
}
