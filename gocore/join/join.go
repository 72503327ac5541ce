// Package join has the protocols by which ranks come together, and part: start.go for the first world, join.go for a
// world of two parties. ways.go has how two parties find each other, guests.go how they part.
package join

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/paddlempi/paddlempi/gocore/channel"
	"github.com/paddlempi/paddlempi/gocore/comm"
	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/registry"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// joinLimit is how long rank 0 may take to tell the others what came of step 2.
const joinLimit = 5 * time.Second

// Accept waits for another job, which calls Connect.
func (c Call) Accept(from Other) (*registry.World, error) { return c.join(c.byTCP(from, true)) }

// Connect joins a job that calls Accept.
func (c Call) Connect(to Other) (*registry.World, error) { return c.join(c.byTCP(to, false)) }

// Spawn starts n processes, which run a command.
func (c Call) Spawn(command []string, n int) (*registry.World, error) {
	return c.join(bySpawn(transport.Command{Argv: command, N: n}))
}

// Parents joins the ranks that have spawned this process. It returns nil if it was not spawned. The group is that of all
// ranks of the initial world.
func (c Call) Parents() (*registry.World, error) {
	env, lib := c.Group.Env, registry.MPI
	if j := transport.JoinerOf(env.Base); j == nil {
		return nil, nil
	} else if spawned, err := j.Spawned(); err != nil || !spawned {
		return nil, err
	}
	if n, err := lib.Size(lib.World()); err != nil || n != env.Topo.Size {
		return nil, status.New(status.Unsupported, "%s: the world has %d of the %d processes that were spawned together; it takes all", c.What, env.Topo.Size, n)
	}
	return c.join(byParents)
}

// party is this party of a join, as one of its ranks sees it.
type party struct {
	Call
	comm     transport.Comm
	words    *channel.Channel
	deadline time.Time
	other    *peer // what step 2 has found
}

func (c Call) join(by way) (*registry.World, error) {
	base := transport.JoinerOf(c.Group.Env.Base)
	if base == nil {
		return nil, status.New(status.Unsupported, "%s: this transport has no other processes", c.What)
	}
	if err := by.can(base); err != nil { // the same on all ranks
		return nil, status.New(status.CodeOf(err), "%s: %v", c.What, err)
	}
	s := &party{Call: c, deadline: time.Now().Add(c.Timeout)}
	defer c.Group.Members().Use()()
	var err error
	of := comm.Members{Members: c.Group.Members()}
	if s.comm, err = of.Alone(c.What, c.Timeout); err != nil {
		return nil, err
	}
	s.words = channel.New(s.comm, channel.Joins, mostWord)
	if err := s.agree(by); err != nil {
		s.free()
		return nil, err
	}
	w, err := s.make(by)
	s.other.Close()
	if err == nil {
		s.free()
	}
	return w, err
}

// free gives the communicator back. All members do, after step 2 or 3.
func (s *party) free() {
	_ = s.Group.Env.Engine.Wait(s.words.Sent, time.Now().Add(joinLimit), nil)
	_ = s.comm.Free()
}

// What the members tell each other: an error, or nothing. The others tell rank 0 only that they give up.
const mostWord = 16 << 10

func (s *party) tell(rank int, err error) {
	var word []byte
	if err != nil {
		word = status.Pack(status.New(status.CodeOf(err), "%v", err))
	}
	_ = s.words.Send(rank, word)
}

// tellAll tells the other members what this one has found out.
func (s *party) tellAll(err error) {
	for r := range s.Group.Size {
		if r != s.Group.Rank {
			s.tell(r, err)
		}
	}
}

// told returns what a member has told, once one has.
func (s *party) told() (from int, err error, ok bool) {
	from, b, ok := s.words.Receive()
	if !ok || len(b) == 0 {
		return from, nil, ok
	}
	e, ok := status.Unpack(b)
	if !ok {
		return from, nil, false
	}
	if e.Code == status.Interrupted { // only that rank was interrupted
		e.Code = status.Refused
	}
	text := strings.TrimPrefix(e.Msg, s.What+": ")
	return from, status.New(e.Code, "%s: rank %d of the group: %s", s.What, from, text).WithRanks(s.Group.Ranks[from]), true
}

