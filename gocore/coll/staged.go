package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// staged carries tensors of device memory through pinned host memory, in pieces, so that one piece
// is copied while another is transferred. It serves every operation, every MPI and every kind of
// device memory. Some of the ranks may have host tensors.
//
// There are three lanes of blocks, so piece k uses the blocks of piece k-3. Steps for piece k:
//
//  1. Wait until the device has copied the result of piece k-3 out of the blocks.
//  2. The device copies piece k into the blocks, while piece k-1 is transferred.
//  3. When that copy is over, the host's algorithm for the operation runs on the blocks.
//  4. The device copies the result out of the blocks.
//
// A rank with host tensors does its copies itself. If a result would be written over memory that is
// still to be sent, the whole send side is first copied to another block. At the end an
// MPI_Allreduce of four bytes tells whether a rank's device has failed.
//
// Bytes moved by each rank: S over the bus to the host and S back, and what the host's algorithm
// moves. The copies and the transfers overlap, so the slower of the two sets the pace.
var staged = Algorithm{Name: "staged", Memory: deviceMemory, Enabled: func(s *Sig) bool {
	return s.Any&NotStaged == 0
}, polls: always, scratch: stagedScratch, build: buildStaged}

// lanes is the number of pieces in flight: while one piece is transferred, the piece before is
// copied out and the piece after it is copied in.
const lanes = 3

// lane is a pair of blocks with one piece in them.
type lane struct {
	send, recv *mem.Pinned
	in, out    cuda.Event // the last copy in and the last copy out that was queued; 0: none
}

// stager is a staged collective under way.
type stager struct {
	args          *Args
	p             *Program
	send          []row
	recv          []row
	host          Args // the host's collective, without its buffers
	count         int64
	piece         int64 // elements of a row in one piece
	lanes         [lanes]lane
	deviceReduces bool        // the device adds up, not the host
	sendCopy      lane        // a copy of all that is sent, if a result would be written over it
	gathered      *mem.Pinned // if deviceReduces: the inputs of all ranks for this rank's slice
	reduced       cuda.Event  // if deviceReduces: the last kernel
	// failed is the first error of this rank's device, which is not called again after it. words is
	// room for telling the other ranks.
	failed error
	words  []int32
}

// inHostMemory returns the collective that the host carries out on blocks. It has no flags about
// devices. The caller fills in the buffers.
func (a *Args) inHostMemory() Args {
	const device = Device | IPC | NotDirect | NotStaged | DeviceReduce | ofSlot
	host := *a
	host.DeviceArgs, host.Agreed, host.Any = nil, a.Agreed&^device, a.Any&^device
	if a.Trait().Recv == op.Many {
		host.Code = op.AllReduce // the tensors share one block
	}
	return host
}

// pieceOf returns how many elements of a row, which has count of them, make a piece.
func (a *Args) pieceOf(count int64) int64 {
	widest := int64(1) // the number of rows of the operation's widest side, on any rank
	if a.Trait().Shares != op.NoShares {
		widest = int64(a.Size)
	}
	piece := max(1, a.DeviceArgs.PieceBytes/(a.elem()*widest))
	return min((piece+sliceAlign-1)/sliceAlign*sliceAlign, max(1, count))
}

// stagedScratch returns the scratch memory of the host's algorithm for one piece, or for the whole
// tensors if the shares may turn out to differ. Blocks have no addresses yet, so they count as
// overlapping.
func stagedScratch(a *Args) (most int64) {
	t := a.Trait()
	host := a.inHostMemory()
	if t.Shares != op.NoShares {
		host.Send, host.Recv = a.Send, a.Recv
		if t.Send.PerRank() {
			host.Send = a.perRank(a.Send)
		}
		if t.Recv.PerRank() {
			host.Recv = a.perRank(a.Recv)
		}
		most = Scratch(&host, host.Any&^Even)
	}
	if !unevenShares(&a.Sig) {
		host.Count = a.pieceOf(a.Count)
		block := func(parts []Part, perRank bool) []Part {
			if rows := len(a.rows(parts, perRank)); rows > 0 {
				return []Part{{Count: int64(rows) * host.Count}}
			}
			return nil
		}
		host.Send, host.Recv = block(a.Send, t.Send.PerRank()), block(a.Recv, t.Recv.PerRank())
		most = max(most, Scratch(&host, host.Any), a.int32sScratch(2))
	}
	return most + pad(8)
}

