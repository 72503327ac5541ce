package coll

import (
	"sync/atomic"

	"github.com/paddlempi/paddlempi/gocore/arrive"
)

// Choices keeps what the registry says of the calls of a group, so that it is walked once for each signature. The zero value is
// ready for use; all methods are safe for concurrent use. A signature whose place another one takes is looked up again.
type Choices struct {
	kept [keptChoices]atomic.Pointer[choice]
	ways [keptChoices]atomic.Pointer[waysOfCall]
}

const keptChoices = 64

// choice is what the registry says of one signature.
type choice struct {
	sig     Sig
	alg     *Algorithm
	scratch []func(*Args) int64 // of the algorithms that may serve a call of which less is agreed on
}

// ofArrival are the flags that say how the members have come, of which no algorithm depends on any.
const ofArrival = (arrive.Others - 1) &^ arrive.Summed

// of returns the choice for a signature.
func (k *Choices) of(s *Sig) (*choice, error) {
	sig := s.withoutArrival()
	if c := k.kept[sig.place()].Load(); c != nil && c.sig == sig {
		return c, nil
	}
	return k.lookUp(sig)
}

func (s *Sig) withoutArrival() Sig {
	sig := *s
	sig.Agreed, sig.Any = s.Agreed&^ofArrival, s.Any&^ofArrival
	return sig
}

// lookUp walks the registry, and keeps what it says.
func (k *Choices) lookUp(sig Sig) (*choice, error) {
	c := &choice{sig: sig}
	var err error
	if c.alg, err = Choose(&sig); err != nil {
		return nil, err
	}
	for _, alg := range algorithms(sig.Code) {
		if alg.scratch != nil && alg.serves(&sig) {
			c.scratch = append(c.scratch, alg.scratch)
		}
	}
	k.kept[sig.place()].Store(c)
	return c, nil
}

// place returns the place of a signature among those that are kept.
func (s *Sig) place() uint64 {
	h := uint64(s.Count)<<8 ^ uint64(s.Code)
	h = h*31 ^ uint64(s.DType)<<4 ^ uint64(s.Reduce)
	h = h*31 ^ uint64(s.Root)
	h = h*31 ^ uint64(s.Agreed)<<16 ^ uint64(s.Any)
	return h * 0x9e37_79b9_7f4a_7c15 >> 58 % keptChoices // Fibonacci hashing (Knuth, volume 3, section 6.4)
}

// Choose is the function Choose for a call of the group.
func (k *Choices) Choose(s *Sig) (*Algorithm, error) {
	c, err := k.of(s)
	if err != nil {
		return nil, err
	}
	return c.alg, nil
}

// waysOfCall is the ways of one signature.
type waysOfCall struct {
	sig Sig
	Ways
}

// Ways returns the ways of a call of a group over nodes: see waysOf.
func (k *Choices) Ways(a *Args) *Ways {
	sig := a.Sig
	sig.Agreed, sig.Any = 0, 0
	w := k.ways[sig.place()].Load()
	if w == nil || w.sig != sig {
		w = &waysOfCall{sig, waysOf(&sig, a.Payloads.Rooms())}
		k.ways[sig.place()].Store(w)
	}
	return &w.Ways
}

// Scratch is the function Scratch for a call of the group, and for all its ways.
func (k *Choices) Scratch(a *Args, flags arrive.Flags) (most int64) {
	if a.Nodes > 1 {
		for _, way := range k.Ways(a).List {
			if way.scratch != nil {
				a.Pieces = way.Pieces
				most = max(most, way.scratch(a))
			}
		}
		a.Pieces = Pieces{}
	}
	return max(most, k.usualScratch(a, flags))
}

func (k *Choices) usualScratch(a *Args, flags arrive.Flags) (most int64) {
	a.Agreed, a.Any = flags, flags
	c, err := k.of(&a.Sig)
	if err != nil {
		return Scratch(a, flags) // fewer flags may be agreed on
	}
	for _, scratch := range c.scratch {
		most = max(most, scratch(a))
	}
	return most
}
