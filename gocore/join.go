package gocore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/channel"
	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/meet"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// This file joins the members of a group and processes that are not in their world: processes that they spawn, the ranks
// that have spawned them, or another job. Both parties together are a world of its own (docs/adr/0035-a-world-of-two-parties.md).
//
//  1. The members meet, and make a communicator that carries nothing else.
//  2. Rank 0 prepares: it waits for another job, or looks whether it can start a command. The others wait for its word.
//  3. All of them call MPI, and make the world. These calls have no deadline, so they run on a thread of their own.

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

// joinLimit is how long rank 0 may take to tell the others what came of step 2.
const joinLimit = 5 * time.Second

// party is this party of a join, as one of its ranks sees it.
type party struct {
	what      string // the call, for errors
	g         *group.Group
	comm      transport.Comm
	words     *channel.Channel
	deadline  time.Time
	timeout   time.Duration
	interrupt work.Interrupt
}

// join makes the world of the members of g and another party. It is collective over g.
func join(what string, g *group.Group, by way, timeout time.Duration, interrupt work.Interrupt) (*membership, error) {
	base, ok := g.Env.Base.(transport.Joiner)
	if !ok {
		return nil, status.New(status.Unsupported, "%s: this transport has no other processes", what)
	}
	if err := by.can(base); err != nil { // the same on all ranks
		return nil, status.New(status.CodeOf(err), "%s: %v", what, err)
	}
	s := &party{what: what, g: g, deadline: time.Now().Add(timeout), timeout: timeout, interrupt: interrupt}
	defer g.Use()()
	var err error
	if s.comm, err = g.Alone(what, timeout); err != nil {
		return nil, err
	}
	s.words = channel.New(s.comm, channel.Joins, mostWord)
	if err := s.agree(by); err != nil {
		s.free()
		return nil, err
	}
	w, err := s.make(by)
	if g.Rank == 0 {
		by.over()
	}
	if err == nil {
		s.free()
	}
	return w, err
}

// free gives the communicator back. All members do, after step 2 or 3.
func (s *party) free() {
	_ = s.g.Env.Engine.Wait(s.words.Sent, time.Now().Add(joinLimit), nil)
	_ = s.comm.Free()
}

// What the members tell each other: a code, and a text. The others tell rank 0 only that they give up.
const mostWord = 2048

func (s *party) tell(rank int, err error) {
	code := status.CodeOf(err)
	text := ""
	if err != nil {
		text = strings.TrimPrefix(err.Error(), s.what+": ")
	}
	_ = s.words.Send(rank, binary.LittleEndian.AppendUint32(nil, uint32(code)), []byte(text))
}

// tellAll tells the other members what this one has found out.
func (s *party) tellAll(err error) {
	for r := range s.g.Size {
		if r != s.g.Rank {
			s.tell(r, err)
		}
	}
}

// told returns what a member has told, once one has.
func (s *party) told() (from int, err error, ok bool) {
	from, b, ok := s.words.Receive()
	if !ok || len(b) < 4 {
		return 0, nil, false
	}
	code := status.Code(binary.LittleEndian.Uint32(b))
	switch code {
	case status.OK:
		return from, nil, true
	case status.Interrupted: // only that rank was interrupted
		code = status.Refused
	}
	return from, status.New(code, "%s: rank %d of the group: %s", s.what, from, b[4:]).WithRanks(s.g.Ranks[from]), true
}

// agree is step 2. Its error is that of all members.
func (s *party) agree(by way) error {
	if s.g.Rank != 0 {
		return s.await()
	}
	err := s.prepare(by)
	s.tellAll(err)
	return err
}

// prepare is step 2 on rank 0.
func (s *party) prepare(by way) (err error) {
	ctx, stop := context.WithDeadline(context.Background(), s.deadline)
	defer stop()
	ready := make(chan error, 1)
	go func() { ready <- by.prepare(ctx) }()
	over := false
	var failed error
	looks := 0
	waitErr := s.wait(func() bool {
		select {
		case err = <-ready:
			over = true
			return true
		default:
		}
		if looks++; looks&31 == 0 {
			failed = s.trouble()
		}
		return failed != nil
	}, time.Time{})
	if over {
		return s.named(err)
	}
	stop()
	if <-ready == nil {
		by.over()
	}
	if failed == nil {
		failed = waitErr
	}
	return failed
}

// wait drives the engine until done returns true.
func (s *party) wait(done func() bool, deadline time.Time) error {
	return s.g.Env.Engine.Wait(done, deadline, s.interrupt)
}

// trouble returns why the members cannot go on together: one has died, gives up, or the world ends.
func (s *party) trouble() error {
	if err := s.g.EndingError(s.what); err != nil {
		return err
	}
	if s.g.AnyDied() {
		return s.g.DiedError(s.what, s.g.Dead(), "nothing was joined")
	}
	_, err, ok := s.told()
	if !ok {
		return nil
	}
	return err
}

// named returns an error of step 2 as the call's.
func (s *party) named(err error) error {
	var unanswered *meet.Unanswered
	switch {
	case err == nil:
		return nil
	case errors.As(err, &unanswered):
		return status.New(status.Timeout, "%s: after %v no job had accepted this one; the last attempt: %s", s.what, s.timeout, unanswered.Last)
	case errors.Is(err, context.DeadlineExceeded):
		return status.New(status.Timeout, "%s: after %v no job that knows the secret had connected", s.what, s.timeout)
	}
	return err
}

