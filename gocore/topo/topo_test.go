package topo

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/cgroup"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
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
			libs := mpifake.New(len(c.nodes), mpifake.Nodes(c.nodes))
			assert.NoError(t, mpifake.Each(libs, func(rank int, lib mpi.Library) error {
				top, err := Discover(lib, lib.World())
				if err != nil {
					return err
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
				return nil
			}))
		})
	}
}

// Every MPI call of Discover may fail. The error is returned on the rank where it failed.
func TestDiscoverReportsErrorsOfMPI(t *testing.T) {
	for call := 1; call <= 3; call++ {
		libs := mpifake.New(1, mpifake.Fail(0, call, 16))
		_, err := Discover(libs[0], libs[0].World())
		assert.ErrorContains(t, err, "injected failure")
	}
	lib := mpifake.New(1)[0]
	_, err := Discover(lib, 12345)
	assert.Error(t, err, "no communicator")
}
