package coll

import (
	"errors"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Step is one MPI call, several MPI calls that are under way together, local work, or a wait for
// something other than MPI.
type Step struct {
	Call  mpi.Call
	Calls []mpi.Call
	Do    func() error
	Until func() (bool, error)
	// UnderWay, if set, adds the requests that Until waits for.
	UnderWay func(*work.Batch)
	// Phase, if set, tells what Until is at.
	Phase func() Phase
	// Leaves says that Until waits for what touches no tensor of this rank: it may be left at any time.
	Leaves bool
	// Meanwhile is local work that may be done while the steps behind it are under way.
	Meanwhile func()
}

// Program is the list of steps of one operation on one rank. Run carries it out with blocking MPI
// calls on the caller's thread, Poll step by step. A zero Program is ready for use; Reset makes a
// used one ready.
type Program struct {
	steps   []Step
	cleanup []func()
	scratch []unsafe.Pointer
	reserve unsafe.Pointer // the rest of the memory that Reserve took, and its length
	left    int64

	lib   mpi.Library
	next  int                // the step to start next
	under transport.UnderWay // the requests of the step under way
	phase func() Phase       // of the last step
	err   error
	// meanwhile is the work of Step.Meanwhile that was not done yet; nil: none.
	meanwhile func()
	given     bool // see Leave
	settles   bool // see Settle
}

// Reset forgets the steps and keeps what was reserved.
func (p *Program) Reset(lib mpi.Library) {
	clear(p.steps)
	p.steps = p.steps[:0]
	p.lib, p.under.By, p.next, p.phase, p.err, p.meanwhile = lib, lib, 0, nil, nil, nil
	p.given, p.settles = false, false
}

// Call appends an MPI call and returns it, so that the caller can fill it in. The pointer is valid
// until the next step is appended.
func (p *Program) Call() *mpi.Call {
	p.steps = append(p.steps, Step{})
	return &p.steps[len(p.steps)-1].Call
}

// Together appends calls that are under way at the same time.
func (p *Program) Together(calls []mpi.Call) {
	if len(calls) > 0 {
		p.steps = append(p.steps, Step{Calls: calls})
	}
}

// Do appends local work.
func (p *Program) Do(f func() error) { p.steps = append(p.steps, Step{Do: f}) }

// Until appends a wait. f tells whether the wait is over; it is called often and on any thread.
func (p *Program) Until(f func() (bool, error)) { p.UntilOver(f, nil, nil) }

// UntilOver is Until for a wait for requests of the transport, which underWay adds to a batch that is tested before f is
// called. phase may be nil, as underWay may.
func (p *Program) UntilOver(f func() (bool, error), underWay func(*work.Batch), phase func() Phase) {
	p.steps = append(p.steps, Step{Until: f, UnderWay: underWay, Phase: phase})
}

// untilLeft is Until for a wait that may be left.
func (p *Program) untilLeft(f func() (bool, error)) {
	p.steps = append(p.steps, Step{Until: f, Leaves: true})
}

// Leave says that the collective was given up on this rank. The program then ends at the next Poll, if it is at a wait that may be left.
func (p *Program) Leave() { p.given = true }

// Settle says that the program has failed with an error of this rank, and only waits until what is under way is over: no
// error of another rank takes the place of this one.
func (p *Program) Settle() { p.settles = true }

// Settles tells whether Settle was called.
func (p *Program) Settles() bool { return p.settles }

var errLeft = errors.New("the collective was given up")

// Meanwhile appends local work that Poll does when a step behind it has to be waited for. catchUp does it if no step had
// to be.
func (p *Program) Meanwhile(f func()) { p.steps = append(p.steps, Step{Meanwhile: f}) }

func (p *Program) catchUp() {
	f := p.meanwhile
	if p.meanwhile = nil; f != nil {
		f()
	}
}

// Reserve takes n bytes for Alloc to hand out. It is called before this rank announces the
// collective, because afterwards the other ranks wait for it and cannot be told that memory is
// short.
func (p *Program) Reserve(n int64) error {
	if n == 0 {
		return nil
	}
	block, err := mem.Alloc(n)
	if err == nil {
		p.reserve, p.left = block, n
		p.scratch = append(p.scratch, block)
	}
	return err
}

// Alloc takes scratch memory that is freed when the program ends.
func (p *Program) Alloc(bytes int64) (unsafe.Pointer, error) {
	if n := pad(bytes); n <= p.left {
		b := p.reserve
		p.reserve, p.left = unsafe.Add(b, n), p.left-n
		return b, nil
	}
	b, err := mem.Alloc(bytes)
	if err == nil {
		p.scratch = append(p.scratch, b)
	}
	return b, err
}

// mark is a point to which rewind goes back.
type mark struct {
	scratch int
	reserve unsafe.Pointer
	left    int64
}

func (p *Program) mark() mark { return mark{len(p.scratch), p.reserve, p.left} }

// rewind forgets the steps, all of which are done, and takes back what was allocated since m. A
// program whose last step appends further steps stays short this way.
func (p *Program) rewind(m mark) {
	for _, b := range p.scratch[m.scratch:] {
		mem.Free(b)
	}
	p.scratch, p.reserve, p.left = p.scratch[:m.scratch], m.reserve, m.left
	clear(p.steps)
	p.steps, p.next = p.steps[:0], 0
}

// AtEnd appends work for the end of the program, whether the program succeeds or fails.
func (p *Program) AtEnd(f func()) { p.cleanup = append(p.cleanup, f) }

// Run carries out all steps with blocking calls and cleans up. No step may poll (Algorithm.polls).
func (p *Program) Run() error {
	for p.next < len(p.steps) { // a step may append further ones
		s := &p.steps[p.next]
		p.next++
		switch {
		case s.Until != nil || s.Calls != nil:
			panic("coll: a step of a program that is run in one go polls: its algorithm has to say so")
		case s.Do != nil:
			p.err = s.Do()
		case s.Meanwhile != nil:
			s.Meanwhile()
		default:
			p.err = p.lib.Run(&s.Call, nil)
		}
		if p.err != nil {
			break
		}
	}
	p.Close()
	return p.err
}

func (p *Program) start(calls []mpi.Call) error {
	for i := range calls {
		if err := p.under.Add(p.lib.Start(&calls[i])); err != nil {
			return err
		}
	}
	return nil
}

// Requests adds the requests under way to b.
func (p *Program) Requests(b *work.Batch) {
	p.under.Batch(b)
	if p.next < len(p.steps) && p.steps[p.next].UnderWay != nil {
		p.steps[p.next].UnderWay(b)
	}
}

// Poll runs the steps that need no wait now. It returns whether the program has ended, and the
// error. After the first error Poll starts no further step, but the program ends only when the
// requests under way have ended.
func (p *Program) Poll() (done bool, err error) {
	for {
		if p.under.Len() > 0 {
			if e := p.under.Reap(); e != nil && p.err == nil {
				p.err = e
			}
			if p.under.Len() > 0 {
				p.catchUp()
				return false, nil
			}
		}
		if p.err != nil || p.next >= len(p.steps) {
			p.Close()
			return true, p.err
		}
		s := &p.steps[p.next]
		p.phase = s.Phase
		if p.given && s.Leaves {
			p.err = errLeft
			continue
		}
		if s.Until != nil {
			done, err := s.Until()
			if !done && err == nil {
				p.catchUp()
				return false, nil
			}
			p.err = err
			p.next++
			continue
		}
		p.next++
		switch {
		case s.Do != nil:
			p.err = s.Do()
		case s.Meanwhile != nil:
			p.meanwhile = s.Meanwhile
		case s.Calls != nil:
			p.err = p.start(s.Calls)
		default:
			p.err = p.under.Add(p.lib.Start(&s.Call))
		}
	}
}

// Close runs what AtEnd appended and frees the scratch memory. No request may be under way.
func (p *Program) Close() {
	for _, f := range p.cleanup {
		f()
	}
	clear(p.cleanup)
	p.cleanup = p.cleanup[:0]
	for _, b := range p.scratch {
		mem.Free(b)
	}
	p.scratch = p.scratch[:0]
	p.reserve, p.left = nil, 0
}
