package join

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/registry"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Call is a call that joins the members of a group and another party, and returns their world. All members make it.
//
//  1. The members meet, and make a communicator that carries nothing else.
//  2. Rank 0 prepares: it waits for another job, or looks whether it can start a command. The others wait for its word.
//  3. All of them call MPI, and make the world. These calls have no deadline, so they run on a thread of their own.
//
// docs/adr/0035-a-world-of-two-parties.md has the reasons.
type Call struct {
	What      string // its name, for errors
	Group     *group.Group
	Timeout   time.Duration
	Interrupt work.Interrupt
}

// way is how two parties come together.
type way struct {
	// can returns why this MPI cannot do it, nil if it can.
	can func(transport.Joiner) error
	// prepare is called on rank 0. It runs beside the wait of its caller, and ends when ctx is done. It returns the other
	// job, nil if that is not met by TCP.
	prepare func(ctx context.Context) (*peer, error)
	// join makes the communicator of both parties. All members call it, rank 0 with the other job.
	join func(j transport.Joiner, other *peer) (transport.Comm, error)
}

// least is how long the calls of step 3 may take, whatever is left of the deadline.
const least = 10 * time.Second

// byTCP is the way in which two jobs come together. first says that this one accepts.
func (c Call) byTCP(other Other, first bool) way {
	return way{
		can:     transport.Joiner.CanJoin,
		prepare: func(ctx context.Context) (*peer, error) { return c.find(ctx, other, first) },
		join: func(j transport.Joiner, p *peer) (both transport.Comm, err error) {
			port, limit := "", time.Now().Add(least)
			switch {
			case p == nil: // this is not rank 0
			case first:
				if port, err = j.Listen(); err != nil {
					return nil, err
				}
				defer j.Unlisten(port)
				err = p.TellPort(port, limit)
			default:
				port, err = p.Port(limit)
			}
			if err != nil {
				return nil, c.ended(p, err)
			}
			return j.Join(port, first)
		},
	}
}

// find waits for another job that knows the secret, or connects to one.
func (c Call) find(ctx context.Context, other Other, first bool) (p *peer, err error) {
	secret, err := other.secret(c.What)
	if err != nil {
		return nil, err
	}
	if _, port, err := net.SplitHostPort(other.Address); err != nil || port == "" {
		return nil, status.New(status.Argument, "%s: address=%q is no host:port", c.What, other.Address)
	}
	info := registry.MPI.Info()
	mine := card{Library: other.Version, MPI: fmt.Sprintf("%s, %s", info.Name, info.Version), Size: c.Group.Size, Host: hostname(), PID: os.Getpid()}
	if !first {
		p, err = connect(ctx, other.Address, secret, mine)
		return p, c.unmet(other.Address, err)
	}
	l, err := listen(c.What, other.Address)
	if err != nil {
		return nil, err
	}
	if p, err = l.admit(ctx, secret, mine); err != nil {
		err = status.New(status.Timeout, "%s: after %v no job that knows the secret had connected", c.What, c.Timeout)
	}
	return p, err
}

// unmet returns an error of connect as the call's.
func (c Call) unmet(address string, err error) error {
	var refused refusal
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		return status.New(status.Argument, "%s: address=%q: %v", c.What, address, err)
	}
	return status.New(status.Timeout, "%s: after %v no job had accepted this one; the last attempt: %s", c.What, c.Timeout, printable(err.Error()))
}

// ended is the error of a job that has ended meanwhile.
func (c Call) ended(p *peer, why error) error {
	return status.New(status.PeerDied, "%s: %s ended while the jobs were being joined (%v)", c.What, p.card, why)
}

// bySpawn is the way of processes that this party starts.
func bySpawn(start transport.Command) way {
	return way{
		can: transport.Joiner.CanSpawn,
		// MPI ends the whole job if the command is not there.
		prepare: func(context.Context) (*peer, error) {
			program := start.Argv[0]
			path, err := exec.LookPath(program)
			if err == nil {
				path, err = filepath.Abs(path)
			}
			if err != nil {
				return nil, status.New(status.Argument, "spawn: command=%q: %v", program, err)
			}
			start.Argv[0] = path
			start.Folder, err = os.Getwd()
			return nil, err
		},
		join: func(j transport.Joiner, _ *peer) (transport.Comm, error) { return j.Spawn(start) },
	}
}

// byParents is the way of processes that were spawned.
var byParents = way{
	can:     func(transport.Joiner) error { return nil },
	prepare: func(context.Context) (*peer, error) { return nil, nil },
	join:    func(j transport.Joiner, _ *peer) (transport.Comm, error) { return j.Parents() },
}
