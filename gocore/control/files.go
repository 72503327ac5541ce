package control

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/registry"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

type fileOpenRequest struct {
	Path  string      `json:"path"`
	Mode  string      `json:"mode"`
	Hints [][2]string `json:"hints"`
}

func fileOpen(r fileOpenRequest, _ work.Interrupt) (any, error) {
	mode, ok := map[string]mpi.FileMode{"r": mpi.FileReads, "r+": mpi.FileWrites, "x": mpi.FileIsMade}[r.Mode]
	if !ok || r.Path == "" {
		return nil, status.New(status.Argument, "file_open: path=%q, mode=%q: it takes a path, and r, r+ or x", r.Path, r.Mode)
	}
	w, err := registry.Initial()
	if err != nil {
		return nil, err
	}
	if w.MPI == nil {
		return nil, status.New(status.Unsupported, "file_open: this job runs without MPI; set PADDLEMPI_IO=posix, or leave it unset")
	}
	files, ok := w.MPI.(mpi.Files)
	if !ok {
		return nil, status.New(status.Unsupported, "file_open: %s has no calls for files", w.MPI.Info().Name)
	}
	hints := make([]mpi.Hint, len(r.Hints))
	for i, hint := range r.Hints {
		hints[i] = mpi.Hint{Key: hint[0], Value: hint[1]}
	}
	f, err := files.OpenFile(r.Path, mode, hints)
	if err != nil {
		return nil, err
	}
	return map[string]any{"handle": registry.Files.Add(f)}, nil
}

// fileRequest is what the methods of an open file have in common.
type fileRequest struct {
	Handle int64 `json:"handle"`
	Offset int64 `json:"offset"`
	memory
}

// file returns the file that a request names.
func (r *fileRequest) file(what string) (*mpi.File, error) {
	f, ok := registry.Files.Get(r.Handle)
	if !ok {
		return nil, status.New(status.Argument, "%s: there is no file %d", what, r.Handle)
	}
	if r.Offset < 0 || r.Bytes < 0 {
		return nil, status.New(status.Argument, "%s: %d bytes at %d: neither may be below 0", what, r.Bytes, r.Offset)
	}
	if registry.MPI.Finalized() {
		return nil, status.New(status.NotInitialized, "%s: MPI was finalized in this process", what)
	}
	return f, nil
}

// fileMove makes a method that writes to a file or reads from it.
func fileMove(what string, move func(*mpi.File, int64, unsafe.Pointer, int64) (int64, error)) handler {
	return with(func(r fileRequest, _ work.Interrupt) (any, error) {
		f, err := r.file(what)
		if err != nil {
			return nil, err
		}
		moved, err := move(f, r.Offset, r.at(), r.Bytes)
		return map[string]any{"bytes": moved}, err
	})
}

func fileSync(r fileRequest, _ work.Interrupt) (any, error) {
	f, err := r.file("file_sync")
	if err == nil {
		err = f.Sync()
	}
	return done, err
}

func fileClose(r fileRequest, _ work.Interrupt) (any, error) {
	f, err := r.file("file_close")
	registry.Files.Forget(r.Handle)
	if err == nil {
		err = f.Close()
	}
	return done, err
}
