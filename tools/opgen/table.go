package main

import "fmt"

// The tables below are the only place where operations, dtypes and reduce ops
// are listed. Codes are part of the C ABI: a row may be added with a new code,
// never renumbered, and codes count up from 1 without a gap.

// arity says how many buffers an operation takes on one side.
type arity struct {
	Ident string // in Go; Python and the docs use the upper-case snake form
	Text  string // ends the sentence "takes ..."
}

var arities = []arity{
	{"None", "no buffer"},
	{"One", "one buffer"},
	{"Optional", "one buffer, or none to work in place"},
	{"OptionalOnRoot", "one buffer; on the root none to work in place"},
	{"OneOrN", "one buffer, or one for each rank"},
	{"Many", "one or more buffers"},
	{"RootOne", "one buffer on the root, which other ranks may leave out"},
	{"RootOneOrN", "on the root one buffer, or one for each rank; other ranks may leave it out"},
}

// who names the ranks of the group for which something holds.
type who struct {
	Ident string // in Go; Python uses the upper-case snake form
	Text  string
}

var whos = []who{
	{"Nobody", "no rank"},
	{"Everyone", "every rank"},
	{"Root", "the root"},
	{"ExceptRoot", "every rank but the root"},
	{"ExceptFirst", "every rank but rank 0"},
}

// shares says how long the n shares are where a side has one for each rank, in one buffer or n.
type shares struct {
	Ident string // in Go; Python uses the upper-case snake form
	Text  string
}

var sharings = []shares{
	{"NoShares", "no side has any: send and recv have one length, the same on all ranks"},
	{"Alike", "each is as long as the other side, whose length is the same on all ranks"},
	{"Listed", "all ranks give the same n lengths: share i is as long as rank i's other side"},
	{"Pairwise", "on both sides: what i sends to j is as long as what j receives from i"},
}

