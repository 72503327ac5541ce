package coll

import (
	"flag"
	"fmt"
	"math/rand"
	"os"
	"reflect"
	"runtime"
	"runtime/debug"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// TestMain fails a full run in which no test has run some algorithm.
func TestMain(m *testing.M) {
	// Ranks spin, and yield to each other. Two run at once, which is what shows a race; more threads
	// only spin for the whole of the time that the kernel gives each. A collection of garbage among
	// ranks that yield costs as much as they do.
	runtime.GOMAXPROCS(2)
	debug.SetGCPercent(400)
	code := m.Run()
	if code == 0 && flag.Lookup("test.run").Value.String() == "" && flag.Lookup("test.skip").Value.String() == "" {
		for c := range registry {
			for _, alg := range registry[c] {
				// The ranks of ipc must be processes. tests/jobs/cuda/test_ipc.py runs it, with the
				// driver that plays a GPU.
				// Those in levels, by leaders and between neighbours need groups: package group tests them.
				if !covered.algorithms[alg] && alg.Name != "ipc" && alg.Name != "levels" && alg.Name != "leaders" && !op.Code(c).Trait().Neighbours {
					fmt.Printf("FAIL: no test ran %s by %q\n", op.Code(c), alg.Name)
					code = 1
				}
			}
		}
	}
	os.Exit(code)
}

// collectives returns the operations of the registry.
func collectives() (codes []op.Code) {
	for c := range registry {
		if len(registry[c]) > 0 {
			codes = append(codes, op.Code(c))
		}
	}
	return codes
}

func TestEveryCollectiveHasAnAlgorithm(t *testing.T) {
	for c := range op.Code(op.NumCodes) {
		assert.Equal(t, c.Trait().Collective, len(registry[c]) > 0, c.String())
		if c.Trait().Collective {
			_, err := Choose(&Sig{Code: c, DType: op.Float32, Reduce: op.Sum, Size: 3, Count: 5})
			assert.NoError(t, err, c.String())
		}
	}
}

func TestNoAlgorithm(t *testing.T) {
	for _, c := range []op.Code{-1, 0, op.Send, op.Panic, 1 << 20} {
		_, err := Choose(&Sig{Code: c, Size: 2})
		assert.Equal(t, status.Unsupported, status.CodeOf(err), "%s", c)
	}
	// MPI has no 16-bit floats, so its own reductions refuse them before anything is sent.
	w := newWorld(2)
	for _, alg := range []*Algorithm{&allReduceMPI, &reduceMPI, &reduceScatterMPI, &scanMPI} {
		calls := w.calls(Args{Sig: Sig{Code: op.AllReduce, DType: op.BFloat16, Reduce: op.Sum}})
		for _, s := range calls {
			x := s.tensor(make([]byte, 4))
			s.args.Send, s.args.Recv = []Part{x.Part}, []Part{x.Part}
		}
		for _, err := range w.carryOut(alg, blocking, calls) {
			assert.Equal(t, status.Unsupported, status.CodeOf(err))
			assert.ErrorContains(t, err, "bfloat16")
		}
	}
}

// Every listed algorithm is chosen for some call: no algorithm before it serves all of its calls.
func TestEveryAlgorithmIsChosen(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	chosen := map[*Algorithm]bool{}
	for c := range registry {
		for _, size := range []int{1, 2, 3, 8} {
			nodes, rails := size, 2
			if size == 8 {
				nodes, rails = 2, 4
			}
			for agreed := range 2 * ForCMA { // all sets of flags
				for _, any := range []arrive.Flags{0, Device, Device | NotDirect} {
					s := Sig{Code: op.Code(c), DType: []op.DType{op.Float32, op.BFloat16}[rng.Intn(2)], Reduce: op.Sum, Count: []int64{1, 1 << 20}[rng.Intn(2)], Size: size,
						Local: true, Nodes: []int{1, nodes}[agreed/arrive.Sync&1], Rails: int(agreed/arrive.Refused) & 1 * rails, Agreed: agreed, Any: any}
					if alg, err := Choose(&s); err == nil {
						chosen[alg] = true
					}
				}
			}
		}
		for _, alg := range registry[c] {
			assert.True(t, chosen[alg], "%s by %s", op.Code(c), alg.Name)
		}
		clear(chosen)
	}
}

// Scratch passes the flags of one rank as agreed on. The other ranks may leave only some of them.
func TestWhatIsAgreedOnDisablesNothing(t *testing.T) {
	rng := rand.New(rand.NewSource(5))
	for range 20000 {
		s := Sig{Code: collectives()[rng.Intn(len(collectives()))], DType: op.DType(1 + rng.Intn(int(lastDType))),
			Reduce: op.ReduceOp(rng.Intn(int(lastReduceOp) + 1)), Count: rng.Int63() >> rng.Intn(64), Size: 1 + rng.Intn(70),
			Local: rng.Intn(2) == 0, Nodes: rng.Intn(3), Agreed: arrive.Flags(rng.Uint32()), Any: arrive.Flags(rng.Uint32())}
		more := s
		more.Agreed |= arrive.Flags(rng.Uint32())
		for _, alg := range registry[s.Code] {
			require.True(t, !alg.serves(&s) || alg.serves(&more), "%s of %+v", alg.Name, s)
		}
	}
}

// An algorithm that chooses another one inside passes on what was agreed on, but not the flags that
// do not hold inside.
func TestInnerChoicesKeepWhatWasAgreedOn(t *testing.T) {
	const hint = arrive.Flags(1) << 30 // stands for a flag of a future algorithm
	outer := Sig{Code: op.AllReduce, DType: op.Float32, Reduce: op.Sum, Count: 4, Size: 2, Local: true,
		Agreed: Even | IPC | hint, Any: Even | IPC | Device | NotDirect | hint}
	rows := registry
	defer func() { registry = rows }()
	var seen Sig
	registry[op.AllReduce] = []*Algorithm{{Name: "seen", Memory: hostMemory | deviceMemory, Enabled: func(s *Sig) bool { seen = *s; return true },
		build: func(*Args, *Program) error { return nil }}}
	w := newWorld(2)
	for name, c := range map[string]struct {
		code  op.Code
		build func(*Args, *Program) error
		want  Sig
	}{
		"ipc": {op.AllReduce, buildWithoutIPC, Sig{Agreed: Even | hint, Any: outer.Any}},
		"staged": {op.AllReduceCoalesced, func(a *Args, _ *Program) error {
			host := inHostMemory(a)
			_, err := Choose(&host.Sig)
			return err
		}, Sig{Agreed: Even | hint, Any: Even | hint}},
	} {
		calls := w.calls(Args{Sig: outer})
		a := &calls[0].args
		a.Code = c.code
		x := newTensor(op.Float32, make([]byte, 16))
		a.Recv = []Part{x.Part}
		var p Program
		p.Reset(a.Lib)
		require.NoError(t, c.build(a, &p))
		want := outer
		want.Agreed, want.Any = c.want.Agreed, c.want.Any
		assert.Equal(t, want, seen, name)
		p.Close()
		mem.Free(x.block)
	}
}

// What Enabled sees must not differ between ranks: no address, no rank, no buffer. A new field of
// Sig has to be added to this list, after the same question.
func TestSigHoldsOnlyWhatAllRanksAgreeOn(t *testing.T) {
	agreed := map[string]bool{"Code": true, "DType": true, "Reduce": true, "Root": true, "Count": true, "Size": true,
		"Local": true, "Rails": true, "Nodes": true, "NoMPI": true, "Agreed": true, "Any": true, "Forced": true}
	s := reflect.TypeOf(Sig{})
	for i := range s.NumField() {
		f := s.Field(i)
		assert.True(t, agreed[f.Name], "is Sig.%s the same on all ranks?", f.Name)
		switch f.Type.Kind() {
		case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint32, reflect.Uint64, reflect.Bool:
		default:
			assert.Failf(t, "a field of Sig is no number", "%s is %s", f.Name, f.Type)
		}
	}
}

// Every rank gets random addresses, and the members' flags are random. All ranks choose the same
// algorithm.
func TestAllRanksChooseTheSame(t *testing.T) {
	rng := rand.New(rand.NewSource(16))
	onNodes := map[arrive.Flags]int{}
	for range 20000 {
		size := 1 + rng.Intn(64)
		shared := Args{Sig: Sig{Code: collectives()[rng.Intn(len(collectives()))], DType: op.DType(1 + rng.Intn(int(lastDType))), Reduce: op.ReduceOp(rng.Intn(int(lastReduceOp) + 1)), Root: rng.Intn(size), Count: rng.Int63() >> rng.Intn(64)}}
		capabilities := make([]arrive.Flags, size)
		all, some := ^arrive.Flags(0), arrive.Flags(0)
		slots := []arrive.Flags{0, Inline, Mapped, Inline | Mapped}[rng.Intn(4)] // what all slots hold
		onHost := rng.Intn(2) == 0
		for i := range capabilities {
			capabilities[i] = arrive.Flags(rng.Uint32())
			if rng.Intn(2) == 0 {
				capabilities[i] |= Even | arrive.Sync
			}
			if capabilities[i] |= slots; rng.Intn(100) == 0 {
				capabilities[i] &^= slots // a tensor that lies elsewhere, or is too long for the slot
			}
			if onHost {
				capabilities[i] &^= Device | Piecewise
			}
			all, some = all&capabilities[i], some|capabilities[i]
		}
		var first *Algorithm
		var refused error
		for rank := range size {
			args := shared
			args.Rank, args.Size = rank, size
			args.Recv = []Part{{Data: unsafe.Add(unsafe.Pointer(&nothing), rng.Intn(64)), Count: args.Count}}
			if rng.Intn(2) == 0 {
				args.Send = args.Recv
			}
			args.Agreed, args.Any = all, some
			chosen, err := Choose(&args.Sig)
			if some&(Device|NotStaged) != Device|NotStaged && !(some&(Device|Piecewise) != 0 && (args.Code.Trait().Neighbours || args.Code == op.Barrier)) {
				require.NoError(t, err)
			}
			if rank == 0 {
				first, refused = chosen, err
				if err == nil && size > 1 {
					onNodes[flagOf(chosen)]++
					require.Equal(t, flagOf(chosen), flagOf(chosen)&all, "%s: not every slot is filled for it", chosen.Name)
				}
			}
			require.Same(t, first, chosen, "rank %d of %s", rank, args.Code)
			require.Equal(t, refused, err)
		}
	}
	for _, slot := range []arrive.Flags{0, Inline, Mapped} {
		assert.Greater(t, onNodes[slot], 20, "the slots %b were seldom the choice", slot)
	}
}
