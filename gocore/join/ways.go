package join

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/registry"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// way is how two parties come together.
type way interface {
	// can returns why this MPI cannot do it, nil if it can.
	can(j transport.Joiner) error
	// prepare is called on rank 0. It runs beside the wait of its caller, and ends when ctx is done.
	prepare(ctx context.Context) error
	// join makes the communicator of both parties. All members call it.
	join(j transport.Joiner) (transport.Comm, error)
	// lost tells whether the other party will not come any more. It is asked while join runs.
	lost() bool
	// settle is called on rank 0 when there is a world of both parties, as this one sees it. It waits until the other one sees
	// it, too, up to limit.
	settle(limit time.Time) error
	// over is called on rank 0 when all is over.
	over()
}

// least is how long the calls of step 3 may take, whatever is left of the deadline.
const least = 10 * time.Second

// Other says where another job is, or waits.
type Other struct {
	Address    string // host:port
	Secret     []byte // what both jobs know; nil: SecretFile has it
	SecretFile string
	Version    string // paddlempi's, which both jobs must have
}

// byTCP is a way in which two jobs come together.
type byTCP struct {
	Other
	what  string
	group *group.Group
	first bool // this party accepts
	peer  *peer
	built atomic.Bool // there is a world, as this party sees it
}

func (m *byTCP) can(j transport.Joiner) error { return j.CanJoin() }

func (m *byTCP) prepare(ctx context.Context) (err error) {
	secret := m.Secret
	if secret == nil {
		secret, err = readSecret(m.what, m.SecretFile)
	} else {
		err = checkSecret(m.what, secret)
	}
	if err != nil {
		return err
	}
	mine := ownCard(m.group, m.Version)
	if !m.first {
		m.peer, err = connect(ctx, m.what, m.Address, secret, mine)
		return err
	}
	l, err := listen(m.what, m.Address)
	if err != nil {
		return err
	}
	m.peer, err = l.Accept(ctx, secret, mine)
	return err
}

func (m *byTCP) join(j transport.Joiner) (both transport.Comm, err error) {
	port, limit := "", time.Now().Add(least)
	switch {
	case m.peer == nil: // this is not rank 0
	case m.first:
		if port, err = j.Listen(); err != nil {
			return nil, err
		}
		defer j.Unlisten(port)
		err = m.peer.TellPort(port, limit)
	default:
		port, err = m.peer.Port(limit)
	}
	if err != nil {
		return nil, m.ended(err)
	}
	return j.Join(port, m.first)
}

func (m *byTCP) ended(err error) error {
	return status.New(status.PeerDied, "%s: %s ended while the jobs were being joined (%v)", m.what, m.peer.card, err)
}

// lost no longer looks at the connection once this party has settled, because the other one may close it then.
func (m *byTCP) lost() bool { return m.peer.Gone() && !m.built.Load() }

func (m *byTCP) settle(limit time.Time) error {
	m.built.Store(true)
	if err := m.peer.Settle(limit); err != nil {
		return m.ended(err)
	}
	return nil
}

func (m *byTCP) over() { m.peer.Close() }

// alone is what a way does that needs no other job.
type alone struct{}

func (alone) prepare(context.Context) error { return nil }
func (alone) lost() bool                    { return false }
func (alone) settle(time.Time) error        { return nil }
func (alone) over()                         {}

// bySpawn is the way of processes that this party starts.
type bySpawn struct {
	alone
	command transport.Command
}

func (m *bySpawn) can(j transport.Joiner) error { return j.CanSpawn() }

// prepare looks whether the command is there. MPI ends the whole job if it is not.
func (m *bySpawn) prepare(context.Context) error {
	program := m.command.Argv[0]
	path, err := exec.LookPath(program)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return status.New(status.Argument, "spawn: command=%q: %v", program, err)
	}
	m.command.Argv[0] = path
	m.command.Folder, err = os.Getwd()
	return err
}

func (m *bySpawn) join(j transport.Joiner) (transport.Comm, error) { return j.Spawn(m.command) }

// byParents is the way of processes that were spawned.
type byParents struct{ alone }

func (byParents) can(transport.Joiner) error                      { return nil }
func (byParents) join(j transport.Joiner) (transport.Comm, error) { return j.Parents() }

// ownCard is what another job is told of the members of g.
func ownCard(g *group.Group, version string) card {
	host, err := os.Hostname()
	if err != nil {
		host = "?"
	}
	info := registry.MPI.Info()
	mpi := fmt.Sprintf("%s, %s", info.Name, info.Version)
	return card{Library: version, MPI: mpi, Size: g.Size, Host: host, PID: os.Getpid()}
}
