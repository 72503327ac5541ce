package mpi

/*
#include <stdlib.h>
#include "calls.h"
*/
import "C"

import (
	"path/filepath"
	"strings"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/dl"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// loaded is a libmpi: its functions, and what is known of it before it is initialised.
type loaded struct {
	file  *dl.Library
	abi   *ABI
	table *C.struct_pmpi_mpi_table
	info  Info
	// device is what MPICH was built for: "ch4:ofi", "ch4:ucx"; "" under other MPIs.
	device string
}

// load loads the library at path and finds out which MPI it is. Before that it sets the variables
// that constructors of the library read. The library is never unloaded.
func load(path, why string) (*loaded, error) {
	// Otherwise UCX would handle SIGSEGV, which Go turns into nil-pointer panics.
	dl.SetenvDefault("UCX_ERROR_SIGNALS", "")
	flags := dl.Now | dl.Local
	if isOpenMPI(path) {
		// The plugins of Open MPI look for its symbols in the global scope.
		flags = dl.Now | dl.Global
	}
	preloadFabric(path)
	file, err := dl.Open(path, flags)
	if err != nil {
		return nil, status.New(status.MPINotFound, "cannot load the MPI library %s (%s): %v", path, why, err)
	}
	l := &loaded{file: file}
	if l.abi = abiOf(file); l.abi == nil {
		return nil, status.New(status.MPINotFound, "%s (%s) is no MPI library that paddlempi knows: it has neither Open MPI's "+
			"nor MPICH's nor the MPI-5 standard's symbols; name a libmpi with PADDLEMPI_MPI=/path/libmpi.so or init_process_group(mpi=...)",
			file.Path(), why)
	}
	if l.abi == &abiOpenMPI && flags&dl.Global == 0 {
		// The path did not show that this is Open MPI. Load it again, into the global scope.
		if _, err := dl.Open(path, dl.Now|dl.Global); err != nil {
			return nil, status.New(status.MPINotFound, "cannot load the MPI library %s (%s): %v", path, why, err)
		}
	}
	l.info = Info{Path: file.Path(), Why: why, ABI: l.abi.Name}
	l.info.Version, l.device = versionOf(file)
	l.info.Name = nameOf(l.info.Version)
	if err := l.fill(); err != nil {
		return nil, err
	}
	l.info.Standard = standardOf(l.table)
	return l, nil
}

func isOpenMPI(path string) bool {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		resolved = path
	}
	return strings.HasPrefix(filepath.Base(resolved), "libmpi.so.40") || strings.Contains(resolved, "openmpi")
}

// preloadFabric loads the libfabric in the directory of an Intel MPI library, where its wheel puts
// it, and sets the variable for its providers. Intel's start script does the same. libmpi alone
// would find neither.
func preloadFabric(path string) {
	dir := filepath.Dir(path)
	providers, err := filepath.Glob(filepath.Join(dir, "lib*-fi.so"))
	if err != nil || len(providers) == 0 {
		return
	}
	dl.SetenvDefault("FI_PROVIDER_PATH", dir)
	// If this fails, loading libmpi will report what is missing.
	_, _ = dl.Open(filepath.Join(dir, "libfabric.so.1"), dl.Now|dl.Global)
}

// abiOf finds the ABI by symbols of the library, nil if it knows none. Since MPI 5 native libraries
// have MPI_Abi_get_version, too, and there it returns -1.
func abiOf(file *dl.Library) *ABI {
	if file.Lookup("ompi_mpi_comm_self") != nil {
		return &abiOpenMPI
	}
	if f := file.Lookup("MPI_Abi_get_version"); f != nil {
		var major, minor C.int
		if C.pmpi_mpi_abi_version(f, &major, &minor) == 0 && major > 0 {
			return &abiStandard
		}
	}
	for _, symbol := range []string{"MPIR_Err_create_code", "MPIR_Process", "MPIX_Comm_failure_ack", "MPIX_Comm_revoke"} {
		if file.Lookup(symbol) != nil {
			return &abiMPICH
		}
	}
	return nil
}

