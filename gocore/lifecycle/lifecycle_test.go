package lifecycle

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/registry"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// fake returns an MPI of one rank, and the environment of its world.
func fake(t *testing.T) (mpi.Library, *world.Env) {
	t.Helper()
	lib := mpifake.New(1)[0]
	env, err := world.NewEnv(mpifake.World(lib), 20*time.Second, nil)
	require.NoError(t, err)
	return lib, env
}

// A second world next to that of init: calls find their world by the id of a group, and each world
// ends alone.
func TestTwoWorlds(t *testing.T) {
	lib, env := fake(t)
	registry.MPI = lib
	require.NoError(t, Enter(registry.NewWorld(env), time.Minute))
	defer func() { assert.NoError(t, Destroy()) }()
	_, env = fake(t)
	second := registry.NewWorld(env)
	g, err := second.Add(func(id int64) (*group.Group, error) { return group.World(env, id, time.Minute) })
	require.NoError(t, err)
	first := registry.InitialOrNil()
	made, err := first.Add(func(id int64) (*group.Group, error) { return group.New(first.Env, id, []int{0}, time.Minute) })
	require.NoError(t, err)
	mine := made.ID
	assert.Greater(t, mine, g.ID)

	barrier := func(id int64) error {
		g, err := registry.Group(id)
		if err == nil {
			_, _, err = g.Submit(&op.Desc{Code: op.Barrier, Group: id, TimeoutNS: -1}, false)
		}
		return err
	}
	for _, id := range []int64{0, mine, g.ID} {
		assert.NoError(t, barrier(id))
	}
	require.NoError(t, destroy(second))
	assert.Equal(t, status.GroupDestroyed, status.CodeOf(barrier(g.ID)))
	assert.NoError(t, barrier(mine))
	assert.Equal(t, status.Argument, status.CodeOf(barrier(mine+1)))
	assert.Equal(t, status.Argument, status.CodeOf(barrier(-1)))
}
