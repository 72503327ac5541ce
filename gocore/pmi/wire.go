package pmi

import (
	"strings"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// The longest names, keys and values, with their ends, as MPI is told them. MPICH before 4.1 reads lines
// of 1024 characters. It therefore takes values of (1024 - maxName - maxKey - 30) only.
const (
	maxName  = 64
	maxKey   = 64
	maxValue = 1024
)

// command is a line that MPI has sent: cmd=NAME KEY=VALUE ...
type command struct {
	name string
	args map[string]string // the values as they were sent: a backslash is not taken away
}

// parse reads a line without its end.
func parse(line string) (command, error) {
	c := command{args: map[string]string{}}
	for _, word := range words(line) {
		key, value, _ := strings.Cut(word, "=")
		if key == "cmd" || key == "mcmd" {
			c.name = value
		} else {
			c.args[key] = value
		}
	}
	if c.name == "" {
		return c, status.New(status.Launcher, "MPI sent %.60q, which is no command of PMI-1 (cmd=NAME ...)", line)
	}
	return c, nil
}

// words cuts a line at its spaces. A space after a backslash belongs to the word.
func words(line string) (all []string) {
	start := 0
	for i := 0; i <= len(line); i++ {
		switch {
		case i < len(line) && line[i] == '\\':
			i++
		case i >= len(line) || line[i] == ' ':
			if i > start {
				all = append(all, line[start:min(i, len(line))])
			}
			start = i + 1
		}
	}
	if start < len(line) { // the line ends with a backslash
		all = append(all, line[start:])
	}
	return all
}

// oneWord tells whether text is a word.
func oneWord(text string) bool {
	all := words(text)
	return len(all) == 1 && all[0] == text
}

// check returns an error if a key or a value would not arrive at MPI as one word of a line.
func check(key, value string) error {
	if key != "" && len(key) < maxKey && !strings.ContainsAny(key, " =\n\x00") &&
		len(value) < maxValue && oneWord(value) && !strings.ContainsAny(value, "\n\x00") {
		return nil
	}
	return status.New(status.Launcher, "%.80q=%.80q (%d characters) is no key with a value of PMI-1", key, value, len(value))
}

// found is the answer to a get.
func found(value string) string { return "cmd=get_result rc=0 value=" + value + "\n" }
