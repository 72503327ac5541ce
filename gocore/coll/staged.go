package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// staged carries tensors of device memory through pinned host memory, in pieces, so that
// the copies of one piece go on beside the transfer of another. It serves every operation,
// every MPI and every kind of device memory, and ranks some of which have host tensors.
//
// Steps for piece k, whose blocks were those of piece k-3: wait until the device has copied
// that one out; it copies piece k in, beside the transfer of piece k-1; when it has, the
// host's own algorithm for the operation runs on the blocks; the device copies the result
// out. A rank whose tensors are the host's copies by itself. What is sent out of memory that a
// result is written to, other than in its place, is copied whole before. At the end an
// MPI_Allreduce of four bytes tells whether some rank's device has failed.
//
// Bytes moved a rank: S over the bus to the host and S back, beside what the host's
// algorithm moves, at the pace of the slower of the two.
var staged = Algorithm{Name: "staged", Enabled: func(s *Sig) bool {
	return onDevice(s) && s.Any&NotStaged == 0
}, Polls: always, Scratch: stagedScratch, Build: buildStaged}

// While one piece is transferred the one before is copied out and the one behind it in.
const lanes = 3

// lane is a pair of blocks with a piece in them.
type lane struct {
	send, recv *mem.Pinned
	in, out    cuda.Event // the last copy in and out that was queued; 0: none
}

// stager is a staged collective under way.
type stager struct {
	args   *Args
	p      *Program
	send   []row
	recv   []row
	host   Args // of the host's collective, but for its buffers
	count  int64
	piece  int64 // elements of a row in one piece
	lanes  [lanes]lane
	sums   bool        // the device adds up, not the host
	aside  lane        // what is sent, all of it, where results would be written over it
	parts  *mem.Pinned // where sums: what the ranks have sent for this one's share
	summed cuda.Event  // where sums: the last kernel
	// failed is what this rank's device said no to; it is not called again. words is room for
	// telling the others.
	failed error
	words  []int32
}

// inHostMemory returns the collective that the host carries out on blocks: the same but for the buffers,
// which the caller fills in, and for what was agreed on about devices.
func (a *Args) inHostMemory() Args {
	const device = Device | IPC | NotDirect | NotStaged | DeviceReduce
	host := *a
	host.Place, host.Agreed, host.Any = nil, a.Agreed&^device, a.Any&^device
	if a.Trait().Recv == op.Many {
		host.Code = op.AllReduce // whose block the tensors share
	}
	return host
}

// pieceOf is how many elements of a row of count make a piece.
func (a *Args) pieceOf(count int64) int64 {
	widest := int64(1) // rows of the operation's widest side, on any rank
	if a.Trait().Shares != op.NoShares {
		widest = int64(a.Size)
	}
	piece := max(1, a.Place.Chunk/(a.elem()*widest))
	return min((piece+sliceAlign-1)/sliceAlign*sliceAlign, max(1, count))
}

// stagedScratch is the scratch memory that the host's algorithm takes for one piece; for all of it
// where the shares may be found to differ. Blocks have no addresses yet: they are taken to overlap.
func stagedScratch(a *Args) (most int64) {
	t := a.Trait()
	host := a.inHostMemory()
	if t.Shares != op.NoShares {
		host.Send, host.Recv = a.Send, a.Recv
		if t.Send.Each() {
			host.Send = a.each(a.Send)
		}
		if t.Recv.Each() {
			host.Recv = a.each(a.Recv)
		}
		most = Scratch(&host, host.Any&^Even)
	}
	if !unevenly(&a.Sig) {
		host.Count = a.pieceOf(a.Count)
		block := func(parts []Part, each bool) []Part {
			if rows := len(a.rows(parts, each)); rows > 0 {
				return []Part{{Count: int64(rows) * host.Count}}
			}
			return nil
		}
		host.Send, host.Recv = block(a.Send, t.Send.Each()), block(a.Recv, t.Recv.Each())
		most = max(most, Scratch(&host, host.Any), a.listing(2))
	}
	return most + pad(8)
}

func buildStaged(a *Args, p *Program) error {
	s := &stager{args: a, p: p, host: a.inHostMemory(), count: a.Count}
	t := a.Trait()
	if t.Recv == op.Many {
		s.send, s.recv = oneRow(a.Send), oneRow(a.Recv)
	} else {
		s.send, s.recv = a.rows(a.Send, t.Send.Each()), a.rows(a.Recv, t.Recv.Each())
	}
	words, err := p.Alloc(8)
	if err != nil {
		return err
	}
	s.words = unsafe.Slice((*int32)(words), 2)
	p.AtEnd(s.close)
	p.Do(s.begin)
	return nil
}

