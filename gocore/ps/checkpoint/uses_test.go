package checkpoint

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A sink with room for some rows gets those of the last uses, from whatever parts they come.
func TestASinkWithACapGetsTheLastUses(t *testing.T) {
	for _, parts := range []int{1, 2, 5} {
		m := commit(t, t.TempDir(), 142, parts, 0)
		assert.Equal(t, stampedFormat, m.Format)
		var all []use
		of := sink(t, 142).of["visits"]
		for _, id := range of.ids {
			all = append(all, use{of.stampOf(id), id})
		}
		slices.SortFunc(all, use.compare)
		for most := int64(1); most <= int64(len(all))+1; most++ {
			g := sink(t, 142)
			g.cap = most
			require.NoError(t, m.Restore(context.Background(), nil, g))
			got := g.ids["visits"]
			slices.Sort(got)
			var want []int64
			for _, u := range all[max(0, int64(len(all))-most):] {
				want = append(want, u.id)
			}
			slices.Sort(want)
			require.Equal(t, want, got, "%d of %d parts", most, parts)
			require.Len(t, g.ids["user/emb"], 33)
		}
		// The rows of one of as many servers: its part says how many there are.
		g := sink(t, 142)
		g.own, g.cap = 1, m.Parts[0].Rows[len(m.Tables)-1]
		mine := func(_ string, id int64) bool { return (id+64)%int64(parts) == 0 }
		require.NoError(t, m.Restore(context.Background(), mine, g))
		require.Len(t, g.ids["visits"], int(g.cap))
		require.Equal(t, [][]byte{sketchOf(0)}, g.sketches)
	}
}

// As many servers as have written take their own sketches, others all of them.
func TestWhoGetsWhichSketches(t *testing.T) {
	m := commit(t, t.TempDir(), 142, 3, 0)
	for own, want := range map[int64][][]byte{0: {sketchOf(0), sketchOf(1), sketchOf(2)}, 1: {sketchOf(0)}, 3: {sketchOf(2)}} {
		g := sink(t, 142)
		g.own = own
		require.NoError(t, m.Restore(context.Background(), nil, g))
		assert.Equal(t, want, g.sketches)
	}
	s := IntoTables(nil, nil, true, 1, 3)
	assert.Equal(t, 1, s.Own(3))
	assert.Equal(t, -1, s.Own(2))
}

// A cut without stamps has the format of before, and says what an older version reads.
func TestTheFormatsOfCuts(t *testing.T) {
	assert.Equal(t, plainFormat, commit(t, t.TempDir(), 42, 1, 0).Format)
	m := commit(t, t.TempDir(), 142, 1, 0)
	for _, wrong := range []int{0, plainFormat, 3} {
		m.Format = wrong
		text, err := m.encode()
		require.NoError(t, err)
		_, err = decode(text)
		require.ErrorContains(t, err, "format")
	}
}
