package server

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/status"
)

func TestWhatServersCannotHoldIsRefused(t *testing.T) {
	for _, one := range []struct {
		change  func(m *Meta)
		servers int
		text    string // "": it is taken
	}{
		{func(m *Meta) { m.Config.MaxRows = 3 }, 3, ""},
		{func(m *Meta) { m.Config.MaxRows = 2 }, 3, "max_rows=2, which the 3 servers share"},
		{func(m *Meta) { m.Config.MaxRows, m.Config.MemoryLimit = 9, 1<<30 }, 1, ""},
		{func(m *Meta) { m.Config.MemoryLimit = 1 << 30 }, 2, ""},
		{func(m *Meta) { m.Config.MaxRows, m.Config.MemoryLimit = 9, 1<<30 }, 2, "memory_limit=1073741824 and max_rows=9 on 2 servers"},
		{func(m *Meta) { m.Config.AdmitAfter, m.Config.ExpireAfter, m.Dims = 2, 5, []int64{} }, 1, "has admit_after=2, expire_after=5 and is a dense parameter"},
		{func(m *Meta) { m.Config.AdmitAfter, m.Dims = 1, []int64{4} }, 1, ""}, // 1 is no admission
	} {
		s := New(Config{Servers: one.servers, Trainers: []int{0}})
		m := meta("t")
		one.change(&m)
		_, err := s.Declare(0, m)
		if one.text == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, one.text)
		}
		s.Tables.Free()
	}
}

func TestServersShareTheCap(t *testing.T) {
	var shares []int64
	for index := range 3 {
		s := New(Config{Index: index, Servers: 3, Trainers: []int{0, 1}})
		t.Cleanup(s.Tables.Free)
		m := meta("t")
		m.Config.MaxRows = 11
		_, err := s.Declare(0, m)
		require.NoError(t, err)
		shares = append(shares, s.Statistics().Tables[0].MaxRows)
		assert.EqualValues(t, 11, s.Tables.All()[0].Config.MaxRows, "a cut has that of the table")
		_, err = s.Declare(1, meta("t")) // where a field is absent, the error names it too
		require.ErrorContains(t, err, "max_rows=none instead of 11")
		assert.Equal(t, status.Mismatch, status.CodeOf(err))
	}
	assert.Equal(t, []int64{4, 4, 3}, shares)
}

// The means of squares of dc_asgd are those of rows: ids without one leave nothing behind.
func TestMeansGoWithTheirRows(t *testing.T) {
	for _, capped := range []bool{true, false} {
		s := New(Config{Servers: 1, Trainers: []int{0}, Rule: Rule{Mode: "dc_asgd", Lambda: 0.5, Decay: 0.9, Backups: 50}})
		t.Cleanup(s.Tables.Free)
		m := meta("t")
		if m.Config.AdmitAfter = 3; capped {
			m.Config.MaxRows = 8
		}
		_, err := s.Declare(0, m)
		require.NoError(t, err)
		ones := slices.Repeat([]float32{1}, 2*dim)
		for id := range int64(100) {
			for range 1 + id%2*2 { // the odd ones get a row
				require.NoError(t, (<-push(s, 0, 0, outside(id, 1000+id), outside(ones...))).err)
			}
		}
		info, err := s.Tables.list[0].means.Info()
		require.NoError(t, err)
		rows := s.Statistics().Tables[0].Rows
		if capped {
			assert.LessOrEqual(t, rows, int64(8))
			assert.LessOrEqual(t, info.Rows, int64(8))
		} else {
			assert.EqualValues(t, 100, rows)
			assert.Equal(t, rows, info.Rows)
		}
		// A row that is there has its mean.
		require.NoError(t, (<-push(s, 0, 0, outside[int64](99, 1099), outside(ones...))).err)
		means := memory[float32](dim)
		r := tableRows{served: s.Tables.list[0], ids: outside[int64](99), values: bytesOf(means), dtype: s.Tables.list[0].table.RowType()}
		require.NoError(t, s.Tables.list[0].pullMeans(r.batch()))
		assert.Greater(t, means[0], float32(0.1))
	}
}
