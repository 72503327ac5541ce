package transport

import "github.com/paddlempi/paddlempi/gocore/work"

// UnderWay is a list of requests of one transport that belong together. Its user locks it.
type UnderWay struct {
	By   Requests
	list []*Request
}

// Add appends a request that was started. If err is not nil there is none, and Add returns err.
func (u *UnderWay) Add(r *Request, err error) error {
	if err == nil {
		u.list = append(u.list, r)
	}
	return err
}

// Len returns how many requests are in the list.
func (u *UnderWay) Len() int { return len(u.list) }

// Batch adds those that are not done to b, which tests them with those of other tasks.
func (u *UnderWay) Batch(b *work.Batch) {
	for _, r := range u.list {
		if !r.Done() {
			b.Add(u.By.Poller(), r.Address())
		}
	}
}

// Poll tests those that are not done, and tells whether all are.
func (u *UnderWay) Poll() bool {
	var room [16]uintptr
	open := room[:0]
	for _, r := range u.list {
		if !r.Done() {
			open = append(open, r.Address())
		}
	}
	return len(open) == 0 || u.By.Poller().Poll(open) == len(open)
}

// Reap releases those that are done, and returns the first error of one.
func (u *UnderWay) Reap() (err error) {
	kept := u.list[:0]
	for _, r := range u.list {
		if !r.Done() {
			kept = append(kept, r)
			continue
		}
		if failure := u.By.Err(r); failure != nil && err == nil {
			err = failure
		}
		u.By.Release(r)
	}
	clear(u.list[len(kept):])
	u.list = kept
	return err
}
