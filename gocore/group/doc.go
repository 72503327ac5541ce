// Package group holds process groups: their members, the order in which their
// collectives run, and the path of one operation from its descriptor to the steps
// of an algorithm.
//
// A synchronous collective on an idle group of one node runs on the caller's
// thread, in five steps, each in a file of that name: check the arguments, arrive
// (announce, and wait until all members have), choose an algorithm, run it, finish.
// Every other collective becomes a task of the engine. The collectives of a group run
// one after another, in the order of submission. Messages between two ranks are outside
// that order and have a room of their own (package messages).
package group
