package world

import (
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/segment"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// takeLimit is how long handing over descriptors by socket may take.
const takeLimit = 10 * time.Second

// bySockets gives this rank's file to the ranks that lack some file, and takes what this rank lacks. Its error is one
// of the exchange.
func (h *handover) bySockets(opened []bool) error {
	// A rank that lacks some file comes to all givers. Therefore every giver knows how many ranks come to it.
	takers := len(slices.DeleteFunc(slices.Clone(h.peers), func(r int) bool { return r == h.comm.Rank() || opened[r] }))
	var giver *segment.Giver
	var at segment.Rendezvous
	if takers > 0 && h.file != nil {
		var err error
		if giver, err = segment.NewGiver(h.file); err == nil {
			giver.SameUser = h.sameUser
			at = giver.Rendezvous()
		}
	}
	mine := at.Words()
	meetings, err := h.comm.Gather(mine[:], nil)
	if err != nil {
		if giver != nil {
			giver.Close()
		}
		return err
	}
	deadline := time.Now().Add(takeLimit)
	given, taken := make(chan struct{}), make(chan map[int]*segment.File, 1)
	go func() {
		defer close(given)
		if giver != nil {
			_ = giver.Give(takers, deadline) // a rank that did not get the file says so itself
			giver.Close()
		}
	}()
	lacks := len(h.lacks) > 0
	go func() {
		var files map[int]*segment.File
		if lacks {
			files = h.takeAll(meetings, deadline)
		}
		<-given
		taken <- files
	}()
	return h.keep(taken)
}

// takeAll comes to all givers that listen, and returns their files.
func (h *handover) takeAll(meetings [][]int64, deadline time.Time) map[int]*segment.File {
	files := map[int]*segment.File{}
	for _, r := range h.givers {
		at := segment.RendezvousOf([3]int64(meetings[r]))
		if r == h.comm.Rank() || at == (segment.Rendezvous{}) {
			continue
		}
		if f, err := segment.Take(at, h.address(r), h.size, deadline); err == nil {
			files[r] = f
		}
	}
	return files
}

// keep waits for the files that are taken, and keeps those that this rank lacks. If the wait ends early nobody keeps any.
func (h *handover) keep(taken <-chan map[int]*segment.File) error {
	if p, ok := h.comm.(transport.Limited); ok {
		if err := p.Await(func() bool { return len(taken) > 0 }); err != nil {
			go func() {
				for _, f := range <-taken {
					f.Close()
				}
			}()
			return err
		}
	}
	for r, f := range <-taken {
		if i := slices.Index(h.lacks, r); i < 0 {
			f.Close()
		} else if h.take(r, f) == nil {
			h.lacks = slices.Delete(h.lacks, i, i+1)
		}
	}
	return nil
}
