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

// loaded is a libmpi in this process, not yet initialised by us.
type loaded struct {
	file *dl.Library
	abi  *ABI
	info Info
}

// load brings the library at path into the process and tells which MPI it is.
// It sets the variables that must stand before that: they are read by
// constructors. What is loaded stays.
func load(path, why string) (*loaded, error) {
	// UCX otherwise takes over SIGSEGV, from which Go makes its nil-pointer panics.
	dl.SetenvDefault("UCX_ERROR_SIGNALS", "")
	flags := dl.Now | dl.Local
	if isOpenMPI(path) {
		// Its plugins look their symbols up in the global scope.
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
		// A name that did not give it away: once more, into the global scope.
		if _, err := dl.Open(path, dl.Now|dl.Global); err != nil {
			return nil, status.New(status.MPINotFound, "cannot load the MPI library %s (%s): %v", path, why, err)
		}
	}
	l.info = Info{Path: file.Path(), Why: why, ABI: l.abi.Name}
	l.info.Version = versionOf(file)
	l.info.Name = nameOf(l.info.Version)
	return l, nil
}

func isOpenMPI(path string) bool {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		resolved = path
	}
	return strings.HasPrefix(filepath.Base(resolved), "libmpi.so.40") || strings.Contains(resolved, "openmpi")
}

// preloadFabric loads the libfabric that lies beside an Intel MPI library, as in
// its wheel, and says where its providers are. Intel's own start script would do
// so; the library alone finds neither.
func preloadFabric(path string) {
	dir := filepath.Dir(path)
	providers, err := filepath.Glob(filepath.Join(dir, "lib*-fi.so"))
	if err != nil || len(providers) == 0 {
		return
	}
	dl.SetenvDefault("FI_PROVIDER_PATH", dir)
	// Where this fails, loading libmpi itself says what is missing.
	_, _ = dl.Open(filepath.Join(dir, "libfabric.so.1"), dl.Now|dl.Global)
}

// abiOf tells the ABI by symbols, nil for none. MPI_Abi_get_version is in native
// libraries too since MPI 5; there it answers -1.
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

// versionOf returns the first line of the library's version, with the spaces that
// some pad it with cut.
func versionOf(file *dl.Library) string {
	f := file.Lookup("MPI_Get_library_version")
	if f == nil {
		return ""
	}
	text := (*C.char)(C.calloc(1, 16384)) // MPICH's MPI_MAX_LIBRARY_VERSION_STRING is 8192
	defer C.free(unsafe.Pointer(text))
	var n C.int
	if C.pmpi_mpi_library_version(f, text, &n) != 0 {
		return ""
	}
	line, _, _ := strings.Cut(C.GoString(text), "\n")
	return strings.Join(strings.Fields(line), " ")
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

// newTable looks up every function; one that is missing is an error.
func (l *loaded) newTable() (*C.struct_pmpi_mpi_table, error) {
	t, missing := fillTable(l.file.Lookup)
	if t == nil {
		return nil, status.New(status.NoMemory, "no memory for the table of MPI functions")
	}
	if missing != "" {
		C.pmpi_mpi_free(t)
		return nil, status.New(status.MPINotFound, "%s (%s) lacks %s: paddlempi needs an MPI of standard 3.1 or later",
			l.info.Path, l.info.Version, missing)
	}
	a := l.abi
	C.pmpi_mpi_set_constants(t, &C.struct_pmpi_mpi_constants{
		in_place: C.uintptr_t(a.InPlace), status_ignore: C.uintptr_t(a.StatusIgnore),
		any_source: C.int32_t(a.Ints[iAnySource]), any_tag: C.int32_t(a.Ints[iAnyTag]),
		status_source: C.int32_t(a.Status.Source), status_tag: C.int32_t(a.Status.Tag),
		byte: C.uintptr_t(l.handle(hByte)), errors_return: C.uintptr_t(l.handle(hErrorsReturn)),
		info_null: C.uintptr_t(l.handle(hInfoNull)), type_shared: C.int32_t(a.Ints[iTypeShared]),
		keyval_invalid: C.int32_t(a.Ints[iKeyvalInvalid]),
	})
	return t, nil
}

// fillTable makes a table of what lookup finds, and names the first function
// that it does not find. The table is nil when memory is short.
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
		if symbol == nil {
			return t, name
		}
		C.pmpi_mpi_set_function(t, i, symbol)
	}
}

// spelled turns MPI_IBcast, as the table's macros make it, into MPI_Ibcast.
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

// Probe loads the library at path without initialising it and describes it:
// path, ABI, name, version, standard.
func Probe(path string) (Info, error) {
	l, err := load(path, "probed")
	if err != nil {
		return Info{}, err
	}
	t, err := l.newTable()
	if err != nil {
		return Info{}, err
	}
	defer C.pmpi_mpi_free(t)
	l.info.Standard = standardOf(t)
	return l.info, nil
}
