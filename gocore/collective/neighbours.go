package collective

import (
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/neighbours"
	"github.com/paddlempi/paddlempi/gocore/op"
)

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
