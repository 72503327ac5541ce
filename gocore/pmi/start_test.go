package pmi

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/status"
)

func TestAnMPIInitThatDoesNotReturn(t *testing.T) {
	never := func() error { select {} }
	a := attempt{job: Job{Rank: 2}, timeout: 100 * time.Millisecond}
	err := a.await(mpi.Info{Path: "/m/libmpi.so"}, never, nil, nil)
	assert.Equal(t, status.Timeout, status.CodeOf(err))
	assert.ErrorContains(t, err, "rank 2: MPI_Init of /m/libmpi.so has not returned within 100ms")

	interrupted := status.New(status.Interrupted, "Ctrl-C")
	a = attempt{job: Job{Interrupt: func() error { return interrupted }}}
	assert.Equal(t, interrupted, a.await(mpi.Info{}, never, nil, nil))
}

func TestTheCallerOfOpenGathers(t *testing.T) {
	barriers := make(chan barrier)
	a := attempt{gather: func(mine []byte) ([][]byte, error) { return [][]byte{mine}, nil }}
	start := func() error {
		b := barrier{[]byte("x"), make(chan [][]byte)}
		barriers <- b
		assert.Equal(t, [][]byte{[]byte("x")}, <-b.all)
		return nil
	}
	assert.NoError(t, a.await(mpi.Info{}, start, barriers, nil))
	gone := errors.New("the store is gone")
	a.gather = func([]byte) ([][]byte, error) { return nil, gone }
	assert.Equal(t, gone, a.await(mpi.Info{}, start, barriers, nil))
}

func TestHowTheRanksStand(t *testing.T) {
	ok := standing{MPI: "MPICH Version: 5.0.2", Name: "paddlempi_1"}
	runs := standing{MPI: ok.MPI, Runs: true}
	for text, all := range map[string][]standing{
		"": {ok, {MPI: ok.MPI, Name: "of another rank"}},
		"rank 1 cannot start MPI: no MPI library found":           {ok, {Error: "no MPI library found"}, ok},
		"ranks [1 3] have \"Intel MPI\"":                          {ok, {MPI: "Intel MPI"}, ok, {MPI: "Intel MPI"}},
		"in the process of rank 1, and not in that of rank 0":     {ok, runs},
		"in the process of rank 0, and not in that of rank 2":     {runs, runs, ok},
		"rank 0 has named the job \"a\\ncmd=abort\"":              {{MPI: "m", Name: "a\ncmd=abort"}},
		"rank 0 has named the job \"\"":                           {{MPI: "m"}},
		"rank 0 has named the job \"xxxxxxxxxxxxxxxxxxxxxxxxxxxx": {{MPI: "m", Name: strings.Repeat("x", 99)}},
	} {
		err := compare(all)
		if text == "" {
			assert.NoError(t, err)
			continue
		}
		assert.Equal(t, status.Launcher, status.CodeOf(err), text)
		assert.ErrorContains(t, err, text)
	}
	assert.NoError(t, compare([]standing{runs, runs}))
}

func TestWhatIsNoStanding(t *testing.T) {
	ok, err := json.Marshal(standing{MPI: "m", Name: "n"})
	require.NoError(t, err)
	for text, rows := range map[string][][]byte{
		"rank 1 has told the others no standing": {ok, []byte("{")},
		"1 ranks of 2 want to start MPI":         {ok},
	} {
		a := attempt{job: Job{Node: []int{0, 1}}, gather: func([]byte) ([][]byte, error) { return rows, nil }}
		_, err := a.agree(standing{})
		assert.Equal(t, status.Launcher, status.CodeOf(err))
		assert.ErrorContains(t, err, text)
	}
}
