package control

import (
	"fmt"
	"path/filepath"

	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/trace"
	"github.com/paddlempi/paddlempi/gocore/work"
)

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
	list, traces, jobs := make([]map[string]any, len(r.PIDs)), map[int]*trace.Snapshot{}, map[string]bool{}
	for i, pid := range r.PIDs {
		list[i] = map[string]any{"pid": pid, "rank": nil, "host": "", "state": "", "file": "", "error": ""}
		s, err := trace.ReadProcess(pid)
		if err != nil {
			list[i]["error"] = err.Error()
			continue
		}
		list[i]["host"], list[i]["state"] = s.Host, s.State
		traces[i], jobs[s.Job] = s, true
	}
	files := map[string]int{}
	for i, pid := range r.PIDs {
		d, s, folder := list[i], traces[i], r.Folder
		if s == nil {
			continue
		}
		if len(jobs) > 1 {
			folder = filepath.Join(folder, "job-"+s.Job)
		}
		path := filepath.Join(folder, s.FileName())
		if other, twice := files[path]; twice {
			d["error"] = fmt.Sprintf("it is rank %d of its job, and so is process %d", s.Rank, other)
			continue
		}
		files[path] = pid
		file, err := s.Write(folder)
		if err != nil {
			d["error"] = err.Error()
			continue
		}
		d["file"], d["rank"] = file, s.Rank
	}
	return map[string]any{"processes": list}, nil
}
