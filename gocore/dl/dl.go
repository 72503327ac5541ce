// Package dl loads shared libraries at run time: nothing is linked at build
// time, so that one build of the core serves every MPI.
//
// A library that was opened is never closed: MPI libraries leave threads,
// atexit handlers and signal handlers behind that outlive any use of them.
package dl

/*
#cgo LDFLAGS: -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>

// dlerror's text belongs to the calling thread, and Go may move a goroutine to
// another thread between two calls, so each function fetches it at once.
static void *pmpi_dl_open(const char *path, int flags, const char **message) {
	void *handle = dlopen(path, flags);
	*message = handle ? NULL : dlerror();
	if (!handle && !*message)
		*message = "not loaded";
	return handle;
}

static const char *pmpi_dl_path(void *handle) {
	struct link_map *map = NULL;
	if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || !map)
		return NULL;
	return map->l_name;
}

static const char *pmpi_dl_owner(void *address) {
	Dl_info info;
	return dladdr(address, &info) ? info.dli_fname : NULL;
}
*/
import "C"

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"unsafe"
)

// Flags of Open.
const (
	Now    = int(C.RTLD_NOW)
	Lazy   = int(C.RTLD_LAZY)
	Local  = int(C.RTLD_LOCAL)
	Global = int(C.RTLD_GLOBAL) // its symbols serve the libraries loaded later
	noload = int(C.RTLD_NOLOAD)
)

// Library is a loaded shared library.
type Library struct {
	handle unsafe.Pointer
	path   string
}

// Open loads the library at path (or, without a slash, of that soname) and
// returns it. Opening one that is loaded already, whoever loaded it, returns
// the same one. The error is the dynamic loader's text, which names the file.
func Open(path string, flags int) (*Library, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var message *C.char
	handle := C.pmpi_dl_open(name, C.int(flags), &message)
	if handle == nil {
		return nil, fmt.Errorf("%s", C.GoString(message))
	}
	l := &Library{handle: handle, path: path}
	if p := C.pmpi_dl_path(handle); p != nil && *p != 0 {
		l.path = C.GoString(p)
	}
	return l, nil
}

// Loaded returns the library of that path or soname if the process has it
// loaded already, and nil otherwise. It loads nothing.
func Loaded(path string) *Library {
	l, err := Open(path, Lazy|noload)
	if err != nil {
		return nil
	}
	return l
}

// Path returns the file the loader took.
func (l *Library) Path() string { return l.path }

// Lookup returns the address of the symbol, nil if the library and its
// dependencies have none of that name.
func (l *Library) Lookup(name string) unsafe.Pointer {
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	return C.dlsym(l.handle, s)
}

// Owner returns the file of the loaded library that address lies in, "" if none.
func Owner(address unsafe.Pointer) string {
	if p := C.pmpi_dl_owner(address); p != nil {
		return C.GoString(p)
	}
	return ""
}

// Files returns the paths of the files mapped executable into this process, in
// the order of their addresses, each once: the loaded shared libraries and the
// program. A replaced file keeps the kernel's " (deleted)" out of its name.
func Files() ([]string, error) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var files []string
	seen := map[string]bool{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// address perms offset dev inode path; the path may hold spaces.
		fields := strings.SplitN(lines.Text(), " ", 6)
		if len(fields) < 6 || !strings.Contains(fields[1], "x") {
			continue
		}
		path := strings.TrimSuffix(strings.TrimLeft(fields[5], " "), " (deleted)")
		if strings.HasPrefix(path, "/") && !seen[path] {
			seen[path] = true
			files = append(files, path)
		}
	}
	return files, lines.Err()
}
