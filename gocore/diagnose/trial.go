// Package diagnose finds out what this machine can do with GPU memory: the steps of the doctor, and
// the trial whether MPI takes it.
package diagnose

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/dl"
	"github.com/paddlempi/paddlempi/gocore/launcher"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// trialLimit is how long the child may take to start Python, MPI and CUDA, and to move memory.
const trialLimit = 20 * time.Second

// trials holds the outcome of the trial. There is one trial a process, because the MPI of a process
// does not change.
var trials struct {
	once  sync.Once
	works bool
	seen  string
}

// NewTrial returns the trial of lib, on the device that a rank takes by its local rank. child is
// the command that calls control method cuda_trial in a new process; without a command NewTrial
// returns nil. atEnd registers a function for the end of this process, and returns a function that
// removes it.
func NewTrial(lib mpi.Info, localRank int, child []string, atEnd func(func(bool)) func()) func() (works bool, seen string) {
	if len(child) == 0 {
		return nil
	}
	return func() (bool, string) {
		trials.once.Do(func() {
			ctx, stop := context.WithTimeout(context.Background(), trialLimit)
			defer stop()
			over := make(chan struct{})
			defer close(over)
			defer atEnd(func(bool) { // this process ends, so the child must end too
				stop()
				select {
				case <-over:
				case <-time.After(2 * time.Second): // the kernel kills the child with this process
				}
			})()
			trials.works, trials.seen = try(ctx, lib.Path, localRank, child)
		})
		return trials.works, trials.seen
	}
}

func try(ctx context.Context, libmpi string, localRank int, child []string) (works bool, seen string) {
	driver, err := cuda.Open()
	if err != nil {
		return false, err.Error()
	}
	if driver.DeviceCount() == 0 {
		return false, "this process sees no CUDA device"
	}
	request := fmt.Sprintf(`{"device": %d}`, localRank%driver.DeviceCount())
	environment := append(withoutLauncher(dl.Environ()), mpi.EnvLibrary+"="+libmpi, cuda.Setting+"="+driver.Path())
	return tryInChild(ctx, append(slices.Clone(child), request), environment)
}

// tryInChild runs the trial in a process that is not part of the launcher's job, where MPI starts
// as a job of one process.
func tryInChild(ctx context.Context, child, environment []string) (works bool, seen string) {
	// The kernel kills the child when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, child[0], child[1:]...)
	// An MPI that crashes may leave files. They are deleted with this folder.
	folder, err := os.MkdirTemp("", "paddlempi-trial-")
	if err != nil {
		return false, err.Error()
	}
	defer os.RemoveAll(folder)
	cmd.Env = append(slices.Clone(environment), "TMPDIR="+folder, "OMPI_MCA_btl_sm_backing_directory="+folder, "OMPI_MCA_btl_vader_backing_directory="+folder)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // a grandchild may hold the pipes open
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err = cmd.Run()
	var answer struct {
		Moved string `json:"moved"`
		Error string `json:"error"`
	}
	_ = json.Unmarshal(lastLine(out.Bytes()), &answer)
	var exit *exec.ExitError
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return false, "this process ended before the child process that tried it"
	case ctx.Err() != nil:
		return false, "the child process that tried it did not end in time"
	case errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled():
		return false, fmt.Sprintf("the child process that tried it died of %v", exit.Sys().(syscall.WaitStatus).Signal())
	case answer.Error != "":
		return false, "the child process that tried it says: " + answer.Error
	case err != nil || answer.Moved == "":
		return false, fmt.Sprintf("the child process that tried it failed: %v: %s", err, lastLine(said.Bytes()))
	}
	return true, answer.Moved
}

func lastLine(text []byte) []byte {
	text = bytes.TrimSpace(text)
	return text[bytes.LastIndexByte(text, '\n')+1:]
}

