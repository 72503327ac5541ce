package gocore

import (
	"time"

	"github.com/paddlempi/paddlempi/gocore/registry"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Result is what a receive or a probe returns.
type Result = work.Result

// Wait waits until a work is over, up to limit. If limit is negative, it waits until the
// operation's own deadline. If release is set, and the work succeeded and left nothing on a device,
// Wait releases it and returns released = true. released is also true if the work does not exist,
// because another thread has released it. A work may outlive its world.
func Wait(id uint64, limit time.Duration, interrupt work.Interrupt, release bool) (r Result, released bool, err error) {
	if err := registry.Healthy(); err != nil {
		return r, false, err
	}
	h, err := work.Lookup(id)
	if err != nil {
		return r, true, err
	}
	r, err = h.Wait(limit, interrupt)
	return r, release && err == nil && h.Forget(), err
}

// Test advances a work without waiting, and returns whether it is over.
func Test(id uint64) (bool, error) {
	h, err := lookup(id)
	if err != nil {
		return false, err
	}
	return h.Test()
}

// Order makes a stream of the device wait for what a work has left queued there.
func Order(id, stream uint64) error {
	h, err := lookup(id)
	if err == nil {
		err = h.Order(stream)
	}
	return err
}

func lookup(id uint64) (*work.Handle, error) {
	if err := registry.Healthy(); err != nil {
		return nil, err
	}
	return work.Lookup(id)
}

// Hurry says that no thread is going to wait for a work.
func Hurry(id uint64) {
	if h, err := work.Lookup(id); err == nil {
		h.Hurry()
	}
}

// Release releases a work, which goes on if it is not over. It returns whether the work's memory
// may be freed. If not, work.NextReleased returns the work when it may.
func Release(id uint64) (free bool) { return work.Release(id) }
