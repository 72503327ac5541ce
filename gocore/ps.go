package gocore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
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
	file    string     // of the endpoints, on the first server
	cuts    sync.Mutex // one phase of a checkpoint at a time
	told    outcome    // of the last call that one trainer made for all; guarded by cuts

	verifier checkpoint.Verifier

	client   *client.Client // nil on a rank that is no trainer
	admins   []*admin.Client
	declared sync.Mutex // one declaration at a time

	stop         chan struct{} // closed when the job ends
	watching     sync.WaitGroup
	removeCloser func()
	end          sync.Once
}

// processors is how many Go processors a process with parameter servers has at least: eight for threads that wait in
// MPI, and four for gRPC. Such a thread keeps its processor until the runtime's timer thread takes it away, and that
// sleeps with a slack of 10 ms (capi/slack.c). With four in all, a call waited 10 ms for each of its steps.
const processors = 12

// ps is the job with parameter servers; nil before ps_init and after ps_close.
var ps struct {
	sync.Mutex
	job *psJob
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

// controlPSInit connects trainers and servers. It is collective over all ranks of a group.
func controlPSInit(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Group   int64      `json:"group"`
		Roles   [][]string `json:"roles"` // of each rank
		Mode    string     `json:"mode"`
		Timeout *float64   `json:"timeout"`
		Address string     `json:"address"` // where the service of this rank listens; "": the core chooses
		TLS     admin.TLS  `json:"tls"`
		// The names of the functions that this rank's program has for KVs.
		Functions []string `json:"functions"`
	}
	if err := parse("ps_init", request, &r); err != nil {
		return nil, err
	}
	g, err := groupOf(r.Group)
	if err != nil {
		return nil, err
	}
	w, err := initialWorld()
	if err != nil {
		return nil, err
	}
	if r.Mode != "sync" && r.Mode != "async" {
		return nil, status.New(status.Argument, "ps_init: mode=%q is neither sync nor async", r.Mode)
	}
	j := &psJob{group: g, timeout: seconds(r.Timeout), interrupt: w.env.Interrupt, stop: make(chan struct{})}
	if len(r.Roles) != g.Size {
		return nil, status.New(status.Argument, "ps_init: roles has %d entries; the group has %d ranks", len(r.Roles), g.Size)
	}
	for rank, roles := range r.Roles {
		for _, role := range roles {
			switch role {
			case admin.Trainer:
				j.trainers = append(j.trainers, rank)
			case admin.PServer:
				j.servers = append(j.servers, rank)
			default:
				return nil, status.New(status.Argument, "ps_init: rank %d has the role %q; roles are %s and %s", rank, role, admin.Trainer, admin.PServer)
			}
		}
	}
	if len(j.trainers) == 0 || len(j.servers) == 0 {
		return nil, status.New(status.Argument, "ps_init: there are %d trainers and %d servers; there must be one of each", len(j.trainers), len(j.servers))
	}
	runtime.GOMAXPROCS(max(processors, runtime.GOMAXPROCS(0)))
	ps.Lock()
	defer ps.Unlock()
	if ps.job != nil {
		return nil, status.New(status.AlreadyInitialized, "ps_init: this process takes part already; call ps.shutdown first")
	}
	if err := j.open(server.Config{Sync: r.Mode == "sync", Functions: r.Functions}, r.Roles, admin.Options{Address: r.Address, OneHost: g.Local(), TLS: r.TLS, Panicked: func(p any) { Poison(fmt.Sprint(p)) }}); err != nil {
		j.close(err)
		return nil, err
	}
	j.removeCloser = closing.add(func(bool) { j.close(status.New(status.NotInitialized, "this process ends")) })
	ps.job = j
	return map[string]any{"endpoints": j.file}, nil
}

