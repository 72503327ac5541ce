// Package method has what the methods of pmpi_control have in common: their form, and how they read
// requests.
package method

import (
	"encoding/json"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Func is a method. Requests and replies are JSON objects; what Func returns is made into one.
type Func = func(request []byte, interrupt work.Interrupt) (any, error)

// Parse reads a request, a JSON object. name is the method's, for the error.
func Parse(name string, request []byte, into any) error {
	if err := json.Unmarshal(request, into); err != nil {
		return status.New(status.Argument, "control %s: the request is not what it takes: %v", name, err)
	}
	return nil
}

// Seconds turns a number of seconds into a duration. The default is 30 minutes.
func Seconds(s *float64) time.Duration { return SecondsOr(s, 30*time.Minute) }

// SecondsOr is Seconds with another default.
func SecondsOr(s *float64, otherwise time.Duration) time.Duration {
	switch {
	case s == nil:
		return otherwise
	case *s >= work.Longest.Seconds():
		return work.Longest
	case !(*s > 0): // also NaN
		return 0
	}
	return time.Duration(*s * float64(time.Second))
}
