package segment

// What a rank tells the others of a file or a giver that it may have: a word that says whether it has it, and the words of
// its address or its rendezvous.

// Some returns what a rank tells that has it.
func Some(w [3]int64) []int64 { return append([]int64{1}, w[:]...) }

// None returns what a rank tells that does not have it: as many words, all 0.
func None() []int64 { return make([]int64, 4) }
