package world

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mailbox"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// How the ranks end together. A process that ends closes its connections, and MPI takes that for a failure
// in a rank that still uses one. So a rank that leaves stays until all ranks have left, whatever became of
// its groups:
//
//  1. It waits in a barrier until all ranks have left, and answers their questions until then.
//  2. No rank receives anything any more. What was sent to this rank all the same is taken and dropped, so
//     that the sends of the others end. This rank waits for the end of its own requests, settleLimit at most.
//  3. The ranks agree whether MPI can be finalized. They all do that, or none does.
//  4. If the program goes on after that, because it has destroyed its world, the ranks meet once more before
//     they finalize MPI (EndTogether): a process may have ended in between, and MPI would wait for it.
//
// The collectives of the departure are on Env.Base, which carries no others by then.

const (
	// settleLimit is how long a rank waits, once all have left, for the end of its own requests.
	settleLimit = 3 * time.Second
	// lastWord is how long a rank that does not finalize MPI goes on calling it, so that what it has sent
	// reaches the others.
	lastWord = 300 * time.Millisecond
)

type departureStage int

const (
	staying    departureStage = iota // this rank has not left
	inBarrier                        // in the barrier
	settling                         // waiting for the end of its own requests
	agreeing                         // telling each other whether MPI can be finalized
	departed                         // all ranks have left, and have agreed; EndTogether has one more barrier here
	undeparted                       // MPI refused a call: the others wait for this rank in vain
)

// Departure is how far the end of this rank has come.
type Departure struct {
	e        *Env
	stage    departureStage
	request  *transport.Request // of the round under way
	words    unsafe.Pointer     // of agreeing: what this rank says, and what all say; 1: MPI can be finalized
	stuck    bool               // a thread of this process is inside MPI, and does not return
	until    time.Time          // the end of settling
	dropping bool               // messages are being dropped
	closed   bool               // the groups are freed; Base, Roster and Node are not

	ended    atomic.Pointer[status.Error] // why no operation must wait any longer; nil while they may
	revoked  atomic.Bool                  // by this rank: there is no departure
	reformed atomic.Bool                  // see Env.Reform
	users    atomic.Int32                 // calls under way that belong to no operation of a group: see Env.Use

	mu       sync.Mutex    // guards broke
	broke    time.Duration // the longest timeout of the groups that broke; 0 if none did
	stranded sync.Map      // messages, each a fmt.Stringer, that were given up while MPI still sends them
}

// BrokeAfter notes that a group with this timeout broke.
func (d *Departure) BrokeAfter(timeout time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.broke = max(d.broke, timeout)
}

// Strand notes a message that was given up while MPI still sends it. Its text names it and its group.
func (d *Departure) Strand(m fmt.Stringer) { d.stranded.Store(m, nil) }

// ArrivedAfterAll takes a message off the list of Strand: MPI is done with it.
func (d *Departure) ArrivedAfterAll(m fmt.Stringer) { d.stranded.Delete(m) }

// begin begins the departure. All groups have taken their last call.
func (d *Departure) begin() error {
	if d.stage != staying {
		return nil
	}
	if d.e.Topo.Joined && d.Deserted() {
		d.stage = undeparted // Intel MPI hangs in a barrier with a rank of another job that has died (measured)
		return nil
	}
	var err error
	if d.words, err = mem.Alloc(16); err != nil {
		d.stage = undeparted
		return err
	}
	words := unsafe.Slice((*int64)(d.words), 2)
	words[0], words[1] = 1, 0
	if d.stuck {
		words[0] = 0
	}
	return d.nextStage(inBarrier, transport.Barrier)
}

// nextStage starts the round of a stage.
func (d *Departure) nextStage(stage departureStage, what transport.Round) (err error) {
	d.stage = stage
	if d.request, err = d.e.Base.Start(what, d.words, unsafe.Add(d.words, 8), 1); err != nil {
		d.stage = undeparted
	}
	return err
}

// stageOver tells whether the round of this stage is over. One that failed is the last: some rank is not heard any more.
func (d *Departure) stageOver() bool {
	if !transport.Over(d.e.Base, d.request) {
		return false
	}
	err := d.e.Base.Err(d.request)
	d.e.Base.Release(d.request)
	if d.request = nil; err != nil {
		d.stage = undeparted
	}
	return err == nil
}

// AllDeparted takes the departure further, and tells whether it is over: all ranks have left, and have agreed
// whether MPI can be finalized. Until then it answers questions of other ranks.
func (d *Departure) AllDeparted() bool {
	d.e.Mail.Pump()
	d.e.Engine.Tick() // operations that were given up
	for _, g := range d.e.Groups.all() {
		g.Settled()
	}
	switch d.stage {
	case inBarrier:
		if !d.stageOver() {
			return false
		}
		d.reportLost()
		d.stage, d.until = settling, time.Now().Add(settleLimit)
	case settling:
		d.dropMessages()
		if d.stuck || d.Settled() || time.Now().After(d.until) {
			_ = d.nextStage(agreeing, transport.Min) // an error makes the stage undeparted
		}
	case agreeing:
		d.dropMessages()
		if d.stageOver() {
			d.stage = departed
		}
	}
	return d.stage == departed
}

