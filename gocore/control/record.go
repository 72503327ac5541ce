package control

import (
	"time"

	"github.com/paddlempi/paddlempi/gocore/registry"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/trace"
	"github.com/paddlempi/paddlempi/gocore/work"
)

type recordRequest struct {
	PIDs     []int  `json:"pids"`
	Ancestor int    `json:"ancestor"`
	Job      string `json:"job"`
	Folder   string `json:"folder"`
}

// traceRecord begins to record the operations of processes of this host. It needs neither MPI nor init.
func traceRecord(r recordRequest, _ work.Interrupt) (any, error) {
	if r.Folder == "" {
		return nil, status.New(status.Argument, "trace_record: folder is missing")
	}
	c, err := trace.NewCollector(trace.Which{PIDs: r.PIDs, Ancestor: r.Ancestor, Job: r.Job}, r.Folder)
	if err != nil {
		return nil, err
	}
	counts := c.Counts()
	return map[string]any{"handle": registry.Collectors.Add(c), "counts": counts, "problems": c.Problems()}, nil
}

type recordedRequest struct {
	Handle  int64   `json:"handle"`
	Seconds float64 `json:"seconds"`
}

// traceRecorded goes on recording for some seconds, on this thread.
func traceRecorded(r recordedRequest, interrupt work.Interrupt) (any, error) {
	c, ok := registry.Collectors.Get(r.Handle)
	if !ok {
		return nil, status.New(status.Argument, "trace_recorded: there is no recording %d", r.Handle)
	}
	for end := time.Now().Add(time.Duration(r.Seconds * float64(time.Second))); ; {
		wait, err := c.Poll()
		if err != nil {
			return nil, err
		}
		if interrupt != nil {
			if err := interrupt(); err != nil {
				return nil, err
			}
		}
		left := time.Until(end)
		if left <= 0 {
			return map[string]any{"counts": c.Counts()}, nil
		}
		c.Wait(min(wait, left))
	}
}

type recordWriteRequest struct {
	Handle int64  `json:"handle"`
	Path   string `json:"path"`
}

// traceWrite ends a recording and writes it to a file. Without a path it is dropped.
func traceWrite(r recordWriteRequest, _ work.Interrupt) (any, error) {
	c, ok := registry.Collectors.Get(r.Handle)
	if !ok {
		return nil, status.New(status.Argument, "trace_write: there is no recording %d", r.Handle)
	}
	registry.Collectors.Forget(r.Handle)
	defer c.Close()
	if r.Path == "" {
		return map[string]any{}, nil
	}
	return c.Write(r.Path)
}
