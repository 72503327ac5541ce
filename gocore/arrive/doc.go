// Package arrive is the arrival at a collective: a member announces what it is about to do, and
// waits until all other members have announced the same.
//
// Data moves only after that. The deadline, Ctrl-C, the names of missing ranks and the comparison
// of the signatures belong to this wait, in which nothing has been sent but announcements, and the
// collective can still be given up.
//
// There are two kinds of arrival: ControlSlots, shared cache lines for a group on one node, and
// Wire, messages for a group that spans nodes. A group of one rank is Alone.
//
// # Control slots
//
// They are a segment, which the first member makes and the others map. Every member has a block
// with a ring of 32 slots of one cache line: {seq, 3 words, flags, length of the payload}.
//
// When a slot is used again. A member announces collective k in slot k % 32: first it writes the
// words, then seq = k with release order. A reader that sees seq == k with acquire order may read
// the words. A member goes through the collectives in order: its turn is at k when it has finished
// with k-1, and a word of it says how far it has finished. In its turn a member may announce
// without a look at these words, because it has seen that all members announced k-1. Ahead of its
// turn it looks whether all members have finished with k-31. slots.h has the proof, and an explorer
// of all executions checks it (docs/adr/0019).
//
// Ahead of its turn. An asynchronous collective is announced when it is submitted, if the ring has
// room. So the other members know where its tensors are while this rank computes, and do its work.
// The order of the collectives stays: a member takes part in one when it has finished with those
// before. One whose input travels in its announcement is not announced before the result is there
// that it reads.
//
// Members agree on giving up. A member that gives up collective k closes the slots of the members
// that have not announced k. To announce and to close are a compare-and-swap on the same word, so
// one of the two wins. If the close wins, the late member finds its slot closed and raises at once.
// If the announcements win, all members have arrived after all, and the member that wanted to give
// up runs the collective too. So no member runs a collective that another member has given up. A
// collective that was announced ahead can be refused as long as some member has not announced it:
// the refusal is a mark on that member's slot. After that the group breaks if the collective is
// given up.
//
// # Wire
//
// An allgather by recursive doubling: messages between pairs of members in log2(n) rounds
// (rounds.go; docs/algorithms.md has a picture), with a tag of their own on the group's
// communicator. Its header has every word and its complement, combined by bitwise or on the way: a
// bit that ends up set in both differs between two members. Behind the header are the payloads of
// all members that the sender knows of: the inputs of a small collective. So its arrival is the
// collective, as on one node. Only if a word differs, or a member refused, a second one follows, in
// which the payload is what a member has announced, for the text of the error (docs/adr/0030). Of
// several members on a node only the first one exchanges messages, as their leader: they tell it
// what they announce on a board, memory that they share, and it tells them there what the rest have
// announced (board.go).
//
// What is sent stays valid. A member may know everything while its own last message is still under
// way. So each doubling has a block of memory of its own for the messages of all its rounds. The
// next one takes another block, and a block is used again when its messages have arrived. What
// arrives is checked before it is read: number, kind and length of the message, and number and
// length of every payload.
//
// The doubling does not say who is missing, and a message cannot be taken back. Package group asks
// the other members by message, and its deadline counts after the arrival too.
package arrive
