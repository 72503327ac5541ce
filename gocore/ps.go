package gocore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/ps/admin"
	"github.com/paddlempi/paddlempi/gocore/ps/checkpoint"
	"github.com/paddlempi/paddlempi/gocore/ps/client"
	"github.com/paddlempi/paddlempi/gocore/ps/link"
	"github.com/paddlempi/paddlempi/gocore/ps/server"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// psJob is this rank's part in a job with parameter servers.
type psJob struct {
	group     *group.Group
	timeout   time.Duration
	interrupt work.Interrupt
	servers   []int // ranks of the group
	trainers  []int
	links     *link.Links

	server  *server.Server // nil on a rank that is no server
	service *admin.Server
	file    string     // the job file, on the first server
	cuts    sync.Mutex // one phase of a checkpoint at a time
	told    outcome    // of the last call that one trainer made for all; guarded by cuts
	extra   []byte     // what the next cut will have besides rows, as far as it has come; guarded by cuts
	given   []byte     // what the cut had besides rows that was restored last; guarded by cuts

	verifier checkpoint.Verifier

	client *client.Client // nil on a rank that is no trainer
	admins []*admin.Client

	stop         chan struct{} // closed when the job ends
	watching     sync.WaitGroup
	removeCloser func()
	end          sync.Once
}

// processors is how many Go processors a process with parameter servers has at least: eight for threads that wait in
// MPI, and four for gRPC. Such a thread keeps its processor until the runtime's timer thread takes it away, and that
// sleeps with a slack of 10 ms (capi/slack.c). With four in all, a call waited 10 ms for each of its steps.
const processors = 12

// ps is the job with parameter servers; nil before ps_init and after ps_close. Nobody waits for another process while
// it is locked: a signal handler that runs in such a wait may call a function that locks it.
var ps struct {
	sync.Mutex
	job     *psJob
	opening int // the thread of a ps_init that is under way; 0: none is
	deaths  int // errors of deaths that the program has got since ps_init
}

// thread is the number of the thread that calls. A call from C, and every call that its interrupts make, is on one.
func thread() int { return syscall.Gettid() }

// Told notes that the program gets an error of the core. One that has caught the error of a death is not told of it
// again at its end.
func Told(err error) {
	if status.CodeOf(err) == status.PeerDied {
		ps.Lock()
		defer ps.Unlock()
		ps.deaths++
	}
}

func psOf(method string) (*psJob, error) {
	if err := healthy(); err != nil {
		return nil, err
	}
	ps.Lock()
	defer ps.Unlock()
	if ps.job == nil {
		return nil, status.New(status.NotInitialized, "%s: there are no parameter servers: call ps.init first (or it was closed)", method)
	}
	return ps.job, nil
}

// psTrainer returns the job of a rank that is a trainer.
func psTrainer(method string) (*psJob, error) {
	j, err := psOf(method)
	if err == nil && j.client == nil {
		err = status.New(status.Argument, "%s: rank %d is no trainer; trainers are ranks %v", method, j.group.Rank, j.trainers)
	}
	if err == nil {
		err = j.client.Completed(method)
	}
	return j, err
}

// psServes returns the job of a rank that is a server.
func psServes(method string) (*psJob, error) {
	j, err := psOf(method)
	if err == nil && j.server == nil {
		err = status.New(status.Argument, "%s: rank %d is no server; servers are ranks %v", method, j.group.Rank, j.servers)
	}
	return j, err
}

// A call waits for lastAnswer for what the servers that live say of one that has died, and for whyGone to find
// out why one has ended a connection: another host knows of a death within seconds.
//
// After the timeout of a request the servers have whoIsLate to say for which trainers they wait.
const (
	lastAnswer = time.Second
	whyGone    = 6 * time.Second
	whoIsLate  = 2 * time.Second
)

// call calls servers' services, until the timeout, an interrupt, or the death of a server.
func (j *psJob) call(f func(ctx context.Context) error) error { return j.callWithin(j.timeout, f) }

