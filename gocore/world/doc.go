// Package world has what all groups of a world share. A world is the ranks of a job, or those of two jobs that were joined.
//
// NewEnv makes the Env of a process, together with all other ranks: they compare their settings, find out which of them share
// a node, open the memory of that node (Node), and begin to watch each other (package health). From then on a group is made by
// its members alone. They Meet first by letters (package mailbox), because no call of MPI that makes a communicator has a
// deadline. Package group makes the group itself, and enters it here: Remember, Forget.
//
// Members is what every operation of a group asks of the world: where the memory of a member is, whether it has left or
// died, how to wait, and how an error names ranks.
//
// A group ends in the steps of Drain, and the ranks end together: a Departure goes from stage to stage until all ranks have
// left, and have agreed whether MPI can be finalized. Until then a rank that has left answers the questions of the others.
//
// The rooms above own the operations. This room knows a group by what its end needs of it (Group).
//
//	env.go        Env: how a world begins and ends
//	forced.go     which algorithms the user prefers
//	device.go     the settings of device memory; aware.go: whether MPI takes it
//	node.go       the memory of a node: heaps.go, slots.go
//	handover.go   how its files are handed over: share.go, sockets.go
//	meeting.go    how members meet
//	groups.go     the groups that were made, and the keys that identify them
//	members.go    the members of a group; grief.go: what a wait knows of a death
//	drain.go      how a group ends
//	departure.go  how the ranks end together
package world
