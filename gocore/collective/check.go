package collective

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"slices"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/buffer"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/neighbours"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// checker finds out about a call what a request says.
type checker struct{ *request }

// check finds wrong arguments before anything is sent, and fills c. Its errors name the side of a
// buffer: "send" is what this rank gives, "recv" what it gets.
func (c checker) check(d *op.Desc, t *op.Trait) error {
	g := c.g
	a := &c.args
	a.MPI, a.Rank, a.Size = g.MPI, g.Rank, g.Size
	a.Code, a.Reduce, a.Scale, a.Root = d.Code, d.ReduceOp, d.Scale, int(d.Root)
	a.Local, a.Node, a.Payloads, a.Forced = g.Local, g.Node, g.Payloads, g.Forced
	a.Nodes, a.Rails, a.Levels, a.Bounce = g.Nodes, g.Rails, g.Levels, g.Bounce
	a.NoMPI = g.Size > 1 && g.MPI.Lib == nil
	beginsAs(c.request, d)
	if !t.Rooted {
		a.Root = -1 // the caller's value is ignored: it may differ between members
	} else if a.Root < 0 || a.Root >= g.Size {
		return status.New(status.Argument, "%s: root is rank %d of the group, which has ranks 0 to %d", d.Code, a.Root, g.Size-1)
	}
	root := !t.Rooted || a.Root == g.Rank
	sends, recvs := d.Sends(), d.Recvs()
	// What only the root gives or gets is ignored on the other ranks.
	if !root && t.Send.RootAlone() {
		sends = nil
	}
	if !root && t.Recv.RootAlone() {
		recvs = nil
	}
	switch {
	case !t.Send.Accepts(len(sends), g.Size, root):
		return c.wrongNumber("send", len(sends), t.Send)
	case !t.Recv.Accepts(len(recvs), g.Size, root):
		return c.wrongNumber("recv", len(recvs), t.Recv)
	}
	if t.Neighbours {
		return c.checkNeighbours(d, sends, recvs)
	}
	c.inPieces = stridedBytes(sends)+stridedBytes(recvs) > coll.PieceBytes
	var err error
	if a.Send, err = c.parts("send", sends, c.one[0:0:1]); err != nil {
		return err
	}
	if a.Recv, err = c.parts("recv", recvs, c.one[1:1:2]); err != nil {
		return err
	}
	if err := c.checkReduce(t); err != nil {
		return err
	}
	if err := c.checkCounts(t); err != nil {
		return err
	}
	if c.args.DeviceArgs != nil {
		c.stream = cuda.Stream(d.Stream)
		if err := c.takeBlock(); err != nil {
			return err
		}
		return c.checkDevice()
	}
	if c.inPieces {
		c.flags |= coll.Piecewise | coll.NotDirect
	}
	if g.Levels != nil && g.Levels.Ready(a) {
		c.flags |= coll.ForLevels
	}
	if g.Payloads != nil && !c.inPieces {
		if c.flags, err = c.offer.Make(a, c.flags, len(c.copies.staged) > 0); err != nil {
			return err
		}
	}
	if c.flags&coll.Mapped != 0 && !a.NoMPI {
		return nil // if the tensors of another member lie elsewhere, MPI serves the call
	}
	return c.takeBlock()
}

// takeBlock takes what this member needs for bounce, if c may be carried out by that.
func (c checker) takeBlock() error {
	a := &c.args
	if !coll.WantsBounce(a, c.flags) {
		return nil
	}
	err := c.g.Bounce.Ready()
	switch {
	case err == nil:
		c.flags |= coll.ForBounce
		if coll.MayUseCMA(a, c.flags) {
			c.flags |= coll.ForCMA
		}
	case a.NoMPI:
		return status.New(status.CodeOf(err), "%s: this rank has no memory through which its tensors would go to the others, and there is no MPI: %v", a.Code, err)
	}
	return nil
}

// wrongNumber is the error for n tensors on one side. It is a TypeError if the side has none but
// needs one: the caller passed Python's None, which is an object of a wrong type.
func (c checker) wrongNumber(side string, n int, takes op.Arity) error {
	a := &c.args
	if n == 0 {
		return status.New(status.Type, "%s: got no %s tensor (None, which is no tensor) on rank %d of a group of %d; it takes %s", a.Code, side, a.Rank, a.Size, takes)
	}
	return status.New(status.Argument, "%s: got %d %s tensors on rank %d of a group of %d; it takes %s", a.Code, n, side, a.Rank, a.Size, takes)
}