type operation struct {
	Code       int
	Ident      string // Go
	Name       string // everywhere else
	Collective bool   // every member of the group calls it, in the same order
	Reduces    bool   // needs a reduce op that is defined for the dtype
	Prefix     bool   // reduces over the ranks up to each one, not over all
	PeerToPeer bool   // bypasses the group's order
	Result     bool   // tells the source, length and tag of a message
	Send, Recv string // Ident of an arity
	Gives      string // Ident of a who: the ranks that have an input, in recv where they give no send
	Gets       string // Ident of a who: the ranks whose recv is written
	Shares     string // Ident of a shares; empty is NoShares
	Doc        string // what it does; one sentence
	Needs      string // what each rank needs
	Same       string // what must agree on all members, besides the operation itself
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

// Lengths is the ident of the operation's shares.
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
		Doc:   "Returns when every member has called it.",
		Needs: "nothing",
	},
	{
		Code: 2, Ident: "Broadcast", Name: "broadcast", Collective: true,
		Send: "None", Recv: "One",
		Gives: "Root", Gets: "ExceptRoot",
		Doc:   "Copies the root's buffer into that of every member.",
		Needs: "one buffer in recv: read on the root, written elsewhere",
		Same:  "dtype, count, root",
	},
	{
		Code: 3, Ident: "AllReduce", Name: "all_reduce", Collective: true, Reduces: true,
		Send: "Optional", Recv: "One",
		Gives: "Everyone", Gets: "Everyone",
		Doc:   "Reduces the buffers of all members; every member gets the result, the same bits.",
		Needs: "recv; send of the same count, or no send to reduce recv in place",
		Same:  "dtype, count, reduce op, scale",
	},
	{
		Code: 4, Ident: "AllReduceCoalesced", Name: "all_reduce_coalesced", Collective: true, Reduces: true,
		Send: "None", Recv: "Many",
		Gives: "Everyone", Gets: "Everyone",
		Doc:   "Reduces several buffers of one dtype in place at once, each as all_reduce does.",
		Needs: "one or more buffers in recv, all of one dtype",
		Same:  "dtype, number of buffers, count of each, reduce op, scale",
	},
	{
		Code: 5, Ident: "Reduce", Name: "reduce", Collective: true, Reduces: true,
		Send: "OptionalOnRoot", Recv: "RootOne",
		Gives: "Everyone", Gets: "Root",
		Doc:   "Reduces the buffers of all members into that of the root; the others keep theirs.",
		Needs: "send; on the root also recv of the same count, or recv alone to reduce in place",
		Same:  "dtype, count, reduce op, scale, root",
	},
	{
		Code: 6, Ident: "AllGather", Name: "all_gather", Collective: true,
		Send: "One", Recv: "OneOrN",
		Gives: "Everyone", Gets: "Everyone", Shares: "Listed",
		Doc:   "Gives every member the buffers of all members, in rank order.",
		Needs: "send; recv one buffer of n x count elements, or n buffers, of which number i has rank i's count",
		Same:  "dtype, counts of the n parts",
	},
	{
		Code: 7, Ident: "Gather", Name: "gather", Collective: true,
		Send: "One", Recv: "RootOneOrN",
		Gives: "Everyone", Gets: "Root", Shares: "Alike",
		Doc:   "Gives the root the buffers of all members, in rank order.",
		Needs: "send; on the root recv, one buffer of n x count elements or n buffers",
		Same:  "dtype, count, root",
	},
	{
		Code: 8, Ident: "Scatter", Name: "scatter", Collective: true,
		Send: "RootOneOrN", Recv: "One",
		Gives: "Root", Gets: "Everyone", Shares: "Alike",
		Doc:   "Gives each member its part of the root's buffers.",
		Needs: "recv; on the root send, one buffer of n x count elements or n buffers",
		Same:  "dtype, count, root",
	},
	{
		Code: 9, Ident: "ReduceScatter", Name: "reduce_scatter", Collective: true, Reduces: true,
		Send: "OneOrN", Recv: "One",
		Gives: "Everyone", Gets: "Everyone", Shares: "Listed",
		Doc:   "Reduces n parts over all members and gives part i to rank i.",
		Needs: "send, one buffer of n x count elements or n buffers; recv of this rank's part",
		Same:  "dtype, counts of the n parts, reduce op, scale",
	},
	{
		Code: 10, Ident: "AllToAll", Name: "all_to_all", Collective: true,
		Send: "OneOrN", Recv: "OneOrN",
		Gives: "Everyone", Gets: "Everyone", Shares: "Pairwise",
		Doc:   "Sends part i of every member to rank i, which gets them in rank order.",
		Needs: "send and recv, each one buffer of n equal parts or n buffers; what i sends to j has the count that j receives from i",
		Same:  "dtype",
	},
	{
		Code: 11, Ident: "Scan", Name: "scan", Collective: true, Reduces: true, Prefix: true,
		Send: "Optional", Recv: "One",
		Gives: "Everyone", Gets: "Everyone",
		Doc:   "Gives rank i the reduction over ranks 0 to i.",
		Needs: "recv; send of the same count, or no send to work in place",
		Same:  "dtype, count, reduce op, scale",
	},
	{
		Code: 12, Ident: "Exscan", Name: "exscan", Collective: true, Reduces: true, Prefix: true,
		Send: "Optional", Recv: "One",
		Gives: "Everyone", Gets: "ExceptFirst",
		Doc:   "Gives rank i the reduction over ranks 0 to i-1; rank 0 keeps its buffer as it is.",
		Needs: "recv; send of the same count, or no send to work in place",
		Same:  "dtype, count, reduce op, scale",
	},
	{
		Code: 13, Ident: "Send", Name: "send", PeerToPeer: true,
		Send: "One", Recv: "None",
		Gives: "Everyone", Gets: "Nobody",
		Doc:   "Sends a buffer to peer with tag.",
		Needs: "send, peer (destination), tag",
	},
	{
		Code: 14, Ident: "Recv", Name: "recv", PeerToPeer: true, Result: true,
		Send: "None", Recv: "One",
		Gives: "Nobody", Gets: "Everyone",
		Doc:   "Receives a buffer from peer, or from any rank when peer is -1, with tag.",
		Needs: "recv of exactly the message's length, peer (source or -1), tag",
	},
	{
		Code: 15, Ident: "SendRecv", Name: "sendrecv", PeerToPeer: true, Result: true,
		Send: "One", Recv: "One",
		Gives: "Everyone", Gets: "Everyone",
		Doc:   "Sends to peer with tag and receives from peer2 (-1: any rank) with tag2, at once.",
		Needs: "send, peer, tag; recv, peer2, tag2; the buffers do not overlap",
	},
	{
		Code: 16, Ident: "Probe", Name: "probe", PeerToPeer: true, Result: true,
		Send: "None", Recv: "None",
		Gives: "Nobody", Gets: "Nobody",
		Doc:   "Waits for a message from peer (-1: any rank) with tag and tells its source, length and tag.",
		Needs: "peer (source or -1), tag",
	},
	{
		Code: 17, Ident: "Panic", Name: "panic",
		Send: "None", Recv: "None",
		Gives: "Nobody", Gets: "Nobody",
		Doc:   "Panics on purpose, so that tests see how the core is poisoned.",
		Needs: "nothing",
	},
}

