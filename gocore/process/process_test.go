package process

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestThisProcess(t *testing.T) {
	p, err := Read(Folder, os.Getpid())
	require.NoError(t, err)
	assert.Equal(t, os.Getpid(), p.PID)
	assert.Equal(t, os.Getppid(), p.Parent)
	assert.NotZero(t, p.Started)
	assert.False(t, p.Ended() || p.Stopped())
}

func TestWhatTheKernelMayWrite(t *testing.T) {
	folder := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(folder, "7"), 0o700))
	_, err := Read(folder, 7)
	assert.ErrorIs(t, err, os.ErrNotExist)
	for text, want := range map[string]Process{
		"7 (a) R b) t 3 7 7 0":                              {7, 3, "a) R b", 't', 0, false},
		"7 () Z 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 99 1 1": {7, 1, "", 'Z', 99, false},
		"7 (b) R 3 7 7 0 -1 4194560":                        {7, 3, "b", 'R', 0, false},
		"7 (b) R 3 7 7 0 -1 4194564":                        {7, 3, "b", 'R', 0, true},
		"":                                                  {},
		"7 (x":                                              {},
		"7 )x(":                                             {},
		"7 (x) R":                                           {},
		"7 (x) R the first":                                 {7, 0, "x", 'R', 0, false},
	} {
		require.NoError(t, os.WriteFile(filepath.Join(folder, "7", "stat"), []byte(text), 0o600))
		p, err := Read(folder, 7)
		assert.Equal(t, want, p, text)
		assert.Equal(t, want.Parent == 0, err != nil, text)
		assert.Equal(t, want.State == 'Z' || want.Exiting, p.Ended(), text)
	}
}
