package collective

import (
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// A collective is a state machine. step takes it as far as it goes without waiting, and says what it waits for. The thread of
// a synchronous caller calls step again and again (carryOut), the engine does it for every other one (Poll). Whether the
// members arrive by control slots or by wire makes no difference here.
type stage int32

const (
	checked   stage = iota // in the queue, or its turn has just come
	announced              // this member waits for the others
	agreed                 // all have come and agree, and the algorithm is chosen
	running                // the algorithm is under way
	lingering              // it has failed for its caller, but others still use its memory
	over
)

// wants is what a collective waits for.
type wants int

const (
	nothing  wants = iota // it is over
	aStep                 // another step at once
	members               // other members: they are seen in memory that all share
	requests              // the engine: it tests requests of MPI, and takes further what lingers
)

const (
	// arrivalSpin is how many pauses a synchronous call spins before it waits adaptively: some 20 us. crowdedSpin: where
	// there are more ranks than cores.
	arrivalSpin = 2000
	crowdedSpin = 64
	// waitingSpin is how many pauses each look of an adaptive wait makes.
	waitingSpin = 20

	// A synchronous call looks wireLooks times by itself whether all members have come by wire: some 50 us, and once more for
	// bytesOfLook bytes that it sends, because a long payload takes its time on the wire. After the first wireSpins, which
	// take as long as a message to another node and back, it yields the core between two looks. The rank for which it waits
	// may need that core, also where there seems to be a core for each rank: two containers, or a rank and the threads of
	// another program.
	wireLooks   = 100
	wireSpins   = 24
	bytesOfLook = 512
)

// carryOut takes c to its end on the thread of its caller. The group is busy with c. What waits for requests, or by wire for
// longer, is handed to the engine. If others may use the memory after an error, left is the handle that comes with it.
func (c *collective) carryOut() (left *work.Handle, err error) {
	g := c.g
	spin := g.spin
	c.args.Seq = g.turns.next()
	c.record(0)
	want := c.announce(spin)
	if want == members && g.Wire != nil {
		want = c.lookAtWire()
	}
	var asked time.Time // when the caller was last asked for an interrupt
	for {
		var stop error
		switch {
		case want == nothing && c.handle == nil:
			return nil, c.err
		case want == requests, c.handle != nil, want == members && g.Wire != nil:
			return c.handOver(want)
		case want == members:
			stop = g.Env.Engine.WaitRung(func() bool {
				want = c.step(waitingSpin)
				return want != members
			}, time.Time{}, g.Env.Interrupt)
			asked = time.Time{}
			if stop == nil {
				continue
			}
		case want == aStep && c.form == coll.InRounds: // a long tensor may keep this member from ever waiting
			stop = interrupt(g.Env.Interrupt, &asked)
		}
		if stop != nil {
			c.asked = stop
			if status.CodeOf(stop) == status.Interrupted {
				c.interrupted = stop
			}
		}
		want = c.step(spin)
	}
}

// interrupt returns the error of an interrupt, for a loop that does not wait. It looks when the last look, at asked, is long ago.
func interrupt(ask work.Interrupt, asked *time.Time) error {
	now := time.Now()
	if asked.IsZero() {
		*asked = now
	}
	if now.Sub(*asked) < work.InterruptEvery || ask == nil {
		return nil
	}
	*asked = now
	return ask()
}

// lookAtWire looks for a moment whether all members have come by wire. A collective whose input travels in its payload is over then.
func (c *collective) lookAtWire() (want wants) {
	want = members
	most := wireLooks + coll.Bytes(&c.args)/bytesOfLook
	for looks := int64(0); want == members && looks < most && c.flags&(coll.Inline|arrive.Summed) != 0; looks++ {
		if looks >= wireSpins || c.g.Env.Node.Crowded() {
			work.Yield()
		}
		want = c.step(0)
	}
	return want
}

// handOver gives c to the engine, and waits until it is over for its caller.
func (c *collective) handOver(want wants) (left *work.Handle, err error) {
	g := c.g
	if c.handle == nil {
		c.takeHandle()
	}
	if want != nothing {
		g.turns.mu.Lock()
		g.turns.current = c
		g.turns.dueAt(c.deadline)
		g.turns.mu.Unlock()
		if c.stage == lingering { // nobody else takes c further
			g.Env.Engine.StartProgress()
		}
		g.Env.Engine.Add(c)
		g.Env.Engine.CalledMPI()
	}
	left, _, err = c.await()
	return left, err
}

// takeHandle gives c the handle by which its caller knows it, and copies what the caller keeps only during the call.
func (c *collective) takeHandle() {
	c.handle = c.g.Env.Engine.NewHandle()
	c.copied = len(c.copies.staged) > 0 || c.inPieces
	if c.deadline.IsZero() {
		c.deadline = time.Now().Add(c.timeout)
	}
	for i := range c.copies.staged {
		c.copies.staged[i].CopyLayout()
	}
}

// start begins c, whose turn it is, in the engine.
func (c *collective) start() {
	if c.announce(0) == nothing {
		return
	}
	if c.flags&coll.Device != 0 || c.g.Wire != nil {
		c.g.Env.Engine.Add(c) // the device or the wire works while the host polls
	} else {
		c.g.Env.Engine.AddPatient(c)
	}
}

// Requests implements work.Task. Once all members have arrived, polling moves the data.
func (c *collective) Requests(b *work.Batch) work.Pace {
	onNode := c.g.Wire == nil && !c.g.Silent
	if c.stage < running {
		if onNode {
			return work.Rung
		}
		return work.Seldom
	}
	c.prog.Requests(b)
	switch {
	case c.stage != running:
		return work.Seldom
	case !onNode:
		return work.Often
	case c.flags&coll.Device == 0 && (c.form == coll.InChunks || c.form == coll.InRounds || c.lends()):
		return work.Rung
	}
	return work.Always
}

// Poll implements work.Task.
func (c *collective) Poll() bool {
	c.trial.poll()
	want := c.step(1)
	for want == aStep {
		want = c.step(1)
	}
	c.trial.left()
	return want == nothing
}

// step takes c, which was announced, as far as it goes without waiting. It pauses up to spin times until other members have done
// what it waits for.
func (c *collective) step(spin int) wants {
	switch {
	case c.news.Err != nil:
		return c.end(c.news.Err)
	case c.stage == announced:
		state, res, err := c.g.Arrival.Poll(spin)
		return c.takeArrival(state, res, err, true)
	case c.stage == agreed:
		return c.run()
	}
	return c.work(spin)
}

// announce announces c, unless that was done ahead of its turn, and pauses up to spin times until all members have come. If c
// cannot say what belongs to its announcement, it is refused.
func (c *collective) announce(spin int) wants {
	g := c.g
	c.stage = announced
	if c.refused {
		c.dueAt(time.Now().Add(g.Timeout())) // its first deadline may have passed
	}
	if c.ahead {
		g.Node.Slots.Turn(g.turns.turn)
		return members
	}
	if c.atArrival != nil {
		return c.announceAndSum(spin)
	}
	var told [2]uint64
	if g.Wire != nil {
		if told = g.Tuner.Words(); !c.refused {
			c.trial.propose(&c.request)
		}
	}
	payload, err := c.payload()
	if err != nil {
		c.refuseInstead(err)
	}
	payload.Told = told
	state, res, err := g.Arrival.Announce(g.turns.turn, &c.sig, c.announces(), payload, spin)
	if g.Wire != nil {
		g.Env.Engine.CalledMPI()
	}
	if err == nil && c.handle != nil {
		return members // the engine looks
	}
	return c.takeArrival(state, res, err, false)
}

// announceAndSum announces c, which was checked before. What it has to do is then done, if all members have come; also where the
// caller does not wait, because it takes less than to hand c to the engine.
func (c *collective) announceAndSum(spin int) wants {
	g, at := c.g, c.atArrival
	summed, state, res := g.Node.Slots.AnnounceAndSum(g.turns.turn, &c.sig, c.announces(), at.Payload, spin, &at.Sum, unsafe.Pointer(&at.Fold))
	switch {
	case !summed && c.handle != nil:
		return members // the engine looks
	case !summed:
		return c.takeArrival(state, res, nil, false)
	}
	if c.handle != nil {
		c.trace.Arrived()
	}
	g.turns.arrived = g.turns.turn
	c.took(coll.AtTheArrival)
	c.bare = c.scratch == 0
	return c.isOver(nil)
}

// announces returns the flags of c's announcement.
func (c *collective) announces() arrive.Flags {
	switch {
	case c.refused:
		return c.flags | arrive.Refused
	case c.handle == nil && c.g.Wire == nil && !c.g.Env.Groups.Survives:
		return c.flags | arrive.Sync // the caller's thread waits inside the call
	}
	return c.flags
}

// took notes the algorithm of c.
func (c *collective) took(alg *coll.Algorithm) {
	c.trace.Algorithm(alg.Name)
	if last := &c.g.algorithm; last.Load() != alg { // a load costs nothing, a store some 5 ns
		last.Store(alg)
	}
}

// payload returns what c tells with its announcement. It is called when c is announced, because it reads the input.
func (c *collective) payload() (arrive.Payload, error) {
	if c.refused {
		return arrive.Payload{}, nil
	}
	if c.trial.way != nil && c.flags&(coll.Inline|arrive.Summed) == 0 {
		return arrive.Payload{}, nil // its way is another one
	}
	if c.offer.CarriesInput() {
		if err := c.copies.pack(); err != nil {
			return arrive.Payload{}, err
		}
	}
	return c.offer.Payload(&c.args), nil
}

// takeArrival takes in what a look at the arrival has shown, and chooses the algorithm if all members have come. It begins it, unless
// this member has waited: a blocking call of MPI has no place inside a wait, which counts as driving the engine.
func (c *collective) takeArrival(state arrive.State, res arrive.Result, err error, waited bool) wants {
	g := c.g
	if err == nil && (state == arrive.Pending || state == arrive.Rubbish) {
		if state == arrive.Rubbish {
			err = c.failure().rubbishError()
		} else if err = c.mustStop(); err == nil {
			return members
		}
		if c.refused && g.Local && g.Members().Ending() != nil {
			return c.isOver(nil) // the announcement stays in the control slots: a member that comes later sees the refusal
		}
		if !g.Arrival.GiveUp(g.turns.turn, status.CodeOf(err)) {
			state, res, err = c.failure().cameAfterAll()
		}
	}
	if state == arrive.Closed && err == nil {
		err = c.failure().closedError()
	}
	switch {
	case err != nil:
		return c.end(err)
	case waited:
		c.trace.Arrived()
	}
	g.turns.arrived = g.turns.turn
	if g.Wire != nil {
		c.trial.agreed(&c.request, state, res)
	}
	if c.refused {
		return c.isOver(nil)
	}
	if c.alg, err = c.choose(state, res); err != nil {
		return c.end(err)
	}
	c.stage = agreed
	if waited {
		return aStep
	}
	return c.run()
}

// cameAfterAll polls the arrival once more at a collective, which this member could not give up: all members had
// announced c. It returns an error if a slot has changed since, which no member does.
func (f *failure) cameAfterAll() (arrive.State, arrive.Result, error) {
	g := f.g
	state, res, err := g.Arrival.Poll(0)
	if err != nil || state == arrive.Agreed || state == arrive.Differ || g.Node == nil {
		return state, res, err
	}
	g.Node.Slots.Stop(g.turns.turn, status.GroupBroken)
	if state == arrive.Closed {
		return state, res, f.closedError()
	}
	return state, res, f.rubbishError()
}

// run begins the algorithm. It may take the whole timeout, whatever the arrival took.
func (c *collective) run() wants {
	g, alg := c.g, c.alg
	c.stage = running
	here := c.handle == nil // on the thread of the caller
	if here {
		c.dueAt(time.Time{}) // it counts from the first look: a blocking call of MPI has none
	} else {
		c.dueAt(time.Now().Add(c.timeout))
	}
	var err error
	switch {
	case c.form == coll.AtOnce: // it reads the payloads, for which the tensors were packed
		if c.err = alg.Compute(&c.args, &c.prog); c.lends() {
			return aStep
		}
		return c.end(c.err)
	case c.form == coll.InChunks:
		switch err = c.chunks.shareOut(c.failure(), alg); {
		case c.chunks.op == nil:
			return c.end(err)
		case err != nil:
			return c.abandon(err) // other members may work in its tensors
		}
		return aStep
	}
	if err = c.copies.pack(); err != nil {
		return c.end(err)
	}
	if c.form == coll.InRounds && here {
		if err = alg.Begin(&c.args, &c.prog); err != nil {
			return c.end(err)
		}
		return aStep
	}
	if err = c.prog.Build(alg, &c.args); err == nil && c.form == coll.InOneGo {
		g.Env.Groups.Watcher.Start()
		g.blocking.Store(g.turns.turn)
		err = c.prog.Run()
		g.blocking.Store(0)
		g.Env.Engine.CalledMPI()
		return c.end(err)
	}
	switch g.Env.Engine.CalledMPI(); {
	case err != nil:
		return c.end(err)
	case here:
		return requests
	}
	return aStep
}

// work takes c further, which runs or lingers.
func (c *collective) work(spin int) wants {
	done, want, err := false, members, error(nil)
	switch {
	case c.chunks.op != nil:
		done, err = c.stepChunks(spin)
	case c.lends():
		done, err = isRead(&c.request, spin), c.err
	case c.form == coll.InRounds && c.handle == nil:
		done, want, err = stepRounds(&c.args, spin)
	default:
		done, err = c.prog.Poll()
		if p := c.prog.Phase(); p != c.phase {
			if c.phase = p; p.Where != coll.NoPhase {
				c.trace.Phase(int(p.Where)-1, p.Rail, p.Partner)
			}
		}
		if done {
			c.g.Env.Engine.CalledMPI() // its last messages may not have left yet
		}
	}
	if done {
		return c.end(err)
	}
	switch {
	case c.stage == lingering:
		return requests
	case c.chunks.stopping == nil:
		if err := c.mustStop(); err != nil {
			return c.stop(err)
		}
	}
	return want
}
