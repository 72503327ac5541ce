package mpi

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/dl"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpistub"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// nothing returns a library in which every function is ffs of libc: a leaf that returns 0, which is
// success, for the handles and buffers of 0 that the tests pass.
func nothing(t testing.TB) *library {
	libc, err := dl.Open("libc.so.6", dl.Now)
	require.NoError(t, err)
	table, missing := fillTable(func(string) unsafe.Pointer { return libc.Lookup("ffs") })
	require.Empty(t, missing)
	return &library{mpi: &loaded{file: libc, abi: &abiMPICH, table: table}}
}

func TestMissingFunctionIsNamed(t *testing.T) {
	libc, err := dl.Open("libc.so.6", dl.Now)
	require.NoError(t, err)
	_, missing := fillTable(func(name string) unsafe.Pointer {
		if name == "MPI_Ireduce_scatter_block" {
			return nil
		}
		return libc.Lookup("ffs")
	})
	require.Equal(t, "MPI_Ireduce_scatter_block", missing)
}

func TestNoLibraryIsNotFound(t *testing.T) {
	_, err := Probe("/nonexistent/libmpi.so")
	require.Equal(t, status.MPINotFound, status.CodeOf(err))
	require.ErrorContains(t, err, "/nonexistent/libmpi.so")
	_, err = Probe("libc.so.6")
	require.Equal(t, status.MPINotFound, status.CodeOf(err))
	require.ErrorContains(t, err, "PADDLEMPI_MPI")
}

func TestCountsBeyondIntAreRefused(t *testing.T) {
	l := nothing(t)
	for _, c := range []*Call{
		{Fn: FnSend, SendCount: MaxCount + 1}, {Fn: FnRecv, RecvCount: 1 << 40}, {Fn: FnBcast, RecvCount: -1},
	} {
		err := l.Run(c, nil)
		require.Equal(t, status.Argument, status.CodeOf(err))
		require.ErrorContains(t, err, c.Fn.String())
		_, err = l.Start(c)
		require.Equal(t, status.Argument, status.CodeOf(err))
	}
	require.NoError(t, l.Run(&Call{Fn: FnBcast, RecvCount: MaxCount}, nil))
}

func TestFnWithoutFunctionIsRefused(t *testing.T) {
	err := nothing(t).Run(&Call{Fn: FnNone}, nil)
	require.Equal(t, status.Argument, status.CodeOf(err))
}

func TestRunAllocatesNothing(t *testing.T) {
	l := nothing(t)
	var lib Library = l
	c, st := &Call{Fn: FnAllreduce}, &Status{}
	r, err := lib.Start(c)
	require.NoError(t, err)
	list := []uintptr{r.Address()}
	require.Zero(t, testing.AllocsPerRun(100, func() { _ = lib.Run(c, st) }))
	require.Zero(t, testing.AllocsPerRun(100, func() { lib.Poll(list) }))
	require.Zero(t, testing.AllocsPerRun(100, func() { _, _, _, _ = lib.Improbe(0, 0, 0) }))
	require.Zero(t, testing.AllocsPerRun(100, func() {
		r, _ := lib.Start(c)
		lib.Release(r)
	}))
}

func TestRequestsAreReusedAndCleared(t *testing.T) {
	var p requests
	seen := map[*transport.Request]bool{}
	for i := 0; i < 3*requestsAtOnce; i++ {
		r := p.take()
		require.False(t, seen[r])
		require.Equal(t, transport.Request{}, *r)
		seen[r] = true
		r.End()
	}
	for r := range seen {
		p.give(r)
	}
	r := p.take()
	require.True(t, seen[r])
	require.False(t, r.Done())
}

func TestABITablesAreComplete(t *testing.T) {
	for _, a := range ABIs() {
		for i, h := range a.Handles {
			require.NotEqual(t, Handle{}, h, "%s: %s", a.Name, handleNames[i])
		}
		require.NotZero(t, a.Status.Size, a.Name)
		require.LessOrEqual(t, a.Status.Size, int32(64), "%s: calls.c gives a status 64 bytes", a.Name)
		for c := ErrBuffer; c <= ErrWin; c++ {
			require.NotZero(t, a.Classes[c], "%s: %s", a.Name, c)
			require.Equal(t, c, a.class(a.Classes[c]), a.Name)
		}
		require.Equal(t, ErrUnknown, a.class(12345), a.Name)
	}
}

func TestReductionsCoverWhatIsDefined(t *testing.T) {
	for d := op.DType(1); d < op.NumDTypes; d++ {
		if _, ok := typeHandle[d]; !ok {
			continue
		}
		for r := op.ReduceOp(1); r < op.NumReduceOps; r++ {
			if !op.Defined(r, d) {
				continue
			}
			handles := opHandle
			if d == op.Bool {
				handles = boolHandle
			}
			require.Contains(t, handles, r, "%s of %s", r, d)
		}
	}
}

