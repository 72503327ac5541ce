package dl

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOpenAndLookup(t *testing.T) {
	libc, err := Open("libc.so.6", Now|Local)
	require.NoError(t, err)
	require.Equal(t, "libc.so.6", filepath.Base(libc.Path()))
	symbol := libc.Lookup("getpid")
	require.NotNil(t, symbol)
	require.Equal(t, libc.Path(), Owner(symbol))
	require.Nil(t, libc.Lookup("no_such_function"))
}

func TestOpenNamesTheFileItCannotLoad(t *testing.T) {
	_, err := Open("/nonexistent/libnone.so", Now)
	require.ErrorContains(t, err, "/nonexistent/libnone.so")
	text := filepath.Join(t.TempDir(), "libtext.so")
	require.NoError(t, os.WriteFile(text, []byte("INPUT(libc.so.6)"), 0o600))
	_, err = Open(text, Now)
	require.ErrorContains(t, err, text)
}

func TestLoadedLoadsNothing(t *testing.T) {
	require.Nil(t, Loaded("libnone.so.1"))
	require.NotNil(t, Loaded("libc.so.6"))
}

func TestFilesAreWhatIsMapped(t *testing.T) {
	libc, err := Open("libc.so.6", Now)
	require.NoError(t, err)
	real, err := filepath.EvalSymlinks(libc.Path())
	require.NoError(t, err)
	files, err := Files()
	require.NoError(t, err)
	require.Contains(t, files, real)
	program, err := os.Executable()
	require.NoError(t, err)
	require.Contains(t, files, program)
}

func TestSetenvDefaultKeepsWhatIsSet(t *testing.T) {
	const name = "PADDLEMPI_TEST_VARIABLE"
	t.Setenv(name, "")
	require.False(t, SetenvDefault(name, "ours"), "set, if only to nothing")
	value, ok := Getenv(name)
	require.True(t, ok)
	require.Empty(t, value)
	require.NoError(t, os.Unsetenv(name))
	require.True(t, SetenvDefault(name, "ours"))
	value, _ = Getenv(name)
	require.Equal(t, "ours", value)
}
