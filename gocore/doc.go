// Package gocore has the functions that capi offers across the C ABI. Each finds what its call names
// (package registry), and hands the call to the room that carries it out.
//
// # A tour of one all_reduce
//
// Two ranks on one node have an array of 4 float32 each, and both call
//
//	dist.all_reduce(t)
//
// docs/way.md has the functions that this call enters, in their order, as traced. It also has the
// traces of a message, of a larger call, of one across nodes, and of one of DDP. What follows is
// the idea.
//
// Python (collectives.py) completes the arguments and calls _core.submit with the operation's
// code, the number of the group and the tensor. submit.c reads the arguments into a pmpi_op,
// tensor.c describes the tensor as a pmpi_buf (address, count, dtype, shape, strides), and call.c
// drops the GIL and calls pmpi_submit. guard.c tests the fork flag and calls goSubmit (export.go).
// From here on it is Go: goSubmit reads the C struct as an op.Desc and calls [Submit].
//
// [Submit] finds the group by its number (registry.Group) and hands it the descriptor. From here on the calling
// thread does everything itself; there is no channel, no second goroutine and no allocation on the
// way.
//
// # Check
//
// collective.Group.Submit takes a call from a pool and checks the descriptor against the traits
// of the operation, which are generated from the table of operations (package op): how
// many buffers each side takes, which lengths go together, whether it reduces, whether it
// has a root. It also checks that the reduce op is defined for the dtype. If anything is
// wrong, the caller gets an error and nothing is sent. The rank still announces the
// collective, with a refusal, so that the other members raise an error instead of waiting.
//
// A tensor that is not contiguous gets a staging block (package buffer) now. The block is
// filled later: at the announcement if the input travels in it, as here, otherwise when it is
// known that the operation runs. If such tensors are long, a flag says so instead, and the
// algorithm staged copies them piece by piece.
//
// The result of the check is coll.Args, which algorithms read, and a signature of three
// words, on which all members have to agree: operation, dtype, reduce op and root in the
// first, the count in the second, and whatever else must match in the third.
//
// # Arrive
//
// The group is idle and its members share the node, so the calling thread carries the call out. It
// takes the next sequence number and announces it: it writes signature, flags and then the number
// into this member's control slot, in a segment that all members map (package arrive). An input as
// small as this one travels in a payload beside it. Then the thread reads the slots of the other
// members until each shows the same number. One call into C does both, because the other members
// are usually there already.
//
// If they are not, work.Engine.Wait takes over. It spins, then yields, then sleeps up to a
// millisecond at a time. Meanwhile it drives the other operations under way, watches the
// deadline and, every 50 ms, asks Python whether a signal came. MPI has not been called
// yet, so the collective can still be given up. After a deadline the error names the
// members whose slot shows an older number. A member that has left the job is reported at
// once.
//
// When all members have arrived, the signatures are compared. If one differs, or if a
// member has refused, every member makes the same error from the same slots. The sequence
// number is used up and the group stays usable.
//
// # Run
//
// The first algorithm of the operation that serves the call carries it out. Whether it does depends
// only on what all members have agreed on (coll.Sig). Here that is "inline", because every input
// lies in a payload: each rank reads all payloads and adds them up (package reduce) into its own
// array. MPI is not called.
//
// For a tensor that is too large for a payload and lies in a heap, it is "mapped": the ranks share
// out chunks and work in each other's memory (coll/shm). For one that lies elsewhere on the node it
// goes through blocks that all map (coll/bounce). What is left are algorithms that append steps to
// a coll.Program. If all members arrived inside the call (the flag Sync, ANDed over the slots), it
// makes blocking calls of MPI, through the table of function pointers that was filled when the
// library was loaded (package mpi).
//
// On the way back a staging, if there was one, is unpacked, an MPI error class becomes a
// [status.Error], and the group is released. call.c takes the GIL again (gil.c), tensor.c bumps the
// version counter of the tensor if its framework has one, and submit returns None.
//
// # The other way
//
// With async_op=True or on a busy group the collective is a work.Task: the engine polls its
// arrival, and then its program, which runs step by step with nonblocking calls. Its caller holds a
// work.Handle. A thread that waits drives all tasks; while no thread waits, the progress thread
// does. A synchronous collective becomes one as well if it has to wait for requests of MPI, or for
// long for members on other nodes. Across nodes the arrival is an allgather by recursive doubling
// (arrive.Wire) instead of shared slots; a call whose input travels with it, and whose members come
// soon, is over on the thread of its caller. Everything else is the same code.
//
// Messages (send, recv, sendrecv, probe) have no arrival, are outside the order of the
// collectives, and use a communicator of their own (package messages). A short one on one node
// never comes to Go: capi/quick.c hands it to gocore/transport/memory/quick.c.
//
// docs/architecture.md has the rooms (packages), the picture, the threads, and what happens at exit.
package gocore
