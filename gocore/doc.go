// # A tour of one all_reduce
//
// Two ranks on one node have an array of 4 float32 each, and both call
//
//	dist.all_reduce(t)
//
// docs/way.md has the functions that this call enters, in their order, as traced. It also has the
// traces of a larger call, of one across nodes, and of one of DDP. What follows is the idea.
//
// Python (collectives.py) checks the arguments and calls _core.submit with the operation's
// code, the number of the group and the tensor. submit.c describes the tensor as a
// pmpi_buf (address, count, dtype, shape, strides), fills in a pmpi_op, drops the GIL and
// calls pmpi_submit. guard.c tests the fork flag and calls goSubmit (export.go). From here
// on it is Go: goSubmit reads the C struct as an op.Desc and calls [Submit].
//
// [Submit] finds the group by its number and hands it the descriptor. From here on the calling
// thread does everything itself; there is no channel, no second goroutine and no allocation on the
// way.
//
// # Check
//
// group.Group.Submit takes a call from a pool and checks the descriptor against the traits
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
// into this member's cache line, in a segment that all members map (package arrive). An input as
// small as this one travels in a note beside it. Then the thread reads the control slots of the other
// members until each shows the same number. One call into C does both, because the other members
// are usually there already.
//
// If they are not, work.Engine.Wait takes over. It spins, then yields, then sleeps up to a
// millisecond at a time. Meanwhile it drives the other operations under way, watches the
// deadline and, every 50 ms, asks Python whether a signal came. MPI has not been called
// yet, so the collective can still be given up. After a deadline the error names the
// members whose line shows an older number. A member that has left the job is reported at
// once.
//
// When all members have arrived, the signatures are compared. If one differs, or if a
// member has refused, every member makes the same error from the same control slots. The sequence
// number is used up and the group stays usable.
//
// # Run
//
// coll.Choose takes the first algorithm of the operation that serves the call. Whether it does
// depends only on what all members have agreed on (coll.Sig). Here that is "inline" (coll/node.go),
// because every input lies in a note: each rank reads all notes and adds them up (package reduce)
// into its own array. MPI is not called.
//
// For a tensor that is too large for a note and lies in a heap, it is "mapped": the ranks share out
// chunks and work in each other's memory (coll/shm). For one that lies elsewhere it is an algorithm
// that appends steps to a coll.Program. If all members arrived inside the call (the flag Sync, ANDed
// over the control slots), Program.Run makes blocking calls of MPI, through the table of function pointers
// that was filled when the library was loaded (package mpi).
//
// On the way back a staging, if there was one, is unpacked, an MPI error class becomes a
// [status.Error], and the group is released. submit.c takes the GIL again, bumps the version
// counter of the tensor if its framework has one, and returns None.
//
// # The other way
//
// With async_op=True, on a busy group, or if members are on several nodes, the same call
// becomes a collective, which is a work.Task. Its arrival is polled, its program runs step
// by step with nonblocking calls, and its caller holds a work.Handle. A thread that waits
// drives all tasks; while no thread waits, the progress thread does. Across nodes the
// arrival is a nonblocking allreduce of 64 bytes (arrive.Wire) instead of control slots.
// Everything else is the same code.
//
// Messages (send, recv, sendrecv, probe) have no arrival, are outside the order of the
// collectives, and use a communicator of their own (package messages).
//
// docs/architecture.md has the rooms (packages), the picture, the threads, and what happens at exit.
package gocore
