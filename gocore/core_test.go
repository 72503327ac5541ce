package gocore

import (
	"fmt"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/lifecycle"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/registry"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
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

func TestNothingWorksBeforeInit(t *testing.T) {
	_, _, err := Submit(&op.Desc{Code: op.Barrier}, false)
	assert.Equal(t, status.NotInitialized, status.CodeOf(err))
	assert.Equal(t, status.NotInitialized, status.CodeOf(Refuse(0, op.Barrier)))
	_, _, err = Wait(1, 0, nil, false)
	assert.ErrorContains(t, err, "work 1 does not exist")
	_, err = Test(1)
	assert.ErrorContains(t, err, "work 1 does not exist")
	assert.True(t, Release(1))
	lifecycle.BeforeFinalize()
}

// message describes an asynchronous send or receive of 8 bytes with rank 0 itself.
func message(t *testing.T, code op.Code, value int64, flags uint32) (*op.Desc, *int64) {
	p, err := mem.Alloc(8)
	require.NoError(t, err)
	t.Cleanup(func() { mem.Free(p) })
	*(*int64)(p) = value
	b := &op.Buf{Data: p, Count: 1, DType: op.Int64, DeviceType: op.DeviceCPU}
	d := &op.Desc{Code: code, Flags: op.FlagAsync | flags, TimeoutNS: -1, Tag: 5, Root: -1}
	if code == op.Send {
		d.Send, d.NSend = unsafe.Pointer(b), 1
	} else {
		d.Recv, d.NRecv = unsafe.Pointer(b), 1
	}
	return d, (*int64)(p)
}

func TestGroupsByNumber(t *testing.T) {
	initialised(t)
	first := registry.InitialOrNil().All().ID
	for _, id := range []int64{0, first} {
		_, _, err := Submit(&op.Desc{Code: op.Barrier, Group: id, TimeoutNS: -1}, false)
		assert.NoError(t, err)
		assert.NoError(t, Refuse(id, op.Barrier))
	}
	unknown := first + 1
	_, _, err := Submit(&op.Desc{Code: op.Barrier, Group: unknown, TimeoutNS: -1}, false)
	assert.Equal(t, status.Argument, status.CodeOf(err))
	assert.ErrorContains(t, err, fmt.Sprint("barrier: there is no group ", unknown))
	assert.Equal(t, status.Argument, status.CodeOf(Refuse(unknown, op.Barrier)))
}

func TestWorksByNumber(t *testing.T) {
	initialised(t)
	d, into := message(t, op.Recv, 0, 0)
	recv, _, err := Submit(d, false)
	require.NoError(t, err)
	done, err := Test(recv)
	assert.NoError(t, err)
	assert.False(t, done)
	_, _, err = Wait(recv, time.Millisecond, nil, false)
	assert.Equal(t, status.NotReady, status.CodeOf(err))

	d, _ = message(t, op.Send, 42, op.FlagNotify)
	send, _, err := Submit(d, false)
	require.NoError(t, err)
	r, released, err := Wait(recv, 5*time.Second, nil, false)
	require.NoError(t, err)
	assert.Equal(t, work.Result{Source: 0, Tag: 5, Bytes: 8}, r)
	assert.False(t, released)
	assert.Equal(t, int64(42), *into)
	_, _, err = Wait(send, 5*time.Second, nil, false)
	require.NoError(t, err)
	done, err = Test(recv)
	assert.NoError(t, err)
	assert.True(t, done)
	ended := make([]work.Completion, 4)
	assert.Equal(t, 1, work.NextCompletions(ended, 5*time.Second))
	assert.Equal(t, work.Completion{ID: send, Released: true, Result: work.Result{}}, ended[0])

	_, released, err = Wait(recv, 0, nil, true)
	assert.NoError(t, err)
	assert.True(t, released)
	_, released, err = Wait(recv, 0, nil, true)
	assert.Equal(t, status.Argument, status.CodeOf(err))
	assert.True(t, released)

	// A collective that is over at once has no number, unless its end is to be reported.
	id, _, err := Submit(&op.Desc{Code: op.Barrier, Flags: op.FlagAsync, TimeoutNS: -1}, false)
	assert.NoError(t, err)
	assert.Zero(t, id)
	id, _, err = Submit(&op.Desc{Code: op.Barrier, Flags: op.FlagAsync | op.FlagNotify, TimeoutNS: -1}, false)
	assert.NoError(t, err)
	assert.NotZero(t, id)
	assert.Equal(t, 1, work.NextCompletions(ended, 5*time.Second))
	assert.Equal(t, id, ended[0].ID)
}

// After a panic every call fails.
func TestAPanicPoisonsTheCore(t *testing.T) {
	initialised(t)
	assert.Panics(t, func() { _, _, _ = Submit(&op.Desc{Code: op.Panic, TimeoutNS: -1}, false) })
	Poison("runtime error: something")
	defer registry.Poisoned.Store(nil)
	_, _, err := Submit(&op.Desc{Code: op.Barrier, TimeoutNS: -1}, false)
	assert.Equal(t, status.Panic, status.CodeOf(err))
	_, _, err = Wait(1, 0, nil, false)
	assert.Equal(t, status.Panic, status.CodeOf(err))
}
