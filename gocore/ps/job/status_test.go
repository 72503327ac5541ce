package job

import (
	"context"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/ps/admin"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// counting answers statistics, after a wait if it has one.
type counting struct {
	text string
	wait chan struct{}
}

func (c counting) Register(admin.Member) error                { return nil }
func (c counting) Declare(int, admin.Meta) (uint32, error)    { return 0, nil }
func (c counting) Barrier(context.Context, int, string) error { return nil }
func (c counting) Complete(int) error                         { return nil }
func (c counting) Checkpoint(context.Context, int, string, string, int64, []byte) ([]byte, error) {
	return nil, nil
}
func (c counting) SetLearningRate(string, float64) error { return nil }
func (c counting) Statistics() []byte {
	if c.wait != nil {
		<-c.wait
	}
	return []byte(c.text)
}

// serving starts servers and writes the file of their job, for this process.
func serving(t *testing.T, backends ...admin.Backend) (path string, servers []*admin.Server) {
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("TMPDIR", t.TempDir())
	token, err := admin.NewToken()
	require.NoError(t, err)
	e := admin.JobFile{Token: token, Roles: map[int]string{0: admin.Trainer}}
	for i, b := range backends {
		s, err := admin.Serve(admin.Options{OneHost: true, Token: token}, b, nil)
		require.NoError(t, err)
		t.Cleanup(s.Stop)
		servers = append(servers, s)
		e.Servers = append(e.Servers, admin.ServerAddress{Rank: i + 1, Address: s.Address()})
		e.Roles[i+1] = admin.PServer
	}
	path, err = admin.WriteJobFile(e)
	require.NoError(t, err)
	return path, servers
}

// ask calls a method of a process without a job. The reply is JSON.
func ask(name string, request []byte, interrupt work.Interrupt) ([]byte, error) {
	if len(request) == 0 {
		request = []byte("{}")
	}
	p := New(Core{Healthy: func() error { return nil }})
	reply, err := p.Methods()[name](request, interrupt)
	if err != nil {
		return nil, err
	}
	return json.Marshal(reply)
}

func TestStatusAsksEveryServer(t *testing.T) {
	path, servers := serving(t, counting{text: `{"step": 7}`}, counting{text: `{}`})
	servers[1].Stop()
	for _, request := range []string{`{}`, `{"file": "` + path + `", "timeout": 20}`} {
		reply, err := ask("ps_status", []byte(request), nil)
		require.NoError(t, err)
		var r struct {
			File    string            `json:"file"`
			PID     int               `json:"pid"`
			Roles   map[string]string `json:"roles"`
			Servers []askedServer     `json:"servers"`
		}
		require.NoError(t, json.Unmarshal(reply, &r))
		assert.Equal(t, path, r.File)
		assert.Equal(t, os.Getpid(), r.PID)
		assert.Equal(t, map[string]string{"0": "trainer", "1": "pserver", "2": "pserver"}, r.Roles)
		require.Len(t, r.Servers, 2)
		assert.Equal(t, askedServer{1, servers[0].Address(), json.RawMessage(`{"step":7}`), ""}, r.Servers[0])
		assert.Equal(t, "null", string(r.Servers[1].Statistics))
		assert.Contains(t, r.Servers[1].Error, "the parameter server at "+servers[1].Address()+" does not answer")
	}
}

func TestStatusEndsInTime(t *testing.T) {
	wait := make(chan struct{})
	_, _ = serving(t, counting{text: `{}`, wait: wait})
	t.Cleanup(func() { close(wait) }) // before the servers stop
	reply, err := ask("ps_status", []byte(`{"timeout": 0.3}`), nil)
	require.NoError(t, err)
	assert.Contains(t, string(reply), "has not answered before the deadline of the call")
	began := time.Now()
	stop := status.New(status.Interrupted, "Ctrl-C")
	_, err = ask("ps_status", []byte(`{"timeout": 600}`), func() error { return stop })
	assert.Equal(t, stop, err)
	assert.Less(t, time.Since(began), time.Minute)
}

func TestStatusWithoutAJob(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("TMPDIR", t.TempDir())
	_, err := ask("ps_status", nil, nil)
	assert.Equal(t, status.Argument, status.CodeOf(err))
	assert.ErrorContains(t, err, "has no file ps-PID.json of a living process")
	_, err = ask("ps_status", []byte(`{"file": 3}`), nil)
	assert.Equal(t, status.Argument, status.CodeOf(err))
}
