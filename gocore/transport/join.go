package transport

// Joinable is a Comm whose ranks can be joined with processes that are no ranks of its world.
type Joinable interface {
	// Joiner returns what does so; nil: nothing does.
	Joiner() Joiner
}

// JoinerOf returns what joins the ranks of a Comm with other processes; nil: nothing does.
func JoinerOf(c Comm) Joiner {
	if j, ok := c.(Joinable); ok {
		return j.Joiner()
	}
	return nil
}

// Joiner joins the ranks of a Comm with processes that are no ranks of its world. All of these ranks call the
// same method. The Comm that this makes has the ranks of both parties: those of the first party come first, each party in its
// order. No method has a deadline.
type Joiner interface {
	// CanSpawn and CanJoin return why Spawn or Join is not possible here, nil if it is.
	CanSpawn() error
	CanJoin() error
	// Spawn starts processes. This party is the first. What rank 0 gives counts.
	Spawn(c Command) (Comm, error)
	// Parents joins the ranks that have spawned this process; they are the first party. Comm has to have all processes that
	// were spawned together.
	Parents() (Comm, error)
	// Spawned tells whether this process was spawned, and Parents was not called.
	Spawned() (bool, error)
	// Listen opens a port, which rank 0 of another job connects to in Join. Unlisten closes it.
	Listen() (port string, err error)
	Unlisten(port string)
	// Join joins another job. first says that this party is the first, which has opened the port; the other one says that it
	// is not. Rank 0's port counts.
	Join(port string, first bool) (Comm, error)
	// Disconnect frees the Comm. After that the two parties of a join are connected no more, if they had no other Comm. It
	// returns when all ranks have called it, unless this transport cannot wait for that.
	Disconnect() error
	// WaitsForDead tells whether the end of the transport waits for ranks of another job that have died before they
	// disconnected.
	WaitsForDead() bool
}

// Command is what Spawn starts.
type Command struct {
	Argv   []string // the program, and its arguments
	N      int      // how many processes
	Folder string   // in which they start
}
