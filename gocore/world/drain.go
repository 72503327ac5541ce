package world

import (
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/work"
)

// How a group ends. A group cannot be freed while another thread waits in a call, while an
// asynchronous operation is under way, or while MPI has a request that is not complete. So a group
// ends in steps:
//
//  1. It takes no more calls.
//  2. Operations under way get time to end.
//  3. The other operations are given up, and their callers are told.
//  4. The communicators and the control slots are freed if nothing is left that uses them. Otherwise
//     they are never freed.

const (
	// DrainLimit is how long asynchronous operations may take to end by themselves.
	DrainLimit = 10 * time.Second
	// giveUpLimit is how long operations that were given up may take to notice it.
	giveUpLimit = time.Second
)

// all tells whether f is true of all groups.
func all(groups []Group, f func(Group) bool) bool {
	return !slices.ContainsFunc(groups, func(g Group) bool { return !f(g) })
}

// Drain gives operations under way time to end. The groups take no more calls. Drain calls begun
// once every operation has begun. The only error that it returns is an interrupt.
func Drain(e *work.Engine, groups []Group, begun func(), interrupt work.Interrupt) error {
	began, told := time.Now(), false
	err := e.Wait(func() bool {
		if !told && all(groups, Group.StartsNothing) {
			told = true
			begun()
		}
		waited := time.Since(began)
		return all(groups, func(g Group) bool { return !g.UnderWay() || waited > g.Patience() })
	}, began.Add(DrainLimit), interrupt)
	if err == work.ErrDeadline {
		err = nil
	}
	return err
}

// GiveUp waits until over returns true, giveUpLimit at most, and returns what it did. Operations
// have been told to end.
func GiveUp(e *work.Engine, over func() bool) bool {
	_ = e.Wait(over, time.Now().Add(giveUpLimit), nil)
	return over()
}
