package world

import (
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/segment"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// This file makes the memory that the ranks of a node share, for arrivals and other uses. Package
// segment has the memory files.

// way is how the ranks of a communicator got the shared memory of their nodes.
type way int32

const (
	byProc    way = iota // every rank opened its node's file through /proc
	bySocket             // some ranks got the descriptor over a socket
	byMessage            // some rank could not get it: no rank has shared memory
)

func (w way) String() string {
	return [...]string{"shared memory", "shared memory, handed over by a socket", "messages"}[w]
}

// Way tells how the ranks of the world share memory with the ranks of their nodes.
func (n *Node) Way() string { return n.way.String() }

// takeLimit is how long handing over descriptors by socket may take.
const takeLimit = 10 * time.Second

// shareFile makes a memory file of size bytes on each node and opens it on all ranks of that node.
// members are the ranks of comm on this rank's node; the first one makes the file. shareFile is
// collective over comm, whose ranks may be on several nodes. It returns a nil file on a rank that
// is alone on its node. If some rank of comm cannot get its file, it returns nil and byMessage on
// all. The file is all zero; its memory is allocated when a rank first touches it.
func (n *Node) shareFile(comm transport.Exchange, members []int, name string, size int64) (*segment.File, way, error) {
	me, alone := slices.Index(members, n.topo.Rank), len(members) == 1
	var err error
	var file *segment.File
	var giver *segment.Giver
	// Every rank sends the first member of its node. That member also sends the file's address.
	mine := []int64{int64(members[0]), -1, -1, -1}
	if me == 0 && !alone {
		if file, err = segment.New(name, size); err == nil {
			w := file.Address().Words()
			copy(mine[1:], w[:])
		}
	}
	all, err := comm.Gather(mine, nil)
	if err != nil {
		return nil, byMessage, err
	}
	var address segment.Address
	for _, w := range all {
		if w[0] == int64(members[0]) && w[2] >= 0 {
			address = segment.Of([3]int64(w[1:]))
		}
	}
	if me != 0 {
		file, _ = segment.Open(address, size)
	}
	// Count the ranks that lack the file. The first member may close it once this number is 0.
	lacks := []int64{int64(members[0]), 0}
	if file == nil && !alone {
		lacks[1] = 1
	}
	lacking, err := comm.Gather(lacks, nil)
	if err != nil {
		return nil, byMessage, err
	}
	total, here := 0, 0
	for _, w := range lacking {
		total += int(w[1])
		if w[0] == int64(members[0]) {
			here += int(w[1])
		}
	}
	if total == 0 {
		return file, byProc, nil
	}
	// On nodes where some rank lacks the file, the first member gives it away over a socket.
	rendezvous := []int64{int64(members[0]), 0, 0, 0}
	if me == 0 && file != nil && here > 0 {
		if giver, err = segment.NewGiver(); err == nil {
			defer giver.Close()
			w := giver.Rendezvous().Words()
			copy(rendezvous[1:], w[:])
		}
	}
	if all, err = comm.Gather(rendezvous, nil); err != nil {
		return nil, byMessage, err
	}
	deadline := time.Now().Add(takeLimit)
	switch {
	case giver != nil:
		_ = giver.Give(file, here, deadline) // a rank that did not get the file reports it below
	case file == nil && !alone:
		for _, w := range all {
			if w[0] == int64(members[0]) && w[1] != 0 {
				file, _ = segment.Take(segment.RendezvousOf([3]int64(w[1:])), address, size, deadline)
			}
		}
	}
	ok := []int64{1}
	if file == nil && !alone {
		ok[0] = 0
	}
	if err := comm.Min(ok); err != nil {
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
