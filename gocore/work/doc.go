// Package work drives operations until they are over. It knows neither MPI nor collectives, but
// only Tasks, and Pollers that test their requests.
//
// There is no thread for each operation. A goroutine that waits for an operation drives all tasks:
// Engine.Wait takes them further until its own is over. One progress thread drives the tasks for
// which no goroutine waits. It starts with the first asynchronous operation, and sleeps on a futex
// while there are no tasks. Patient tasks are left to goroutines for 2 ms before. What needs no
// request, a synchronous collective on an idle group of one node, never becomes a task (see package
// group).
//
// # How a wait waits
//
// A wait adapts (backoff.go). It spins for some 20 us, then calls sched_yield, then sleeps for
// longer and longer, up to 1 ms. If the node has more ranks than cores, it does not spin; if
// another thread took the core at the last yield, it hardly does (docs/adr/0054). While polling
// moves data it does not sleep. Only if the data comes from other nodes, and other threads use the
// core, it takes naps of 20 to 100 us (docs/adr/0032).
//
// If other ranks of the node do all that it waits for, it sleeps until one of them rings (bells.go,
// docs/adr/0065): at once where another rank was last seen on its CPU, else after the yields.
//
// Every wait on a caller's thread asks every 50 ms or so for an interrupt, which for Python means
// that its signal handlers run.
package work
