package liveness

import (
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// job starts ranks as goroutines of this process; node i listens at 127.0.0.(i+1).
func job(t *testing.T, node ...int) []*Liveness {
	t.Helper()
	ranks := make([]*Liveness, len(node))
	places := make([]Place, len(node))
	for r := range ranks {
		var err error
		ranks[r], err = Listen(defaultAfter)
		require.NoError(t, err)
		places[r] = Place{Host: fmt.Sprintf("h%d", node[r]), Port: ranks[r].Place().Port, Addresses: []netip.Addr{addressOf(node[r])}}
		t.Cleanup(ranks[r].Close)
	}
	secret, err := NewSecret()
	require.NoError(t, err)
	started := make(chan error, len(node))
	for r, l := range ranks {
		echo := func(q [QuestionBytes]byte) []byte { return append([]byte{byte(r)}, q[:]...) }
		go func() { started <- l.Start(Job{Rank: r, Node: node, Places: places, Secret: secret, OnQuestion: echo}) }()
	}
	for range ranks {
		require.NoError(t, <-started)
	}
	return ranks
}

func addressOf(node int) netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, byte(node + 1)}) }

// one returns the nodes of n ranks, each on its own.
func one(n int) (node []int) {
	for r := range n {
		node = append(node, r)
	}
	return node
}

const patience = 20 * time.Second

func eventually(t *testing.T, what string, true func() bool) {
	t.Helper()
	require.Eventually(t, true, patience, time.Millisecond, what)
}

// deadTo returns the ranks that are dead to a rank.
func (l *Liveness) deadTo() (dead []int) {
	for r := range l.places {
		if is, _ := l.Dead(r); is {
			dead = append(dead, r)
		}
	}
	return dead
}

// agree waits until all given ranks know these deaths, and asserts that they know no other.
func agree(t *testing.T, ranks []*Liveness, who []int, dead ...int) {
	t.Helper()
	for _, r := range who {
		eventually(t, fmt.Sprintf("rank %d knows that %v are dead; it knows %v", r, dead, ranks[r].deadTo()), func() bool { return len(ranks[r].deadTo()) >= len(dead) })
		assert.Equal(t, dead, ranks[r].deadTo(), "rank %d", r)
	}
}

// parentOf returns the parent of a rank, -1 if it has none or is not connected to it.
func (l *Liveness) parentOf() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	parent := l.tree.parent(l.tree.rank, l.living)
	for k := range l.links {
		if k.rank == parent && k.isProved() {
			return parent
		}
	}
	return -1
}

func TestNobodyHasDied(t *testing.T) {
	ranks := job(t, 0, 0, 1, 1, 2)
	for r, l := range ranks {
		assert.False(t, l.AnyDead(), "rank %d", r)
		assert.Nil(t, l.deadTo())
		assert.Equal(t, "h1", l.Host(2))
	}
	for r, parent := range []int{-1, 0, 0, 2, 0} {
		assert.Equal(t, parent, ranks[r].parentOf(), "parent of rank %d", r)
	}
}

func TestWithoutAWatchNobodyIsDead(t *testing.T) {
	var l Liveness
	assert.False(t, l.AnyDead())
	dead, _ := l.Dead(3)
	assert.False(t, dead)
	assert.Empty(t, l.Why(3))
	assert.Empty(t, l.Host(0))
	l.Tell(1)
	l.Leave(true)
	assert.False(t, l.AnyDead())
}

func TestARankThatEndsIsKnownEverywhere(t *testing.T) {
	ranks := job(t, 0, 0, 1, 1, 2, 2, 3, 4, 5, 5)
	ranks[9].Close() // a rank that leads no node
	agree(t, ranks, []int{0, 1, 2, 3, 4, 5, 6, 7, 8}, 9)
	why := ranks[3].Why(9)
	assert.Equal(t, "its process on host h5 has ended, as rank 8 on host h5 saw", why)
	ranks[6].Close() // a leader without children
	agree(t, ranks, []int{0, 1, 2, 3, 4, 5, 7, 8}, 6, 9)
}

func TestANodesNextRankTakesOver(t *testing.T) {
	// Node 0 has the ranks 0 and 1. Node 5 is a child of node 1.
	ranks := job(t, 0, 0, 1, 1, 2, 3, 4, 5, 5)
	ranks[2].Close() // the leader of node 1
	agree(t, ranks, []int{0, 1, 3, 4, 5, 6, 7, 8}, 2)
	eventually(t, "rank 3 leads", func() bool { return ranks[3].parentOf() == 0 && ranks[7].parentOf() == 3 })
	ranks[0].Close() // the root
	agree(t, ranks, []int{1, 3, 4, 5, 6, 7, 8}, 0, 2)
	eventually(t, "rank 1 is the root", func() bool {
		return ranks[1].parentOf() == -1 && ranks[3].parentOf() == 1 && ranks[4].parentOf() == 1 && ranks[6].parentOf() == 1
	})
	ranks[8].Close() // and news still travels
	agree(t, ranks, []int{1, 3, 4, 5, 6, 7}, 0, 2, 8)
}