// open makes this rank's parts: its links, its server, and its clients.
func (j *psJob) open(c server.Config, roles [][]string, o admin.Options) (err error) {
	me := j.group.Rank
	if j.links, err = link.Open(j.group, j.servers, j.timeout); err != nil {
		return err
	}
	token := make([]byte, 32)
	if me == j.servers[0] {
		if token, err = admin.NewToken(); err != nil {
			return err
		}
	}
	told, err := j.gather(token)
	if err != nil {
		return err
	}
	o.Token = told[j.servers[0]][:len(token)]
	address := ""
	var mistake error
	if index := slices.Index(j.servers, me); index >= 0 {
		c.Index, c.Servers, c.Trainers = index, len(j.servers), j.trainers
		j.server = server.New(c)
		if j.service, mistake = admin.Serve(o, backend{j}); mistake == nil {
			address = j.service.Address()
		}
		j.links.Serve(func(in *link.Incoming) {
			j.server.Handle(&server.Incoming{From: in.From, Header: in.Header, IDs: in.IDs, Values: in.Values, Answer: in.Answer, Reply: in.Reply})
		})
		j.watching.Add(1)
		go j.watch()
	}
	all, err := j.gather(append(make([]byte, 0, addressBytes), address...))
	if err != nil {
		return err
	}
	if mistake != nil {
		return mistake
	}
	var endpoints []admin.Endpoint
	for i, rank := range j.servers {
		address := strings.TrimRight(string(all[rank]), "\x00")
		if address == "" {
			return status.New(status.Refused, "ps_init: the service of server %d, rank %d, did not start; its rank has the reason", i, rank).WithRanks(j.group.Ranks[rank])
		}
		endpoints = append(endpoints, admin.Endpoint{Rank: j.group.Ranks[rank], Address: address})
	}
	if me == j.servers[0] {
		by := map[int]string{}
		for rank, r := range roles {
			by[j.group.Ranks[rank]] = roleOf(r)
		}
		if j.file, err = admin.WriteEndpoints(admin.Endpoints{PID: os.Getpid(), Token: o.Token, Servers: endpoints, Roles: by, TLS: o.TLS}); err != nil {
			return err
		}
	}
	if !slices.Contains(j.trainers, me) {
		return nil
	}
	host, _ := os.Hostname()
	for _, e := range endpoints {
		c, err := admin.Dial(e.Address, o.Token, o.TLS)
		if err != nil {
			return err
		}
		j.admins = append(j.admins, c)
	}
	if err := j.each(func(ctx context.Context, _ int, c *admin.Client) error {
		return c.Register(ctx, admin.Member{Rank: me, Role: roleOf(roles[me]), PID: os.Getpid(), Host: host})
	}); err != nil {
		return err
	}
	j.client = client.New(j.links, len(j.servers), c.Sync && len(j.trainers) > 1, j.timeout, j.interrupt)
	return nil
}

func roleOf(roles []string) string {
	if len(roles) == 2 {
		return admin.Both
	}
	if len(roles) == 1 {
		return roles[0]
	}
	return ""
}

// addressBytes is room for a host name and a port.
const addressBytes = 300

// gather returns what every rank of the group gives, each addressBytes long. It is collective.
func (j *psJob) gather(mine []byte) (all [][]byte, err error) {
	n := int64(addressBytes)
	room, err := mem.Alloc(n * int64(j.group.Size+1))
	if err != nil {
		return nil, err
	}
	defer mem.Free(room)
	bytes := unsafe.Slice((*byte)(room), n*int64(j.group.Size+1))
	clear(bytes)
	copy(bytes[:n], mine)
	send := []op.Buf{{Data: room, Count: n, DType: op.UInt8}}
	recv := []op.Buf{{Data: unsafe.Add(room, n), Count: n * int64(j.group.Size), DType: op.UInt8}}
	d := &op.Desc{Code: op.AllGather, Root: -1, Peer: -1, TimeoutNS: int64(j.timeout), Scale: 1, NSend: 1, NRecv: 1,
		Send: unsafe.Pointer(&send[0]), Recv: unsafe.Pointer(&recv[0])}
	if _, _, err = j.group.Submit(d, false); err != nil {
		return nil, err
	}
	for r := range int64(j.group.Size) {
		all = append(all, slices.Clone(bytes[n*(r+1):n*(r+2)]))
	}
	return all, nil
}

// A call waits for lastAnswer for what the servers that live say of one that has died, and for whyGone to find
// out why one has ended a connection: another host knows of a death within seconds.
const (
	lastAnswer = time.Second
	whyGone    = 6 * time.Second
)

// call calls servers' services, until the timeout, an interrupt, or the death of a server.
func (j *psJob) call(f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), j.timeout)
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- f(ctx) }()
	tick := time.NewTicker(50 * time.Millisecond)
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
			admin.RemoveEndpoints(j.file)
		}
	})
}

// controlPSClose ends this rank's part.
func controlPSClose([]byte, work.Interrupt) (any, error) {
	ps.Lock()
	defer ps.Unlock()
	if j := ps.job; j != nil {
		j.removeCloser()
		j.close(status.New(status.NotInitialized, "the server was closed"))
		forgetRemote(j.client)
		ps.job = nil
	}
	return struct{}{}, nil
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
	if err := await(j.server.Done(), interrupt); err != nil { // the end of this rank's part is an end too: close
		return nil, err
	}
	return struct{}{}, j.server.Err()
}

