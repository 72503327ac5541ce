package health

import (
	"fmt"
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/liveness"
	"github.com/paddlempi/paddlempi/gocore/topo"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// NewRoster makes the roster of a rank, which knows of the other nodes by package liveness. It is collective over base.
// here is what the memory of this node shows, and recorder answers the questions of other ranks for what a rank of this node
// does. If some rank cannot take part in liveness, no rank is watched over nodes, and unwatched says why. After an error
// the roster knows of this node only.
func NewRoster(base transport.Exchange, t *topo.Topology, here *NodeView, q *Questions, deadAfter time.Duration, recorder *Recorder) (*Roster, error) {
	o := &Roster{Questions: q, topo: t, here: here, recorder: recorder, alive: &liveness.Liveness{}, deadAfter: deadAfter}
	q.mail.Skip(o.isDead)
	if t.OneNode(transport.EveryRank(t.Size)) {
		o.unwatched = "all ranks are on one node"
		return o, nil
	}
	return o, o.watch(base)
}

// watch begins to watch the ranks of other nodes: see NewRoster.
func (o *Roster) watch(base transport.Exchange) error {
	// One row for each rank: how long a host may be silent, a secret, and where the rank listens.
	const placeAt = 1 + len(liveness.Secret{})
	secret, mistake := liveness.NewSecret()
	alive := o.alive
	if mistake == nil && o.deadAfter > 0 {
		alive, mistake = liveness.Listen(o.deadAfter)
	}
	place := alive.Place().Words()
	row := slices.Concat([]int64{int64(o.deadAfter)}, secret[:], place[:])
	rows, err := base.Gather(row, nil)
	if err != nil {
		return err
	}
	job := liveness.Job{Rank: o.topo.Rank, Node: o.topo.Node, Places: make([]liveness.Place, o.topo.Size), Secret: liveness.Secret(rows[0][1:placeAt]), OnQuestion: o.recorder.Answer}
	listening := true
	for r, row := range rows {
		if row[0] == 0 {
			o.unwatched = fmt.Sprintf("%s is 0 on rank %d", liveness.Variable, r)
		}
		job.Places[r] = liveness.PlaceOf([liveness.PlaceWords]int64(row[placeAt:]))
		listening = listening && job.Places[r].Port != 0
	}
	if listening {
		mistake = alive.Start(job)
	}
	all, err := transport.GatherBool(base, mistake == nil, nil)
	if err != nil {
		return err
	}
	if r := slices.Index(all, false); r >= 0 && o.unwatched == "" {
		o.unwatched = fmt.Sprintf("rank %d could not take part; its own reason says why", r)
	}
	if mistake != nil {
		o.unwatched = mistake.Error()
	}
	if o.unwatched == "" {
		o.alive = alive
	} else {
		alive.Close()
	}
	return nil
}
