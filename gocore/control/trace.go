package control

import (
	"fmt"
	"path/filepath"

	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/trace"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// dumped is what trace_dump says of one process.
type dumped struct {
	PID   int    `json:"pid"`
	Rank  *int   `json:"rank"` // nil: there is an error
	Host  string `json:"host"`
	State string `json:"state"`
	File  string `json:"file"`
	Error string `json:"error"`
}

type traceRequest struct {
	PIDs   []int  `json:"pids"`
	Folder string `json:"folder"`
}

// traceDump writes the traces of processes of this host into a folder, or if they are of several jobs, into a folder in it
// for each job. It needs neither MPI nor init. Without pids it takes all processes that have a trace.
func traceDump(r traceRequest, _ work.Interrupt) (any, error) {
	if r.Folder == "" {
		return nil, status.New(status.Argument, "trace_dump: folder is missing")
	}
	if r.PIDs == nil {
		r.PIDs = trace.Processes()
	}
	list, taken, jobs := []dumped{}, []*trace.Snapshot{}, map[string]bool{}
	for _, pid := range r.PIDs {
		s, err := trace.ReadProcess(pid)
		d := dumped{PID: pid}
		if err != nil {
			s, d.Error = nil, err.Error()
		} else {
			d.Host, d.State = s.Host, s.State
			jobs[s.Job] = true
		}
		list, taken = append(list, d), append(taken, s)
	}
	files := map[string]int{}
	for i, s := range taken {
		if s == nil {
			continue
		}
		d, folder := &list[i], r.Folder
		if len(jobs) > 1 {
			folder = filepath.Join(folder, "job-"+s.Job)
		}
		path := filepath.Join(folder, s.FileName())
		other, twice := files[path]
		if twice {
			d.Error = fmt.Sprintf("it is rank %d of its job, and so is process %d", s.Rank, other)
			continue
		}
		files[path] = d.PID
		var err error
		if d.File, err = s.Write(folder); err != nil {
			d.Error = err.Error()
			continue
		}
		d.Rank = &s.Rank
	}
	return map[string]any{"processes": list}, nil
}