// await is step 2 on the other ranks: rank 0 tells them what has come of it. One that gives up tells rank 0.
func (s *party) await() error {
	var failed error
	heard := false
	looks := 0
	err := s.wait(func() bool {
		if from, word, ok := s.told(); ok && from == 0 {
			heard, failed = true, word
			return true
		}
		if looks++; looks&31 == 0 && (s.g.Ending() != nil || s.g.AnyDied()) {
			failed = s.trouble()
		}
		return failed != nil
	}, s.deadline.Add(joinLimit))
	if heard {
		return failed
	}
	switch {
	case failed != nil:
		err = failed
	case err == work.ErrDeadline:
		err = status.New(status.Timeout, "%s: after %v rank 0 of the group had not said whether it can go on", s.what, s.timeout).WithRanks(s.g.Ranks[0])
	}
	s.tell(0, err)
	return err
}

// make is step 3.
func (s *party) make(by way) (*membership, error) {
	limit := time.Now().Add(max(time.Until(s.deadline), least))
	var made *membership
	err := s.g.Attempt(s.what, func() error {
		switch {
		case time.Now().After(limit):
			return status.New(status.Timeout, "%s: after %v the other party had not joined", s.what, s.timeout)
		case s.g.Rank == 0 && by.lost():
			return status.New(status.PeerDied, "%s: the other job ended while the jobs were being joined", s.what)
		}
		if _, err, ok := s.told(); ok && err != nil {
			return err
		}
		if s.interrupt != nil {
			return s.interrupt()
		}
		return nil
	}, func() (err error) {
		made, err = s.world(by)
		if err == nil && s.g.Rank == 0 {
			err = by.settle(limit)
		}
		return err
	}, func() {
		if made != nil {
			made.ended.Store(true)
		}
	})
	if err != nil {
		s.tellAll(err)
		return nil, err
	}
	made.env.Interrupt = s.interrupt
	guests.add(made)
	return made, nil
}

// world joins, and makes the world of both parties and the group of all its ranks.
func (s *party) world(by way) (*membership, error) {
	both, err := by.join(s.comm.(transport.Joiner))
	if err != nil {
		return nil, err
	}
	env, err := world.NewJoined(both)
	if err != nil {
		return nil, err
	}
	_ = both.Free()
	env.Device.Aware.Trial = s.g.Env.Device.Aware.Trial
	env.Engine.Panicked = s.g.Env.Engine.Panicked
	w := newMembership(library, env)
	_, err = w.add(func(id int64) (*group.Group, error) { return group.World(env, id, s.g.Timeout()) })
	return w, err
}

// byTCP is a way in which two jobs come together.
type byTCP struct {
	what    string
	first   bool // this party accepts
	address string
	secret  []byte
	file    string // has the secret, if secret is nil
	card    meet.Card
	peer    *meet.Peer
	built   atomic.Bool // there is a world, as this party sees it
}

func (m *byTCP) can(j transport.Joiner) error { return j.CanJoin() }

func (m *byTCP) prepare(ctx context.Context) (err error) {
	secret := m.secret
	if secret == nil {
		secret, err = meet.ReadSecret(m.what, m.file)
	} else {
		err = meet.CheckSecret(m.what, secret)
	}
	if err != nil {
		return err
	}
	if !m.first {
		m.peer, err = meet.Connect(ctx, m.what, m.address, secret, m.card)
		return err
	}
	l, err := meet.Listen(m.what, m.address)
	if err != nil {
		return err
	}
	m.peer, err = l.Accept(ctx, secret, m.card)
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
	return status.New(status.PeerDied, "%s: %s ended while the jobs were being joined (%v)", m.what, m.peer.Card, err)
}

// lost is not asked what the connection says once this party has settled: the other one may close it then.
func (m *byTCP) lost() bool { return m.peer.Gone() && !m.built.Load() }

func (m *byTCP) settle(limit time.Time) error {
	m.built.Store(true)
	if err := m.peer.Settle(limit); err != nil {
		return m.ended(err)
	}
	return nil
}

func (m *byTCP) over() { m.peer.Close() }

// bySpawn is the way of processes that this party starts.
type bySpawn struct{ command transport.Command }

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
func (m *bySpawn) lost() bool                                      { return false }
func (m *bySpawn) settle(time.Time) error                          { return nil }
func (m *bySpawn) over()                                           {}

// byParents is the way of processes that were spawned.
type byParents struct{}

func (byParents) can(transport.Joiner) error                      { return nil }
func (byParents) prepare(context.Context) error                   { return nil }
func (byParents) join(j transport.Joiner) (transport.Comm, error) { return j.Parents() }
func (byParents) lost() bool                                      { return false }
func (byParents) settle(time.Time) error                          { return nil }
func (byParents) over()                                           {}

// cardOf is what another job is told of the members of g.
func cardOf(g *group.Group, version string) meet.Card {
	host, err := os.Hostname()
	if err != nil {
		host = "?"
	}
	info := library.Info()
	return meet.Card{Library: version, MPI: fmt.Sprintf("%s, %s", info.Name, info.Version), Size: g.Size, Host: host, PID: os.Getpid()}
}
