package op

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

// The expectations here are written out, not taken from the generator's tables: the numbers of the
// C ABI, and the rules of the design.

var (
	bools    = []DType{Bool}
	integers = []DType{Int8, UInt8, Int16, UInt16, Int32, UInt32, Int64, UInt64}
	floats   = []DType{Float16, BFloat16, Float32, Float64}
	complexs = []DType{Complex64, Complex128}
	float8s  = []DType{Float8E4M3FN, Float8E5M2, Float8E4M3FNUZ, Float8E5M2FNUZ, Float8E8M0FNU}
)

func TestDTypes(t *testing.T) {
	want := []struct {
		name string
		size int
	}{
		{"bool", 1},
		{"int8", 1},
		{"uint8", 1},
		{"int16", 2},
		{"uint16", 2},
		{"int32", 4},
		{"uint32", 4},
		{"int64", 8},
		{"uint64", 8},
		{"float16", 2},
		{"bfloat16", 2},
		{"float32", 4},
		{"float64", 8},
		{"complex64", 8},
		{"complex128", 16},
		{"float8_e4m3fn", 1},
		{"float8_e5m2", 1},
		{"float8_e4m3fnuz", 1},
		{"float8_e5m2fnuz", 1},
		{"float8_e8m0fnu", 1},
	}
	assert.Len(t, dtypeNames, len(want)+1)
	for i, w := range want {
		d := DType(i + 1)
		assert.True(t, d.Valid(), w.name)
		assert.Equal(t, w.name, d.String())
		assert.Equal(t, w.size, d.Size(), w.name)
		found, ok := ParseDType(w.name)
		assert.True(t, ok, w.name)
		assert.Equal(t, d, found)
	}
}

func TestReduceOps(t *testing.T) {
	want := []string{"SUM", "PRODUCT", "MIN", "MAX", "AVG", "BAND", "BOR", "BXOR", "PREMUL_SUM"}
	assert.Len(t, reduceNames, len(want)+1)
	for i, name := range want {
		r := ReduceOp(i + 1)
		assert.True(t, r.Valid(), name)
		assert.Equal(t, name, r.String())
	}
}

func TestDefined(t *testing.T) {
	want := map[ReduceOp][][]DType{
		Sum:       {bools, integers, floats, complexs},
		Product:   {bools, integers, floats, complexs},
		Min:       {bools, integers, floats},
		Max:       {bools, integers, floats},
		Avg:       {integers, floats, complexs},
		BAnd:      {bools, integers},
		BOr:       {bools, integers},
		BXor:      {bools, integers},
		PremulSum: {floats, complexs},
	}
	assert.Len(t, want, len(reduceNames)-1)
	for r, groups := range want {
		allowed := map[DType]bool{}
		for _, g := range groups {
			for _, d := range g {
				allowed[d] = true
			}
		}
		for d := Bool; d < NumDTypes; d++ {
			assert.Equal(t, allowed[d], Defined(r, d), "%v of %v", r, d)
		}
		for _, d := range float8s {
			assert.False(t, Defined(r, d), "%v of %v", r, d)
		}
	}
}

func TestOperations(t *testing.T) {
	want := []Trait{
		{Name: "barrier", Collective: true},
		{Name: "broadcast", Collective: true, Rooted: true, Recv: One, Gives: Root, Gets: ExceptRoot},
		{Name: "all_reduce", Collective: true, Reduces: true, Send: Optional, Recv: One, Gives: Everyone, Gets: Everyone},
		{Name: "all_reduce_coalesced", Collective: true, Reduces: true, Recv: Many, Gives: Everyone, Gets: Everyone},
		{Name: "reduce", Collective: true, Reduces: true, Rooted: true, Send: OptionalOnRoot, Recv: RootOne, Gives: Everyone, Gets: Root},
		{Name: "all_gather", Collective: true, Send: One, Recv: OneOrN, Gives: Everyone, Gets: Everyone, Shares: Listed},
		{Name: "gather", Collective: true, Rooted: true, Send: One, Recv: RootOneOrN, Gives: Everyone, Gets: Root, Shares: Alike},
		{Name: "scatter", Collective: true, Rooted: true, Send: RootOneOrN, Recv: One, Gives: Root, Gets: Everyone, Shares: Alike},
		{Name: "reduce_scatter", Collective: true, Reduces: true, Send: OneOrN, Recv: One, Gives: Everyone, Gets: Everyone, Shares: Listed},
		{Name: "all_to_all", Collective: true, Send: OneOrN, Recv: OneOrN, Gives: Everyone, Gets: Everyone, Shares: Pairwise},
		{Name: "scan", Collective: true, Reduces: true, Prefix: true, Send: Optional, Recv: One, Gives: Everyone, Gets: Everyone},
		{Name: "exscan", Collective: true, Reduces: true, Prefix: true, Send: Optional, Recv: One, Gives: Everyone, Gets: ExceptFirst},
		{Name: "send", PeerToPeer: true, Send: Many, Gives: Everyone},
		{Name: "recv", PeerToPeer: true, Result: true, Recv: Many, Gets: Everyone},
		{Name: "sendrecv", PeerToPeer: true, Result: true, Send: Many, Recv: Many, Gives: Everyone, Gets: Everyone},
		{Name: "probe", PeerToPeer: true, Result: true},
		{Name: "panic"},
	}
	for i, w := range want { // a new row gets the next code
		c := Code(i + 1)
		got, ok := TraitOf(c)
		assert.True(t, ok, w.Name)
		assert.Equal(t, w, got)
		assert.Equal(t, w.Name, c.String())
	}
}

