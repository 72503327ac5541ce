package messages

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// A probe that meets a header tells the length of the message, and the messages of that rank stay in their order.
func TestAProbeReadsAHeader(t *testing.T) {
	var ranks []transport.Comm
	for _, lib := range mpifake.New(2) {
		ranks = append(ranks, mpifake.World(lib))
	}
	send := func(tag int32, bytes int64, h header) {
		block, err := mem.Alloc(bytes)
		require.NoError(t, err)
		t.Cleanup(func() { mem.Free(block) })
		if bytes == headerBytes {
			*(*header)(block) = h
		}
		_, err = ranks[0].Send(block, bytes, 1, tag)
		require.NoError(t, err)
	}
	send(1, 24, header{})
	send(2, headerBytes, header{headerMark, 1<<30<<lengthShift | 5})
	send(3, headerBytes, header{mark: 7}) // as long as a header, and none
	send(2, 4, header{})

	held := int32(0)
	k := kept{hold: func(by int32) { held += by }}
	_, found, err := k.probe(ranks[1], 0, 9)
	require.NoError(t, err)
	assert.False(t, found)
	for range 2 {
		st, found, err := k.probe(ranks[1], transport.AnySource, 2)
		require.NoError(t, err)
		require.True(t, found)
		assert.Equal(t, transport.Status{Source: 0, Tag: 2, Bytes: 1 << 30}, st)
	}
	st, found, err := k.probe(ranks[1], 0, transport.AnyTag)
	require.NoError(t, err)
	require.True(t, found)
	assert.Equal(t, transport.Status{Source: 0, Tag: 1, Bytes: 24}, st)
	st, found, err = k.probe(ranks[1], 0, 3)
	require.NoError(t, err)
	require.True(t, found)
	assert.Equal(t, transport.Status{Source: 0, Tag: 3, Bytes: headerBytes}, st)

	assert.EqualValues(t, 3, held)

	m, ok := k.take(0, transport.AnyTag)
	require.True(t, ok)
	assert.Equal(t, []any{int32(1), false}, []any{m.Tag, m.read})
	m, ok = k.take(transport.AnySource, 2)
	require.True(t, ok)
	h := *(*header)(unsafe.Pointer(&m.header))
	assert.Equal(t, []any{true, int64(1 << 30), int32(5)}, []any{m.read, h.length(), h.id()})
	_, ok = k.take(0, 2)
	assert.False(t, ok, "the transport still has the last one")
	m, ok = k.take(0, 3)
	require.True(t, ok)
	assert.Equal(t, uint64(7), (*header)(unsafe.Pointer(&m.header)).mark)
	st, found, err = k.probe(ranks[1], 0, 2)
	require.NoError(t, err)
	assert.True(t, found)
	assert.EqualValues(t, 4, st.Bytes)
	assert.Zero(t, held)
}
