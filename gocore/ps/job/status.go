package job

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/paddlempi/paddlempi/gocore/method"
	"github.com/paddlempi/paddlempi/gocore/ps/admin"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// askedServer is what ps_status says of one server.
type askedServer struct {
	Rank       int             `json:"rank"`
	Address    string          `json:"address"`
	Statistics json.RawMessage `json:"statistics"` // null: there is an error
	Error      string          `json:"error"`
}

// askedAtOnce is how many servers ps_status asks at the same time.
const askedAtOnce = 64

// status asks the servers of a job, which need not be this process's, for their statistics.
func (p *Process) status(request []byte, interrupt work.Interrupt) (any, error) {
	var r struct {
		File    string   `json:"file"`
		Timeout *float64 `json:"timeout"`
	}
	if err := method.Parse("ps_status", request, &r); err != nil {
		return nil, err
	}
	job, path, err := admin.ReadJobFile(r.File)
	if err != nil {
		return nil, err
	}
	limit := 10 * time.Second
	if r.Timeout != nil {
		limit = method.Seconds(r.Timeout)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	asked := job.Servers
	if job.Master != nil {
		asked = append(slices.Clone(asked), *job.Master)
	}
	servers := make([]askedServer, len(asked))
	var all sync.WaitGroup
	free := make(chan struct{}, askedAtOnce)
	over := make(chan struct{})
	go func() {
		defer close(over)
		for i, s := range asked {
			free <- struct{}{}
			all.Add(1)
			go func() {
				defer func() { <-free; all.Done() }()
				servers[i] = askServer(ctx, s, job)
			}()
		}
		all.Wait()
	}()
	if err := work.Await(over, time.Time{}, interrupt); err != nil {
		cancel()
		<-over
		return nil, err
	}
	return map[string]any{"file": path, "pid": job.PID, "roles": job.Roles, "servers": servers[:len(job.Servers)], "masters": servers[len(job.Servers):]}, nil
}

func askServer(ctx context.Context, s admin.ServerAddress, job admin.JobFile) askedServer {
	found := askedServer{Rank: s.Rank, Address: s.Address}
	c, err := admin.Dial(s.Address, job.Token, job.TLS)
	if err == nil {
		defer c.Close()
		found.Statistics, err = c.Statistics(ctx)
	}
	if err != nil {
		found.Error = err.Error()
	}
	return found
}
