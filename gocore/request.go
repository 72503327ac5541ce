package gocore

import (
	"encoding/json"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// What the control methods have in common: how they read requests.

// parse reads a request, a JSON object.
func parse(method string, request []byte, into any) error {
	if err := json.Unmarshal(request, into); err != nil {
		return status.New(status.Argument, "control %s: the request is not what it takes: %v", method, err)
	}
	return nil
}

// seconds turns a number of seconds into a duration. The default is 30 minutes.
func seconds(s *float64) time.Duration {
	switch {
	case s == nil:
		return 30 * time.Minute
	case *s >= work.Longest.Seconds():
		return work.Longest
	case !(*s > 0): // also NaN
		return 0
	}
	return time.Duration(*s * float64(time.Second))
}
