package coll

// Phase is what the steps of slices and levels are at, for errors and the flight recorder. The zero value: something
// else.
type Phase struct {
	Where   Where
	Rail    int // which slice it is, of those that the ranks of a node share out
	Partner int // the rank of the group from which a message is awaited, or that has to take one; -1: none
}

// Where says which ranks work together in a phase.
type Where uint8

// The phases.
const (
	NoPhase      Where = iota
	OnNode             // those on this rank's node
	BetweenNodes       // those of a rail
)

// Phase returns in which phase the program is, or in which it has failed.
func (p *Program) Phase() Phase {
	if p.phase == nil {
		return Phase{}
	}
	return p.phase()
}
