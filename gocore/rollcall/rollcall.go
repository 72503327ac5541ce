// Package rollcall has the ranks of a node wait for each other before MPI_Init, under a launcher of an MPI. MPI_Init waits
// for all ranks of the job, and nothing ends that wait: not a deadline, not Ctrl-C, and not a rank that has ended without
// a word. So the ranks that a launcher has started on a node first meet here, where the wait has a deadline, a report, and
// an error that names those that are missing. MPI_Init is called when all have come.
//
// The first rank that comes calls the roll (lead.go), the others answer (attend.go), over sockets that have no file: the
// kernel takes their name away with the process that has it. A rank that goes to MPI_Init by itself, as mpi4py does, is not
// waited for (look.go). What this room cannot know, because ranks are on other nodes, a watch over MPI_Init makes up for
// (watch.go): it reports, and at the deadline it ends the process.
//
// What the launcher's variables say decides only who meets. MPI's own connection to the launcher (PMI) is left alone.
package rollcall

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/process"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Terms say how a process waits.
type Terms struct {
	ReportAfter time.Duration  // after how long the wait is reported; 0: never
	Interrupt   work.Interrupt // may be nil
}

// Open is mpi.Open in a process that the launcher of an MPI may have started. o.Timeout limits the wait for the other
// ranks, MPI_Init included; 0: nothing does.
func Open(o mpi.Options, t Terms) (mpi.Library, error) {
	o.RollCall = &call{Terms: t, began: time.Now(), timeout: o.Timeout, write: write, exit: os.Exit}
	return mpi.Open(o)
}

// call is the part of this process in a roll call. It implements mpi.RollCall.
type call struct {
	Terms
	place   mpi.LauncherInfo
	began   time.Time
	timeout time.Duration
	write   func(line string)
	exit    func(code int)

	left     map[int]int // ranks that had come, and have given up or ended, with their numbers on this node
	reported bool
	speaks   bool   // this process reports a wait in MPI_Init
	complete bool   // all ranks of this node have come
	apart    string // why ranks of this node were not waited for
}

const (
	// askAgain is how long a rank waits before it tries again to come to the roll call.
	askAgain = 2 * time.Millisecond
	// grace is how long a rank waits for an answer of the rank that calls the roll.
	grace = 2 * time.Second
)

// Gather returns nil if MPI_Init may be called: all ranks of this node have come, or it cannot be known whether they come.
func (c *call) Gather() error {
	c.place = mpi.HiddenLauncher()
	name := c.address()
	if name == "" {
		c.speaks = c.place.LocalRank <= 0
		return nil
	}
	return c.gather(name)
}

func (c *call) gather(name string) error {
	c.left = map[int]int{}
	for {
		listener, taken, err := listen(name)
		if err == nil {
			return c.lead(listener)
		}
		if !taken {
			return c.goOn(fmt.Sprintf("this process cannot make a socket (%v)", err))
		}
		conn, err := dial(name)
		switch {
		case errors.Is(err, errForeign):
			return c.goOn(fmt.Sprintf("ranks of this host are not waited for before MPI_Init: %v where they would meet", err))
		case err == nil:
			if again, err := c.attend(conn); !again {
				return err
			}
		}
		time.Sleep(askAgain) // the process that had the name ends, or has gone on
		if err := c.interrupted(); err != nil {
			return err
		}
		if c.late(time.Now().Add(-grace)) {
			return c.tooLate(absent{who: c.some(), what: "none of them answers"})
		}
	}
}

// goOn says why MPI_Init is called although not all ranks of this node have come.
func (c *call) goOn(why string) error {
	c.speaks, c.apart = true, why
	return nil
}

// address returns the name under which the ranks of this node meet that the launcher has started for this job. It is
// empty if they do not: there is no launcher, it has started no other rank here, or it does not say so.
func (c *call) address() string {
	p := c.place
	if p.PID == 0 || p.LocalSize < 2 || p.LocalSize > p.Size || p.Rank < 0 || p.Rank >= p.Size || p.Spawned() ||
		p.LocalRank < 0 || p.LocalRank >= p.LocalSize {
		return ""
	}
	starter, err := process.Read(process.Folder, p.PID)
	if err != nil {
		return ""
	}
	space, _ := os.Readlink("/proc/self/ns/pid") // in which the number of the launcher counts
	key := sha256.Sum256(fmt.Appendf(nil, "%s %d %d %s", space, p.PID, starter.Started, p.Job))
	return "@paddlempi-rollcall-" + hex.EncodeToString(key[:16])
}

func (c *call) interrupted() error {
	if c.Interrupt == nil {
		return nil
	}
	return c.Interrupt()
}

// late tells whether the deadline has passed.
func (c *call) late(now time.Time) bool {
	return c.timeout > 0 && now.Sub(c.began) >= c.timeout
}

// due tells whether the wait is to be reported, and is so for some time already.
func (c *call) due(since time.Duration) bool {
	return !c.reported && c.ReportAfter > 0 && time.Since(c.began) >= c.ReportAfter+since
}

// tooLate is the error of a rank that has waited until its deadline.
func (c *call) tooLate(a absent) error {
	return status.New(status.Timeout, "init: after %.1f s %s had not called init_process_group: %s; every rank must call it",
		time.Since(c.began).Seconds(), a.who, a.what).WithRanks(a.ranks...)
}

// some stands for ranks that this process cannot name.
func (c *call) some() string { return who(c.place, nil, nil) }

// report writes a line about this wait.
func (c *call) report(where, what string, since time.Time) {
	who := "this process"
	if c.place.Rank >= 0 {
		who = fmt.Sprintf("rank %d", c.place.Rank)
	}
	c.write(fmt.Sprintf("paddlempi: %s has waited for %.1f s in %s: %s.\n", who, time.Since(since).Seconds(), where, what))
}

func write(line string) { _, _ = syscall.Write(2, []byte(line)) }
