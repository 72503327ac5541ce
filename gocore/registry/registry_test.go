package registry

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/world"
)

func TestClosersEndInTheOppositeOrder(t *testing.T) {
	var c Closers
	var seen []string
	note := func(name string) func(bool) {
		return func(finalizing bool) {
			assert.True(t, finalizing)
			seen = append(seen, name)
		}
	}
	c.Add(note("world"))
	remove := c.Add(note("server"))
	c.Add(func(bool) { c.Add(note("late")) })
	c.Add(note("child"))
	remove()
	remove()
	c.Run(true)
	assert.Equal(t, []string{"child", "late", "world"}, seen)
	c.Run(true)
	assert.Len(t, seen, 3, "every id is used once")
}

// A group that was destroyed leaves nothing behind: a program may make groups all the time.
func TestDestroyedGroupsAreForgotten(t *testing.T) {
	lib := mpifake.New(1)[0]
	env, err := world.NewEnv(mpifake.World(lib), 20*time.Second, nil)
	require.NoError(t, err)
	w := NewWorld(env)
	_, err = w.Add(func(id int64) (*group.Group, error) { return group.World(env, id, time.Minute) })
	require.NoError(t, err)
	SetInitial(w)
	defer ForgetInitial(w)
	before := len(*groups.live.Load())
	var first int64
	for i := range 100 {
		g, err := w.Add(func(id int64) (*group.Group, error) { return group.New(env, id, []int{0}, time.Minute) })
		require.NoError(t, err)
		if i == 0 {
			first = g.ID
		}
		require.NoError(t, Remove(g))
	}
	assert.Len(t, *groups.live.Load(), before)
	_, err = Group(first)
	assert.Equal(t, status.GroupDestroyed, status.CodeOf(err))
	assert.ErrorContains(t, err, fmt.Sprintf("group %d was destroyed; make a new one", first))
}

// What has a number is found by it until it is forgotten, and a number is used once.
func TestFilesByHandle(t *testing.T) {
	want := &mpi.File{}
	one, two := Files.Add(&mpi.File{}), Files.Add(want)
	assert.Less(t, one, two)
	Files.Forget(one)
	_, ok := Files.Get(one)
	assert.False(t, ok)
	f, ok := Files.Get(two)
	assert.True(t, ok)
	assert.Same(t, want, f)
	assert.Equal(t, []*mpi.File{f}, Files.All())
	Files.Forget(two)
	assert.Greater(t, Files.Add(&mpi.File{}), two)
}
