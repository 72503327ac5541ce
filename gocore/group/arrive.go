package group

import (
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// arrivalSpin is how many pauses a synchronous arrival spins before it waits adaptively: some 20 us.
const arrivalSpin = 2000

// arrive announces c with payload and waits for the other members. It fails only because of the deadline,
// an interrupt, or a member that has left; each of these breaks the group for all members. If the
// last member arrived at that very moment, there is no failure and the collective runs.
func (c *collective) arrive(payload arrive.Payload) (arrive.State, arrive.Result, error) {
	g := c.g
	c.beginTurn()
	spin := arrivalSpin
	if g.Env.Node.Crowded() {
		spin = 64
	}
	flags := c.flags
	if !g.Env.Survives {
		flags |= arrive.Sync
	}
	state, res, err := c.announce(flags, payload, spin)
	if state == arrive.Closed {
		return state, res, c.closedError()
	}
	if isHere(state) || err != nil {
		return state, res, err
	}
	if c.deadline.IsZero() {
		c.deadline = time.Now().Add(c.timeout)
	}
	var left error
	looks := 0
	var slow world.Slowness
	waitErr := g.Wait(func() bool {
		state, res, err = g.arrival.Poll(20)
		if state != arrive.Pending || err != nil {
			return true
		}
		if looks++; looks&63 == 0 {
			left = c.absentError()
			c.reportIfSlow(&slow, false, nil)
		}
		return left != nil
	}, c.deadline)
	switch {
	case state == arrive.Closed:
		return state, res, c.closedError()
	case state == arrive.Rubbish:
		err = c.rubbishError()
	case state != arrive.Pending || err != nil:
		c.trace.Arrived()
		return state, res, err
	case left != nil:
		err = left
	case waitErr == work.ErrDeadline:
		err = c.timeoutError()
	case g.Ending() != nil:
		err = g.EndingError(world.Describe(c.sig))
	default:
		err = waitErr
	}
	if g.arrival.GiveUp(g.turn, status.CodeOf(err)) {
		return state, res, err
	}
	if status.CodeOf(err) == status.Interrupted {
		c.interrupted = err
	}
	return c.cameAfterAll()
}

// announce announces c, whose turn it is, and waits for a moment. What a prepared call has to do is then done, if all
// members have come.
func (c *collective) announce(flags arrive.Flags, payload arrive.Payload, spin int) (state arrive.State, res arrive.Result, err error) {
	g := c.g
	if c.atArrival == nil {
		return g.arrival.Announce(g.turn, &c.sig, flags, payload, spin)
	}
	c.summed, state, res = g.node.Slots.AnnounceAndSum(g.turn, &c.sig, flags, payload, spin, &c.atArrival.Sum, unsafe.Pointer(&c.atArrival.Fold))
	return state, res, nil
}

// isHere tells whether a state says that all members have announced a collective.
func isHere(s arrive.State) bool { return s == arrive.Agreed || s == arrive.Differ }

// cameAfterAll polls the arrival at c once more, which this member could not give up: all members had
// announced c. It returns an error if a slot has changed since, which no member does.
func (c *collective) cameAfterAll() (arrive.State, arrive.Result, error) {
	g := c.g
	state, res, err := g.arrival.Poll(0)
	if err != nil || isHere(state) || g.node == nil {
		return state, res, err
	}
	g.node.Slots.Stop(g.turn, status.GroupBroken)
	if state == arrive.Closed {
		return state, res, c.closedError()
	}
	return state, res, c.rubbishError()
}

// payload returns the payload of c's announcement. It is called when c is announced, because it reads the input.
func (c *collective) payload() (arrive.Payload, error) {
	if c.offer.CarriesInput() {
		if err := c.pack(); err != nil {
			return arrive.Payload{}, err
		}
	}
	return c.offer.Payload(&c.args), nil
}

// announce announces t, unless t was announced ahead. If t cannot say what belongs to its announcement, it is
// refused.
func (t *task) announce() error {
	var payload arrive.Payload
	if !t.ahead {
		var err error
		if payload, err = t.collective.payload(); err != nil {
			t.refuseInstead(err)
		}
	}
	if t.refused {
		t.collective.deadline = time.Now().Add(t.g.Timeout()) // its first deadline may have passed
	}
	if t.ahead {
		return nil
	}
	_, _, err := t.g.arrival.Announce(t.g.turn, &t.collective.sig, t.flags(), payload, 0)
	return err
}

// refuseInstead ends t because of err, before it is announced, and makes it a refusal: the group stays usable.
// It is the turn of t.
func (t *task) refuseInstead(err error) {
	t.g.mu.Lock()
	t.refuse()
	t.g.mu.Unlock()
	t.end(err)
}

// flags returns the flags of the announcement.
func (t *task) flags() arrive.Flags {
	if t.refused {
		return t.collective.flags | arrive.Refused
	}
	return t.collective.flags
}

// pollArrival looks whether all members have arrived, and begins the program then.
func (t *task) pollArrival() bool {
	g := t.g
	state, res, err := arrive.Pending, arrive.Result{}, t.news.Err
	if err == nil {
		state, res, err = g.arrival.Poll(1)
	}
	if t.news.Waits(&g.Members, err) {
		return false
	}
	if err == nil && (state == arrive.Pending || state == arrive.Rubbish) {
		if state == arrive.Rubbish {
			err = t.collective.rubbishError()
		} else if err = t.whyGiveUp(); err == nil {
			return false
		}
		if t.refused && g.local && g.Ending() != nil {
			t.over(nil) // the announcement stays in the control slots: a member that comes later sees the refusal
			return true
		}
		if !g.arrival.GiveUp(g.turn, status.CodeOf(err)) {
			state, res, err = t.collective.cameAfterAll()
		}
	}
	if state == arrive.Closed && err == nil {
		err = t.collective.closedError()
	}
	if err == nil {
		g.arrived = g.turn
		t.collective.trace.Arrived()
	}
	switch {
	case err != nil:
		err = g.Named(t.collective.numbered(), t.collective.readable(err))
		g.resign(g.turn, err)
		g.Fail(err)
		t.over(err)
		return true
	case t.refused:
		t.over(nil)
		return true
	}
	alg, err := t.collective.choose(state, res)
	if err == nil {
		err = t.start(alg)
	}
	if t.news.Waits(&g.Members, err) {
		t.stage = running // pollProgram goes on
		return false
	}
	if err != nil {
		t.over(t.collective.breakIfFailed(err))
		return true
	}
	return t.pollProgram()
}

// whyGiveUp returns an error if t, which waits for other members, must stop waiting.
func (t *task) whyGiveUp() error {
	if !t.refused && t.handle.Done() {
		_, err := t.handle.Result() // the caller was interrupted
		return err
	}
	if err := t.g.EndingError(world.Describe(t.collective.sig)); err != nil {
		return err
	}
	return t.overdue()
}
