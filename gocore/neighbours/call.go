package neighbours

import (
	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/buffer"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Call is a call of an exchange with neighbours, and what Check finds out about it.
type Call struct {
	Code       op.Code
	Rank       int // of this process in the group
	DType      op.DType
	Send, Recv []coll.Part
	Neighbours *coll.Neighbours
	Signature  arrive.Signature
	Shadow     *Shadow // of tensors in device memory; nil: all are in host memory
}

// Check finds wrong arguments of the call, which the pattern with a number is for. Shadow is to be freed, also after an error.
func (c *Call) Check(patterns *Patterns, number int32, sends, recvs []op.Buf) error {
	p := patterns.get(number)
	if p == nil || (p.halo != nil) != (c.Code == op.HaloExchange) {
		return status.New(status.Argument, "%s: peer=%d is not the number of such a pattern of the group", c.Code, number)
	}
	for i := range sends {
		if err := c.take("send", i, &sends[i], &c.Send); err != nil {
			return err
		}
	}
	for i := range recvs {
		if err := c.take("recv", i, &recvs[i], &c.Recv); err != nil {
			return err
		}
	}
	if p.halo != nil {
		return c.halo(p, &recvs[0])
	}
	return c.graph(p, sends, recvs)
}

// take checks a tensor of one side, and appends it to the parts of that side.
func (c *Call) take(side string, i int, b *op.Buf, parts *[]coll.Part) error {
	if err := buffer.Check(c.Code, side, i, b); err != nil {
		return err
	}
	if !b.OnHost() {
		if err := c.locate(side, i, b); err != nil {
			return err
		}
	}
	if c.DType == 0 {
		c.DType = b.DType
	} else if c.DType != b.DType {
		return status.New(status.Type, "%s: %s tensor %d is %s, another is %s; all tensors of a call have one dtype", c.Code, side, i, b.DType, c.DType)
	}
	*parts = append(*parts, coll.Part{Data: b.Data, Count: b.Count})
	return nil
}
