package world

import (
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

// shareFile makes a memory file of size bytes on each node and opens it on all ranks of that node.
// members are the ranks of comm on this rank's node; the first one makes the file. shareFile is
// collective over comm, whose ranks may be on several nodes. It returns a nil file on a rank that
// is alone on its node. If some rank of comm cannot get its file, it returns nil and byMessage on
// all. The file is all zero; its memory is allocated when a rank first touches it.
func (n *Node) shareFile(comm transport.Exchange, members []int, name string, size int64) (*segment.File, way, error) {
	h := handover[*segment.File]{me: n.topo.Rank, members: members}
	h.open = func(a segment.Address) (*segment.File, error) { return segment.Open(a, size) }
	h.take = func(r segment.Rendezvous, a segment.Address, deadline time.Time) (*segment.File, error) {
		return segment.Take(r, a, size, deadline)
	}
	first := members[0]
	if len(members) > 1 {
		h.owners = members[:1]
		if first == h.me {
			h.own, _ = segment.New(name, size) // a rank without its file says so
		}
	}
	done, err := h.run(comm)
	if err != nil {
		return nil, byMessage, err
	}
	file := h.own
	if first != h.me {
		file = done.files[first]
	}
	switch {
	case len(done.missing) > 0:
		if file != nil {
			file.Close()
		}
		return nil, byMessage, nil
	case done.lacked:
		return file, bySocket, nil
	}
	return file, byProc, nil
}
