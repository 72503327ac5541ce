package messages

import (
	"fmt"
	"time"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// probe waits for a message and does not receive it.
func (g *Messages) probe(d *op.Desc, m *message) (r work.Result, err error) {
	if err := g.checkAddress(d.Code, d.Peer, d.Tag, true); err != nil {
		return r, err
	}
	if d.Flags&op.FlagAsync != 0 {
		return r, status.New(status.Argument, "probe: it waits inside the call; there is no asynchronous form")
	}
	comm, err := g.endpoint()
	if err != nil {
		return r, err
	}
	var looks work.Looks
	var peers []int
	if d.Peer >= 0 {
		peers = []int{g.Ranks[d.Peer]}
	}
	wait := g.Wait
	if comm.Pace() == work.Rung {
		wait = g.WaitRung
	}
	waitErr := wait(func() bool {
		st, found, e := comm.Probe(d.Peer, d.Tag)
		found = found && !g.waiting.isAwaited(st.Source, st.Tag)
		if found {
			r = work.Result{Source: st.Source, Tag: st.Tag, Bytes: st.Bytes}
		}
		if err = e; err == nil && !found {
			if looks.Due(g.Env.Engine) {
				now := time.Now()
				if m.peerLeft(d.Peer, now) {
					err = g.endedError(describeProbe(d), d.Peer)
				}
				if m.slow.Due(&g.Env.Reports, now, time.Time{}) {
					g.report(&m.slow, describeProbe(d), peers, m.trace)
				}
			}
		}
		return found || err != nil
	}, m.deadline)
	if err == nil && g.Ending() != nil && waitErr != nil {
		return r, g.EndingError(describeProbe(d))
	}
	if waitErr == work.ErrDeadline {
		late := status.New(status.Timeout, "%s timed out after %v", g.Of(describeProbe(d)), m.timeout)
		if d.Peer >= 0 {
			late.Ranks = []int{g.Ranks[d.Peer]}
		}
		return r, late
	}
	if waitErr != nil {
		return r, waitErr
	}
	if status.CodeOf(err) == status.ProcFailed {
		g.AwaitName(err)
		err = g.DeathError(describeProbe(d), g.Dead(), err.Error(), err)
	}
	return r, err
}

func describeProbe(d *op.Desc) string {
	from, tag := "any rank", "any tag"
	if d.Peer >= 0 {
		from = fmt.Sprintf("rank %d", d.Peer)
	}
	if d.Tag >= 0 {
		tag = fmt.Sprintf("tag %d", d.Tag)
	}
	return fmt.Sprintf("probe of %s of the group (%s)", from, tag)
}
