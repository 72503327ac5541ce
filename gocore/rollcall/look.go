package rollcall

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// This file finds out about ranks that have not come: what their processes do, if there are any. A process counts as one of
// a rank if it is below the launcher and has the rank's variables.

// absent is what is known of the ranks of this node that have not come.
type absent struct {
	ranks []int  // of the job, as far as they are known
	more  int    // how many more there are
	what  string // what they do instead
	apart string // why it is no use to wait for them; "": it is
}

// who names the ranks, with the number of those among which they are.
func (a absent) who(p mpi.LauncherInfo) string {
	among := fmt.Sprintf("%d", p.Size)
	if p.LocalSize < p.Size {
		among = fmt.Sprintf("the %d ranks of this host", p.LocalSize)
	}
	switch {
	case len(a.ranks) == 0 && a.more == 0:
		return fmt.Sprintf("some of %s", among)
	case len(a.ranks) == 0:
		return fmt.Sprintf("%d of %s", a.more, among)
	case a.more == 0:
		return fmt.Sprintf("rank(s) %s of %s", status.Brief(a.ranks), among)
	}
	return fmt.Sprintf("rank(s) %s and %d more of %s", status.Brief(a.ranks), a.more, among)
}

// described is how many ranks a text describes.
const described = 4

// absent looks at the ranks that have not come. Those that had come, and have left since, are named if no other is missing.
func (r *roll) absent() absent {
	all := below(r.place.PID)
	found := processesOf(r.place, all)
	var a absent
	var left []int
	for rank := range r.place.Size {
		_, came := r.came[rank]
		_, runs := found[rank]
		switch {
		case came:
		case r.left[rank]:
			left = append(left, rank)
		case runs || r.place.LocalSize == r.place.Size:
			a.ranks = append(a.ranks, rank)
		}
	}
	a.more = r.place.LocalSize - len(r.came) - len(left) - len(a.ranks)
	if a.more == 0 && len(a.ranks) == 0 {
		a.ranks = left
	}
	var text []string
	for _, rank := range a.ranks[:min(len(a.ranks), described)] {
		text = append(text, found[rank].describe(rank, r.left[rank]))
	}
	if a.more > 0 {
		text = append(text, fmt.Sprintf("%d more have no process on this host that can be seen: they have ended, or were never started", a.more))
	}
	a.what = strings.Join(text, "; ")
	for _, rank := range a.ranks {
		if p := found[rank]; p.apart != "" {
			a.apart = fmt.Sprintf("rank %d is not waited for before MPI_Init: its process %d (%s) %s", rank, p.pid, p.name, p.apart)
		}
	}
	if p := r.hidden(all); p != nil && a.apart == "" {
		a.apart = fmt.Sprintf("a rank is not waited for before MPI_Init: process %d (%s) may be one, and cannot be looked at: it may be in "+
			"another user namespace", p.pid, p.name)
	}
	return a
}

// describe says what a rank does that is missing. left tells that it had come before.
func (s seen) describe(rank int, left bool) string {
	switch {
	case left:
		return fmt.Sprintf("rank %d had come, and has given up or ended", rank)
	case s.pid == 0:
		return fmt.Sprintf("rank %d has no process on this host: it has ended, or was never started", rank)
	case s.stopped:
		return fmt.Sprintf("the process of rank %d, %d (%s), is stopped", rank, s.pid, s.name)
	}
	return fmt.Sprintf("the process of rank %d, %d (%s), runs", rank, s.pid, s.name)
}

// hidden returns one of the processes that this process may not look at, and that may be of a rank that has not come: this
// user has them, and no rank that has come is above or below them. It is nil if there is none.
func (r *roll) hidden(all []process) *process {
	known := map[int]bool{os.Getpid(): true}
	for _, g := range r.came {
		if g.link != nil {
			known[g.pid] = true
		}
	}
	for _, p := range all { // parents come before their children
		known[p.pid] = known[p.pid] || known[p.parent]
	}
	for _, p := range slices.Backward(all) {
		known[p.parent] = known[p.parent] || known[p.pid]
	}
	for i, p := range all {
		if known[p.pid] || p.state == 'Z' || p.state == 'X' {
			continue
		}
		var status syscall.Stat_t
		path := fmt.Sprintf("/proc/%d", p.pid)
		if syscall.Stat(path, &status) != nil || int(status.Uid) != os.Geteuid() {
			continue
		}
		if _, err := os.ReadFile(path + "/environ"); errors.Is(err, os.ErrPermission) {
			return &all[i]
		}
	}
	return nil
}

// seen is a process of a rank.
type seen struct {
	pid     int
	name    string
	stopped bool
	apart   string // why the rank does not come here; "": it may
}

// processesOf returns, by rank, the process that the launcher has started for each rank of this node, and that still runs.
func processesOf(l mpi.LauncherInfo, all []process) map[int]seen {
	found := map[int]seen{}
	for _, p := range all {
		place, err := l.Of(p.pid)
		if err != nil || place.Rank < 0 {
			continue
		}
		s, there := found[place.Rank]
		if !there {
			s = seen{pid: p.pid, name: p.name}
		}
		s.stopped = s.stopped || p.state == 'T' || p.state == 't'
		if s.apart == "" {
			s.apart = apart(p.pid)
		}
		found[place.Rank] = s
	}
	return found
}

// apart says why a process of a rank does not come to the roll call; "" if it may come yet.
func apart(pid int) string {
	for _, space := range []string{"net", "pid"} {
		ours, err := os.Readlink("/proc/self/ns/" + space)
		theirs, other := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, space))
		if err == nil && other == nil && ours != theirs {
			return fmt.Sprintf("is in another namespace (%s)", space)
		}
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return ""
	}
	if library := ownMPI(string(maps)); library != "" {
		return fmt.Sprintf("has loaded %s without this library, and may be in MPI_Init", library)
	}
	return ""
}

// ownMPI returns the MPI that a process has loaded by itself, as mpi4py does before init_process_group; "" if it has none. A
// process in which this core runs may have loaded MPI only to look at it (is_available).
func ownMPI(maps string) (library string) {
	var core, mpi4py bool
	for line := range strings.Lines(maps) {
		at := strings.IndexByte(line, '/')
		if at < 0 {
			continue
		}
		file := strings.TrimSpace(line[at:])
		base := path.Base(file)
		switch {
		case strings.HasPrefix(base, "libmpi"):
			library = file
		case strings.Contains(file, "/paddlempi/_core."):
			core = true
		case strings.Contains(file, "/mpi4py/"):
			mpi4py = true
		}
	}
	if core && !mpi4py {
		return ""
	}
	return library
}

// process is a process as /proc/PID/stat shows it.
type process struct {
	pid, parent int
	name        string
	state       byte
	since       string // when it began, in ticks since the host did
}

// below returns the processes below another one, those that are nearest to it first.
func below(pid int) []process {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := map[int][]process{}
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			if p, err := statOf(n); err == nil {
				children[p.parent] = append(children[p.parent], p)
			}
		}
	}
	found := slices.Clone(children[pid])
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i].pid]...)
	}
	return found
}

// statOf reads /proc/PID/stat: pid (name) state parent ... The name may have spaces and parentheses.
func statOf(pid int) (process, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, err
	}
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return process{}, os.ErrInvalid
	}
	fields := strings.Fields(string(b[end+1:]))
	if len(fields) < 20 {
		return process{}, os.ErrInvalid
	}
	parent, err := strconv.Atoi(fields[1])
	return process{pid: pid, parent: parent, name: string(b[open+1 : end]), state: fields[0][0], since: fields[19]}, err
}
