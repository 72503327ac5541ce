// Package link carries requests of trainers to servers, and the answers: within a process, in memory that
// two processes of a node map, or by MPI.
package link

import (
	"time"

	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

const (
	// Credits is the number of requests of one trainer to one server that may be under way. Start
	// waits for a free one.
	Credits = 16
	// MaxHeader is the most bytes of a request's header, and of an answer's.
	MaxHeader = 64 << 10
	// MaxRegion is the most bytes of each of a request's regions.
	MaxRegion = 16 << 30
)

// Ranks is what this package needs of a process group. *group.Group has it.
type Ranks interface {
	// Me returns the rank of this process in the group, and how many ranks that has.
	Me() (rank, size int)
	// WorldRank returns the world rank of a member.
	WorldRank(member int) int
	// HeapOf returns the heap of another member on this node; nil if it cannot be mapped here.
	HeapOf(member int) *heap.View
	// Separate makes a communicator of the members that carries nothing else. It is collective, like
	// new_group. meanwhile is called on every member, and may exchange words: tell gives this member's,
	// of the same number on all, and returns those of all. In a group of one the communicator is 0.
	Separate(what string, timeout time.Duration, meanwhile func(tell func(words []int64) ([][]int64, error)) error) (mpi.Comm, error)
	// Library returns MPI, Engine what drives its requests.
	Library() mpi.Library
	Engine() *work.Engine
	// Crowded tells whether this node has more ranks than cores.
	Crowded() bool
	// Use counts this group as in use until done is called, so that MPI is not finalized and no heap is
	// unmapped while a thread is in them. Trouble tells threads when to end.
	Use() (done func())
	// Trouble returns why a wait for a member has to end: it died or left, or this group ends; nil while
	// the wait may go on. what describes the wait. With this rank itself only the end of the group counts.
	Trouble(what string, member int) error
}

// Links are the connections of this rank to the servers, and on a server those to the trainers.
type Links struct{}

// Open connects all members of a group with those that are servers, whose ranks in the group are given. It
// is collective: every member gives the same servers.
func Open(g Ranks, servers []int, timeout time.Duration) (*Links, error) {
	return nil, status.New(status.Unsupported, "not there yet")
}

// Serve hands every request to handle, those of one trainer in the order of their Start, on a goroutine
// for each trainer. It is called on a server, once, and returns at once.
func (l *Links) Serve(handle func(*Incoming)) {}

// Memory takes n bytes, aligned to 64, for the regions of requests. They lie in the heap of this process, so
// that servers on this node read and write them in place, or in ordinary memory if there is no heap.
func (l *Links) Memory(n int64) (*Memory, error) { return nil, nil }

// Start sends a request to a server, by its index in the servers of Open. It waits while all credits are in
// use. The regions stay the request's until Wait has returned.
func (l *Links) Start(server int, r *Request) (*Pending, error) { return nil, nil }

// Bytes returns how many bytes this rank's requests have moved so far, both ways.
func (l *Links) Bytes() (shared, mpi, local uint64) { return 0, 0, 0 }

// Lost returns why no request of a trainer, by its rank in the group, will come any more, nil while some
// may: it died, left, closed its links, or is damaged.
func (l *Links) Lost(trainer int) error { return nil }

// Close ends the threads, and all pending requests with errors.
func (l *Links) Close() error { return nil }

// Memory is memory for regions. After Free it is given back once no server uses it.
type Memory struct{}

// Bytes returns the memory.
func (m *Memory) Bytes() []byte { return nil }

// Free gives the memory back once no request uses it any more.
func (m *Memory) Free() {}

// Region is a part of a Memory. The zero Region is none.
type Region struct {
	M             *Memory
	Offset, Bytes int64
}

// Request is what a trainer asks.
type Request struct {
	Header []byte // at most MaxHeader bytes
	IDs    Region // of int64
	Values Region
	Answer Region // where the server writes
}

// Pending is a request under way.
type Pending struct{}

// Wait returns the header of the answer, or the error with which the server has replied. Other errors say
// that the wait has ended: by the deadline (zero: none), by interrupt (nil: none), because the server died or
// left, or because a process is damaged. Wait is called once, and frees the request. An answer that comes
// after an error is thrown away; until then Start refuses the memory of its regions.
func (p *Pending) Wait(deadline time.Time, interrupt work.Interrupt) (header []byte, err error) {
	return nil, nil
}

// Incoming is a request, as its server gets it. IDs, Values and Answer may lie in the trainer's memory: a
// trainer that is damaged may change them at any time. Reply ends their use.
type Incoming struct {
	From   int // rank of the trainer in the group
	Header []byte
	IDs    []int64
	Values []byte
	Answer []byte
}

// Reply answers the request: with a header, at most MaxHeader bytes, and with what is in Answer; or with an
// error, which reaches the trainer with its code, text and ranks. It is called exactly once, from any
// goroutine.
func (in *Incoming) Reply(header []byte, err error) {}
