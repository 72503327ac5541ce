// Package health knows how the ranks of a world are: which have left, which have died, what each one does, and for whom this
// one waits too long.
//
// The Roster says which ranks have left in order and which have died. It takes that from what the ranks of a node see of each
// other in shared memory (NodeView), and from package liveness, whose connections show deaths on all nodes. Where
// neither shows that a rank has left, the rank is asked.
//
// Questions are that protocol: ranks that share no memory ask each other by letter (package mailbox) whether they have left,
// and how far they have come in a group. A rank answers whenever it waits in the core, and its progress thread answers now
// and then. One that gives a collective up answers before it is asked.
//
// The Recorder is the flight recorder: a ring of the last operations of this rank (package trace), and the rings of the other
// ranks of its node, which can be read also when their processes are stopped or dead.
//
// Reports write one line about a wait that lasts long. It says for whom this rank waits, and what those do instead, as their
// rings say. The ring of a rank of another node is read by a process of that node, which is asked by package liveness.
//
// The Watcher ends the process if a member has died for which a thread waits inside MPI: such a call never returns, and
// nothing can give it up.
//
// The rooms above own the groups, and decide what becomes of an operation whose member has left or died. This room only says
// so. It knows groups by two things: a group that spans nodes answers questions (Respondent), and a collective may be Stuck.
//
//	nodeview.go  what shared memory shows of the ranks of this node
//	roster.go      who has left, and who has died
//	alive.go       how the watch over other nodes begins
//	questions.go   what ranks that share no memory ask each other
//	recorder.go    the flight recorder
//	reports.go     waits that last long
//	activity.go    what a rank does, for a report
//	describe.go    a signature as the call that it stands for
//	watcher.go     calls of MPI that never return
package health
