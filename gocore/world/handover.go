package world

import (
	"slices"

	"github.com/paddlempi/paddlempi/gocore/segment"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// handover gives memory files of some ranks of a node to the other ranks of that node. A rank opens a file through
// /proc where it can. A rank that cannot open some file gets all of them over sockets.
type handover struct {
	comm   transport.Exchange
	peers  []int         // the ranks of comm on this node, this rank among them
	givers []int         // the peers whose files all peers need
	file   *segment.File // this rank's file, which stays the caller's; nil if it has none
	size   int64         // the size of every file, or segment.AnySize
	// sameUser says that only processes of this user may get a file by socket, because comm may be overheard.
	sameUser bool
	// take gets the file of another rank. It owns the file, and closes it if it returns an error.
	take func(rank int, f *segment.File) error

	addresses [][]int64 // by rank of comm
	lacks     []int     // the givers whose files this rank does not have yet
	refused   error     // why this rank could not make its file, or open some file through /proc; nil if it could
}

// run hands the files over. It is collective over comm, whose ranks may be on several nodes. opened says of each rank
// of comm whether it had the files of its node's givers without sockets, and complete whether it has them now.
func (h *handover) run() (opened, complete []bool, err error) {
	mine := h.file.Address().Words()
	if h.addresses, err = h.comm.Gather(mine[:], nil); err != nil {
		return nil, nil, err
	}
	h.open()
	if opened, err = transport.GatherBool(h.comm, len(h.lacks) == 0, nil); err != nil || !slices.Contains(opened, false) {
		return opened, opened, err
	}
	if err := h.bySockets(opened); err != nil {
		return nil, nil, err
	}
	complete, err = transport.GatherBool(h.comm, len(h.lacks) == 0, nil)
	return opened, complete, err
}

// open opens through /proc the files of the givers, and notes which this rank lacks.
func (h *handover) open() {
	for _, r := range h.givers {
		there := h.address(r) != segment.Address{}
		if there && r != h.comm.Rank() {
			f, err := segment.Open(h.address(r), h.size)
			if err == nil {
				err = h.take(r, f)
			}
			if err != nil {
				h.refused, there = err, false
			}
		}
		if !there {
			h.lacks = append(h.lacks, r)
		}
	}
}

// address returns where a peer says that its file is. The peer may be wrong, and segment checks what it opens.
func (h *handover) address(r int) segment.Address {
	return segment.Of([3]int64(h.addresses[r]))
}
