package group

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/health"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// heard collects the reports of all ranks.
type heard struct {
	mu    sync.Mutex
	slots []string
}

func (h *heard) listen(e *world.Env) {
	e.Reports.After = 200 * time.Millisecond
	e.Reports.Write = func(line string) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.slots = append(h.slots, line)
	}
}

func (h *heard) all() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string(nil), h.slots...)
}

// await waits until something was reported.
func (h *heard) await(t *testing.T) {
	t.Helper()
	assert.Eventually(t, func() bool { return len(h.all()) > 0 }, 20*time.Second, 5*time.Millisecond)
}

// waitsFor runs ranks of which the last one comes late to what the others do. It returns the reports.
func waitsFor(t *testing.T, nodes []int, wait func(t *testing.T, e *world.Env, g *Group) error) []string {
	t.Helper()
	var h heard
	ranks(t, len(nodes), nodes, func(t *testing.T, e *world.Env, g *Group) {
		h.listen(e)
		_, err := submit(g, allReduce(floats(1)))
		assert.NoError(t, err)
		if g.Rank == g.Size-1 {
			h.await(t)
			time.Sleep(200 * time.Millisecond) // a second report would come by then
		}
		assert.NoError(t, wait(t, e, g))
	})
	return h.all()
}

func TestLongWaitsAreReported(t *testing.T) {
	async := func(g *Group) error {
		d := allReduce(floats(1))
		d.Flags = op.FlagAsync
		h, _, err := g.Submit(d, false)
		if err == nil && h != nil {
			_, err = h.Wait(-1, nil)
		}
		return err
	}
	for name, c := range map[string]struct {
		wait func(t *testing.T, e *world.Env, g *Group) error
		says string
	}{
		"a collective": {func(_ *testing.T, _ *world.Env, g *Group) error {
			_, err := submit(g, allReduce(floats(1, 2)))
			return err
		}, "s in all_reduce(float32[2], SUM), number 2 on the group of ranks [0 1 2]: rank 2 has not come: its last operation was all_reduce(float32[1], SUM), number 1 on the same group, which ended "},
		"an asynchronous one": {func(_ *testing.T, _ *world.Env, g *Group) error { return async(g) },
			"s in all_reduce(float32[1], SUM), number 2 on the group of ranks [0 1 2]: rank 2 has not come: its last operation was "},
		"one behind another": {func(_ *testing.T, _ *world.Env, g *Group) error {
			d := allReduce(floats(1, 2, 3))
			d.Flags = op.FlagAsync
			_, _, err := g.Submit(d, false)
			assert.NoError(t, err)
			return async(g)
		}, "s in all_reduce(float32[3], SUM), number 2 on the group of ranks [0 1 2]: rank 2 has not come: its last operation was "},
		"a new group": {func(_ *testing.T, e *world.Env, _ *Group) error {
			_, err := New(e, 1, []int{0, 1, 2}, 20*time.Second)
			return err
		}, "s in new_group(ranks=[0 1 2]): rank 2 has not called it: its last operation was all_reduce(float32[1], SUM), number 1 on the group of ranks [0 1 2], which ended "},
		"a new group without its first member": {func(_ *testing.T, e *world.Env, _ *Group) error {
			_, err := New(e, 1, []int{2, 1, 0}, 20*time.Second)
			return err
		}, "s in new_group(ranks=[2 1 0]): rank 2 has not called it: its last operation was "},
		"a monitored barrier": {func(_ *testing.T, _ *world.Env, g *Group) error { return g.MonitoredBarrier(20 * time.Second) },
			"s in monitored_barrier(ranks=[0 1 2]): rank 2 has not called it: its last operation was "},
	} {
		t.Run(name, func(t *testing.T) {
			slots := waitsFor(t, []int{0, 0, 0}, c.wait)
			if assert.Len(t, slots, 1) {
				assert.Contains(t, slots[0], c.says)
				assert.Contains(t, slots[0], "paddlempi: rank ")
				assert.Equal(t, 1, strings.Count(slots[0], "\n"))
			}
		})
	}
}

