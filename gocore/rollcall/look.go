package rollcall

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/process"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// This file finds out about ranks that have not come: what their processes do, if there are any. A process counts as one of
// a rank if it is below the launcher and has the rank's variables.

// absent is what is known of the ranks of this node that have not come.
type absent struct {
	ranks []int  // as far as they are known
	who   string // those ranks, and those of which only the number on this node is known
	what  string // what they do instead
	apart string // why it is no use to wait for them; "": it is
}

// described is how many ranks a text describes.
const described = 4

// absent looks at the ranks that have not come. Those that had come, and have left since, are named if no other is missing.
func (r *roll) absent() absent {
	all := below(r.place.PID)
	found := processesOf(r.place, all)
	for rank, p := range found {
		r.known[rank] = p.local
	}
	ranks, locals := r.missing()
	a := absent{ranks: ranks}
	if len(a.ranks) == 0 && len(locals) == 0 {
		a.ranks = slices.Sorted(maps.Keys(r.left))
	}
	a.who = who(r.place, a.ranks, locals)
	var text []string
	for _, rank := range a.ranks[:min(len(a.ranks), described)] {
		text = append(text, found[rank].describe(rank, r.hasLeft(rank)))
	}
	if len(locals) > 0 {
		text = append(text, fmt.Sprintf("local rank(s) %s have no process on this host: they have ended, or were never started", status.Brief(locals)))
	}
	a.what = strings.Join(text, "; ")
	for _, rank := range a.ranks {
		if p := found[rank]; p.apart != "" {
			a.apart = fmt.Sprintf("rank %d is not waited for before MPI_Init: its process %d (%s) %s", rank, p.pid, p.name, p.apart)
		}
	}
	if p := r.hidden(all); p != nil && a.apart == "" {
		a.apart = fmt.Sprintf("a rank is not waited for before MPI_Init: process %d (%s) may be one, and cannot be looked at: it may be in "+
			"another user namespace", p.PID, printable(p.Name))
	}
	return a
}

func (r *roll) hasLeft(rank int) bool {
	_, left := r.left[rank]
	return left
}

// missing returns the ranks of this node that never came, and the numbers on this node of those whose rank cannot be known:
// where the job has other nodes, and neither their processes were seen nor does it show in which order the ranks are.
func (r *roll) missing() (ranks, locals []int) {
	p := r.place
	known := maps.Clone(r.known) // the number on this node, by rank
	for rank, g := range r.came {
		known[rank] = g.local
	}
	maps.Copy(known, r.left)
	here := map[int]bool{}
	first, inOrder := -1, len(known) > 1 // the ranks of this node follow each other
	for rank, local := range known {
		here[local] = true
		inOrder = inOrder && (first < 0 || rank-local == first)
		first = rank - local
	}
	if p.LocalSize == p.Size {
		first, inOrder = 0, true
	}
	for local := range p.LocalSize {
		switch rank := first + local; {
		case here[local]:
		case inOrder && rank >= 0 && rank < p.Size:
			known[rank] = local
		default:
			locals = append(locals, local)
		}
	}
	for rank := range known {
		if _, came := r.came[rank]; !came && !r.hasLeft(rank) {
			ranks = append(ranks, rank)
		}
	}
	slices.Sort(ranks)
	return ranks, locals
}

// who names ranks, and the number of those among which they are.
func who(p mpi.LauncherInfo, ranks, locals []int) string {
	among := fmt.Sprintf("of %d", p.Size)
	if p.LocalSize < p.Size {
		among = fmt.Sprintf("of the %d ranks of this host", p.LocalSize)
	}
	var named []string
	if len(ranks) > 0 {
		named = append(named, "rank(s) "+status.Brief(ranks))
	}
	if len(locals) > 0 {
		named = append(named, "local rank(s) "+status.Brief(locals))
	}
	if len(named) == 0 {
		named = []string{"some"}
	}
	return strings.Join(named, " and ") + " " + among
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
func (r *roll) hidden(all []process.Process) *process.Process {
	known := map[int]bool{os.Getpid(): true}
	for _, g := range r.came {
		if g.link != nil {
			known[g.pid] = true
		}
	}
	for _, p := range all { // parents come before their children
		known[p.PID] = known[p.PID] || known[p.Parent]
	}
	for _, p := range slices.Backward(all) {
		known[p.Parent] = known[p.Parent] || known[p.PID]
	}
	for i, p := range all {
		if known[p.PID] || p.Ended() {
			continue
		}
		var status syscall.Stat_t
		path := fmt.Sprintf("/proc/%d", p.PID)
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
	local   int // of the rank, on this node
	name    string
	stopped bool
	apart   string // why the rank does not come here; "": it may
}

// processesOf returns, by rank, the process that the launcher has started for each rank of this node, and that still runs.
func processesOf(l mpi.LauncherInfo, all []process.Process) map[int]seen {
	found := map[int]seen{}
	for _, p := range all {
		place, err := l.Of(p.PID)
		if err != nil || place.Rank < 0 {
			continue
		}
		s, there := found[place.Rank]
		if !there {
			s = seen{pid: p.PID, local: place.LocalRank, name: printable(p.Name)}
		}
		s.stopped = s.stopped || p.Stopped()
		if s.apart == "" {
			s.apart = apart(p.PID)
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

// below returns the processes below another one, those that are nearest to it first.
func below(pid int) []process.Process {
	entries, err := os.ReadDir(process.Folder)
	if err != nil {
		return nil
	}
	children := map[int][]process.Process{}
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			if p, err := process.Read(process.Folder, n); err == nil {
				children[p.Parent] = append(children[p.Parent], p)
			}
		}
	}
	found := slices.Clone(children[pid])
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i].PID]...)
	}
	return found
}
