package rollcall

import (
	"fmt"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// MPI_Init cannot be given up: no other thread can make it return. So a watch on it reports, and ends the process at the
// deadline. It is for ranks of other nodes that do not come, and for those that were not waited for.

const (
	// endStatus is the status with which the watch ends the process, as the watcher of collectives does.
	endStatus = 1
	// atLeast is how long MPI_Init may take where all ranks have come, or no launcher tells of any: then only MPI itself is slow.
	atLeast = 30 * time.Second
	// reporters is how many nodes report a wait in MPI_Init.
	reporters = 16
)

// Watch begins to look after MPI_Init, which this process calls next.
func (c *call) Watch() (stop func()) {
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		c.watch(over)
	}()
	return func() {
		close(over)
		<-ended
	}
}

func (c *call) watch(over <-chan struct{}) {
	since := time.Now()
	var report, deadline <-chan time.Time // nil: never
	if c.ReportAfter > 0 && c.speaks && c.place.Rank/max(1, c.place.LocalSize) < reporters {
		report = time.After(c.ReportAfter)
	}
	if c.timeout > 0 {
		left := time.Until(c.began.Add(c.timeout))
		if c.place.Size <= 1 || c.allCame() {
			left = max(left, atLeast)
		}
		deadline = time.After(left)
	}
	for {
		select {
		case <-over:
			return
		case <-report:
			c.report("MPI_Init", c.standing(), since)
		case <-deadline:
			c.report("MPI_Init", fmt.Sprintf("%s. MPI_Init cannot be given up, so this process ends with status %d, at the deadline of "+
				"init_process_group (%v). %s/my-job-hangs.md says what to look at", c.standing(), endStatus, c.timeout, status.Pages), since)
			c.exit(endStatus)
			return
		}
	}
}

// allCame tells whether all ranks of the job have come, as far as that can be known.
func (c *call) allCame() bool {
	return c.complete && c.place.LocalSize == c.place.Size
}

// standing says what is known of the ranks for which MPI_Init may wait.
func (c *call) standing() string {
	p := c.place
	switch {
	case c.apart != "":
		return c.apart
	case c.allCame():
		return fmt.Sprintf("all %d ranks of the job have called init_process_group, and MPI has not connected them", p.Size)
	case c.complete:
		return fmt.Sprintf("all %d ranks of this host have called init_process_group; some of the other %d have not, or MPI has not connected them",
			p.LocalSize, p.Size-p.LocalSize)
	}
	return "some ranks of the job have not called init_process_group, or MPI has not connected them"
}
