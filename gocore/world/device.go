package world

import (
	"math"
	"strconv"
	"strings"

	"github.com/paddlempi/paddlempi/gocore/dl"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// chunkDefault is the length in bytes of the pieces in which tensors are staged. It is long enough
// for MPI to reach its full speed, and three pieces fit into a cache.
const chunkDefault = 4 << 20

// reduceOnDevice is the default of Device.ReduceOnDevice. On an H200 with two ranks, the
// device is slower below and faster above (docs/benchmarks.md).
const reduceOnDevice = 4 << 20

// Device says how tensors in device memory may go.
type Device struct {
	Aware               Aware // whether MPI takes device memory
	Chunk               int64 // bytes; the smallest value of all ranks
	IPC, Direct, Staged bool  // the paths that are allowed
	// ReduceOnDevice is the length in bytes from which the device adds staged tensors up.
	ReduceOnDevice int64
}

// read reads the settings once, at init, so that all ranks can agree on the chunk.
func (s *Device) read() (err error) {
	s.Chunk, s.IPC, s.Direct, s.Staged, s.ReduceOnDevice = chunkDefault, true, true, true, reduceOnDevice
	if v, ok := dl.Getenv("PADDLEMPI_CUDA_CHUNK"); ok && v != "" {
		if s.Chunk, err = strconv.ParseInt(v, 10, 64); err != nil || s.Chunk < 1 {
			return status.New(status.Argument, "init: PADDLEMPI_CUDA_CHUNK=%s is no number of bytes above 0", v)
		}
	}
	if v, ok := dl.Getenv("PADDLEMPI_CUDA_PATHS"); ok && v != "" {
		s.IPC, s.Direct, s.Staged = false, false, false
		paths := map[string]*bool{"ipc": &s.IPC, "direct": &s.Direct, "staged": &s.Staged}
		for _, name := range strings.Split(v, ",") {
			path := paths[strings.TrimSpace(name)]
			if path == nil {
				return status.New(status.Argument, "init: PADDLEMPI_CUDA_PATHS=%s: %q is none of ipc, direct, staged", v, name)
			}
			*path = true
		}
	}
	switch v, _ := dl.Getenv("PADDLEMPI_CUDA_REDUCE"); v {
	case "":
	case "host":
		s.ReduceOnDevice = math.MaxInt64
	case "device":
		s.ReduceOnDevice = 0
	default:
		return status.New(status.Argument, "init: PADDLEMPI_CUDA_REDUCE=%s is neither host nor device", v)
	}
	_, _, err = cudaForced()
	return err
}