// The buffers that are read and written, for operations in which this differs between ranks.
func TestWhatIsReadAndWritten(t *testing.T) {
	const root = 1
	for _, w := range []struct {
		code          Code
		sends         int
		reads, writes [3]bool // by rank
	}{
		{Broadcast, 0, [3]bool{false, true, false}, [3]bool{true, false, true}},
		{AllReduce, 0, [3]bool{true, true, true}, [3]bool{true, true, true}},
		{AllReduce, 1, [3]bool{}, [3]bool{true, true, true}},
		{Reduce, 0, [3]bool{true, true, true}, [3]bool{false, true, false}},
		{Gather, 1, [3]bool{}, [3]bool{false, true, false}},
		{Scatter, 0, [3]bool{false, true, false}, [3]bool{true, true, true}},
		{Exscan, 0, [3]bool{true, true, true}, [3]bool{false, true, true}},
		{Exscan, 1, [3]bool{}, [3]bool{false, true, true}},
		{Send, 1, [3]bool{}, [3]bool{}},
		{Recv, 0, [3]bool{}, [3]bool{true, true, true}},
	} {
		for rank := range 3 {
			trait := w.code.Trait()
			assert.Equal(t, w.reads[rank], trait.ReadsRecv(root, rank, w.sends), "%s reads on rank %d", w.code, rank)
			assert.Equal(t, w.writes[rank], trait.WritesRecv(root, rank), "%s writes on rank %d", w.code, rank)
		}
	}
}

// Numbers and names come from callers, so unknown ones must do no harm.
func TestUnknown(t *testing.T) {
	for _, n := range []int32{-1 << 31, -1, 0, 21, 32, 64, 1<<31 - 1} {
		_, ok := TraitOf(Code(n))
		assert.False(t, ok, n)
		assert.Equal(t, Trait{}, *Code(n).Trait(), n)
		assert.False(t, DType(n).Valid(), n)
		assert.Zero(t, DType(n).Size(), n)
		assert.False(t, ReduceOp(n).Valid(), n)
		assert.False(t, Defined(Sum, DType(n)), n)
		assert.False(t, Defined(ReduceOp(n), Float32), n)
	}
	assert.Equal(t, "operation 99", Code(99).String())
	assert.Equal(t, "dtype 0", DType(0).String())
	assert.Equal(t, "reduce op -1", ReduceOp(-1).String())
	assert.Equal(t, "arity 99", Arity(99).String())
	for _, s := range []string{"", "float", "SUM "} {
		_, ok := ParseDType(s)
		assert.False(t, ok, s)
	}
}

func TestArityAccepts(t *testing.T) {
	const size = 3
	// The numbers of buffers, from 0 to 4, that the root or another rank may pass.
	want := map[Arity]struct{ root, other []int }{
		None:           {[]int{0}, []int{0}},
		One:            {[]int{1}, []int{1}},
		Optional:       {[]int{0, 1}, []int{0, 1}},
		OptionalOnRoot: {[]int{0, 1}, []int{1}},
		OneOrN:         {[]int{1, 3}, []int{1, 3}},
		Many:           {[]int{1, 2, 3, 4}, []int{1, 2, 3, 4}},
		RootOne:        {[]int{1}, []int{0, 1}},
		RootOneOrN:     {[]int{1, 3}, []int{0, 1, 3}},
		Any:            {[]int{0, 1, 2, 3, 4}, []int{0, 1, 2, 3, 4}},
	}
	assert.Len(t, want, len(arityText))
	for a, w := range want {
		assert.NotEmpty(t, a.String())
		for count := 0; count <= 4; count++ {
			assert.Equal(t, slices.Contains(w.root, count), a.Accepts(count, size, true), "%v: %d on the root", a, count)
			assert.Equal(t, slices.Contains(w.other, count), a.Accepts(count, size, false), "%v: %d elsewhere", a, count)
		}
		assert.Equal(t, slices.Contains(w.root, size) && !slices.Contains(w.root, size-1), a.PerRank(), "%v", a)
		assert.Equal(t, slices.Contains(w.other, 0) && !slices.Contains(w.root, 0), a.RootAlone(), "%v", a)
	}
	assert.False(t, Arity(-1).Accepts(0, size, true))
	assert.False(t, Arity(99).Accepts(1, size, true))
}
