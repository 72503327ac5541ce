package mpi

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/dl"
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
	return &library{loaded: &loaded{file: libc, abi: &abiMPICH}, table: table}
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
		seen[r], r.Done = true, 1
	}
	for r := range seen {
		p.give(r)
	}
	r := p.take()
	require.True(t, seen[r])
	require.Zero(t, r.Done)
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
	l.table = table
	_, err = l.OpenFile("/a", FileReads, nil)
	require.Equal(t, status.Unsupported, status.CodeOf(err))
	require.ErrorContains(t, err, "MPI_File_read_at")
}
