package request

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestHeadsAreReadAsWritten(t *testing.T) {
	for _, h := range []Head{
		{Op: Pull, Seen: -1, Tables: []TableRows{}},
		{Op: Push, Step: 7, Seen: 3, Tables: []TableRows{{1, 5, 0.25}, {2, 0, math.Inf(1)}}},
		{Op: Push, Seen: -1, Tables: []TableRows{}},
		{Op: Refuse, Step: 2, Tables: []TableRows{}},
		{Op: Write, Step: 1, Number: math.MaxInt64, Tables: make([]TableRows, MostInHeader)},
		{Op: Reserve, Tables: []TableRows{{3, 2, 0}}},
		{Op: Add, Step: 3, Tables: []TableRows{{3, 2, 0}}},
		{Op: Look, Seen: -1, Tables: []TableRows{{3, 2, 0}}},
		{Op: LookZeros, Seen: -1, Tables: []TableRows{}},
		{Op: ReadStates, Seen: -1, Tables: []TableRows{{3, 2, 0}}},
		{Op: WriteStates, Seen: -1, Number: 4, Tables: []TableRows{{3, 0, 17}}},
	} {
		read, err := Decode(h.Encode())
		require.NoError(t, err)
		assert.Equal(t, h, read)
	}
	numbered := (&Head{Op: Push, Step: 7, Tables: []TableRows{{1, 5, 0.25}}}).Encode()
	SetNumber(numbered, 1<<40+3)
	read, err := Decode(numbered)
	require.NoError(t, err)
	assert.Equal(t, Head{Op: Push, Step: 7, Number: 1<<40 + 3, Tables: []TableRows{{1, 5, 0.25}}}, read)
	a := Answer{4, 9, 3}
	answer, err := DecodeAnswer(a.Encode())
	require.NoError(t, err)
	assert.Equal(t, a, answer)
}

func TestMoreTablesThanAHeaderHas(t *testing.T) {
	for _, n := range []int{MostInHeader + 1, MostTables} {
		h := Head{Op: Push, Step: 1, Tables: make([]TableRows, n)}
		for i := range h.Tables {
			h.Tables[i] = TableRows{uint32(i) << 15, math.MaxUint32 - uint32(i), float64(i) - 0.5}
		}
		words := make([]int64, h.ListLen()+3)
		h.PutList(words)
		words[h.ListLen()] = 7
		header := h.Encode()
		assert.Len(t, header, headBytes)
		read, err := Decode(header)
		require.NoError(t, err)
		ids, err := read.TakeList(words)
		require.NoError(t, err)
		assert.Equal(t, []int64{7, 0, 0}, ids)
		assert.Equal(t, h.Tables, read.Tables)
		_, err = read.TakeList(words[:h.ListLen()-1])
		assert.Error(t, err)
		for _, damaged := range [][]byte{append(header, make([]byte, tableBytes)...), append([]byte{2, 1, 0, 0, 0, 4, 0, 0}, header[8:]...), append([]byte{2, 1, 0, 0, 1, 0, 1, 0}, header[8:]...)} {
			_, err := Decode(damaged)
			assert.ErrorContains(t, err, "it may have 1025 to 65536, of 16 bytes")
		}
	}
	ids := []int64{1}
	few := Head{Op: Push, Tables: make([]TableRows, MostInHeader)}
	assert.Zero(t, few.ListLen())
	read, err := Decode(few.Encode())
	require.NoError(t, err)
	rest, err := read.TakeList(ids)
	require.NoError(t, err)
	assert.Equal(t, ids, rest)
}

func TestDamagedHeadsAreRefused(t *testing.T) {
	good := func() []byte {
		return (&Head{Op: Push, Step: 1, Tables: []TableRows{{1, 1, 0}}}).Encode()
	}
	for name, damage := range map[string]func([]byte) []byte{
		"a byte is missing":  func(b []byte) []byte { return b[:len(b)-1] },
		"a byte too many":    func(b []byte) []byte { return append(b, 0) },
		"no header":          func([]byte) []byte { return nil },
		"unknown code":       func(b []byte) []byte { b[0] = byte(last) + 1; return b },
		"filler":             func(b []byte) []byte { b[2] = 1; return b },
		"tables without end": func(b []byte) []byte { b[7] = 255; return b },
		"a negative step":    func(b []byte) []byte { b[15] = 128; return b },
		"a negative version": func(b []byte) []byte { b[23] = 128; return b },
		"a negative number":  func(b []byte) []byte { b[31] = 128; return b },
	} {
		_, err := Decode(damage(good()))
		assert.Error(t, err, name)
	}
	_, err := DecodeAnswer(make([]byte, AnswerBytes+1))
	assert.Error(t, err)
}

func FuzzHead(f *testing.F) {
	f.Add((&Head{Op: Push, Step: 1, Tables: []TableRows{{1, 1, 0}}}).Encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := Decode(b); err == nil {
			if _, err := h.TakeList(make([]int64, listWords*MostTables)); err == nil {
				assert.Equal(t, b, h.Encode())
			}
		}
	})
}
