package pmi

import (
	"fmt"
	"math/rand"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// nodes makes the node of each rank: counts[i] ranks on the i-th node.
func nodes(counts ...int) (node []int) {
	for i, n := range counts {
		for range n {
			node = append(node, i)
		}
	}
	return node
}

func TestMappings(t *testing.T) {
	for _, c := range []struct {
		node []int
		want string
	}{
		{nodes(1), "(vector,(0,1,1))"},
		{nodes(2, 2), "(vector,(0,2,2))"},
		{nodes(3, 1), "(vector,(0,1,3),(1,1,1))"},
		{nodes(2, 2, 3, 3, 1), "(vector,(0,2,2),(2,2,3),(4,1,1))"},
		{nodes(8, 8, 8, 8, 8, 8, 8, 8), "(vector,(0,8,8))"},
		{nodes(16, 16, 16, 9, 7), "(vector,(0,3,16),(3,1,9),(4,1,7))"},
		{[]int{7, 7, 3, 3}, "(vector,(0,2,2))"},
		{[]int{0, 1, 0, 1}, "(vector,(0,2,1),(0,2,1))"},
		{[]int{0, 0, 1, 0}, "(vector,(0,1,2),(1,1,1),(0,1,1))"},
	} {
		assert.Equal(t, c.want, mapping(c.node), "%v", c.node)
	}
}

// asMPIReads does what MPI does with a mapping.
func asMPIReads(t *testing.T, text string) (node []int) {
	inside := strings.TrimSuffix(strings.TrimPrefix(text, "(vector,("), "))")
	for _, block := range strings.Split(inside, "),(") {
		var n [3]int
		for i, number := range strings.Split(block, ",") {
			var err error
			n[i], err = strconv.Atoi(number)
			require.NoError(t, err, text)
		}
		for k := range n[1] {
			for range n[2] {
				node = append(node, n[0]+k)
			}
		}
	}
	return node
}

func TestMappingsOfRandomJobs(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	left := 0
	for range 2000 {
		node, number, seen := make([]int, 1+random.Intn(64)), map[int]int{}, 0
		for r := range node {
			node[r] = random.Intn(1 + random.Intn(6))
			if _, known := number[node[r]]; !known {
				number[node[r]] = seen
				seen++
			}
		}
		text := mapping(node)
		if text == "" {
			left++
			continue
		}
		var want []int
		for _, n := range node {
			want = append(want, number[n])
		}
		require.Equal(t, want, asMPIReads(t, text), text)
		require.Less(t, len(text), maxValue)
	}
	assert.Less(t, left, 20)
}

func TestAMappingThatIsTooLongIsLeftOut(t *testing.T) {
	var counts []int
	for i := range 100 {
		counts = append(counts, 1+i%2)
	}
	assert.Empty(t, mapping(nodes(counts...)))
	assert.NotEmpty(t, mapping(nodes(counts[:70]...)), fmt.Sprint(len(counts)))
	big := make([]int, 4096)
	for r := range big {
		big[r] = r / 64
	}
	assert.Equal(t, "(vector,(0,64,64))", mapping(big))
}
