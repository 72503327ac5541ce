// Package window has memory that the members of a group read, write and update in each other's processes, without a
// call of the process whose memory it is.
//
// There are two ways. Where the members map each other's heaps, a member works in the memory itself (access.c, near.go).
// To every other member it sends messages, which the engine of that member carries out (far.go, post.go, wire.go). Both ways
// change an element by the same atomic instructions (combine.c), so no update is lost, whichever way it comes.
//
// Everything that all members do together is a collective of the group: making a window, fence, free. So their deadlines,
// interrupts, deaths and mismatches are those of collectives, and a window needs no communicator: its messages have
// a tag on the one that carries the group's collectives.
package window

// #cgo CFLAGS: -std=gnu11 -O2 -Wall
// #cgo nocallback pw_combine
// #cgo noescape pw_combine
// #cgo nocallback pw_swap
// #cgo noescape pw_swap
// #cgo nocallback pw_enter
// #cgo nocallback pw_leave
// #cgo nocallback pw_looked
// #cgo nocallback pw_defined
// #include "access.h"
import "C"

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Group is what a window needs of a process group.
type Group struct {
	Members
	Calls
}

// Members is what it needs of the members. *world.Members has it, and describes it.
type Members interface {
	Me() (rank, size int)
	WorldRank(member int) int
	HeapOf(member int) *heap.View
	Engine() *work.Engine
	Use() (done func())
	Trouble(what string, member int) error
	Wait(done func() bool, deadline time.Time) error
	WaitRung(done func() bool, deadline time.Time) error
}

// Calls is what it needs besides. *group.Group has it, and describes it.
type Calls interface {
	ReportWait(what string, member int, since time.Time, still func() bool) bool
	Timeout() time.Duration
	Submit(d *op.Desc, nested bool) (*work.Handle, work.Result, error)
	Refuse(code op.Code) error
	// Record carries out a call of a window, with an entry in the flight recorder.
	Record(code uint8, d op.DType, count int64, member, window int, call func() error) error
	// Carrier returns what carries the messages of windows, and their tag there; nil in a group of one.
	Carrier() (on transport.Endpoint, tag int32)
}

// Windows are the windows of one group. All methods are safe for concurrent use.
type Windows struct {
	g        Group
	me, size int
	making   sync.Mutex // held while a window is made: the members make them in one order

	mu   sync.Mutex         // guards the rest, and post
	next uint64             // number of the next window
	open map[uint64]*Window // by number
	soon int                // calls of New that are under way: a message may name their window already
	post *post              // nil before the first window that needs messages
}

// Of returns the windows of a group, none so far.
func Of(g Group) *Windows {
	me, size := g.Me()
	return &Windows{g: g, me: me, size: size, next: 1, open: map[uint64]*Window{}}
}

// Window is a window, as one member sees it. All methods are safe for concurrent use.
type Window struct {
	ws      *Windows
	number  uint64 // the same on all members
	id      int64  // in this process
	shapes  [][]int64
	members members

	calls atomic.Int32 // under way in Go
	ended atomic.Bool  // it takes no more calls

	mu   sync.Mutex // guards what follows
	held []held     // this rank's locks, by member
	lost []error    // why an earlier put or accumulate to a member failed, which its caller was not told yet
	gone bool       // Close has given back what is not mapped
}

// Most dimensions of a tensor, and of a target.
const mostDims = 64

// The words that every member tells of its part in a new window.
const (
	wordNumber = iota // of the window that it would be on this member
	wordDType
	wordCount
	wordDims
	wordShared // 1: the others may map it
	wordOffset
	wordGeneration
	wordControl
	wordControlGeneration
	words
)

