package server

import (
	"math"

	"github.com/paddlempi/paddlempi/gocore/ps/request"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// accessStates reads or writes the states of rows, and the steps of their table, of which Adam's
// bias correction depends.
func (u *update) accessStates(version int64) (answer request.Answer, err error) {
	answer.Version = version
	if u.op == request.WriteStates {
		if err := u.makeRows(); err != nil {
			return answer, err
		}
	}
	for _, r := range u.tables {
		steps, err := r.states(u.op)
		if err != nil {
			return answer, r.says(err)
		}
		answer.Steps = max(answer.Steps, steps)
	}
	return answer, nil
}

// states does so in one table.
func (r *tableRows) states(what request.Op) (steps int64, err error) {
	b := r.batch()
	if what == request.ReadStates {
		return r.table.ReadStates(b.IDs, b.Values)
	}
	if !(r.rate >= 0 && r.rate < 1<<53) || math.Trunc(r.rate) != r.rate {
		return 0, status.New(status.Argument, "write states: steps=%v is not an integer from 0 to below 2^53", r.rate)
	}
	return 0, r.table.WriteStates(b.IDs, b.Values, int64(r.rate))
}
