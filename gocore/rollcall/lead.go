package rollcall

import (
	"fmt"
	"net"
	"os"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// roll is what the rank knows that calls the roll.
type roll struct {
	*call
	came     map[int]guest // by rank
	known    map[int]int   // the number on this node, by rank, of those whose processes were seen
	events   chan event
	over     chan struct{}
	looked   time.Time // when it last looked at the processes of those that are missing
	nextLook time.Duration
}

// guest is a rank that has come; link is nil for the rank that calls the roll.
type guest struct {
	*link
	local int
}

// event is a message of a link, or its end.
type event struct {
	from *link
	message
	err error
}

const (
	// firstLook is how long a rank is missing before its process is looked at, and lastLook the most between two looks.
	firstLook = 100 * time.Millisecond
	lastLook  = 2 * time.Second
)

// lead calls the roll of the ranks of this node, until all have come. If this rank gives up, another one calls it: each has a
// deadline of its own.
func (c *call) lead(l *net.UnixListener) error {
	r := &roll{call: c, came: map[int]guest{c.place.Rank: {nil, c.place.LocalRank}}, known: map[int]int{}, events: make(chan event),
		over: make(chan struct{}), looked: time.Now(), nextLook: firstLook}
	delete(c.left, c.place.Rank)
	defer close(r.over)
	defer closeAll(l)
	c.speaks = true
	go r.accept(l)
	tick := time.NewTicker(work.InterruptEvery)
	defer tick.Stop()
	for len(r.came) < c.place.LocalSize {
		select {
		case e := <-r.events:
			r.take(e)
		case now := <-tick.C:
			goOn, err := r.look(now)
			if err != nil {
				c.left[c.place.Rank] = c.place.LocalRank
				r.tell(message{Kind: gone, Left: c.left, Reported: c.reported})
			}
			if goOn || err != nil {
				return err
			}
		}
	}
	c.complete = true
	r.tell(message{Kind: start})
	return nil
}

// accept takes connections until the listener is closed.
func (r *roll) accept(l *net.UnixListener) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return
		}
		if from, err := wrap(conn); err == nil {
			go r.read(from)
		}
	}
}

// read hands on what comes over a link, which it closes in the end.
func (r *roll) read(from *link) {
	defer from.close()
	go func() { // so that a read which waits ends with the roll call
		<-r.over
		_ = from.conn.SetReadDeadline(time.Unix(1, 0))
	}()
	for {
		m, err := from.receive(time.Time{})
		select {
		case r.events <- event{from, m, err}:
		case <-r.over:
			return
		}
		if err != nil {
			return
		}
	}
}

// take takes note of what a rank has said.
func (r *roll) take(e event) {
	rank := r.rankOf(e.from)
	switch {
	case e.err != nil && rank >= 0:
		r.left[rank] = r.came[rank].local
		delete(r.came, rank)
	case e.err != nil:
	case e.Kind == bye && rank >= 0:
		a := r.absent()
		e.from.send(message{Kind: missing, Ranks: a.ranks, Who: a.who, Text: a.what})
		r.left[rank] = r.came[rank].local
		delete(r.came, rank)
	case e.Kind == ask && rank >= 0:
		r.reportOnce()
		e.from.send(message{Kind: reported})
	case e.Kind == hello && rank < 0 && e.Rank >= 0 && e.Rank < r.place.Size && e.Local >= 0 && e.Local < r.place.LocalSize:
		if other, there := r.came[e.Rank]; there {
			e.from.send(message{Kind: failed, Code: status.Launcher, Ranks: []int{e.Rank}, Text: r.twice(e, other)})
			return
		}
		r.came[e.Rank] = guest{e.from, e.Local}
		delete(r.left, e.Rank)
	}
}

// rankOf returns which rank a link is of; -1 if it has not said so.
func (r *roll) rankOf(from *link) int {
	for rank, g := range r.came {
		if g.link == from {
			return rank
		}
	}
	return -1
}

func (r *roll) twice(e event, other guest) string {
	pid := os.Getpid()
	if other.link != nil {
		pid = other.pid
	}
	return fmt.Sprintf("init: process %d and process %d both are rank %d of the job: only the process that the launcher has started may call "+
		"init_process_group, not one that inherits its environment", e.from.pid, pid, e.Rank)
}

// look is the part of each tick: Ctrl-C, the report, the deadline, and the processes of those that are missing. goOn says that
// MPI_Init is to be called.
func (r *roll) look(now time.Time) (goOn bool, err error) {
	if err := r.interrupted(); err != nil {
		return false, err
	}
	if now.Sub(r.looked) >= r.nextLook {
		r.looked, r.nextLook = now, min(2*r.nextLook, lastLook)
		if a := r.absent(); a.apart != "" {
			_ = r.goOn(a.apart)
			r.tell(message{Kind: start, Why: a.apart})
			return true, nil
		}
	}
	if r.late(now) {
		return false, r.tooLate(r.absent())
	}
	if r.due(0) {
		r.reportOnce()
	}
	return false, nil
}

// reportOnce reports the wait, unless that was done.
func (r *roll) reportOnce() {
	if r.reported || r.ReportAfter == 0 {
		return
	}
	r.reported = true
	a := r.absent()
	r.report("init_process_group", fmt.Sprintf("%s have not called it: %s", a.who, a.what), r.began)
}

// tell says something to all that have come.
func (r *roll) tell(m message) {
	for _, g := range r.came {
		if g.link != nil {
			g.send(m)
		}
	}
}
