package client

import (
	"time"

	"github.com/paddlempi/paddlempi/gocore/ps/link"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// connections are what a client needs of package link. Tests have others.
type connections interface {
	Memory(n int64) (*link.Memory, error)
	// claim waits until a request may be sent to a server, and start sends it, too.
	claim(server int, r *link.Request) (pending, error)
	start(server int, r *link.Request) (pending, error)
}

// pending is a request that was claimed. *link.Pending has it, and describes it.
type pending interface {
	Post() error
	Drop()
	Wait(deadline time.Time, interrupt work.Interrupt) (header []byte, err error)
	Trouble() error
	Answered() bool
}

// links are the connections of a process.
type links struct{ *link.Links }

func (l links) claim(server int, r *link.Request) (pending, error) { return orNil(l.Claim(server, r)) }
func (l links) start(server int, r *link.Request) (pending, error) { return orNil(l.Start(server, r)) }

// orNil makes no interface of a pointer that is nil.
func orNil(p *link.Pending, err error) (pending, error) {
	if err != nil {
		return nil, err
	}
	return p, nil
}
