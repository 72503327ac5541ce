package collective

import (
	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/coll/ipc"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// agree tells whether a collective at which all members have arrived may run. The answer is the
// same on every member.
func agree(a *coll.Args, state arrive.State, res arrive.Result) bool {
	diff := res.Diff
	if a.Trait().Shares == op.Pairwise && res.All&coll.Even == 0 {
		diff &^= 1 << 1 // uneven parts: the lengths are exchanged later
	}
	return (state == arrive.Agreed || state == arrive.Differ && diff == 0) && res.Any&arrive.Refused == 0
}

// choose returns the algorithm that serves what all members have agreed on, or the error that they have not.
func (c *collective) choose(state arrive.State, res arrive.Result) (*coll.Algorithm, error) {
	if !agree(&c.args, state, res) {
		return nil, harmless{c.failure().disagreement(res)}
	}
	// What this member has not announced cannot be agreed on, whatever its slot says now.
	c.args.Agreed, c.args.Any = res.All&(c.flags|(arrive.Others-1)), res.Any|c.flags
	if (c.args.Agreed^c.flags)&coll.Even != 0 && c.args.Trait().Shares != op.Pairwise {
		return nil, c.failure().contradiction()
	}
	if c.args.Any&coll.Device != 0 {
		if c.args.DeviceArgs == nil { // the tensors of another member are in device memory, those of this one are not
			c.args.DeviceArgs = &coll.DeviceArgs{PieceBytes: c.g.Env.Device.Chunk}
		}
		if c.g.Local && c.args.Agreed&coll.IPC != 0 {
			if c.g.peers == nil {
				c.g.peers = ipc.New(c.g.Rank, c.g.Size)
			}
			c.args.DeviceArgs.Peers = c.g.peers
		}
	}
	alg, err := c.g.choices.Choose(&c.args.Sig)
	if err != nil {
		return nil, harmless{err}
	}
	if c.g.Wire != nil {
		alg = c.trial.algorithm(&c.request, alg)
		c.g.Tuner.Took(c.trial.name)
	}
	c.form = alg.Form(&c.args.Sig)
	c.took(alg)
	return alg, nil
}
