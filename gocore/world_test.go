package gocore

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// A second world next to that of init: calls find their world by the id of a group, and each world
// ends alone.
func TestTwoWorlds(t *testing.T) {
	initialised(t)
	lib := mpifake.New(1)[0]
	env, err := world.NewEnv(mpifake.World(lib), 20*time.Second, nil)
	require.NoError(t, err)
	second := newMembership(lib, env)
	g, err := second.add(func(id int64) (*group.Group, error) { return group.World(env, id, time.Minute) })
	require.NoError(t, err)
	mine := int64(control(t, "new_group", `{"ranks":[0]}`)["group"].(float64))
	assert.Greater(t, mine, g.ID)

	barrier := func(id int64) error {
		_, _, err := Submit(&op.Desc{Code: op.Barrier, Group: id, TimeoutNS: -1}, false)
		return err
	}
	for _, id := range []int64{0, mine, g.ID} {
		assert.NoError(t, barrier(id))
	}
	require.NoError(t, second.destroy())
	assert.Equal(t, status.GroupDestroyed, status.CodeOf(barrier(g.ID)))
	assert.NoError(t, barrier(mine))
	assert.Equal(t, status.Argument, status.CodeOf(barrier(mine+1)))
	assert.Equal(t, status.Argument, status.CodeOf(barrier(-1)))
}

func TestClosersEndInTheOppositeOrder(t *testing.T) {
	var c closers
	var seen []string
	note := func(name string) func(bool) {
		return func(finalizing bool) {
			assert.True(t, finalizing)
			seen = append(seen, name)
		}
	}
	c.add(note("world"))
	remove := c.add(note("server"))
	c.add(func(bool) { c.add(note("late")) })
	c.add(note("child"))
	remove()
	remove()
	c.run(true)
	assert.Equal(t, []string{"child", "late", "world"}, seen)
	c.run(true)
	assert.Len(t, seen, 3, "every id is used once")
}

// A group that was destroyed leaves nothing behind: a program may make groups all the time.
func TestDestroyedGroupsAreForgotten(t *testing.T) {
	initialised(t)
	before := len(*groups.live.Load())
	var first int64
	for i := range 100 {
		id := int64(control(t, "new_group", `{"ranks":[0]}`)["group"].(float64))
		if i == 0 {
			first = id
		}
		control(t, "destroy_group", fmt.Sprintf(`{"group":%d}`, id))
	}
	assert.Len(t, *groups.live.Load(), before)
	_, _, err := Submit(&op.Desc{Code: op.Barrier, Group: first, TimeoutNS: -1}, false)
	assert.Equal(t, status.GroupDestroyed, status.CodeOf(err))
	assert.ErrorContains(t, err, fmt.Sprintf("barrier: group %d was destroyed; make a new one", first))
}
