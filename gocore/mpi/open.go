package mpi

// Open finds, loads and initialises an MPI, or adopts the one that runs in this
// process, and returns it.
func Open(o Options) (Library, error) {
	l, err := open(o.Path, "named explicitly")
	if err != nil {
		return nil, err
	}
	return l, nil
}
