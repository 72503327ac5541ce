package admin

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// Limits of what a call says.
const (
	maxRank   = 1 << 24
	maxName   = 255
	maxDim    = 1 << 24
	maxCount  = 1 << 48
	maxDims   = 64 // as tensors have at most
	maxConfig = 64 << 10
	maxPath   = 4095
)

// These functions check what a client says, on the server before the Backend sees it and on the
// client before it is sent.

func (m Member) check() error {
	if err := checkRank("register", "rank", m.Rank); err != nil {
		return err
	}
	if !isRole(m.Role) {
		return status.New(status.Argument, "register: rank %d: role=%s is none of %q, nor several of them", m.Rank, quoted(m.Role), roles)
	}
	if m.PID <= 0 || m.PID > math.MaxInt32 {
		return status.New(status.Argument, "register: rank %d: pid=%d is no process id", m.Rank, m.PID)
	}
	return checkName("register", "host", m.Host)
}

// isRole tells whether a text has roles, each once, in their order.
func isRole(text string) bool {
	from := 0
	for one := range strings.SplitSeq(text, ",") {
		i := slices.Index(roles[from:], one)
		if i < 0 {
			return false
		}
		from += i + 1
	}
	return true
}

func (m Meta) check(from int) error {
	if err := checkRank("declare", "from", from); err != nil {
		return err
	}
	if err := checkName("declare", "name", m.Name); err != nil {
		return err
	}
	noun := "table"
	if m.Kind == KV {
		noun = KV
	}
	wrong := func(format string, args ...any) error {
		return status.New(status.Argument, "declare: %s %q, rank %d: "+format, append([]any{noun, m.Name, from}, args...)...)
	}
	switch {
	case m.Kind != Sparse && m.Kind != Dense && m.Kind != KV:
		return wrong("kind=%s is none of %q, %q and %q", quoted(m.Kind), Sparse, Dense, KV)
	case m.Dim < 1 || m.Dim > maxDim:
		return wrong("dim=%d is not from 1 to %d", m.Dim, maxDim)
	case len(m.Config) > maxConfig:
		return wrong("config has %d bytes, more than %d", len(m.Config), maxConfig)
	case len(m.Config) > 0 && !json.Valid(m.Config):
		return wrong("config is no JSON")
	case m.Count < 0 || m.Count > maxCount:
		return wrong("count=%d is not from 0 to %d", m.Count, int64(maxCount))
	case len(m.Dims) > maxDims:
		return wrong("dims has %d numbers, more than %d", len(m.Dims), maxDims)
	case m.Kind != Dense && len(m.Dims) > 0:
		return wrong("dims=%v is for a dense parameter only", m.Dims)
	}
	elements := int64(1)
	for _, d := range m.Dims {
		if d < 0 || d > maxCount || d > 0 && elements > maxCount/d {
			return wrong("dims=%v is not the shape of a parameter with up to %d elements", m.Dims, int64(maxCount))
		}
		elements *= d
	}
	if m.Kind == Dense && elements != m.Count {
		return wrong("count=%d, but dims=%v has %d elements", m.Count, m.Dims, elements)
	}
	return nil
}

func checkRank(method, argument string, rank int) error {
	if rank < 0 || rank > maxRank {
		return status.New(status.Argument, "%s: %s=%d is no rank", method, argument, rank)
	}
	return nil
}

// checkName checks a word that is shown to users, and compared.
func checkName(method, argument, name string) error {
	switch {
	case name == "":
		return status.New(status.Argument, "%s: %s is empty", method, argument)
	case len(name) > maxName:
		return status.New(status.Argument, "%s: %s has %d bytes, more than %d", method, argument, len(name), maxName)
	case !printable(name):
		return status.New(status.Argument, "%s: %s=%s has characters that cannot be printed", method, argument, quoted(name))
	}
	return nil
}

func checkCheckpoint(from int, phase, dir string, step int64) error {
	if err := checkRank("checkpoint", "from", from); err != nil {
		return err
	}
	if err := checkName("checkpoint", "phase", phase); err != nil {
		return err
	}
	switch {
	case dir == "" || len(dir) > maxPath || strings.ContainsRune(dir, 0) || !utf8.ValidString(dir):
		return status.New(status.Argument, "checkpoint: dir=%s is no path of 1 to %d bytes in UTF-8", quoted(dir), maxPath)
	case step < 0:
		return status.New(status.Argument, "checkpoint: step=%d is below 0", step)
	}
	return nil
}

func checkRate(name string, rate float64) error {
	if err := checkName("set_learning_rate", "name", name); err != nil {
		return err
	}
	if !(rate >= 0) || math.IsInf(rate, 0) {
		return status.New(status.Argument, "set_learning_rate: table %q: rate=%v is not a finite number from 0", name, rate)
	}
	return nil
}

func printable(s string) bool {
	for _, r := range s {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

// quoted shows a value of another process in an error.
func quoted(s string) string {
	const most = 64
	if len(s) > most {
		s = s[:most] + "..."
	}
	return strings.ToValidUTF8(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s), "?")
}

// checkTasks checks what a call of a master says.
func checkTasks(what string, from int, name string) error {
	if err := checkRank(what, "from", from); err != nil {
		return err
	}
	return checkName(what, "name", name)
}
