// Package dl loads shared libraries at run time. Nothing is linked at build time, so that one build
// of the core works with every MPI.
//
// A library that was opened is never closed, because MPI libraries leave threads, atexit handlers
// and signal handlers behind.
package dl

/*
#cgo LDFLAGS: -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>

// The text of dlerror belongs to the calling thread, and Go may move a goroutine to another thread
// between two calls. So each function fetches it before it returns.
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
	Global = int(C.RTLD_GLOBAL) // its symbols are visible to libraries loaded later
	noload = int(C.RTLD_NOLOAD)
)

// Library is a loaded shared library.
type Library struct {
	handle unsafe.Pointer
	path   string
}

// Open loads the library at path, or of that soname if path has no slash. If the library is loaded
// already, by anyone, Open returns it. The error is the text of the dynamic loader, which names the
// file.
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

// Loaded returns the library of a path or soname if it is loaded in this process, else nil. It
// loads nothing.
func Loaded(path string) *Library {
	l, err := Open(path, Lazy|noload)
	if err != nil {
		return nil
	}
	return l
}

// Path returns the file that the loader took.
func (l *Library) Path() string { return l.path }

// Lookup returns the address of a symbol, nil if neither the library nor its dependencies have it.
func (l *Library) Lookup(name string) unsafe.Pointer {
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	return C.dlsym(l.handle, s)
}

// Owner returns the file of the loaded library that contains address, "" if none does.
func Owner(address unsafe.Pointer) string {
	if p := C.pmpi_dl_owner(address); p != nil {
		return C.GoString(p)
	}
	return ""
}

// Files returns the paths of the files that are mapped executable into this process: the program
// and the loaded shared libraries. They are in the order of their addresses, each once. The kernel
// appends " (deleted)" to the path of a file that was replaced; Files removes that.
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
		// A line has: address perms offset dev inode path. The path may contain spaces.
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