// A rank that waits for a message names the rank that sends it, and what that does.
func TestLongWaitsForMessagesAreReported(t *testing.T) {
	buf := func() []op.Buf { return []op.Buf{floats(0)} }
	for name, c := range map[string]struct {
		wait *op.Desc
		says string
	}{
		"recv":     {desc(op.Recv, nil, buf()), "s in recv of 4 bytes from rank 1 of the group (tag 3) on the group of ranks [0 1]: rank 1 is awaited: it has called no operation since "},
		"probe":    {desc(op.Probe, nil, nil), "s in probe of rank 1 of the group (tag 3) on the group of ranks [0 1]: rank 1 is awaited: it has called no operation since "},
		"recv any": {desc(op.Recv, nil, buf()), "s in recv of 4 bytes from any rank of the group (tag 3) on the group of ranks [0 1]: rank 1 is awaited: it has called no operation since "},
	} {
		t.Run(name, func(t *testing.T) {
			var h heard
			ranks(t, 2, nil, func(t *testing.T, e *world.Env, g *Group) {
				h.listen(e)
				if g.Rank == 1 {
					h.await(t)
					d := desc(op.Send, buf(), nil)
					d.Peer, d.Tag = 0, 3
					_, err := submit(g, d)
					assert.NoError(t, err)
					return
				}
				c.wait.Peer, c.wait.Tag = 1, 3
				if name == "recv any" {
					c.wait.Peer = -1
				}
				_, err := submit(g, c.wait)
				assert.NoError(t, err)
				if c.wait.Code == op.Probe {
					d := desc(op.Recv, nil, buf())
					d.Peer, d.Tag = 1, 3
					_, err = submit(g, d)
					assert.NoError(t, err)
				}
			})
			slots := h.all()
			if assert.Len(t, slots, 1) {
				assert.Contains(t, slots[0], c.says)
			}
		})
	}
}

// An operation for which nobody waits yet is not reported, however long it takes.
func TestOnlyWaitsAreReported(t *testing.T) {
	var h heard
	ranks(t, 2, nil, func(t *testing.T, e *world.Env, g *Group) {
		h.listen(e)
		if g.Rank == 1 {
			time.Sleep(600 * time.Millisecond)
		}
		d := allReduce(floats(1))
		d.Flags = op.FlagAsync
		handle, _, err := g.Submit(d, false)
		assert.NoError(t, err)
		if g.Rank == 0 {
			time.Sleep(600 * time.Millisecond)
		}
		if handle != nil {
			_, err = handle.Wait(-1, nil)
			assert.NoError(t, err)
		}
	})
	assert.Empty(t, h.all())
}

func TestReportsAreOffIfTheUserWantsSo(t *testing.T) {
	t.Setenv(health.ReportVariable, "0")
	ranks(t, 2, nil, func(t *testing.T, e *world.Env, g *Group) {
		e.Reports.Write = func(line string) { assert.Fail(t, line) }
		if g.Rank == 1 {
			time.Sleep(300 * time.Millisecond)
		}
		_, err := submit(g, allReduce(floats(1)))
		assert.NoError(t, err)
	})
}

// Across nodes the process of the missing rank says what it does. One rank of the job reports.
func TestLongWaitsAcrossNodesAreReported(t *testing.T) {
	for name, nodes := range map[string][]int{"another node": {0, 0, 1, 2}, "the same node": {0, 1, 0, 1}} {
		t.Run(name, func(t *testing.T) {
			slots := waitsFor(t, nodes, func(_ *testing.T, _ *world.Env, g *Group) error {
				_, err := submit(g, allReduce(floats(1, 2)))
				return err
			})
			// Before the news of the first report is there, a rank of another node may report, too.
			if assert.NotEmpty(t, slots) && assert.Less(t, len(slots), 3) {
				assert.Regexp(t, `s in all_reduce\(float32\[2\], SUM\), number 2 on the group of ranks \[0 1 2 3\]: rank 3 on host \S+ has not come: its last operation was all_reduce\(float32\[1\], SUM\), number 1 on the same group, which ended \d`, slots[0])
			}
		})
	}
}

// Without connections to other nodes the ranks there are named, and nothing is known of them.
func TestLongWaitsWithoutConnections(t *testing.T) {
	t.Setenv("PADDLEMPI_DEAD_AFTER", "0")
	slots := waitsFor(t, []int{0, 1}, func(_ *testing.T, _ *world.Env, g *Group) error {
		_, err := submit(g, allReduce(floats(1)))
		return err
	})
	if assert.Len(t, slots, 1) {
		assert.Contains(t, slots[0], "number 2 on the group of ranks [0 1]: rank 1 has not come: what it does is not known here (PADDLEMPI_DEAD_AFTER is 0 on rank 1). `py")
	}
}
