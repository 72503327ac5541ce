package pmi

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/paddlempi/paddlempi/gocore/descriptors"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// maxLine is the longest line that is read. A put has a name, a key and a value.
const maxLine = 4096

// Gather gives mine to all ranks and returns what each of them gave, by rank. It is collective, and the
// caller bounds its time.
type Gather func(mine []byte) ([][]byte, error)

// server answers the MPI of this process, on one end of a socket pair. MPI has the other end.
//
// Its goroutine alone reads and writes pairs and given.
type server struct {
	rank, size int
	name       string // of the space of keys
	gather     Gather
	pairs      map[string]string // what MPI has put, here and, since the last barrier, elsewhere
	given      []byte            // what MPI has put here since the last barrier

	started atomic.Bool    // MPI_Init has returned: barriers wait for nobody
	failed  chan error     // why MPI cannot start, once
	exit    func(code int) // ends this process

	file *os.File // our end
	ours int      // its number, for descriptors only
	fd   int      // MPI's end
}

// serve makes a server whose goroutine answers from now on.
func serve(j Job, name string, gather Gather) (*server, error) {
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err == nil {
		err = syscall.SetNonblock(ends[0], true) // so that the goroutine holds no thread
	}
	if err != nil {
		return nil, status.New(status.NoMemory, "rank %d: no socket pair to start MPI: %v (ulimit -n limits the descriptors of a process)", j.Rank, err)
	}
	for _, fd := range ends {
		descriptors.Note(fd)
	}
	s := &server{rank: j.Rank, size: len(j.Node), name: name, gather: gather, pairs: map[string]string{},
		failed: make(chan error, 1), exit: os.Exit, file: os.NewFile(uintptr(ends[0]), "pmi"), ours: ends[0], fd: ends[1]}
	if m := mapping(j.Node); m != "" {
		s.pairs["PMI_process_mapping"] = m
	}
	go s.run()
	return s, nil
}

func (s *server) run() {
	err := s.talk(s.file, s.file)
	if err == nil || s.started.Load() {
		// MPI has said that it needs no more, or has sent what is no command. Closed, it gets an error.
		descriptors.Forget(s.ours)
		_ = s.file.Close()
		return
	}
	s.failed <- err
	// MPI would end this process if its socket closed. So it never does: the caller gets the error, and
	// MPI_Init waits for good in a thread of its own.
	select {}
}

// talk answers commands until MPI says that it has finished. An error means that MPI cannot start. When it has
// started, a command that fails is answered, because MPI would wait for the answer in MPI_Finalize.
func (s *server) talk(from io.Reader, to io.Writer) error {
	lines := bufio.NewReaderSize(from, maxLine)
	for {
		line, err := s.next(lines)
		if err != nil {
			return err
		}
		c, err := parse(line)
		if err != nil {
			return s.wrap(err)
		}
		answer, err := s.answer(c)
		if err != nil && s.started.Load() {
			answer, err = fmt.Sprintf("cmd=%.60s_result rc=-1\n", c.name), nil
		}
		if err != nil {
			return s.wrap(err)
		}
		if _, err := io.WriteString(to, answer); err != nil {
			return status.New(status.Launcher, "rank %d: the answer to MPI's cmd=%s was not written: %v", s.rank, c.name, err)
		}
		if c.name == "finalize" {
			return nil
		}
	}
}

// next reads a line. Of a command of several lines (mcmd=) it returns the first one.
func (s *server) next(lines *bufio.Reader) (string, error) {
	first := ""
	for {
		line, err := lines.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return "", status.New(status.Launcher, "rank %d: MPI sent a line of more than %d characters, beginning with %.60q: no command of PMI-1", s.rank, len(line), line)
		case err != nil:
			return "", status.New(status.Launcher, "rank %d: MPI has closed the socket on which it asks for the other ranks: %v", s.rank, err)
		}
		text := string(line[:len(line)-1])
		switch {
		case first == "" && len(text) >= 5 && text[:5] == "mcmd=":
			first = text
		case first == "":
			return text, nil
		case text == "endcmd":
			return first, nil
		}
	}
}

