package pmi

import (
	"fmt"
)

// mapping returns the value of PMI_process_mapping, which tells MPI on which node each rank is:
// (vector,(first node,nodes,ranks on each),...). node has the number of each rank's node. A part that repeats
// is written each time: MPICH would begin again when it has come to the end, but Intel MPI does not.
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
	for i := 0; i < len(order); {
		first, size := order[i], run(order[i:])
		i += size
		nodes := 1
		for i < len(order) && order[i] == first+nodes && run(order[i:]) == size {
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
