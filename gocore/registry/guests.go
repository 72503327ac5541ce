package registry

import (
	"slices"
	"sync"
)

// Guest is a world of two parties, which join has made.
type Guest struct {
	*World
	Leaving sync.Mutex // held by a thread that ends it
	Left    bool       // this process has left it; Leaving guards it
}

var guests struct {
	mu   sync.Mutex
	list []*Guest // those that have not ended
}

// AddGuest enters a world of two parties.
func AddGuest(w *World) *Guest {
	guests.mu.Lock()
	defer guests.mu.Unlock()
	one := &Guest{World: w}
	guests.list = append(guests.list, one)
	return one
}

// ForgetGuest forgets one that has ended.
func ForgetGuest(w *Guest) {
	guests.mu.Lock()
	defer guests.mu.Unlock()
	guests.list = slices.DeleteFunc(guests.list, func(other *Guest) bool { return other == w })
}

// Guests returns those that have not ended.
func Guests() []*Guest {
	guests.mu.Lock()
	defer guests.mu.Unlock()
	return slices.Clone(guests.list)
}

// GuestOf returns the one whose group of all ranks has an id; nil if there is none.
func GuestOf(id int64) *Guest {
	for _, w := range Guests() {
		if w.All().ID == id {
			return w
		}
	}
	return nil
}
