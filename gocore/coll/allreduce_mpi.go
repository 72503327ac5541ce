package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// allReduceMPI is MPI_Allreduce. A large tensor goes in several calls. For PREMUL_SUM, which MPI
// does not have, this rank multiplies before the call; for AVG it divides after the call. Bytes
// moved by each rank: it depends on the MPI, 2S at best.
var allReduceMPI = Algorithm{Name: "mpi", callsMPI: true, Memory: hostMemory, Enabled: byMPI, scratch: (*Args).inputScratch, build: func(a *Args, p *Program) error {
	recv := a.Recv[0]
	send, err := a.input(p)
	if err != nil {
		return err
	}
	if err := a.reduceCalls(p, mpi.FnAllreduce, send, recv.Data, recv.Count); err != nil {
		return err
	}
	a.average(p, recv)
	return nil
}}

// reduceChunk is how many bytes are reduced in one call, because some MPIs allocate as much again
// as they are given, or more.
const reduceChunk = 256 << 20

// reduceCalls appends calls of fn over n elements. If send is nil the operation is in place.
func (a *Args) reduceCalls(p *Program, fn mpi.Fn, send, recv unsafe.Pointer, n int64) error {
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

// input returns the address of this rank's input, or nil if it is in place. For PREMUL_SUM the
// input is first copied to the result and multiplied there, so that the caller's input does not
// change. An input that overlaps the result is copied, because MPI allows only separate buffers or
// MPI_IN_PLACE (MPI-4.1 section 6.2.3).
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

// inputScratch returns the scratch memory of input.
func (a *Args) inputScratch() int64 {
	if len(a.Send) > 0 && len(a.Recv) > 0 && a.overlap(a.Send[0], a.Recv[0]) {
		return a.scratch(a.Send[0].Count)
	}
	return 0
}

// scale multiplies by the factor of PREMUL_SUM.
func (a *Args) scale(b Part) error { return reduce.Scale(b.Data, b.Count, a.DType, a.Scale) }

// average appends the division that turns a sum into AVG.
func (a *Args) average(p *Program, b Part) {
	if a.Reduce == op.Avg {
		p.Do(func() error { return reduce.Divide(b.Data, b.Count, a.DType, a.Size) })
	}
}
