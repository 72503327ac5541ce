package netif

import (
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/status"
)

func addresses(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

// fake is a host called node, with an Ethernet, an InfiniBand, and containers of its own.
func fake(resolved []netip.Addr, vars map[string]string) *machine {
	return &machine{
		env:     func(name string) (string, bool) { v, ok := vars[name]; return v, ok },
		name:    func() (string, error) { return "node", nil },
		resolve: func(string) []netip.Addr { return resolved },
		interfaces: func() ([]nic, error) {
			return []nic{
				{"lo", true, addresses("127.0.0.1", "::1")},
				{"docker0", false, addresses("172.17.0.1", "fd00:d::1")},
				{"eth0", false, addresses("fe80::1", "fd00::2", "10.0.0.1")},
				{"eth01", false, addresses("10.9.0.1")},
				{"ib0", false, addresses("10.1.0.1")},
				{"ib1", false, addresses("10.2.0.1", "10.2.0.2")},
			}, nil
		},
	}
}

func TestInterfacesAndName(t *testing.T) {
	everywhere := []string{"10.0.0.1", "10.9.0.1", "10.1.0.1", "10.2.0.1", "10.2.0.2", "fd00::2", "172.17.0.1", "fd00:d::1"}
	for name, c := range map[string]struct {
		resolved []netip.Addr
		name     string
		first    []string // of everywhere, and before the rest of it
	}{
		"no such name":          {nil, "", nil},
		"Debian's /etc/hosts":   {addresses("127.0.1.1", "::1"), "", nil},
		"an interface":          {addresses("10.1.0.1"), "node", []string{"10.1.0.1"}},
		"an address from a NAT": {addresses("192.0.2.7"), "node", []string{"192.0.2.7"}},
		"both kinds, and twice": {addresses("fd00::2", "10.1.0.1", "fd00::2"), "node", []string{"fd00::2", "10.1.0.1"}},
		"no use to others":      {addresses("fe80::1", "0.0.0.0"), "", nil},
	} {
		h, err := fake(c.resolved, nil).find(Options{})
		require.NoError(t, err, name)
		want := slices.Clone(c.first)
		for _, a := range everywhere {
			if !slices.Contains(c.first, a) {
				want = append(want, a)
			}
		}
		assert.Equal(t, Host{c.name, want}, h, name)
	}
}

func TestOneHostMeetsAtItsLoopback(t *testing.T) {
	h, err := fake(addresses("10.0.0.1"), map[string]string{"GLOO_SOCKET_IFNAME": "ib0"}).find(Options{OneHost: true, Other: "GLOO_SOCKET_IFNAME"})
	assert.Equal(t, Host{"", []string{"127.0.0.1"}}, h)
	assert.NoError(t, err)
	h, err = fake(nil, map[string]string{Variable: "ib0"}).find(Options{OneHost: true})
	assert.Equal(t, Host{"", []string{"10.1.0.1"}}, h, "ours is before all")
	assert.NoError(t, err)
}

func TestVariablesNameInterfaces(t *testing.T) {
	for wanted, want := range map[string][]string{
		"ib0":            {"10.1.0.1"},
		"ib":             {"10.1.0.1", "10.2.0.1", "10.2.0.2"},
		"eth0":           {"fd00::2", "10.0.0.1"}, // not eth01: it is called so
		"ib1, eth01":     {"10.2.0.1", "10.2.0.2", "10.9.0.1"},
		"10.1.0.0/16":    {"10.1.0.1"},
		"10.0.0.0/14":    {"10.0.0.1", "10.1.0.1", "10.2.0.1", "10.2.0.2"},
		"10.2.0.2":       {"10.2.0.2"},
		"fd00::/64":      {"fd00::2"},
		"lo":             {"127.0.0.1", "::1"},
		"nosuch,docker0": {"172.17.0.1", "fd00:d::1"},
	} {
		for _, variable := range []string{Variable, "GLOO_SOCKET_IFNAME"} {
			h, err := fake(addresses("10.0.0.1"), map[string]string{variable: wanted}).find(Options{Other: "GLOO_SOCKET_IFNAME"})
			require.NoError(t, err, wanted)
			assert.Equal(t, Host{"", want}, h, "%s=%s", variable, wanted)
		}
	}
	h, err := fake(nil, map[string]string{Variable: "ib0", "GLOO_SOCKET_IFNAME": "eth0"}).find(Options{Other: "GLOO_SOCKET_IFNAME"})
	require.NoError(t, err)
	assert.Equal(t, []string{"10.1.0.1"}, h.Addresses)
}

func TestAVariableThatNamesNothing(t *testing.T) {
	_, err := fake(nil, map[string]string{Variable: "ib7"}).find(Options{})
	assert.Equal(t, status.Argument, status.CodeOf(err))
	for _, part := range []string{"PADDLEMPI_IFNAME=ib7", "ib0 10.1.0.1", "lo 127.0.0.1"} {
		assert.ErrorContains(t, err, part)
	}
	h, err := fake(addresses("10.0.0.1"), map[string]string{Variable: "", "GLOO_SOCKET_IFNAME": "ib7"}).find(Options{Other: "GLOO_SOCKET_IFNAME"})
	assert.NoError(t, err, "another's is another's to complain about")
	assert.Equal(t, "node", h.Name)
}

func TestThisMachine(t *testing.T) {
	nics, err := interfaces()
	require.NoError(t, err)
	for _, n := range nics {
		if n.loopback {
			assert.Contains(t, n.addresses, netip.MustParseAddr("127.0.0.1"))
		}
		assert.NotEmpty(t, n.addresses, n.name)
	}
	assert.Contains(t, resolve("127.0.0.1"), netip.MustParseAddr("127.0.0.1"))
	assert.Contains(t, resolve("::1"), netip.MustParseAddr("::1"))
	assert.Empty(t, resolve("no such host"))
	if os.Getenv(Variable) == "" {
		h, err := Find(Options{OneHost: true})
		assert.NoError(t, err)
		assert.Equal(t, []string{"127.0.0.1"}, h.Addresses)
	}
}
