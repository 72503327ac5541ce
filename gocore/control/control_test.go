package control

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/lifecycle"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/registry"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// initialised makes this process rank 0 of a fake world of one, until the test ends.
func initialised(t *testing.T) {
	t.Helper()
	lib := mpifake.New(1)[0]
	env, err := world.NewEnv(mpifake.World(lib), 20*time.Second, nil)
	require.NoError(t, err)
	registry.MPI = lib
	require.NoError(t, lifecycle.Enter(registry.NewWorld(env), time.Minute))
	t.Cleanup(func() {
		if registry.InitialOrNil() != nil {
			assert.NoError(t, lifecycle.Destroy())
		}
	})
}

func control(t *testing.T, method, request string) map[string]any {
	t.Helper()
	reply, err := Call(method, []byte(request), nil)
	require.NoError(t, err, "%s %s", method, request)
	var m map[string]any
	require.NoError(t, json.Unmarshal(reply, &m))
	return m
}

func refused(t *testing.T, code status.Code, text, method, request string) {
	t.Helper()
	reply, err := Call(method, []byte(request), nil)
	assert.Nil(t, reply)
	assert.Equal(t, code, status.CodeOf(err), "%s %s: %v", method, request, err)
	assert.ErrorContains(t, err, text, "%s %s", method, request)
}

// names returns the names of all methods.
func names() []string {
	return append(slices.Collect(maps.Keys(methods)), slices.Collect(maps.Keys(registry.Servers.Methods()))...)
}

func TestLauncherNeedsNoMPI(t *testing.T) {
	reply := control(t, "launcher", "")
	for _, name := range []string{"name", "kind", "path", "pid", "mpirun", "mpi", "size", "rank", "local_rank", "local_size", "job", "host"} {
		assert.Contains(t, reply, name)
	}
	assert.Equal(t, control(t, "info", "")["launcher"], reply)
	t.Setenv("OMPI_COMM_WORLD_SIZE", "4")
	t.Setenv("OMPI_COMM_WORLD_RANK", "3")
	if reply["name"] == "" { // else the test itself runs under a launcher
		assert.Equal(t, "", control(t, "launcher", "")["kind"])
		assert.Equal(t, 3.0, control(t, "launcher", `{"hidden":true}`)["rank"])
	}
}

func TestAddressesNeedNoMPI(t *testing.T) {
	t.Setenv("PADDLEMPI_IFNAME", "")
	t.Setenv("GLOO_SOCKET_IFNAME", "lo")
	assert.Equal(t, map[string]any{"name": "", "addresses": []any{"127.0.0.1"}}, control(t, "addresses", `{"one_host":true}`))
	assert.Contains(t, control(t, "addresses", `{"variable":"GLOO_SOCKET_IFNAME"}`)["addresses"], "127.0.0.1")
	assert.NotContains(t, control(t, "addresses", "")["addresses"], "127.0.0.1")
	t.Setenv("PADDLEMPI_IFNAME", "nosuch")
	refused(t, status.Argument, "PADDLEMPI_IFNAME=nosuch", "addresses", "{}")
}

func TestControlRefusesWrongArguments(t *testing.T) {
	initialised(t)
	refused(t, status.Argument, `no method "bogus"`, "bogus", "{}")
	for _, method := range names() {
		switch method {
		case "destroy", "ps_serve", "ps_flush", "ps_last_push", "ps_complete", "ps_refuse", "ps_stats", "ps_close", "ps_kv_next": // they take no arguments
			continue
		}
		for _, request := range []string{"[", "[]", `"x"`, `{"group":"x","count":"x","why":1,"ranks":"x","timeout":"x","status":"x","mpi":1,"sys_prefix":1,"wait":1,"step":1,"hidden":1,"one_host":1,"generation":"x","descriptor":"x","pids":"x","table":"x","window":"x","dim":"x","name":1,"dir":1,"file":1,"call":"x","bytes":"x","handle":"x","path":1,"mode":1}`} {
			refused(t, status.Argument, "control "+method, method, request)
		}
	}
	refused(t, status.Argument, "ranks is empty", "new_group", "")
	refused(t, status.Argument, "ranks is empty", "new_group", `{"ranks":[]}`)
	refused(t, status.Argument, "ranks[1] is 1; the world has ranks 0 to 0", "new_group", `{"ranks":[0,1]}`)
	refused(t, status.Argument, "ranks[0] is -1", "new_group", `{"ranks":[-1]}`)
	refused(t, status.Argument, "rank 0 is in ranks twice", "new_group", `{"ranks":[0,0]}`)
	for _, method := range []string{"group_info", "destroy_group", "set_timeout"} {
		refused(t, status.Argument, "there is no group 7000", method, `{"group":7000,"timeout":1}`)
		refused(t, status.Argument, "there is no group -1", method, `{"group":-1,"timeout":1}`)
	}
	for _, method := range []string{"table_info", "table_free"} {
		refused(t, status.Argument, "there is no table 7000", method, `{"table":7000}`)
	}
	refused(t, status.Argument, "dim=0", "table_new", "{}")
	refused(t, status.Argument, "timeout must be a number of seconds", "set_timeout", `{"group":0}`)
	refused(t, status.Argument, "timeout must be a number of seconds", "set_timeout", `{"group":0,"timeout":-1}`)
	refused(t, status.AlreadyInitialized, "call destroy_process_group first", "init", "{}")
}

