package request

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCallsAreReadAsWritten(t *testing.T) {
	for _, c := range []Call{
		{KV: 7, Push: true, Command: -1, Count: 1 << 31},
		{Pull: true, Command: 1 << 62},
		{KV: 1<<32 - 1, Push: true, Pull: true},
	} {
		b := c.Encode()
		require.True(t, IsCall(b))
		read, err := DecodeCall(b)
		require.NoError(t, err)
		assert.Equal(t, c, read)
		_, err = Decode(b)
		assert.Error(t, err, "it is no request for tables")
	}
	assert.False(t, IsCall((&Head{Op: Push}).Encode()) || IsCall(nil))
}

func TestDamagedCallsAreRefused(t *testing.T) {
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
		_, err := DecodeCall(damage((&Call{Push: true}).Encode()))
		assert.Error(t, err, name)
	}
}

func FuzzCall(f *testing.F) {
	f.Add((&Call{Push: true, Count: 3}).Encode())
	f.Add([]byte{callCode})
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := DecodeCall(b); err == nil {
			assert.Equal(t, b, c.Encode())
		}
	})
}
