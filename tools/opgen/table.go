package main

import "fmt"

// The tables below are the only list of operations, dtypes and reduce ops. Codes
// are part of the C ABI: they count up from 1 without a gap. A new row gets the
// next code, and no row is ever renumbered.

// arity says how many buffers an operation takes on one side.
type arity struct {
	Ident string // the name in Go; Python has it in upper-case snake form
	Text  string // ends the sentence "takes ..."
}

var arities = []arity{
	{"None", "no buffer"},
	{"One", "one buffer"},
	{"Optional", "one buffer, or none to work in place"},
	{"OptionalOnRoot", "one buffer; the root may give none to work in place"},
	{"OneOrN", "one buffer, or one for each rank"},
	{"Many", "one or more buffers"},
	{"RootOne", "one buffer on the root; other ranks need none"},
	{"RootOneOrN", "one buffer, or one for each rank, on the root; other ranks need none"},
	{"Any", "any number of buffers, or none"},
}

// who is a set of ranks of the group: those that have an input, or those that get a result.
type who struct {
	Ident string // the name in Go; Python has it in upper-case snake form
	Text  string
}

var whos = []who{
	{"Nobody", "no rank"},
	{"Everyone", "every rank"},
	{"Root", "the root"},
	{"ExceptRoot", "every rank but the root"},
	{"ExceptFirst", "every rank but rank 0"},
}

// shares says how long the n shares are if a side has one share for each rank. The side has them in
// one buffer or in n buffers.
type shares struct {
	Ident string // the name in Go; Python has it in upper-case snake form
	Text  string
}

var sharings = []shares{
	{"NoShares", "no side has shares: send and recv have the same length on all ranks"},
	{"Alike", "every share is as long as the other side's buffer; all ranks have the same length"},
	{"Listed", "share i is as long as rank i's buffer of the other side; all ranks give the same n lengths"},
	{"Pairwise", "both sides have shares; rank i's share for rank j is as long as rank j's share from rank i"},
}

type operation struct {
	Code       int
	Ident      string // Go
	Name       string // everywhere else
	Collective bool   // every member of the group calls it, in the same order
	Reduces    bool   // needs a reduce op that is defined for the dtype
	Prefix     bool   // rank i gets the reduction over the ranks up to i, not over all ranks
	PeerToPeer bool   // a message: it has a peer and a tag and is outside the order of the collectives
	Neighbours bool   // a collective in which a rank exchanges with some ranks only, by a pattern whose number is in peer
	Result     bool   // returns the source, length and tag of a message
	Send, Recv string // Ident of an arity
	Gives      string // Ident of a who: the ranks that have an input (in recv if they give no send)
	Gets       string // Ident of a who: the ranks whose recv is written
	Shares     string // Ident of a shares; empty is NoShares
	Doc        string // what it does; one sentence
	Needs      string // the buffers and arguments that each rank needs
	Same       string // what must be the same on all members, like the operation itself
	// Algorithms are the variables of gocore/coll that carry out a collective, the preferred one first.
	// All ranks have the same list, and choose from it by what they have agreed on.
	Algorithms []string
}

// Rooted tells whether the operation needs a root.
func (o operation) Rooted() bool {
	for _, who := range []string{o.Gives, o.Gets} {
		if who == "Root" || who == "ExceptRoot" {
			return true
		}
	}
	return false
}

// Lengths returns the Ident of the operation's shares.
func (o operation) Lengths() string {
	if o.Shares == "" {
		return "NoShares"
	}
	return o.Shares
}

