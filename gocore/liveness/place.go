package liveness

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/paddlempi/paddlempi/gocore/netif"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Place is where a rank listens.
type Place struct {
	Host      string // the name of its host
	Port      uint16 // 0: it does not listen
	Addresses []netip.Addr
}

const (
	maxAddresses = 3
	addressesAt  = 8 // where they are in the bytes of a Place, behind the port
	hostAt       = addressesAt + 16*maxAddresses
	// PlaceWords is the number of words of a Place.
	PlaceWords = (hostAt + 64) / 8
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
	var b [8 * PlaceWords]byte
	binary.LittleEndian.PutUint16(b[:], p.Port)
	for i, a := range p.Addresses[:min(len(p.Addresses), maxAddresses)] {
		address := a.As16()
		copy(b[addressesAt+16*i:], address[:])
	}
	copy(b[hostAt:], p.Host)
	_, _ = binary.Decode(b[:], binary.LittleEndian, &w)
	return w
}

// PlaceOf returns the place in w.
func PlaceOf(w [PlaceWords]int64) Place {
	b, _ := binary.Append(nil, binary.LittleEndian, w)
	p := Place{Port: binary.LittleEndian.Uint16(b)}
	for i := addressesAt; i < hostAt; i += 16 {
		if a := netip.AddrFrom16([16]byte(b[i:])).Unmap(); !a.IsUnspecified() {
			p.Addresses = append(p.Addresses, a)
		}
	}
	host := status.ASCII(strings.TrimRight(string(b[hostAt:]), "\x00")) // it is shown to the user
	p.Host = strings.ReplaceAll(host, " ", "?")
	return p
}

func (p Place) String() string { return fmt.Sprintf("%v, port %d", p.Addresses, p.Port) }
