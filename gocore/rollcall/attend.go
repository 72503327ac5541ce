package rollcall

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// attend is the part of a rank that does not call the roll. again says that the rank which did has ended or given up, so
// that another one has to.
//
// A rank whose deadline passes says so, and waits for the answer: MPI_Init may have been agreed on meanwhile, and then it
// goes there too.
func (c *call) attend(l *link) (again bool, err error) {
	defer l.close()
	l.send(message{Kind: hello, Rank: c.place.Rank, Local: c.place.LocalRank})
	var gaveUp, asked time.Time // when this rank said that its deadline has passed, and when it asked for a report
	for {
		m, err := l.receive(time.Now().Add(work.InterruptEvery))
		switch {
		case err == nil && m.Kind == gone:
			c.reported = m.Reported
			if m.Left != nil {
				c.left = m.Left
			}
			return true, nil
		case err == nil && m.Kind == reported:
			c.reported = true
			continue
		case err == nil:
			return false, c.told(m)
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return gaveUp.IsZero(), c.tooLate(absent{who: c.some(), what: fmt.Sprintf("process %d, which waited for them too, has ended", l.pid)})
		}
		if err := c.interrupted(); err != nil {
			return false, err
		}
		now := time.Now()
		silent := fmt.Sprintf("process %d, which calls the roll of this host, does not answer: it may be stopped", l.pid)
		switch {
		case gaveUp.IsZero() && c.late(now):
			gaveUp = now
			l.send(message{Kind: bye})
		case !gaveUp.IsZero() && now.Sub(gaveUp) > grace:
			return false, c.tooLate(absent{who: c.some(), what: silent})
		case asked.IsZero() && c.due(time.Second): // the caller reports it, unless it is stopped
			asked = now
			l.send(message{Kind: ask})
		case !asked.IsZero() && c.due(time.Second) && now.Sub(asked) > grace:
			c.reported = true
			c.report("init_process_group", silent, c.began)
		}
	}
}

// told takes what the rank says that calls the roll.
func (c *call) told(m message) error {
	switch m.Kind {
	case start:
		c.complete = m.Why == ""
		c.apart = m.Why
		return nil
	case missing:
		return c.tooLate(absent{ranks: m.Ranks, who: m.Who, what: m.Text})
	case failed:
		return status.New(m.Code, "%s", m.Text).WithRanks(m.Ranks...)
	}
	return c.goOn(fmt.Sprintf("what the process that calls the roll says is unknown (%.80q)", m.Kind))
}
