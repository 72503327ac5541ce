// Package netif chooses the addresses by which other hosts reach this one. A caller that listens
// for ranks of other hosts (the store of torch's default group, the side channel of testing) tells
// them these addresses. The first one is the most likely. A peer that can try several takes the
// next one if it fails.
//
// The first of these rules that gives an address decides:
//
//  1. PADDLEMPI_IFNAME names the interface, or the network.
//  2. All ranks are on this host: its loopback.
//  3. A variable of the framework with the same meaning (GLOO_SOCKET_IFNAME), if it names an
//     interface of this host.
//  4. The addresses to which the host's own name resolves, except for loopback; then the addresses
//     of its interfaces that are up. Interfaces that lead to containers and virtual machines of
//     this host come last: on another host the same addresses lead to its own containers.
package netif

import (
	"net/netip"
	"os"
	"slices"
	"sort"
	"strings"

	"github.com/paddlempi/paddlempi/gocore/dl"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Variable is the environment variable that names the interfaces to use: names, beginnings of
// names, networks like 10.1.0.0/16 or addresses, separated by commas.
const Variable = "PADDLEMPI_IFNAME"

// Options describe the caller's job.
type Options struct {
	OneHost bool   // all ranks are on this host
	Other   string // the variable of a framework; "": none
}

// Host says how other hosts reach this host.
type Host struct {
	Name      string   `json:"name"`      // the host's name, if it resolves to the first address; else ""
	Addresses []string `json:"addresses"` // the most likely first; no address twice
}

// Find returns how other hosts reach this host. Addresses is empty if the host has none. Find may
// ask the resolver, which takes seconds if it is configured wrongly.
//
// It returns an error with the code Argument if PADDLEMPI_IFNAME names nothing on this host.
func Find(o Options) (Host, error) {
	m := machine{env: dl.Getenv, name: os.Hostname, resolve: resolve, interfaces: interfaces}
	return m.find(o)
}

// nic is a network interface that is up.
type nic struct {
	name      string
	loopback  bool
	addresses []netip.Addr
}

// machine is everything that Find reads of the machine. Tests replace it.
type machine struct {
	env        func(name string) (string, bool)
	name       func() (string, error)
	resolve    func(name string) []netip.Addr
	interfaces func() ([]nic, error)
}

func (m *machine) find(o Options) (Host, error) {
	nics, err := m.interfaces()
	if err != nil {
		return Host{}, status.New(status.Unsupported, "the network interfaces of this host cannot be listed: %v", err)
	}
	if wanted, _ := m.env(Variable); wanted != "" {
		found := addressesNamed(nics, wanted)
		if len(found) == 0 {
			return Host{}, status.New(status.Argument, "%s=%s names no interface of this host that is up; there are %s", Variable, wanted, list(nics))
		}
		return newHost("", found), nil
	}
	if o.OneHost {
		return Host{Addresses: []string{"127.0.0.1"}}, nil
	}
	if o.Other != "" {
		wanted, _ := m.env(o.Other)
		if found := addressesNamed(nics, wanted); len(found) > 0 {
			return newHost("", found), nil
		}
	}
	name, found := "", []netip.Addr(nil)
	if hostName, err := m.name(); err == nil {
		found = slices.DeleteFunc(m.resolve(hostName), func(a netip.Addr) bool { return !leadsHere(a) })
		if len(found) > 0 {
			name = hostName
		}
	}
	return newHost(name, append(found, candidates(nics)...)), nil
}

// addressesNamed returns the addresses of the interfaces that a variable names, in the order of the
// variable.
func addressesNamed(nics []nic, wanted string) (found []netip.Addr) {
	for _, item := range strings.FieldsFunc(wanted, func(r rune) bool { return r == ',' || r == ' ' }) {
		network, err := netip.ParsePrefix(item)
		if address, none := netip.ParseAddr(item); none == nil {
			network, err = netip.PrefixFrom(address, address.BitLen()), nil
		}
		exact := slices.ContainsFunc(nics, func(n nic) bool { return n.name == item })
		for _, n := range nics {
			switch {
			case err == nil:
				for _, a := range n.addresses {
					if network.Contains(a) {
						found = append(found, a)
					}
				}
			case n.name == item, !exact && strings.HasPrefix(n.name, item):
				found = append(found, n.addresses...)
			}
		}
	}
	return slices.DeleteFunc(found, needsZone)
}

// localNetworks are the beginnings of the names of interfaces that lead to containers and virtual
// machines of this host.
var localNetworks = []string{"docker", "br-", "veth", "virbr", "vnet", "vmnet", "lxc", "lxd", "cni", "podman", "kube-"}

// candidates returns the addresses that may lead here: IPv4 before IPv6, those of localNetworks
// last.
func candidates(nics []nic) []netip.Addr {
	type ranked struct {
		address netip.Addr
		order   int
	}
	var found []ranked
	for _, n := range nics {
		order := 0
		if slices.ContainsFunc(localNetworks, func(beginning string) bool { return strings.HasPrefix(n.name, beginning) }) {
			order = 2
		}
		for _, a := range n.addresses {
			if n.loopback || !leadsHere(a) {
				continue
			}
			if a.Is6() {
				found = append(found, ranked{a, order + 1})
			} else {
				found = append(found, ranked{a, order})
			}
		}
	}
	sort.SliceStable(found, func(a, b int) bool { return found[a].order < found[b].order })
	addresses := make([]netip.Addr, len(found))
	for i, c := range found {
		addresses[i] = c.address
	}
	return addresses
}

// leadsHere tells whether an address can stand for this host on another one.
func leadsHere(a netip.Addr) bool {
	return !a.IsLoopback() && !a.IsUnspecified() && !needsZone(a)
}

// needsZone tells whether an address is only valid together with the name of an interface of the
// host that uses it.
func needsZone(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() }

func newHost(name string, addresses []netip.Addr) Host {
	h := Host{Name: name, Addresses: []string{}}
	for _, a := range addresses {
		if text := a.String(); !slices.Contains(h.Addresses, text) {
			h.Addresses = append(h.Addresses, text)
		}
	}
	return h
}

// list names the interfaces, for error messages.
func list(nics []nic) string {
	var parts []string
	for _, n := range nics {
		part := n.name
		for _, a := range n.addresses {
			part += " " + a.String()
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}
