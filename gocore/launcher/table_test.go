package launcher

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestEveryRowIsWhole(t *testing.T) {
	names, processes := map[string]bool{}, map[string]bool{}
	for _, k := range Kinds {
		assert.False(t, names[k.Name], k.Name)
		names[k.Name] = true
		assert.NotEmpty(t, k.MPI, k.Name)
		assert.NotEmpty(t, k.Size, k.Name)
		assert.NotEmpty(t, k.Rank, k.Name)
		assert.NotEmpty(t, k.LocalRank, k.Name)
		assert.NotEqual(t, k.TasksPerNode == "", k.LocalSize == nil, "%s: one of them tells the local size", k.Name)
		assert.Equal(t, k.TasksPerNode == "", k.Node == "", k.Name)
		assert.Subset(t, k.Processes, k.Mpirun, k.Name)
		for _, p := range k.Processes {
			assert.False(t, processes[p], "%s starts ranks of one launcher", p)
			processes[p] = true
			assert.Less(t, len(p), 16, "%s: the kernel cuts longer names", p)
			assert.Same(t, k, ByProcess(p))
		}
		for _, h := range k.Head {
			assert.Positive(t, regexp.MustCompile(h.Pattern).NumSubexp(), h.Pattern)
		}
	}
	assert.Nil(t, ByProcess("bash"))
}

// A rank that starts a job, or a process that is no rank, removes these variables from its
// environment.
func TestPrefixesCoverAllVariables(t *testing.T) {
	var prefixes []string
	for _, k := range Kinds {
		prefixes = append(prefixes, k.VariablePrefixes...)
	}
	for _, k := range Kinds {
		for _, names := range [][]string{k.Size, k.Rank, k.LocalRank, k.LocalSize, k.Job, k.Plugins, {k.Task, k.Node, k.TasksPerNode, k.CPUs}} {
			for _, name := range names {
				begins := func(beginning string) bool { return strings.HasPrefix(name, beginning) }
				assert.True(t, name == "" || slices.ContainsFunc(prefixes, begins), "%s of %s", name, k.Name)
			}
		}
	}
}
