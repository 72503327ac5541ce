package gocore

import (
	"sync"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/method"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// openFiles has the files that were opened through MPI, by the numbers that callers know.
var openFiles struct {
	sync.Mutex
	last  int64
	files map[int64]openFile
}

// openFile is a file with the MPI that has opened it. It may outlive the world.
type openFile struct {
	lib  mpi.Library
	file mpi.File
}

// by returns MPI's calls for files.
func (f openFile) by(what string) (mpi.Files, error) {
	if f.lib == nil {
		return nil, status.New(status.Unsupported, "%s: this job runs without MPI; set PADDLEMPI_IO=posix, or leave it unset", what)
	}
	files, ok := f.lib.(mpi.Files)
	if !ok {
		return nil, status.New(status.Unsupported, "%s: %s has no calls for files", what, f.lib.Info().Name)
	}
	if f.lib.Finalized() {
		return nil, status.New(status.NotInitialized, "%s: MPI was finalized in this process", what)
	}
	return files, nil
}

// fileRequest is what the methods of an open file have in common.
type fileRequest struct {
	Handle  int64  `json:"handle"`
	Offset  int64  `json:"offset"`
	Address uint64 `json:"address"`
	Bytes   int64  `json:"bytes"`
}

func (r *fileRequest) memory() unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&r.Address))
}

// parseFile reads the request of a method, and returns the file and the calls for it.
func parseFile(what string, request []byte) (r fileRequest, files mpi.Files, f mpi.File, err error) {
	if err = method.Parse(what, request, &r); err != nil {
		return r, nil, 0, err
	}
	openFiles.Lock()
	one, ok := openFiles.files[r.Handle]
	openFiles.Unlock()
	if !ok {
		return r, nil, 0, status.New(status.Argument, "%s: there is no file %d", what, r.Handle)
	}
	if r.Offset < 0 || r.Bytes < 0 {
		return r, nil, 0, status.New(status.Argument, "%s: %d bytes at %d: neither may be below 0", what, r.Bytes, r.Offset)
	}
	files, err = one.by(what)
	return r, files, one.file, err
}

func controlFileOpen(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Path  string      `json:"path"`
		Mode  string      `json:"mode"`
		Hints [][2]string `json:"hints"`
	}
	if err := method.Parse("file_open", request, &r); err != nil {
		return nil, err
	}
	mode, ok := map[string]mpi.FileMode{"r": mpi.FileReads, "r+": mpi.FileWrites, "x": mpi.FileIsMade}[r.Mode]
	if !ok || r.Path == "" {
		return nil, status.New(status.Argument, "file_open: path=%q, mode=%q: it takes a path, and r, r+ or x", r.Path, r.Mode)
	}
	w, err := initialWorld()
	if err != nil {
		return nil, err
	}
	files, err := openFile{lib: w.lib}.by("file_open")
	if err != nil {
		return nil, err
	}
	hints := make([]mpi.Hint, len(r.Hints))
	for i, hint := range r.Hints {
		hints[i] = mpi.Hint{Key: hint[0], Value: hint[1]}
	}
	f, err := files.OpenFile(r.Path, mode, hints)
	if err != nil {
		return nil, err
	}
	openFiles.Lock()
	defer openFiles.Unlock()
	if openFiles.files == nil {
		openFiles.files = map[int64]openFile{}
	}
	openFiles.last++
	openFiles.files[openFiles.last] = openFile{w.lib, f}
	return map[string]any{"handle": openFiles.last}, nil
}

func controlFileWrite(request []byte, _ work.Interrupt) (any, error) {
	r, files, f, err := parseFile("file_write", request)
	if err != nil {
		return nil, err
	}
	moved, err := files.WriteFile(f, r.Offset, r.memory(), r.Bytes)
	return map[string]any{"bytes": moved}, err
}

func controlFileRead(request []byte, _ work.Interrupt) (any, error) {
	r, files, f, err := parseFile("file_read", request)
	if err != nil {
		return nil, err
	}
	moved, err := files.ReadFile(f, r.Offset, r.memory(), r.Bytes)
	return map[string]any{"bytes": moved}, err
}

func controlFileSync(request []byte, _ work.Interrupt) (any, error) {
	_, files, f, err := parseFile("file_sync", request)
	if err != nil {
		return nil, err
	}
	return struct{}{}, files.SyncFile(f)
}

func controlFileClose(request []byte, _ work.Interrupt) (any, error) {
	r, files, f, err := parseFile("file_close", request)
	openFiles.Lock()
	delete(openFiles.files, r.Handle)
	openFiles.Unlock()
	if err != nil {
		return nil, err
	}
	return struct{}{}, files.CloseFile(f)
}
