package gocore

import (
	"fmt"

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

// controlTraceDump writes the traces of processes of this host into a folder. It needs neither MPI nor
// init. Without pids it takes all processes that have a trace.
func controlTraceDump(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		PIDs   []int  `json:"pids"`
		Folder string `json:"folder"`
	}
	if err := parse("trace_dump", request, &r); err != nil {
		return nil, err
	}
	if r.Folder == "" {
		return nil, status.New(status.Argument, "trace_dump: folder is missing")
	}
	if r.PIDs == nil {
		r.PIDs = trace.Processes()
	}
	list, files := []dumped{}, map[string]int{}
	for _, pid := range r.PIDs {
		d := dumped{PID: pid}
		s, err := trace.ReadProcess(pid)
		if err == nil {
			d.Host, d.State = s.Host, s.State
			if other, taken := files[s.FileName()]; taken {
				err = fmt.Errorf("it is rank %d of its job, and so is process %d: give the processes of one job", s.Rank, other)
			}
		}
		if err == nil {
			files[s.FileName()] = pid
			d.File, err = s.Write(r.Folder)
		}
		if err != nil {
			d.Error = err.Error()
		} else {
			d.Rank = &s.Rank
		}
		list = append(list, d)
	}
	return map[string]any{"processes": list}, nil
}
