// Package neighbours turns an exchange with neighbours, of a halo on a grid or of a graph, into the copies of package coll: what this
// rank packs for whom, what it unpacks from whom, and what it gives to itself. What a pattern makes of tensors of one shape is kept.
//
// Tensors in device memory are copied to a block in pinned host memory before the call, and back at its end. A tensor in the heap of a
// rank is lent, where that saves a copy.
package neighbours
