package liveness

import (
	"strconv"
	"time"

	"github.com/paddlempi/paddlempi/gocore/dl"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Variable is the environment variable that says after how many seconds a host that does not answer
// counts as dead; with 0 there is no Liveness.
const Variable = "PADDLEMPI_DEAD_AFTER"

const (
	defaultAfter = 5 * time.Second
	leastAfter   = 2 * time.Second // the kernel's keepalive counts whole seconds
	mostAfter    = 24 * time.Hour
)

// After reads Variable.
func After() (time.Duration, error) {
	return Seconds(Variable, defaultAfter, leastAfter, mostAfter)
}

// Seconds reads an environment variable that says a time in seconds: 0, or one from least to most. If it is not set, the
// time is unset.
func Seconds(variable string, unset, least, most time.Duration) (time.Duration, error) {
	text, _ := dl.Getenv(variable)
	if text == "" {
		return unset, nil
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if after := seconds * float64(time.Second); err == nil && (seconds == 0 || after >= float64(least) && after <= float64(most)) {
		return time.Duration(after), nil
	}
	return 0, status.New(status.Argument, "init: %s=%s is neither 0 nor a number of seconds from %v to %v", variable, text, least.Seconds(), most.Seconds())
}

// limits are the times by which a silent host counts as dead.
type limits struct {
	probe   int           // seconds of silence before the kernel's first probe, and between two probes
	silence time.Duration // after which the kernel gives a connection up
	dial    time.Duration // that a connection may take to come about
}

// limitsOf leaves a fifth of the time for the news to travel. The kernel looks once a probe, so silence
// is a number of probes. With 5 s, the probes after 1, 2 and 3 s remain unanswered, and the kernel gives
// the connection up after 4 s.
func limitsOf(after time.Duration) limits {
	probe := max(1, int(after/(5*time.Second)))
	length := time.Duration(probe) * time.Second
	return limits{probe: probe, silence: max(2, after*4/5/length) * length, dial: max(time.Second, after*2/5)}
}
