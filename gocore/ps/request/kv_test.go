package request

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestHeadsOfKVsAreReadAsWritten(t *testing.T) {
	for _, h := range []KVHead{
		{KV: 7, Push: true, Command: -1, Count: 1 << 31},
		{Pull: true, Command: 1 << 62},
		{KV: 1<<32 - 1, Push: true, Pull: true},
	} {
		b := h.Encode()
		require.True(t, IsKV(b))
		read, err := DecodeKV(b)
		require.NoError(t, err)
		assert.Equal(t, h, read)
		_, err = Decode(b)
		assert.Error(t, err, "it is no request for tables")
	}
	assert.False(t, IsKV((&Head{Op: Push}).Encode()) || IsKV(nil))
}

func TestDamagedHeadsOfKVsAreRefused(t *testing.T) {
	for name, damage := range map[string]func([]byte) []byte{
		"a byte is missing": func(b []byte) []byte { return b[:len(b)-1] },
		"a byte too many":   func(b []byte) []byte { return append(b, 0) },
		"no header":         func([]byte) []byte { return nil },
		"another code":      func(b []byte) []byte { b[0] = 1; return b },
		"no flag":           func(b []byte) []byte { b[1] = 0; return b },
		"unknown flags":     func(b []byte) []byte { b[1] = 7; return b },
		"filler":            func(b []byte) []byte { b[3] = 1; return b },
		"filler at the end": func(b []byte) []byte { b[23] = 1; return b },
	} {
		_, err := DecodeKV(damage((&KVHead{Push: true}).Encode()))
		assert.Error(t, err, name)
	}
}

func FuzzKVHead(f *testing.F) {
	f.Add((&KVHead{Push: true, Count: 3}).Encode())
	f.Add([]byte{kvCode})
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := DecodeKV(b); err == nil {
			assert.Equal(t, b, h.Encode())
		}
	})
}
