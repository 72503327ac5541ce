package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/coll/ipc"
	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// ipcCall is a collective in which the ranks of a node read and write each other's device memory.
// The comment of package ipc has the steps, and why they are enough.
type ipcCall struct {
	a *Args
	p *Program
	// The other ranks read source, and write target, in this rank's memory. Both may be empty.
	source, target Part
	sends, results []Part  // this rank's parts
	slices         []slice // of a tensor, by the rank that reduces them
	// hasWork tells whether a rank queues kernels or copies. It gives the same answers on all
	// ranks. queue queues the kernels or copies of this rank.
	hasWork func(m *ipcCall, rank int) bool
	queue   func(m *ipcCall) error

	mappings *ipc.Mappings
	records  []ipc.Record // by rank
	words    []int32      // send and receive buffer of an MPI_Allreduce
	// sources and targets have, by rank, the addresses in this process of that rank's source and
	// target. The address of an empty one is nil.
	sources, targets []unsafe.Pointer
	err              error // the reason why this rank cannot go on with ipc
}

// ipcAlgorithm returns the algorithm ipc of an operation, with ipcCall.hasWork and ipcCall.queue.
func ipcAlgorithm(enabled func(*Sig) bool, hasWork func(*ipcCall, int) bool, queue func(*ipcCall) error) Algorithm {
	open := func(s *Sig) bool { return s.Local && s.Agreed&IPC != 0 && enabled(s) }
	return Algorithm{Name: "ipc", Memory: deviceMemory, Enabled: open, polls: always, scratch: ipcScratch, build: func(a *Args, p *Program) error {
		if a.DeviceArgs.Peers.Refused() {
			return buildWithoutIPC(a, p)
		}
		m := &ipcCall{a: a, p: p, hasWork: hasWork, queue: queue, slices: slicesOnDevice(a, a.Count)}
		m.sends, m.results = sides(a)
		m.source, m.target, _ = exports(a)
		return m.build()
	}}
}

// ipcScratch returns the scratch memory of ipcCall.build and of the algorithm that may replace
// ipc.
func ipcScratch(a *Args) int64 {
	other := *a
	return pad(int64(a.Size)*ipc.Bytes) + pad(8) + Scratch(&other, a.Any&^IPC)
}

func (m *ipcCall) build() error {
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
	m.sources, m.targets = addresses[:a.Size], addresses[a.Size:]
	p.Do(func() error {
		// The others wait for this rank's record. If the rank cannot use ipc, the record says so.
		record := &m.records[a.Rank]
		if record.State, m.err = m.announce(record); record.State != ipc.Serves {
			*record = ipc.Record{State: record.State}
		}
		return nil
	})
	if a.NoMPI {
		gatherByBounce(a, p, inRows(block, a.Size, ipc.Bytes), 1)
	} else {
		c := p.Call()
		c.Fn, c.Comm, c.InPlace = mpi.FnAllgather, a.Comm, true
		c.RecvBuf, c.RecvCount, c.RecvType = block, ipc.Bytes, a.Lib.Byte()
	}
	p.Do(m.agree)
	return nil
}

// announce fills in this rank's record and records the event Ready, which stands for the tensors.
func (m *ipcCall) announce(r *ipc.Record) (ipc.State, error) {
	*r = ipc.Record{}
	da := m.a.DeviceArgs
	mappings, err := da.Peers.Mappings(da.Device)
	if err != nil {
		return ipc.Never, err
	}
	m.mappings = mappings
	if err := da.Device.StreamWait(da.Device.Comm, da.Ready); err != nil {
		return ipc.Never, err
	}
	if err := da.Device.Record(mappings.Events.Ready, da.Device.Comm); err != nil {
		return ipc.Never, err
	}
	r.Ready, r.Done = mappings.Events.ReadyHandle, mappings.Events.DoneHandle
	state, err := m.export(&m.source, &r.Source)
	switch {
	case state != ipc.Serves:
	case m.target == m.source: // the operation is in place
		r.Target = r.Source
	default:
		state, err = m.export(&m.target, &r.Target)
	}
	return state, err
}

func (m *ipcCall) export(part *Part, to *ipc.Memory) (ipc.State, error) {
	if part.Count == 0 {
		return ipc.Serves, nil
	}
	at, err := cuda.Loaded().Where(part.Data)
	if err != nil {
		return ipc.Never, err
	}
	var ok bool
	switch *to, ok, err = m.mappings.Export(part.Data, part.Count*m.a.elem(), at); {
	case err != nil:
		return ipc.Never, err
	case !ok:
		return ipc.NotThese, nil
	}
	return ipc.Serves, nil
}

// agree goes on when the records of all ranks are there.
func (m *ipcCall) agree() error {
	state := ipc.Serves
	for i := range m.records {
		state = min(state, m.records[i].State)
	}
	peers := m.a.DeviceArgs.Peers
	if state != ipc.Serves {
		if state == ipc.Never {
			peers.Refuse(ipc.Why(m.err))
		}
		return buildWithoutIPC(m.a, m.p)
	}
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&m.records[0])), int64(len(m.records))*ipc.Bytes)
	if peers.Agreed(raw) {
		return m.perform(m.reach())
	}
	m.err = m.reach()
	all := minOverRanks(m.a, m.p, m.words, m.err == nil, 0)
	m.p.Do(func() error {
		if *all == 0 {
			peers.Refuse(ipc.Why(m.err))
			return buildWithoutIPC(m.a, m.p)
		}
		peers.Agree(raw)
		return m.perform(nil)
	})
	return nil
}

