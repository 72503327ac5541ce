package coll

import (
	"slices"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// Served says which algorithm serves an operation from some length of its tensors on.
type Served struct {
	Operation string `json:"operation"`
	DType     string `json:"dtype"`
	From      int64  `json:"from"` // bytes of the longer side of a rank
	Algorithm string `json:"algorithm"`
}

// AlgorithmsBySize returns which algorithms Choose takes in a group over nodes, for tensors in host memory, as they grow. s
// has what does not depend on a call. 16-bit floats have rows of their own where they are served in another way.
func AlgorithmsBySize(s Sig, rooms arrive.Rooms) (list []Served) {
	for c := range registry {
		s.Code, s.DType, s.Reduce = op.Code(c), op.Float32, 0
		t := s.Trait()
		if len(registry[c]) == 0 || t.Prefix || s.Code == op.Barrier || s.Code == op.AllReduceCoalesced {
			continue
		}
		if !t.Reduces {
			list = append(list, s.served(rooms)...)
			continue
		}
		s.Reduce = op.Sum
		usual := s.served(rooms)
		list = append(list, usual...)
		s.DType = op.BFloat16
		if short := s.served(rooms); !slices.EqualFunc(usual, short, func(a, b Served) bool { return a.Algorithm == b.Algorithm }) {
			list = append(list, short...)
		}
	}
	return list
}

// longestServed is up to which length served looks, in bytes.
const longestServed = 1 << 34

// served returns the rows of one operation and dtype.
func (s *Sig) served(rooms arrive.Rooms) (list []Served) {
	elem := int64(s.DType.Size())
	if s.Trait().Shares != op.NoShares {
		elem *= int64(s.Size) // one element for each rank
	}
	name := ""
	for high := int64(1); high*elem <= longestServed; high *= 2 {
		if s.servedBy(high, rooms) == name {
			continue
		}
		low := high / 2
		for high-low > 1 {
			if middle := (low + high) / 2; s.servedBy(middle, rooms) == name {
				low = middle
			} else {
				high = middle
			}
		}
		name = s.servedBy(high, rooms)
		list = append(list, Served{s.Code.String(), s.DType.String(), high * elem, name})
	}
	return list
}

// servedBy returns the algorithm for tensors or shares of so many elements, "" for none.
func (s *Sig) servedBy(count int64, rooms arrive.Rooms) string {
	call := *s
	call.Count = count
	call = call.usual(rooms)
	alg, err := Choose(&call)
	if err != nil || count == 0 {
		return ""
	}
	return alg.Name
}

// usual returns s with the flags that all members announce for tensors in host memory that have the same length on all.
func (s *Sig) usual(rooms arrive.Rooms) Sig {
	call := *s
	call.Agreed, call.Any = Even, 0
	bytes, t := s.Count*int64(s.DType.Size()), s.Trait()
	if t.Shares != op.NoShares && t.Send.PerRank() && !s.keepsOwn() {
		bytes *= int64(s.Size)
	}
	switch {
	case bytes <= s.room(rooms):
		call.Agreed |= Inline
	case call.byLeaders(rooms):
		call.Agreed |= arrive.Summed
	}
	if s.Rails > 0 && s.large() {
		call.Agreed |= ForLevels
	}
	return call
}
