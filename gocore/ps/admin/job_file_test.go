package admin

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/dl"
	"github.com/paddlempi/paddlempi/gocore/status"
)

func sample() JobFile {
	return JobFile{Token: token, Servers: []ServerAddress{{1, "10.0.0.1:77"}, {3, "[fd00::1]:78"}}, Roles: map[int]string{0: Trainer, 1: PServer, 3: both},
		TLS: TLS{CA: "/etc/ca.pem"}}
}

// runtime has XDG_RUNTIME_DIR be a new folder with a mode. The environment of C is the one that is
// read.
func runtime(t *testing.T, mode os.FileMode) string {
	folder := t.TempDir()
	require.NoError(t, os.Chmod(folder, mode))
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv("XDG_RUNTIME_DIR", folder)
	seen, _ := dl.Getenv("XDG_RUNTIME_DIR")
	require.Equal(t, folder, seen)
	return folder
}

func TestAJobFileIsReadAsItWasWritten(t *testing.T) {
	folder := runtime(t, 0o700)
	path, err := WriteJobFile(sample())
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(folder, "paddlempi"), filepath.Dir(path))
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	want := sample()
	want.Version, want.PID, want.Namespace = 1, os.Getpid(), namespace()
	want.Started, _ = startOf(os.Getpid())
	assert.NotZero(t, want.Started)
	for _, asked := range []string{"", path} {
		got, found, err := ReadJobFile(asked)
		require.NoError(t, err)
		assert.Equal(t, path, found)
		assert.Equal(t, want, got)
	}
	again, err := WriteJobFile(sample())
	require.NoError(t, err)
	assert.Equal(t, path, again)
	RemoveJobFile(path)
	left, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	assert.Empty(t, left)
	_, _, err = ReadJobFile("")
	assert.Equal(t, status.Argument, status.CodeOf(err))
	assert.ErrorContains(t, err, "has no file ps-PID.json of a living process")
}

// variant writes the sample as the file of another process.
func variant(t *testing.T, path string, change func(*JobFile)) string {
	path, err := filepath.Abs(path)
	require.NoError(t, err)
	e := sample()
	e.Version, e.PID, e.Namespace = 1, os.Getpid(), namespace()
	e.Started, _ = startOf(e.PID)
	change(&e)
	text, err := json.Marshal(e)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text, 0o600))
	return path
}

func TestFilesOfProcessesThatHaveEnded(t *testing.T) {
	folder := filepath.Join(runtime(t, 0o700), "paddlempi")
	child := exec.Command("sleep", "60")
	require.NoError(t, child.Start())
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	own, err := WriteJobFile(sample())
	require.NoError(t, err)
	other := variant(t, filepath.Join(folder, "ps-2.json"), func(e *JobFile) {
		e.PID = child.Process.Pid
		e.Started, _ = startOf(e.PID)
	})
	reused := variant(t, filepath.Join(folder, "ps-3.json"), func(e *JobFile) { e.Started-- })
	elsewhere := variant(t, filepath.Join(folder, "ps-4.json"), func(e *JobFile) { e.Namespace, e.PID = "pid:[1]", 1<<22+1 })
	_, _, err = ReadJobFile("")
	assert.ErrorContains(t, err, "2 jobs with parameter servers run here; choose one by its file")
	assert.ErrorContains(t, err, own)
	assert.ErrorContains(t, err, other)
	_, _, err = ReadJobFile(elsewhere)
	assert.NoError(t, err, "whoever names a file gets it")
	require.NoError(t, child.Process.Kill())
	_ = child.Wait()
	_, found, err := ReadJobFile("")
	require.NoError(t, err)
	assert.Equal(t, own, found)
	_, err = WriteJobFile(sample())
	require.NoError(t, err)
	assert.NoFileExists(t, other)
	assert.NoFileExists(t, reused)
	assert.FileExists(t, elsewhere)
}

func TestAFolderThatIsNotTheUsersAlone(t *testing.T) {
	folder := runtime(t, 0o755) // no XDG_RUNTIME_DIR has this mode
	path, err := WriteJobFile(sample())
	require.NoError(t, err)
	temporary, _ := dl.Getenv("TMPDIR")
	assert.True(t, strings.HasPrefix(path, temporary+"/paddlempi-"), path)
	private := filepath.Dir(path)
	info, err := os.Stat(private)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700), info.Mode().Perm())

	require.NoError(t, os.Chmod(private, 0o770))
	_, err = WriteJobFile(sample())
	assert.Equal(t, status.Unsupported, status.CodeOf(err))
	assert.ErrorContains(t, err, "others have rights to it")
	_, _, err = ReadJobFile("")
	assert.ErrorContains(t, err, private)
	require.NoError(t, os.RemoveAll(private))
	require.NoError(t, os.Symlink(folder, private)) // as another user might
	_, err = WriteJobFile(sample())
	assert.ErrorContains(t, err, "another type")
}