// New makes a window of this member's memory, a contiguous tensor. It is collective, and takes its turn among the
// group's collectives. timeout below 0 stands for the group's.
func (ws *Windows) New(memory *op.Buf, timeout time.Duration, nested bool) (*Window, error) {
	ws.making.Lock()
	defer ws.making.Unlock()
	w := &Window{ws: ws, held: make([]held, ws.size), lost: make([]error, ws.size)}
	w.members = members{ws: ws, refs: make([]refs, ws.size), maps: make([]int, ws.size)}
	ws.mu.Lock()
	ws.soon++
	ws.mu.Unlock()
	err := w.make(memory, collective{ws.g, timeout, nested})
	ws.mu.Lock()
	ws.soon--
	ws.mu.Unlock()
	if err != nil {
		w.undo(err)
		return nil, prefix("Window", err)
	}
	return w, nil
}

// make is New. After an error undo gives back what it has made.
func (w *Window) make(memory *op.Buf, all collective) error {
	mine := make([]int64, words)
	if err := w.members.prepare(memory, mine); err != nil {
		_ = w.ws.g.Refuse(op.AllGather)
		return err
	}
	w.ws.mu.Lock()
	mine[wordNumber] = int64(w.ws.next)
	w.ws.mu.Unlock()
	rows, err := all.gather(mine)
	if err != nil {
		return err
	}
	if err := w.agree(rows); err != nil {
		return err
	}
	if w.shapes, err = gatherShapes(memory, rows, all); err != nil {
		return err
	}
	messages := w.members.join(rows)
	w.id = int64(C.pw_publish(w.members.c))
	ws := w.ws
	ws.mu.Lock()
	ws.open[w.number], ws.next = w, w.number+1
	ws.mu.Unlock()
	if ws.size == 1 {
		return nil
	}
	// Every member has opened its part before one begins an access, and knows whether messages will come.
	rows, err = all.gather([]int64{messages})
	if err == nil && slices.ContainsFunc(rows, func(row []int64) bool { return row[0] != 0 }) {
		ws.serve()
	}
	return err
}

// agree takes in what all members tell.
func (w *Window) agree(rows [][]int64) error {
	var differ []int
	number := uint64(0)
	for r, row := range rows {
		number = max(number, uint64(row[wordNumber]))
		if row[wordDType] != int64(w.members.dtype) {
			differ = append(differ, w.ws.g.WorldRank(r))
		}
	}
	w.number = number
	if len(differ) > 0 {
		return status.New(status.Mismatch, "this rank's memory is of %v, and that of rank(s) %s is of another dtype", w.members.dtype, status.Brief(differ)).WithRanks(differ...)
	}
	return nil
}

// gatherShapes returns the shape of every member's memory.
func gatherShapes(memory *op.Buf, rows [][]int64, all collective) ([][]int64, error) {
	most, shapes := int64(0), make([][]int64, len(rows))
	for r, row := range rows {
		if row[wordDims] < 0 || row[wordDims] > mostDims || row[wordCount] < 0 {
			return nil, status.New(status.Argument, "rank %d of the group says that its memory has %d dimensions and %d elements", r, row[wordDims], row[wordCount])
		}
		most = max(most, row[wordDims])
	}
	if most == 0 {
		return shapes, nil
	}
	mine := make([]int64, most)
	copy(mine, memory.Dims())
	dims, err := all.gather(mine)
	if err != nil {
		return nil, err
	}
	for r, row := range rows {
		shapes[r] = dims[r][:row[wordDims]]
	}
	return shapes, nil
}

// prefix puts the name of a function before the text of an error.
func prefix(what string, err error) error {
	if err == nil {
		return nil
	}
	e := status.Plain(err)
	e.Msg = what + ": " + e.Msg
	return e
}

// ID returns the number of the window in this process.
func (w *Window) ID() int64 { return w.id }

// Shapes returns the shape of every member's memory.
func (w *Window) Shapes() [][]int64 { return w.shapes }

// DType returns the dtype of the elements.
func (w *Window) DType() op.DType { return w.members.dtype }

// Of tells whether the window is one of ws.
func (w *Window) Of(ws *Windows) bool { return w.ws == ws }

func (w *Window) String() string { return fmt.Sprintf("window %d", w.number) }