// versionOf returns the first line of MPI_Get_library_version, without the spaces with which some libraries pad it, and the device
// that MPICH names in a later one ("ch4:ucx").
func versionOf(file *dl.Library) (version, device string) {
	f := file.Lookup("MPI_Get_library_version")
	if f == nil {
		return "", ""
	}
	text := (*C.char)(C.calloc(1, 16384)) // MPICH's MPI_MAX_LIBRARY_VERSION_STRING is 8192
	defer C.free(unsafe.Pointer(text))
	var n C.int
	if C.pmpi_mpi_library_version(f, text, &n) != 0 {
		return "", ""
	}
	first, rest, _ := strings.Cut(C.GoString(text), "\n")
	if _, after, found := strings.Cut(rest, "Device:"); found {
		if words := strings.Fields(after); len(words) > 0 {
			device = words[0]
		}
	}
	return strings.Join(strings.Fields(first), " "), device
}

func nameOf(version string) string {
	for _, m := range []struct{ part, name string }{
		{"Open MPI", "Open MPI"}, {"Intel(R) MPI", "Intel MPI"}, {"MVAPICH", "MVAPICH"}, {"MPICH", "MPICH"},
	} {
		if strings.Contains(version, m.part) {
			return m.name
		}
	}
	return "MPI"
}

// fill makes the table and looks up every function. A missing one is an error, unless it is optional.
func (l *loaded) fill() error {
	t, missing := fillTable(l.file.Lookup)
	if t == nil {
		return status.New(status.NoMemory, "no memory for the table of MPI functions")
	}
	if missing != "" {
		C.pmpi_mpi_free(t)
		return status.New(status.MPINotFound, "%s (%s) lacks %s: paddlempi needs an MPI of standard 3.1 or later",
			l.info.Path, l.info.Version, missing)
	}
	l.table = t
	l.setConstants()
	return nil
}

// setConstants fills in what the calls need of the ABI.
func (l *loaded) setConstants() {
	a := l.abi
	C.pmpi_mpi_set_constants(l.table, &C.struct_pmpi_mpi_constants{
		in_place: C.uintptr_t(a.InPlace), status_ignore: C.uintptr_t(a.StatusIgnore),
		any_source: C.int32_t(a.Ints[iAnySource]), any_tag: C.int32_t(a.Ints[iAnyTag]),
		status_source: C.int32_t(a.Status.Source), status_tag: C.int32_t(a.Status.Tag), status_error: C.int32_t(a.Status.Error),
		status_size: C.int32_t(a.Status.Size), request_size: C.int32_t(a.Request), err_in_status: C.int32_t(a.Classes[ErrInStatus]),
		byte: C.uintptr_t(l.handle(hByte)), errors_return: C.uintptr_t(l.handle(hErrorsReturn)),
		info_null: C.uintptr_t(l.handle(hInfoNull)), type_shared: C.int32_t(a.Ints[iTypeShared]),
		keyval_invalid: C.int32_t(a.Ints[iKeyvalInvalid]),
	})
}

// fillTable makes a table of the functions that lookup finds, and returns the name of the first one
// that it does not find and that is not optional. The table is nil if memory is short.
func fillTable(lookup func(string) unsafe.Pointer) (t *C.struct_pmpi_mpi_table, missing string) {
	if t = C.pmpi_mpi_new(); t == nil {
		return nil, ""
	}
	for i := C.int(0); ; i++ {
		s := C.pmpi_mpi_function_name(i)
		if s == nil {
			return t, ""
		}
		name := spelled(C.GoString(s))
		symbol := lookup(name)
		if symbol == nil && C.pmpi_mpi_function_is_optional(i) == 0 {
			return t, name
		}
		C.pmpi_mpi_set_function(t, i, symbol)
	}
}

// spelled turns MPI_IBcast, as the macros of the table spell it, into MPI_Ibcast.
func spelled(name string) string {
	const prefix = "MPI_I"
	if strings.HasPrefix(name, prefix) && name[len(prefix)] >= 'A' && name[len(prefix)] <= 'Z' {
		return prefix + strings.ToLower(name[len(prefix):len(prefix)+1]) + name[len(prefix)+1:]
	}
	return name
}

// handle returns a predefined handle.
func (l *loaded) handle(i int) uintptr {
	h := l.abi.Handles[i]
	if h.Symbol == "" {
		return uintptr(h.Value)
	}
	return uintptr(l.file.Lookup(h.Symbol))
}

// Probe loads the library at path without initialising it. It returns path, ABI, name, version and
// standard.
func Probe(path string) (Info, error) {
	l, err := load(path, "probed")
	if err != nil {
		return Info{}, err
	}
	C.pmpi_mpi_free(l.table)
	return l.info, nil
}
