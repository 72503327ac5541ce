package world

import (
	"slices"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// MakeLines makes the lines of peers: the ranks of comm on this rank's node, this rank among them, with more bytes behind
// them. MakeLines is collective over comm. A rank that is alone on its node gets no lines. If some rank of comm cannot map its node's lines, all ranks
// get none, and how is byMessage.
func (n *Node) MakeLines(comm transport.Exchange, peers []int, more int64) (_ *arrive.Lines, how way, _ error) {
	size, me := len(peers), slices.Index(peers, comm.Rank())
	file, how, err := shareFile(comm, peers, "paddlempi-arrive", arrive.LinesSize(size)+more)
	if err != nil || how == byMessage {
		return nil, how, err
	}
	ok := []int64{1}
	var lines *arrive.Lines
	if file != nil {
		if lines, err = arrive.NewLines(file, size, me); err != nil {
			ok[0] = 0
		}
		file.Close()
	}
	if err := comm.Min(ok); err != nil {
		if lines != nil {
			lines.Stop(1, status.CodeOf(err)) // others may have heard of this rank: they need not wait for it in a collective
			_ = lines.Close()
		}
		return nil, how, err
	}
	if ok[0] == 0 {
		if lines != nil {
			_ = lines.Close()
		}
		return nil, byMessage, nil
	}
	if lines != nil && n.crowded {
		lines.YieldEvery(16)
	}
	return lines, how, nil
}
