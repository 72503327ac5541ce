package pmi

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/dl"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// alone is a server for the only rank of a job, without a socket, and the statuses with which it has ended
// the process.
func alone() (s *server, ended *[]int) {
	ended = new([]int)
	return &server{size: 1, name: "job", pairs: map[string]string{}, failed: make(chan error, 1),
		exit:   func(code int) { *ended = append(*ended, code) },
		gather: func(mine []byte) ([][]byte, error) { return [][]byte{mine}, nil }}, ended
}

// say sends lines to s and returns its answers.
func say(s *server, lines ...string) (string, error) {
	var answers strings.Builder
	err := s.talk(strings.NewReader(strings.Join(lines, "\n")+"\n"), &answers)
	return answers.String(), err
}

func TestAnswers(t *testing.T) {
	s, _ := alone()
	answers, err := say(s, "cmd=init pmi_version=1 pmi_subversion=1", "cmd=get_maxes", "cmd=get_appnum", "cmd=get_my_kvsname", "cmd=get_universe_size",
		"cmd=put kvsname=job key=a value=1", "cmd=barrier_in", "cmd=get kvsname=job key=a", "cmd=get kvsname=job key=b",
		"mcmd=spawn", "nprocs=2", "endcmd", "cmd=publish_name service=a port=b", "cmd=unpublish_name service=a", "cmd=lookup_name service=a", "cmd=finalize")
	require.NoError(t, err)
	assert.Equal(t, []string{"cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1", "cmd=maxes rc=0 kvsname_max=64 keylen_max=64 vallen_max=1024",
		"cmd=appnum rc=0 appnum=0", "cmd=my_kvsname rc=0 kvsname=job", "cmd=universe_size rc=0 size=1",
		"cmd=put_result rc=0", "cmd=barrier_out rc=0", "cmd=get_result rc=0 value=1", "cmd=get_result rc=-1 msg=key_not_found value=unknown",
		"cmd=spawn_result rc=-1 msg=not_without_mpirun", "cmd=publish_result rc=-1 msg=not_without_mpirun", "cmd=unpublish_result rc=-1 msg=not_without_mpirun",
		"cmd=lookup_result rc=-1 msg=not_without_mpirun", "cmd=finalize_ack rc=0", ""}, strings.Split(answers, "\n"))
}

func TestWhatIsNoPMI1FailsTheStart(t *testing.T) {
	for line, text := range map[string]string{
		"cmd=init pmi_version=2 pmi_subversion=0":              `version "2" of PMI`,
		"cmd=getbyidx idx=0":                                   "cmd=getbyidx, which is no command",
		"cmd=put key=a":                                        `"a"="" (0 characters) is no key with a value`,
		"cmd=put key=a value=" + strings.Repeat("v", maxValue): "(1024 characters)",
		strings.Repeat("x", 2*maxLine):                         "a line of more than 4096 characters",
		"cmd=get key=a":                                        "MPI has closed the socket",
	} {
		s, _ := alone()
		s.rank = 3
		_, err := say(s, line)
		assert.Equal(t, status.Launcher, status.CodeOf(err), line)
		assert.ErrorContains(t, err, "rank 3", line)
		assert.ErrorContains(t, err, text, line)
	}
}

func TestBarriers(t *testing.T) {
	s, _ := alone()
	var given [][]byte
	s.size = 2
	s.gather = func(mine []byte) ([][]byte, error) {
		given = append(given, mine)
		return [][]byte{mine, appendPair(nil, "theirs", "2")}, nil
	}
	answers, err := say(s, "cmd=put key=mine value=1", "cmd=barrier_in", "cmd=get key=theirs", "cmd=barrier_in", "cmd=finalize")
	require.NoError(t, err)
	assert.Contains(t, answers, "cmd=get_result rc=0 value=2\n")
	assert.Equal(t, [][]byte{appendPair(nil, "mine", "1"), nil}, given, "each pair is given once")

	// After MPI_Init nobody is asked, and nothing fails the start.
	s.started.Store(true)
	s.gather = func([]byte) ([][]byte, error) { return nil, errors.New("too late") }
	answers, err = say(s, "cmd=put key=late value=3", "cmd=barrier_in", "cmd=get key=late", "cmd=what", "cmd=put key=late", "cmd=finalize")
	require.NoError(t, err)
	assert.Equal(t, "cmd=put_result rc=0\ncmd=barrier_out rc=0\ncmd=get_result rc=0 value=3\ncmd=what_result rc=-1\ncmd=put_result rc=-1\ncmd=finalize_ack rc=0\n", answers)
}

func TestABarrierThatFails(t *testing.T) {
	for text, gather := range map[string]Gather{
		"rank 4 cannot start MPI: 1 ranks of 2 were":            func(mine []byte) ([][]byte, error) { return [][]byte{mine}, nil },
		"rank 4 cannot start MPI: rank 1: what it gave for MPI": func(mine []byte) ([][]byte, error) { return [][]byte{mine, {1, 2, 3}}, nil },
		"rank 4 cannot start MPI: rank 0 has died": func([]byte) ([][]byte, error) {
			return nil, status.New(status.PeerDied, "rank 0 has died").WithRanks(0)
		},
	} {
		s, _ := alone()
		s.rank, s.size, s.gather = 4, 2, gather
		_, err := say(s, "cmd=barrier_in")
		assert.ErrorContains(t, err, text)
		var e *status.Error
		if strings.Contains(text, "died") && assert.ErrorAs(t, err, &e) {
			assert.Equal(t, []any{status.PeerDied, []int{0}}, []any{e.Code, e.Ranks})
		}
	}
}

func TestAbort(t *testing.T) {
	s, ended := alone()
	_, _ = say(s, "cmd=abort exitcode=7", "cmd=abort exitcode=-1", "cmd=abort")
	assert.Equal(t, []int{7, 255, 1}, *ended)
}

func TestVariablesAreThereDuringTheStartOnly(t *testing.T) {
	for name, value := range map[string]string{"PMI_JOBID": "srun's", "PMIX_NAMESPACE": "srun's", "I_MPI_PMI_LIBRARY": "/usr/lib/libpmi2.so", "PMI_RANK": "17"} {
		dl.Setenv(name, value)
		defer dl.Unsetenv(name)
	}
	get := func(names ...string) (values []string) {
		for _, name := range names {
			value, set := dl.Getenv(name)
			if !set {
				value = "-"
			}
			values = append(values, value)
		}
		return values
	}
	names := []string{"PMI_FD", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID", "PMIX_NAMESPACE", "I_MPI_PMI_LIBRARY", "I_MPI_PMI"}
	takeBack := tell(&server{fd: 42}, Job{Rank: 2, Node: []int{0, 1, 1}})
	assert.Equal(t, []string{"42", "2", "3", "1", "2", "-", "-", "-", "pmi1"}, get(names...))
	takeBack()
	assert.Equal(t, []string{"-", "-", "-", "-", "-", "-", "-", "/usr/lib/libpmi2.so", "-"}, get(names...))
}
