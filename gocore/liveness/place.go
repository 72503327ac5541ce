package liveness

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/paddlempi/paddlempi/gocore/netif"
)

// Place is where a rank listens.
type Place struct {
	Host      string // the name of its host
	Port      uint16 // 0: it does not listen
	Addresses []netip.Addr
}

const (
	maxAddresses = 3
	hostWords    = 8
	// PlaceWords is the number of words of a Place.
	PlaceWords = 1 + 2*maxAddresses + hostWords
)

// loopback is where the ranks of one host find each other, whatever becomes of its interfaces.
var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// here returns the place of this rank, which listens at port.
func here(port uint16) (Place, error) {
	found, err := netif.Find(netif.Options{})
	if err != nil {
		return Place{}, err
	}
	p := Place{Host: "?", Port: port}
	if name, err := os.Hostname(); err == nil {
		p.Host = name
	}
	for _, text := range found.Addresses {
		if a, err := netip.ParseAddr(text); err == nil && len(p.Addresses) < maxAddresses {
			p.Addresses = append(p.Addresses, a.Unmap())
		}
	}
	if len(p.Addresses) == 0 {
		p.Addresses = []netip.Addr{loopback} // the nodes may be containers of one host
	}
	return p, nil
}

// Words returns a place as numbers. PlaceOf reads them.
func (p Place) Words() (w [PlaceWords]int64) {
	w[0] = int64(p.Port)
	for i, a := range p.Addresses[:min(len(p.Addresses), maxAddresses)] {
		b := a.As16()
		w[1+2*i], w[2+2*i] = int64(binary.BigEndian.Uint64(b[:])), int64(binary.BigEndian.Uint64(b[8:]))
	}
	var name [8 * hostWords]byte
	copy(name[:], p.Host)
	for i := range hostWords {
		w[1+2*maxAddresses+i] = int64(binary.LittleEndian.Uint64(name[8*i:]))
	}
	return w
}

// PlaceOf returns the place in w.
func PlaceOf(w [PlaceWords]int64) Place {
	p := Place{Port: uint16(w[0])}
	for i := range maxAddresses {
		var b [16]byte
		binary.BigEndian.PutUint64(b[:], uint64(w[1+2*i]))
		binary.BigEndian.PutUint64(b[8:], uint64(w[2+2*i]))
		if a := netip.AddrFrom16(b).Unmap(); !a.IsUnspecified() {
			p.Addresses = append(p.Addresses, a)
		}
	}
	var name []byte
	for i := range hostWords {
		name = binary.LittleEndian.AppendUint64(name, uint64(w[1+2*maxAddresses+i]))
	}
	p.Host = strings.Map(func(r rune) rune { // it is shown to the user
		if r <= ' ' || r > '~' {
			return '?'
		}
		return r
	}, strings.TrimRight(string(name), "\x00"))
	return p
}

func (p Place) String() string { return fmt.Sprintf("%v, port %d", p.Addresses, p.Port) }
