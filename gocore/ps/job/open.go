package job

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/comm"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/method"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/admin"
	"github.com/paddlempi/paddlempi/gocore/ps/client"
	"github.com/paddlempi/paddlempi/gocore/ps/link"
	"github.com/paddlempi/paddlempi/gocore/ps/master"
	"github.com/paddlempi/paddlempi/gocore/ps/server"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// This file begins and ends a job with parameter servers.

// processors is how many Go processors a process with parameter servers has at least: eight for
// threads that wait in MPI, and four for gRPC. Such a thread keeps its processor until the
// runtime's timer thread takes it away, and that sleeps with a slack of 10 ms (capi/slack.c). With
// four in all, a call waited 10 ms for each of its steps.
const processors = 12

// begin connects trainers and servers. It is collective over all ranks of a group.
func (p *Process) begin(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Group int64      `json:"group"`
		Roles [][]string `json:"roles"` // of each rank
		mode
		Timeout *float64  `json:"timeout"`
		Address string    `json:"address"` // where the service of this rank listens; "": the core chooses
		TLS     admin.TLS `json:"tls"`
		// The names of the functions that this rank's program has for KVs.
		Functions []string `json:"functions"`
	}
	if err := method.Parse("ps_init", request, &r); err != nil {
		return nil, err
	}
	g, interrupt, err := p.core.Group(r.Group)
	if err != nil {
		return nil, err
	}
	if err := r.mode.check("ps_init"); err != nil {
		return nil, err
	}
	j := &job{group: g, timeout: method.Seconds(r.Timeout), interrupt: interrupt, stop: make(chan struct{}), masterRank: -1}
	j.mode.Store(&r.mode)
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
			case admin.Master:
				if j.masterRank >= 0 {
					return nil, status.New(status.Argument, "ps_init: ranks %d and %d are masters; there may be one", j.masterRank, rank)
				}
				j.masterRank = rank
			default:
				return nil, status.New(status.Argument, "ps_init: rank %d has the role %q; roles are %s, %s and %s", rank, role, admin.Trainer, admin.PServer, admin.Master)
			}
		}
	}
	if len(j.trainers) == 0 || len(j.servers) == 0 {
		return nil, status.New(status.Argument, "ps_init: there are %d trainers and %d servers; there must be one of each", len(j.trainers), len(j.servers))
	}
	runtime.GOMAXPROCS(max(processors, runtime.GOMAXPROCS(0)))
	if err := p.beginOpening(); err != nil {
		return nil, err
	}
	var opened *job
	defer func() { p.endOpening(opened) }()
	c := server.Config{Rule: r.rule(), Threads: min(runtime.NumCPU(), mostThreads), Functions: r.Functions}
	if err := j.open(c, r.Roles, admin.Options{Address: r.Address, OneHost: g.Local, TLS: r.TLS, Panicked: func(why any) { p.core.Poison(fmt.Sprint(why)) }}); err != nil {
		j.close(err)
		return nil, err
	}
	j.removeCloser = p.core.AtEnd(func(bool) { j.close(status.New(status.NotInitialized, "this process ends")) })
	opened = j
	return map[string]any{"endpoints": j.file}, nil
}

// beginOpening lets one thread make the job. Others get an error until endOpening, and so does a
// signal handler that has interrupted the wait for the other ranks.
func (p *Process) beginOpening() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.job != nil:
		return status.New(status.AlreadyInitialized, "ps_init: this process takes part already; call ps.shutdown first")
	case p.opening == thread():
		return status.New(status.Reentrant, "ps_init: called by a signal handler that interrupted ps_init, which cannot end before the handler does")
	case p.opening != 0:
		return status.New(status.AlreadyInitialized, "ps_init: another thread is in it")
	}
	p.opening, p.deaths = thread(), 0
	return nil
}

// endOpening makes a job that of this process; nil: it was not opened.
func (p *Process) endOpening(j *job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opening, p.job = 0, j
}

