package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// course is a job that saves into a directory and goes back, as package job does it.
type course struct {
	t    testing.TB
	dir  string
	keep int
	from *Manifest
	told string // what the next cut has besides rows
}

func (c *course) save(step int64) error {
	c.t.Helper()
	behind, err := Abandoned(c.dir, c.from)
	require.NoError(c.t, err)
	again := slices.ContainsFunc(behind, func(m Label) bool { return m.Step == step })
	part, err := WritePart(context.Background(), c.dir, step, 0, 1, sources(step, 0, 1)[2:3], again, nil)
	if err == nil {
		err = Commit(context.Background(), c.dir, step, []ServerPart{part}, []byte(c.told), c.from)
	}
	if err != nil {
		return err
	}
	c.from, err = Open(c.dir, step)
	require.NoError(c.t, err)
	old, err := Superfluous(listed(c.t, c.dir), step, c.keep, reading(c.dir))
	require.NoError(c.t, err)
	Remove(c.dir, old)
	return nil
}

func (c *course) saves(steps ...int64) {
	c.t.Helper()
	for _, step := range steps {
		require.NoError(c.t, c.save(step))
	}
}

func (c *course) restore(step int64) {
	c.t.Helper()
	var err error
	c.from, err = Open(c.dir, step)
	require.NoError(c.t, err)
}

// newest returns the step that a job would take which begins now.
func (c *course) newest() int64 {
	c.t.Helper()
	m, err := newest(c.dir)
	require.NoError(c.t, err)
	return m.Step
}

func (c *course) left() []int64 {
	c.t.Helper()
	steps, err := complete(c.dir)
	require.NoError(c.t, err)
	return steps
}

func TestNewCutsSupersedeThoseBehindWhichAJobWentBack(t *testing.T) {
	for keep, left := range map[int][]int64{1: {13}, 2: {12, 13}, 3: {11, 12, 13}, 4: {10, 11, 12, 13}, 9: {10, 11, 12, 13, 20, 30}, 0: {10, 11, 12, 13, 20, 30}} {
		c := &course{t: t, dir: t.TempDir()}
		c.saves(10, 20, 30)
		c.keep = keep
		c.restore(10)
		assert.EqualValues(t, 30, c.newest(), "nothing was written since")
		c.saves(11)
		assert.EqualValues(t, 11, c.newest())
		c.from = nil // a job that begins, and takes the newest
		c.restore(c.newest())
		c.saves(12, 13)
		assert.EqualValues(t, 13, c.newest())
		assert.Equal(t, left, c.left(), "keep=%d", keep)
	}
}

func TestACutThatIsSupersededIsWrittenAgain(t *testing.T) {
	c := &course{t: t, dir: t.TempDir(), told: "first"}
	c.saves(10, 20, 30)
	c.restore(10)
	c.told = "second"
	c.saves(20)
	assert.EqualValues(t, 20, c.newest())
	assert.Equal(t, "second", string(c.from.Extra))
	assert.ErrorContains(t, c.save(20), "cuts are not overwritten", "it is of this course")
	assert.ErrorContains(t, c.save(10), "cuts are not overwritten")
	c.saves(25, 30)
	assert.EqualValues(t, 30, c.newest())
	assert.Equal(t, "second", string(c.from.Extra))
	files, err := os.ReadDir(c.from.Folder)
	require.NoError(t, err)
	assert.Len(t, files, 2, "what was of the first one is gone")
	// Another job knows none of it, and overwrites nothing.
	other := &course{t: t, dir: c.dir}
	assert.ErrorContains(t, other.save(25), "cuts are not overwritten")
	assert.NoError(t, other.save(40))
}

func TestAJobMayGoForwardAgain(t *testing.T) {
	c := &course{t: t, dir: t.TempDir()}
	c.saves(10, 20, 30)
	c.restore(10)
	c.saves(11, 12)
	c.restore(30)
	assert.EqualValues(t, 12, c.newest())
	c.keep = 3
	c.saves(31)
	assert.EqualValues(t, 31, c.newest())
	assert.Equal(t, []int64{20, 30, 31}, c.left(), "10 is older, and 11 and 12 are behind")
}

func TestADamagedCutOfTheNewCourse(t *testing.T) {
	c := &course{t: t, dir: t.TempDir()}
	c.saves(10, 20, 30)
	c.restore(10)
	c.saves(11)
	require.NoError(t, os.Truncate(filepath.Join(c.from.Folder, c.from.Parts[0].Name), 7))
	assert.EqualValues(t, 10, c.newest(), "not one of the course that was left")
	// Who looks for the newest one is not told of what is behind, and it stays.
	c.restore(10)
	c.keep = 2
	c.saves(12)
	assert.Equal(t, []int64{10, 11, 12}, c.left())
	step, skipped, err := NewestWhole(c.dir, listed(t, c.dir), func(step int64) (error, error) {
		return map[int64]error{12: errors.New("damaged")}[step], nil
	})
	require.NoError(t, err)
	assert.EqualValues(t, 10, step)
	assert.Equal(t, []Listed{{Step: 12, Why: "damaged"}}, skipped)
}

// TestAnyCourse saves, goes back and begins anew at random. The newest cut is the last one that was
// written, unless the job has written none since it began anew: and every cut that it comes from
// is alive.
func TestAnyCourse(t *testing.T) {
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 5))
		c := &course{t: t, dir: t.TempDir(), keep: r.IntN(4)}
		step, written := int64(0), 0
		for range 25 {
			switch left := c.left(); {
			case len(left) > 0 && r.IntN(4) == 0:
				step = left[r.IntN(len(left))]
				c.restore(step)
			case len(left) > 0 && r.IntN(4) == 0:
				step = c.newest()
				c.restore(step)
			default:
				step += 1 + r.Int64N(3)
				c.told = strconv.Itoa(written)
				written++
				require.NoError(t, c.save(step), "seed %d", seed)
				require.Equal(t, step, c.newest(), "seed %d: %v", seed, c.left())
				require.Equal(t, c.told, string(c.from.Extra))
				if c.keep > 0 {
					alive := slices.DeleteFunc(listed(t, c.dir), func(one Listed) bool { return one.Superseded })
					require.LessOrEqual(t, len(alive), c.keep, fmt.Sprint("seed ", seed))
				}
			}
		}
	}
}