// stridedBytes returns the length of the buffers in host memory that are not contiguous.
func stridedBytes(bufs []op.Buf) (n int64) {
	for i := range bufs {
		if b := &bufs[i]; b.Strides != nil && b.OnHost() && !b.Contiguous() && b.DType.Valid() && b.Count < math.MaxInt64/32 {
			n = min(n+b.Bytes(), math.MaxInt64/4)
		}
	}
	return n
}

// parts describes buffers as contiguous memory. A buffer that is not contiguous gets a staging, unless c is done in
// pieces.
func (c checker) parts(side string, bufs []op.Buf, room []coll.Part) ([]coll.Part, error) {
	for i := range bufs {
		b := &bufs[i]
		if err := buffer.Check(c.args.Code, side, i, b); err != nil {
			return nil, err
		}
		if c.args.DType == 0 {
			c.args.DType = b.DType
		} else if c.g.Silent && coll.Partial(c.args.DType, b.DType) { // a phase of coll.Levels
			c.args.Partial = true
		} else if b.DType != c.args.DType {
			return nil, status.New(status.Type, "%s: %s tensor %d is %s, another is %s; all tensors of a call have one dtype", c.args.Code, side, i, b.DType, c.args.DType)
		}
		part := coll.Part{Data: b.Data, Count: b.Count, OnDevice: !b.OnHost()}
		if part.OnDevice {
			if err := c.onDevice(side, i, b); err != nil {
				return nil, err
			}
		}
		strided := !b.Contiguous() && b.Count > 0
		if strided && side == "recv" && mem.Overlaps(b) {
			return nil, buffer.OverlapError(c.args.Code, i)
		}
		if strided && (part.OnDevice || c.inPieces) {
			part.Layout = buffer.Layout(b)
		} else if strided {
			in, out := true, false
			if side == "recv" {
				in, out = c.args.ReadsRecv(), c.args.WritesRecv()
			}
			s, err := buffer.Stage(b, in, out)
			if err != nil {
				return nil, err
			}
			c.copies.staged = append(c.copies.staged, s)
			part.Data = s.Block
		}
		room = append(room, part)
	}
	return room, nil
}

func (c checker) checkReduce(t *op.Trait) error {
	a := &c.args
	if !t.Reduces {
		a.Reduce = 0
		return nil
	}
	if !op.Defined(a.Reduce, a.DType) {
		return status.New(status.Type, "%s: %s is not defined for %s (%s/ops.md has the table)", a.Code, a.Reduce, a.DType, status.Pages)
	}
	if a.Reduce == op.Avg && t.Prefix {
		return status.New(status.Type, "%s: AVG has no meaning for a scan; use SUM and divide", a.Code)
	}
	return nil
}

// checkCounts checks that the lengths of the buffers fit together, and makes the signature.
func (c checker) checkCounts(t *op.Trait) error {
	a := &c.args
	alike, detail := true, uint64(0)
	// shares is the side with a share for every rank. single is the other side, which has this
	// rank's share.
	shares, single, side := a.Recv, a.Send, "recv"
	if t.Send.PerRank() {
		shares, single, side = a.Send, a.Recv, "send"
	}
	switch t.Shares {
	case op.NoShares:
		if len(a.Send) > 0 && len(a.Recv) > 0 && a.Send[0].Count != a.Recv[0].Count {
			return status.New(status.Argument, "%s: the send tensor has %d elements, the recv tensor %d; they must be equal", a.Code, a.Send[0].Count, a.Recv[0].Count)
		}
		switch {
		case t.Recv == op.Many:
			for i := range a.Recv {
				a.Count += a.Recv[i].Count
			}
			detail = fingerprint(a.Recv)
		case len(a.Send)+len(a.Recv) > 0:
			a.Count = a.Part().Count
		}
	case op.Alike:
		a.Count = single[0].Count
		if err := c.checkAlike(side, shares, a.Count); err != nil {
			return err
		}
	case op.Listed:
		if err := c.checkParts(side, shares, single[0].Count); err != nil {
			return err
		}
		if a.Count, alike = single[0].Count, even(shares); !alike {
			a.Count, detail = 0, fingerprint(shares)
		}
	case op.Pairwise:
		var err error
		if a.Count, err = c.checkPairs(); err != nil {
			return err
		}
		if alike = even(a.Send) && even(a.Recv); !alike {
			a.Count = -1 // members need not agree: the lengths are exchanged later
		}
	}
	if alike {
		c.flags |= coll.Even
	}
	if a.Reduce == op.PremulSum {
		detail ^= math.Float64bits(a.Scale)
	}
	root := uint64(0)
	if t.Rooted {
		root = uint64(a.Root) + 1
	}
	c.sig = arrive.Signature{uint64(a.Code) | uint64(a.DType)<<8 | uint64(a.Reduce)<<16 | root<<32, uint64(a.Count), detail}
	return nil
}