func TestFilesNeedAnMPIWithFiles(t *testing.T) {
	refused(t, status.NotInitialized, "call init_process_group first", "file_open", `{"path":"/a","mode":"r"}`)
	initialised(t) // a fake MPI
	refused(t, status.Unsupported, "has no calls for files", "file_open", `{"path":"/a","mode":"r"}`)
	refused(t, status.Argument, `mode="w"`, "file_open", `{"path":"/a","mode":"w"}`)
	for _, method := range []string{"file_write", "file_read", "file_sync", "file_close"} {
		refused(t, status.Argument, "there is no file 7", method, `{"handle":7}`)
	}
}

func TestGroupsByControl(t *testing.T) {
	initialised(t)
	info := control(t, "group_info", `{"group":0}`)
	first := info["group"].(float64)
	assert.Equal(t, map[string]any{"group": first, "rank": 0.0, "size": 1.0, "ranks": []any{0.0},
		"timeout": 60.0, "one_node": true, "algorithm": "", "way": "", "tuned": []any{}, "broken": ""}, info)
	control(t, "set_timeout", `{"group":0,"timeout":2.5}`)
	named := func(format string, i float64) string { return fmt.Sprintf(format, int64(first+i)) }

	made := control(t, "new_group", `{"ranks":[0]}`)
	assert.Equal(t, map[string]any{"group": first + 1, "rank": 0.0}, made)
	assert.Equal(t, 2.5, control(t, "group_info", named(`{"group":%d}`, 1))["timeout"], "the default is the timeout of the world")
	assert.Equal(t, first+2, control(t, "new_group", `{"ranks":[0],"timeout":7}`)["group"])
	assert.Equal(t, 7.0, control(t, "group_info", named(`{"group":%d}`, 2))["timeout"])

	control(t, "destroy_group", named(`{"group":%d}`, 1))
	refused(t, status.GroupDestroyed, "", "destroy_group", named(`{"group":%d}`, 1))
	_, err := registry.Group(int64(first) + 1)
	assert.Equal(t, status.GroupDestroyed, status.CodeOf(err))
	unknown := int64(first) + 3
	_, err = registry.Group(unknown)
	assert.Equal(t, status.Argument, status.CodeOf(err))
	assert.ErrorContains(t, err, fmt.Sprint("there is no group ", unknown))

	control(t, "destroy", "")
	refused(t, status.NotInitialized, "", "destroy", "")
}

func TestNothingWorksBeforeInit(t *testing.T) {
	for method, request := range map[string]string{
		"destroy": "", "new_group": `{"ranks":[0]}`, "destroy_group": `{"group":0}`,
		"group_info": `{"group":0}`, "set_timeout": `{"group":0,"timeout":1}`,
	} {
		refused(t, status.NotInitialized, "call init_process_group first", method, request)
	}
}

// After a panic every call fails, and init does not start over.
func TestAPanicPoisonsTheCore(t *testing.T) {
	initialised(t)
	registry.Poison("runtime error: something\ngoroutine 1 [running]:\n")
	registry.Poison("another one")
	defer registry.Poisoned.Store(nil)
	assert.ErrorContains(t, registry.Healthy(), "(runtime error: something)", "the first line of the first panic")
	for method, request := range map[string]string{
		"init": "{}", "destroy": "", "new_group": `{"ranks":[0]}`, "group_info": `{"group":0}`,
	} {
		refused(t, status.Panic, "end the job", method, request)
	}
}
