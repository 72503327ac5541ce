package pmi

import (
	"bytes"
	"os"
)

// segments are the beginnings of the names of the shared memory that MPIs make, and remove when all ranks of
// a node have it, or in MPI_Finalize.
var segments = [][]byte{[]byte("/dev/shm/mpich_shm_"), []byte("/dev/shm/Intel_MPI_")}

// removeSegments removes the files of MPI's shared memory that this process has mapped. It is called when
// MPI comes to no orderly end, because no mpirun is there that could do it.
func removeSegments() {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return // the files stay, as after a kill
	}
	for line := range bytes.Lines(maps) {
		for _, prefix := range segments {
			if at := bytes.Index(line, prefix); at >= 0 {
				_ = os.Remove(string(bytes.TrimSuffix(line[at:], []byte("\n")))) // mapped twice, or removed by another rank
			}
		}
	}
}
