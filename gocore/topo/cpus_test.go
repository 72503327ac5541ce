package topo

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// cpus makes a mask of CPUs from to to.
func cpus(from, to int) (m mask) {
	for cpu := from; cpu <= to; cpu++ {
		m[cpu/64] |= 1 << (cpu % 64)
	}
	return m
}

func TestSpareCPUs(t *testing.T) {
	unlimited := math.Inf(1)
	for name, c := range map[string]struct {
		masks []mask
		quota float64
		want  []bool // by rank
	}{
		"one core for each":                {[]mask{cpus(0, 0), cpus(1, 1)}, unlimited, []bool{false, false}},
		"as many ranks as CPUs":            {[]mask{cpus(0, 1), cpus(0, 1)}, unlimited, []bool{false, false}},
		"one more CPU":                     {[]mask{cpus(0, 2), cpus(0, 2)}, unlimited, []bool{true, false}},
		"two more CPUs":                    {[]mask{cpus(0, 3), cpus(0, 3)}, unlimited, []bool{true, true}},
		"more ranks than CPUs":             {[]mask{cpus(0, 1), cpus(0, 1), cpus(0, 1)}, unlimited, []bool{false, false, false}},
		"two cores for each":               {[]mask{cpus(62, 63), cpus(64, 65)}, unlimited, []bool{true, true}},
		"masks that overlap":               {[]mask{cpus(0, 2), cpus(2, 3)}, unlimited, []bool{true, false}},
		"a quota that leaves none":         {[]mask{cpus(0, 7), cpus(0, 7)}, 2.9, []bool{false, false}},
		"a quota that leaves one":          {[]mask{cpus(0, 7), cpus(0, 7)}, 3, []bool{true, false}},
		"a quota for cores of their own":   {[]mask{cpus(0, 1), cpus(2, 3)}, 2, []bool{false, false}},
		"a quota of more than the machine": {[]mask{cpus(0, 1), cpus(0, 1)}, 64, []bool{false, false}},
	} {
		t.Run(name, func(t *testing.T) {
			for rank, want := range c.want {
				own := cpusOf(c.masks, rank)
				own.Quota = c.quota
				assert.Equal(t, want, own.Spare(), "rank %d: %+v", rank, own)
			}
		})
	}
}

func TestIdleness(t *testing.T) {
	stat := filepath.Join(t.TempDir(), "stat")
	// Times of CPU 1 and CPU 2, in ticks: busy and idle. CPU 0 does not count.
	write := func(busy1, idle1, busy2, idle2 string) {
		text := "cpu  9 9 9 9 9 9 9 9 0 0\n" +
			"cpu0 100 0 0 90000 0 0 0 0 0 0\n" +
			"cpu1 " + busy1 + " 0 0 " + idle1 + " 0 0 0 0 7 7\n" +
			"cpu2 0 0 " + busy2 + " 0 " + idle2 + " 0 0 0 0 0\n" +
			"intr 1 2 3 4 5 6 7 8 9\nctxt 77\n"
		require.NoError(t, os.WriteFile(stat, []byte(text), 0o644))
	}
	write("1000", "1000", "1000", "1000")
	i := &Idleness{stat: stat, mask: cpus(1, 2)}
	i.last = i.read()
	assert.False(t, i.Idle(), "no time has passed")
	write("1010", "1000", "1010", "1000")
	assert.False(t, i.Idle(), "both are busy")
	write("1015", "1005", "1020", "1000")
	assert.True(t, i.Idle(), "one is idle for half of the time")
	write("1021", "1009", "1030", "1000")
	assert.False(t, i.Idle(), "less")
	write("1031", "1009", "1030", "1010")
	assert.True(t, i.Idle(), "waiting for a disk is idle")
	write("1041", "1009", "1040", "1005")
	assert.False(t, i.Idle(), "the count went back")
	require.NoError(t, os.Remove(stat))
	assert.False(t, i.Idle())
	assert.False(t, i.Idle())

	own := cpusOf([]mask{affinity()}, 0)
	i = own.Idleness()
	assert.NotZero(t, i.last.all, "/proc/stat")
}
