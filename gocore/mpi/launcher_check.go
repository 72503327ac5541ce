package mpi

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/paddlempi/paddlempi/gocore/launcher"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// CheckLauncher returns an error if the launcher of one MPI has started processes that use the
// library of another. The library then knows of one process only, so each rank would run as a
// separate job, without an error. worldSize is the number of ranks that MPI knows. Only if it is 1
// does CheckLauncher look at the parents.
func CheckLauncher(lib Info, worldSize int) error { return host().checkLauncher(lib, worldSize) }

// CheckBeforeInit returns an error for a mismatch that CheckLauncher would find too late: the
// launcher speaks PMIx, and the library is an MPICH that does not. That MPICH ends the process in
// MPI_Init. speaksPMIx says whether the library, or a library that it is linked with, has the symbol
// PMIx_Init.
func CheckBeforeInit(lib Info, speaksPMIx bool) error {
	return host().checkBeforeInit(lib, speaksPMIx)
}

func (s *system) checkLauncher(lib Info, worldSize int) error {
	if worldSize != 1 {
		return nil
	}
	l := s.launcher()
	// A PRRTE without Open MPI's variables tells the rank only.
	size := max(l.Size, l.Rank+1)
	if size <= 1 {
		return nil
	}
	return s.misfit(l, lib, size)
}

func (s *system) checkBeforeInit(lib Info, speaksPMIx bool) error {
	if speaksPMIx || (lib.Name != "MPICH" && lib.Name != "MVAPICH") {
		return nil // other libraries start as single processes, or not at all
	}
	if _, pmix := s.env("PMIX_NAMESPACE"); !pmix {
		return nil
	}
	for _, name := range []string{"PMI_FD", "PMI_PORT", "MPIR_CVAR_PMI_VERSION", "MPICH_PMI_VERSION"} {
		if _, set := s.env(name); set {
			return nil
		}
	}
	l := s.launcher()
	if l.Name == "" || l.kind.Family == launcher.MPICH {
		return nil
	}
	return s.misfit(l, lib, max(l.Size, l.Rank+1))
}

func (s *system) misfit(l LauncherInfo, lib Info, size int) error {
	count := "one of several"
	if size > 1 {
		count = fmt.Sprintf("one of %d", size)
	}
	version, _, _ := strings.Cut(lib.Version, ",") // the rest of Open MPI's text says who built it
	return status.New(status.Launcher, "the launcher and the MPI library do not fit: %s started this process as %s, "+
		"but the library %s (%s; it is %s) does not understand that launcher and would run each process as a job of its own. %s",
		l, count, lib.Path, version, lib.Why, s.wayOut(l, lib))
}

// wayOut says what to do about a launcher and a library that do not fit.
func (s *system) wayOut(l LauncherInfo, lib Info) string {
	if l.kind.Family == launcher.Any {
		plugin := "pmi2"
		if lib.ABI == "openmpi" {
			plugin = "pmix"
		}
		return fmt.Sprintf("Use srun --mpi=%s (srun --mpi=list shows what this Slurm has), or sbatch with %s",
			plugin, s.mpirunOf(lib))
	}
	out := "Start with " + s.mpirunOf(lib)
	path := "the libmpi.so of that launcher"
	if prefix := l.prefix(); prefix != "" {
		if p, ok := s.firstLibrary(prefix, l.kind.Family); ok {
			path = p
		}
	}
	if s.sameFile(path, lib.Path) {
		return out
	}
	return out + fmt.Sprintf(", or use the library of the launcher: %s=%s", EnvLibrary, path)
}

// mpirunOf names the launcher of a library: its path if it is in the library's prefix, or else a
// description.
func (s *system) mpirunOf(lib Info) string {
	dir := filepath.Dir(lib.Path)
	for range 4 { // as deep as Debian's lib/x86_64-linux-gnu/openmpi/lib
		if dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
		names := []string{"mpirun"}
		// Debian's mpirun is a link to the mpirun of one of the MPIs.
		switch {
		case lib.ABI == "openmpi":
			names = []string{"mpirun.openmpi", "mpirun"}
		case strings.HasPrefix(filepath.Base(lib.Path), "libmpich"):
			names = []string{"mpirun.mpich", "mpirun"}
		}
		for _, name := range names {
			if p := filepath.Join(dir, "bin", name); s.file(p) {
				return p
			}
		}
	}
	return "the mpirun of " + lib.Name
}