// kind groups the dtypes for which the reduce ops are defined alike.
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

// reduceOp is defined for the kinds that Meaning has, and for no others.
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
	{3, "Min", "MIN", "the least over the ranks", map[kind]string{
		boolean: "and", integer: "least", half: "least, or NaN", float: "least, or NaN",
	}},
	{4, "Max", "MAX", "the greatest over the ranks", map[kind]string{
		boolean: "or", integer: "greatest", half: "greatest, or NaN", float: "greatest, or NaN",
	}},
	{5, "Avg", "AVG", "the mean over the ranks", map[kind]string{
		integer: "sum, which wraps, / n toward zero", half: "mean in float32, rounded once", float: "sum / n", complx: "sum / n",
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
	{9, "PremulSum", "PREMUL_SUM", "the sum over the ranks of scale times the input, which itself is left alone", map[kind]string{
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

// validate finds slips in the tables that would otherwise become bad code.
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
			return fmt.Errorf("operation %s has code %d at place %d: codes count up from 1", o.Name, o.Code, i+1)
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
		if (o.Gives == "Root") != rootAlone(o.Send) && o.Send != "None" || (o.Gets == "Root") != rootAlone(o.Recv) {
			return fmt.Errorf("operation %s: what its root alone gives or gets is not what it alone has a buffer for", o.Name)
		}
		if has := each(o.Send) || each(o.Recv); has != (o.Lengths() != "NoShares") || (each(o.Send) && each(o.Recv)) != (o.Shares == "Pairwise") {
			return fmt.Errorf("operation %s: shares are %s, send takes %s, recv %s", o.Name, o.Lengths(), o.Send, o.Recv)
		}
		if o.Prefix && !o.Reduces {
			return fmt.Errorf("operation %s is a prefix of no reduction", o.Name)
		}
	}
	for i, d := range dtypes {
		if d.Code != i+1 {
			return fmt.Errorf("dtype %s has code %d at place %d: codes count up from 1", d.Name, d.Code, i+1)
		}
		if d.Code >= 32 {
			return fmt.Errorf("dtype %s has code %d: the sets of dtypes have 32 bits", d.Name, d.Code)
		}
	}
	for i, r := range reduceOps {
		if r.Code != i+1 {
			return fmt.Errorf("reduce op %s has code %d at place %d: codes count up from 1", r.Name, r.Code, i+1)
		}
	}
	return nil
}

// rootAlone tells whether only the root has buffers on a side of this arity.
func rootAlone(arity string) bool { return arity == "RootOne" || arity == "RootOneOrN" }

// each tells whether a side of this arity has a share for each rank.
func each(arity string) bool { return arity == "OneOrN" || arity == "RootOneOrN" }
