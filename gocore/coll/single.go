package coll

import "github.com/paddlempi/paddlempi/gocore/op"

// single serves a group of one rank, which needs no MPI. Every operation is a copy at most, and
// only PREMUL_SUM changes a value. Bytes moved: S.
var single = Algorithm{Name: "single", Memory: hostMemory, Enabled: oneRank, build: func(a *Args, p *Program) error {
	if !a.WritesRecv() {
		return nil
	}
	p.Do(func() error {
		for i := range a.Recv {
			if len(a.Send) > 0 {
				a.copyElements(a.Recv[i].Data, a.Send[i].Data, a.Recv[i].Count)
			}
			if a.Reduce == op.PremulSum {
				if err := a.scale(a.Recv[i]); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return nil
}}
