// Package op has the words that all packages of the core share: the operations, dtypes and reduce
// ops, with their properties (op_gen.go, which tools/opgen generates from one table), and the
// descriptor that carries one operation across the C ABI (descriptor.go).
//
// It imports the standard library only.
package op

import "strconv"

type (
	// Code is the number of an operation.
	Code int32
	// DType is the type of one element of a buffer.
	DType int32
	// ReduceOp says how the ranks' elements become one. 0 is none.
	ReduceOp int32
	// Arity says how many buffers an operation takes on one side.
	Arity int32
	// Who is a set of ranks of a group.
	Who int32
	// Shares says how long the n shares of a side are, if it has one for each rank (Arity.PerRank).
	Shares int32
)

// Trait has the properties of an operation that do not depend on its arguments.
type Trait struct {
	Name       string
	Collective bool // every member of the group calls it, in the same order
	Reduces    bool // it needs a reduce op that is defined for the dtype
	Prefix     bool // rank i reduces over the ranks up to i, not over all
	Rooted     bool // it needs a root
	PeerToPeer bool // it takes a peer and a tag, and is not in the order of the group's collectives
	Neighbours bool // a rank exchanges with some ranks only, by a pattern whose number is in Desc.Peer
	Result     bool // it returns the source, length and tag of a message
	Send, Recv Arity
	Gives      Who // the ranks that have an input; it is in recv if they pass no send buffer
	Gets       Who // the ranks whose recv is written
	Shares     Shares
}

// TraitOf returns the trait of c, or false if c is no operation.
func TraitOf(c Code) (Trait, bool) {
	t := c.Trait()
	return *t, t != &traits[0]
}

// Trait returns the row of c in the table, which must not be changed. It is an empty row if c is no
// operation.
func (c Code) Trait() *Trait {
	if !known(c, len(traits)) {
		return &traits[0]
	}
	return &traits[c]
}

// ReadsRecv tells whether the recv buffers of rank hold its input. They do if rank has an input and
// passes no send buffer.
func (t *Trait) ReadsRecv(root, rank, sends int) bool {
	return sends == 0 && t.Gives.Includes(root, rank)
}

// WritesRecv tells whether the recv buffers of rank are written.
func (t *Trait) WritesRecv(root, rank int) bool { return t.Gets.Includes(root, rank) }

// Includes tells whether rank is in the set. root and rank are ranks of the group.
func (w Who) Includes(root, rank int) bool {
	switch w {
	case Everyone:
		return true
	case Root:
		return rank == root
	case ExceptRoot:
		return rank != root
	case ExceptFirst:
		return rank != 0
	}
	return false
}

// Defined tells whether r reduces elements of type d.
func Defined(r ReduceOp, d DType) bool {
	return known(r, len(defined)) && known(d, len(dtypeSizes)) && defined[r]&(1<<d) != 0
}

// Valid tells whether d is a dtype.
func (d DType) Valid() bool { return known(d, len(dtypeSizes)) }

// Size returns the bytes of one element, or 0 if d is no dtype.
func (d DType) Size() int {
	if !d.Valid() {
		return 0
	}
	return int(dtypeSizes[d])
}

// String returns the name that NumPy, torch and Paddle use: "float32".
func (d DType) String() string { return name(d, dtypeNames[:], "dtype") }

// Valid tells whether r is a reduce op.
func (r ReduceOp) Valid() bool { return known(r, len(reduceNames)) }

// String returns the name as in Python's ReduceOp: "SUM".
func (r ReduceOp) String() string { return name(r, reduceNames[:], "reduce op") }

// String returns the name of the operation: "all_reduce".
func (c Code) String() string {
	if t, ok := TraitOf(c); ok {
		return t.Name
	}
	return "operation " + strconv.Itoa(int(c))
}

// ParseDType finds a dtype by its name.
func ParseDType(s string) (DType, bool) { return parse[DType](s, dtypeNames[:]) }

// String returns the end of a sentence "takes ...": "one buffer, or one for each rank".
func (a Arity) String() string {
	if a < 0 || int(a) >= len(arityText) {
		return "arity " + strconv.Itoa(int(a))
	}
	return arityText[a]
}

// Accepts tells whether a rank may pass count buffers in a group of size ranks. root tells whether
// the rank is the operation's root.
//
// With the arities for the root alone, other ranks may pass what the root would. Their buffers are
// not looked at.
func (a Arity) Accepts(count, size int, root bool) bool {
	switch a {
	case None:
		return count == 0
	case One:
		return count == 1
	case Optional:
		return count <= 1
	case OptionalOnRoot:
		return count == 1 || root && count == 0
	case OneOrN:
		return count == 1 || count == size
	case Many:
		return count >= 1
	case RootOne:
		return count == 1 || !root && count == 0
	case RootOneOrN:
		return count == 1 || count == size || !root && count == 0
	case Any:
		return true
	}
	return false
}

// RootAlone tells whether only the root's buffers are looked at.
func (a Arity) RootAlone() bool { return a == RootOne || a == RootOneOrN }

// PerRank tells whether the side has one share for each rank: in one buffer, or in as many as there
// are ranks.
func (a Arity) PerRank() bool { return a == OneOrN || a == RootOneOrN }

// known tells whether n is the number of a row. Row 0 is no row.
func known[T ~int32](n T, rows int) bool { return n > 0 && int(n) < rows }

func name[T ~int32](n T, names []string, what string) string {
	if known(n, len(names)) {
		return names[n]
	}
	return what + " " + strconv.Itoa(int(n))
}

func parse[T ~int32](s string, names []string) (T, bool) {
	for n := 1; n < len(names); n++ {
		if names[n] == s {
			return T(n), true
		}
	}
	return 0, false
}
