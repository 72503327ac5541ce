package arrive

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// The same script as for control slots: agreement, differences in every word, refusals.
func TestWireAgreesWithLines(t *testing.T) {
	for _, nodes := range [][][]int{OfOneEach(1), OfOneEach(2), OfOneEach(3), OfOneEach(5), {{0, 1}, {2, 3}}, {{0, 4}, {1}, {2, 3}}} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			t.Parallel()
			joined, n := onNodes(t, nodes), count(nodes)
			assert.NoError(t, mpifake.Each(mpifake.New(n), func(rank int, lib mpi.Library) error {
				w, err := joined(lib)
				if err != nil {
					return err
				}
				follow(t, w, rank, n, 150)
				return w.Close()
			}))
		})
	}
}

func TestWireIsPendingUntilAllHaveCome(t *testing.T) {
	libs := mpifake.New(2)
	var ws []*Wire
	for _, lib := range libs {
		w, err := flat(lib)
		require.NoError(t, err)
		ws = append(ws, w)
	}
	sig := Signature{1, 2, 3}
	for seq := uint64(1); seq < 4; seq++ {
		state, _, err := ws[0].Announce(seq, &sig, Sync, Payload{}, 0)
		require.NoError(t, err)
		for range 3 {
			assert.Equal(t, Pending, state)
			state, _, err = ws[0].Poll(10)
			require.NoError(t, err)
		}
		_, known := ws[0].Missing()
		assert.False(t, known, "a doubling does not tell which members are late")
		assert.True(t, ws[0].GiveUp(seq+1, status.Timeout))
		assert.Empty(t, ws[0].Closers(seq))
		state, res, err := arrive(ws[1], seq, sig, Sync|Others)
		require.NoError(t, err)
		assert.Equal(t, Agreed, state)
		assert.Equal(t, Result{All: Sync, Any: Sync | Others}, res)
		for range 2 { // to ask again changes nothing
			state, res, err = ws[0].Poll(0)
			require.NoError(t, err)
			assert.Equal(t, Agreed, state)
			assert.Equal(t, Result{All: Sync, Any: Sync | Others}, res)
		}
	}
	// MPI may still write to the memory of a comparison that is under way.
	_, _, err := ws[0].Announce(4, &sig, 0, Payload{}, 0)
	require.NoError(t, err)
	assert.NoError(t, ws[0].Close())
	state, _, err := arrive(ws[1], 4, sig, 0)
	assert.NoError(t, err)
	assert.Equal(t, Agreed, state)
	require.Eventually(t, func() bool { state, _, err = ws[0].Poll(0); return state != Pending }, 20*time.Second, time.Millisecond)
	assert.NoError(t, ws[0].Close())
	assert.NoError(t, ws[0].Close(), "Close may be called twice")
	assert.NoError(t, ws[1].Close())
}

func TestWireReportsErrorsOfMPI(t *testing.T) {
	// Calls 1 and 2 are the first message of each kind, 3 and 4 those of what each member has announced after a refusal.
	for call := 1; call <= 4; call++ {
		var ws []*Wire
		for _, lib := range mpifake.New(2, mpifake.Fail(0, call, 16)) {
			w, err := flat(lib)
			require.NoError(t, err)
			ws = append(ws, w)
		}
		_, _, first := ws[0].Announce(1, &Signature{1}, Refused, Payload{}, 0)
		_, _, _ = ws[1].Announce(1, &Signature{1}, 0, Payload{}, 0)
		for end := time.Now().Add(20 * time.Second); first == nil && time.Now().Before(end); {
			_, _, first = ws[0].Poll(0)
			_, _, _ = ws[1].Poll(0)
		}
		assert.ErrorContains(t, first, fmt.Sprintf("injected failure of call %d", call))
		assert.Eventually(t, ws[0].Settled, 20*time.Second, time.Millisecond, "a receive that nobody answers is given up")
		assert.NoError(t, ws[0].Close())
	}
}

