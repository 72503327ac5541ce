package coll

import "github.com/paddlempi/paddlempi/gocore/op"

// singleOnDevice is single for tensors in device memory: a copy within the device at most. Bytes
// moved: S.
var singleOnDevice = Algorithm{Name: "single", Enabled: func(s *Sig) bool {
	return s.Size == 1 && onDevice(s)
}, Polls: always, Scratch: stagedScratch, Build: func(a *Args, p *Program) error {
	if !a.WritesRecv() || len(a.Send) == 0 && a.Reduce != op.PremulSum {
		return nil // the result lies there already
	}
	if a.Reduce == op.PremulSum || !flat(a.Send) || !flat(a.Recv) {
		return buildStaged(a, p)
	}
	d := a.Place.Device
	p.Do(func() error {
		if err := d.StreamWait(d.Comm, a.Place.Ready); err != nil {
			return err
		}
		for i := range a.Recv {
			if err := d.Copy(a.Recv[i].Data, a.Send[i].Data, a.Recv[i].Count*a.elem(), d.Comm); err != nil {
				return err
			}
		}
		return a.Place.end(d.Comm)
	})
	return nil
}}

// flat tells whether all parts are contiguous memory of the device; an empty one is anywhere.
func flat(parts []Part) bool {
	for i := range parts {
		if parts[i].Count > 0 && (!parts[i].OnDevice || parts[i].Layout != nil) {
			return false
		}
	}
	return true
}
