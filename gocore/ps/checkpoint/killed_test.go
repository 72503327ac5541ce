package checkpoint

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const killedFolder = "CHECKPOINT_TEST_KILLED"

// big returns the table of one of two servers.
func big(step int64, server int) *rows {
	r := &rows{name: "big", config: "{}", dtype: op.Float32, dim: 64, state: 64, step: step}
	for id := int64(server); id < 6000; id += 2 {
		r.ids = append(r.ids, id)
	}
	return r
}

// TestWriteUntilKilled is the process that TestKilled kills. It goes on from the latest cut.
func TestWriteUntilKilled(t *testing.T) {
	dir := os.Getenv(killedFolder)
	if dir == "" {
		return
	}
	m, err := newest(dir)
	require.NoError(t, err)
	step := int64(0)
	if m != nil {
		step = m.Step + 1
	}
	for ; ; step++ {
		var parts []ServerPart
		for server := range 2 {
			part, err := WritePart(context.Background(), dir, step, server, 2, []Source{big(step, server)}, false, nil)
			require.NoError(t, err)
			parts = append(parts, part)
		}
		require.NoError(t, Commit(context.Background(), dir, step, parts, strconv.AppendInt(nil, step, 10), nil))
		old, err := Superfluous(listed(t, dir), step, 2, reading(dir))
		require.NoError(t, err)
		Remove(dir, old)
		fmt.Printf("\ncomplete %d\n", step)
	}
}

// A process that writes cuts is killed at any point. Then the last cut that it has called complete,
// or the next one, is there and whole.
func TestKilled(t *testing.T) {
	dir, last, unfinished := t.TempDir(), int64(-1), 0
	for round := range 30 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestWriteUntilKilled$", "-test.timeout=60s")
		cmd.Env = append(os.Environ(), killedFolder+"="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		var killer *time.Timer
		began := false
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if text, is := strings.CutPrefix(lines.Text(), "complete "); is {
				if last, err = strconv.ParseInt(text, 10, 64); !began {
					began = true
					killer = time.AfterFunc(rand.N(60*time.Millisecond), func() { _ = cmd.Process.Kill() })
				}
				require.NoError(t, err)
			}
		}
		require.True(t, began, "round %d: the process ended by itself", round)
		killer.Stop()
		require.ErrorContains(t, cmd.Wait(), "signal: killed")

		m, err := newest(dir)
		require.NoError(t, err)
		require.NotNil(t, m)
		require.GreaterOrEqual(t, m.Step, last)
		require.LessOrEqual(t, m.Step, last+1)
		assert.Equal(t, strconv.FormatInt(m.Step, 10), string(m.Extra))
		g := &got{t: t, of: map[string]*rows{"big": big(m.Step, 0)}}
		require.NoError(t, m.Restore(context.Background(), nil, g))
		require.Len(t, g.ids["big"], 6000)
		steps, err := folders(dir)
		require.NoError(t, err)
		whole, err := complete(dir)
		require.NoError(t, err)
		assert.LessOrEqual(t, len(whole), 3) // keep=2, and one that was about to be removed
		unfinished += len(steps) - len(whole)
	}
	assert.Positive(t, unfinished, "no kill came while a cut was written")
}
