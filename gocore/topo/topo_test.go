package topo

import (
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/cgroup"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/transport/transportfake"
)

func TestDiscover(t *testing.T) {
	for name, c := range map[string]struct {
		nodes []int // as given to the fake
		want  []int // numbered in the order of the nodes' first ranks
		local []int
	}{
		"alone":          {[]int{0}, []int{0}, []int{0}},
		"one node":       {[]int{4, 4, 4}, []int{0, 0, 0}, []int{0, 1, 2}},
		"blocks":         {[]int{0, 0, 1, 1}, []int{0, 0, 1, 1}, []int{0, 1, 0, 1}},
		"cyclic":         {[]int{7, 3, 7, 3, 7}, []int{0, 1, 0, 1, 0}, []int{0, 0, 1, 1, 2}},
		"one rank each":  {[]int{2, 1, 0}, []int{0, 1, 2}, []int{0, 0, 0}},
		"uneven, shared": {[]int{1, 0, 0, 1, 2, 0}, []int{0, 1, 1, 0, 2, 1}, []int{0, 0, 1, 1, 0, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			transportfake.Each(transportfake.New(c.nodes), func(x transport.Exchange) {
				rank := x.Rank()
				top, err := Discover(x)
				if !assert.NoError(t, err) {
					return
				}
				var peers []int
				for r, n := range c.nodes {
					if n == c.nodes[rank] {
						peers = append(peers, r)
					}
				}
				// The fake ranks are threads of one process, so they all have the same mask of
				// CPUs.
				assert.Equal(t, &Topology{Rank: rank, Size: len(c.nodes), LocalRank: c.local[rank], LocalSize: len(peers),
					LocalCPUs: runtime.NumCPU(), Node: c.want,
					CPUs: CPUs{Allowed: runtime.NumCPU(), Ranks: len(peers), Before: c.local[rank], Quota: cgroup.CPUs(),
						QuotaRanks: len(peers), QuotaBefore: c.local[rank], mask: affinity()}}, top)
				assert.Equal(t, len(peers) > runtime.NumCPU(), top.Crowded())
				assert.Equal(t, peers, top.Peers())
				assert.True(t, top.OneNode(peers))
				assert.True(t, top.OneNode([]int{rank}))
				all := true
				ranks := make([]int, len(c.nodes))
				for r := range ranks {
					ranks[r] = r
					all = all && c.want[r] == c.want[0]
				}
				assert.Equal(t, all, top.OneNode(ranks))
			})
		})
	}
}

// failing fails from its calls-th call on.
type failing struct {
	transport.Exchange
	calls *int
}

func (f failing) fails() error {
	if *f.calls--; *f.calls < 0 {
		return errors.New("injected failure")
	}
	return nil
}

func (f failing) Node() (transport.Exchange, error) {
	if err := f.fails(); err != nil {
		return nil, err
	}
	node, err := f.Exchange.Node()
	return failing{node, f.calls}, err
}

func (f failing) Gather(words []int64, wait transport.Wait) ([][]int64, error) {
	if err := f.fails(); err != nil {
		return nil, err
	}
	return f.Exchange.Gather(words, wait)
}

// Every call of Discover may fail. The error is returned on the rank where it failed.
func TestDiscoverReportsErrors(t *testing.T) {
	for calls := range 3 {
		_, err := Discover(failing{transportfake.New([]int{0})[0], &calls})
		assert.ErrorContains(t, err, "injected failure")
	}
}
