package liveness

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/status"
)

func TestPlaceTravels(t *testing.T) {
	for _, p := range []Place{
		{Host: "h1", Port: 65535, Addresses: []netip.Addr{netip.MustParseAddr("10.77.0.1"), netip.MustParseAddr("fd00::1"), loopback}},
		{Host: strings.Repeat("x", 64), Port: 1, Addresses: []netip.Addr{loopback}},
		{},
	} {
		assert.Equal(t, p, PlaceOf(p.Words()))
	}
	long := Place{Host: strings.Repeat("x", 70), Addresses: make([]netip.Addr, 0)}
	for i := range 5 {
		long.Addresses = append(long.Addresses, addressOf(i))
	}
	cut := PlaceOf(long.Words())
	assert.Equal(t, long.Host[:64], cut.Host)
	assert.Equal(t, long.Addresses[:maxAddresses], cut.Addresses)
}

func TestTheSetting(t *testing.T) {
	for text, want := range map[string]time.Duration{"": 5 * time.Second, "0": 0, "2": 2 * time.Second, "7.5": 7500 * time.Millisecond, "86400": 24 * time.Hour} {
		t.Setenv(Variable, text)
		after, err := After()
		assert.NoError(t, err, text)
		assert.Equal(t, want, after, text)
	}
	for _, text := range []string{"1.9", "-1", "nan", "inf", "1e99", "five", "86401"} {
		t.Setenv(Variable, text)
		_, err := After()
		assert.Equal(t, status.Argument, status.CodeOf(err), text)
		assert.ErrorContains(t, err, "PADDLEMPI_DEAD_AFTER="+text+" is neither 0 nor a number of seconds from 2 to 86400")
	}
}

func TestTheKernelGivesUpInTime(t *testing.T) {
	for after := leastAfter; after <= 100*time.Second; after += 100 * time.Millisecond {
		l := limitsOf(after)
		probe := time.Duration(l.probe) * time.Second
		assert.Zero(t, l.silence%probe)
		assert.LessOrEqual(t, l.silence, after, "PADDLEMPI_DEAD_AFTER=%v", after)
		assert.Greater(t, l.silence, probe, "a probe has been sent and not answered")
		assert.LessOrEqual(t, l.dial, after)
	}
	l := limitsOf(defaultAfter)
	assert.Equal(t, 1, l.probe)
	assert.Equal(t, 4*time.Second, l.silence)
}
