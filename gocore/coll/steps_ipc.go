package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/coll/ipc"
	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// mapped is a collective in which the ranks of a node reach into each other's device
// memory. The comment of package ipc has the steps and why they are enough.
type mapped struct {
	a *Args
	p *Program
	// give is what the others read of this rank's memory, take what they write; both may
	// be empty.
	give, take Part
	// works tells whether a rank queues something, queue does it for this one. works
	// answers the same on all ranks.
	works func(rank int) bool
	queue func(m *mapped) error

	side    *ipc.Side
	records []ipc.Record // by rank
	words   []int32      // what goes into and comes out of MPI_Allreduce
	// gives and takes are the addresses, here, of what the ranks give and take; nil where
	// one has nothing.
	gives, takes []unsafe.Pointer
	err          error // why this rank cannot
}

// overIPC makes the algorithm ipc of an operation. plan says who works and how.
func overIPC(enabled func(*Sig) bool, plan func(*Args) (works func(rank int) bool, queue func(*mapped) error)) Algorithm {
	open := func(s *Sig) bool { return onDevice(s) && s.Local && s.Agreed&IPC != 0 && enabled(s) }
	return Algorithm{Name: "ipc", Enabled: open, Polls: always, Scratch: (*Args).mappedScratch, Build: func(a *Args, p *Program) error {
		if a.Place.Peers.Refused() {
			return a.exceptIPC(p)
		}
		m := &mapped{a: a, p: p}
		m.works, m.queue = plan(a)
		m.give, m.take, _ = a.exports()
		return m.build()
	}}
}

// mappedScratch is the scratch memory of mapped.build, and of the way that comes next.
func (a *Args) mappedScratch() int64 {
	other := *a
	return pad(int64(a.Size)*ipc.Bytes) + pad(8) + Scratch(&other, a.Any&^IPC)
}

// summed says that the kernels can reduce this, over so many ranks.
func summed(s *Sig) bool { return s.Size <= cuda.MaxArrays && op.Defined(s.Reduce, s.DType) }

func (m *mapped) build() error {
	a, p := m.a, m.p
	block, err := p.Alloc(int64(a.Size) * ipc.Bytes)
	if err != nil {
		return err
	}
	m.records = unsafe.Slice((*ipc.Record)(block), a.Size)
	words, err := p.Alloc(8)
	if err != nil {
		return err
	}
	m.words = unsafe.Slice((*int32)(words), 2)
	addresses := make([]unsafe.Pointer, 2*a.Size)
	m.gives, m.takes = addresses[:a.Size], addresses[a.Size:]
	p.Do(func() error {
		// A rank that cannot says so in its record, for the others wait for it.
		own := &m.records[a.Rank]
		if own.State, m.err = m.announce(own); own.State != ipc.Serves {
			*own = ipc.Record{State: own.State}
		}
		return nil
	})
	c := p.Call()
	c.Fn, c.Comm, c.InPlace = mpi.FnAllgather, a.Comm, true
	c.RecvBuf, c.RecvCount, c.RecvType = block, ipc.Bytes, a.Lib.Byte()
	p.Do(m.agree)
	return nil
}

// announce writes this rank's record; its event Ready stands for the tensors.
func (m *mapped) announce(r *ipc.Record) (ipc.State, error) {
	*r = ipc.Record{}
	pl := m.a.Place
	side, err := pl.Peers.Side(pl.Device)
	if err != nil {
		return ipc.Never, err
	}
	m.side = side
	if err := pl.Device.StreamWait(pl.Device.Comm, pl.Ready); err != nil {
		return ipc.Never, err
	}
	if err := pl.Device.Record(side.Own.Ready, pl.Device.Comm); err != nil {
		return ipc.Never, err
	}
	r.Ready, r.Done = side.Own.ReadyHandle, side.Own.DoneHandle
	state, err := m.export(&m.give, &r.Give)
	switch {
	case state != ipc.Serves:
	case m.take == m.give: // in place
		r.Take = r.Give
	default:
		state, err = m.export(&m.take, &r.Take)
	}
	return state, err
}

func (m *mapped) export(part *Part, to *ipc.Memory) (ipc.State, error) {
	if part.Count == 0 {
		return ipc.Serves, nil
	}
	at, err := cuda.Loaded().Where(part.Data)
	if err != nil {
		return ipc.Never, err
	}
	var ok bool
	switch *to, ok, err = m.side.Export(part.Data, part.Count*m.a.elem(), at); {
	case err != nil:
		return ipc.Never, err
	case !ok:
		return ipc.Not, nil
	}
	return ipc.Serves, nil
}

// agree goes on when the records of all ranks are there.
func (m *mapped) agree() error {
	state := ipc.Serves
	for i := range m.records {
		state = min(state, m.records[i].State)
	}
	peers := m.a.Place.Peers
	if state != ipc.Serves {
		if state == ipc.Never {
			peers.Refuse(ipc.Why(m.err))
		}
		return m.a.exceptIPC(m.p)
	}
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&m.records[0])), int64(len(m.records))*ipc.Bytes)
	if peers.Agreed(raw) {
		return m.perform(m.reach())
	}
	m.err = m.reach()
	all := m.a.least(m.p, m.words, m.err == nil, 0)
	m.p.Do(func() error {
		if *all == 0 {
			peers.Refuse(ipc.Why(m.err))
			return m.a.exceptIPC(m.p)
		}
		peers.Agree(raw)
		return m.perform(nil)
	})
	return nil
}