// wires makes the arrivals of n members of one process.
func wires(t *testing.T, n int) (ws []*Wire) {
	for _, lib := range mpifake.New(n) {
		w, err := flat(lib)
		require.NoError(t, err)
		ws = append(ws, w)
	}
	return ws
}

// settle polls the arrivals in turn until none is under way.
func settle(t *testing.T, ws []*Wire) {
	assert.Eventually(t, func() bool {
		over := true
		for _, w := range ws {
			over = w.Settled() && over
		}
		return over
	}, 20*time.Second, time.Millisecond)
}

func TestAMemberLeavesAWire(t *testing.T) {
	// The signature of one member is what the member that leaves announces as its reason.
	for name, sig := range map[string]Signature{"another signature": {1, 2, 3}, "the same signature": {uint64(status.PeerLeft)}} {
		t.Run(name, func(t *testing.T) {
			ws := wires(t, 3)
			_, _, err := ws[0].Announce(1, &sig, 0, Payload{}, 0)
			require.NoError(t, err)
			require.NoError(t, ws[1].Leave(1, status.PeerLeft))
			require.NoError(t, ws[1].Leave(1, status.PeerLeft), "once is enough")
			state, _, err := ws[0].Poll(0)
			require.NoError(t, err)
			assert.Equal(t, Pending, state, "member 2 has announced nothing")
			_, _, err = ws[2].Announce(1, &sig, Refused, Payload{}, 0)
			require.NoError(t, err)
			settle(t, ws)
			for _, i := range []int{0, 2} {
				state, _, err := ws[i].Poll(0)
				require.NoError(t, err)
				assert.Equal(t, Closed, state)
				assert.Equal(t, map[int]status.Code{1: status.PeerLeft}, ws[i].Closers(1))
				require.NoError(t, ws[i].Leave(2, status.PeerLeft), "nobody announces anything after that")
				assert.True(t, ws[i].Settled())
			}
			_, gaveUp := ws[1].Standing().At(1)
			assert.Equal(t, &Withdrawal{1, 1, status.PeerLeft}, gaveUp)
		})
	}
}

func TestAllMembersLeaveAWire(t *testing.T) {
	ws := wires(t, 3)
	for _, w := range ws {
		require.NoError(t, w.Leave(1, status.PeerLeft))
	}
	settle(t, ws)
	for _, w := range ws {
		assert.Empty(t, w.Closers(0))
		assert.NoError(t, w.Close())
	}
}

// What is under way keeps its memory when a wire is closed. Nothing else does.
func TestAWireThatIsClosed(t *testing.T) {
	ws := wires(t, 2)
	sig := Signature{1, 2, 3}
	state, _, err := ws[0].Announce(1, &sig, 0, Payload{}, 0)
	require.NoError(t, err)
	assert.Equal(t, Pending, state)
	require.NoError(t, ws[0].Close())
	assert.NotEmpty(t, ws[0].made, "member 1 has announced nothing")
	_, _, err = ws[1].Announce(1, &sig, 0, Payload{}, 0)
	require.NoError(t, err)
	settle(t, ws)
	for _, w := range ws {
		require.NoError(t, w.Close())
		assert.Empty(t, w.made)
	}
}

// A member that has given a collective up takes part in it when it leaves, by what it has announced.
func TestAMemberLeavesAWireThatItGaveUp(t *testing.T) {
	ws := wires(t, 2)
	sig := Signature{1, 2, 3}
	_, _, err := ws[0].Announce(1, &sig, 0, Payload{}, 0)
	require.NoError(t, err)
	assert.True(t, ws[0].GiveUp(1, status.Timeout))
	require.NoError(t, ws[0].Leave(2, status.PeerLeft))
	assert.False(t, ws[0].Settled())
	require.NoError(t, ws[1].Leave(1, status.PeerLeft))
	settle(t, ws)
}

// flat makes the arrival of a member of nodes of one member each.
func flat(lib mpi.Library) (*Wire, error) {
	end := mpifake.World(lib)
	return NewWire(end, 2, OfOneEach(end.Size()), nil)
}
