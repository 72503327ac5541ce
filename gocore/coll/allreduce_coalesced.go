package coll

// allReduceCoalescedPack packs the tensors into blocks and reduces these, piece by piece as staged does. So k short
// tensors cost one collective, and long ones take no more memory than a piece. Bytes moved by each rank: those of the
// all_reduce, and 4S by the copies.
var allReduceCoalescedPack = Algorithm{Name: "pack", Memory: hostMemory, polls: stagedPolls, scratch: stagedScratch, build: buildStaged}
