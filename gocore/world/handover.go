package world

import (
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/segment"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// takeLimit is how long handing over descriptors by socket may take.
const takeLimit = 10 * time.Second

// handover is how the ranks of a node get each other's memory files. Each opens those of the others
// through /proc. A rank that cannot open all of them gets them over sockets. T is what a rank makes of a
// file of another one.
type handover[T interface{ Close() }] struct {
	me      int
	members []int         // world ranks on this node that take part, me among them
	owners  []int         // those of them that are to have a file
	own     *segment.File // of this rank; nil if it has none
	open    func(segment.Address) (T, error)
	take    func(segment.Rendezvous, segment.Address, time.Time) (T, error)
}

// handed is what a handover has reached. lacked, here and missing are about files of owners.
type handed[T any] struct {
	files   map[int]T // of the other owners, by world rank
	refused error     // why this rank could not open one of them through /proc
	lacked  bool      // some rank of the exchange could not open all through /proc
	here    bool      // a rank of this node could not
	missing []int     // the world ranks that lack a file at the end, on any node
}

// run is collective over x, whose ranks may be on several nodes.
func (h *handover[T]) run(x transport.Exchange) (done handed[T], err error) {
	done.files = map[int]T{}
	var address [3]int64
	if h.own != nil {
		address = h.own.Address().Words()
	}
	addresses, err := h.tell(x, h.own != nil, address)
	if err != nil {
		return done, err
	}
	for _, r := range h.others() {
		if a := addresses[r]; a.has {
			if file, err := h.open(segment.Of(a.words)); err == nil {
				done.files[r] = file
			} else {
				done.refused = err
			}
		}
	}
	lacking, err := h.tell(x, h.lacks(done.files), [3]int64{})
	if err != nil {
		return done, err
	}
	takers := 0 // other ranks of this node that lack a file
	for r, l := range lacking {
		done.lacked = done.lacked || l.has
		if l.has && slices.Contains(h.members, r) {
			done.here = true
			if r != h.me {
				takers++
			}
		}
	}
	if !done.lacked {
		return done, nil
	}
	var giver *segment.Giver
	var place [3]int64
	if h.own != nil && takers > 0 {
		if giver, err = segment.NewGiver(); err == nil {
			defer giver.Close()
			place = giver.Rendezvous().Words()
		}
	}
	places, err := h.tell(x, giver != nil, place)
	if err != nil {
		return done, err
	}
	deadline := time.Now().Add(takeLimit)
	given := make(chan struct{})
	go func() {
		defer close(given)
		if giver != nil {
			_ = giver.Give(h.own, takers, deadline) // a rank that did not get it says so
		}
	}()
	if lacking[h.me].has {
		h.takeAll(done.files, addresses, places, deadline)
	}
	<-given
	after, err := h.tell(x, h.lacks(done.files), [3]int64{})
	for r, l := range after {
		if l.has {
			done.missing = append(done.missing, r)
		}
	}
	slices.Sort(done.missing)
	return done, err
}

// takeAll takes the files of all others that give theirs: each of them counts on every rank that lacks some.
func (h *handover[T]) takeAll(files map[int]T, addresses, places map[int]told, deadline time.Time) {
	for _, r := range h.others() {
		if !places[r].has {
			continue
		}
		file, err := h.take(segment.RendezvousOf(places[r].words), segment.Of(addresses[r].words), deadline)
		if err != nil {
			continue
		}
		if _, opened := files[r]; opened {
			file.Close()
		} else {
			files[r] = file
		}
	}
}

// lacks tells whether this rank lacks the file of an owner.
func (h *handover[T]) lacks(files map[int]T) bool {
	return slices.ContainsFunc(h.owners, func(r int) bool {
		_, opened := files[r]
		return !opened && (r != h.me || h.own == nil)
	})
}

// others returns the other owners.
func (h *handover[T]) others() []int {
	return slices.DeleteFunc(slices.Clone(h.owners), func(r int) bool { return r == h.me })
}

// told is what a rank tells the others: whether it has something, and where.
type told struct {
	has   bool
	words [3]int64
}

// tell returns what every rank of x tells, by world rank.
func (h *handover[T]) tell(x transport.Exchange, has bool, words [3]int64) (map[int]told, error) {
	row := []int64{int64(h.me), 0, words[0], words[1], words[2]}
	if has {
		row[1] = 1
	}
	rows, err := x.Gather(row, nil)
	all := map[int]told{}
	for _, w := range rows {
		all[int(w[0])] = told{w[1] != 0, [3]int64(w[2:])}
	}
	return all, err
}