// agree is step 2. Its error is that of all members.
func (s *party) agree(by way) error {
	if s.Group.Rank != 0 {
		return s.await()
	}
	err := s.prepare(by)
	s.tellAll(err)
	return err
}

// prepare is step 2 on rank 0.
func (s *party) prepare(by way) error {
	ctx, stop := context.WithDeadline(context.Background(), s.deadline)
	defer stop()
	ready := make(chan error, 1)
	go func() {
		var err error
		s.other, err = by.prepare(ctx)
		ready <- err
	}()
	over, err := s.wait(func() (bool, error) {
		select {
		case err := <-ready:
			return true, err
		default:
			_, err, _ := s.told()
			return false, err
		}
	}, time.Time{})
	if !over {
		stop()
		<-ready
		s.other.Close()
	}
	return err
}

// wait drives the engine until done returns true or an error, or the members cannot go on together: one has died, or the world
// ends.
func (s *party) wait(done func() (bool, error), deadline time.Time) (over bool, err error) {
	looks := 0
	ended := s.Group.Env.Engine.Wait(func() bool {
		over, err = done()
		if looks++; looks&31 == 0 && !over && err == nil {
			if err = s.Group.Members().EndingError(s.What); err == nil && s.Group.Members().AnyDied() {
				err = s.Group.Members().DiedError(s.What, s.Group.Members().Dead(), "nothing was joined")
			}
		}
		return over || err != nil
	}, deadline, s.Interrupt)
	return over, cmp.Or(err, ended)
}

// await is step 2 on the other ranks: rank 0 tells them what has come of it. One that gives up tells rank 0.
func (s *party) await() error {
	heard, err := s.wait(func() (bool, error) {
		from, word, ok := s.told()
		if !ok || from != 0 {
			return false, nil
		}
		return true, word
	}, s.deadline.Add(joinLimit))
	if heard {
		return err
	}
	if err == work.ErrDeadline {
		err = status.New(status.Timeout, "%s: after %v rank 0 of the group had not said whether it can go on", s.What, s.Timeout).WithRanks(s.Group.Ranks[0])
	}
	s.tell(0, err)
	return err
}

// make is step 3.
func (s *party) make(by way) (*registry.World, error) {
	limit := time.Now().Add(max(time.Until(s.deadline), least))
	var made *registry.World
	_, err := comm.Attempt(s.Group.Env, s.What, s.Group.Ranks, func() error {
		switch {
		case time.Now().After(limit):
			return status.New(status.Timeout, "%s: after %v the other party had not joined", s.What, s.Timeout)
		case s.other.Gone():
			return status.New(status.PeerDied, "%s: the other job ended while the jobs were being joined", s.What)
		}
		if _, err, ok := s.told(); ok && err != nil {
			return err
		}
		if s.Interrupt != nil {
			return s.Interrupt()
		}
		return nil
	}, func() (err error) {
		made, err = s.world(by)
		if err == nil && s.other != nil {
			if why := s.other.Settle(limit); why != nil {
				err = s.ended(s.other, why)
			}
		}
		return err
	}, func(error) { made.End() })
	if err != nil {
		s.tellAll(err)
		return nil, err
	}
	made.Env.Interrupt = s.Interrupt
	registry.Guests.Put(made.All().ID, made)
	made.AtFinalize(func() { _ = leave(made, made.Env.Leave) }) // in order
	return made, nil
}

// world joins, and makes the world of both parties and the group of all its ranks.
func (s *party) world(by way) (*registry.World, error) {
	both, err := by.join(transport.JoinerOf(s.comm), s.other)
	if err != nil {
		return nil, err
	}
	env, err := world.NewJoined(both)
	if err != nil {
		return nil, err
	}
	_ = both.Free()
	env.Answer()
	env.Device.Aware.Trial = s.Group.Env.Device.Aware.Trial
	env.Engine.Panicked = s.Group.Env.Engine.Panicked
	w := registry.NewWorld(env)
	_, err = w.Add(func(id int64) (*group.Group, error) { return group.World(env, id, s.Group.Timeout()) })
	return w, err
}
