package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/ps/admin"
	"github.com/paddlempi/paddlempi/gocore/ps/checkpoint"
	"github.com/paddlempi/paddlempi/gocore/ps/client"
	"github.com/paddlempi/paddlempi/gocore/ps/link"
	"github.com/paddlempi/paddlempi/gocore/ps/master"
	"github.com/paddlempi/paddlempi/gocore/ps/server"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// job is this rank's part in a job with parameter servers.
type job struct {
	group     *group.Group
	timeout   time.Duration
	interrupt work.Interrupt
	servers   []int // ranks of the group
	trainers  []int
	links     *link.Links

	server  *server.Server // nil on a rank that is no server
	service *admin.Server  // nil on a rank that is neither a server nor the master
	file    string         // the job file, on the first server
	cuts    sync.Mutex     // one phase of a checkpoint at a time
	told    ending         // of the last call that one trainer made for all; guarded by cuts
	extra   []byte         // what has come of what the next cut has besides rows; guarded by cuts
	given   []byte         // what the cut had besides rows that was restored last; guarded by cuts
	course  course         // guarded by cuts

	verifier checkpoint.Verifier
	pieces   pieces

	mode atomic.Pointer[mode]

	masterRank int            // of the group; -1: there is none
	master     *master.Master // nil on a rank that is no master

	client   *client.Client // nil on a rank that is no trainer
	admins   []*admin.Client
	tasks    *admin.Client // of the master; nil if there is none
	requests atomic.Uint64 // counts what this trainer asks the master for

	stop         chan struct{} // closed when the job ends
	watching     sync.WaitGroup
	removeCloser func()
	end          sync.Once
}

// course has the cut of each directory that the job has read or written last, from which it goes on.
type course map[string]*checkpoint.Manifest

func (c course) at(dir string) *checkpoint.Manifest { return c[checkpoint.Place(dir)] }

// goOn notes from which cut of a directory the job goes on. The caller holds cuts.
func (j *job) goOn(dir string, from *checkpoint.Manifest) {
	if j.course == nil {
		j.course = course{}
	}
	j.course[checkpoint.Place(dir)] = from
}

// A call waits for lastAnswer for what the servers that live say of one that has died, and for
// whyGone to find out why one has ended a connection: another host knows of a death within seconds.
//
// After the timeout of a request the servers have whoIsLate to say for which trainers they wait.
const (
	lastAnswer = time.Second
	whyGone    = 6 * time.Second
	whoIsLate  = 2 * time.Second
)

// call calls servers' services, until the timeout, an interrupt, or the death of a server.
func (j *job) call(f func(ctx context.Context) error) error { return j.callWithin(j.timeout, f) }

func (j *job) callWithin(limit time.Duration, f func(ctx context.Context) error) error {
	return j.callOf(limit, j.serverLost, f)
}

// callOf calls services until an interrupt, the limit, or some seconds after isLost has told that
// one of them is gone.
func (j *job) callOf(limit time.Duration, isLost func() error, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- f(ctx) }()
	tick := time.NewTicker(work.InterruptEvery)
	defer tick.Stop()
	var gone error      // the answer, which does not say what became of the server
	var lost error      // a server has died
	var until time.Time // of the wait after one of the two
	for {
		select {
		case err := <-result:
			var e *status.Error
			if !errors.As(err, &e) || e.Code != status.PeerLeft || len(e.Ranks) > 0 {
				return err // it is the server's own answer
			}
			gone, until, result = err, time.Now().Add(whyGone), nil
		case <-tick.C:
		}
		if j.interrupt != nil {
			if err := j.interrupt(); err != nil {
				cancel()
				if result != nil {
					<-result
				}
				return err
			}
		}
		if lost == nil {
			if lost = isLost(); lost != nil && gone == nil {
				until = time.Now().Add(lastAnswer)
			}
		}
		switch {
		case gone != nil && lost != nil:
			return lost
		case gone != nil && time.Now().After(until):
			return gone
		case lost != nil && time.Now().After(until):
			cancel()
			<-result
			return lost
		}
	}
}