// stubbed returns a library of an ABI by mpistub, with n requests whose handles are 1 to n.
func stubbed(t *testing.T, a *ABI, n int, fails int32) (*library, []*transport.Request, []uintptr) {
	libc, err := dl.Open("libc.so.6", dl.Now)
	require.NoError(t, err)
	l := &library{mpi: &loaded{file: libc, abi: a}}
	table, missing := fillTable(mpistub.Lookup)
	require.Empty(t, missing)
	l.mpi.table = table
	l.mpi.setConstants()
	mpistub.Begin(mpistub.Layout(a.Status), a.Request == 4, a.Classes[ErrInStatus], fails)
	var list []*transport.Request
	var addresses []uintptr
	for i := range n {
		r := l.requests.take()
		r.Handle, r.Kind = uintptr(1+i), int32(FnRecv)
		list, addresses = append(list, r), append(addresses, r.Address())
	}
	return l, list, addresses
}

func TestPollLooksOnceForAllRequests(t *testing.T) {
	for _, a := range ABIs() {
		l, list, addresses := stubbed(t, a, 5, 0)
		require.Zero(t, l.Poll(addresses), a.Name)
		require.Equal(t, 1, mpistub.Looks(), a.Name)
		mpistub.Say(2, 0)
		mpistub.Say(4, 0)
		require.Equal(t, 2, l.Poll(addresses), a.Name)
		require.Equal(t, 2, mpistub.Looks(), a.Name)
		for i, r := range list {
			if i != 1 && i != 3 {
				require.False(t, r.Done(), a.Name)
				continue
			}
			want := transport.Request{Handle: r.Handle, Source: int32(1 + i), Tag: int32(1 + i), Bytes: int64(101 + i), Kind: r.Kind}
			want.End()
			require.Equal(t, want, *r, a.Name)
			require.NoError(t, l.Err(r))
		}
		mpistub.Say(1, 0)
		require.Equal(t, 1, l.Poll(addresses), a.Name) // those that are done are not tested again
	}
}

func TestPollTellsOfEachRequestThatFailed(t *testing.T) {
	for _, a := range ABIs() {
		truncated := a.Classes[ErrTruncate]
		for _, fails := range []int32{0, a.Classes[ErrOther]} { // the call itself fails: then each is asked
			l, list, addresses := stubbed(t, a, 3, fails)
			mpistub.Say(1, 0)
			mpistub.Say(3, truncated)
			require.Equal(t, 2, l.Poll(addresses), a.Name)
			require.NoError(t, l.Err(list[0]), a.Name)
			require.EqualValues(t, 101, list[0].Bytes, a.Name)
			require.False(t, list[1].Done(), a.Name)
			require.True(t, list[2].Done(), a.Name)
			require.ErrorContains(t, l.Err(list[2]), "MPI_ERR_TRUNCATE", a.Name)
		}
	}
}

func TestPollTakesAnyNumberOfRequests(t *testing.T) {
	l, list, addresses := stubbed(t, &abiMPICH, 200, 0)
	for i := range 200 {
		mpistub.Say(1+i, 0)
	}
	require.Equal(t, 200, l.Poll(addresses))
	for i, r := range list {
		require.EqualValues(t, 1+i, r.Tag)
	}
	require.Zero(t, l.Poll(addresses))
	require.Equal(t, 4, mpistub.Looks())
}

func BenchmarkRun(b *testing.B) {
	var lib Library = nothing(b)
	c := &Call{Fn: FnAllreduce}
	b.ReportAllocs()
	for i := 0; i < b.N; i++ {
		_ = lib.Run(c, nil)
	}
}

func BenchmarkPoll(b *testing.B) {
	var lib Library = nothing(b)
	r, err := lib.Start(&Call{Fn: FnAllreduce})
	require.NoError(b, err)
	list := []uintptr{r.Address()}
	b.ReportAllocs()
	for i := 0; i < b.N; i++ {
		lib.Poll(list)
	}
}

func TestAnMPIWithoutFilesIsTold(t *testing.T) {
	libc, err := dl.Open("libc.so.6", dl.Now)
	require.NoError(t, err)
	table, missing := fillTable(func(name string) unsafe.Pointer {
		if name == "MPI_File_read_at" {
			return nil
		}
		return libc.Lookup("ffs")
	})
	require.Empty(t, missing)
	l := nothing(t)
	l.mpi.table = table
	_, err = l.OpenFile("/a", FileReads, nil)
	require.Equal(t, status.Unsupported, status.CodeOf(err))
	require.ErrorContains(t, err, "MPI_File_read_at")
}
