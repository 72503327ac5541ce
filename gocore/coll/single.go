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
				if err := scale(a, a.Recv[i]); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return nil
}}

// singleOnDevice is single for tensors in device memory: a copy within the device at most. Bytes
// moved: S. It also serves tensors that are not contiguous, which are copied in pieces.
var singleOnDevice = Algorithm{Name: "single", Memory: deviceMemory | stridedMemory, Enabled: oneRank, polls: stagedPolls, scratch: stagedScratch, build: func(a *Args, p *Program) error {
	if !a.WritesRecv() || len(a.Send) == 0 && a.Reduce != op.PremulSum {
		return nil // the result is there already
	}
	if a.Reduce == op.PremulSum || !contiguousOnDevice(a.Send) || !contiguousOnDevice(a.Recv) {
		return buildStaged(a, p)
	}
	d := a.DeviceArgs.Device
	p.Do(func() error {
		if err := d.StreamWait(d.Comm, a.DeviceArgs.Ready); err != nil {
			return err
		}
		for i := range a.Recv {
			if err := d.Copy(a.Recv[i].Data, a.Send[i].Data, a.Recv[i].Count*a.elem(), d.Comm); err != nil {
				return err
			}
		}
		return a.DeviceArgs.end(d.Comm)
	})
	return nil
}}

// contiguousOnDevice tells whether all parts are contiguous device memory. An empty part may be anywhere.
func contiguousOnDevice(parts []Part) bool {
	for i := range parts {
		if parts[i].Count > 0 && (!parts[i].OnDevice || parts[i].Layout != nil) {
			return false
		}
	}
	return true
}