func (s *server) wrap(err error) error {
	wrapped := status.New(status.CodeOf(err), "rank %d cannot start MPI: %v", s.rank, err)
	var e *status.Error
	if errors.As(err, &e) {
		wrapped.Ranks = e.Ranks
	}
	return wrapped
}

// answer returns the line that answers c, "" for none.
func (s *server) answer(c command) (string, error) {
	switch c.name {
	case "init":
		if v := c.args["pmi_version"]; v != "1" {
			return "", status.New(status.Launcher, "MPI asks for version %.20q of PMI, and paddlempi answers version 1: "+
				"start the job with the mpirun or srun of this MPI, or use the MPICH of pip install mpich", v)
		}
		return "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n", nil
	case "get_maxes":
		return fmt.Sprintf("cmd=maxes rc=0 kvsname_max=%d keylen_max=%d vallen_max=%d\n", maxName, maxKey, maxValue), nil
	case "get_appnum":
		return "cmd=appnum rc=0 appnum=0\n", nil
	case "get_my_kvsname":
		return "cmd=my_kvsname rc=0 kvsname=" + s.name + "\n", nil
	case "get_universe_size":
		return fmt.Sprintf("cmd=universe_size rc=0 size=%d\n", s.size), nil
	case "put":
		return s.put(c.args["key"], c.args["value"])
	case "get":
		if value, ok := s.pairs[c.args["key"]]; ok {
			return found(value), nil
		}
		return "cmd=get_result rc=-1 msg=key_not_found value=unknown\n", nil
	case "barrier_in":
		return "cmd=barrier_out rc=0\n", s.barrier()
	case "finalize":
		return "cmd=finalize_ack rc=0\n", nil
	case "abort":
		removeSegments()
		s.exit(exitStatus(c.args["exitcode"]))
		return "", nil
	case "publish_name", "unpublish_name", "lookup_name", "spawn":
		// There is no mpirun that could start processes, or keep names.
		name := map[string]string{"publish_name": "publish", "unpublish_name": "unpublish", "lookup_name": "lookup", "spawn": "spawn"}[c.name]
		return fmt.Sprintf("cmd=%s_result rc=-1 msg=not_without_mpirun\n", name), nil
	}
	return "", status.New(status.Launcher, "MPI sent cmd=%.60s, which is no command of PMI-1 that paddlempi answers: start the job with the mpirun of this MPI", c.name)
}

func (s *server) put(key, value string) (string, error) {
	if err := check(key, value); err != nil {
		return "", err
	}
	s.pairs[key] = value
	if !s.started.Load() {
		s.given = appendPair(s.given, key, value)
	}
	return "cmd=put_result rc=0\n", nil
}

// parting is how long a barrier in MPI_Finalize waits. There MPI wants that all ranks have closed their connections before
// one of them ends: UCX fails in a rank that closes a connection to a process that has ended. The ranks have left each other
// in order just before, so they come within milliseconds of each other, and nothing is there any more by which they could meet.
const parting = 200 * time.Millisecond

// barrier waits until MPI is at the same barrier on all ranks, and takes what it has put there. After
// MPI_Init it waits for a moment: the next barrier is in MPI_Finalize.
func (s *server) barrier() error {
	if s.started.Load() {
		if s.size > 1 {
			time.Sleep(parting)
		}
		return nil
	}
	all, err := s.gather(s.given)
	if err != nil {
		return err
	}
	if len(all) != s.size {
		return status.New(status.Launcher, "%d ranks of %d were at a barrier", len(all), s.size)
	}
	s.given = nil
	for rank, bytes := range all {
		if err := readPairs(bytes, func(key, value string) { s.pairs[key] = value }); err != nil {
			return status.New(status.Launcher, "rank %d: %v", rank, err).WithRanks(rank)
		}
	}
	return nil
}

// exitStatus is the status with which a process exits that calls MPI_Abort.
func exitStatus(code string) int {
	n, err := strconv.Atoi(code)
	if err != nil {
		return 1
	}
	return n & 0xff
}
