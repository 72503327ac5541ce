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
	trace *trace.Snapshot
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
	list, jobs := make([]dumped, len(r.PIDs)), map[string]bool{}
	for i, pid := range r.PIDs {
		s, err := trace.ReadProcess(pid)
		if err != nil {
			list[i] = dumped{PID: pid, Error: err.Error()}
			continue
		}
		list[i] = dumped{trace: s, PID: pid, Host: s.Host, State: s.State}
		jobs[s.Job] = true
	}
	files := map[string]int{}
	for i := range list {
		d, folder := &list[i], r.Folder
		s := d.trace
		if s == nil {
			continue
		}
		if len(jobs) > 1 {
			folder = filepath.Join(folder, "job-"+s.Job)
		}
		path := filepath.Join(folder, s.FileName())
		if other, twice := files[path]; twice {
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
