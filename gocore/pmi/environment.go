package pmi

import (
	"strconv"
	"strings"

	"github.com/paddlempi/paddlempi/gocore/dl"
)

// settings choose what an MPI speaks to its launcher. A cluster sets them for srun, for instance. While MPI
// starts they have our value, "" for none.
var settings = map[string]string{
	"MPIR_CVAR_PMI_VERSION": "1", "MPICH_PMI_VERSION": "", "MPIR_PARAM_PMI_VERSION": "", // MPICH
	"I_MPI_PMI": "pmi1", "I_MPI_PMI_LIBRARY": "", "MPIR_CVAR_PMI": "", "MPIR_CVAR_PMI_LIBRARY": "", // Intel MPI
}

// tell sets the variables in which MPI finds the server, and where this process is in its job. The variables of another launcher further
// up, such as srun's, say nothing about this process and are removed for good.
//
// takeBack removes what tell has set, so that a child process does not take it for its own.
func tell(s *server, j Job) (takeBack func()) {
	forget()
	localRank, localSize := j.local()
	set := map[string]int{"PMI_FD": s.fd, "PMI_RANK": j.Rank, "PMI_SIZE": len(j.Node), "MPI_LOCALRANKID": localRank, "MPI_LOCALNRANKS": localSize}
	for name, value := range set {
		dl.Setenv(name, strconv.Itoa(value))
	}
	before := map[string]string{}
	for name, ours := range settings {
		if value, was := dl.Getenv(name); was {
			before[name] = value
		}
		restore(name, ours, ours != "")
	}
	return func() {
		forget()
		for name := range set {
			dl.Unsetenv(name)
		}
		for name := range settings {
			value, was := before[name]
			restore(name, value, was)
		}
	}
}

// restore sets a variable, or removes it.
func restore(name, value string, set bool) {
	if set {
		dl.Setenv(name, value)
	} else {
		dl.Unsetenv(name)
	}
}

// forget removes the variables of process managers.
func forget() {
	for _, variable := range dl.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, "PMI_") || strings.HasPrefix(name, "PMIX_") {
			dl.Unsetenv(name)
		}
	}
}