var operations = []operation{
	{
		Code: 1, Ident: "Barrier", Name: "barrier", Collective: true,
		Send: "None", Recv: "None",
		Gives: "Nobody", Gets: "Nobody",
		Doc:        "Returns when every member has called it.",
		Needs:      "nothing",
		Algorithms: []string{"single", "inline", "barrierMPI"},
	},
	{
		Code: 2, Ident: "Broadcast", Name: "broadcast", Collective: true,
		Send: "None", Recv: "One",
		Gives: "Root", Gets: "ExceptRoot",
		Doc:   "Copies the root's buffer into the buffer of every other member.",
		Needs: "one buffer in recv: read on the root, written on all other ranks",
		Same:  "dtype, count, root",
		Algorithms: []string{
			"single", "inline", "mapped", "bounced", "singleOnDevice", "broadcastIPC", "broadcastDirect", "staged",
			"broadcastSlices", "broadcastLevels", "broadcastMPI",
		},
	},
	{
		Code: 3, Ident: "AllReduce", Name: "all_reduce", Collective: true, Reduces: true,
		Send: "Optional", Recv: "One",
		Gives: "Everyone", Gets: "Everyone",
		Doc:   "Reduces the buffers of all members and gives every member the result, bit for bit the same.",
		Needs: "recv; send of the same count, or no send to reduce recv in place",
		Same:  "dtype, count, reduce op, scale",
		Algorithms: []string{
			"single", "inline", "mapped", "bounced", "singleOnDevice", "allReduceIPC", "staged", "allReduceDoubling", "allReduceSlices",
			"leaders", "allReduceLevels", "allReduceGather16", "allReduceSlices16", "allReduceMPI",
		},
	},
	{
		Code: 4, Ident: "AllReduceCoalesced", Name: "all_reduce_coalesced", Collective: true, Reduces: true,
		Send: "None", Recv: "Many",
		Gives: "Everyone", Gets: "Everyone",
		Doc:        "Does an all_reduce in place on each of several buffers of one dtype, all at once.",
		Needs:      "one or more buffers in recv, all of one dtype",
		Same:       "dtype, number of buffers, count of each, reduce op, scale",
		Algorithms: []string{"single", "inline", "mapped", "singleOnDevice", "staged", "leaders", "allReduceCoalescedPack"},
	},
	{
		Code: 5, Ident: "Reduce", Name: "reduce", Collective: true, Reduces: true,
		Send: "OptionalOnRoot", Recv: "RootOne",
		Gives: "Everyone", Gets: "Root",
		Doc:   "Reduces the buffers of all members into the root's buffer and leaves the other buffers alone.",
		Needs: "send; on the root also recv of the same count, or recv alone to reduce in place",
		Same:  "dtype, count, reduce op, scale, root",
		Algorithms: []string{
			"single", "inline", "mapped", "bounced", "singleOnDevice", "reduceIPC", "staged", "reduceSlices",
			"leaders", "reduceLevels", "reduceSlices16", "reduceMPI",
		},
	},
	{
		Code: 6, Ident: "AllGather", Name: "all_gather", Collective: true,
		Send: "One", Recv: "OneOrN",
		Gives: "Everyone", Gets: "Everyone", Shares: "Listed",
		Doc:   "Gives every member the buffers of all members, in rank order.",
		Needs: "send; recv, either one buffer of n x count elements, or n buffers, where buffer i has rank i's count",
		Same:  "dtype, counts of the n parts",
		Algorithms: []string{
			"single", "inline", "mapped", "copiedByCMA", "bounced", "singleOnDevice", "allGatherIPC", "allGatherDirect", "staged",
			"allGatherSlices", "allGatherLevels", "allGatherMPI", "allGatherUnevenMPI",
		},
	},
	{
		Code: 7, Ident: "Gather", Name: "gather", Collective: true,
		Send: "One", Recv: "RootOneOrN",
		Gives: "Everyone", Gets: "Root", Shares: "Alike",
		Doc:   "Gives the root the buffers of all members, in rank order.",
		Needs: "send; on the root also recv, either one buffer of n x count elements or n buffers",
		Same:  "dtype, count, root",
		Algorithms: []string{
			"single", "inline", "mapped", "bounced", "singleOnDevice", "gatherIPC", "gatherDirect", "staged",
			"gatherMPI",
		},
	},
	{
		Code: 8, Ident: "Scatter", Name: "scatter", Collective: true,
		Send: "RootOneOrN", Recv: "One",
		Gives: "Root", Gets: "Everyone", Shares: "Alike",
		Doc:   "Gives rank i part i of the root's buffers.",
		Needs: "recv; on the root also send, either one buffer of n x count elements or n buffers",
		Same:  "dtype, count, root",
		Algorithms: []string{
			"single", "inline", "mapped", "copiedByCMA", "bounced", "singleOnDevice", "scatterIPC", "scatterDirect", "staged",
			"scatterMPI",
		},
	},
	{
		Code: 9, Ident: "ReduceScatter", Name: "reduce_scatter", Collective: true, Reduces: true,
		Send: "OneOrN", Recv: "One",
		Gives: "Everyone", Gets: "Everyone", Shares: "Listed",
		Doc:   "Reduces n parts over all members and gives part i to rank i.",
		Needs: "send, either one buffer of n x count elements or n buffers; recv, as long as this rank's part",
		Same:  "dtype, counts of the n parts, reduce op, scale",
		Algorithms: []string{
			"single", "inline", "mapped", "bounced", "singleOnDevice", "reduceScatterIPC", "staged",
			"reduceScatterSlices", "leaders", "reduceScatterLevels",
			"reduceScatterSlices16", "reduceScatterMPI",
		},
	},
	{
		Code: 10, Ident: "AllToAll", Name: "all_to_all", Collective: true,
		Send: "OneOrN", Recv: "OneOrN",
		Gives: "Everyone", Gets: "Everyone", Shares: "Pairwise",
		Doc:   "Gives rank i part i of every member's buffers, in rank order.",
		Needs: "send and recv, each either one buffer of n equal parts or n buffers; the part that rank i sends to rank j has the count that j receives from i",
		Same:  "dtype",
		Algorithms: []string{
			"single", "inline", "mapped", "copiedByCMA", "allToAllUnevenByCMA", "bounced", "allToAllUnevenBounce", "singleOnDevice", "allToAllIPC", "allToAllEvenDirect",
			"allToAllUnevenDirect", "staged", "allToAllLevels", "allToAllEvenMPI", "allToAllUnevenMPI",
		},
	},
	{
		Code: 11, Ident: "Scan", Name: "scan", Collective: true, Reduces: true, Prefix: true,
		Send: "Optional", Recv: "One",
		Gives: "Everyone", Gets: "Everyone",
		Doc:        "Gives rank i the reduction over ranks 0 to i.",
		Needs:      "recv; send of the same count, or no send to work in place",
		Same:       "dtype, count, reduce op, scale",
		Algorithms: []string{"single", "bounced", "singleOnDevice", "staged", "scanGather16", "scanMPI"},
	},
	{
		Code: 12, Ident: "Exscan", Name: "exscan", Collective: true, Reduces: true, Prefix: true,
		Send: "Optional", Recv: "One",
		Gives: "Everyone", Gets: "ExceptFirst",
		Doc:        "Gives rank i the reduction over ranks 0 to i-1; rank 0 keeps its buffer as it is.",
		Needs:      "recv; send of the same count, or no send to work in place",
		Same:       "dtype, count, reduce op, scale",
		Algorithms: []string{"single", "bounced", "singleOnDevice", "staged", "scanGather16", "scanMPI"},
	},
	{
		Code: 13, Ident: "Send", Name: "send", PeerToPeer: true,
		Send: "Many", Recv: "None",
		Gives: "Everyone", Gets: "Nobody",
		Doc:   "Sends buffers to peer with tag, as one message.",
		Needs: "send, peer (destination), tag",
	},
	{
		Code: 14, Ident: "Recv", Name: "recv", PeerToPeer: true, Result: true,
		Send: "None", Recv: "Many",
		Gives: "Nobody", Gets: "Everyone",
		Doc:   "Receives a message from peer (-1: any rank) with tag.",
		Needs: "recv, together exactly as long as the message; peer (source or -1), tag",
	},
	{
		Code: 15, Ident: "SendRecv", Name: "sendrecv", PeerToPeer: true, Result: true,
		Send: "Many", Recv: "Many",
		Gives: "Everyone", Gets: "Everyone",
		Doc:   "Sends to peer with tag and receives from peer2 (-1: any rank) with tag2, both at the same time.",
		Needs: "send, peer, tag; recv, peer2, tag2; send and recv may overlap",
	},
	{
		Code: 16, Ident: "Probe", Name: "probe", PeerToPeer: true, Result: true,
		Send: "None", Recv: "None",
		Gives: "Nobody", Gets: "Nobody",
		Doc:   "Waits for a message from peer (-1: any rank) with tag and returns its source, length and tag.",
		Needs: "peer (source or -1), tag",
	},
	{
		Code: 17, Ident: "Panic", Name: "panic",
		Send: "None", Recv: "None",
		Gives: "Nobody", Gets: "Nobody",
		Doc:   "Panics on purpose, so that tests see how the core is poisoned.",
		Needs: "nothing",
	},
	{
		Code: 18, Ident: "HaloExchange", Name: "halo_exchange", Collective: true, Neighbours: true,
		Send: "None", Recv: "One",
		Gives: "Everyone", Gets: "Everyone",
		Doc:        "Fills the border of a buffer with what the neighbours on a grid have inside of theirs.",
		Needs:      "recv, with a shape; peer (the number of a pattern, from the method halo)",
		Same:       "dtype, grid, widths of the border, the dimensions before those of the grid",
		Algorithms: []string{"blocks", "neighbourMessages"},
	},
	{
		Code: 19, Ident: "NeighborAllToAll", Name: "neighbor_all_to_all", Collective: true, Neighbours: true,
		Send: "Any", Recv: "Any",
		Gives: "Everyone", Gets: "Everyone",
		Doc:        "Gives each neighbour in a graph a buffer, and gets one from each.",
		Needs:      "send, a buffer for each rank to which this one gives; recv, one for each from which it gets; peer (the number of a pattern, from the method graph)",
		Algorithms: []string{"blocks", "neighbourMessages"},
	},
}

