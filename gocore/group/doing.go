package group

import (
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/liveness"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/trace"
)

// part is what is known of a rank for which another one waits.
type part struct {
	came    bool // it has come to the collective
	stalled bool // its process lives and does not go on
	text    string
}

// look finds out what a rank does. seq is the number of the collective of the group with key for which
// it is awaited, 0 if it is awaited for something else.
func (e *Env) look(rank int, key, seq uint64) part {
	if e.Topo.Node[rank] == e.Topo.Node[e.Topo.Rank] {
		return e.lookHere(rank, key, seq)
	}
	return e.lookThere(rank, key, seq)
}

const (
	// askLimit is how long processes of another node may take to say what a rank does.
	askLimit = 2 * time.Second
	// askedOfNode is how many processes of the node are asked, the rank's own first.
	askedOfNode = 4
	// mostText is the most bytes of a text of another process.
	mostText = 600
)

// lookThere is look for a rank of another node: a process of that node reads the rank's trace.
func (e *Env) lookThere(rank int, key, seq uint64) part {
	if e.alive == nil {
		return part{text: fmt.Sprintf("what it does is not known here (%s)", e.unwatched)}
	}
	ask := []int{rank}
	for r, node := range e.Topo.Node {
		if r != rank && node == e.Topo.Node[rank] && len(ask) < askedOfNode {
			ask = append(ask, r)
		}
	}
	var question [liveness.QuestionBytes]byte
	binary.LittleEndian.PutUint32(question[:], uint32(rank))
	binary.LittleEndian.PutUint64(question[4:], key)
	binary.LittleEndian.PutUint64(question[12:], seq)
	answer, err := e.alive.Ask(ask, question, askLimit)
	if err == nil {
		var p part
		if p, err = decodePart(answer); err == nil {
			return p
		}
	}
	if err == liveness.ErrSilent {
		return part{stalled: true, text: fmt.Sprintf("rank(s) %s of its host were asked, and no process answered, though the host does", brief(ask))}
	}
	return part{text: fmt.Sprintf("what it does could not be asked (%v)", err)}
}

// onQuestion answers a question of lookThere on another rank.
func (e *Env) onQuestion(question [liveness.QuestionBytes]byte) []byte {
	rank := binary.LittleEndian.Uint32(question[:])
	if uint64(rank) >= uint64(e.Topo.Size) || e.Topo.Node[rank] != e.Topo.Node[e.Topo.Rank] {
		return nil
	}
	return e.lookHere(int(rank), binary.LittleEndian.Uint64(question[4:]), binary.LittleEndian.Uint64(question[12:])).encode()
}

// The flags of a part on the wire.
const (
	flagCame byte = 1 << iota
	flagStalled
	flagsEnd
)

func (p part) encode() []byte {
	var flags byte
	if p.came {
		flags |= flagCame
	}
	if p.stalled {
		flags |= flagStalled
	}
	return append([]byte{flags}, p.text[:min(len(p.text), mostText)]...)
}

// decodePart reads what another process has sent.
func decodePart(b []byte) (p part, err error) {
	if len(b) < 2 || len(b) > 1+mostText || b[0] >= flagsEnd {
		return p, status.New(status.Unsupported, "the answer is none of this library")
	}
	return part{came: b[0]&flagCame != 0, stalled: b[0]&flagStalled != 0, text: printable(string(b[1:]))}, nil
}

// printable returns text with question marks for what is no printable ASCII.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
}

// lookHere is look for a rank of this node.
func (e *Env) lookHere(rank int, key, seq uint64) part {
	s, why, err := e.recorder.read(rank)
	if err != nil {
		return part{text: fmt.Sprintf("what it does is not known here (%v)", err)}
	}
	p := doing(s, key, seq)
	if p.stalled = why != ""; p.stalled {
		p.text = fmt.Sprintf("its process %d %s; %s", s.PID, why, p.text)
	} else {
		p.text += fmt.Sprintf(" (process %d)", s.PID)
	}
	return p
}

