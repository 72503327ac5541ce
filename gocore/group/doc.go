// Package group holds process groups: who is a member, in which order their
// collectives run, and the way of one operation from its descriptor to its steps.
//
// A synchronous collective on an idle group of one node runs on the caller's
// thread: announce, see the others arrive, call MPI, return. Everything else
// becomes a task of the engine. Collectives of a group run strictly one after
// another in submit order; messages between two ranks bypass that order and have a
// communicator of their own.
package group
