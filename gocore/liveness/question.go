package liveness

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// A rank may ask a process of another node something, on a connection of its own: a connection of the
// tree may lead over a process that is stopped. It begins like every connection, with hello and reply.
// Then comes ask instead of begin, and the question. The answer is its length in two bytes, and at most
// MostAnswer bytes.

const (
	// QuestionBytes is the length of a question.
	QuestionBytes = 20
	// MostAnswer is the greatest length of an answer.
	MostAnswer = 4096
)

// ErrSilent is the error of Ask if the host answers, and no process that was asked does.
var ErrSilent = errors.New("the processes do not answer, though their host does")

// Ask sends a question to the given ranks at once, and returns the first answer. It waits for limit at
// most.
func (l *Liveness) Ask(ranks []int, question [QuestionBytes]byte, limit time.Duration) ([]byte, error) {
	type result struct {
		answer []byte
		err    error
	}
	deadline := time.Now().Add(limit)
	results, asked := make(chan result, len(ranks)*(maxAddresses+1)), 0
	for _, r := range ranks {
		for _, at := range l.addresses(r) {
			asked++
			go func() {
				answer, err := l.askAt(at, r, question, deadline)
				results <- result{answer, err}
			}()
		}
	}
	err := error(status.New(status.Unsupported, "no address is known"))
	for range asked {
		got := <-results
		if got.err == nil {
			return got.answer, nil
		}
		if err != ErrSilent {
			err = got.err
		}
	}
	return nil, err
}

// askAt is Ask at one address.
func (l *Liveness) askAt(at netip.AddrPort, rank int, question [QuestionBytes]byte, deadline time.Time) (answer []byte, err error) {
	s, err := l.call(at, rank, deadline)
	if s == nil {
		return nil, err
	}
	defer s.close()
	if err == nil {
		_ = s.conn.SetDeadline(deadline)
		err = s.write(append(fact{ask, l.tree.rank, l.tree.rank}.encode(), question[:]...))
	}
	var size [2]byte
	if err == nil {
		err = s.read(size[:])
	}
	if answer = make([]byte, binary.LittleEndian.Uint16(size[:])); len(answer) > MostAnswer {
		return nil, errRubbish
	}
	if err == nil {
		err = s.read(answer)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = ErrSilent
	}
	return answer, err
}

// reply reads a question from a rank that has shown its token, and answers it.
func (l *Liveness) reply(k *link) {
	var question [QuestionBytes]byte
	if k.socket.read(question[:]) == nil && l.onQuestion != nil {
		answer := l.onQuestion(question)
		answer = answer[:min(len(answer), MostAnswer)]
		k.send(append(binary.LittleEndian.AppendUint16(nil, uint16(len(answer))), answer...))
	}
}

// A notice is a number that a rank tells all others. It is no fact: it is not told to ranks that connect
// later.

const (
	// keptNotices is how many of the last notices a rank remembers.
	keptNotices = 64
	// noticeAgain is the time after which the same number is another notice.
	noticeAgain = 5 * time.Second
	// noticesApart is the least time in which a rank passes on keptNotices.
	noticesApart = time.Second
)

// heardNotice is a notice that this rank has heard, or made.
type heardNotice struct {
	id uint32
	at time.Time
}

// Notify tells all ranks a number.
func (l *Liveness) Notify(id uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.notice(fact{notice, int(id), l.tree.rank}, nil)
}

// Noticed tells whether a rank has told the number, in the time ago.
func (l *Liveness) Noticed(id uint32, ago time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heard(id, ago)
}

// heard is Noticed. The caller holds mu.
func (l *Liveness) heard(id uint32, ago time.Duration) bool {
	return slices.ContainsFunc(l.notices, func(n heardNotice) bool { return n.id == id && time.Since(n.at) < ago })
}

// notice takes in a notice, and passes it on if it is new. The caller holds mu.
func (l *Liveness) notice(f fact, from *link) {
	if !l.open || l.heard(uint32(f.subject), noticeAgain) {
		return
	}
	if len(l.notices) == keptNotices {
		if time.Since(l.notices[0].at) < noticesApart {
			return // somebody floods the job
		}
		l.notices = slices.Delete(l.notices, 0, 1)
	}
	l.notices = append(l.notices, heardNotice{uint32(f.subject), time.Now()})
	l.tell(f, from)
}