// kind is a set of dtypes. A reduce op means the same for all dtypes of a kind.
type kind string

const (
	boolean kind = "bool"
	integer kind = "integers"
	half    kind = "16-bit floats"
	float   kind = "floats"
	complx  kind = "complex"
	float8  kind = "float8"
)

var kinds = []kind{boolean, integer, half, float, complx, float8}

type dtype struct {
	Code  int
	Ident string // Go
	Name  string // everywhere else; NumPy's, torch's and Paddle's name
	Size  int    // bytes an element
	Kind  kind
}

var dtypes = []dtype{
	{1, "Bool", "bool", 1, boolean},
	{2, "Int8", "int8", 1, integer},
	{3, "UInt8", "uint8", 1, integer},
	{4, "Int16", "int16", 2, integer},
	{5, "UInt16", "uint16", 2, integer},
	{6, "Int32", "int32", 4, integer},
	{7, "UInt32", "uint32", 4, integer},
	{8, "Int64", "int64", 8, integer},
	{9, "UInt64", "uint64", 8, integer},
	{10, "Float16", "float16", 2, half},
	{11, "BFloat16", "bfloat16", 2, half},
	{12, "Float32", "float32", 4, float},
	{13, "Float64", "float64", 8, float},
	{14, "Complex64", "complex64", 8, complx},
	{15, "Complex128", "complex128", 16, complx},
	{16, "Float8E4M3FN", "float8_e4m3fn", 1, float8},
	{17, "Float8E5M2", "float8_e5m2", 1, float8},
	{18, "Float8E4M3FNUZ", "float8_e4m3fnuz", 1, float8},
	{19, "Float8E5M2FNUZ", "float8_e5m2fnuz", 1, float8},
	{20, "Float8E8M0FNU", "float8_e8m0fnu", 1, float8},
}

