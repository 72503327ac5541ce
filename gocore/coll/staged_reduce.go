package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce"
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
func (s *stager) reduceOnDevice(send, recv []Part, count int64, locked bool) error {
	host := s.host
	scattered := host.Trait().Send.PerRank()
	from := recv[0]
	if len(send) > 0 {
		from = send[0]
	}
	var sl []slice
	to := recv[0].Data
	if scattered {
		for i := 0; i < host.Size; i++ {
			sl = append(sl, slice{int64(i) * count, count})
		}
	} else {
		sl = host.slices(count)
		to = host.at(to, sl[host.Rank].from)
	}
	if s.gathered == nil {
		var err error
		if s.gathered, err = s.block(max(1, (sl[0].count*host.elem()+packed)*int64(host.Size))); err != nil {
			return err
		}
	}
	n := sl[host.Rank].count
	stride := n * host.elem()
	byKernel := s.gathered.Locked && locked
	if byKernel {
		stride = (stride + packed - 1) / packed * packed // the kernel moves whole packs
	}
	sends, recvs := make([]Part, host.Size), make([]Part, host.Size)
	for i := range sl {
		sends[i] = Part{Data: host.at(from.Data, sl[i].from), Count: sl[i].count}
		recvs[i] = Part{Data: unsafe.Add(s.gathered.Data, int64(i)*stride), Count: n}
	}
	if err := exchange(&host, s.p, sends, recvs); err != nil {
		return err
	}
	s.p.Do(func() error {
		if !byKernel {
			return s.sumOnHost(to, n)
		}
		s.try(func() error { return s.launch(to, recvs) })
		return nil
	})
	s.await(&s.reduced)
	if scattered {
		return nil
	}
	return host.gatherSlices(s.p, recv[0].Data, sl)
}

// sumOnHost reduces what is gathered, n elements of each rank, into to.
func (s *stager) sumOnHost(to unsafe.Pointer, n int64) error {
	a := &s.host
	if a.Reduce == op.PremulSum && !reduce.Is16(a.DType) {
		if err := reduce.Scale(s.gathered.Data, n*int64(a.Size), a.DType, a.Scale); err != nil {
			return err
		}
	}
	return a.reduceGathered(to, s.gathered.Data, n, a.Size)
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
