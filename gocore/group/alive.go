package group

import (
	"fmt"

	"github.com/paddlempi/paddlempi/gocore/liveness"
)

// This file connects the environment to package liveness, which tells of deaths on all nodes.

// watchRanks begins to watch the ranks of a job on several nodes. It is collective over base. If some
// rank cannot take part, no rank is watched, and e.unwatched says why.
func (e *Env) watchRanks() error {
	if e.Topo.OneNode(e.everyRank()) {
		e.unwatched = "all ranks are on one node"
		return nil
	}
	// One row for each rank: how long a host may be silent, a secret, and where the rank listens.
	const secretAt, placeAt, rowWords = 1, 5, 5 + liveness.PlaceWords
	row := make([]int64, rowWords)
	row[0] = int64(e.deadAfter)
	secret, mistake := liveness.NewSecret()
	for i, w := range secret {
		row[secretAt+i] = int64(w)
	}
	var alive *liveness.Liveness
	if mistake == nil && e.deadAfter > 0 {
		if alive, mistake = liveness.Listen(e.deadAfter); mistake == nil {
			place := alive.Place().Words()
			copy(row[placeAt:], place[:])
		}
	}
	rows, err := e.base.Gather(row, nil)
	if err != nil {
		return err
	}
	job := liveness.Job{Rank: e.Topo.Rank, Node: e.Topo.Node, Places: make([]liveness.Place, e.Topo.Size), OnQuestion: e.onQuestion}
	for i := range job.Secret {
		job.Secret[i] = uint64(rows[0][secretAt+i])
	}
	listening := true
	for r, row := range rows {
		if row[0] == 0 {
			e.unwatched = fmt.Sprintf("%s is 0 on rank %d", liveness.Variable, r)
		}
		job.Places[r] = liveness.PlaceOf([liveness.PlaceWords]int64(row[placeAt:]))
		listening = listening && job.Places[r].Port != 0
	}
	if listening {
		mistake = alive.Start(job)
	}
	ok := []int64{1}
	if mistake != nil {
		ok[0] = 0
	}
	all, err := e.base.Gather(ok, nil)
	if err != nil {
		return err
	}
	for r, ok := range all {
		if ok[0] == 0 && e.unwatched == "" {
			e.unwatched = fmt.Sprintf("rank %d could not take part; its own reason says why", r)
		}
	}
	if mistake != nil {
		e.unwatched = mistake.Error()
	}
	if e.unwatched == "" {
		e.alive = alive
	} else if alive != nil {
		alive.Close()
	}
	return nil
}

func (e *Env) everyRank() []int {
	ranks := make([]int, e.Topo.Size)
	for r := range ranks {
		ranks[r] = r
	}
	return ranks
}

// Watch says whether deaths are seen on all nodes of the job, and which ranks are dead.
type Watch struct {
	After float64 `json:"after"` // seconds for which a host may be silent
	Off   string  `json:"off"`   // why only the deaths of this node are seen; "" if those of all are
	Dead  []Death `json:"dead"`  // the ranks that are known to be dead
}

// Death is a rank that is dead.
type Death struct {
	Rank int    `json:"rank"`
	Why  string `json:"why"` // how that is known
}

// Watch returns what is known now.
func (e *Env) Watch() Watch {
	w := Watch{After: e.deadAfter.Seconds(), Off: e.unwatched, Dead: []Death{}}
	for _, r := range e.dead(e.everyRank()) {
		why := e.alive.Why(r)
		if why == "" {
			why = "the kernel has dropped the lock of its process, which had not left the job"
		}
		w.Dead = append(w.Dead, Death{r, why})
	}
	return w
}