// checkPairs checks both sides of a collective with a share for every pair of ranks. It returns how
// many elements this rank sends to itself.
func (c checker) checkPairs() (int64, error) {
	a := &c.args
	for i, parts := range [2][]coll.Part{a.Send, a.Recv} {
		if len(parts) == 1 && parts[0].Count%int64(a.Size) != 0 {
			return 0, status.New(status.Argument, "%s: the %s tensor has %d elements, which %d ranks cannot share evenly; give split sizes", a.Code, [2]string{"send", "recv"}[i], parts[0].Count, a.Size)
		}
	}
	sent, expected := c.countForSelf(a.Send), c.countForSelf(a.Recv)
	if sent != expected {
		return 0, status.New(status.Argument, "%s: this rank sends itself %d elements and expects %d", a.Code, sent, expected)
	}
	return sent, nil
}

// checkParts checks one buffer of Size parts, or Size buffers. This rank's part must have count
// elements.
func (c checker) checkParts(side string, parts []coll.Part, count int64) error {
	a := &c.args
	if len(parts) == 1 {
		if want := count * int64(a.Size); parts[0].Count != want {
			return status.New(status.Argument, "%s: the %s tensor has %d elements; %d ranks of %d elements need %d", a.Code, side, parts[0].Count, a.Size, count, want)
		}
		return nil
	}
	if got := parts[a.Rank].Count; got != count {
		return status.New(status.Argument, "%s: %s tensor %d, this rank's share, has %d elements, the tensor of the other side has %d; they must be equal", a.Code, side, a.Rank, got, count)
	}
	return nil
}

// checkAlike checks the root's buffers, each of which must have count elements.
func (c checker) checkAlike(side string, parts []coll.Part, count int64) error {
	if len(parts) == 1 && c.args.Size > 1 {
		return c.checkParts(side, parts, count)
	}
	for i, p := range parts {
		if p.Count != count {
			return status.New(status.Argument, "%s: %s tensor %d has %d elements; every rank's has %d", c.args.Code, side, i, p.Count, count)
		}
	}
	return nil
}

// countForSelf returns the number of elements in this rank's own part.
func (c checker) countForSelf(parts []coll.Part) int64 {
	if len(parts) == 1 {
		return parts[0].Count / int64(c.args.Size)
	}
	return parts[c.args.Rank].Count
}

func even(parts []coll.Part) bool {
	return !slices.ContainsFunc(parts, func(p coll.Part) bool { return p.Count != parts[0].Count })
}

// fingerprint is a hash of the lengths; never 0.
func fingerprint(parts []coll.Part) uint64 {
	h := fnv.New64a()
	var b [8]byte
	for i := range parts {
		binary.LittleEndian.PutUint64(b[:], uint64(parts[i].Count))
		h.Write(b[:])
	}
	return h.Sum64() | 1
}

// checkNeighbours is check for an exchange with neighbours.
func (c checker) checkNeighbours(d *op.Desc, sends, recvs []op.Buf) error {
	g, a := c.g, &c.args
	call := neighbours.Call{Code: d.Code, Rank: g.Rank}
	err := call.Check(&g.Patterns, d.Peer, sends, recvs)
	a.DType, a.Send, a.Recv, a.Neighbours = call.DType, call.Send, call.Recv, call.Neighbours
	c.sig, c.copies.shadow, c.stream = call.Signature, call.Shadow, cuda.Stream(d.Stream)
	if err == nil && c.copies.shadow != nil {
		err = c.readShadow()
	}
	if err != nil {
		return err
	}
	c.flags |= coll.Even
	if g.Payloads == nil {
		return nil
	}
	c.flags, err = c.offer.MakeBlock(a, c.flags, g.Blocks, g.Lends && !c.async)
	return err
}

// readShadow copies what the rank gives out of device memory. It waits for what the producing stream has queued by now.
func (c checker) readShadow() error {
	device := c.copies.shadow.Device
	copied, err := c.copies.shadow.Read(c.args.Code, c.stream)
	if err != nil {
		return err
	}
	defer device.PutEvent(copied)
	return awaitEvent(c.request, device, copied)
}
