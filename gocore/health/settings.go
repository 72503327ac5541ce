package health

import (
	"cmp"
	"time"

	"github.com/paddlempi/paddlempi/gocore/liveness"
)

// Settings is what environment variables say about the watch over the ranks.
type Settings struct {
	DeadAfter   time.Duration // how long a host may be silent; 0: ranks of other nodes are not watched
	ReportAfter time.Duration // how long a wait lasts before it is reported; 0: none is
}

// ReadSettings reads the settings, and checks those that the recorder reads when it starts.
func ReadSettings() (s Settings, err error) {
	var first, second error
	s.DeadAfter, first = liveness.After()
	_, second = traceSignal()
	s.ReportAfter, err = reportAfter()
	return s, cmp.Or(first, second, err)
}
