package coll

import "github.com/paddlempi/paddlempi/gocore/op"

// allReduceCoalescedPack packs the tensors into one buffer, reduces it, and unpacks it. So k
// tensors cost one collective. Bytes moved by each rank: those of the all_reduce, and 4S by the
// copies.
var allReduceCoalescedPack = Algorithm{Name: "pack", Memory: hostMemory, polls: func(s *Sig) bool {
	inner := s.inside(op.AllReduce)
	alg, err := Choose(&inner)
	return err == nil && alg.polled(&inner)
}, scratch: func(a *Args) int64 {
	one := *a
	one.Sig, one.Recv = a.inside(op.AllReduce), []Part{{Count: totalCount(a.Recv)}}
	return a.contiguousScratch(a.Recv) + Scratch(&one, one.Any)
}, build: func(a *Args, p *Program) error {
	whole, unpack, err := a.contiguous(p, a.Recv, true)
	if err != nil {
		return err
	}
	one := *a
	one.Sig, one.Send, one.Recv = a.inside(op.AllReduce), nil, []Part{{Data: whole, Count: totalCount(a.Recv)}}
	one.Count = one.Recv[0].Count
	alg, err := Choose(&one.Sig)
	if err != nil {
		return err
	}
	if err := alg.build(&one, p); err != nil {
		return err
	}
	if unpack != nil {
		p.Do(unpack)
	}
	return nil
}}
