package admin

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/paddlempi/paddlempi/gocore/dl"
	"github.com/paddlempi/paddlempi/gocore/process"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// JobFile is what a job tells the tools of its user in a file: where its servers are, and the
// token. PID, Started and Namespace say which process wrote it; WriteJobFile fills them in.
type JobFile struct {
	Version   int             `json:"version"`
	PID       int             `json:"pid"`
	Started   uint64          `json:"started"`   // when the process began, in ticks of the kernel
	Namespace string          `json:"namespace"` // of process ids
	Token     []byte          `json:"token"`     // JSON has it in base64
	Servers   []ServerAddress `json:"servers"`   // in the order of the servers
	Master    *ServerAddress  `json:"master"`    // nil if there is none
	Roles     map[int]string  `json:"roles"`     // by world rank, as Member.Role
	TLS       TLS             `json:"tls"`       // what a client needs; the paths of files
}

// ServerAddress is a server: its world rank and its address.
type ServerAddress struct {
	Rank    int    `json:"rank"`
	Address string `json:"address"`
}

const (
	version    = 1
	maxServers = 1 << 16
	maxJobFile = 16 << 20 // bytes of a file
	prefix     = "ps-"
	suffix     = ".json"
)

// WriteJobFile writes the file of this process, in the runtime folder of its user, and returns its
// path. Nobody else can read it. The files of processes that have ended are removed.
func WriteJobFile(e JobFile) (path string, err error) {
	e.Version, e.PID, e.Namespace = version, os.Getpid(), namespace()
	e.Started, _ = startOf(e.PID)
	if err := e.check(); err != nil {
		return "", status.New(status.Argument, "endpoints of the parameter server: %v", err)
	}
	folders, err := runtimeFolders()
	if err != nil {
		return "", err
	}
	folder := folders[0]
	_, ended := filesIn(folders)
	for _, old := range ended {
		_ = os.Remove(old)
	}
	text, err := json.Marshal(e)
	if err != nil {
		return "", status.New(status.Panic, "endpoints of the parameter server: %v", err)
	}
	path = filepath.Join(folder, prefix+strconv.Itoa(e.PID)+suffix)
	f, err := os.CreateTemp(folder, ".new-*") // for its owner only
	if err == nil {
		_, err = f.Write(text)
		if closed := f.Close(); err == nil {
			err = closed
		}
		if err == nil {
			err = os.Rename(f.Name(), path) // a reader sees the whole file or none
		}
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}
	if err != nil {
		return "", status.New(status.Unsupported, "the parameter server cannot write %s: %v", path, err)
	}
	return path, nil
}

// RemoveJobFile removes the file of WriteJobFile.
func RemoveJobFile(path string) { _ = os.Remove(path) }

// ReadJobFile reads a file of WriteJobFile, and returns its path. "": that of the only job of this
// user that runs on this host.
func ReadJobFile(path string) (JobFile, string, error) {
	if path == "" {
		folders, err := runtimeFolders()
		if err != nil {
			return JobFile{}, "", err
		}
		running, _ := filesIn(folders)
		switch len(running) {
		case 0:
			return JobFile{}, "", status.New(status.Argument, "no process of this user on this host has told where the servers of its job are: %s has no file %sPID%s of a living process; "+
				"if the job runs on other hosts, ask there", strings.Join(folders, ", "), prefix, suffix)
		case 1:
			path = running[0]
		default:
			return JobFile{}, "", status.New(status.Argument, "%d jobs with parameter servers run here; choose one by its file: %s", len(running), strings.Join(running, ", "))
		}
	}
	e, err := readJobFile(path)
	if err != nil {
		return JobFile{}, "", status.New(status.Argument, "%s does not tell where the servers of a job are: %v", path, err)
	}
	return e, path, nil
}

func readJobFile(path string) (JobFile, error) {
	// A pipe or a device is not waited for.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return JobFile{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return JobFile{}, err
	}
	if err := private(info, 0); err != nil {
		return JobFile{}, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxJobFile+1))
	if err != nil {
		return JobFile{}, err
	}
	return parseJobFile(text)
}

func parseJobFile(text []byte) (e JobFile, err error) {
	if len(text) > maxJobFile {
		return e, fmt.Errorf("it has more than %d bytes", maxJobFile)
	}
	if err := json.Unmarshal(text, &e); err != nil {
		return JobFile{}, err
	}
	if err := e.check(); err != nil {
		return JobFile{}, err
	}
	return e, nil
}

func (e JobFile) check() error {
	switch {
	case e.Version != version:
		return fmt.Errorf("version=%d is not %d, that of this paddlempi", e.Version, version)
	case e.PID <= 0:
		return fmt.Errorf("pid=%d is no process", e.PID)
	case len(e.Servers) < 1 || len(e.Servers) > maxServers:
		return fmt.Errorf("it has %d servers, not from 1 to %d", len(e.Servers), maxServers)
	case !printable(e.Namespace) || !printable(e.TLS.Cert) || !printable(e.TLS.Key) || !printable(e.TLS.CA):
		return fmt.Errorf("a text in it cannot be printed")
	}
	if err := checkToken(e.Token); err != nil {
		return err
	}
	for i, s := range e.Servers {
		if err := s.check(fmt.Sprintf("server %d", i)); err != nil {
			return err
		}
	}
	if e.Master != nil {
		if err := e.Master.check("the master"); err != nil {
			return err
		}
	}
	for rank, role := range e.Roles {
		if rank < 0 || rank > maxRank || !isRole(role) {
			return fmt.Errorf("role=%s of rank %d is none of %q, nor several of them", quoted(role), rank, roles)
		}
	}
	return nil
}

