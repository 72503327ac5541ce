package mpifake

import (
	"fmt"
	"slices"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// message is a message that was sent and not yet received. It is in comm.unexpected of its
// destination, or Improbe has taken it out.
type message struct {
	comm   *comm
	source int
	tag    int32
	data   []byte
	sender *request // waits for the receiver; nil for an eager send
}

func (m *message) status() mpi.Status {
	return mpi.Status{Source: int32(m.source), Tag: m.tag, Bytes: int64(len(m.data))}
}

func matches(m *message, source, tag int32) bool {
	return (source == mpi.AnySource || int(source) == m.source) && (tag == mpi.AnyTag || tag == m.tag)
}

func (q *request) send() *status.Error {
	c := &q.call
	if c.Peer < 0 || int(c.Peer) >= len(q.comm.ranks) {
		return failure(classRank, "MPI_Send on %s: destination %d", q.comm, c.Peer)
	}
	if c.Tag < 0 || c.Tag > q.lib.w.tagUB {
		return failure(classTag, "MPI_Send on %s: tag %d is not within 0 and %d", q.comm, c.Tag, q.lib.w.tagUB)
	}
	data, err := q.lib.buffer(c.SendBuf, c.SendCount, c.SendType)
	if err != nil {
		return err
	}
	m := &message{comm: q.comm, source: q.rank, tag: c.Tag, data: data}
	if len(data) > eagerLimit {
		m.sender = q
	} else {
		m.data = slices.Clone(data)
		defer q.finish(nil)
	}
	posted := q.comm.posted[c.Peer]
	for i, r := range posted {
		if matches(m, r.call.Peer, r.call.Tag) {
			q.comm.posted[c.Peer] = slices.Delete(posted, i, i+1)
			r.take(m)
			return nil
		}
	}
	q.comm.unexpected[c.Peer] = append(q.comm.unexpected[c.Peer], m)
	return nil
}

func (q *request) recv() *status.Error {
	c := &q.call
	if err := q.comm.checkPattern("MPI_Recv", c.Peer, c.Tag); err != nil {
		return err
	}
	if err := q.receiveInto(); err != nil {
		return err
	}
	if m := q.comm.seek(q.rank, c.Peer, c.Tag, true); m != nil {
		q.take(m)
	} else {
		q.comm.posted[q.rank] = append(q.comm.posted[q.rank], q)
	}
	return nil
}

func (q *request) mrecv() *status.Error {
	m := q.lib.messages[q.call.Message]
	if m == nil {
		return failure(classRequest, "MPI_Mrecv on rank %d: no message %#x", q.lib.rank, uintptr(q.call.Message))
	}
	if err := q.receiveInto(); err != nil {
		return err
	}
	delete(q.lib.messages, q.call.Message)
	q.comm, q.rank = m.comm, m.comm.rankOf(q.lib.rank)
	q.take(m)
	return nil
}

// receiveInto notes the memory of a receive. The datatype may be freed afterwards.
func (q *request) receiveInto() (err *status.Error) {
	q.into, err = q.lib.buffer(q.call.RecvBuf, q.call.RecvCount, q.call.RecvType)
	return err
}

// take completes the receive q with m, and m's sender if it waits.
func (q *request) take(m *message) {
	n := copy(q.into, m.data)
	q.st = m.status()
	q.st.Bytes = int64(n)
	if m.sender != nil {
		m.sender.finish(nil)
	}
	if n < len(m.data) {
		q.finish(failure(classTruncate, "%s on rank %d of %s: a message of %d bytes from rank %d with tag %d, a buffer of %d",
			name(q.call.Fn), q.rank, q.comm, len(m.data), m.source, m.tag, len(q.into)))
		return
	}
	q.finish(nil)
}

// seek returns the first message for rank that matches, or nil.
func (c *comm) seek(rank int, source, tag int32, remove bool) *message {
	for i, m := range c.unexpected[rank] {
		if matches(m, source, tag) {
			if remove {
				c.unexpected[rank] = slices.Delete(c.unexpected[rank], i, i+1)
			}
			return m
		}
	}
	return nil
}

// unpost removes a receive that is given up from the queue.
func (c *comm) unpost(q *request) {
	c.posted[q.rank] = slices.DeleteFunc(c.posted[q.rank], func(r *request) bool { return r == q })
}

func (c *comm) checkPattern(what string, source, tag int32) *status.Error {
	if source != mpi.AnySource && (source < 0 || int(source) >= len(c.ranks)) {
		return failure(classRank, "%s on %s: source %d", what, c, source)
	}
	if tag != mpi.AnyTag && (tag < 0 || tag > c.w.tagUB) {
		return failure(classTag, "%s on %s: tag %d is not within 0 and %d", what, c, tag, c.w.tagUB)
	}
	return nil
}

func (l *library) Improbe(h mpi.Comm, source, tag int32) (mpi.Message, mpi.Status, bool, error) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	m, err := l.probe("MPI_Improbe", h, source, tag, true)
	if m == nil || err != nil {
		return 0, mpi.Status{}, false, asError(err)
	}
	msg := mpi.Message(l.handle())
	l.messages[msg] = m
	return msg, m.status(), true, nil
}

func (l *library) Iprobe(h mpi.Comm, source, tag int32) (mpi.Status, bool, error) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	m, err := l.probe("MPI_Iprobe", h, source, tag, false)
	if m == nil || err != nil {
		return mpi.Status{}, false, asError(err)
	}
	return m.status(), true, nil
}

func (l *library) probe(what string, h mpi.Comm, source, tag int32, remove bool) (*message, *status.Error) {
	if err := l.usable(what); err != nil {
		return nil, err
	}
	c, err := l.find(h)
	if err != nil {
		return nil, err
	}
	if err := c.checkPattern(what, source, tag); err != nil {
		return nil, err
	}
	return c.seek(c.rankOf(l.rank), source, tag, remove), nil
}

// asError keeps a nil *status.Error from becoming a non-nil error.
func asError(e *status.Error) error {
	if e == nil {
		return nil
	}
	return e
}

// giveUp ends a blocking call that has waited too long, and the meeting that it is part of. The
// other ranks of the meeting get the same error, so that they do not touch buffers that the caller
// may free.
func (q *request) giveUp(err *status.Error) {
	if q.comm != nil {
		q.comm.unpost(q)
		for _, m := range q.comm.meetings {
			if slices.Contains(m.reqs, q) {
				m.err = err
				m.end(err)
			}
		}
		for i, m := range q.comm.creating {
			if slices.Contains(m.reqs, q) {
				q.comm.creating = slices.Delete(q.comm.creating, i, i+1)
				m.end(err)
				break
			}
		}
		for d := range q.comm.unexpected {
			q.comm.unexpected[d] = slices.DeleteFunc(q.comm.unexpected[d], func(m *message) bool { return m.sender == q })
		}
	}
	q.finish(err)
}

// absent describes the ranks or the message that q waits for.
func (c *comm) absent(q *request) string {
	switch q.call.Fn {
	case mpi.FnSend:
		return fmt.Sprintf("rank %d does not receive tag %d", q.call.Peer, q.call.Tag)
	case mpi.FnRecv:
		return fmt.Sprintf("no message from rank %d with tag %d", q.call.Peer, q.call.Tag)
	}
	for _, m := range c.meetings {
		if slices.Contains(m.reqs, q) {
			return fmt.Sprintf("ranks %v never came", m.missing())
		}
	}
	return "members never came"
}
