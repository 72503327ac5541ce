// Package netif chooses the addresses by which other hosts reach this one. Who listens for
// ranks of other hosts (the store of torch's default group, the side channel of testing) asks it
// what to tell them; the first address is the likeliest, and who can try takes the next.
//
// The rule, whose first part that gives an address decides:
//
//  1. PADDLEMPI_IFNAME names the interface, or the network.
//  2. All ranks are on this host: its loopback.
//  3. A variable of the framework's that means the same (GLOO_SOCKET_IFNAME), if it names an
//     interface of this host.
//  4. What the host's own name resolves to and is no loopback, then the addresses of its
//     interfaces that are up. Those that lead to its own containers and virtual machines come
//     last: on other hosts the same addresses lead to theirs.
package netif

import (
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/paddlempi/paddlempi/gocore/dl"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Variable names the interfaces to use: names, beginnings of names, networks as 10.1.0.0/16 or
// addresses, with commas between them.
const Variable = "PADDLEMPI_IFNAME"

// Options say who asks.
type Options struct {
	OneHost bool   // all ranks are on this host
	Other   string // the variable of a framework; "" for none
}

// Host is how others reach this host.
type Host struct {
	Name      string   `json:"name"`      // where its own name resolves to the first of the addresses; else ""
	Addresses []string `json:"addresses"` // the likeliest first, none twice
}

// Find returns how others reach this host. Addresses is empty where the host has none. It asks
// the resolver, which may take seconds where that is set up wrong.
//
// It returns an error with the code Argument if PADDLEMPI_IFNAME names nothing that is here.
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

// machine is what the rule sees of the machine; tests give their own.
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
		found := named(nics, wanted)
		if len(found) == 0 {
			return Host{}, status.New(status.Argument, "%s=%s names no interface of this host that is up; there are %s", Variable, wanted, list(nics))
		}
		return answer("", found), nil
	}
	if o.OneHost {
		return Host{Addresses: []string{"127.0.0.1"}}, nil
	}
	if o.Other != "" {
		wanted, _ := m.env(o.Other)
		if found := named(nics, wanted); len(found) > 0 {
			return answer("", found), nil
		}
	}
	name, found := "", []netip.Addr(nil)
	if own, err := m.name(); err == nil {
		found = slices.DeleteFunc(m.resolve(own), func(a netip.Addr) bool { return !leadsHere(a) })
		if len(found) > 0 {
			name = own
		}
	}
	return answer(name, append(found, all(nics)...)), nil
}

// named returns the addresses of the interfaces that a variable names, in its order.
func named(nics []nic, wanted string) (found []netip.Addr) {
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

// ownNetworks are how the interfaces begin that lead to containers and virtual machines of this host.
var ownNetworks = []string{"docker", "br-", "veth", "virbr", "vnet", "vmnet", "lxc", "lxd", "cni", "podman", "kube-"}

// all returns the addresses that may lead here, IPv4 before IPv6, those of ownNetworks last.
func all(nics []nic) []netip.Addr {
	type candidate struct {
		address netip.Addr
		order   int
	}
	var found []candidate
	for _, n := range nics {
		order := 0
		if slices.ContainsFunc(ownNetworks, func(beginning string) bool { return strings.HasPrefix(n.name, beginning) }) {
			order = 2
		}
		for _, a := range n.addresses {
			if n.loopback || !leadsHere(a) {
				continue
			}
			if a.Is6() {
				found = append(found, candidate{a, order + 1})
			} else {
				found = append(found, candidate{a, order})
			}
		}
	}
	slices.SortStableFunc(found, func(a, b candidate) int { return a.order - b.order })
	addresses := make([]netip.Addr, len(found))
	for i, c := range found {
		addresses[i] = c.address
	}
	return addresses
}

// leadsHere tells whether an address can mean this host to another one.
func leadsHere(a netip.Addr) bool {
	return !a.IsLoopback() && !a.IsUnspecified() && !needsZone(a)
}

// needsZone tells whether an address means something only with the name of an interface of
// whoever uses it.
func needsZone(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() }

func answer(name string, addresses []netip.Addr) Host {
	h := Host{Name: name, Addresses: []string{}}
	for _, a := range addresses {
		if text := a.String(); !slices.Contains(h.Addresses, text) {
			h.Addresses = append(h.Addresses, text)
		}
	}
	return h
}

// list names the interfaces, for messages.
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