// Another user may have taken the usual name in /tmp, with whatever: this one takes another name,
// and finds its jobs there.
func TestAFolderOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a file to another user")
	}
	for what, take := range map[string]func(path string) error{
		"folder": func(path string) error { return os.Mkdir(path, 0o777) },
		"file":   func(path string) error { return os.WriteFile(path, nil, 0o666) },
		"link":   func(path string) error { return os.Symlink("/", path) },
	} {
		t.Run(what, func(t *testing.T) {
			runtime(t, 0o755)
			temporary, _ := dl.Getenv("TMPDIR")
			taken := filepath.Join(temporary, "paddlempi-0")
			for _, path := range []string{taken, taken + "-0", taken + "-zzz"} {
				require.NoError(t, take(path))
				require.NoError(t, os.Lchown(path, 4321, 4321))
			}
			path, err := WriteJobFile(sample())
			require.NoError(t, err)
			assert.True(t, strings.HasPrefix(path, taken+"-"), path)
			info, err := os.Lstat(filepath.Dir(path))
			require.NoError(t, err)
			assert.NoError(t, private(info, os.ModeDir))
			_, found, err := ReadJobFile("")
			require.NoError(t, err)
			assert.Equal(t, path, found)
			again, err := WriteJobFile(sample())
			require.NoError(t, err)
			assert.Equal(t, path, again, "it takes the same folder again")
			other := filepath.Join(temporary, "paddlempi-0-other") // two jobs that began at the same time
			require.NoError(t, os.Mkdir(other, 0o700))
			require.NoError(t, os.Rename(path, filepath.Join(other, filepath.Base(path))))
			_, found, err = ReadJobFile("")
			require.NoError(t, err)
			assert.Equal(t, other, filepath.Dir(found))
		})
	}
}

func TestFilesThatAreNotTheUsersAlone(t *testing.T) {
	folder := runtime(t, 0o700)
	path := variant(t, filepath.Join(folder, "f"), func(*JobFile) {})
	_, _, err := ReadJobFile(path)
	require.NoError(t, err)
	link, pipe := filepath.Join(folder, "link"), filepath.Join(folder, "pipe")
	require.NoError(t, os.Symlink(path, link))
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	require.NoError(t, os.Chmod(path, 0o640))
	for file, want := range map[string]string{path: "others have rights to it", link: "symbolic links", pipe: "another type", folder: "another type", folder + "/none": "no such file"} {
		_, _, err := ReadJobFile(file)
		assert.Equal(t, status.Argument, status.CodeOf(err), file)
		assert.ErrorContains(t, err, want)
	}
	if os.Geteuid() == 0 {
		require.NoError(t, os.Chmod(path, 0o600))
		require.NoError(t, os.Chown(path, 4321, 0))
		_, _, err := ReadJobFile(path)
		assert.ErrorContains(t, err, "it belongs to user 4321, and this is user 0")
	}
}

func TestWhatAFileSaysIsChecked(t *testing.T) {
	folder := runtime(t, 0o700)
	for want, change := range map[string]func(*JobFile){
		"version=2":               func(e *JobFile) { e.Version = 2 },
		"pid=0":                   func(e *JobFile) { e.PID = 0 },
		"0 servers":               func(e *JobFile) { e.Servers = nil },
		"65537 servers":           func(e *JobFile) { e.Servers = make([]ServerAddress, maxServers+1) },
		"text in it":              func(e *JobFile) { e.TLS.Key = "\x1b" },
		"has 4 bytes":             func(e *JobFile) { e.Token = token[:4] },
		"address=h of server 1":   func(e *JobFile) { e.Servers[1].Address = "h" },
		"address=:7 of server 0":  func(e *JobFile) { e.Servers[0].Address = ":7" },
		"address=h:0 of server 0": func(e *JobFile) { e.Servers[0].Address = "h:0" },
		"address=?:7 of server 0": func(e *JobFile) { e.Servers[0].Address = "\x07:7" },
		"rank=-1 of server 1":     func(e *JobFile) { e.Servers[1].Rank = -1 },
		"address=x of the master": func(e *JobFile) { e.Master = &ServerAddress{1, "x"} },
		"role=pserver,trainer of": func(e *JobFile) { e.Roles = map[int]string{3: "pserver,trainer"} },
		"role=k of rank 3":        func(e *JobFile) { e.Roles = map[int]string{3: "k"} },
		"role=trainer of rank -1": func(e *JobFile) { e.Roles = map[int]string{-1: Trainer} },
	} {
		_, _, err := ReadJobFile(variant(t, filepath.Join(folder, "f"), change))
		assert.Equal(t, status.Argument, status.CodeOf(err), want)
		assert.ErrorContains(t, err, want)
		e := sample()
		change(&e)
		if e.Version == 0 && want != "pid=0" {
			_, err = WriteJobFile(e)
			assert.ErrorContains(t, err, want, "written")
		}
	}
	path := filepath.Join(folder, "f")
	require.NoError(t, os.WriteFile(path, make([]byte, maxJobFile+1), 0o600))
	_, _, err := ReadJobFile(path)
	assert.ErrorContains(t, err, "more than 16777216 bytes")
	require.NoError(t, os.WriteFile(path, []byte(`{"version":1`), 0o600))
	_, _, err = ReadJobFile(path)
	assert.ErrorContains(t, err, "unexpected end of JSON")
}
