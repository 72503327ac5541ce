package world

import (
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/dl"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// The variables that say which algorithms serve the collectives of a group that is made now.
const (
	algorithmsVariable = "PADDLEMPI_ALGO"
	levelsVariable     = "PADDLEMPI_LEVELS"
	tuneVariable       = "PADDLEMPI_TUNE"
)

// readForced reads them. what is the caller's function, for the error.
func readForced(what string) (coll.Forced, error) {
	list, _ := dl.Getenv(algorithmsVariable)
	f, err := coll.ParseForced(list)
	if err != nil {
		return 0, status.New(status.CodeOf(err), "%s: %s=%s: %v", what, algorithmsVariable, list, err)
	}
	switch levels, _ := dl.Getenv(levelsVariable); levels {
	case "", "1":
	case "0":
		f |= coll.WithoutLevels
	default:
		err = status.New(status.Argument, "%s: %s=%s: it is 0, for no levels and slices between nodes, or 1", what, levelsVariable, levels)
	}
	switch tune, _ := dl.Getenv(tuneVariable); tune {
	case "", "once":
	case "off":
		f |= coll.WithoutTuning
	case "on":
		f |= coll.TuningAlways
	default:
		err = status.New(status.Argument, "%s: %s=%s: it is off, once or on", what, tuneVariable, tune)
	}
	return f, err
}

// AgreeOnForced reads the variables and compares them with those of the other ranks of comm, all of
// which call it. Ranks that preferred different algorithms would deadlock, so they get an error.
func AgreeOnForced(what string, comm transport.Exchange) (coll.Forced, error) {
	forced, mistake := readForced(what)
	const wrong = -1 // is below every Forced
	list, levels, tune := int64(forced&^coll.WithoutLevels&^coll.Tuning), int64(forced&coll.WithoutLevels), int64(forced&coll.Tuning)
	if mistake != nil {
		list, levels, tune = wrong, wrong, wrong
	}
	words := []int64{list, ^list, levels, ^levels, tune, ^tune}
	if err := comm.Min(words); err != nil {
		return 0, err
	}
	switch {
	case mistake != nil:
		return 0, mistake
	case words[0] == wrong:
		return 0, status.New(status.Refused, "%s: %s, %s or %s is wrong on another rank, and its own error says how", what, algorithmsVariable, levelsVariable, tuneVariable)
	}
	for i, variable := range []string{algorithmsVariable, levelsVariable, tuneVariable} {
		if words[2*i] != ^words[2*i+1] {
			value, _ := dl.Getenv(variable)
			return 0, status.New(status.Mismatch, "%s: %s differs between the ranks; it is %q on this rank: set it alike on all of them", what, variable, value)
		}
	}
	return forced, nil
}
