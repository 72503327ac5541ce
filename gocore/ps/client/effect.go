package client

import (
	"strconv"
	"time"

	"github.com/paddlempi/paddlempi/gocore/ps/request"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Effect is what a trainer knows of what a request of it has done on a server.
type Effect uint8

const (
	// NotApplied: nothing. The server never got the request, or has answered that it has refused
	// it.
	NotApplied Effect = iota
	// Unknown: the server may have carried it out, or may do so yet. It was sent, and no answer has
	// come.
	Unknown
	// Applied: the server has answered that it has carried it out.
	Applied
)

func (e Effect) String() string {
	switch e {
	case NotApplied:
		return "not applied"
	case Unknown:
		return "unknown"
	case Applied:
		return "applied"
	}
	return "Effect(" + strconv.Itoa(int(e)) + ")"
}

// result is how a request to one server has ended. The zero result is that of a server that was not
// asked.
type result struct {
	effect Effect
	answer request.Answer // if it was applied
}

// resultOf waits for the answer to a request that was sent. whole says that a server which refuses
// it has changed nothing.
func resultOf(p pending, whole bool, deadline time.Time, interrupt work.Interrupt) (r result, err error) {
	header, err := p.Wait(deadline, interrupt)
	if err == nil {
		r.answer, err = request.DecodeAnswer(header)
	}
	switch {
	case err == nil:
		r.effect = Applied
	case whole && p.Answered() && header == nil:
		r.effect = NotApplied
	default:
		r.effect = Unknown
	}
	return r, err
}

// grace is how long some servers may still take to answer when another one, which the same call has asked, cannot
// answer any more. They may wait for a trainer that this other one has stopped.
const grace = time.Second

// unless returns an interrupt of the wait for one server's answer: the call has failed if one of the later servers
// cannot answer any more. nil in later: a server that was not asked.
func unless(later []pending, interrupt work.Interrupt) work.Interrupt {
	if len(later) == 0 {
		return interrupt
	}
	var since time.Time // of the trouble
	return func() error {
		if interrupt != nil {
			if err := interrupt(); err != nil {
				return err
			}
		}
		for _, p := range later {
			if p == nil {
				continue
			}
			if err := p.Trouble(); err != nil {
				if since.IsZero() {
					since = time.Now()
				}
				if time.Since(since) < grace {
					err = nil
				}
				return err
			}
		}
		return nil
	}
}
