package control

import (
	"slices"

	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/method"
	"github.com/paddlempi/paddlempi/gocore/registry"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

type newGroupRequest struct {
	timeoutRequest
	Ranks []int `json:"ranks"`
}

// newGroup makes a group of ranks of the world that another group is of.
func newGroup(of *group.Group, r newGroupRequest, _ work.Interrupt) (any, error) {
	w, err := registry.WorldOf(of)
	if err != nil {
		return nil, err
	}
	t := w.Env.Topo
	seen := make([]bool, t.Size)
	for i, rank := range r.Ranks {
		if rank < 0 || rank >= t.Size {
			return nil, status.New(status.Argument, "new_group: ranks[%d] is %d; the world has ranks 0 to %d", i, rank, t.Size-1)
		}
		if seen[rank] {
			return nil, status.New(status.Argument, "new_group: rank %d is in ranks twice", rank)
		}
		seen[rank] = true
	}
	if len(r.Ranks) == 0 {
		return nil, status.New(status.Argument, "new_group: ranks is empty; name at least one rank")
	}
	me := slices.Index(r.Ranks, t.Rank)
	if me < 0 {
		return map[string]any{"group": nil, "rank": -1}, nil
	}
	timeout := method.SecondsOr(r.Timeout, w.All().Timeout())
	g, err := w.Add(func(id int64) (*group.Group, error) { return group.New(w.Env, id, r.Ranks, timeout) })
	if err != nil {
		return nil, err
	}
	return map[string]any{"group": g.ID, "rank": me}, nil
}

func destroyGroup(g *group.Group, _ ofGroup, _ work.Interrupt) (any, error) {
	return done, registry.Remove(g)
}

func groupInfo(g *group.Group, _ ofGroup, _ work.Interrupt) (any, error) {
	broken := ""
	if err := g.Broken(); err != nil {
		broken = err.Error()
	}
	way := g.Tuner.Last()
	if way == "" {
		way = g.Algorithm()
	}
	return map[string]any{"group": g.ID, "rank": g.Rank, "size": g.Size, "ranks": g.Ranks,
		"timeout": g.Timeout().Seconds(), "one_node": g.Local, "algorithm": g.Algorithm(), "way": way, "tuned": tuned(g), "broken": broken}, nil
}

// tunedClass is what a group over nodes knows of the calls of one class.
type tunedClass struct {
	Operation string    `json:"operation"`
	Half      bool      `json:"half"` // 16-bit floats are summed up
	From      int64     `json:"from"` // bytes; the class ends below twice as many
	Ways      []string  `json:"ways"`
	Times     []float64 `json:"times"` // seconds; 0: not measured
	Best      string    `json:"best"`
	Tuned     bool      `json:"tuned"` // every way was tried, here or by the table
	Given     bool      `json:"given"` // the table says so
}

func tuned(g *group.Group) []tunedClass {
	list := []tunedClass{}
	for _, c := range g.Tuner.Chosen() {
		row := tunedClass{c.Code.String(), c.Half, 1 << (c.Length - 1), c.Ways, nil, c.Ways[c.Best], c.Tuned, c.Given}
		for _, d := range c.Times {
			row.Times = append(row.Times, d.Seconds())
		}
		list = append(list, row)
	}
	return list
}

func setTimeout(g *group.Group, r timeoutRequest, _ work.Interrupt) (any, error) {
	if r.Timeout == nil || *r.Timeout < 0 {
		return nil, status.New(status.Argument, "set_timeout: timeout must be a number of seconds, 0 or more")
	}
	g.SetTimeout(method.Seconds(r.Timeout))
	return done, nil
}

func monitoredBarrier(g *group.Group, r timeoutRequest, _ work.Interrupt) (any, error) {
	return done, g.MonitoredBarrier(method.SecondsOr(r.Timeout, g.Timeout()))
}
