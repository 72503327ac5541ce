package topo

import (
	"math/bits"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/cgroup"
)

// cpuWords is the length of an affinity mask. It holds 1024 CPUs, which is the kernel's limit for
// the plain form of the system call.
const cpuWords = 16

// mask is a set of CPUs.
type mask [cpuWords]uint64

// affinity returns the CPUs on which this process may run (sched_getaffinity(2)). The machine may
// have more, because a launcher usually binds a rank to one core.
func affinity() (m mask) {
	_, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_GETAFFINITY, uintptr(syscall.Getpid()), unsafe.Sizeof(m), uintptr(unsafe.Pointer(&m)))
	if errno != 0 {
		m[0] = 1
	}
	return m
}

func count(m mask) (n int) {
	for _, w := range m {
		n += bits.OnesCount64(w)
	}
	return n
}

func (m mask) has(cpu int) bool {
	return cpu < 64*cpuWords && m[cpu/64]>>(cpu%64)&1 != 0
}

func (m mask) meets(other mask) bool {
	for i, w := range m {
		if w&other[i] != 0 {
			return true
		}
	}
	return false
}

func union(masks []mask) (all mask) {
	for _, m := range masks {
		for i, w := range m {
			all[i] |= w
		}
	}
	return all
}

// CPUs says how many CPUs a rank may use, and how many ranks use them.
type CPUs struct {
	Allowed int     // CPUs on which the rank may run
	Ranks   int     // ranks of the node that may run on some of these CPUs, with the rank itself
	Before  int     // those of Ranks whose local rank is lower
	Quota   float64 // CPUs that the rank's cgroups may use at the same time; +Inf without a quota
	// QuotaRanks and QuotaBefore are Ranks and Before for the quota. Every rank of the node is taken to
	// be in the same cgroups.
	QuotaRanks, QuotaBefore int

	mask mask
}

// cpusOf returns the CPUs of one rank of a node. masks has those of all its ranks, by local rank.
func cpusOf(masks []mask, local int) CPUs {
	c := CPUs{Allowed: count(masks[local]), Quota: cgroup.CPUs(), QuotaRanks: len(masks), QuotaBefore: local, mask: masks[local]}
	for r, m := range masks {
		if m.meets(c.mask) {
			c.Ranks++
			if r < local {
				c.Before++
			}
		}
	}
	return c
}

// Spare tells whether there is a CPU for a second thread of the rank that computes, after every rank
// got one for its first. If there are fewer such CPUs than ranks, the lower ranks have them.
func (c *CPUs) Spare() bool {
	return c.Allowed-c.Ranks > c.Before && c.Quota-float64(c.QuotaRanks) >= float64(c.QuotaBefore+1)
}

// Idleness measures how much of the rank's CPUs is idle.
type Idleness struct {
	stat string // the kernel's statistics, proc_stat(5)
	mask mask
	last times
}

// times are the times, in ticks since boot, that some CPUs were idle, and that passed, all CPUs
// together.
type times struct{ idle, all uint64 }

// Idleness begins a measurement.
func (c *CPUs) Idleness() *Idleness {
	i := &Idleness{stat: "/proc/stat", mask: c.mask}
	i.last = i.read()
	return i
}

// Idle tells whether a CPU was idle for half of the time since the last call, or more. It takes up to
// a millisecond on a machine with many CPUs.
func (i *Idleness) Idle() bool {
	now := i.read()
	idle, all := now.idle-i.last.idle, now.all-i.last.all
	i.last = now
	// The kernel's count of the idle time may go back a little.
	return all > 0 && idle <= all && 2*idle*uint64(count(i.mask)) >= all
}

func (i *Idleness) read() (t times) {
	text, _ := os.ReadFile(i.stat)
	for _, line := range strings.Split(string(text), "\n") {
		// cpuN user nice system idle iowait irq softirq steal; the guests' times are in user and nice.
		words := strings.Fields(line)
		if len(words) < 9 {
			continue
		}
		cpu, err := strconv.Atoi(strings.TrimPrefix(words[0], "cpu"))
		if err != nil || !i.mask.has(cpu) {
			continue
		}
		for k, word := range words[1:9] {
			ticks, _ := strconv.ParseUint(word, 10, 64)
			t.all += ticks
			if k == 3 || k == 4 {
				t.idle += ticks
			}
		}
	}
	return t
}