// withoutLauncher removes the variables by which a rank finds its job.
func withoutLauncher(environment []string) []string {
	return slices.DeleteFunc(environment, func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		setBy := func(k *launcher.Kind) bool {
			return slices.ContainsFunc(k.VariablePrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		}
		return name == mpi.EnvLibrary || name == cuda.Setting || slices.ContainsFunc(launcher.Kinds, setBy)
	})
}

// Try is the trial in the child process. It starts MPI as a job of one process, moves device memory
// with it, and finalizes MPI. It returns what it has moved. MPI must not run in this process
// before, because the trial may crash.
func Try(device int, sysPrefix string) (moved string, err error) {
	driver, err := cuda.Open()
	if err != nil {
		return "", err
	}
	dev, err := driver.Device(device)
	if err != nil {
		return "", err
	}
	lib, err := mpi.Open(mpi.Options{SysPrefix: sysPrefix})
	if err != nil {
		return "", err
	}
	for _, n := range trialSizes {
		if err := moveOnDevice(lib, lib.World(), dev, 0, 0, n, trialLimit/2); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("MPI_Isend and MPI_Irecv moved %d, %d and %d bytes of GPU memory within one process", trialSizes[0], trialSizes[1], trialSizes[2]), lib.Finalize()
}

// trialSizes are lengths that MPIs send eagerly, after a handshake, and in pieces.
var trialSizes = [3]int64{8, 12<<10 + 1, 4<<20 + 3}

// moveOnDevice sends n bytes of device memory to rank to of comm, receives n bytes from rank from,
// and checks them. The bytes depend on the sender's rank and on n.
func moveOnDevice(lib mpi.Library, comm mpi.Comm, dev *cuda.Device, to, from int, n int64, limit time.Duration) error {
	me, err := lib.Rank(comm)
	if err != nil {
		return err
	}
	host, err := mem.Alloc(n)
	if err != nil {
		return err
	}
	defer mem.Free(host)
	content := unsafe.Slice((*byte)(host), n)
	var device [2]unsafe.Pointer
	for i := range device {
		if device[i], err = dev.Alloc(n); err != nil {
			return err
		}
		defer dev.Free(device[i])
		for k := range content {
			// The receive buffer differs in every byte from what this rank sends.
			content[k] = pattern(me, n, k) ^ byte(0xff*i)
		}
		if err := dev.Copy(device[i], host, n, dev.In); err != nil {
			return err
		}
		if err := dev.StreamSync(dev.In); err != nil {
			return err
		}
	}
	if err := sendRecv(lib, comm, device[0], device[1], to, from, n, limit); err != nil {
		return err
	}
	if err := dev.Copy(host, device[1], n, dev.Out); err != nil {
		return err
	}
	if err := dev.StreamSync(dev.Out); err != nil {
		return err
	}
	for k := range content {
		if content[k] != pattern(from, n, k) {
			return status.New(status.MPI, "MPI moved %d bytes of GPU memory, and byte %d arrived wrong", n, k)
		}
	}
	return nil
}

func pattern(rank int, n int64, k int) byte { return byte(k*7 + k>>8*3 + rank*31 + int(n)) }

// sendRecv sends and receives n bytes at the same time.
func sendRecv(lib mpi.Library, comm mpi.Comm, send, recv unsafe.Pointer, to, from int, n int64, limit time.Duration) error {
	calls := [2]mpi.Call{
		{Fn: mpi.FnRecv, Comm: comm, Peer: int32(from), Tag: 1, RecvBuf: recv, RecvCount: n, RecvType: lib.Byte()},
		{Fn: mpi.FnSend, Comm: comm, Peer: int32(to), Tag: 1, SendBuf: send, SendCount: n, SendType: lib.Byte()},
	}
	under := transport.UnderWay{By: lib}
	for i := range calls {
		if err := under.Add(lib.Start(&calls[i])); err != nil {
			return err
		}
	}
	if work.NewEngine().Wait(under.Poll, time.Now().Add(limit), nil) != nil {
		return status.New(status.Timeout, "MPI did not move %d bytes of GPU memory within %v", n, limit)
	}
	return under.Reap()
}
