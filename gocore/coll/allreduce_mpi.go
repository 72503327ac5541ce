package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// allReduceMPI is MPI_Allreduce, in chunks where it is large, with what MPI has no
// operation for done before (PREMUL_SUM) or after (AVG).
// Bytes moved a rank: the MPI's choice, 2S at best.
var allReduceMPI = Algorithm{Name: "mpi", Enabled: onHost, Scratch: (*Args).inputScratch, Build: func(a *Args, p *Program) error {
	recv := a.Recv[0]
	send, err := a.input(p)
	if err != nil {
		return err
	}
	if err := a.reducing(p, mpi.FnAllreduce, send, recv.Data, recv.Count); err != nil {
		return err
	}
	a.average(p, recv)
	return nil
}}

// reduceChunk is how many bytes are reduced in one call: some MPIs allocate as much
// again as they are given, or more.
const reduceChunk = 256 << 20

// reducing appends calls of fn over n elements. A nil send means in place.
func (a *Args) reducing(p *Program, fn mpi.Fn, send, recv unsafe.Pointer, n int64) error {
	t, okT := a.Lib.TypeOf(a.DType)
	o, okO := a.Lib.OpOf(a.Reduce, a.DType)
	if !okT || !okO {
		return status.New(status.Unsupported, "%s: this MPI cannot reduce %s with %s", a.Code, a.DType, a.Reduce)
	}
	most := reduceChunk / a.elem()
	for done := int64(0); ; done += most {
		chunk := min(n-done, most)
		c := p.Call()
		c.Fn, c.Comm, c.Op, c.Peer = fn, a.Comm, o, int32(a.Root)
		c.SendCount, c.SendType, c.RecvCount, c.RecvType = chunk, t, chunk, t
		c.InPlace = send == nil
		if send != nil {
			c.SendBuf = a.at(send, done)
		}
		if recv != nil {
			c.RecvBuf = a.at(recv, done)
		}
		if done+chunk >= n {
			return nil
		}
	}
}

// input returns where this rank's contribution lies, nil for in place. For
// PREMUL_SUM it is scaled into the result's memory first, so that the caller's
// input stays as it is. A contribution that shares some of the result's memory is copied:
// MPI allows all or nothing of it (MPI-4.1 section 6.2.3).
func (a *Args) input(p *Program) (unsafe.Pointer, error) {
	var send unsafe.Pointer
	if len(a.Send) > 0 && a.Send[0].Data != a.Recv[0].Data {
		send = a.Send[0].Data
	}
	if a.Reduce != op.PremulSum {
		if send == nil || !a.overlap(a.Send[0], a.Recv[0]) {
			return send, nil
		}
		copied, err := a.alloc(p, a.Send[0].Count)
		if err != nil {
			return nil, err
		}
		p.Do(func() error {
			a.copyElements(copied, send, a.Send[0].Count)
			return nil
		})
		return copied, nil
	}
	p.Do(func() error {
		if send != nil {
			a.copyElements(a.Recv[0].Data, send, a.Recv[0].Count)
		}
		return a.scale(a.Recv[0])
	})
	return nil, nil
}

// inputScratch is the scratch memory of input.
func (a *Args) inputScratch() int64 {
	if len(a.Send) > 0 && len(a.Recv) > 0 && a.overlap(a.Send[0], a.Recv[0]) {
		return a.scratch(a.Send[0].Count)
	}
	return 0
}

// scale multiplies by the factor of PREMUL_SUM.
func (a *Args) scale(b Part) error { return reduce.Scale(b.Data, b.Count, a.DType, a.Scale) }

// average appends the division that makes a sum an AVG.
func (a *Args) average(p *Program, b Part) {
	if a.Reduce == op.Avg {
		p.Do(func() error { return reduce.Divide(b.Data, b.Count, a.DType, a.Size) })
	}
}
