package collective

import (
	"time"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/tune"
)

// trial is the way of a collective over nodes, and the measurement of its time (package tune). The zero value takes the usual way.
type trial struct {
	way     *coll.Way // nil: the usual one
	name    *string
	begun   time.Time     // when it was announced; zero: its time is not measured
	polled  time.Time     // when a thread last took it further; zero: none has yet
	longest time.Duration // in which no thread did
	others  uint64        // see world.Overlap
	counted bool
}

// modes says when a group measures.
func modes(f coll.Forced) tune.Mode {
	switch {
	case f&coll.WithoutTuning != 0:
		return tune.Off
	case f&coll.TuningAlways != 0:
		return tune.Always
	}
	return tune.Once
}

// propose chooses the way of the call r, which is announced now.
func (t *trial) propose(r *request) {
	g := r.g
	ways := g.choices.Ways(&r.args)
	if ways.List == nil {
		return
	}
	n, measured := g.Tuner.Propose(ways.Class, ways.Names)
	t.way, t.name = &ways.List[n], &ways.Names[n]
	r.flags = t.way.Announces(r.flags)
	if measured {
		t.begun = time.Now()
	}
}

// agreed takes in what came with the announcements of all members.
func (t *trial) agreed(r *request, state arrive.State, res arrive.Result) {
	r.g.Tuner.Heard(res.Told, state == arrive.Agreed && res.Any&arrive.Refused == 0)
	t.others, t.counted = r.g.Env.Groups.Overlap.Begin(), true
}

// algorithm returns the algorithm of the way if it serves what all members have agreed on, else that of the usual way, usual.
func (t *trial) algorithm(r *request, usual *coll.Algorithm) *coll.Algorithm {
	if t.way == nil || !t.way.Serves(&r.args.Sig) {
		t.way, t.name, t.begun = nil, nil, time.Time{}
		return usual
	}
	r.args.Pieces = t.way.Pieces
	return t.way.Algorithm
}

// While nobody polls, a collective does not go on, however fast its way is. Its time counts for nothing if that was so for more than
// mostUnpolled, and for more than a quarter of its time.
const mostUnpolled = 300 * time.Microsecond

// poll notes that a thread comes to take the collective further, and left that it leaves it.
func (t *trial) poll() {
	if t.begun.IsZero() || t.polled.IsZero() {
		return
	}
	t.longest = max(t.longest, time.Since(t.polled))
}

func (t *trial) left() {
	if !t.begun.IsZero() {
		t.polled = time.Now()
	}
}

// took returns how long it took; 0: its time counts for nothing.
func (t *trial) took() time.Duration {
	took := time.Since(t.begun)
	if t.begun.IsZero() || t.longest > mostUnpolled && t.longest > took/4 {
		return 0
	}
	return took
}

// end tells the tuner how long a collective took that was counted, unless it has failed or another one was under way between nodes.
func (t *trial) end(g *Group, err error) {
	t.counted = false
	if alone := g.Env.Groups.Overlap.End(t.others); alone && err == nil {
		g.Tuner.Done(t.took())
	}
}
