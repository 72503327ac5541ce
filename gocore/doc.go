// # A tour of one all_reduce
//
// Two ranks on one node, an array of 1000 float32 each, and in both:
//
//	dist.all_reduce(t)
//
// Python (collectives.py) finds nothing unusual about the arguments and calls
// _core.submit with the operation's code, the number of the group and the tensor.
// submit.c describes the tensor as a pmpi_buf (address, count, dtype, shape,
// strides), fills in a pmpi_op, drops the GIL and calls pmpi_submit. guard.c looks
// at the fork flag and goes on to goSubmit (export.go), which is Go: it views the C
// struct as an op.Desc and calls [Submit].
//
// [Submit] finds the group by its number and hands it the descriptor. From here to
// MPI the calling thread does everything itself; there is no channel, no second
// goroutine and no allocation on the way.
//
// # Check
//
// group.Group.Submit takes a call from a pool and checks the descriptor against the
// traits of the operation, which the operations table generated (package op): how
// many buffers each side takes, which lengths go together, whether it reduces, whether
// it has a root. Is the reduce op defined for the dtype? Are the lengths equal? A wrong
// answer here is an error with nothing sent, and the rank still takes part in the
// collective by announcing that it refuses: the others raise instead of waiting.
//
// A tensor that is not contiguous gets a staging block (package mem) at this point;
// it is filled later, when it is known that the operation runs.
//
// The result of the check is coll.Args, which algorithms read, and a signature of
// three words, which all members have to agree on: operation, dtype, reduce op and
// root in the first, the count in the second, whatever else must match in the third.
//
// # Arrive
//
// The group is idle and its members share the node, so the call runs inline
// (group/collective.go, runInline). It takes the next sequence number and writes it,
// after the signature and the flags, into this member's cache line in a segment that
// all members map (package arrive). Then it reads the lines of the others until each
// shows the same number. One call into C does both, because the others are usually
// there already.
//
// Where they are not, work.Engine.Wait takes over: it spins, then yields, then
// sleeps up to a millisecond at a time, drives whatever else is under way, looks at
// the deadline and, every 50 ms, asks Python whether a signal came. Nothing has been
// given to MPI yet, so all of it can be given up: a deadline names the members whose
// line still shows an older number, and a member that has left the job is reported
// at once.
//
// When all are there the signatures are compared. If one differs, or a member has
// refused, every member builds the same error from the same lines. The sequence
// number is used up and the group goes on.
//
// # Run
//
// All members arrived inside the call (the flag Sync, ANDed over the lines), so
// blocking MPI will do. coll.Choose takes the first algorithm of the operation whose
// Enabled agrees, looking only at what all members have in common (coll.Sig). For 1000 float32
// on two ranks that is allReduceMPI (coll/allreduce_mpi.go), which appends one step
// to a coll.Program: an mpi.Call, which is plain data. Program.Run gives it to
// mpi.Library.Run: one call into C (mpi/calls.c), which picks MPI_Allreduce from the
// table of function pointers that was filled when the library was loaded.
//
// MPI writes into the array itself. On the way back the staging, had there been one,
// is unpacked, an MPI error class becomes a [status.Error], the group is released,
// submit.c takes the GIL again, bumps the version counter of the tensor where its
// framework keeps one, and returns None.
//
// # The other way
//
// With async_op=True, on a busy group, or where members are on several nodes, the
// same call becomes a collective, a work.Task. Its arrival is polled, its program
// runs step by step with nonblocking calls, and its caller holds a work.Handle.
// Whoever waits drives all tasks; a progress thread does where nobody waits. Across
// nodes the arrival is a nonblocking allreduce of 64 bytes (arrive.Wire) instead of
// shared lines. Everything else is the same code.
//
// Messages (send, recv, sendrecv, probe) skip arrival and order and use a
// communicator of their own (group/message.go).
//
// # What stands where
//
//	capi            the C ABI, the extension module; the only //export
//	gocore          composition root: init, submit, wait, exit; control methods
//	  group         membership, order of collectives, checks, messages
//	  coll          algorithms: one file each, named operation_algorithm
//	  arrive        who is here, with what signature
//	  work          tasks, handles, waiting, the progress thread
//	  topo          which ranks share a node
//	  reduce, mem   arithmetic in host memory; staging blocks, strided copies
//	  mpi           discovery, ABIs, the table of calls; mpifake plays N ranks
//	  launcher      who starts processes, and in which variables it says so
//	  segment       memory files that the ranks of a node share
//	  netif         by which addresses other hosts reach this one
//	  cuda          the driver and its kernels; diagnose tries them
//	  dl            dlopen
//	  op, status    descriptor, dtypes, traits; errors
//
// docs/architecture.md has the picture, the threads, and what happens at exit.
package gocore
