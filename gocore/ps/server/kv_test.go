package server

import (
	"errors"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/request"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// kvServer is a server with a function "f", and a KV of it: dim 3 of uint8.
func kvServer(t *testing.T) *Server {
	s := New(Config{Servers: 1, Trainers: []int{0, 1}, Functions: []string{"f"}})
	t.Cleanup(s.Tables.Free)
	id, err := s.DeclareKV(0, "f", 3, op.UInt8)
	require.NoError(t, err)
	require.Zero(t, id)
	return s
}

// call gives the server a call, and returns where its reply comes.
func call(s *Server, from int, head request.KVHead, keys []int64, values, answer []byte) <-chan error {
	got := make(chan error, 2)
	s.Handle(&Incoming{From: from, Header: head.Encode(), IDs: keys, Values: values, Answer: answer, Reply: func(_ []byte, err error) { got <- err }})
	return got
}

func buf[T any](d op.DType, v []T) *op.Buf {
	return &op.Buf{Data: unsafe.Pointer(unsafe.SliceData(v)), Count: int64(len(v)), DType: d, NDim: 1}
}

func TestACallOfAKV(t *testing.T) {
	s := kvServer(t)
	answer := memory[byte](6)
	got := call(s, 1, request.KVHead{Push: true, Pull: true, Command: 5, Count: 2}, outside[int64](7, -9), outside[byte](1, 2, 3, 4, 5, 6), answer)
	c, err := s.Calls.Next(nil)
	require.NoError(t, err)
	assert.Equal(t, []any{"f", 1, int64(5), int64(2), true, true}, []any{c.KV, c.From, c.Command, c.Keys, c.Push, c.Pull})
	keys, rows := memory[int64](2), memory[byte](6)
	require.NoError(t, s.Calls.Take(c.Number, buf(op.Int64, keys), buf(op.UInt8, rows)))
	assert.Equal(t, []int64{7, -9}, keys)
	assert.Equal(t, []byte{1, 2, 3, 4, 5, 6}, rows)
	assert.ErrorContains(t, s.Calls.Finish(c.Number, nil, nil), "returned no rows")
	assert.ErrorContains(t, s.Calls.Finish(c.Number, buf(op.UInt8, rows[:3]), nil), "takes 2 rows of 3")
	assert.ErrorContains(t, s.Calls.Take(c.Number, buf(op.Int64, keys[:1]), buf(op.UInt8, rows)), "has 2 keys")
	assert.ErrorContains(t, s.Calls.Take(c.Number, buf(op.Int64, keys), nil), "push is true")
	require.NoError(t, s.Calls.Finish(c.Number, buf(op.UInt8, outside[byte](6, 5, 4, 3, 2, 1)), nil))
	require.NoError(t, <-got)
	assert.Equal(t, []byte{6, 5, 4, 3, 2, 1}, answer)
	assert.ErrorContains(t, s.Calls.Finish(c.Number, nil, nil), "there is no call")
	table := s.Statistics().Tables[0]
	assert.Equal(t, TableStatistics{Name: "f", Kind: "kv", Dim: 3, Pulled: 2, Pushed: 2}, table)
}

func TestAFunctionThatFails(t *testing.T) {
	s := kvServer(t)
	got := call(s, 0, request.KVHead{Push: true, Count: 1}, outside[int64](7), outside[byte](1, 2, 3), nil)
	c, err := s.Calls.Next(nil)
	require.NoError(t, err)
	require.NoError(t, s.Calls.Finish(c.Number, nil, errors.New("so it is")))
	assert.EqualError(t, <-got, "so it is")
}

func TestWrongCallsAreRefused(t *testing.T) {
	s := kvServer(t)
	good := request.KVHead{Push: true, Count: 1}
	one, row := outside[int64](7), outside[byte](1, 2, 3)
	for text, got := range map[string]<-chan error{
		"names KV 1":                   call(s, 0, request.KVHead{KV: 1, Push: true, Count: 1}, one, row, nil),
		"rank 2 is no trainer":         call(s, 2, good, one, row, nil),
		"header has 2 keys":            call(s, 0, request.KVHead{Push: true, Count: 2}, one, row, nil),
		"2 bytes of rows":              call(s, 0, good, one, row[:2], nil),
		"room for 3":                   call(s, 0, good, one, row, memory[byte](3)),
		"0 bytes of rows and room for": call(s, 0, request.KVHead{Pull: true, Count: 1}, one, nil, nil),
		"header has 4294967295 keys":   call(s, 0, request.KVHead{Push: true, Count: 1<<32 - 1}, one, row, nil),
	} {
		assert.ErrorContains(t, <-got, text)
	}
	for text, err := range map[string]error{
		"no function of this name": func() error { _, err := s.DeclareKV(0, "g", 3, op.UInt8); return err }(),
		"with dim=4":               func() error { _, err := s.DeclareKV(1, "f", 4, op.UInt8); return err }(),
		"dtype=int8":               func() error { _, err := s.DeclareKV(1, "f", 3, op.Int8); return err }(),
		"rank 9 is no trainer":     func() error { _, err := s.DeclareKV(9, "f", 3, op.UInt8); return err }(),
	} {
		assert.ErrorContains(t, err, text)
	}
}

// A server that ends answers the calls that wait, those that a function has, and those that come
// later.
func TestCallsOfAServerThatEnds(t *testing.T) {
	s := kvServer(t)
	head, one, row := request.KVHead{Push: true, Count: 1}, outside[int64](7), outside[byte](1, 2, 3)
	called := call(s, 0, head, one, row, nil)
	c, err := s.Calls.Next(nil)
	require.NoError(t, err)
	waits := call(s, 1, head, one, row, nil)
	next := make(chan error)
	s.Fail(status.New(status.PeerDied, "it died"))
	go func() { _, err := s.Calls.Next(nil); next <- err }()
	for _, got := range []<-chan error{called, waits, next, call(s, 0, head, one, row, nil)} {
		assert.EqualError(t, <-got, "it died")
	}
	assert.ErrorContains(t, s.Calls.Finish(c.Number, nil, nil), "there is no call")
	assert.Empty(t, called)
}

func TestNextEndsWithTheJob(t *testing.T) {
	s := kvServer(t)
	stop := make(chan struct{})
	close(stop)
	c, err := s.Calls.Next(stop)
	assert.Nil(t, c)
	assert.NoError(t, err)
}
