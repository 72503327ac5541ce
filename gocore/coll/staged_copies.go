package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// extent is the elements [from, from+count) of a part, in row-major order.
type extent struct {
	part        *Part
	from, count int64
}

// row is one rank's share of a buffer: one extent after the other.
type row []extent

// unevenShares tells whether the ranks' shares differ in length.
func unevenShares(s *Sig) bool { return s.Trait().Shares != op.NoShares && !evenShares(s) }

// rows describes a side. perRank says that the side has a share for every rank.
func (a *Args) rows(parts []Part, perRank bool) []row {
	switch {
	case len(parts) == 0:
		return nil
	case !perRank:
		return []row{{{&parts[0], 0, parts[0].Count}}}
	case len(parts) == 1:
		rows := make([]row, a.Size)
		n := parts[0].Count / int64(a.Size)
		for i := range rows {
			rows[i] = row{{&parts[0], int64(i) * n, n}}
		}
		return rows
	}
	rows := make([]row, len(parts))
	for i := range rows {
		rows[i] = row{{&parts[i], 0, parts[i].Count}}
	}
	return rows
}

func oneRow(parts []Part) []row {
	if len(parts) == 0 {
		return nil
	}
	var r row
	for i := range parts {
		r = append(r, extent{&parts[i], 0, parts[i].Count})
	}
	return []row{r}
}

func (s *stager) copyIn(b *mem.Pinned, rows []row, lo, hi int64) error {
	return s.copyRows(b, rows, lo, hi, false)
}

func (s *stager) copyOut(b *mem.Pinned, rows []row, lo, hi int64) error {
	return s.copyRows(b, rows, lo, hi, true)
}

// copyRows copies elements [lo, hi) of every row into b, or out of b if out is set. In b they lie
// row by row.
func (s *stager) copyRows(b *mem.Pinned, rows []row, lo, hi int64, out bool) error {
	at := b.Data
	for _, r := range rows {
		base := int64(0)
		for _, g := range r {
			from, to := max(lo-base, 0), min(hi-base, g.count)
			base += g.count
			if from >= to {
				continue
			}
			if err := s.move(g.part, g.from+from, to-from, at, b.Locked, out); err != nil {
				return err
			}
			at = s.args.at(at, to-from)
		}
	}
	return nil
}

// move copies count elements of a part, from element from on, to the address at, or back if out is
// set.
func (s *stager) move(part *Part, from, count int64, at unsafe.Pointer, locked, out bool) error {
	a, d := s.args, s.args.DeviceArgs.Device
	switch {
	case part.Layout != nil && !locked:
		return status.New(status.NoMemory, "%s: a tensor in device memory that is not contiguous needs %d bytes of pinned host memory, and the driver gives none: free some, or pass a contiguous copy", a.Code, count*a.elem())
	case part.Layout != nil:
		return mem.MoveStrided(d, at, part.Layout, from, count, out, s.stream(out))
	}
	dst, src := at, a.at(part.Data, from)
	if out {
		dst, src = src, dst
	}
	if part.OnDevice {
		return d.Copy(dst, src, count*a.elem(), s.stream(out))
	}
	mem.Copy(dst, src, count*a.elem())
	return nil
}

// stream returns the stream for copies out of the blocks, which go into the device, or for copies
// into the blocks, which go out of the device.
func (s *stager) stream(out bool) cuda.Stream {
	switch d := s.args.DeviceArgs.Device; {
	case d == nil:
		return 0
	case out:
		return d.In
	default:
		return d.Out
	}
}

func (s *stager) onDevice(rows []row) bool {
	for _, r := range rows {
		for _, g := range r {
			if g.part.OnDevice {
				return true
			}
		}
	}
	return false
}

// block takes a block. It is pageable if this rank has no tensor on a device or its device has
// failed.
func (s *stager) block(bytes int64) (b *mem.Pinned, err error) {
	if d := s.args.DeviceArgs.Device; d != nil && s.failed == nil {
		if b, err = mem.GetPinned(d, bytes); err == nil {
			return b, nil
		}
		s.failed = err
	}
	data, err := mem.Alloc(bytes)
	return &mem.Pinned{Data: data, Bytes: bytes}, err
}

// mark makes e stand for the work that is queued on a stream now.
func (s *stager) mark(e *cuda.Event, stream cuda.Stream) error {
	d := s.args.DeviceArgs.Device
	if d == nil {
		return nil
	}
	return d.Mark(e, stream)
}

// await appends a wait for the event that is in *e when the wait begins. If *e is 0 then, the wait
// ends at once.
func (s *stager) await(e *cuda.Event) {
	s.p.Until(func() (bool, error) {
		if s.args.DeviceArgs.Device == nil || *e == 0 || s.failed != nil {
			return true, nil
		}
		done, err := s.args.DeviceArgs.Device.Query(*e)
		s.failed = err
		return done || err != nil, nil
	})
}