// reduceOp is defined for the kinds in Meaning, and for no other kinds.
type reduceOp struct {
	Code    int
	Ident   string // Go
	Name    string // everywhere else
	Doc     string
	Meaning map[kind]string
}

var reduceOps = []reduceOp{
	{1, "Sum", "SUM", "the sum over the ranks", map[kind]string{
		boolean: "or", integer: "sum, wraps", half: "sum in float32, rounded once", float: "sum", complx: "sum",
	}},
	{2, "Product", "PRODUCT", "the product over the ranks", map[kind]string{
		boolean: "and", integer: "product, wraps", half: "product in float32, rounded once", float: "product", complx: "product",
	}},
	{3, "Min", "MIN", "the minimum over the ranks", map[kind]string{
		boolean: "and", integer: "minimum", half: "minimum, or NaN", float: "minimum, or NaN",
	}},
	{4, "Max", "MAX", "the maximum over the ranks", map[kind]string{
		boolean: "or", integer: "maximum", half: "maximum, or NaN", float: "maximum, or NaN",
	}},
	{5, "Avg", "AVG", "the mean over the ranks", map[kind]string{
		integer: "sum (wraps) / n, rounded toward zero", half: "mean in float32, rounded once", float: "sum / n", complx: "sum / n",
	}},
	{6, "BAnd", "BAND", "the bitwise and over the ranks", map[kind]string{
		boolean: "and", integer: "bitwise and",
	}},
	{7, "BOr", "BOR", "the bitwise or over the ranks", map[kind]string{
		boolean: "or", integer: "bitwise or",
	}},
	{8, "BXor", "BXOR", "the bitwise exclusive or over the ranks", map[kind]string{
		boolean: "exclusive or", integer: "bitwise exclusive or",
	}},
	{9, "PremulSum", "PREMUL_SUM", "the sum over the ranks of scale times the input; the input is not changed", map[kind]string{
		half: "sum of scale * x in float32, rounded once", float: "sum of scale * x", complx: "sum of scale * x",
	}},
}

