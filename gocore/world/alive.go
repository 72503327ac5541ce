package world

import (
	"fmt"

	"github.com/paddlempi/paddlempi/gocore/liveness"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// watch begins to watch the ranks of a job on several nodes, by package liveness. It is collective over base.
// onQuestion answers a question of another rank. If some rank cannot take part, no rank is watched, and
// o.unwatched says why.
func (o *Roster) watch(base transport.Comm, onQuestion func([liveness.QuestionBytes]byte) []byte) error {
	if o.topo.OneNode(transport.EveryRank(o.topo.Size)) {
		o.unwatched = "all ranks are on one node"
		return nil
	}
	// One row for each rank: how long a host may be silent, a secret, and where the rank listens.
	const secretAt, placeAt, rowWords = 1, 5, 5 + liveness.PlaceWords
	row := make([]int64, rowWords)
	row[0] = int64(o.deadAfter)
	secret, mistake := liveness.NewSecret()
	for i, w := range secret {
		row[secretAt+i] = int64(w)
	}
	var alive *liveness.Liveness
	if mistake == nil && o.deadAfter > 0 {
		if alive, mistake = liveness.Listen(o.deadAfter); mistake == nil {
			place := alive.Place().Words()
			copy(row[placeAt:], place[:])
		}
	}
	rows, err := base.Gather(row, nil)
	if err != nil {
		return err
	}
	job := liveness.Job{Rank: o.topo.Rank, Node: o.topo.Node, Places: make([]liveness.Place, o.topo.Size), OnQuestion: onQuestion}
	for i := range job.Secret {
		job.Secret[i] = uint64(rows[0][secretAt+i])
	}
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
	all, err := gatherBool(base, mistake == nil, nil)
	if err != nil {
		return err
	}
	for r, ok := range all {
		if !ok && o.unwatched == "" {
			o.unwatched = fmt.Sprintf("rank %d could not take part; its own reason says why", r)
		}
	}
	if mistake != nil {
		o.unwatched = mistake.Error()
	}
	if o.unwatched == "" {
		o.alive = alive
	} else if alive != nil {
		alive.Close()
	}
	return nil
}
