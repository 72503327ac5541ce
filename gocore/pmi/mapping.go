package pmi

import (
	"fmt"
)

// mapping returns the value of PMI_process_mapping, which tells MPI on which node each rank is:
// (vector,(first node,nodes,ranks on each),...). MPI begins with the first block again when it has come
// to the end, so only a part is written if the rest repeats it. node has the number of each rank's node.
//
// It returns "" if the text would be too long for MPI, as MPICH's mpirun does. MPI then compares the
// names of the hosts.
func mapping(node []int) string {
	// MPI takes node 0 for the one to begin with. The numbers are those of the first ranks' order.
	number := map[int]int{}
	order := make([]int, len(node))
	for r, n := range node {
		if _, known := number[n]; !known {
			number[n] = len(number)
		}
		order[r] = number[n]
	}
	text := "(vector"
	for i, n := 0, period(order); i < n; {
		first, size := order[i], run(order[i:n])
		i += size
		nodes := 1
		for i < n && order[i] == first+nodes && run(order[i:n]) == size {
			i += size
			nodes++
		}
		text += fmt.Sprintf(",(%d,%d,%d)", first, nodes, size)
		if len(text) >= maxMapping {
			return ""
		}
	}
	return text + ")"
}

// maxMapping keeps the text below the longest value that an MPICH takes (wire.go).
var maxMapping = 850 // tests set it

// run returns how many ranks at the beginning are on one node.
func run(order []int) int {
	n := 1
	for n < len(order) && order[n] == order[0] {
		n++
	}
	return n
}

// period returns the shortest part at the beginning of which order is a repetition. The last
// repetition may be cut off.
func period(order []int) int {
	// border[i] is the length of the longest part that order[:i+1] both begins and ends with.
	border := make([]int, len(order))
	for i := 1; i < len(order); i++ {
		b := border[i-1]
		for b > 0 && order[i] != order[b] {
			b = border[b-1]
		}
		if order[i] == order[b] {
			b++
		}
		border[i] = b
	}
	if len(order) == 0 {
		return 0
	}
	return len(order) - border[len(order)-1]
}