// each calls every server's service at the same time and returns the first error by the order of servers.
func (j *psJob) each(f func(ctx context.Context, server int, c *admin.Client) error) error {
	return j.call(func(ctx context.Context) error {
		errs := make([]error, len(j.admins))
		var all sync.WaitGroup
		for i, c := range j.admins {
			all.Add(1)
			go func() {
				defer all.Done()
				errs[i] = f(ctx, i, c)
			}()
		}
		all.Wait()
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// controlPSComplete says that this trainer asks nothing more.
func controlPSComplete([]byte, work.Interrupt) (any, error) {
	j, err := psTrainer("ps_complete")
	if err == nil {
		err = j.client.Settle()
	}
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
	return struct{}{}, j.each(func(ctx context.Context, _ int, c *admin.Client) error { return c.Complete(ctx, j.group.Rank) })
}

// controlPSRefuse fails the step of all trainers.
func controlPSRefuse([]byte, work.Interrupt) (any, error) {
	j, err := psTrainer("ps_refuse")
	if err != nil {
		return nil, err
	}
	return struct{}{}, j.client.Refuse()
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

// controlPSStats returns the statistics of all servers, for a trainer, and of this rank.
func controlPSStats([]byte, work.Interrupt) (any, error) {
	j, err := psOf("ps_stats")
	if err != nil {
		return nil, err
	}
	shared, mpi, local := j.links.Bytes()
	var rpcs, grpc uint64
	for _, c := range j.admins {
		t := c.Traffic()
		rpcs, grpc = rpcs+t.Calls, grpc+t.In+t.Out
	}
	out := map[string]any{"rank": j.group.Rank, "rpcs": rpcs, "bytes": map[string]uint64{"shared": shared, "mpi": mpi, "local": local, "grpc": grpc}}
	if j.client == nil {
		out["servers"] = []json.RawMessage{backend{j}.Statistics()}
		return out, nil
	}
	out["staleness"] = j.client.Staleness()
	all := make([]json.RawMessage, len(j.admins))
	err = j.each(func(ctx context.Context, i int, c *admin.Client) error {
		b, err := c.Statistics(ctx)
		if err == nil && !json.Valid(b) {
			err = status.New(status.Argument, "server %d answers with statistics that are not JSON", i)
		}
		all[i] = b
		return err
	})
	out["servers"] = all
	return out, err
}

// backend answers the service of a server.
type backend struct{ *psJob }

func (b backend) Register(m admin.Member) error {
	return b.server.Register(server.Member{Rank: m.Rank, PID: m.PID, Host: m.Host})
}

func (b backend) Declare(from int, m admin.Meta) (uint32, error) {
	if m.Kind == admin.KV {
		return b.declareKV(from, m)
	}
	var meta server.Meta
	if err := json.Unmarshal(m.Config, &meta); err != nil {
		return 0, status.New(status.Argument, "declare %q: the configuration is not what a table takes: %v", m.Name, err)
	}
	meta.Name = m.Name
	return b.server.Declare(from, meta)
}

func (b backend) Barrier(ctx context.Context, from int, name string) error {
	return b.server.Barrier(ctx, from, name)
}

func (b backend) Complete(from int) error { return b.server.Complete(from) }

func (b backend) SetLearningRate(name string, rate float64) error {
	return b.server.SetLearningRate(name, rate)
}

func (b backend) Statistics() []byte {
	host, _ := os.Hostname()
	s := b.server.Statistics()
	over := b.service.Traffic()
	r := admin.Report{Rank: b.group.Rank, PID: os.Getpid(), Host: host, Mode: s.Mode, Seconds: s.Seconds, Step: s.Version, Queue: s.Queue,
		Pulls: s.Pulls, Pushes: s.Pushes, PulledRows: s.PulledRows, PushedRows: s.PushedRows, BytesIn: s.BytesIn, BytesOut: s.BytesOut,
		RPCs: over.Calls, GRPCIn: over.In, GRPCOut: over.Out,
		Staleness: s.Staleness, MostStale: s.MostStale, Failed: s.Failed, Tables: []admin.TableReport{}, Trainers: []admin.TrainerReport{}}
	for _, t := range s.Tables {
		r.Tables = append(r.Tables, admin.TableReport{Name: t.Name, Kind: t.Kind, Dim: t.Dim, Rows: t.Rows, Bytes: t.Bytes, Pulled: t.Pulled, Pushed: t.Pushed})
	}
	for _, t := range s.Trainers {
		queue := 0
		if t.Waiting {
			queue = 1
		}
		r.Trainers = append(r.Trainers, admin.TrainerReport{Rank: t.Rank, Step: t.Steps, Queue: queue, Staleness: t.Staleness, Completed: t.State != "active", State: t.State, Lag: t.Lag, Silent: t.Silent})
	}
	text, _ := json.Marshal(r) // it has nothing that JSON cannot say
	return text
}
