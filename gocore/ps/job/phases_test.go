package job

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/checkpoint"
	"github.com/paddlempi/paddlempi/gocore/ps/server"
	"github.com/paddlempi/paddlempi/gocore/ps/table"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// oneRow returns a server with a table of one row, whose value every call of train changes.
func oneRow(t *testing.T) (b backend, train func()) {
	s := server.New(server.Config{Servers: 1, Trainers: []int{0}})
	t.Cleanup(s.Tables.Free)
	_, err := s.Declare(0, server.Meta{Name: "t", Kind: "sparse", By: "hash", Config: table.Config{Dim: 1, DType: "float32",
		Initializer: table.Initializer{Name: "zeros"}, Optimizer: table.Optimizer{Name: "sgd", LearningRate: 1}}})
	require.NoError(t, err)
	room, err := mem.Alloc(16)
	require.NoError(t, err)
	t.Cleanup(func() { mem.Free(room) })
	*(*int64)(room), *(*float32)(unsafe.Add(room, 8)) = 7, 1
	step := int64(0)
	return backend{&job{server: s}}, func() {
		step++
		require.NoError(t, s.Tables.All()[0].Table.Push(table.Batch{IDs: &op.Buf{Data: room, Count: 1, DType: op.Int64, NDim: 1},
			Values: &op.Buf{Data: unsafe.Add(room, 8), Count: 1, DType: op.Float32, NDim: 1}}, math.NaN(), step))
	}
}

// A trainer that gives up while a server writes or reads leaves the last complete cut.
func TestACutThatIsGivenUp(t *testing.T) {
	b, train := oneRow(t)
	train()
	dir := t.TempDir()
	// at holds the server, and takes it through a phase at the point to which it has come.
	at := func(ctx context.Context, phase string, step int64) ([]byte, error) {
		point, err := b.Checkpoint(context.Background(), 0, phaseHold, dir, step, nil)
		require.NoError(t, err)
		return b.Checkpoint(ctx, 0, phase, dir, step, []byte(`{"to":`+string(point)+`}`))
	}
	save := func(ctx context.Context, step int64) error {
		report, err := at(ctx, phaseWrite, step)
		if err != nil {
			return err
		}
		_, err = b.Checkpoint(ctx, 0, phaseCommit, dir, step, []byte(`{"parts":[`+string(report)+`]}`))
		return err
	}
	require.NoError(t, save(context.Background(), 1))
	train()
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	assert.Equal(t, status.Interrupted, status.CodeOf(save(gone, 2)))
	left, err := filepath.Glob(filepath.Join(dir, "cut-00000002", "*"))
	require.NoError(t, err)
	assert.Empty(t, left)
	list, err := checkpoint.List(dir)
	require.NoError(t, err)
	assert.Equal(t, []checkpoint.Listed{{Step: 1}}, list)

	// What was written is not made complete for a caller that has gone.
	report, err := at(context.Background(), phaseWrite, 3)
	require.NoError(t, err)
	_, err = b.Checkpoint(gone, 0, phaseCommit, dir, 3, []byte(`{"parts":[`+string(report)+`]}`))
	assert.Equal(t, status.Interrupted, status.CodeOf(err))
	_, err = os.Stat(filepath.Join(dir, "cut-00000003", "manifest.json"))
	assert.ErrorIs(t, err, os.ErrNotExist)

	_, err = at(gone, phaseRestore, 1)
	assert.Equal(t, status.Interrupted, status.CodeOf(err))
	assert.EqualValues(t, 2, b.server.Tables.All()[0].Table.Steps())
	_, err = at(context.Background(), phaseRestore, 1)
	require.NoError(t, err)
	assert.EqualValues(t, 1, b.server.Tables.All()[0].Table.Steps())
}

// A detail that is too long for a call comes in pieces, and is the same as in one.
func TestADetailInPieces(t *testing.T) {
	b, train := oneRow(t)
	train()
	dir := t.TempDir()
	point, err := b.Checkpoint(context.Background(), 0, phaseHold, dir, 1, nil)
	require.NoError(t, err)
	report, err := b.Checkpoint(context.Background(), 0, phaseWrite, dir, 1, []byte(`{"to":`+string(point)+`}`))
	require.NoError(t, err)
	whole := []byte(`{"parts":[` + string(report) + `]}`)
	send := func(of string, at int, piece []byte) error {
		text, err := json.Marshal(detail{For: of, At: at, Extra: piece})
		require.NoError(t, err)
		_, err = b.Checkpoint(context.Background(), 0, phasePiece, dir, 1, text)
		return err
	}
	commit := func(n int) error {
		_, err := b.Checkpoint(context.Background(), 0, phaseCommit, dir, 1, fmt.Appendf(nil, `{"pieces":%d}`, n))
		return err
	}
	require.NoError(t, send(phaseCommit, 0, []byte("of one that was given up")))
	require.NoError(t, send(phaseCommit, 0, whole[:7]))
	assert.ErrorContains(t, send(phaseCommit, 8, whole[8:]), `bytes of phase "commit" at 8; 7 have come, of at most 134217728`)
	require.NoError(t, send(phaseCommit, 7, whole[7:]))
	require.NoError(t, send(phaseRestore, 0, whole)) // of another phase
	require.NoError(t, commit(len(whole)))
	list, err := checkpoint.List(dir)
	require.NoError(t, err)
	assert.Equal(t, []checkpoint.Listed{{Step: 1}}, list)
	assert.ErrorContains(t, commit(len(whole)), "0 bytes of phase \"commit\" of rank 0 have come")
	require.NoError(t, b.pieces.add(0, detail{For: phaseCommit, Extra: make([]byte, mostPieces)}))
	assert.ErrorContains(t, send(phaseCommit, mostPieces, []byte{1}), "of at most")
	assert.ErrorContains(t, commit(mostPieces), "cannot be read")
}
