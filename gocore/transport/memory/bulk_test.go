package memory

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// phase is what copies cost for some bytes, by way: into the small reach, into the caches, past them.
type phase struct {
	mib         int
	write, read [3]int
}

// went returns which MiB of each phase go which way.
func went(t *testing.T, phases ...phase) (shares [][3]int) {
	t.Helper()
	program := compiled(t, "writer", "")
	var arguments []string
	for _, p := range phases {
		arguments = append(arguments, fmt.Sprint(p.mib<<20))
		for _, cost := range append(p.write[:], p.read[:]...) {
			arguments = append(arguments, fmt.Sprint(cost))
		}
	}
	told, err := exec.Command(program, arguments...).Output()
	require.NoError(t, err)
	words := strings.Fields(string(told))
	for i := range phases {
		var share [3]int
		for way := range share {
			var kib int
			_, err := fmt.Sscan(words[3*i+way], &kib)
			require.NoError(t, err)
			share[way] = kib >> 10
		}
		shares = append(shares, share)
	}
	return shares
}

// The way that costs both sides less is taken. A trial of another one is short if that takes long.
func TestAWriterChoosesItsCopies(t *testing.T) {
	if byPieces {
		return
	}
	near := phase{2000, [3]int{100, 105, 300}, [3]int{100, 105, 200}}
	far := phase{4000, [3]int{900, 850, 150}, [3]int{100, 100, 200}}
	long := phase{4000, [3]int{400, 100, 300}, [3]int{100, 100, 200}}
	shares := went(t, near, far, long, near)
	assert.Greater(t, shares[0][0], 1970, "the small reach, where nothing is better")
	assert.Greater(t, shares[1][2], 3400, "past the caches, once a trial was made")
	assert.Less(t, shares[1][1], 40, "a trial that takes long is short")
	assert.Greater(t, shares[2][1], 2600, "all over the bulk, where that is better")
	assert.Greater(t, shares[3][0]+shares[3][1], 1970, "what is hardly better is not taken")
	assert.Equal(t, [][3]int{{100, 0, 0}}, went(t, phase{mib: 100}), "without a clock nothing is tried")
}
