// Package launcher is the table of launchers: the names of their processes, and the environment
// variables that give the numbers of the ranks that they start.
//
// Package mpi reads it for the core (control method launcher). tools/opgen writes
// python/paddlempi_bootstrap/known_launchers.py from it, for `import torch` and other code that
// must not load the core.
package launcher

// Family is the family of MPIs to which a launcher or a library belongs.
type Family int

const (
	Any     Family = iota
	OpenMPI        // Open MPI and its PRRTE
	MPICH          // MPICH, Intel MPI, MVAPICH: one ABI, one process manager
)

// Kind is a kind of launcher. Its variables count only if one of its processes is the nearest
// launcher among the parents of this process. The variables of a launcher further up are inherited
// and say nothing about this process: if sbatch runs mpirun, SLURM_NTASKS and SLURM_PROCID are
// those of mpirun's daemons.
type Kind struct {
	Name   string // one word: "openmpi", "hydra", "slurm"
	MPI    string // name for messages
	Family Family // Any: the launcher has no MPI

	// Processes are the names of the processes that can be the parent of a rank; on a remote node
	// that is a daemon of the launcher. Mpirun are those of them that a user calls.
	Processes []string
	Mpirun    []string

	// Of each list, the first variable that holds a number counts.
	Size, Rank, LocalRank, LocalSize []string

	Task         string // a variable that only ranks have; "": no such variable is needed
	Node         string // the variable with the number of this node, an index into TasksPerNode
	TasksPerNode string // the variable with a list like "2(x3),1"; "": LocalSize has the number
	CPUs         string // the variable that limits the job's CPUs on this node; "": only affinity does

	// The name of the job, the same on all ranks: the values of Job, joined. If none is set, the
	// argument after JobOption in the command line of the process that started the rank.
	Job       []string
	JobOption string

	// Head are the texts that name a host for all ranks alike: the first node, or the host of the
	// launcher. The first one that matches counts.
	Head []Head

	Plugins []string // one of them is set if MPI can find the other ranks; nil: it always can

	VariablePrefixes []string // prefixes of the variables that the launcher sets for a rank or its job
}

// Head names a host. If Pattern matches the text, the name is made of the groups of Pattern, joined.
type Head struct {
	Variable string // the variable with the text; "": the name of the job
	Pattern  string
}

// Kinds is the table.
var Kinds = []*Kind{
	{
		Name: "openmpi", MPI: "Open MPI", Family: OpenMPI,
		Processes: []string{"prted", "prterun", "orted", "orterun"},
		Mpirun:    []string{"prterun", "orterun"},
		Size:      []string{"OMPI_COMM_WORLD_SIZE"},
		Rank:      []string{"OMPI_COMM_WORLD_RANK", "PMIX_RANK"},
		LocalRank: []string{"OMPI_COMM_WORLD_LOCAL_RANK"},
		LocalSize: []string{"OMPI_COMM_WORLD_LOCAL_SIZE"},
		Job:       []string{"PMIX_NAMESPACE"},
		Head:      []Head{{"", `^prterun-(.+)-\d+@\d+$`}, {"OMPI_MCA_orte_hnp_uri", `tcp://([^:,]+)`}}, // Open MPI 5, 4
		VariablePrefixes: []string{"OMPI_COMM_WORLD_", "OMPI_UNIVERSE_SIZE", "OMPI_FILE_LOCATION", "OMPI_MCA_ess_",
			"OMPI_MCA_orte_", "OMPI_MCA_initial_wdir", "OMPI_MCA_num_procs", "PMIX_", "PRTE_"},
	},
	{
		Name: "hydra", MPI: "MPICH or Intel MPI", Family: MPICH,
		Processes: []string{"hydra_pmi_proxy"},
		Size:      []string{"PMI_SIZE"},
		Rank:      []string{"PMI_RANK"},
		LocalRank: []string{"MPI_LOCALRANKID"},
		LocalSize: []string{"MPI_LOCALNRANKS"},
		Job:       []string{"I_MPI_HYDRA_UUID"}, // of Intel MPI; MPICH has no such variable
		JobOption: "--control-port",             // the address of mpiexec
		Head:      []Head{{"", `^(.+):\d+$`}},
		VariablePrefixes: []string{"PMI_", "HYDRA_", "HYDI_", "I_MPI_INFO_", "I_MPI_HYDRA_UUID", "I_MPI_PIN_",
			"MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
	},
	{
		Name: "slurm", MPI: "Slurm",
		Processes:        []string{"slurmstepd"},
		Size:             []string{"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
		Rank:             []string{"SLURM_PROCID"},
		LocalRank:        []string{"SLURM_LOCALID"},
		Task:             "SLURM_STEP_ID", // not set in a batch script, which is started once and is no rank
		Node:             "SLURM_NODEID",
		TasksPerNode:     "SLURM_STEP_TASKS_PER_NODE",
		CPUs:             "SLURM_CPUS_ON_NODE", // slurmstepd may use CPUs that the job may not
		Job:              []string{"SLURM_JOB_ID", "SLURM_STEP_ID"},
		Head:             []Head{{"SLURM_STEP_NODELIST", `^([^\[,]+)(?:\[(\w+)[^\]]*\]([^,\[]*))?`}}, // a[03-05,7],b
		Plugins:          []string{"PMIX_RANK", "PMI_RANK"},                                          // --mpi=pmix, pmi2
		VariablePrefixes: []string{"SLURM_"},
	},
}

// ByProcess returns the kind of launcher to which a process of this name belongs, nil if none.
func ByProcess(name string) *Kind { return byProcess[name] }

var byProcess = func() map[string]*Kind {
	found := map[string]*Kind{}
	for _, k := range Kinds {
		for _, name := range k.Processes {
			found[name] = k
		}
	}
	return found
}()
