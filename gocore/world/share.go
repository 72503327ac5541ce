package world

import (
	"slices"

	"github.com/paddlempi/paddlempi/gocore/segment"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// This file makes the memory that the ranks of a node share, for arrivals and other uses. Package
// segment has the memory files.

// way is how the ranks of a communicator got the shared memory of their nodes.
type way string

const (
	byProc    way = "shared memory"                          // every rank opened its node's file through /proc
	bySocket  way = "shared memory, handed over by a socket" // some ranks got the descriptor so
	byMessage way = "messages"                               // some rank could not get it: no rank has shared memory
)

// Way tells how the ranks of the world share memory with the ranks of their nodes.
func (n *Node) Way() string { return string(n.way) }

// sharing returns the handover of a memory file of size bytes on each node. peers are the ranks of comm on this rank's node;
// the first one makes the file. The file is all zero; its memory is allocated when a rank first touches it.
func sharing(comm transport.Exchange, peers []int, name string, size int64) *handover {
	h := &handover{comm: comm, peers: peers, size: size}
	if len(peers) > 1 {
		h.givers = peers[:1]
	}
	if slices.Contains(h.givers, comm.Rank()) {
		h.file, h.refused = segment.New(name, size)
	}
	return h
}

// share hands the file over, and returns it on all ranks of the node. It is collective over comm. It returns a nil file on a
// rank that is alone on its node. If some rank of comm cannot get its file, it returns nil and byMessage on all.
func (h *handover) share() (*segment.File, way, error) {
	file := h.file
	h.take = func(_ int, f *segment.File) error {
		file = f
		return nil
	}
	opened, complete, err := h.run()
	if err != nil || slices.Contains(complete, false) {
		if file != nil {
			file.Close()
		}
		return nil, byMessage, err
	}
	if slices.Contains(opened, false) {
		return file, bySocket, nil
	}
	return file, byProc, nil
}
