package health

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/liveness"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/trace"
)

// activity is what is known of a rank for which another one waits.
type activity struct {
	Came    bool // it has come to the collective
	Stalled bool // its process lives and does not go on
	Text    string
}

// look finds out what a rank does. seq is the number of the collective of the group with key for which
// it is awaited, 0 if it is awaited for something else.
func (o *Reports) look(rank int, key, seq uint64) activity {
	if o.roster.topo.Node[rank] == o.roster.topo.Node[o.roster.topo.Rank] {
		return o.roster.recorder.look(rank, key, seq)
	}
	return o.lookThere(rank, key, seq)
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
func (o *Reports) lookThere(rank int, key, seq uint64) activity {
	if o.roster.unwatched != "" {
		return activity{Text: fmt.Sprintf("what it does is not known here (%s)", o.roster.unwatched)}
	}
	ask := o.asked(rank)
	var question [liveness.QuestionBytes]byte
	binary.LittleEndian.PutUint32(question[:], uint32(rank))
	binary.LittleEndian.PutUint64(question[4:], key)
	binary.LittleEndian.PutUint64(question[12:], seq)
	answer, err := o.roster.alive.Ask(ask, question, askLimit)
	if err == nil {
		var a activity
		if a, err = decodeActivity(answer); err == nil {
			return a
		}
	}
	if err == liveness.ErrSilent {
		return activity{Stalled: true, Text: fmt.Sprintf("rank(s) %s of its host were asked, and no process answered, though the host does", status.Brief(ask))}
	}
	return activity{Text: fmt.Sprintf("what it does could not be asked (%v)", err)}
}

// asked returns the ranks whose processes are asked what a rank does.
func (o *Reports) asked(rank int) []int {
	ask := []int{rank}
	for r, node := range o.roster.topo.Node {
		if r != rank && node == o.roster.topo.Node[rank] && len(ask) < askedOfNode {
			ask = append(ask, r)
		}
	}
	return ask
}

// Answer answers a question of another node for what a rank of this one does.
func (r *Recorder) Answer(question [liveness.QuestionBytes]byte) []byte {
	rank := binary.LittleEndian.Uint32(question[:])
	if uint64(rank) >= uint64(r.topo.Size) || r.topo.Node[rank] != r.topo.Node[r.topo.Rank] {
		return nil
	}
	return r.look(int(rank), binary.LittleEndian.Uint64(question[4:]), binary.LittleEndian.Uint64(question[12:])).encode()
}

// encode returns what other processes decode.
func (a activity) encode() []byte {
	a.Text = a.Text[:min(len(a.Text), mostText)]
	b, _ := json.Marshal(a)
	return b
}

// decodeActivity reads what another process has sent.
func decodeActivity(b []byte) (a activity, err error) {
	if json.Unmarshal(b, &a) != nil || a.Text == "" || len(a.Text) > mostText {
		return a, status.New(status.Unsupported, "the answer is none of this library")
	}
	a.Text = status.ASCII(a.Text)
	return a, nil
}

// look is Reports.look for a rank of this node.
func (r *Recorder) look(rank int, key, seq uint64) activity {
	s, why, err := r.Read(rank)
	if err != nil {
		return activity{Text: fmt.Sprintf("what it does is not known here (%v)", err)}
	}
	a := doing(s, key, seq)
	if a.Stalled = why != ""; a.Stalled {
		a.Text = fmt.Sprintf("its process %d %s; %s", s.PID, why, a.Text)
	} else {
		a.Text += fmt.Sprintf(" (process %d)", s.PID)
	}
	return a
}

// doing says what a rank does, as its trace has it.
func doing(s *trace.Snapshot, key, seq uint64) (a activity) {
	groups := map[int64]*trace.GroupRecord{}
	for i := range s.Groups {
		groups[s.Groups[i].ID] = &s.Groups[i]
	}
	this := fmt.Sprintf("%016x", key)
	isThis := func(o *trace.OperationRecord) bool {
		g := groups[o.Group]
		return g != nil && g.Key == this && len(g.Ranks) > 1
	}
	var inside, last *trace.OperationRecord // a call under way, the operation that has ended last
	var async []*trace.OperationRecord      // those under way, the oldest first
	for i := range s.Operations {
		o := &s.Operations[i]
		a.Came = a.Came || seq != 0 && o.Seq != nil && *o.Seq == seq && o.Begun != nil && isThis(o)
		switch {
		case o.Refusing:
		case o.Ended != nil:
			if last == nil || *o.Ended > *last.Ended {
				last = o
			}
		case !o.Async:
			inside = o
		default:
			async = append(async, o)
		}
	}
	name := func(o *trace.OperationRecord) string {
		text := describeRecord(o, groups[o.Group])
		switch g := groups[o.Group]; {
		case isThis(o):
			text += " on the same group"
		case g != nil:
			text += " on the group of ranks " + status.Brief(g.Ranks)
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
	if len(async) > 0 {
		text = append(text, fmt.Sprintf("of its asynchronous operations %d are under way, the first is %s, since %s", len(async), name(async[0]), ago(async[0].Submitted)))
	}
	if len(text) == 0 {
		text = append(text, fmt.Sprintf("it has called no operation since it was initialised %s ago", ago(s.Began)))
	}
	a.Text = strings.Join(text, ", and ")
	return a
}

// describeRecord describes an operation of a trace like the call that it stands for. g is its group, nil
// if that is not known.
func describeRecord(o *trace.OperationRecord, g *trace.GroupRecord) string {
	text := Describe(arrive.Signature(o.Signature))
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
