package mpifake

import (
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// comm is a communicator. All its ranks share the object, and each rank has a handle of its own for
// it. world.mu guards it.
type comm struct {
	w     *world
	id    int
	ranks []int // world ranks

	// Collectives. The k-th call of each rank meets the k-th call of the other ranks.
	seq      []uint64
	meetings map[uint64]*meeting

	// Messages by destination: those that arrived before a receive, and receives that wait.
	unexpected [][]*message
	posted     [][]*request

	creating []*meeting // CreateGroups that wait for members
}

func newComm(w *world, ranks []int) *comm {
	w.comms++
	return &comm{
		w: w, id: w.comms, ranks: ranks,
		seq: make([]uint64, len(ranks)), meetings: map[uint64]*meeting{},
		unexpected: make([][]*message, len(ranks)), posted: make([][]*request, len(ranks)),
	}
}

func (c *comm) String() string {
	if c == nil {
		return "no communicator"
	}
	return fmt.Sprintf("communicator %d %v", c.id, c.ranks)
}

func (c *comm) rankOf(world int) int { return slices.Index(c.ranks, world) }

// adopt gives l a handle for c.
func (l *library) adopt(c *comm) mpi.Comm {
	h := mpi.Comm(l.handle())
	l.comms[h] = c
	return h
}

func (l *library) find(h mpi.Comm) (*comm, *status.Error) {
	c := l.comms[h]
	if c == nil {
		return nil, failure(classComm, "rank %d has no communicator %#x: freed, or another rank's handle", l.rank, uintptr(h))
	}
	return c, nil
}

func (l *library) Rank(h mpi.Comm) (int, error) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	c, err := l.find(h)
	if err != nil {
		return 0, err
	}
	return c.rankOf(l.rank), nil
}

func (l *library) Size(h mpi.Comm) (int, error) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	c, err := l.find(h)
	if err != nil {
		return 0, err
	}
	return len(c.ranks), nil
}

// Free forgets this rank's handle. As in MPI, calls under way continue.
func (l *library) Free(h mpi.Comm) error {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if h == l.world {
		return failure(classComm, "MPI_Comm_free of MPI_COMM_WORLD")
	}
	if _, err := l.find(h); err != nil {
		return err
	}
	delete(l.comms, h)
	return nil
}

func (l *library) Dup(h mpi.Comm) (mpi.Comm, error)         { return l.construct(mpi.FnDup, h) }
func (l *library) SplitShared(h mpi.Comm) (mpi.Comm, error) { return l.construct(fnSplitShared, h) }

// construct runs a constructor that is collective over its parent.
func (l *library) construct(fn mpi.Fn, parent mpi.Comm) (mpi.Comm, error) {
	l.w.mu.Lock()
	q, err := l.launch(&mpi.Call{Fn: fn, Comm: parent}, true)
	l.w.mu.Unlock()
	return l.made(q, err)
}

func (l *library) made(q *request, err *status.Error) (mpi.Comm, error) {
	if err == nil {
		err = l.wait(q)
	}
	if err != nil {
		return 0, err
	}
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	return l.adopt(q.made), nil
}

// split makes the communicators of a SplitShared or Dup after all ranks have joined.
func (m *meeting) split() {
	c := m.reqs[0].comm
	made := map[int]*comm{}
	for _, q := range m.reqs {
		color := 0
		if m.fn == fnSplitShared {
			color = c.w.nodes[c.ranks[q.rank]]
		}
		if made[color] == nil {
			var ranks []int
			for _, r := range c.ranks {
				if m.fn != fnSplitShared || c.w.nodes[r] == color {
					ranks = append(ranks, r)
				}
			}
			made[color] = newComm(c.w, ranks)
		}
		q.made = made[color]
	}
}

// CreateGroup meets only the given ranks. Calls with one tag whose ranks overlap but differ fail on
// all ranks that have called.
func (l *library) CreateGroup(parent mpi.Comm, ranks []int32, tag int32) (mpi.Comm, error) {
	l.w.mu.Lock()
	q, err := l.joinGroup(parent, ranks, tag)
	l.w.mu.Unlock()
	return l.made(q, err)
}

// CreateWithout is CreateGroup of the world.
func (l *library) CreateWithout(ranks []int32, name string) (mpi.Comm, error) {
	return l.CreateGroup(l.World(), ranks, int32(crc32.ChecksumIEEE([]byte(name))%uint32(l.w.tagUB)))
}

func (l *library) joinGroup(parent mpi.Comm, ranks []int32, tag int32) (*request, *status.Error) {
	c, err := l.find(parent)
	if err != nil {
		return nil, err
	}
	me := c.rankOf(l.rank)
	seen := map[int32]bool{}
	for _, r := range ranks {
		if r < 0 || int(r) >= len(c.ranks) || seen[r] {
			return nil, failure(classRank, "MPI_Comm_create_group on rank %d of %s: ranks %v: %d is out of range or twice", me, c, ranks, r)
		}
		seen[r] = true
	}
	if !seen[int32(me)] {
		return nil, failure(classRank, "MPI_Comm_create_group on rank %d of %s: not among the ranks %v", me, c, ranks)
	}
	if tag < 0 || tag > l.w.tagUB {
		return nil, failure(classTag, "MPI_Comm_create_group: tag %d is not within 0 and %d", tag, l.w.tagUB)
	}
	q, err := l.launch(&mpi.Call{Fn: fnCreateGroup, Comm: parent, Tag: tag}, true)
	if err != nil {
		return nil, err
	}
	for i, m := range c.creating {
		if m.tag != tag || !slices.Contains(m.ranks, int32(me)) || m.holds(me) {
			continue
		}
		if !slices.Equal(m.ranks, ranks) {
			bad := failure(classOther, "MPI_Comm_create_group with tag %d on %s: rank %d says ranks %v, rank %d says %v",
				tag, c, m.reqs[0].rank, m.ranks, me, ranks)
			c.creating = slices.Delete(c.creating, i, i+1)
			m.end(bad)
			q.finish(bad)
			return q, nil
		}
		m.reqs = append(m.reqs, q)
		if len(m.reqs) == len(ranks) {
			c.creating = slices.Delete(c.creating, i, i+1)
			m.group(c)
		}
		return q, nil
	}
	m := &meeting{fn: fnCreateGroup, ranks: slices.Clone(ranks), tag: tag, reqs: []*request{q}}
	if len(ranks) == 1 {
		m.group(c)
	} else {
		c.creating = append(c.creating, m)
	}
	return q, nil
}

func (m *meeting) holds(rank int) bool {
	return slices.ContainsFunc(m.reqs, func(q *request) bool { return q != nil && q.rank == rank })
}

func (m *meeting) group(parent *comm) {
	world := make([]int, len(m.ranks))
	for i, r := range m.ranks {
		world[i] = parent.ranks[r]
	}
	made := newComm(parent.w, world)
	for _, q := range m.reqs {
		q.made = made
	}
	m.end(nil)
}
