package coll

import (
	"slices"
	"strings"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Forced says what a group prefers to the usual choice. It has four bits for each collective: 0, or 1 plus
// the place in the registry of the first algorithm of that name. All members of a group have the
// same Forced.
//
// Choose takes a forced algorithm if it serves the call, and otherwise chooses as usual.
type Forced uint64

const forcedBits, forcedMask = 4, 1<<4 - 1

// Bits beside those of the collectives.
const (
	WithoutLevels Forced = 1 << 62 // the algorithms slices and levels are off
	WithoutTuning Forced = 1 << 61 // every call is carried out in the usual way: see package tune
	TuningAlways  Forced = 1 << 60
	Tuning               = WithoutTuning | TuningAlways
)

// ParseForced reads a list like "all_reduce:mpi,broadcast:mpi". An operation may have one algorithm.
func ParseForced(list string) (f Forced, err error) {
	for _, pair := range strings.Split(list, ",") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		operation, name, _ := strings.Cut(pair, ":")
		code := codeOf(operation)
		if code == 0 {
			return 0, status.New(status.Argument, "%q: there is no collective %q; the list is operation:algorithm,..., as all_reduce:mpi", pair, operation)
		}
		if f.of(code) != nil {
			return 0, status.New(status.Argument, "%q: %s is in the list twice", pair, operation)
		}
		var names []string
		for i, alg := range registry[code] {
			if alg.Name == name {
				f |= Forced(i+1) << (forcedBits * place[code])
				break
			}
			if !slices.Contains(names, alg.Name) { // some serve different calls under one name
				names = append(names, alg.Name)
			}
		}
		if f.of(code) == nil {
			return 0, status.New(status.Argument, "%q: %s has no algorithm %q; it has %s", pair, operation, name, strings.Join(names, ", "))
		}
	}
	return f, nil
}

// codeOf returns the collective of that name, or 0.
func codeOf(name string) op.Code {
	for c := range registry {
		if len(registry[c]) > 0 && op.Code(c).String() == name {
			return op.Code(c)
		}
	}
	return 0
}

// of returns the first algorithm of the forced name, or nil if the operation has none.
func (f Forced) of(c op.Code) *Algorithm {
	if i := f >> (forcedBits * place[c]) & forcedMask; i > 0 {
		return registry[c][i-1]
	}
	return nil
}

// serving returns the forced algorithm for a call, or nil. An operation may have several algorithms
// of one name, for different calls.
func (f Forced) serving(s *Sig) *Algorithm {
	if first := f.of(s.Code); first != nil {
		for _, alg := range registry[s.Code] {
			if alg.Name == first.Name && alg.serves(s) {
				return alg
			}
		}
	}
	return nil
}