func (j *psJob) callWithin(limit time.Duration, f func(ctx context.Context) error) error {
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
			if !errors.As(err, &e) || e.Code != status.PeerLeft || len(e.Ranks) > 0 { // it is the server's own answer
				return err
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
			if lost = j.serverLost(); lost != nil && gone == nil {
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

// late returns the error of a request of a synchronous step that has timed out: it names the trainers for whose pushes
// the servers wait. If they wait for none, or do not answer, it is err, which names a server.
func (j *psJob) late(what string, err error) error {
	missing, at := map[int]bool{}, map[int]string{}
	var found sync.Mutex
	asked := j.callWithin(whoIsLate, func(ctx context.Context) error {
		return j.ask(func(i int, c *admin.Client) error {
			b, err := c.Statistics(ctx)
			if err != nil {
				return err
			}
			var r admin.Report
			if err := parseReport(b, i, &r); err != nil {
				return err
			}
			found.Lock()
			defer found.Unlock()
			mine := slices.ContainsFunc(r.Trainers, func(t admin.TrainerReport) bool { return t.Rank == j.group.Rank && t.Queue > 0 })
			for _, t := range r.Trainers {
				if mine && !t.Completed && t.Queue == 0 && t.Rank >= 0 && t.Rank < j.group.Size {
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
	return status.New(status.Timeout, "%s: trainers of ranks %v have not pushed this step by the deadline of %v%s. In mode sync a step is one of all trainers that have not completed; "+
		"what this trainer has pushed stays a part of the step", what, ranks, j.timeout, elsewhere).WithRanks(ranks...)
}

// serverLost returns why a server answers no more: its process or its host has died, or it has left. nil if all may.
func (j *psJob) serverLost() error {
	for _, rank := range j.servers {
		if err := j.group.Trouble(fmt.Sprintf("a call of the server on rank %d", j.group.Ranks[rank]), rank); err != nil {
			return err
		}
	}
	return nil
}

// watch tells the server of trainers and of other servers that have died, until the job ends.
func (j *psJob) watch() {
	defer j.watching.Done()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-j.stop:
			return
		case <-tick.C:
		}
		// Without the rows of a server nothing can go on. Those who wait for this one learn of it here. It comes
		// first: trainers end because of it, and all of them may have by now.
		if err := j.serverLost(); status.CodeOf(err) == status.PeerDied && len(j.server.Active()) > 0 {
			j.server.Fail(err)
		}
		for _, rank := range j.server.Active() {
			if err := j.links.Lost(rank); err != nil {
				j.server.Lost(rank, err)
			}
		}
	}
}

// close ends this rank's part.
func (j *psJob) close(why error) {
	j.end.Do(func() {
		close(j.stop)
		j.watching.Wait()
		if j.server != nil {
			j.server.Fail(why)
		}
		if j.service != nil {
			j.service.Stop()
		}
		for _, c := range j.admins {
			_ = c.Close()
		}
		if j.links != nil {
			_ = j.links.Close()
		}
		if j.client != nil {
			j.client.Forget()
		}
		if j.server != nil {
			j.server.Free()
		}
		if j.file != "" {
			admin.RemoveJobFile(j.file)
		}
	})
}

// controlPSServe returns when all trainers have completed.
func controlPSServe(_ []byte, interrupt work.Interrupt) (any, error) {
	j, err := psServes("ps_serve")
	if err != nil {
		return nil, err
	}
	if interrupt == nil {
		interrupt = j.interrupt
	}
	if err := work.Await(j.server.Done(), time.Time{}, interrupt); err != nil { // the end of this rank's part is an end too: close
		return nil, err
	}
	return struct{}{}, j.server.Err()
}

// each calls every server's service at the same time and returns the first error by the order of servers.
func (j *psJob) each(f func(ctx context.Context, server int, c *admin.Client) error) error {
	return j.call(func(ctx context.Context) error {
		return j.ask(func(i int, c *admin.Client) error { return f(ctx, i, c) })
	})
}

// ask calls f for every server at the same time and returns the first error by the order of servers.
func (j *psJob) ask(f func(server int, c *admin.Client) error) error {
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

// controlPSComplete says that this trainer asks nothing more.
// Once is enough. The reply has the error of a call of a KV for which the program has not waited.
func controlPSComplete([]byte, work.Interrupt) (any, error) {
	j, err := psOf("ps_complete")
	if err == nil && j.client != nil && j.client.Completed("") != nil {
		return struct{}{}, nil
	}
	if err == nil {
		j, err = psTrainer("ps_complete")
	}
	if err != nil {
		return nil, err
	}
	failed, err := j.client.Settle()
	if err != nil {
		return nil, err
	}
	// Servers that live would take this for a good end if they have not heard of another one's death yet. This
	// rank may not have heard of it either, so it asks them all.
	err = j.each(func(ctx context.Context, _ int, c *admin.Client) error {
		_, err := c.Statistics(ctx)
		return err
	})
	if status.CodeOf(err) == status.PeerDied {
		return nil, err
	}
	if err := j.each(func(ctx context.Context, _ int, c *admin.Client) error { return c.Complete(ctx, j.group.Rank) }); err != nil {
		return nil, err
	}
	j.client.Complete()
	var e *status.Error
	if errors.As(failed, &e) {
		return map[string]any{"failed": map[string]any{"code": e.Code, "message": e.Msg, "ranks": e.Ranks}}, nil
	}
	return struct{}{}, nil
}

// controlPSRefuse fails the step of all trainers.
func controlPSRefuse([]byte, work.Interrupt) (any, error) {
	j, err := psTrainer("ps_refuse")
	if err != nil {
		return nil, err
	}
	return struct{}{}, j.client.Refuse(thread())
}

// controlPSBarrier waits for all trainers that have not completed.
func controlPSBarrier(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Name string `json:"name"`
	}
	if err := parse("ps_barrier", request, &r); err != nil {
		return nil, err
	}
	j, err := psTrainer("ps_barrier")
	if err == nil {
		err = j.serverLost() // the first server may not know of the death of another one yet
	}
	if err != nil {
		return nil, err
	}
	return struct{}{}, j.call(func(ctx context.Context) error { return j.admins[0].Barrier(ctx, j.group.Rank, r.Name) })
}

// controlPSLearningRate sets the rate of a table on all servers.
func controlPSLearningRate(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Name string  `json:"name"`
		Rate float64 `json:"rate"`
	}
	if err := parse("ps_learning_rate", request, &r); err != nil {
		return nil, err
	}
	j, err := psTrainer("ps_learning_rate")
	if err != nil {
		return nil, err
	}
	return struct{}{}, j.each(func(ctx context.Context, _ int, c *admin.Client) error { return c.SetLearningRate(ctx, r.Name, r.Rate) })
}

// outcome is how a call ended that one trainer has made for all. The first server keeps the last one for the others.
type outcome struct {
	Number  int64           `json:"number"` // of those that this server was told; 0: none
	Answer  json.RawMessage `json:"answer"` // if there is no error
	Code    status.Code     `json:"code"`
	Message string          `json:"message"`
	Ranks   []int           `json:"ranks"`
}

func parseReport(report []byte, server int, into any) error {
	if err := json.Unmarshal(report, into); err != nil {
		return status.New(status.Argument, "server %d reports what is no report of a checkpoint: %v", server, err)
	}
	return nil
}
