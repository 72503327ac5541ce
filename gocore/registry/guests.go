package registry

import "sync"

// Guest is a world of two parties, which join has made.
type Guest struct {
	*World
	Leaving sync.Mutex // held by a thread that ends it
	Left    bool       // this process has left it; Leaving guards it
}

// Guests has the worlds of two parties that have not ended, by the ids of their groups of all ranks.
var Guests ByNumber[*Guest]