func buildStaged(a *Args, p *Program) error {
	s := &stager{args: a, p: p, host: a.inHostMemory(), count: a.Count}
	t := a.Trait()
	if t.Recv == op.Many {
		s.send, s.recv = oneRow(a.Send), oneRow(a.Recv)
	} else {
		s.send, s.recv = a.rows(a.Send, t.Send.PerRank()), a.rows(a.Recv, t.Recv.PerRank())
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

// begin queues the copies behind what the producing stream had queued, and starts.
func (s *stager) begin() error {
	a := s.args
	if d := a.DeviceArgs.Device; d != nil {
		for _, stream := range []cuda.Stream{d.Out, d.In} {
			s.try(func() error { return d.StreamWait(stream, a.DeviceArgs.Ready) })
		}
	}
	if unevenShares(&a.Sig) {
		return s.stageWhole()
	}
	if !a.separate() {
		return s.copySend()
	}
	return s.start()
}

// copySend copies all that is sent before the first result is written, because a tensor that
// receives shares memory with one that is sent.
func (s *stager) copySend() error {
	a := s.args
	b, err := s.block(max(1, totalCount(a.Send)*a.elem()))
	if err != nil {
		return err
	}
	s.sendCopy.send = b
	s.try(func() error {
		if err := s.copyIn(b, s.send, 0, s.count); err != nil {
			return err
		}
		return s.mark(&s.sendCopy.in, s.stream(false))
	})
	at := b.Data
	for i := range s.send {
		s.send[i] = row{{&Part{Data: at, Count: s.count}, 0, s.count}}
		at = a.at(at, s.count)
	}
	s.await(&s.sendCopy.in)
	s.p.Do(s.start)
	return nil
}

// start queues the copies of the first pieces into their blocks, and appends the steps of piece 0.
func (s *stager) start() error {
	a, t := s.args, s.host.Trait()
	// The kernels serve operations whose result all ranks get, slice by slice.
	s.deviceReduces = a.Agreed&DeviceReduce != 0 && a.Size <= cuda.MaxArrays && t.Reduces && !t.Prefix && t.Gets == op.Everyone
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

// fill queues the copies of piece k into its lane's blocks, which nothing uses at this time.
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

// try calls the device, unless an earlier call has failed. A rank whose device has failed goes on
// with its MPI calls, whatever its blocks contain, because the other ranks wait for it there. At the
// end verdict tells all ranks.
func (s *stager) try(f func() error) {
	if s.failed == nil {
		s.failed = f()
	}
}

// verdict appends the last steps of the collective: the ranks agree whether a device has failed.
func (s *stager) verdict() {
	if s.args.Size == 1 {
		s.p.Do(func() error { return s.failed })
		return
	}
	first := s.args.minOverRanks(s.p, s.words, s.failed == nil, int32(s.args.Rank))
	s.p.Do(func() error {
		if s.failed == nil && int(*first) < s.args.Size {
			return s.args.peerDeviceError(*first)
		}
		return s.failed
	})
}

// transfer appends the steps that move piece k. The last of them appends the steps of the next
// piece, so that the steps and scratch memory of a long tensor do not pile up.
func (s *stager) transfer(k int) {
	ln, ahead := &s.lanes[k%lanes], k+lanes-1
	lo, hi := s.bounds(k)
	s.await(&ln.in)
	mark := s.p.mark()
	s.p.Do(func() error {
		work := s.onHost
		if s.deviceReduces {
			work = func(send, recv []Part, count int64) error {
				return s.reduceOnDevice(send, recv, count, ln.recv.Locked)
			}
		}
		if err := work(block(ln.send, int64(len(s.send))*(hi-lo)), block(ln.recv, int64(len(s.recv))*(hi-lo)), hi-lo); err != nil {
			return err
		}
		s.p.Do(func() error {
			s.try(func() error { return s.drain(ln, lo, hi) })
			return nil
		})
		if int64(ahead)*s.piece < s.count {
			// Piece `ahead` uses the lane of piece k-1. The device was copying that piece out
			// while piece k was transferred.
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
	return alg.build(&host, s.p)
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
	if hi == s.count && s.args.DeviceArgs.Device != nil && s.onDevice(s.recv) {
		return s.args.DeviceArgs.end(s.args.DeviceArgs.Device.In)
	}
	return nil
}

// close gives blocks and events back. The last copies out may still read the blocks, and after an
// error copies in may still write them.
func (s *stager) close() {
	d := s.args.DeviceArgs.Device
	for i := range lanes + 1 {
		ln := &s.sendCopy
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
	if s.gathered != nil {
		mem.PutPinned(s.gathered, d.Comm)
	}
	if s.reduced != 0 {
		d.PutEvent(s.reduced)
	}
}

// stageWhole stages an uneven operation in one piece. Pieces of shares that differ in length would not
// match, and in an all_to_all the ranks do not even know the lengths of each other's shares.
func (s *stager) stageWhole() error {
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
	s.count = totalCount(a.Recv)
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
