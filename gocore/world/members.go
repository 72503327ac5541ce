package world

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// Members are the members of a group, as one of them sees it, and the waits of that one for the others. All methods are
// safe for concurrent use. What describes the operation of an error.
type Members struct {
	Env   *Env
	Rank  int // rank of this process in the group
	Size  int
	Ranks []int // Ranks[i] is the world rank of member i

	ended atomic.Pointer[status.Error] // why no operation of the group must wait any longer; nil while they may
}

// End ends every wait of the group because of why.
func (m *Members) End(why *status.Error) { m.ended.Store(why) }

// Ending returns why no operation of the group may wait any longer, nil while they may.
func (m *Members) Ending() error {
	if why := m.ended.Load(); why != nil {
		return why
	}
	if why := m.Env.Ending(); why != nil {
		return why
	}
	return nil
}

// EndingError is Ending as an error of one operation.
func (m *Members) EndingError(what string) error {
	why := m.Ending()
	if why == nil {
		return nil
	}
	return status.New(status.CodeOf(why), "%s: %v", m.Of(what), why)
}

// Wait drives the engine until done returns true. It returns an error of Engine.Wait, or the reason
// why the group ends.
func (m *Members) Wait(done func() bool, deadline time.Time) error {
	var ending error
	err := m.Env.Engine.Wait(func() bool {
		if done() {
			return true
		}
		ending = m.Ending()
		return ending != nil
	}, deadline, m.Env.Interrupt)
	if err == nil {
		err = ending
	}
	return err
}

// Of describes an operation of the group.
func (m *Members) Of(what string) string {
	return fmt.Sprintf("%s on the group of ranks %s", what, status.Brief(m.Ranks))
}

// World returns the world ranks of members.
func (m *Members) World(members []int) []int {
	var ranks []int
	for _, i := range members {
		ranks = append(ranks, m.Ranks[i])
	}
	return ranks
}

// Dead returns the members that are dead. It looks at once.
func (m *Members) Dead() (members []int) {
	for _, r := range m.Env.Roster.Dead(m.Ranks) {
		members = append(members, slices.Index(m.Ranks, r))
	}
	return members
}

// AnyDied tells whether a member is dead, as Roster.Died does.
func (m *Members) AnyDied() bool { return m.Env.Roster.AnyDied(m.Ranks) }

// DiedError is the error of an operation because of dead members. after says what became of the operation and its
// group.
func (m *Members) DiedError(what string, members []int, after string) error {
	return m.Env.Roster.DiedError(m.Of(what), m.World(members), after)
}

// AwaitName waits, on the thread of a caller, as long as err should not be told (News).
func (m *Members) AwaitName(err error) {
	var n News
	if n.Waits(m, err) {
		_ = m.Env.Engine.Wait(func() bool { return !n.Waits(m, err) }, time.Time{}, nil)
	}
}

// Named returns err, or the error of the operation if err tells of a death.
func (m *Members) Named(what string, err error) error {
	if err == nil || status.CodeOf(err) != status.ProcFailed {
		return err
	}
	return m.DeathError(what, m.Dead(), fmt.Sprintf("the group is broken (%v)", err), err)
}

// DeathError is the error of an operation because of err, with which MPI tells of a death. If dead is empty, it is not
// known who has died. after says what became of the operation.
func (m *Members) DeathError(what string, dead []int, after string, err error) error {
	if len(dead) > 0 {
		return m.DiedError(what, dead, after)
	}
	text := status.New(status.ProcFailed, "%s: a rank has died, and MPI does not say which; %s", m.Of(what), after)
	var e *status.Error
	if errors.As(err, &e) {
		text.MPIClass = e.MPIClass
	}
	return text
}