// read reads the ring of a rank of this node. why says why the rank is stalled, "" if it is not.
func (r *recorder) read(rank int) (s *trace.Snapshot, why string, err error) {
	r.write.Lock()
	theirs := r.others[rank]
	switch {
	case r.closed:
		err = status.New(status.GroupDestroyed, "this rank has ended")
	case rank == r.rank:
		s, err = r.ring.Read()
	case theirs == nil:
		err = status.New(status.Unsupported, "its trace cannot be read")
	default:
		s, err = theirs.Read()
	}
	r.write.Unlock()
	if err == nil && theirs != nil {
		why = theirs.Stalled()
	}
	return s, why, err
}

// underWay tells whether an operation has not ended.
func (r *recorder) underWay(m trace.Mark) bool {
	r.write.Lock()
	defer r.write.Unlock()
	return !r.closed && m.UnderWay()
}

// recordedAs describes collective seq of g, which is under way, as this rank has recorded it.
func (g *Group) recordedAs(seq uint64) string {
	if s, _, err := g.env.recorder.read(g.env.Topo.Rank); err == nil {
		for i := range s.Operations {
			if o := &s.Operations[i]; o.Ended == nil && o.Group == g.ID && o.Seq != nil && *o.Seq == seq {
				return describe(arrive.Signature(o.Signature))
			}
		}
	}
	return "a collective"
}

// doing says what a rank does, as its trace has it.
func doing(s *trace.Snapshot, key, seq uint64) (p part) {
	groups := map[int64]*trace.GroupRecord{}
	for i := range s.Groups {
		groups[s.Groups[i].ID] = &s.Groups[i]
	}
	this := fmt.Sprintf("%016x", key)
	isThis := func(o *trace.OperationRecord) bool {
		g := groups[o.Group]
		return g != nil && g.Key == this && len(g.Ranks) > 1
	}
	var inside, oldest, last *trace.OperationRecord // a call under way, an asynchronous operation, one that has ended
	n := 0
	for i := range s.Operations {
		o := &s.Operations[i]
		if seq != 0 && o.Seq != nil && *o.Seq == seq && o.Begun != nil && isThis(o) {
			p.came = true
		}
		switch {
		case o.Refusing:
		case o.Ended != nil:
			if last == nil || *o.Ended > *last.Ended {
				last = o
			}
		case !o.Async:
			inside = o
		default:
			if n++; oldest == nil {
				oldest = o
			}
		}
	}
	name := func(o *trace.OperationRecord) string {
		text := describeRecord(o, groups[o.Group])
		switch g := groups[o.Group]; {
		case isThis(o):
			text += " on the same group"
		case g != nil:
			text += " on the group of ranks " + brief(g.Ranks)
		}
		return text
	}
	ago := func(at int64) string { return fmt.Sprintf("%.1f s", max(0, float64(s.Taken-at)/1e9)) }
	var text []string
	if inside != nil {
		text = append(text, fmt.Sprintf("it is inside %s, since %s", name(inside), ago(inside.Submitted)))
	}
	if inside == nil && last != nil {
		end := ""
		if *last.Outcome != "ok" {
			end = " with " + *last.Outcome
		}
		text = append(text, fmt.Sprintf("its last operation was %s, which ended%s %s ago", name(last), end, ago(*last.Ended)))
	}
	if n > 0 {
		text = append(text, fmt.Sprintf("of its asynchronous operations %d are under way, the first is %s, since %s", n, name(oldest), ago(oldest.Submitted)))
	}
	if len(text) == 0 {
		text = append(text, fmt.Sprintf("it has called no operation since it was initialised %s ago", ago(s.Began)))
	}
	p.text = strings.Join(text, ", and ")
	return p
}

// describeRecord describes an operation of a trace like the call that it stands for. g is its group, nil
// if that is not known.
func describeRecord(o *trace.OperationRecord, g *trace.GroupRecord) string {
	text := describe(arrive.Signature(o.Signature))
	if o.Seq != nil {
		return fmt.Sprintf("%s, number %d", text, *o.Seq)
	}
	trait := op.Code(o.Signature[0] & 0xff).Trait()
	for i, peer := range o.Peers {
		way := "from"
		if i == 0 && trait.Send != op.None {
			way = "to"
		}
		who := "any rank"
		if peer >= 0 && g != nil && int(peer) < len(g.Ranks) {
			who = fmt.Sprintf("rank %d", g.Ranks[peer])
		}
		text += " " + way + " " + who
	}
	return text
}