// finalizable tells whether all ranks have agreed that MPI can be finalized.
func (d *Departure) finalizable() bool {
	return d.stage == departed && unsafe.Slice((*int64)(d.words), 2)[1] == 1
}

// Settled tells whether nothing of any group is under way: no operation, and no request of MPI.
func (d *Departure) Settled() bool {
	return d.users.Load() == 0 && !d.dropping &&
		all(d.e.Groups.all(), func(g Group) bool { return !g.UnderWay() && g.Settled() })
}

// dropMessages takes messages that have come for this rank.
func (d *Departure) dropMessages() {
	d.dropping = false
	for _, g := range d.e.Groups.all() {
		d.dropping = g.DropMessages() || d.dropping
	}
}

// reportLost writes one line about the messages of this rank that are under way when all ranks have left.
func (d *Departure) reportLost() {
	if !d.e.Roster.Questions.Departed() {
		return // destroy_process_group: their works have told of it
	}
	var lost []string
	d.stranded.Range(func(m, _ any) bool {
		lost = append(lost, m.(fmt.Stringer).String())
		return true
	})
	if len(lost) > 0 {
		d.e.Reports.Write(fmt.Sprintf("paddlempi: rank %d has ended with %d message(s) that no rank has received, and that are lost: %s\n", d.e.Topo.Rank, len(lost), slices.Min(lost)))
	}
}

// stayAway tells the other ranks that this one ends without them: MPI refused a call of the departure, or this
// rank waits no longer. It waits until the messages are sent, for lastWord at most, because the process ends next.
func (d *Departure) stayAway() {
	for r := range d.e.Topo.Node {
		if r != d.e.Topo.Rank {
			d.e.Mail.Send(r, mailbox.Absent, mailbox.OfProcess, nil)
		}
	}
	_ = work.NewEngine().Wait(d.e.Mail.Sent, time.Now().Add(lastWord), nil)
}

// AwaitDepartures waits until AllDeparted, and tells whether MPI can be finalized. It returns false if some
// rank has died, says that it ends without the others, or has a thread inside MPI that does not return. There
// is no deadline, because the other ranks may go on for long, unless a group broke and nothing tells of dead
// hosts: then it is the group's timeout.
func (d *Departure) AwaitDepartures() bool {
	var deadline time.Time
	d.mu.Lock()
	if d.broke > 0 && d.e.Roster.Unseen() {
		deadline = time.Now().Add(d.broke)
	}
	d.mu.Unlock()
	_, err := d.Await(deadline, nil)
	dead := d.Deserted() // MPI may end the collectives then
	finalizable := d.finalizable() && !dead
	switch {
	case err != nil || d.stage == undeparted:
		d.stayAway()
	case !finalizable && !dead:
		_ = work.NewEngine().Wait(func() bool { d.e.Mail.Pump(); return false }, time.Now().Add(lastWord), nil)
	}
	if !finalizable {
		d.End(false)
	}
	return finalizable
}

// Await takes the departure further until it is over. It returns false without an error if it never will be: some rank
// has died, or has ended without the others. It waits with a new engine, because the engine of e was stopped.
func (d *Departure) Await(deadline time.Time, interrupt work.Interrupt) (over bool, err error) {
	return d.await(d.AllDeparted, deadline, interrupt)
}

// await is Await for anything that all ranks have to do.
func (d *Departure) await(done func() bool, deadline time.Time, interrupt work.Interrupt) (over bool, err error) {
	err = work.NewEngine().Wait(func() bool {
		over = done()
		return over || d.Deserted() || d.stage == undeparted || d.e.Mail.Has(mailbox.Absent) || d.e.revoked() != nil
	}, deadline, interrupt)
	return over, err
}

// GoAlone tells the other ranks that the process of this one ends, without a departure that is over.
func (d *Departure) GoAlone() {
	d.stayAway()
	d.End(false)
}

// EndTogether waits until the processes of all ranks are about to end, and tells whether they are: false if one
// of them has ended before, or if the ranks have agreed that MPI cannot be finalized. Call it after AwaitDepartures
// or Close. It has no deadline, because the other ranks may go on for long.
func (d *Departure) EndTogether() bool {
	together := false
	if d.finalizable() && d.nextStage(departed, transport.Barrier) == nil {
		together, _ = d.await(d.stageOver, time.Time{}, nil)
	}
	d.End(together)
	return together
}

// End tells the other ranks that the process of this one may end, and whether those of all ranks do. If its departure failed, they may
// never hear of it: then they see that it has ended early.
func (d *Departure) End(all bool) {
	d.e.Roster.Leave(all)
	if d.stage != undeparted {
		d.e.Node.Go()
	}
}

// Deserted tells whether the departure cannot be over, because some rank has died or ended without it.
func (d *Departure) Deserted() bool { return d.e.Roster.AnyDead() || d.e.Node.EndedEarly() }