// begin makes the copies come behind what the producing stream had queued.
func (s *stager) begin() error {
	a := s.args
	if d := a.Place.Device; d != nil {
		for _, stream := range []cuda.Stream{d.Out, d.In} {
			s.try(func() error { return d.StreamWait(stream, a.Place.Ready) })
		}
	}
	if unevenly(&a.Sig) {
		return s.whole()
	}
	if !a.separate() {
		return s.setAside()
	}
	return s.start()
}

// setAside copies all that is sent before the first result is written: a tensor that is filled shares its
// memory.
func (s *stager) setAside() error {
	a := s.args
	b, err := s.block(max(1, counts(a.Send)*a.elem()))
	if err != nil {
		return err
	}
	s.aside.send = b
	s.try(func() error {
		if err := s.copyIn(b, s.send, 0, s.count); err != nil {
			return err
		}
		return s.mark(&s.aside.in, s.stream(false))
	})
	at := b.Data
	for i := range s.send {
		s.send[i] = row{{&Part{Data: at, Count: s.count}, 0, s.count}}
		at = a.at(at, s.count)
	}
	s.await(&s.aside.in)
	s.p.Do(s.start)
	return nil
}

// start queues the first pieces in.
func (s *stager) start() error {
	a, t := s.args, s.host.Trait()
	// The kernels add what every rank gets, slice by slice.
	s.sums = a.Agreed&DeviceReduce != 0 && a.Size <= cuda.MaxArrays && t.Reduces && !t.Prefix && t.Gets == op.Everyone
	s.piece = a.pieceOf(s.count)
	for k := 0; k < lanes-1; k++ {
		if k == 0 || int64(k)*s.piece < s.count {
			if err := s.fill(k); err != nil {
				return err
			}
		}
	}
	s.transfer(0)
	return nil
}

func (s *stager) bounds(k int) (lo, hi int64) {
	lo = int64(k) * s.piece
	return lo, min(lo+s.piece, s.count)
}

// fill queues the copies of piece k into its lane's blocks, which nothing uses.
func (s *stager) fill(k int) error {
	ln := &s.lanes[k%lanes]
	lo, hi := s.bounds(k)
	elem := s.args.elem()
	var err error
	if ln.send == nil && len(s.send) > 0 {
		if ln.send, err = s.block(int64(len(s.send)) * s.piece * elem); err != nil {
			return err
		}
	}
	if ln.recv == nil && len(s.recv) > 0 {
		if ln.recv, err = s.block(int64(len(s.recv)) * s.piece * elem); err != nil {
			return err
		}
	}
	s.try(func() error {
		if len(s.send) > 0 {
			if err := s.copyIn(ln.send, s.send, lo, hi); err != nil {
				return err
			}
		}
		if s.args.ReadsRecv() && len(s.recv) > 0 {
			if err := s.copyIn(ln.recv, s.recv, lo, hi); err != nil {
				return err
			}
		}
		return s.mark(&ln.in, s.stream(false))
	})
	return nil
}

// try calls the device, unless a call before has failed. A rank that has failed goes on with
// what MPI has to do, whatever lies in its blocks: the others wait for it there, in calls that
// no deadline ends. What has become of it all ranks are told at the end.
func (s *stager) try(f func() error) {
	if s.failed == nil {
		s.failed = f()
	}
}

// verdict appends what ends the collective: the ranks tell each other whose device failed.
func (s *stager) verdict() {
	if s.args.Size == 1 {
		s.p.Do(func() error { return s.failed })
		return
	}
	first := s.args.least(s.p, s.words, s.failed == nil, int32(s.args.Rank))
	s.p.Do(func() error {
		if s.failed == nil && int(*first) < s.args.Size {
			return s.args.failedOn(*first)
		}
		return s.failed
	})
}

