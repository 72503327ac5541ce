package checkpoint

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// read opens and restores the only cut of dir. got compares every row that it gives.
func read(t testing.TB, dir string) error {
	m, err := newest(dir)
	if err != nil {
		return err
	}
	return m.Restore(context.Background(), nil, sink(t, m.Step))
}

// change writes every variant of every file of a cut, and fails if one of them can be read.
func change(t *testing.T, variants func(b []byte, visit func([]byte))) {
	for _, step := range []int64{42, 242} {
		changeCut(t, step, variants)
	}
}

func changeCut(t *testing.T, step int64, variants func(b []byte, visit func([]byte))) {
	dir := t.TempDir()
	m := commit(t, dir, step, 2, 0)
	for _, name := range []string{manifestName, m.Parts[0].Name, m.Parts[1].Name} {
		path := filepath.Join(m.Folder, name)
		before, err := os.ReadFile(path)
		require.NoError(t, err)
		count := 0
		variants(before, func(b []byte) {
			require.NoError(t, os.WriteFile(path, b, 0o600))
			err := read(t, dir)
			require.Error(t, err, "%s, variant %d", name, count)
			require.NotContains(t, err.Error(), "has other values", "%s, variant %d", name, count)
			count++
		})
		assert.Greater(t, count, 100)
		require.NoError(t, os.WriteFile(path, before, 0o600))
		require.NoError(t, read(t, dir))
	}
}

func TestEveryFlippedBitIsFound(t *testing.T) {
	change(t, func(b []byte, visit func([]byte)) {
		for i := range b {
			b[i] ^= 1 << (i % 8)
			visit(b)
			b[i] ^= 1 << (i % 8)
		}
	})
}

func TestEveryTruncationIsFound(t *testing.T) {
	change(t, func(b []byte, visit func([]byte)) {
		for n := range b {
			visit(b[:n])
		}
		visit(append(b, 0))
	})
}

// A part that was changed after it was opened, or between Open and Restore, has another size.
func TestAPartIsCutOffWhileItIsRead(t *testing.T) {
	m := commit(t, t.TempDir(), 42, 1, 0)
	path := filepath.Join(m.Folder, m.Parts[0].Name)
	require.NoError(t, os.Truncate(path, m.Parts[0].Bytes-1))
	require.ErrorContains(t, m.Restore(context.Background(), nil, sink(t, 42)), "it was written with")
	require.NoError(t, os.Remove(path))
	require.ErrorContains(t, m.Restore(context.Background(), nil, sink(t, 42)), "cannot open part 0")
}

func TestAPipeIsNotOpened(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(folderOf(dir, 3), 0o700))
	require.NoError(t, syscall.Mkfifo(filepath.Join(folderOf(dir, 3), manifestName), 0o600))
	_, err := newest(dir)
	require.ErrorContains(t, err, "is no regular file")
	m := commit(t, dir, 42, 1, 0)
	part := filepath.Join(m.Folder, m.Parts[0].Name)
	require.NoError(t, os.Remove(part))
	require.NoError(t, syscall.Mkfifo(part, 0o600))
	_, err = Open(dir, 42)
	require.ErrorContains(t, err, "part 0, ")
}

// A part of another cut, or of another attempt at this one, is not taken for this one though it is
// whole.
func TestPartsAreNotExchanged(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	m := commit(t, dir, 42, 2, 0)
	for want, step := range map[string]int64{"its beginning is not that of part 0 of 2 of step 42": 41, "the checksum of its index is": 42} {
		part, err := WritePart(context.Background(), other, step, 0, 2, sources(41, 0, 2), false, nil)
		require.NoError(t, err)
		b, err := os.ReadFile(filepath.Join(folderOf(other, step), part.File))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(m.Folder, m.Parts[0].Name), b, 0o600))
		require.ErrorContains(t, read(t, dir), want)
	}
}

func TestADamagedCutIsSkipped(t *testing.T) {
	dir := t.TempDir()
	commit(t, dir, 40, 2, 0)
	m := commit(t, dir, 42, 2, 0)
	damaged := filepath.Join(m.Folder, m.Parts[1].Name)
	require.NoError(t, os.Truncate(damaged, 100))
	list, err := List(dir)
	require.NoError(t, err)
	step, skipped, err := NewestWhole(dir, list, reading(dir))
	require.NoError(t, err)
	assert.EqualValues(t, 40, step)
	require.Len(t, skipped, 1)
	assert.EqualValues(t, 42, skipped[0].Step)
	require.Contains(t, skipped[0].Why, "cut-00000042 is no whole cut: part 1, "+filepath.Base(damaged)+", has 100 bytes")
	// It does not count, and stays for whoever wants to look at it.
	commit(t, dir, 41, 2, 2)
	steps, err := folders(dir)
	require.NoError(t, err)
	assert.Equal(t, []int64{40, 41, 42}, steps)
	// The job that goes on from an older cut reaches its step again.
	commit(t, dir, 42, 3, 1)
	steps, err = folders(dir)
	require.NoError(t, err)
	assert.Equal(t, []int64{42}, steps)
	m, err = newest(dir)
	require.NoError(t, err)
	whole(t, m)

	require.NoError(t, os.Remove(filepath.Join(m.Folder, m.Parts[0].Name)))
	_, err = newest(dir)
	require.ErrorContains(t, err, "of 1 complete cuts in "+dir+" none is whole")
}
