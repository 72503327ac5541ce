package trace

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"
)

// A Collector records all operations of ranks of this host: it reads their rings again and again, and keeps what has ended since. The
// ranks take no part. It has them use more entries of their rings meanwhile (counts.place), so that it need not look so often.

// Which says whose operations a Collector records. The zero value: those of all processes of this host that this one may read.
type Which struct {
	PIDs     []int  // only these processes
	Ancestor int    // only processes that this one has started, or those have; 0: any
	Job      string // only ranks of this world; "": of any
}

// Problem is a process whose operations cannot be recorded.
type Problem struct {
	PID   int    `json:"pid"`
	Error string `json:"error"`
}

// Collector records operations. Its methods are not safe for concurrent use.
type Collector struct {
	which    Which
	begin    moment
	perTick  float64       // nanoseconds, about
	cpu      time.Duration // what the process had used when it began
	spool    *spool
	rings    []*recorded
	problems map[int]string
	finder   finder
	found    time.Time // when it has last found a ring, or begun
	most     float64   // operations a second that it keeps
	thinner  thinner
}

const (
	leaseTime    = 3 * time.Second
	pollLeast    = 2 * time.Millisecond
	pollFast     = 20 * time.Millisecond // a ring that makes polls so frequent is looked at more closely
	pollMost     = 50 * time.Millisecond
	rateReading  = 5 * time.Millisecond
	mostProblems = 1000
)

// NewCollector begins to record. What it records goes into a file without a name in a folder, until Write.
func NewCollector(which Which, folder string) (*Collector, error) {
	s, err := newSpool(folder)
	if err != nil {
		return nil, err
	}
	c := &Collector{which: which, finder: finder{which: which}, found: time.Now(), begin: takeMoment(), perTick: 1, most: mostPerSecond, cpu: cpuTime(), spool: s, problems: map[int]string{}}
	if useCounter {
		time.Sleep(rateReading)
		later := takeMoment()
		c.perTick = float64(later.monotonic-c.begin.monotonic) / float64(later.ticks-c.begin.ticks)
	}
	c.look()
	return c, nil
}

// ticks returns a duration in ticks.
func (c *Collector) ticks(d time.Duration) uint64 { return uint64(float64(d) / c.perTick) }

// Poll reads what is new, and returns when the next call is due: the sooner, the faster the rings fill.
func (c *Collector) Poll() (wait time.Duration, err error) {
	if c.finder.due(c.found) {
		c.look()
	}
	if c.thinner.due() {
		c.judge()
	}
	if c.thinner.shift > 0 {
		wait = c.pollWindow()
	} else {
		wait = c.pollAll()
	}
	for _, r := range c.rings {
		if err := r.flush(c.spool, flushFrom); err != nil {
			return 0, err
		}
	}
	return wait, nil
}

// pollAll reads all that is new.
func (c *Collector) pollAll() time.Duration {
	wait := pollMost
	for _, r := range c.rings {
		began := now()
		taken := r.poll()
		switch since := began - r.polled; {
		case r.polled == 0:
			wait = pollLeast
		case taken > 0:
			quarter := float64(since) * c.perTick * float64(r.width) / 4 / float64(taken)
			wait = min(wait, time.Duration(min(quarter, float64(pollMost))))
		}
		r.polled = began
	}
	if wait < pollFast && time.Since(c.thinner.judged) > judgeSoon {
		c.judge()
	}
	return max(wait, pollLeast)
}

// look looks for rings that it does not know, and for processes that have ended.
func (c *Collector) look() {
	c.lookAfter()
	c.finder.look(c.lookAt)
}

// lookAt opens the rings of a process that it does not know.
func (c *Collector) lookAt(pid int, files []ringFile, err error) {
	switch {
	case c.which.PIDs == nil || c.knows(pid):
	case errors.Is(err, fs.ErrNotExist):
		c.problem(pid, fmt.Sprintf("there is no process %d", pid))
	case errors.Is(err, fs.ErrPermission):
		c.problem(pid, fmt.Sprintf("the files of process %d belong to another user; record as that user or as root", pid))
	case err == nil && len(files) == 0:
		c.problem(pid, fmt.Sprintf("process %d has no trace: it has not called init_process_group", pid))
	}
	for _, file := range files {
		if slices.ContainsFunc(c.rings, func(r *recorded) bool { return r.view.file.Inode() == file.inode }) {
			continue
		}
		r, err := openRecorded(pid, file, c.begin.ticks)
		switch {
		case err != nil:
			c.problem(pid, fmt.Sprintf("process %d: %v", pid, err))
		case r == nil: // of its parent, before it was forked, or of another rank of its node
		case c.which.Job != "" && r.job() != c.which.Job:
			r.close()
		default:
			delete(c.problems, pid)
			c.rings, c.found = append(c.rings, r), time.Now()
			r.widen(now() + c.ticks(leaseTime))
		}
	}
}

func (c *Collector) knows(pid int) bool {
	return slices.ContainsFunc(c.rings, func(r *recorded) bool { return r.view.pid == pid })
}

func (c *Collector) problem(pid int, text string) {
	if len(c.problems) < mostProblems {
		c.problems[pid] = text
	}
}

// Problems returns the processes that could not be read so far, in the order of their numbers.
func (c *Collector) Problems() []Problem {
	list := []Problem{}
	for pid, text := range c.problems {
		list = append(list, Problem{pid, text})
	}
	slices.SortFunc(list, func(a, b Problem) int { return a.PID - b.PID })
	return list
}

// Counts is what a Collector has so far.
type Counts struct {
	Ranks      int      `json:"ranks"`
	Living     int      `json:"living"` // of them, the processes that have not ended
	Operations uint64   `json:"operations"`
	Lost       uint64   `json:"lost"`
	Thinned    uint64   `json:"thinned"`
	Jobs       []string `json:"jobs"`
}

// Counts returns what it has so far.
func (c *Collector) Counts() Counts {
	n := Counts{Ranks: len(c.rings), Jobs: []string{}}
	for _, r := range c.rings {
		if r.ended == 0 {
			n.Living++
		}
		n.Operations += r.kept - r.packer.damaged
		n.Lost += r.lostSoFar()
		n.Thinned += r.thinned
		if job := r.job(); job != hex(0) && !slices.Contains(n.Jobs, job) {
			n.Jobs = append(n.Jobs, job)
		}
	}
	return n
}

// Close ends the recording. What was not written is lost.
func (c *Collector) Close() {
	for _, r := range c.rings {
		r.close()
	}
	c.rings = nil
	c.spool.close()
}
