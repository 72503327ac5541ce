package join

import (
	"syscall"
	"time"

	"github.com/paddlempi/paddlempi/gocore/health"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/pmi"
	"github.com/paddlempi/paddlempi/gocore/registry"
	"github.com/paddlempi/paddlempi/gocore/rollcall"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// Options say how the ranks of the first world come together.
type Options struct {
	MPI       string         `json:"mpi"`        // path of libmpi; "": find it
	Comm      *uint64        `json:"comm"`       // the world's communicator, as MPI represents it; nil: MPI_COMM_WORLD
	Job       *Job           `json:"world"`      // of ranks that no MPI has started; nil: MPI knows the ranks
	SysPrefix string         `json:"sys_prefix"` // Python's sys.prefix
	Timeout   time.Duration  `json:"-"`          // timeout of operations that have none of their own
	Within    time.Duration  `json:"-"`          // timeout of init
	Interrupt work.Interrupt `json:"-"`
}

// Job is what the ranks of a job know of each other that no MPI has started.
type Job struct {
	Rank      int    `json:"rank"`
	Size      int    `json:"size"`
	ID        string `json:"id"`        // of the world that they have agreed on
	Exchange  int    `json:"exchange"`  // the descriptor of a socket which Connect owns
	Transport string `json:"transport"` // "node", "mpi", or "": MPI only if the ranks are on several nodes

	Generation int   `json:"generation"` // how often the world was reformed before it became this one
	Members    []int `json:"members"`    // of a world over MPI: which ranks of MPI's world its ranks are; nil: all ranks come by Exchange
}

// Close gives up the exchange, unless Connect has used it.
func (o *Options) Close() {
	if o.Job != nil && o.Job.Exchange >= 0 {
		_ = syscall.Close(o.Job.Exchange)
	}
}

// Connect returns what connects all ranks of the world that o asks for, and the MPI that it is of; nil if it is of none.
func (o *Options) Connect() (transport.Comm, mpi.Library, error) {
	if o.Job == nil {
		return o.overMPI(func(options mpi.Options) (mpi.Library, error) {
			return rollcall.Open(options, rollcall.Terms{ReportAfter: health.ReportAfter(), Interrupt: o.Interrupt})
		})
	}
	if o.Job.Members != nil {
		return connectMembers(o.Job.Members, o.Job.ID, o.Within, o.Interrupt)
	}
	fd := o.Job.Exchange
	o.Job.Exchange = -1
	x, err := newExchange(fd, o.Job.Rank, o.Job.Size, o.Interrupt)
	if err != nil {
		return nil, nil, err
	}
	defer x.Free()
	node, hosts, err := x.Nodes(o.Job.ID)
	if err != nil {
		return nil, nil, err
	}
	if o.Job.Transport == "mpi" || len(hosts) > 1 && o.Job.Transport == "" {
		return o.overMPI(func(options mpi.Options) (mpi.Library, error) {
			return pmi.Open(options, pmi.Job{Rank: o.Job.Rank, Node: node, Interrupt: o.Interrupt}, x.Bytes)
		})
	}
	if len(hosts) > 1 && o.Job.Generation > 0 {
		return nil, nil, status.New(status.Unsupported, "reform: the %d ranks are on %d hosts (%s, %s, ...), and a world goes on with other ranks on one host: let the ranks of one host go on, or start the job anew (python -m paddlempi run --restarts)", o.Job.Size, len(hosts), hosts[0], hosts[1])
	}
	if len(hosts) > 1 {
		return nil, nil, status.New(status.Unsupported, "init: the %d ranks are on %d hosts (%s, %s, ...), and the transport %q connects ranks of one host", o.Job.Size, len(hosts), hosts[0], hosts[1], o.Job.Transport)
	}
	comm, refused, err := world.ConnectNode(x)
	if err != nil {
		return nil, nil, err
	}
	if refused != nil {
		return nil, nil, status.New(status.Unsupported, "init: %v; ranks without MPI have to. They have to run as one user; in containers they need one /proc or one network. Or start them with mpirun", refused).WithRanks(status.Plain(refused).Ranks...)
	}
	return comm, nil, nil
}

// overMPI connects the ranks by the MPI of this process, which open starts unless it runs already.
func (o *Options) overMPI(open func(mpi.Options) (mpi.Library, error)) (transport.Comm, mpi.Library, error) {
	lib := registry.MPI
	if lib != nil && o.MPI != "" && o.MPI != lib.Info().Path {
		return nil, nil, status.New(status.Argument, "init: mpi=%q, but %s was initialised before in this process, and MPI starts once only", o.MPI, lib.Info().Path)
	}
	if lib == nil || !lib.Finalized() {
		// After Destroy, Open returns the same library and makes again what Destroy freed.
		var err error
		if lib, err = open(mpi.Options{Path: o.MPI, SysPrefix: o.SysPrefix, Timeout: o.Within}); err != nil {
			return nil, nil, err
		}
		registry.MPI = lib
	}
	if lib.Finalized() {
		return nil, nil, status.New(status.NotInitialized, "init: MPI was finalized in this process and cannot start again")
	}
	given := lib.World()
	if o.Comm != nil {
		given = mpi.Comm(*o.Comm)
		if lib.Info().ABI == "mpich" {
			given &= 0xffffffff
		}
	}
	comm, err := mpi.NewCommunicator(lib, given)
	if err != nil {
		return nil, nil, err
	}
	return comm, lib, nil
}
