package group

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// World makes the group of all ranks. Collective over the world.
func (e *Env) World(id int64, timeout time.Duration) (*Group, error) {
	ranks := make([]int, e.Topo.Size)
	for i := range ranks {
		ranks[i] = i
	}
	comm, err := e.Lib.Dup(e.base)
	if err != nil {
		return nil, err
	}
	return e.finish(id, 0, ranks, comm, timeout)
}

// New makes a group of the world ranks given, in their order, of which this rank is
// one. It is collective over the members only. The members first meet by messages,
// because MPI_Comm_create_group (MPI-4.1 section 7.4.2) has no deadline; who never
// came is named. Its two communicators are made at once, not at first use: ranks
// whose collectives of two groups are under way in different orders would each wait
// in the creation of another one.
func (e *Env) New(id int64, ranks []int, timeout time.Duration) (*Group, error) {
	if len(ranks) == 1 {
		return e.finish(id, 0, ranks, 0, timeout)
	}
	key := e.key(ranks)
	if err := e.meet(key, ranks, timeout); err != nil {
		return nil, err
	}
	list := make([]int32, len(ranks))
	for i, r := range ranks {
		list[i] = int32(r)
	}
	comm, err := e.Lib.CreateGroup(e.base, list, int32(key%uint64(e.Lib.TagUB())))
	if err != nil {
		return nil, err
	}
	return e.finish(id, key, ranks, comm, timeout)
}

// finish makes what a group needs beside its communicator.
func (e *Env) finish(id int64, key uint64, ranks []int, comm mpi.Comm, timeout time.Duration) (*Group, error) {
	g := &Group{env: e, ID: id, key: key, Ranks: ranks, Size: len(ranks), Rank: indexOf(ranks, e.Topo.Rank), coll: comm}
	g.timeout.Store(int64(timeout))
	if g.Size == 1 {
		g.local = true
		g.arrival = arrive.Alone{}
		g.side = e.base // messages to oneself go by the world's rank
		return g, nil
	}
	e.remember(g)
	var err error
	if g.side, err = e.Lib.Dup(comm); err != nil {
		return nil, err
	}
	if e.Topo.OneNode(ranks) {
		lines, err := e.makeLines(comm, ranks)
		if err != nil {
			return nil, err
		}
		if lines != nil {
			g.local, g.arrival = true, lines
			return g, nil
		}
	}
	g.arrival, err = arrive.NewWire(e.Lib, g.side, g.Size)
	return g, err
}

// key names a group before it exists: its ranks, and how many of the same were made
// before, which the members count alike because they make them in the same order.
func (e *Env) key(ranks []int) uint64 {
	h := fnv.New64a()
	var b [8]byte
	for _, r := range ranks {
		binary.LittleEndian.PutUint64(b[:], uint64(r))
		h.Write(b[:])
	}
	name := fmt.Sprint(ranks)
	e.mu.Lock()
	n := e.made[name]
	e.made[name]++
	e.mu.Unlock()
	binary.LittleEndian.PutUint64(b[:], uint64(n))
	h.Write(b[:])
	return h.Sum64()
}

// answerGrace is how much longer than its own deadline a member waits for the
// first member's list of who is missing.
const answerGrace = 2 * time.Second

// meet returns when all members have come to make group key. The first member
// collects the others and answers them.
func (e *Env) meet(key uint64, ranks []int, timeout time.Duration) error {
	began := time.Now()
	first, me := ranks[0], e.Topo.Rank
	if me == first {
		missing := slices.Clone(ranks[1:])
		err := e.Engine.Wait(func() bool {
			e.mail.pump()
			missing = slices.DeleteFunc(missing, func(r int) bool {
				_, ok := e.mail.take(mailHello, r, key)
				return ok
			})
			return len(missing) == 0
		}, began.Add(timeout), e.Interrupt)
		kind, body := mailGo, []byte(nil)
		if err != nil {
			kind = mailFail
			for _, r := range missing {
				body = binary.LittleEndian.AppendUint32(body, uint32(r))
			}
		}
		for _, r := range ranks[1:] {
			if !slices.Contains(missing, r) {
				e.mail.send(r, kind, key, body)
			}
		}
		_ = e.Engine.Wait(e.mail.sent, time.Now().Add(time.Second), nil)
		return e.meetError(err, ranks, missing, timeout)
	}

	e.mail.send(first, mailHello, key, nil)
	missing := []int{first}
	failed := false
	err := e.Engine.Wait(func() bool {
		e.mail.pump()
		if _, ok := e.mail.take(mailGo, first, key); ok {
			return true
		}
		body, ok := e.mail.take(mailFail, first, key)
		if ok {
			failed, missing = true, nil
			for ; len(body) >= 4; body = body[4:] {
				missing = append(missing, int(binary.LittleEndian.Uint32(body)))
			}
		}
		return ok
	}, began.Add(timeout+answerGrace), e.Interrupt)
	if failed && err == nil {
		err = errMissing
	}
	return e.meetError(err, ranks, missing, timeout)
}

var errMissing = status.New(status.Timeout, "members missing")

func (e *Env) meetError(err error, ranks, missing []int, timeout time.Duration) error {
	if err == nil || status.CodeOf(err) == status.Interrupted {
		return err
	}
	return status.New(status.Timeout,
		"new_group(ranks=%v): after %v world rank(s) %v had not called new_group with the same ranks; every member must call it, in the same order",
		brief(ranks), timeout, brief(missing)).WithRanks(missing...)
}

// brief keeps long lists of ranks readable.
func brief(ranks []int) string {
	const show = 16
	if len(ranks) <= show {
		return fmt.Sprint(ranks)
	}
	return fmt.Sprintf("%v and %d more", ranks[:show], len(ranks)-show)
}
