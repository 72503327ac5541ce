package mpi

/*
#include <stdlib.h>

#include "calls.h"
*/
import "C"

import (
	"fmt"
	"hash/crc32"
	"sync/atomic"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// library is a Library that calls a real libmpi.
//
// Invariant: mpi and types do not change after Open has returned it. ops changes only
// in openOps and FreeAll, and no other call may run at the same time.
type library struct {
	mpi      *loaded
	tagUB    int32
	types    [op.NumDTypes]Datatype
	ops      [op.NumReduceOps][op.NumDTypes]Op
	user     []Op
	requests requests
	intel    intelSetting
	alone    bool // no launcher has started this process (SelfStart)
	stuck    bool // MPI_Init has not returned: another thread waits in it for good
}

// start initialises MPI, or adopts an MPI that is initialised already. It reads what the other
// methods need. o says how.
func (l *library) start(o Options) error {
	l.intel = noteIntelSetting()
	multiple := C.int(l.mpi.abi.Ints[iThreadMultiple])
	var level C.int
	if l.mpi.initialized() {
		l.mpi.info.Owner = "other"
		if err := l.mpi.check("MPI_Query_thread", C.pmpi_mpi_query_thread(l.mpi.table, &level)); err != nil {
			return err
		}
	} else {
		l.mpi.info.Owner = "paddlempi"
		takeBack := host().tellPrefix(l.mpi.info)
		err := l.initialise(o, multiple, &level)
		takeBack()
		if err != nil {
			return err
		}
	}
	// The handlers of MPICH (SIGUSR1) and Open MPI (SIGABRT) would otherwise run on a goroutine's
	// small stack.
	C.pmpi_mpi_signals_on_stack()
	l.mpi.info.ThreadLevel = l.mpi.levelName(int32(level))
	if level < multiple {
		return l.levelError()
	}
	if l.mpi.abi == &abiStandard && l.mpi.info.Name == "Intel MPI" {
		// libmpi_abi of Intel MPI 2021.18 accepts MPI_ERRORS_RETURN and aborts nevertheless. MPICH
		// 5.0.2 is the opposite: with an error handler of this package, calls return success after
		// an error.
		if err := l.mpi.check("MPI_Comm_create_errhandler", C.pmpi_mpi_own_errhandler(l.mpi.table)); err != nil {
			return err
		}
	}
	if l.mpi.info.Owner == "paddlempi" { // communicators of other code keep their error handlers
		for _, h := range []int{hCommWorld, hCommSelf} {
			if err := l.mpi.check("MPI_Comm_set_errhandler", C.pmpi_mpi_errors_return(l.mpi.table, C.uintptr_t(l.mpi.handle(h)))); err != nil {
				return err
			}
		}
	}
	for d, h := range typeHandle {
		l.types[d] = Datatype(l.mpi.handle(h))
	}
	var set, value C.int
	if err := l.mpi.check("MPI_Comm_get_attr", C.pmpi_mpi_attribute(l.mpi.table, C.uintptr_t(l.World()), C.int(l.mpi.abi.Ints[iTagUB]), &set, &value)); err != nil {
		return err
	}
	l.tagUB = 32767 // the least that the standard allows
	if set != 0 {
		l.tagUB = int32(value)
	}
	return l.openOps()
}

// initialise calls MPI_Init_thread. If SelfStart.Init returns before that call has, MPI is lost to this process.
func (l *library) initialise(o Options, want C.int, level *C.int) error {
	var begun, over atomic.Bool
	init := func() error {
		begun.Store(true)
		defer over.Store(true)
		return l.mpi.check("MPI_Init_thread", C.pmpi_mpi_init(l.mpi.table, want, level))
	}
	if o.SelfStart == nil {
		if o.RollCall != nil {
			defer o.RollCall.Watch()()
		}
		return init()
	}
	l.alone = true
	err := o.SelfStart.Init(l.mpi.info, init)
	l.stuck = begun.Load() && !over.Load()
	return err
}

func (l *loaded) levelName(level int32) string {
	for i, name := range []string{"single", "funneled", "serialized", "multiple"} {
		if level == l.abi.Ints[iThreadSingle+i] {
			return name
		}
	}
	return fmt.Sprintf("unknown (%d)", level)
}

func (l *library) levelError() error {
	if l.mpi.info.Owner == "other" {
		return status.New(status.ThreadLevel, "MPI (%s) was initialised with thread level %q, and paddlempi needs \"multiple\": "+
			"with mpi4py set mpi4py.rc.thread_level = \"multiple\" before the first \"from mpi4py import MPI\", "+
			"or call init_process_group before that import", l.mpi.info.Path, l.mpi.info.ThreadLevel)
	}
	return status.New(status.ThreadLevel, "%s (%s) grants only thread level %q, and paddlempi needs \"multiple\": "+
		"use an MPI that was built with thread support", l.mpi.info.Version, l.mpi.info.Path, l.mpi.info.ThreadLevel)
}

// openOps makes the user ops and fills in the table of reductions.
func (l *library) openOps() error {
	var made [C.PMPI_USER_OPS]Op
	for i := range made {
		var h C.uintptr_t
		if err := l.mpi.check("MPI_Op_create", C.pmpi_mpi_create_op(l.mpi.table, C.int(i), &h)); err != nil {
			return err
		}
		made[i] = Op(h)
	}
	l.user = made[:]
	for d := range typeHandle {
		for r, h := range opHandle {
			if !op.Defined(r, d) {
				continue
			}
			if d == op.Bool {
				h = boolHandle[r]
			}
			l.ops[r][d] = Op(l.mpi.handle(h))
		}
	}
	l.ops[op.Min][op.Float32] = made[C.PMPI_USER_MIN_FLOAT]
	l.ops[op.Max][op.Float32] = made[C.PMPI_USER_MAX_FLOAT]
	l.ops[op.Min][op.Float64] = made[C.PMPI_USER_MIN_DOUBLE]
	l.ops[op.Max][op.Float64] = made[C.PMPI_USER_MAX_DOUBLE]
	return nil
}

func (l *library) FreeAll() {
	currentLock.Lock()
	defer currentLock.Unlock()
	if !l.Finalized() {
		for _, o := range l.user {
			C.pmpi_mpi_free_op(l.mpi.table, C.uintptr_t(o))
		}
	}
	l.user = nil
	l.ops = [op.NumReduceOps][op.NumDTypes]Op{}
}

func standardOf(t *C.struct_pmpi_mpi_table) string {
	var major, minor C.int
	if C.pmpi_mpi_version(t, &major, &minor) != 0 {
		return ""
	}
	return fmt.Sprintf("%d.%d", major, minor)
}

func (l *library) Info() Info     { return l.mpi.info }
func (l *library) World() Comm    { return Comm(l.mpi.handle(hCommWorld)) }
func (l *library) Byte() Datatype { return Datatype(l.mpi.handle(hByte)) }
func (l *library) TagUB() int32   { return l.tagUB }

func (l *library) TypeOf(d op.DType) (Datatype, bool) {
	if d < 0 || int(d) >= op.NumDTypes {
		return 0, false
	}
	return l.types[d], l.types[d] != 0
}

func (l *library) OpOf(r op.ReduceOp, d op.DType) (Op, bool) {
	if d < 0 || int(d) >= op.NumDTypes || r < 0 || int(r) >= op.NumReduceOps {
		return 0, false
	}
	return l.ops[r][d], l.ops[r][d] != 0
}

func (l *library) Bytes(n int64) (Datatype, func(), error) {
	if n <= 0 {
		return 0, nil, status.New(status.Argument, "a datatype of %d bytes: it takes at least 1", n)
	}
	var h C.uintptr_t
	if err := l.mpi.check("MPI_Type_create_hindexed", C.pmpi_mpi_bytes(l.mpi.table, C.int64_t(n), &h)); err != nil {
		return 0, nil, err
	}
	return Datatype(h), func() { C.pmpi_mpi_free_type(l.mpi.table, h) }, nil
}

func (l *library) Rank(c Comm) (int, error) {
	var n C.int
	err := l.mpi.check("MPI_Comm_rank", C.pmpi_mpi_rank(l.mpi.table, C.uintptr_t(c), &n))
	return int(n), err
}

func (l *library) Size(c Comm) (int, error) {
	var n C.int
	err := l.mpi.check("MPI_Comm_size", C.pmpi_mpi_size(l.mpi.table, C.uintptr_t(c), &n))
	return int(n), err
}

func (l *library) Dup(c Comm) (Comm, error) {
	var h C.uintptr_t
	err := l.mpi.check("MPI_Comm_dup", C.pmpi_mpi_dup(l.mpi.table, C.uintptr_t(c), &h))
	return Comm(h), err
}

func (l *library) CreateGroup(parent Comm, ranks []int32, tag int32) (Comm, error) {
	if len(ranks) == 0 {
		return 0, status.New(status.Argument, "a communicator of no ranks")
	}
	var h C.uintptr_t
	err := l.mpi.check("MPI_Comm_create_group", C.pmpi_mpi_create_group(l.mpi.table, C.uintptr_t(parent), C.int(len(ranks)),
		(*C.int32_t)(unsafe.SliceData(ranks)), C.int(tag), &h))
	return Comm(h), err
}

// CreateWithout is MPI_Comm_create_from_group if the MPI has that: MPI_Comm_create_group fails in Open MPI once a rank of the parent is
// known to have died.
func (l *library) CreateWithout(ranks []int32, name string) (Comm, error) {
	if C.pmpi_mpi_has_create_from_group(l.mpi.table) == 0 {
		return l.CreateGroup(l.World(), ranks, int32(crc32.ChecksumIEEE([]byte(name))%uint32(l.TagUB())))
	}
	tag := C.CString("paddlempi." + name)
	defer C.free(unsafe.Pointer(tag))
	var h C.uintptr_t
	err := l.mpi.check("MPI_Comm_create_from_group", C.pmpi_mpi_create_from_group(l.mpi.table, C.uintptr_t(l.World()), C.int(len(ranks)),
		(*C.int32_t)(unsafe.SliceData(ranks)), tag, &h))
	return Comm(h), err
}

func (l *library) SplitShared(c Comm) (Comm, error) {
	var h C.uintptr_t
	err := l.mpi.check("MPI_Comm_split_type", C.pmpi_mpi_split_shared(l.mpi.table, C.uintptr_t(c), &h))
	return Comm(h), err
}

func (l *library) Free(c Comm) error {
	return l.mpi.check("MPI_Comm_free", C.pmpi_mpi_free_comm(l.mpi.table, C.uintptr_t(c)))
}

func (l *loaded) initialized() bool {
	var flag C.int
	C.pmpi_mpi_initialized(l.table, &flag)
	return flag != 0
}

func (l *library) Finalized() bool {
	var flag C.int
	C.pmpi_mpi_finalized(l.mpi.table, &flag)
	return flag != 0
}

func (l *library) Finalize() error {
	return l.mpi.check("MPI_Finalize", C.pmpi_mpi_finalize(l.mpi.table))
}

func (l *library) Abort(code int) {
	C.pmpi_mpi_abort(l.mpi.table, C.uintptr_t(l.World()), C.int(code))
}
