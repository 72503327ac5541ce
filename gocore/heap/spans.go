package heap

import "slices"

// span is a range of bytes: from is in it, to is not.
type span struct{ from, to int64 }

func (s span) size() int64 { return s.to - s.from }

// spans are the free ranges of a segment, in order. No two of them touch.
type spans []span

// take removes n bytes from the smallest range that has them, and returns where they begin. ok is false if
// no range is long enough.
func (f *spans) take(n int64) (from int64, ok bool) {
	best := -1
	for i, s := range *f {
		if s.size() >= n && (best < 0 || s.size() < (*f)[best].size()) {
			best = i
		}
	}
	if best < 0 {
		return 0, false
	}
	s := &(*f)[best]
	from = s.from
	s.from += n
	if s.size() == 0 {
		*f = slices.Delete(*f, best, best+1)
	}
	return from, true
}

// give adds a range, and joins it with its neighbours.
func (f *spans) give(s span) {
	i, _ := slices.BinarySearchFunc(*f, s.from, func(a span, from int64) int { return int(min(max(a.from-from, -1), 1)) })
	before, after := i > 0 && (*f)[i-1].to == s.from, i < len(*f) && (*f)[i].from == s.to
	switch {
	case before && after:
		(*f)[i-1].to = (*f)[i].to
		*f = slices.Delete(*f, i, i+1)
	case before:
		(*f)[i-1].to = s.to
	case after:
		(*f)[i].from = s.from
	default:
		*f = slices.Insert(*f, i, s)
	}
}

// largest returns the length of the longest range.
func (f spans) largest() int64 {
	var most int64
	for _, s := range f {
		most = max(most, s.size())
	}
	return most
}
