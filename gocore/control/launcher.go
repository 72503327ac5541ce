package control

import (
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/netif"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// launcher returns the launcher of this process. It neither looks for a library nor loads one.
func launcher(r struct{ Hidden bool }, _ work.Interrupt) (any, error) {
	if r.Hidden {
		return mpi.HiddenLauncher(), nil
	}
	return mpi.Launcher(), nil
}

type addressesRequest struct {
	OneHost  bool   `json:"one_host"`
	Variable string `json:"variable"`
}

// addresses returns the addresses by which other hosts reach this one.
func addresses(r addressesRequest, _ work.Interrupt) (any, error) {
	return netif.Find(netif.Options{OneHost: r.OneHost, Other: r.Variable})
}
