// Package work drives operations to completion. It knows neither MPI nor
// collectives: only Tasks, and the Pollers that test their requests.
//
// There is no thread per operation. Whoever waits drives: Engine.Wait takes every
// task a step further while it waits for its own. One progress thread serves the
// tasks nobody waits for; it sleeps on a futex while there are none and starts
// with the first of them. A synchronous operation on an idle group never comes
// here at all: it runs on the caller's thread (see package group).
package work
