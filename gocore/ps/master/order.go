package master

import "math/rand/v2"

// order returns the shards of an epoch in their order: a function of the seed and the epoch alone,
// the same in every run and on every machine. It is the shuffle of Fisher and Yates (Knuth, The Art
// of Computer Programming, volume 2, 3.4.2, algorithm P) with the bits of PCG.
func (d *Data) order(epoch int64) []int64 {
	list := make([]int64, d.Shards)
	for i := range list {
		list[i] = int64(i)
	}
	if !d.Shuffle {
		return list
	}
	bits := rand.NewPCG(d.Seed, uint64(epoch))
	for i := len(list) - 1; i > 0; i-- {
		j := below(bits, uint64(i)+1)
		list[i], list[j] = list[j], list[i]
	}
	return list
}

// below returns a number from 0 to n-1, each with the same probability.
func below(bits *rand.PCG, n uint64) uint64 {
	most := -n % n // what is below would make small numbers more likely: (2^64 - n) mod n
	for {
		if x := bits.Uint64(); x >= most {
			return x % n
		}
	}
}
