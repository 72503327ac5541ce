package health

import (
	"cmp"
	"time"

	"github.com/paddlempi/paddlempi/gocore/liveness"
)

// ReadSettings reads what environment variables say about the watch over the ranks, and checks what the recorder reads when it
// starts: how long a host may be silent (0: ranks of other nodes are not watched), and how long a wait lasts before it is
// reported (0: none is).
func ReadSettings() (dead, report time.Duration, _ error) {
	dead, first := liveness.After()
	_, second := traceSignal()
	report, third := reportAfter()
	return dead, report, cmp.Or(first, second, third)
}