// flagBit is a bit of pmpi_op.flags.
type flagBit struct {
	Bit   int
	Ident string
	Name  string
	Doc   string
}

var flags = []flagBit{
	{1, "FlagAsync", "ASYNC", "return a work handle at once instead of waiting"},
	{2, "FlagNotify", "NOTIFY", "report the end of the work through pmpi_next_completions"},
}

// validate returns an error if the tables contradict themselves.
func validate() error {
	known, ranks, lengths := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, a := range arities {
		known[a.Ident] = true
	}
	for _, w := range whos {
		ranks[w.Ident] = true
	}
	for _, s := range sharings {
		lengths[s.Ident] = true
	}
	for i, o := range operations {
		if o.Code != i+1 {
			return fmt.Errorf("operation %s has code %d in row %d: codes count up from 1", o.Name, o.Code, i+1)
		}
		if !known[o.Send] || !known[o.Recv] {
			return fmt.Errorf("operation %s has an unknown arity %q or %q", o.Name, o.Send, o.Recv)
		}
		if o.Collective && o.PeerToPeer {
			return fmt.Errorf("operation %s is both a collective and peer to peer", o.Name)
		}
		if !ranks[o.Gives] || !ranks[o.Gets] || !lengths[o.Lengths()] {
			return fmt.Errorf("operation %s: one of %q, %q, %q is in no table", o.Name, o.Gives, o.Gets, o.Lengths())
		}
		if o.Gives == "Nobody" && o.Send != "None" || o.Gets == "Nobody" && o.Recv != "None" {
			return fmt.Errorf("operation %s takes a buffer that it does not use", o.Name)
		}
		if (o.Gives == "Root") != onlyRoot(o.Send) && o.Send != "None" || (o.Gets == "Root") != onlyRoot(o.Recv) {
			return fmt.Errorf("operation %s: Gives %s, Send %s, Gets %s, Recv %s disagree about what only the root has", o.Name, o.Gives, o.Send, o.Gets, o.Recv)
		}
		if has := perRank(o.Send) || perRank(o.Recv); has != (o.Lengths() != "NoShares") || (perRank(o.Send) && perRank(o.Recv)) != (o.Shares == "Pairwise") {
			return fmt.Errorf("operation %s: shares are %s, but send takes %s and recv takes %s", o.Name, o.Lengths(), o.Send, o.Recv)
		}
		if o.Collective != (len(o.Algorithms) > 0) || len(o.Algorithms) > 15 {
			return fmt.Errorf("operation %s has %d algorithms: a collective has 1 to 15, another operation none", o.Name, len(o.Algorithms))
		}
		if o.Prefix && !o.Reduces {
			return fmt.Errorf("operation %s has Prefix but does not reduce", o.Name)
		}
	}
	if n := len(collectives()); n > 15 {
		return fmt.Errorf("%d collectives: coll.Forced has four bits for each of 15", n)
	}
	for i, d := range dtypes {
		if d.Code != i+1 {
			return fmt.Errorf("dtype %s has code %d in row %d: codes count up from 1", d.Name, d.Code, i+1)
		}
		if d.Code >= 32 {
			return fmt.Errorf("dtype %s has code %d: the sets of dtypes have 32 bits", d.Name, d.Code)
		}
	}
	for i, r := range reduceOps {
		if r.Code != i+1 {
			return fmt.Errorf("reduce op %s has code %d in row %d: codes count up from 1", r.Name, r.Code, i+1)
		}
	}
	return nil
}

// collectives returns the operations that have algorithms.
func collectives() (out []operation) {
	for _, o := range operations {
		if o.Collective {
			out = append(out, o)
		}
	}
	return out
}

// onlyRoot tells whether only the root has buffers on a side of this arity.
func onlyRoot(arity string) bool { return arity == "RootOne" || arity == "RootOneOrN" }

// perRank tells whether a side of this arity has a share for each rank.
func perRank(arity string) bool { return arity == "OneOrN" || arity == "RootOneOrN" }
