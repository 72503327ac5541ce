package mpi

import "path/filepath"

// tellPrefix tells Open MPI, until the function that it returns is called, where it is
// installed, if that is not where it was built for. Its mpirun tells the ranks; a process that
// was started without one (a test, a notebook) would not find the texts of its own messages:
// "Sorry! You were supposed to get help about". Open MPI reads the variable in MPI_Init only.
// It is taken back, for a child may be another Open MPI.
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
