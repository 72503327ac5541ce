package transport

// Joiner is a Comm whose ranks can be joined with processes that are no ranks of its world. All of its ranks call the
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
	// Join joins another job, which rank 0 has a connected socket to. first says that this party is the first; the other one
	// says that it is not. Rank 0 alone gives a socket, and may use it again afterwards.
	Join(socket int, first bool) (Comm, error)
	// Disconnect frees the Comm. After that the two parties of a join are connected no more, if they had no other Comm. It
	// returns when all ranks have called it, unless this transport cannot wait for that.
	Disconnect() error
}

// Command is what Spawn starts.
type Command struct {
	Argv   []string // the program, and its arguments
	N      int      // how many processes
	Folder string   // in which they start
}