func TestChildrenOfADeadNodeConnectToItsParent(t *testing.T) {
	ranks := job(t, one(30)...)
	assert.Equal(t, 6, ranks[26].parentOf())
	ranks[6].Close()
	var others []int
	for r := range ranks {
		if r != 6 {
			others = append(others, r)
		}
	}
	agree(t, ranks, others, 6)
	eventually(t, "children of 6 are children of 1", func() bool {
		return ranks[25].parentOf() == 1 && ranks[26].parentOf() == 1 && ranks[27].parentOf() == 1 && ranks[28].parentOf() == 1
	})
	ranks[28].Close()
	agree(t, ranks, others[:27], 6, 28)
}

func TestManyDieAtOnce(t *testing.T) {
	ranks := job(t, one(40)...)
	var living, dead []int
	for r := range ranks {
		if r%3 == 0 { // the root too
			dead = append(dead, r)
			ranks[r].Close()
		} else {
			living = append(living, r)
		}
	}
	agree(t, ranks, living, dead...)
}

func TestARankThatLeavesIsNotDead(t *testing.T) {
	ranks := job(t, one(8)...)
	ranks[1].Leave(false) // rank 5 is its child
	eventually(t, "rank 5 is a child of rank 0", func() bool { return ranks[5].parentOf() == 0 })
	ranks[7].Close()
	agree(t, ranks, []int{0, 2, 3, 4, 5, 6}, 7)
}

func TestAtTheEndNobodyDies(t *testing.T) {
	ranks := job(t, one(12)...)
	ranks[0].Leave(true)
	eventually(t, "all know", func() bool {
		for _, l := range ranks[1:] {
			l.mu.Lock()
			known := l.over
			l.mu.Unlock()
			if !known {
				return false
			}
		}
		return true
	})
	for _, l := range ranks[1:6] {
		l.Close()
	}
	time.Sleep(2 * grace) // so long a rank would take to find its next parent dead
	for r, l := range ranks[6:] {
		assert.False(t, l.AnyDead(), "rank %d", r+6)
	}
}

func TestWhatThisRankSeesItself(t *testing.T) {
	ranks := job(t, 0, 0, 1, 1)
	ranks[2].Tell(3)
	agree(t, ranks, []int{0, 1, 2}, 3)
	ranks[2].Tell(3) // once more changes nothing
	agree(t, ranks, []int{0, 1, 2}, 3)
	// Rank 3 lives, but the others go on without it.
	agree(t, ranks, []int{3}, 0, 1, 2)
	why := ranks[3].Why(0)
	assert.Equal(t, "host h0 goes on without this one, which did not answer rank 2 on host h1", why)
}

func TestANodeThatDoesNotAnswer(t *testing.T) {
	ranks := job(t, 0, 0, 1, 1, 2, 2)
	l := ranks[0]
	l.mu.Lock()
	l.loses(2)
	l.mu.Unlock()
	agree(t, ranks, []int{0, 1, 4, 5}, 2, 3)
	why := l.Why(3)
	assert.Equal(t, "host h1 cannot be reached: it did not answer rank 0 on host h0 for 4s", why)
	// Node 1 lives: it learns that the others go on without it. Its ranks are not dead to each other.
	agree(t, ranks, []int{2, 3}, 0, 1, 4, 5)
}

func TestSilenceOnAConnection(t *testing.T) {
	for _, silent := range []error{syscall.ETIMEDOUT, syscall.EHOSTUNREACH, os.ErrDeadlineExceeded} {
		ranks := job(t, 0, 1, 1)
		l := ranks[0]
		eventually(t, "rank 1 is connected", func() bool { return len(l.linked()) == 1 })
		l.end(l.linked()[0], silent)
		assert.Equal(t, []int{1, 2}, l.deadTo(), "the node is silent, and so is the rank to which there was no connection")
	}
	ranks := job(t, 0, 1, 1)
	l := ranks[0]
	eventually(t, "rank 1 is connected", func() bool { return len(l.linked()) == 1 })
	l.end(l.linked()[0], syscall.ECONNRESET)
	assert.Equal(t, []int{1}, l.deadTo(), "its kernel answered")
}

// linked returns the connections of a rank.
func (l *Liveness) linked() (links []*link) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k := range l.links {
		links = append(links, k)
	}
	return links
}