// transfer appends the steps that move piece k: they end by appending those of the next,
// so that a long tensor's steps and scratch memory do not pile up.
func (s *stager) transfer(k int) {
	ln, ahead := &s.lanes[k%lanes], k+lanes-1
	lo, hi := s.bounds(k)
	s.await(&ln.in)
	mark := s.p.mark()
	s.p.Do(func() error {
		work := s.onHost
		if s.sums {
			work = s.sumOnDevice
		}
		if err := work(block(ln.send, int64(len(s.send))*(hi-lo)), block(ln.recv, int64(len(s.recv))*(hi-lo)), hi-lo); err != nil {
			return err
		}
		s.p.Do(func() error {
			s.try(func() error { return s.drain(ln, lo, hi) })
			return nil
		})
		if int64(ahead)*s.piece < s.count {
			// Its lane is that of the piece before this one, which the device has been
			// reading while this one was transferred.
			s.await(&s.lanes[ahead%lanes].out)
			s.p.Do(func() error { return s.fill(ahead) })
		}
		s.p.Do(func() error {
			s.p.rewind(mark)
			if int64(k+1)*s.piece < s.count {
				s.transfer(k + 1)
			} else {
				s.verdict()
			}
			return nil
		})
		return nil
	})
}

// onHost appends the host's algorithm for one piece.
func (s *stager) onHost(send, recv []Part, count int64) error {
	host := s.host
	host.Send, host.Recv, host.Count = send, recv, count
	alg, err := Choose(&host.Sig)
	if err != nil {
		return err
	}
	return alg.Build(&host, s.p)
}

func block(b *mem.Pinned, elements int64) []Part {
	if b == nil {
		return nil
	}
	return []Part{{Data: b.Data, Count: elements}}
}

// drain queues the copies of the result out of the blocks.
func (s *stager) drain(ln *lane, lo, hi int64) error {
	if !s.args.WritesRecv() {
		return nil
	}
	if err := s.copyOut(ln.recv, s.recv, lo, hi); err != nil {
		return err
	}
	if err := s.mark(&ln.out, s.stream(true)); err != nil {
		return err
	}
	if hi == s.count && s.args.Place.Device != nil && s.onDevice(s.recv) {
		return s.args.Place.end(s.args.Place.Device.In)
	}
	return nil
}

// close gives blocks and events back. The last copies out may still read the blocks, and
// after an error copies in may still write them.
func (s *stager) close() {
	d := s.args.Place.Device
	for i := range lanes + 1 {
		ln := &s.aside
		if i < lanes {
			ln = &s.lanes[i]
		}
		if (s.failed != nil || s.p.err != nil) && ln.in != 0 {
			_ = d.StreamWait(d.In, ln.in)
		}
		for _, b := range []*mem.Pinned{ln.send, ln.recv} {
			switch {
			case b == nil:
			case d == nil:
				mem.Free(b.Data)
			default:
				mem.PutPinned(b, d.In)
			}
		}
		for _, e := range []cuda.Event{ln.in, ln.out} {
			if e != 0 {
				d.PutEvent(e)
			}
		}
	}
	if s.parts != nil {
		mem.PutPinned(s.parts, d.Comm)
	}
	if s.summed != 0 {
		d.PutEvent(s.summed)
	}
}

// whole stages all of an uneven operation at once: the ranks do not know the lengths
// of each other's shares, so that pieces would not meet.
func (s *stager) whole() error {
	a, ln := s.args, &s.lanes[0]
	sides := []struct {
		rows  []row
		block **mem.Pinned
		parts []Part
		in    bool
	}{{s.send, &ln.send, nil, true}, {s.recv, &ln.recv, nil, a.ReadsRecv()}}
	for i := range sides {
		side := &sides[i]
		total := int64(0)
		for _, r := range side.rows {
			total += r[0].count
		}
		if len(side.rows) == 0 {
			continue
		}
		b, err := s.block(max(1, total*a.elem()))
		if err != nil {
			return err
		}
		*side.block = b
		at := b.Data
		for _, r := range side.rows {
			side.parts = append(side.parts, Part{Data: at, Count: r[0].count})
			at = a.at(at, r[0].count)
		}
		if side.in {
			s.try(func() error { return s.copyIn(b, side.rows, 0, total) })
		}
	}
	s.try(func() error { return s.mark(&ln.in, s.stream(false)) })
	s.await(&ln.in)
	s.count = counts(a.Recv)
	if err := s.onHost(sides[0].parts, sides[1].parts, a.Count); err != nil {
		return err
	}
	s.p.Do(func() error {
		s.try(func() error { return s.drain(ln, 0, s.count) })
		s.verdict()
		return nil
	})
	return nil
}
