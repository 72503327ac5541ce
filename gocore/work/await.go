package work

import "time"

// Await waits until over is closed or has a value, which it takes. It returns ErrDeadline if the deadline passes
// first (the zero time: no deadline), or the error of interrupt (nil: no interrupt). It drives no engine: it is for
// what another thread ends.
func Await(over <-chan struct{}, deadline time.Time, interrupt Interrupt) error {
	var late, tick <-chan time.Time
	if !deadline.IsZero() {
		t := time.NewTimer(time.Until(deadline))
		defer t.Stop()
		late = t.C
	}
	if interrupt != nil {
		t := time.NewTicker(InterruptEvery)
		defer t.Stop()
		tick = t.C
	}
	for {
		select {
		case <-over:
			return nil
		case <-late:
			return ErrDeadline
		case <-tick:
			if err := interrupt(); err != nil {
				return err
			}
		}
	}
}
