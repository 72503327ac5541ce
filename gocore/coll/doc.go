// Package coll turns a collective into steps: MPI calls and local work.
//
// Each algorithm has a file, named after it; those of MPI are in moved_by_mpi.go and reduced_by_mpi.go. The comment there
// lists the steps and the bytes that the algorithm moves. The registry (registry_gen.go, which tools/opgen generates
// from its table) holds the algorithms of each operation, for tensors in host memory and in device
// memory. In these comments n is the number of ranks, and S the bytes of one rank's tensor or share.
//
// # Choosing
//
// The first algorithm of the operation that serves the call carries it out. That depends only on
// what all members have agreed on (Sig): operation, dtype, reduce op, root, count, size of the
// group, whether it shares a node or has every member on a node of its own, and the flags, ANDed
// and ORed over the members. A choice by a pointer, or by anything else that only one rank knows,
// would let ranks choose different algorithms and deadlock. A group keeps its Choices, so that the
// registry is walked once for each signature. An algorithm that uses another one inside (pack,
// staged) chooses it by the same signature. Package arrive defines the flags Sync, Refused, Ahead
// and Left; this package defines the others.
//
// # Running
//
// The algorithm appends steps to a Program. A step is one MPI call, several MPI calls under way
// together, or local work. If all members arrived inside a synchronous call on one node (all set
// the flag Sync), the program runs with blocking MPI calls. Otherwise, and always over nodes, it
// runs with nonblocking calls, on all members. They have to agree on this because a blocking and a
// nonblocking collective of MPI never match. An algorithm that sends messages between pairs of
// ranks, or waits for a device, uses nonblocking calls in any case: inside a blocking call it could
// not see its deadline.
//
// # Without MPI
//
// On one node (docs/algorithms.md):
//
//   - inline: the announcement carries the input itself, in a payload beside the signature. The same
//     algorithm serves a group over nodes.
//   - mapped: the payload says where the tensors are in this rank's heap, or where in the heap a
//     list of them is. The ranks share out the work in chunks (package shm).
//   - bounce: all other tensors go through blocks in the heaps, window by window (package bounce).
//   - cma: they are read where they lie in the other process (package cma).
//
// What fits into a slot or lies in a heap is a flag of the announcement, so all ranks choose the
// same algorithm.
//
// Over nodes three algorithms exchange parts by messages, and this core adds:
//
//   - doubling serves two members on two nodes, which send each other everything.
//   - slices serves groups with one member a node. It is one step of the program, which keeps some
//     messages under way with each other member (pieces.go).
//   - levels serves nodes of several members. The members of a node are a group of their own, which
//     has control slots and no communicator: only the steps of levels submit collectives to it,
//     which are mapped. Between these steps a pieces exchanges with the other nodes.
package coll
