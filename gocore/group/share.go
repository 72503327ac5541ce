package group

import (
	"time"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/segment"
)

// How the ranks of a node come to share memory: arrivals do, and whatever else wants to (package
// segment has the files).

// way is how the ranks of a node came to share memory.
type way int32

const (
	byProc    way = iota // all opened the owner's descriptor in /proc
	bySocket             // some had to be given it over a socket
	byMessage            // some could not have it: there is no shared memory
)

func (w way) String() string {
	return [...]string{"shared memory", "shared memory, handed over by a socket", "messages"}[w]
}

// Way tells how the ranks of this node arrive at collectives.
func (e *Env) Way() string { return e.way.String() }

// takeLimit is how long handing a descriptor over a socket may take.
const takeLimit = 10 * time.Second

// shareFile makes a memory file of size bytes on each node and opens it on all its ranks: members are
// those of this rank's node. It is collective over comm, whose ranks may be on several nodes. The
// file is nil for a rank alone on its node, and where some rank of comm cannot have it (byMessage).
// It is all zero, and its first member owns the memory that nobody has touched.
func (e *Env) shareFile(comm mpi.Comm, members []int, name string, size int64) (*segment.File, way, error) {
	me, alone := indexOf(members, e.Topo.Rank), len(members) == 1
	ranks, err := e.Lib.Size(comm)
	if err != nil {
		return nil, byMessage, err
	}
	var file *segment.File
	var giver *segment.Giver
	// Everybody says: my node's first member, and the file's address if that is me.
	mine := []int64{int64(members[0]), -1, -1, -1}
	if me == 0 && !alone {
		if file, err = segment.New(name, size); err == nil {
			w := file.Address().Words()
			copy(mine[1:], w[:])
		}
	}
	all := make([]int64, 4*ranks)
	copy(all, mine)
	if err := e.onWords(mpi.FnAllgather, comm, all, 4, 0); err != nil {
		return nil, byMessage, err
	}
	var address segment.Address
	for i := 0; i < ranks; i++ {
		if w := all[4*i : 4*i+4]; w[0] == int64(members[0]) && w[2] >= 0 {
			address = segment.Of([3]int64(w[1:]))
		}
	}
	if me != 0 {
		file, _ = segment.Open(address, size)
	}
	// Does everybody have it? The owner may close the file once all do.
	lacking := make([]int64, 2*ranks)
	lacking[0], lacking[1] = int64(members[0]), 0
	if file == nil && !alone {
		lacking[1] = 1
	}
	if err := e.onWords(mpi.FnAllgather, comm, lacking, 2, 0); err != nil {
		return nil, byMessage, err
	}
	total, here := 0, 0
	for i := 0; i < ranks; i++ {
		total += int(lacking[2*i+1])
		if lacking[2*i] == int64(members[0]) {
			here += int(lacking[2*i+1])
		}
	}
	if total == 0 {
		return file, byProc, nil
	}
	// Over a socket, then, on the nodes where one lacks it.
	place := []int64{int64(members[0]), 0, 0, 0}
	if me == 0 && file != nil && here > 0 {
		if giver, err = segment.NewGiver(); err == nil {
			defer giver.Close()
			w := giver.Place().Words()
			copy(place[1:], w[:])
		}
	}
	copy(all, place)
	if err := e.onWords(mpi.FnAllgather, comm, all, 4, 0); err != nil {
		return nil, byMessage, err
	}
	deadline := time.Now().Add(takeLimit)
	switch {
	case giver != nil:
		_ = giver.Give(file, here, deadline) // who did not get it says so
	case file == nil && !alone:
		for i := 0; i < ranks; i++ {
			if w := all[4*i : 4*i+4]; w[0] == int64(members[0]) && w[1] != 0 {
				file, _ = segment.Take(segment.PlaceOf([3]int64(w[1:])), address, size, deadline)
			}
		}
	}
	ok := []int64{1}
	if file == nil && !alone {
		ok[0] = 0
	}
	if err := e.reduceAll(comm, ok, op.Min); err != nil {
		return nil, byMessage, err
	}
	if ok[0] == 0 {
		if file != nil {
			file.Close()
		}
		return nil, byMessage, nil
	}
	return file, bySocket, nil
}
