package netif

/*
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
*/
import "C"

import (
	"net/netip"
	"slices"
	"unsafe"
)

// The C library and not Go's package net, which would link another library and may resolve names
// otherwise than the processes that listen.

// interfaces lists those that are up and have an address.
func interfaces() ([]nic, error) {
	var first *C.struct_ifaddrs
	if rc, err := C.getifaddrs(&first); rc != 0 {
		return nil, err
	}
	defer C.freeifaddrs(first)
	var nics []nic
	for p := first; p != nil; p = p.ifa_next {
		address, ok := addressOf(p.ifa_addr)
		if !ok || p.ifa_flags&C.IFF_UP == 0 {
			continue
		}
		name := C.GoString(p.ifa_name)
		i := slices.IndexFunc(nics, func(n nic) bool { return n.name == name })
		if i < 0 {
			i = len(nics)
			nics = append(nics, nic{name: name, loopback: p.ifa_flags&C.IFF_LOOPBACK != 0})
		}
		nics[i].addresses = append(nics[i].addresses, address)
	}
	return nics, nil
}

// resolve returns the addresses of a host, none where its name is not known.
func resolve(name string) (found []netip.Addr) {
	node := C.CString(name)
	defer C.free(unsafe.Pointer(node))
	hints := C.struct_addrinfo{ai_socktype: C.SOCK_STREAM}
	var first *C.struct_addrinfo
	if C.getaddrinfo(node, nil, &hints, &first) != 0 {
		return nil
	}
	defer C.freeaddrinfo(first)
	for p := first; p != nil; p = p.ai_next {
		if address, ok := addressOf(p.ai_addr); ok {
			found = append(found, address)
		}
	}
	return found
}

func addressOf(s *C.struct_sockaddr) (netip.Addr, bool) {
	switch {
	case s == nil:
	case s.sa_family == C.AF_INET:
		in := (*C.struct_sockaddr_in)(unsafe.Pointer(s))
		return netip.AddrFrom4(*(*[4]byte)(unsafe.Pointer(&in.sin_addr))), true
	case s.sa_family == C.AF_INET6:
		in := (*C.struct_sockaddr_in6)(unsafe.Pointer(s))
		return netip.AddrFrom16(*(*[16]byte)(unsafe.Pointer(&in.sin6_addr))), true
	}
	return netip.Addr{}, false
}