func (s ServerAddress) check(who string) error {
	host, port, err := net.SplitHostPort(s.Address)
	if number, wrong := strconv.ParseUint(port, 10, 16); err != nil || wrong != nil || number == 0 || host == "" || len(host) > maxName || !printable(host) {
		return fmt.Errorf("address=%s of %s is no host:port", quoted(s.Address), who)
	}
	if s.Rank < 0 || s.Rank > maxRank {
		return fmt.Errorf("rank=%d of %s is no rank", s.Rank, who)
	}
	return nil
}

// runtimeFolders returns this user's folders for such files, at least one: new files go into the
// first. It makes a folder if need be: in XDG_RUNTIME_DIR if that is as it should be, else in the
// folder for temporary files.
func runtimeFolders() ([]string, error) {
	if parent, _ := dl.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(parent) {
		if info, err := os.Stat(parent); err == nil && private(info, os.ModeDir) == nil {
			folder, err := privateFolder(filepath.Join(parent, "paddlempi"))
			return []string{folder}, err
		}
	}
	parent, _ := dl.Getenv("TMPDIR")
	if parent == "" {
		parent = "/tmp"
	}
	name := fmt.Sprintf("paddlempi-%d", os.Geteuid())
	path := filepath.Join(parent, name)
	if info, err := os.Lstat(path); err == nil && int(info.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() {
		return spareFolders(parent, name+"-")
	}
	folder, err := privateFolder(path)
	return []string{folder}, err
}

// spareFolders returns the folders of this user whose names begin with begin, and makes one if there
// is none. Where everybody makes folders, another user may have taken the usual name.
func spareFolders(parent, begin string) (folders []string, err error) {
	found, err := os.ReadDir(parent) // in the order of the names
	for _, entry := range found {
		path := filepath.Join(parent, entry.Name())
		if !strings.HasPrefix(entry.Name(), begin) {
			continue
		}
		if info, err := os.Lstat(path); err == nil && private(info, os.ModeDir) == nil {
			folders = append(folders, path)
		}
	}
	if len(folders) == 0 && err == nil {
		var made string
		made, err = os.MkdirTemp(parent, begin+"*")
		folders = []string{made}
	}
	if err != nil {
		return nil, status.New(status.Unsupported, "a folder for the endpoints of parameter servers, %s*, cannot be made: %v; set XDG_RUNTIME_DIR to a folder of your own with mode 0700",
			filepath.Join(parent, begin), err)
	}
	return folders, nil
}

// privateFolder makes a folder. What lies at its place already may be of another user.
func privateFolder(path string) (string, error) {
	if err := os.Mkdir(path, 0o700); err != nil && !os.IsExist(err) {
		return "", status.New(status.Unsupported, "the folder for the endpoints of parameter servers cannot be made: %v", err)
	}
	info, err := os.Lstat(path)
	if err == nil {
		err = private(info, os.ModeDir)
	}
	if err != nil {
		return "", status.New(status.Unsupported, "the folder %s for the endpoints of parameter servers cannot be used: %v; remove it, or set XDG_RUNTIME_DIR to a folder of your own with mode 0700", path, err)
	}
	return path, nil
}

// private returns an error unless a file is of this type, and is this user's alone.
func private(info os.FileInfo, kind os.FileMode) error {
	owner := info.Sys().(*syscall.Stat_t).Uid
	switch {
	case info.Mode().Type() != kind:
		return fmt.Errorf("it is of another type (%v)", info.Mode())
	case int(owner) != os.Geteuid():
		return fmt.Errorf("it belongs to user %d, and this is user %d", owner, os.Geteuid())
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("others have rights to it (%v)", info.Mode())
	}
	return nil
}

// filesIn returns the files of folders whose processes run, and those whose processes have ended.
// Of processes in other containers nobody knows.
func filesIn(folders []string) (running, ended []string) {
	var paths []string
	for _, folder := range folders {
		found, _ := os.ReadDir(folder) // in the order of the names
		for _, entry := range found {
			if strings.HasPrefix(entry.Name(), prefix) && strings.HasSuffix(entry.Name(), suffix) {
				paths = append(paths, filepath.Join(folder, entry.Name()))
			}
		}
	}
	for _, path := range paths {
		e, err := readJobFile(path)
		if err != nil || e.Namespace != namespace() {
			continue
		}
		if started, ok := startOf(e.PID); ok && started == e.Started {
			running = append(running, path)
		} else {
			ended = append(ended, path)
		}
	}
	return running, ended
}

func namespace() string {
	name, _ := os.Readlink("/proc/self/ns/pid")
	return name
}

// startOf returns when a process began. ok is false if it has ended.
func startOf(pid int) (started uint64, ok bool) {
	p, err := process.Read(process.Folder, pid)
	return p.Started, err == nil && !p.Ended() && p.Started != 0
}
