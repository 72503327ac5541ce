// # A tour of one all_reduce
//
// Two ranks on one node have an array of 1000 float32 each, and both call
//
//	dist.all_reduce(t)
//
// Python (collectives.py) checks the arguments and calls _core.submit with the operation's
// code, the number of the group and the tensor. submit.c describes the tensor as a
// pmpi_buf (address, count, dtype, shape, strides), fills in a pmpi_op, drops the GIL and
// calls pmpi_submit. guard.c tests the fork flag and calls goSubmit (export.go). From here
// on it is Go: goSubmit reads the C struct as an op.Desc and calls [Submit].
//
// [Submit] finds the group by its number and hands it the descriptor. From here to MPI the
// calling thread does everything itself; there is no channel, no second goroutine and no
// allocation on the way.
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
// A tensor that is not contiguous gets a staging block (package mem) now. The block is
// filled later, when it is known that the operation runs.
//
// The result of the check is coll.Args, which algorithms read, and a signature of three
// words, on which all members have to agree: operation, dtype, reduce op and root in the
// first, the count in the second, and whatever else must match in the third.
//
// # Arrive
//
// The group is idle and its members share the node, so the call runs inline
// (group/collective.go, runInline). It takes the next sequence number and announces it: it
// writes signature, flags and then the number into this member's cache line, in a segment
// that all members map (package arrive). Then it reads the lines of the other members
// until each shows the same number. One call into C does both, because the other members
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
// member has refused, every member makes the same error from the same lines. The sequence
// number is used up and the group stays usable.
//
// # Run
//
// All members arrived inside the call (the flag Sync, ANDed over the lines), so blocking
// MPI calls are possible. coll.Choose takes the first algorithm of the operation whose
// Enabled returns true. Enabled looks only at what all members have agreed on (coll.Sig).
// For 1000 float32 on two ranks that is allReduceMPI (coll/allreduce_mpi.go), which
// appends one step to a coll.Program: an mpi.Call, which is plain data. Program.Run gives
// it to mpi.Library.Run: one call into C (mpi/calls.c), which picks MPI_Allreduce from the
// table of function pointers that was filled when the library was loaded.
//
// MPI writes into the array itself. On the way back a staging, if there was one, is
// unpacked, an MPI error class becomes a [status.Error], and the group is released.
// submit.c takes the GIL again, bumps the version counter of the tensor if its framework
// has one, and returns None.
//
// # The other way
//
// With async_op=True, on a busy group, or if members are on several nodes, the same call
// becomes a collective, which is a work.Task. Its arrival is polled, its program runs step
// by step with nonblocking calls, and its caller holds a work.Handle. A thread that waits
// drives all tasks; while no thread waits, the progress thread does. Across nodes the
// arrival is a nonblocking allreduce of 64 bytes (arrive.Wire) instead of shared lines.
// Everything else is the same code.
//
// Messages (send, recv, sendrecv, probe) have no arrival, are outside the order of the
// collectives, and use a communicator of their own (group/message.go).
//
// # The packages
//
//	capi            the C ABI, the extension module; the only //export
//	gocore          init, submit, wait, exit; control methods
//	  group         membership, order of collectives, checks, messages
//	  coll          algorithms: one file each, named operation_algorithm
//	  arrive        arrivals: who has announced what
//	  work          tasks, handles, waiting, the progress thread
//	  topo          which ranks share a node
//	  reduce, mem   arithmetic in host memory; staging blocks, strided copies
//	  mpi           discovery, ABIs, the table of calls; mpifake plays N ranks
//	  launcher      launchers and their environment variables
//	  segment       memory files that the ranks of a node share
//	  trace         the flight recorder
//	  netif         the addresses by which other hosts reach this one
//	  cuda          the driver and its kernels
//	  diagnose      what the doctor tries, and the trial whether MPI takes GPU memory
//	  channel       messages between the cores
//	  dl            dlopen, the C environment
//	  op, status    descriptor, dtypes, traits; errors
//
// docs/architecture.md has the picture, the threads, and what happens at exit.
package gocore