// open makes this rank's parts: its links, its server, and its clients.
func (j *job) open(c server.Config, roles [][]string, o admin.Options) (err error) {
	me := j.group.Rank
	if j.links, err = link.Open(comm.Members{Members: j.group.Members()}, j.servers, j.timeout); err != nil {
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
	address, mistake := j.answer(c, o)
	all, err := j.gather(append(make([]byte, 0, addressBytes), address...))
	if err != nil {
		return err
	}
	if mistake != nil {
		return mistake
	}
	file := admin.JobFile{PID: os.Getpid(), Token: o.Token, Roles: map[int]string{}, TLS: o.TLS}
	for i, rank := range j.servers {
		at, err := j.addressIn(all, rank, fmt.Sprintf("server %d", i))
		if err != nil {
			return err
		}
		file.Servers = append(file.Servers, at)
	}
	if j.masterRank >= 0 {
		at, err := j.addressIn(all, j.masterRank, "the master")
		if err != nil {
			return err
		}
		file.Master = &at
	}
	for rank, r := range roles {
		file.Roles[j.group.Ranks[rank]] = roleOf(r)
	}
	if me == j.servers[0] {
		if j.file, err = admin.WriteJobFile(file); err != nil {
			return err
		}
	}
	if !slices.Contains(j.trainers, me) {
		return nil
	}
	return j.dial(file)
}

// answer begins to answer trainers, on a server and on the master, and returns the address of the
// service; "" on other ranks.
func (j *job) answer(c server.Config, o admin.Options) (address string, err error) {
	me := j.group.Rank
	if index := slices.Index(j.servers, me); index >= 0 {
		c.Index, c.Servers, c.Trainers = index, len(j.servers), j.trainers
		j.server = server.New(c)
		j.links.Serve(func(in *link.Incoming) {
			j.server.Handle(&server.Incoming{From: in.From, Header: in.Header, IDs: in.IDs, Values: in.Values, Answer: in.Answer, Reply: in.Reply})
		})
	}
	var tasks admin.Tasks // stays nil on a rank that is no master
	if me == j.masterRank {
		j.master = master.NewMaster(j.trainers, c.Rule.Sync)
		tasks = j.master
		j.watching.Add(1)
		go j.tick()
	}
	if j.server == nil && j.master == nil {
		return "", nil
	}
	if j.service, err = admin.Serve(o, backend{j}, tasks); err == nil {
		address = j.service.Address()
	}
	j.watching.Add(1)
	go j.watch()
	return address, err
}

// addressIn returns the address that a rank has told.
func (j *job) addressIn(told [][]byte, rank int, who string) (at admin.ServerAddress, err error) {
	at = admin.ServerAddress{Rank: j.group.Ranks[rank], Address: strings.TrimRight(string(told[rank]), "\x00")}
	if at.Address == "" {
		err = status.New(status.Refused, "ps_init: the service of %s, rank %d, did not start; its rank has the reason", who, rank).WithRanks(at.Rank)
	}
	return at, err
}

// dial makes the clients of a trainer, and registers it.
func (j *job) dial(file admin.JobFile) (err error) {
	me := j.group.Rank
	if file.Master != nil {
		if j.tasks, err = admin.Dial(file.Master.Address, file.Token, file.TLS); err != nil {
			return err
		}
	}
	host, _ := os.Hostname()
	for _, e := range file.Servers {
		c, err := admin.Dial(e.Address, file.Token, file.TLS)
		if err != nil {
			return err
		}
		j.admins = append(j.admins, c)
	}
	if err := j.each(func(ctx context.Context, _ int, c *admin.Client) error {
		return c.Register(ctx, admin.Member{Rank: me, Role: file.Roles[j.group.Ranks[me]], PID: os.Getpid(), Host: host})
	}); err != nil {
		return err
	}
	j.client = client.New(j.links, len(j.servers), false, j.timeout, j.interrupt)
	j.client.Late = j.late
	j.follow(j.mode.Load(), nil)
	return nil
}

func roleOf(roles []string) string { return strings.Join(roles, ",") }

// mostThreads is how many threads of a server share a large batch, if it has as many CPUs: more
// gain little, because they wait for memory.
const mostThreads = 4

// addressBytes is room for a host name and a port.
const addressBytes = 300

// gather returns what every rank of the group gives, each addressBytes long. It is collective.
func (j *job) gather(mine []byte) (all [][]byte, err error) {
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

// close ends this rank's part.
func (p *Process) close([]byte, work.Interrupt) (any, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if j := p.job; j != nil {
		j.removeCloser()
		j.close(status.New(status.NotInitialized, "the server was closed"))
		p.tables.forget(j.client)
		p.job = nil
	}
	return map[string]any{"deaths": p.deaths}, nil
}