// reach maps what the others have named.
func (m *mapped) reach() error {
	for r := range m.records {
		if r == m.a.Rank {
			if m.give.Count > 0 {
				m.gives[r] = m.give.Data
			}
			if m.take.Count > 0 {
				m.takes[r] = m.take.Data
			}
			continue
		}
		theirs := &m.records[r]
		var err error
		if m.gives[r], err = m.side.Import(r, &theirs.Give); err != nil {
			return err
		}
		if m.takes[r], err = m.side.Import(r, &theirs.Take); err != nil {
			return err
		}
		for _, h := range []*ipc.Handle{&theirs.Ready, &theirs.Done} {
			if _, err := m.side.Event(r, h); err != nil {
				return err
			}
		}
	}
	return nil
}

// perform queues this rank's part, unless it has failed already, and goes on when all have
// queued theirs. The others wait in MPI, so a rank that failed has to tell them.
func (m *mapped) perform(err error) error {
	if err == nil && m.works(m.a.Rank) {
		err = m.queueOwn()
	}
	failed := m.a.least(m.p, m.words, err == nil, int32(m.a.Rank))
	m.p.Do(func() error {
		if err == nil && int(*failed) < m.a.Size {
			err = m.a.failedOn(*failed)
		}
		if err == nil {
			return m.finish()
		}
		return m.settle(err)
	})
	return nil
}

// settle ends a collective that failed, when what the others had queued is over: the caller
// may free the tensors that they write to.
func (m *mapped) settle(failed error) error {
	if m.finish() != nil { // the context is broken: nothing more comes of it
		return failed
	}
	pl := m.a.Place
	m.p.Until(func() (bool, error) {
		if over, err := pl.Device.Query(pl.Tail); !over && err == nil {
			return false, nil
		}
		return true, failed
	})
	return nil
}

func (m *mapped) queueOwn() error {
	d := m.a.Place.Device
	for r := range m.records {
		if theirs := &m.records[r]; theirs.Give.Size > 0 || theirs.Take.Size > 0 {
			if err := m.wait(r, &theirs.Ready); err != nil {
				return err
			}
		}
	}
	if err := m.queue(m); err != nil {
		return err
	}
	return d.Record(m.side.Own.Done, d.Comm)
}

// finish makes the stream wait for those who use this rank's memory.
func (m *mapped) finish() error {
	if m.give.Count > 0 || m.take.Count > 0 {
		for r := range m.records {
			if m.works(r) {
				if err := m.wait(r, &m.records[r].Done); err != nil {
					return err
				}
			}
		}
	}
	return m.a.Place.end(m.a.Place.Device.Comm)
}

// wait makes the stream wait for an event of another rank; its own needs no wait.
func (m *mapped) wait(rank int, h *ipc.Handle) error {
	if rank == m.a.Rank {
		return nil
	}
	e, err := m.side.Event(rank, h)
	if err != nil {
		return err
	}
	d := m.a.Place.Device
	return d.StreamWait(d.Comm, e)
}

// reduce queues the reduction of elements [from, from+count) of what the ranks give, in the
// order of the ranks. to are the first elements of the results.
func (m *mapped) reduce(from, count int64, to ...unsafe.Pointer) error {
	a := m.a
	args := cuda.ReduceArgs{Count: count, NSrc: int64(a.Size), NDst: int64(len(to))}
	for i, give := range m.gives {
		args.Src[i], args.Scale[i] = uint64(uintptr(a.at(give, from))), a.Scale
	}
	for i, dst := range to {
		args.Dst[i] = uint64(uintptr(dst))
	}
	return a.Place.Device.Reduce(&args, a.DType, a.Reduce, a.Place.Device.Comm)
}

// pull queues the copy of a part out of what a rank gives, from its element from on.
func (m *mapped) pull(to Part, rank int, from int64) error {
	if to.Count == 0 {
		return nil
	}
	src := m.a.at(m.gives[rank], from)
	if src == to.Data {
		return nil
	}
	d := m.a.Place.Device
	return d.Copy(to.Data, src, to.Count*m.a.elem(), d.Comm)
}

// inTurn calls f for every rank, this one first and then its neighbour: not all read the
// same rank's memory at once.
func (m *mapped) inTurn(f func(rank int) error) error {
	for i := range m.a.Size {
		if err := f((m.a.Rank + i) % m.a.Size); err != nil {
			return err
		}
	}
	return nil
}

// exceptIPC builds the collective by the way that comes next.
func (a *Args) exceptIPC(p *Program) error {
	other := *a
	other.Agreed &^= IPC
	alg, err := Choose(&other.Sig)
	if err == nil {
		return alg.Build(&other, p)
	}
	if why := a.Place.Peers.Refusal(); why != "" {
		return status.New(status.CodeOf(err), "%v. ipc does not work in this group: %s", err, why)
	}
	return err
}
