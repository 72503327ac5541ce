package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/cuda"
)

// packed is the alignment in bytes at which the kernels move the most at once.
const packed = 16

// reduceOnDevice replaces the host's algorithm for one piece of an all_reduce or a reduce_scatter: the
// host moves the data, and the device adds it up.
//
// Steps: each rank sends slice i of its block to rank i. A kernel on rank i reduces the n slices in
// rank order; it reads and writes pinned memory over the bus. For an all_reduce the slices are then
// gathered. Bytes moved by each rank, besides those of staged: (1-1/n)S out and in, twice for an
// all_reduce and once for a reduce_scatter, and (1+1/n)S over the bus. If the driver gives no pinned
// memory, which alone the kernel reaches, the host of this rank adds up.
func (s *stager) reduceOnDevice(send, recv []Part, locked bool) error {
	host, from, to := s.host, recv[0], recv[0].Data
	if len(send) > 0 {
		from = send[0]
	}
	var sends, results []Part // results: of an all_reduce
	if host.Trait().Send.PerRank() {
		sends = perRank(&host, []Part{from})
	} else {
		sends, results = sliced(&host, from), sliced(&host, recv[0])
		to = results[host.Rank].Data
	}
	if s.gathered == nil {
		var err error
		if s.gathered, err = s.block(max(1, (sends[0].Count*host.elem()+packed)*int64(host.Size))); err != nil {
			return err
		}
	}
	n := sends[host.Rank].Count
	stride := n * host.elem()
	byKernel := s.gathered.Locked && locked
	if byKernel {
		stride = (stride + packed - 1) / packed * packed // the kernel moves whole packs
	}
	recvs := make([]Part, host.Size)
	for i := range recvs {
		recvs[i] = Part{Data: unsafe.Add(s.gathered.Data, int64(i)*stride), Count: n}
	}
	if err := exchange(&host, s.p, sends, recvs); err != nil {
		return err
	}
	if byKernel {
		s.p.Do(func() error {
			s.try(func() error { return s.launch(to, recvs) })
			return nil
		})
	} else {
		addSum(&host, s.p, to, s.gathered.Data, n, host.Size)
	}
	s.await(&s.reduced)
	if results == nil {
		return nil
	}
	return gatherParts(&host, s.p, results)
}

// launch queues the kernel that reduces the parts into to.
func (s *stager) launch(to unsafe.Pointer, parts []Part) error {
	args := cuda.ReduceArgs{Count: parts[0].Count, NSrc: int64(len(parts)), NDst: 1}
	args.Dst[0] = uint64(uintptr(to))
	for i := range parts {
		args.Src[i], args.Scale[i] = uint64(uintptr(parts[i].Data)), s.args.Scale
	}
	d := s.device
	if err := d.Reduce(&args, s.args.DType, s.args.Reduce, d.Comm); err != nil {
		return err
	}
	return s.mark(&s.reduced, d.Comm)
}
