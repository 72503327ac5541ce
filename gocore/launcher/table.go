// Package launcher is the table of the launchers that are known here: how their processes are
// called, and in which variables they number the ranks that they start.
//
// Package mpi reads it for the core (control method launcher). tools/opgen writes
// python/paddlempi_launchers.py from it, for what must not load the core: `import torch`.
package launcher

// Family is the kind of MPI that a launcher or a library belongs to.
type Family int

const (
	Any     Family = iota
	OpenMPI        // Open MPI and its PRRTE
	MPICH          // MPICH, Intel MPI, MVAPICH: one ABI, one process manager
)

// Kind is one kind of launcher. Its variables count where one of its processes is the nearest
// launcher among the parents: those of another one further up are inherited and mean nothing.
// Under sbatch and mpirun, SLURM_NTASKS and SLURM_PROCID are the daemons'.
type Kind struct {
	Name   string // one word: "openmpi", "hydra", "slurm"
	MPI    string // for people
	Family Family // Any: it has no MPI of its own

	// Processes are the names of those that are parents of ranks. On a remote node that is
	// the launcher's daemon. Mpirun are those of them that the user called.
	Processes []string
	Mpirun    []string

	// Of these the first one that holds a number counts.
	Size, Rank, LocalRank, LocalSize []string

	Task         string // a variable that only ranks have; "": Rank is one
	Node         string // the number of this node, an index into TasksPerNode
	TasksPerNode string // as in "2(x3),1"; "": LocalSize tells
	CPUs         string // how many of the node's CPUs the job has; "": those of the launcher

	// What names the job to all its ranks: Job together, those that are set, or else the
	// argument after JobOption in the command line of the process that started the rank.
	Job       []string
	JobOption string

	// Head are the places where a host stands that all ranks know by the same name: the
	// first node, or the one that the launcher runs on. The first that matches counts.
	Head []Head

	Plugins []string // one of them is set where MPI can find the other ranks; nil: always
	Own     []string // how the variables begin that are those of a rank, or of the job around it
}

// Head is a place where a host is named: the groups of Pattern, joined.
type Head struct {
	Variable string // "": the job's name
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
		Head:      []Head{{"", `^prterun-(.+)-\d+@\d+$`}, {"OMPI_MCA_orte_hnp_uri", `tcp://([^:,]+)`}}, // 5, 4
		Own: []string{"OMPI_COMM_WORLD_", "OMPI_UNIVERSE_SIZE", "OMPI_FILE_LOCATION", "OMPI_MCA_ess_", "OMPI_MCA_orte_",
			"OMPI_MCA_initial_wdir", "OMPI_MCA_num_procs", "PMIX_", "PRTE_"},
	},
	{
		Name: "hydra", MPI: "MPICH or Intel MPI", Family: MPICH,
		Processes: []string{"hydra_pmi_proxy"},
		Size:      []string{"PMI_SIZE"},
		Rank:      []string{"PMI_RANK"},
		LocalRank: []string{"MPI_LOCALRANKID"},
		LocalSize: []string{"MPI_LOCALNRANKS"},
		Job:       []string{"I_MPI_HYDRA_UUID"}, // Intel's; MPICH's tells nothing in variables
		JobOption: "--control-port",             // the address of mpiexec
		Head:      []Head{{"", `^(.+):\d+$`}},
		Own:       []string{"PMI_", "HYDRA_", "HYDI_", "I_MPI_INFO_", "I_MPI_HYDRA_UUID", "I_MPI_PIN_", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
	},
	{
		Name: "slurm", MPI: "Slurm",
		Processes:    []string{"slurmstepd"},
		Size:         []string{"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
		Rank:         []string{"SLURM_PROCID"},
		LocalRank:    []string{"SLURM_LOCALID"},
		Task:         "SLURM_STEP_ID", // not in a batch script, which is started once, whatever the job's size
		Node:         "SLURM_NODEID",
		TasksPerNode: "SLURM_STEP_TASKS_PER_NODE",
		CPUs:         "SLURM_CPUS_ON_NODE", // slurmstepd itself is not confined to the job
		Job:          []string{"SLURM_JOB_ID", "SLURM_STEP_ID"},
		Head:         []Head{{"SLURM_STEP_NODELIST", `^([^\[,]+)(?:\[(\w+)[^\]]*\]([^,\[]*))?`}}, // a[03-05,7],b
		Plugins:      []string{"PMIX_RANK", "PMI_RANK"},                                          // --mpi=pmix, pmi2
		Own:          []string{"SLURM_"},
	},
}

// ByProcess returns the kind that a process of this name belongs to, nil for none.
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
