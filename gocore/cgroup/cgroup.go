// Package cgroup reads how much memory and how many CPUs the control groups of this process allow.
// It knows version 2 and version 1. A cgroup that cannot be read counts as one without a limit.
package cgroup

import (
	"bufio"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
)

// tree says where the cgroups of this process are: the file with their paths, and where their file
// systems are mounted.
type tree struct{ proc, root string }

var system = tree{"/proc/self/cgroup", "/sys/fs/cgroup"}

// MemoryLeft returns how many bytes the cgroups of this process may still take, and the cgroup that
// has the fewest. It returns math.MaxInt64 if there is no limit.
func MemoryLeft() (left int64, where string) { return system.memoryLeft() }

// CPUs returns how many CPUs the cgroups of this process may use at the same time: the quota divided
// by its period. It returns +Inf if there is no quota.
func CPUs() float64 { return system.cpus() }

func (t tree) memoryLeft() (left int64, where string) {
	left = math.MaxInt64
	t.eachLimit(func(_, name string, rest int64) {
		if rest < left {
			left, where = rest, name
		}
	})
	return left, where
}

// eachLimit calls f with every cgroup of this process that has a limit of memory, and what it has left.
func (t tree) eachLimit(f func(cgroup, name string, rest int64)) {
	t.each("memory", func(cgroup, name string, version int) {
		most, now, prefix := "memory.max", "memory.current", ""
		if version == 1 {
			most, now, prefix = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
		}
		limit, ok := number(cgroup, most)
		used, ok2 := number(cgroup, now)
		if !ok || !ok2 || limit >= unlimited {
			return
		}
		// The kernel gives up its copies of files before it refuses memory.
		stat := fields(cgroup, "memory.stat")
		used -= stat[prefix+"active_file"] + stat[prefix+"inactive_file"]
		f(cgroup, name, max(0, limit-used))
	})
}

func (t tree) cpus() float64 {
	least := math.Inf(1)
	t.each("cpu", func(cgroup, _ string, version int) {
		var quota, period int64
		if version == 1 {
			quota, _ = number(cgroup, "cpu.cfs_quota_us") // -1 without a quota
			period, _ = number(cgroup, "cpu.cfs_period_us")
		} else if words := strings.Fields(text(cgroup, "cpu.max")); len(words) == 2 {
			quota, _ = strconv.ParseInt(words[0], 10, 64) // "max" without a quota
			period, _ = strconv.ParseInt(words[1], 10, 64)
		}
		if quota > 0 && period > 0 {
			least = min(least, float64(quota)/float64(period))
		}
	})
	return least
}

// each calls f with every cgroup of this process for a controller, and with those above, because
// their limits hold as well. f gets the folder of the cgroup, its name, and the version of its
// hierarchy.
func (t tree) each(controller string, f func(cgroup, name string, version int)) {
	file, err := os.Open(t.proc)
	if err != nil {
		return
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		// hierarchy:controllers:path; version 2 has the hierarchy 0 and no controllers.
		parts := strings.SplitN(lines.Text(), ":", 3)
		if len(parts) != 3 {
			continue
		}
		folder, version := t.root, 2
		switch {
		case parts[0] == "0" && parts[1] == "":
		case strings.Contains(","+parts[1]+",", ","+controller+","):
			folder, version = path.Join(t.root, controller), 1
		default:
			continue
		}
		for name := path.Clean("/" + parts[2]); ; name = path.Dir(name) {
			f(path.Join(folder, name), name, version)
			if name == "/" {
				break
			}
		}
	}
}

// unlimited is less than what version 1 shows for "no limit": the last page of an int64.
const unlimited = 1 << 62

// text returns what a file of a cgroup says, "" if it cannot be read.
func text(cgroup, file string) string {
	b, _ := os.ReadFile(path.Join(cgroup, file))
	return strings.TrimSpace(string(b))
}

// number reads a number. ok is false if there is none, or the word max.
func number(cgroup, file string) (n int64, ok bool) {
	n, err := strconv.ParseInt(text(cgroup, file), 10, 64)
	return n, err == nil
}

// fields reads lines of a name and a number.
func fields(cgroup, file string) map[string]int64 {
	found := map[string]int64{}
	for _, line := range strings.Split(text(cgroup, file), "\n") {
		if name, value, ok := strings.Cut(line, " "); ok {
			found[name], _ = strconv.ParseInt(value, 10, 64)
		}
	}
	return found
}
