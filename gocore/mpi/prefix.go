package mpi

import "path/filepath"

// tellPrefix tells Open MPI where it is installed, if a file there shows that. Open MPI's mpirun
// tells its ranks. A process that was started without it (a test, a notebook) would not find the
// texts of Open MPI's messages: "Sorry! You were supposed to get help about". Open MPI reads the
// variable in MPI_Init only. The caller then calls takeBack, which unsets it, because a child
// process may use another Open MPI.
func (s *system) tellPrefix(lib Info) (takeBack func()) {
	nothing := func() {}
	if lib.ABI != "openmpi" {
		return nothing
	}
	prefix := filepath.Dir(filepath.Dir(lib.Path))
	if !s.file(filepath.Join(prefix, "share", "openmpi", "help-mpi-api.txt")) || !s.setDefault("OPAL_PREFIX", prefix) {
		return nothing
	}
	return func() { s.unset("OPAL_PREFIX") }
}