// late returns the error of a request that has timed out where servers wait for other trainers: for
// a step of all, or with bounded staleness. It names those trainers. If the servers wait for none,
// or do not answer, it is err, which names a server.
func (j *job) late(what string, err error) error {
	m := j.mode.Load()
	if m.Name != modeSync && m.Name != modeSSP {
		return err
	}
	missing, at := map[int]bool{}, map[int]string{}
	var found sync.Mutex
	asked := j.callWithin(whoIsLate, func(ctx context.Context) error {
		return j.ask(func(i int, c *admin.Client) error {
			b, err := c.Statistics(ctx)
			if err != nil {
				return err
			}
			var r admin.Report
			if err := parseReport(b, &r); err != nil {
				return err
			}
			found.Lock()
			defer found.Unlock()
			mine := slices.IndexFunc(r.Trainers, func(t admin.TrainerReport) bool { return t.Rank == j.group.Rank && t.Queue > 0 })
			for _, t := range r.Trainers {
				awaited := t.Queue == 0
				if mine >= 0 && m.Name == modeSSP {
					awaited = r.Trainers[mine].Since-t.Since > m.Slack
				}
				if mine >= 0 && awaited && !t.Completed && t.Rank >= 0 && t.Rank < j.group.Size {
					missing[j.group.Ranks[t.Rank]], at[j.group.Ranks[t.Rank]] = true, t.At
				}
			}
			return nil
		})
	})
	if status.CodeOf(asked) == status.Interrupted {
		return asked
	}
	found.Lock()
	defer found.Unlock()
	if len(missing) == 0 {
		return err
	}
	ranks, elsewhere := slices.Sorted(maps.Keys(missing)), ""
	for _, rank := range ranks {
		if at[rank] != "" {
			elsewhere += fmt.Sprintf("; rank %d waits at %q", rank, at[rank])
		}
	}
	if m.Name == modeSSP {
		return status.New(status.Timeout, "%s: trainers of ranks %v are more than %d steps behind this one at the deadline of %v%s. "+
			"In mode ssp a trainer waits for them before it pulls", what, ranks, m.Slack, j.timeout, elsewhere).WithRanks(ranks...)
	}
	return status.New(status.Timeout, "%s: trainers of ranks %v have not pushed this step by the deadline of %v%s. In mode sync a step is one of all trainers that have not completed; "+
		"what this trainer has pushed stays a part of the step", what, ranks, j.timeout, elsewhere).WithRanks(ranks...)
}

// serverLost returns why a server answers no more: its process or its host has died, or it has
// left. nil if all may.
func (j *job) serverLost() error {
	for _, rank := range j.servers {
		if err := j.group.Members().Trouble(fmt.Sprintf("a call of the server on rank %d", j.group.Ranks[rank]), rank); err != nil {
			return err
		}
	}
	return nil
}

// masterLost returns why the master answers no more; nil if it may.
func (j *job) masterLost() error {
	return j.group.Members().Trouble(fmt.Sprintf("a call of the master on rank %d", j.group.Ranks[j.masterRank]), j.masterRank)
}

// watch tells the server and the master of this rank of trainers and servers that have died, until
// the job ends.
func (j *job) watch() {
	defer j.watching.Done()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-j.stop:
			return
		case <-tick.C:
		}
		// Without the rows of a server nothing can go on. Those who wait for this one learn of it
		// here. It comes first: trainers end because of it, and all of them may have by now.
		if err := j.serverLost(); status.CodeOf(err) == status.PeerDied {
			j.fail(err)
		}
		if j.server != nil {
			for _, rank := range j.server.Active() {
				if err := j.links.Lost(rank); err != nil {
					j.server.Lost(rank, err)
				}
			}
		}
		if j.master != nil {
			for _, rank := range j.master.Active() {
				if err := j.group.Members().Trouble("the shards of a trainer", rank); err != nil {
					j.master.Lost(rank, err)
				}
			}
		}
	}
}

// fail ends the waits of trainers here, unless they have all completed.
func (j *job) fail(why error) {
	if j.server != nil && len(j.server.Active()) > 0 {
		j.server.Fail(why)
	}
	if j.master != nil && len(j.master.Active()) > 0 {
		j.master.Fail(why)
	}
}

// tick ends the leases of the master in time, until the job ends.
func (j *job) tick() {
	defer j.watching.Done()
	tick := time.NewTicker(master.Interval)
	defer tick.Stop()
	for {
		select {
		case <-j.stop:
			return
		case <-tick.C:
			j.master.Tick(time.Now())
		}
	}
}

// close ends this rank's part.
func (j *job) close(why error) {
	j.end.Do(func() {
		close(j.stop)
		j.watching.Wait()
		if j.server != nil {
			j.server.Fail(why)
		}
		if j.master != nil {
			j.master.Fail(why)
		}
		if j.service != nil {
			j.service.Stop()
		}
		for _, c := range j.admins {
			_ = c.Close()
		}
		if j.tasks != nil {
			_ = j.tasks.Close()
		}
		if j.links != nil {
			_ = j.links.Close()
		}
		if j.client != nil {
			j.client.Forget()
		}
		if j.server != nil {
			j.server.Tables.Free()
		}
		if j.file != "" {
			admin.RemoveJobFile(j.file)
		}
	})
}

// each calls every server's service at the same time and returns the first error by the order of
// servers.
func (j *job) each(f func(ctx context.Context, server int, c *admin.Client) error) error {
	return j.call(func(ctx context.Context) error {
		return j.ask(func(i int, c *admin.Client) error { return f(ctx, i, c) })
	})
}

// ask calls f for every server at the same time and returns the first error by the order of
// servers.
func (j *job) ask(f func(server int, c *admin.Client) error) error {
	errs := make([]error, len(j.admins))
	var all sync.WaitGroup
	for i, c := range j.admins {
		all.Add(1)
		go func() {
			defer all.Done()
			errs[i] = f(i, c)
		}()
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func parseReport(report []byte, into any) error {
	if err := json.Unmarshal(report, into); err != nil {
		return status.New(status.Argument, "a server or the master reports what is no report: %v: another version of paddlempi?", err)
	}
	return nil
}
