// Package work drives operations until they are over. It knows neither MPI nor collectives, but
// only Tasks, and Pollers that test their requests.
//
// There is no thread for each operation. A goroutine that waits for an operation drives all tasks:
// Engine.Wait takes them further until its own is over. One progress thread drives the tasks for
// which no goroutine waits. It starts with the first asynchronous operation, and sleeps on a futex
// while there are no tasks. Patient tasks are left to goroutines for 2 ms before. A synchronous operation on an idle group runs on the caller's thread
// and makes no task (see package group).
package work
