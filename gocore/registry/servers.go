package registry

import (
	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/ps/job"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Servers has the tables of this process, and its part in a job with parameter servers.
var Servers = job.New(job.Core{
	Healthy: Healthy,
	Group: func(id int64) (*group.Group, work.Interrupt, error) {
		g, err := Group(id)
		if err != nil {
			return nil, nil, err
		}
		return g, g.Env.Interrupt, nil
	},
	AtEnd:  Closing.Add,
	Poison: Poison,
})
