package shm

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// killer compiles the harness with the points of primitives/kill.h.
func killer(t *testing.T, replace ...string) string {
	return harness(t, cmp.Or(os.Getenv("CC"), "cc"), "-O2 -DPADDLEMPI_KILL_POINTS", replace...)
}

// A rank is killed in every state of an arrival and of a chunk. The others end every collective
// alike, and know who was killed. What they take for a result is one.
func TestKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make test-ci runs it")
	}
	program := killer(t)
	for _, point := range []string{"before-announce", "after-announce", "all-arrived", "before-claim", "after-claim", "half-written",
		"before-done", "after-done", "all-done", "before-finished", "after-finished", "before-refuse", "after-refuse", "after-blind"} {
		t.Run(point, func(t *testing.T) {
			killed := 0
			for _, passage := range []int{1, 2, 5, 30} {
				for n := 2; n <= 4; n++ {
					out, err := run(program, n, 100, passage, 0, 1+passage, fmt.Sprintf("1:%s:%d", point, passage))
					require.NoError(t, err, "%d ranks, passage %d: %s", n, passage, out)
					if strings.Contains(out, ", 1 killed") {
						killed++
					}
				}
			}
			assert.NotZero(t, killed)
		})
	}
}

// The same for a rank that gives up, or that others leave.
func TestKilledWhileGivingUp(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make test-ci runs it")
	}
	program := killer(t)
	for _, point := range []string{"before-close", "in-close", "after-stop", "after-close", "in-close-chunks", "in-leave", "before-fail", "half-written"} {
		t.Run(point, func(t *testing.T) {
			killed := 0
			for seed := 1; seed <= 100 && killed < 4; seed++ {
				out, err := run(program, 2+seed%3, 100, seed, 1+seed%2, seed%5+1, fmt.Sprintf("1:%s:1", point))
				require.NoError(t, err, "seed %d: %s", seed, out)
				if strings.Contains(out, ", 1 killed") {
					killed++
				}
			}
			assert.NotZero(t, killed)
		})
	}
}

// Two ranks are killed, the second one also when it has found the chunk of the first.
func TestTwoKilled(t *testing.T) {
	program := killer(t)
	for _, point := range []string{"after-bury", "after-claim", "before-done", "after-announce"} {
		t.Run(point, func(t *testing.T) {
			killed := 0
			for seed := 1; seed <= 100 && killed < 4; seed++ {
				out, err := run(program, 4, 100, seed, 0, 4, "1:after-claim:3", fmt.Sprintf("2:%s:1", point))
				require.NoError(t, err, "seed %d: %s", seed, out)
				if strings.Contains(out, ", 2 killed") {
					killed++
				}
			}
			assert.NotZero(t, killed)
		})
	}
}

// The harness finds what would go wrong: else the tests above would show nothing.
func TestKilledFindsMistakes(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make test-ci runs it")
	}
	for name, c := range map[string]struct {
		says    string
		replace []string
	}{
		"done before it is written": {"the result is wrong", []string{
			"chunks.c", "work(op, worker, chunk);\n\t\t\tPMPI_KILL_POINT(\"before-done\");", "",
			"chunks.c", "PMPI_KILL_POINT(\"after-done\");", "work(op, worker, chunk);"}},
		"a dead rank's chunk counts": {"the result is wrong",
			[]string{"chunks.c", "&its, word(op->seq, rank, CLOSED)", "&its, word(op->seq, rank, DONE)"}},
		"nobody knows whose it was": {"it was given up for no reason",
			[]string{"chunks.c", "&its, word(op->seq, rank, CLOSED)", "&its, word(op->seq, op->me, CLOSED)"}},
	} {
		t.Run(name, func(t *testing.T) {
			program := killer(t, c.replace...)
			for seed := 1; seed <= 50; seed++ {
				if out, err := run(program, 3, 100, seed, 0, 4, "1:half-written:1"); err != nil {
					assert.Contains(t, out, c.says)
					return
				}
			}
			assert.Fail(t, "no run found it")
		})
	}
}
