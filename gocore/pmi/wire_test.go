package pmi

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/status"
)

func TestCommandsAreRead(t *testing.T) {
	c, err := parse(`cmd=put kvsname=a key=bc-0 value=mpi#0200\ 8241=$`)
	require.NoError(t, err)
	assert.Equal(t, command{"put", map[string]string{"kvsname": "a", "key": "bc-0", "value": `mpi#0200\ 8241=$`}}, c)
	c, err = parse("cmd=barrier_in ")
	require.NoError(t, err)
	assert.Equal(t, "barrier_in", c.name)
	for _, line := range []string{"", "    ", "put key=1", "cmd=", "    42cmd=fullinit;pmijobid=1;", "\x00"} {
		_, err := parse(line)
		assert.Equal(t, status.Launcher, status.CodeOf(err), "%q", line)
	}
}

func TestPairsThatWouldBreakALine(t *testing.T) {
	assert.NoError(t, check("bc-0", "mpi#0200$"))
	assert.NoError(t, check("k", `a\ b`))
	for _, pair := range [][2]string{
		{"", "v"}, {"a b", "v"}, {"a=b", "v"}, {"a\n", "v"}, {strings.Repeat("k", maxKey), "v"},
		{"k", ""}, {"k", "a b"}, {"k", "a\ncmd=abort"}, {"k", "a\\\ncmd=abort"}, {"k", " a"}, {"k", "a\x00"}, {"k", strings.Repeat("v", maxValue)},
	} {
		assert.Error(t, check(pair[0], pair[1]), "%q", pair)
	}
}

func TestPairsOfAnotherRank(t *testing.T) {
	got := map[string]string{}
	put := func(key, value string) { got[key] = value }
	all := appendPair(appendPair(nil, "a", "1"), "b", "2")
	require.NoError(t, readPairs(all, put))
	assert.Equal(t, map[string]string{"a": "1", "b": "2"}, got)
	for n := 1; n < len(all); n++ {
		if n != len(all)/2 {
			assert.ErrorContains(t, readPairs(all[:n], put), "ends within a pair")
		}
	}
	assert.ErrorContains(t, readPairs(appendPair(nil, "a", "1\ncmd=abort"), put), "no key with a value")
	assert.ErrorContains(t, readPairs(make([]byte, maxPairs+1), put), "at most 1048576")
}

func FuzzPairsOfAnotherRank(f *testing.F) {
	f.Add(appendPair(nil, "key", "value"))
	f.Add([]byte{255, 255, 255, 255, 0})
	f.Fuzz(func(t *testing.T, bytes []byte) {
		_ = readPairs(bytes, func(key, value string) {
			if strings.ContainsAny(key+value, "\n\x00") || len(key) >= maxKey || len(value) >= maxValue {
				t.Errorf("%q=%q was taken", key, value)
			}
		})
	})
}

// Whatever MPI sends, it gets one line for a command, or the start fails.
func FuzzWhatMPISends(f *testing.F) {
	f.Add("cmd=init pmi_version=1 pmi_subversion=1\ncmd=get_maxes\ncmd=put key=a value=b\ncmd=barrier_in\ncmd=get key=a\ncmd=finalize\n")
	f.Add("mcmd=spawn\nnprocs=1\nendcmd\ncmd=abort exitcode=-1\n")
	f.Add("cmd=put key=a value=b\\")
	f.Fuzz(func(t *testing.T, sent string) {
		s, _ := alone()
		var answers strings.Builder
		err := s.talk(strings.NewReader(sent), &answers)
		if err == nil && !strings.Contains(sent, "finalize") {
			t.Errorf("%q ended without an error", sent)
		}
		if lines := strings.Count(answers.String(), "\n"); lines > strings.Count(sent, "\n") {
			t.Errorf("%d lines answer %q: %q", lines, sent, answers.String())
		}
		for line := range strings.Lines(answers.String()) {
			if !strings.HasPrefix(line, "cmd=") {
				t.Errorf("%q is no answer", line)
			}
		}
	})
}
