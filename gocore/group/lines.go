package group

import (
	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// makeLines makes the lines that members share, which are the ranks of comm on this rank's node. It
// is collective over comm, whose ranks may be on several nodes. A rank that is alone on its node
// gets no lines. If some rank of comm cannot map its node's lines, all ranks get none, and how is
// byMessage.
func (e *Env) makeLines(comm transport.Exchange, members []int) (_ *arrive.Lines, how way, _ error) {
	n, me := len(members), indexOf(members, e.Topo.Rank)
	file, how, err := e.shareFile(comm, members, "paddlempi-arrive", arrive.LinesSize(n))
	if err != nil || how == byMessage {
		return nil, how, err
	}
	ok := []int64{1}
	var lines *arrive.Lines
	if file != nil {
		if lines, err = arrive.NewLines(file, n, me); err != nil {
			ok[0] = 0
		}
		file.Close()
	}
	if err := comm.Min(ok); err != nil {
		return nil, how, err
	}
	if ok[0] == 0 {
		if lines != nil {
			_ = lines.Close()
		}
		return nil, byMessage, nil
	}
	if lines != nil && e.crowded {
		lines.YieldEvery(16)
	}
	return lines, how, nil
}

func indexOf(list []int, v int) int {
	for i := range list {
		if list[i] == v {
			return i
		}
	}
	return -1
}
