package coll

import (
	"slices"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// staged carries tensors through blocks of host memory, in pieces, so that one piece is copied while another is
// transferred, and a long tensor takes no more memory than a short one. It serves every operation and every MPI, for
// tensors in device memory and for tensors in host memory that are not contiguous. Some of the ranks may have contiguous
// tensors in host memory.
//
// If some rank has tensors in device memory, its blocks are pinned, and there are three lanes of them: piece k uses the
// blocks of piece k-3. Steps for piece k:
//
//  1. Wait until the device has copied the result of piece k-3 out of the blocks.
//  2. The device copies piece k into the blocks, while piece k-1 is transferred.
//  3. When that copy is over, the host's algorithm for the operation runs on the blocks.
//  4. The device copies the result out of the blocks.
//
// At the end an MPI_Allreduce of four bytes tells then whether a rank's device has failed. A rank with host tensors does
// its copies itself.
//
// If all tensors are in host memory there are two lanes. While the host's algorithm has piece k under way, this rank
// copies the result of piece k-1 out of its blocks, and piece k+1 into them. A tensor that is contiguous, and is not cut
// into shares, needs no blocks.
//
// If a result would be written over memory that is still to be sent, the whole send side is first copied to another
// block. Of shares that differ in length, piece k has what each has of the elements of piece k.
//
// Bytes moved by each rank: S into the blocks and S out of them, and what the host's algorithm moves. Between a device
// and the host the copies and the transfers overlap, so the slower of the two sets the pace.
var staged = Algorithm{Name: "staged", Memory: deviceMemory | stridedMemory, Enabled: func(s *Sig) bool {
	return s.Any&NotStaged == 0 || s.Any&Device == 0
}, polls: stagedPolls, scratch: stagedScratch, build: buildStaged}

// PieceBytes is the length of a piece, in bytes of all shares of a rank, if all tensors are in host memory. A call
// whose tensors are not contiguous, and have more bytes in all, is done in pieces.
const PieceBytes = 8 << 20

// lanes is the most pieces in flight: while one piece is transferred, the device copies the piece before out and the
// piece after it in. hostLanes is the number if no rank has a device: the two copies come one after the other.
const (
	lanes     = 3
	hostLanes = 2
)

// lane is a pair of blocks with one piece in them.
type lane struct {
	send, recv *mem.Pinned
	in, out    cuda.Event // the last copy in and the last copy out that was queued; 0: none
}

// stager is a staged collective under way.
type stager struct {
	args          *Args
	p             *Program
	device        *cuda.Device // nil: this rank's tensors are in host memory
	send          side
	recv          side
	host          Args  // the host's collective, without its buffers
	count         int64 // elements of the longest row
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

// inHostMemory returns the collective that the host carries out on blocks. It has no flags about where tensors are. The
// caller fills in the buffers.
func inHostMemory(a *Args) Args {
	host := *a
	host.Sig, host.DeviceArgs = a.Sig.inHostMemory(), nil
	return host
}

func (s *Sig) inHostMemory() Sig {
	const place = Device | IPC | NotDirect | NotStaged | DeviceReduce | Piecewise
	code := s.Code
	if s.Trait().Recv == op.Many {
		code = op.AllReduce // the tensors share one block
	}
	host := s.inside(code)
	host.Agreed, host.Any = host.Agreed&^place, host.Any&^place
	return host
}

// pieceBytesOf returns the bytes of a piece, which are the same on all ranks.
func pieceBytesOf(a *Args) int64 {
	if a.DeviceArgs != nil {
		return a.DeviceArgs.PieceBytes
	}
	return PieceBytes
}

// pieceOf returns how many elements of a row, which has count of them, make a piece of so many bytes.
func (s *Sig) pieceOf(count, bytes int64) int64 {
	widest := int64(1) // the number of rows of the operation's widest side, on any rank
	switch t := s.Trait(); {
	case t.Shares != op.NoShares:
		widest = int64(s.Size)
	case t.Prefix:
		widest = 4 // a scan of MPICH over nodes takes up to 7 times what it is given (measured)
	}
	piece := max(1, bytes/(int64(s.DType.Size())*widest))
	return min((piece+sliceAlign-1)/sliceAlign*sliceAlign, max(1, count))
}

// stagedPolls tells whether the steps of some piece have to be polled.
func stagedPolls(s *Sig) bool {
	if s.Any&Device != 0 || unevenShares(s) {
		return true
	}
	host := s.inHostMemory()
	piece := s.pieceOf(s.Count, PieceBytes)
	for _, count := range [2]int64{piece, s.Count % piece} {
		host.Count = count
		if alg, err := Choose(&host); count > 0 && err == nil && alg.polled(&host) {
			return true
		}
	}
	return false
}

// newStager describes the sides.
func newStager(a *Args, p *Program) *stager {
	s := &stager{args: a, p: p, host: inHostMemory(a)}
	if a.DeviceArgs != nil {
		s.device = a.DeviceArgs.Device
	}
	t := a.Trait()
	if t.Recv == op.Many {
		s.send.rows, s.recv.rows = oneRow(a.Send), oneRow(a.Recv)
	} else {
		s.send.rows, s.recv.rows = rows(a, a.Send, t.Send.PerRank()), rows(a, a.Recv, t.Recv.PerRank())
	}
	for _, sd := range []*side{&s.send, &s.recv} {
		sd.bare = s.device == nil && sd.isBare()
		for _, r := range sd.rows {
			s.count = max(s.count, r.len())
		}
	}
	s.piece = a.pieceOf(s.count, pieceBytesOf(a))
	return s
}

// stagedScratch returns the scratch memory of the host's algorithm for one piece, and of the blocks if they are not
// pinned. Blocks have no addresses yet, so they count as overlapping.
func stagedScratch(a *Args) (most int64) {
	s := newStager(a, nil)
	host := &s.host
	t := a.Trait()
	pieces := [2][]Part{}
	for i, sd := range []*side{&s.send, &s.recv} {
		pieces[i] = s.partsOf(&mem.Pinned{}, sd, 0, s.piece, unevenShares(&a.Sig))
	}
	host.Send, host.Recv = pieces[0], pieces[1]
	most = int32sScratch(a, 2)
	switch {
	case !unevenShares(&a.Sig):
		host.Count = s.piece
		most = max(most, Scratch(host, host.Any))
	case t.Shares == op.Pairwise:
		most = lengthsScratch(a)
	default:
		host.Count = 0
		most = max(most, Scratch(host, host.Any&^Even))
		even := *host // a piece in which all shares have the same length
		even.Send, even.Recv = s.partsOf(&mem.Pinned{}, &s.send, 0, s.piece, false), s.partsOf(&mem.Pinned{}, &s.recv, 0, s.piece, false)
		even.Count = s.piece
		most = max(most, Scratch(&even, host.Any|Even))
	}
	if s.device == nil {
		for range s.lanesUsed() {
			most += s.blockScratch(&s.send) + s.blockScratch(&s.recv)
		}
		if !s.separate() {
			most += a.scratch(totalCount(a.Send))
		}
	}
	return most + pad(8)
}

// blockScratch returns what the block of a side takes.
func (s *stager) blockScratch(sd *side) int64 {
	if len(sd.rows) == 0 || sd.bare {
		return 0
	}
	return s.args.scratch(sd.within(0, s.piece))
}

// lanesUsed returns how many lanes the pieces use.
func (s *stager) lanesUsed() int {
	if s.args.NoMPI && unevenPairs(&s.args.Sig) { // the other ranks may have more pieces
		return s.mostLanes()
	}
	return int(min(int64(s.mostLanes()), max(1, (s.count+s.piece-1)/s.piece)))
}

func buildStaged(a *Args, p *Program) error {
	s := newStager(a, p)
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
	if d := s.device; d != nil {
		for _, stream := range []cuda.Stream{d.Out, d.In} {
			s.try(func() error { return d.StreamWait(stream, a.DeviceArgs.Ready) })
		}
	}
	if a.Trait().Shares == op.Pairwise && unevenShares(&a.Sig) {
		if err := s.agreeOnLengths(); err != nil {
			return err
		}
	}
	if !s.separate() {
		s.p.Do(s.copySend)
	} else {
		s.p.Do(s.start)
	}
	return nil
}

// agreeOnLengths appends the exchange of the lengths of all shares. Without MPI all ranks take part in the transfer of every piece, so
// that all have as many as the rank with the longest share.
func (s *stager) agreeOnLengths() error {
	a := s.args
	if !a.NoMPI {
		return agreeOnLengths(a, s.p, s.send.lengths(), s.recv.lengths())
	}
	table, err := addPairs(a, s.p, s.send.lengths(), s.recv.lengths())
	if err == nil {
		s.p.Do(func() error {
			s.count = table.longest()
			s.piece = a.pieceOf(s.count, pieceBytesOf(a))
			return nil
		})
	}
	return err
}

// copySend copies all that is sent before the first result is written, because a tensor that
// receives shares memory with one that is sent.
func (s *stager) copySend() error {
	a := s.args
	b, err := s.block(max(1, totalCount(a.Send)*a.elem()))
	if err != nil {
		return err
	}
	s.sendCopy.send, s.send.bare = b, false
	s.try(func() error {
		if err := s.copyRows(b, &s.send, 0, s.count, false); err != nil {
			return err
		}
		return s.mark(&s.sendCopy.in, s.stream(false))
	})
	at := b.Data
	for i, r := range s.send.rows {
		n := r.len()
		s.send.rows[i] = row{{&Part{Data: at, Count: n}, 0, n}}
		at = a.at(at, n)
	}
	s.send.bare = s.device == nil && s.send.isBare()
	s.await(&s.sendCopy.in)
	s.p.Do(s.start)
	return nil
}

// start queues the copies of the first pieces into their blocks, and appends the steps of piece 0.
func (s *stager) start() error {
	a, t := s.args, s.host.Trait()
	if s.device == nil {
		for k := range s.lanesUsed() {
			if err := s.blocks(&s.lanes[k]); err != nil {
				return err
			}
		}
	}
	if a.Any&Device == 0 {
		s.try(func() error { return s.copyPiece(0) })
		s.transferOnHost(0)
		return nil
	}
	// The kernels serve operations whose result all ranks get, slice by slice.
	s.deviceReduces = a.Agreed&DeviceReduce != 0 && a.Size <= cuda.MaxArrays && t.Reduces && !t.Prefix && t.Gets == op.Everyone && !unevenShares(&a.Sig)
	for k := range lanes - 1 {
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

// blocks takes the blocks of a lane.
func (s *stager) blocks(ln *lane) (err error) {
	for _, sd := range []struct {
		side  *side
		block **mem.Pinned
	}{{&s.send, &ln.send}, {&s.recv, &ln.recv}} {
		if *sd.block != nil || len(sd.side.rows) == 0 || sd.side.bare {
			continue
		}
		if *sd.block, err = s.block(max(1, sd.side.within(0, s.piece)*s.args.elem())); err != nil {
			return err
		}
	}
	return nil
}

// fill queues the copies of piece k into its lane's blocks, which nothing uses at this time.
func (s *stager) fill(k int) error {
	ln := s.lane(k)
	if err := s.blocks(ln); err != nil {
		return err
	}
	s.try(func() error {
		if err := s.copyPiece(k); err != nil {
			return err
		}
		return s.mark(&ln.in, s.stream(false))
	})
	return nil
}

// copyPiece copies piece k into its blocks.
func (s *stager) copyPiece(k int) error {
	ln := s.lane(k)
	lo, hi := s.bounds(k)
	if err := s.copyRows(ln.send, &s.send, lo, hi, false); err != nil || !s.args.ReadsRecv() {
		return err
	}
	return s.copyRows(ln.recv, &s.recv, lo, hi, false)
}

func (s *stager) lane(k int) *lane { return &s.lanes[k%s.mostLanes()] }

func (s *stager) mostLanes() int {
	if s.args.Any&Device == 0 {
		return hostLanes
	}
	return lanes
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
	if s.args.Size == 1 || s.args.Any&Device == 0 {
		s.p.Do(func() error { return s.failed })
		return
	}
	first := minOverRanks(s.args, s.p, s.words, s.failed == nil, int32(s.args.Rank))
	s.p.Do(func() error {
		if s.failed == nil && int(*first) < s.args.Size {
			return peerDeviceError(s.args, *first)
		}
		return s.failed
	})
}

// transferOnHost appends the steps that move piece k, whose input is in its blocks. While they are under way, the result
// of the piece before is copied out of its blocks, and the piece behind into the same ones.
func (s *stager) transferOnHost(k int) {
	mark := s.p.mark()
	lo, hi := s.bounds(k)
	last := hi >= s.count
	s.p.Meanwhile(func() {
		s.try(func() error {
			if k > 0 {
				if err := s.copyResult(k - 1); err != nil {
					return err
				}
			}
			if !last {
				return s.copyPiece(k + 1)
			}
			return nil
		})
	})
	s.p.Do(func() error {
		if err := s.onHost(s.lane(k), lo, hi); err != nil {
			return err
		}
		s.p.Do(func() error {
			s.p.catchUp()
			s.p.rewind(mark)
			if !last {
				s.transferOnHost(k + 1)
				return nil
			}
			s.try(func() error { return s.copyResult(k) })
			s.verdict()
			return nil
		})
		return nil
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
		var err error
		if s.deviceReduces {
			err = s.reduceOnDevice(s.partsOf(ln.send, &s.send, lo, hi, false), s.partsOf(ln.recv, &s.recv, lo, hi, false), ln.recv != nil && ln.recv.Locked)
		} else {
			err = s.onHost(ln, lo, hi)
		}
		if err != nil {
			return err
		}
		s.p.Do(func() error {
			s.try(func() error { return s.drain(k) })
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

// onHost appends the host's algorithm for elements [lo, hi) of every row.
func (s *stager) onHost(ln *lane, lo, hi int64) error {
	host := s.host
	uneven := unevenShares(&host.Sig)
	pairwise := uneven && host.Trait().Shares == op.Pairwise
	if uneven && !pairwise && s.send.alike(lo, hi) && s.recv.alike(lo, hi) {
		uneven = false // all ranks see that, because they know the lengths of all shares
		host.Agreed |= Even
	}
	host.Send, host.Recv = s.partsOf(ln.send, &s.send, lo, hi, uneven), s.partsOf(ln.recv, &s.recv, lo, hi, uneven)
	switch {
	case pairwise:
		return exchange(&host, s.p, host.Send, host.Recv)
	case uneven && host.Code == op.AllGather && !host.NoMPI: // Intel MPI's nonblocking allgatherv hangs if a rank gives nothing (measured)
		return exchange(&host, s.p, slices.Repeat(host.Send, host.Size), host.Recv)
	}
	host.Count = hi - lo
	if uneven {
		host.Count = 0
	}
	alg, err := Choose(&host.Sig)
	if err != nil {
		return err
	}
	return alg.build(&host, s.p)
}

// drain queues the copies of the result of piece k out of the blocks.
func (s *stager) drain(k int) error {
	if !s.args.WritesRecv() {
		return nil
	}
	if err := s.copyResult(k); err != nil {
		return err
	}
	if err := s.mark(&s.lane(k).out, s.stream(true)); err != nil {
		return err
	}
	if _, hi := s.bounds(k); hi == s.count && s.device != nil && s.recv.onDevice() {
		return s.args.DeviceArgs.end(s.device.In)
	}
	return nil
}

// copyResult copies the result of piece k out of the blocks.
func (s *stager) copyResult(k int) error {
	if !s.args.WritesRecv() {
		return nil
	}
	lo, hi := s.bounds(k)
	return s.copyRows(s.lane(k).recv, &s.recv, lo, hi, true)
}

// close gives blocks and events back. The last copies out may still read the blocks, and after an
// error copies in may still write them. Blocks of a rank without a device are scratch memory of the program.
func (s *stager) close() {
	d := s.device
	if d == nil {
		return
	}
	for i := range lanes + 1 {
		ln := &s.sendCopy
		if i < lanes {
			ln = &s.lanes[i]
		}
		if (s.failed != nil || s.p.err != nil) && ln.in != 0 {
			_ = d.StreamWait(d.In, ln.in)
		}
		for _, b := range []*mem.Pinned{ln.send, ln.recv} {
			if b != nil {
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