// reach maps the memory and opens the events that the other ranks have named.
func (m *ipcCall) reach() error {
	for r := range m.records {
		if r == m.a.Rank {
			if m.source.Count > 0 {
				m.sources[r] = m.source.Data
			}
			if m.target.Count > 0 {
				m.targets[r] = m.target.Data
			}
			continue
		}
		theirs := &m.records[r]
		if source, target := exported(m.a, r); !theirs.Source.Holds(source*m.a.elem()) || !theirs.Target.Holds(target*m.a.elem()) {
			return m.a.notAsAgreed(r)
		}
		var err error
		if m.sources[r], err = m.mappings.Import(r, &theirs.Source); err != nil {
			return err
		}
		if m.targets[r], err = m.mappings.Import(r, &theirs.Target); err != nil {
			return err
		}
		for _, h := range []*ipc.Handle{&theirs.Ready, &theirs.Done} {
			if _, err := m.mappings.Event(r, h); err != nil {
				return err
			}
		}
	}
	return nil
}

// exported returns how many elements of rank r's memory the other ranks read, and how many they write.
func exported(a *Args, r int) (source, target int64) {
	t := a.Trait()
	switch {
	case !t.Gives.Includes(a.Root, r):
	case t.Send.PerRank():
		source = a.shareBegin(a.Size)
	default:
		source = a.shareCount(r)
	}
	if t.Reduces && t.Shares == op.NoShares && t.WritesRecv(a.Root, r) {
		target = a.Count
	}
	return source, target
}

// perform queues this rank's kernel or copies, unless this rank has failed already. It goes on when
// all ranks have queued theirs. A rank that has failed takes part in the MPI_Allreduce too, because
// the other ranks wait there. The result tells them of the failure.
func (m *ipcCall) perform(err error) error {
	if err == nil && m.hasWork(m, m.a.Rank) {
		err = m.queueWork()
	}
	failed := minOverRanks(m.a, m.p, m.words, err == nil, int32(m.a.Rank))
	m.p.Do(func() error {
		if err == nil && int(*failed) < m.a.Size {
			err = peerDeviceError(m.a, *failed)
		}
		if err == nil {
			return m.finish()
		}
		return m.settle(err)
	})
	return nil
}

// settle ends a collective that failed. It waits until the work that the other ranks had queued is
// over, because the caller may then free the tensors to which that work writes.
func (m *ipcCall) settle(failed error) error {
	if m.finish() != nil { // the context is broken, so waiting is impossible
		return failed
	}
	m.p.Settle()
	da := m.a.DeviceArgs
	m.p.Until(func() (bool, error) {
		if over, err := da.Device.Query(da.Tail); !over && err == nil {
			return false, nil
		}
		return true, failed
	})
	return nil
}

func (m *ipcCall) queueWork() error {
	d := m.a.DeviceArgs.Device
	for r := range m.records {
		if theirs := &m.records[r]; theirs.Source.Size > 0 || theirs.Target.Size > 0 {
			if err := m.wait(r, &theirs.Ready); err != nil {
				return err
			}
		}
	}
	if err := m.queue(m); err != nil {
		return err
	}
	return d.Record(m.mappings.Events.Done, d.Comm)
}

// finish makes the stream wait for the ranks that use this rank's memory.
func (m *ipcCall) finish() error {
	if m.source.Count > 0 || m.target.Count > 0 {
		for r := range m.records {
			if m.hasWork(m, r) {
				if err := m.wait(r, &m.records[r].Done); err != nil {
					return err
				}
			}
		}
	}
	return m.a.DeviceArgs.end(m.a.DeviceArgs.Device.Comm)
}

// wait makes the stream wait for an event of another rank. An event of this rank needs no wait.
func (m *ipcCall) wait(rank int, h *ipc.Handle) error {
	if rank == m.a.Rank {
		return nil
	}
	e, err := m.mappings.Event(rank, h)
	if err != nil {
		return err
	}
	d := m.a.DeviceArgs.Device
	return d.StreamWait(d.Comm, e)
}

// reduce queues the reduction, in rank order, of elements [from, from+count) of all sources. It
// writes the result to every address in to.
func (m *ipcCall) reduce(from, count int64, to ...unsafe.Pointer) error {
	a := m.a
	args := cuda.ReduceArgs{Count: count, NSrc: int64(a.Size), NDst: int64(len(to))}
	for i, source := range m.sources {
		args.Src[i], args.Scale[i] = uint64(uintptr(a.at(source, from))), a.Scale
	}
	for i, dst := range to {
		args.Dst[i] = uint64(uintptr(dst))
	}
	return a.DeviceArgs.Device.Reduce(&args, a.DType, a.Reduce, a.DeviceArgs.Device.Comm)
}

// pull queues a copy into the part to. It reads the source of a rank, from element from on.
func (m *ipcCall) pull(to Part, rank int, from int64) error {
	if to.Count == 0 {
		return nil
	}
	src := m.a.at(m.sources[rank], from)
	if src == to.Data {
		return nil
	}
	d := m.a.DeviceArgs.Device
	return d.Copy(to.Data, src, to.Count*m.a.elem(), d.Comm)
}

// buildWithoutIPC builds the collective with the first algorithm that serves it without ipc.
func buildWithoutIPC(a *Args, p *Program) error {
	other := *a
	other.Agreed &^= IPC
	alg, err := Choose(&other.Sig)
	if err == nil {
		return alg.build(&other, p)
	}
	if why := a.DeviceArgs.Peers.Refusal(); why != "" {
		return status.New(status.CodeOf(err), "%v. ipc does not work in this group: %s", err, why)
	}
	return err
}
