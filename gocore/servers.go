package gocore

import (
	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/ps/job"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// servers has the tables of this process, and its part in a job with parameter servers.
var servers = job.New(job.Core{
	Healthy: healthy,
	Group: func(id int64) (*group.Group, work.Interrupt, error) {
		g, err := groupOf(id)
		if err != nil {
			return nil, nil, err
		}
		w, err := initialWorld()
		if err != nil {
			return nil, nil, err
		}
		return g, w.env.Interrupt, nil
	},
	AtEnd:  closing.add,
	Poison: Poison,
})

// TableOp is one call of a table or a KV.
type TableOp = job.TableOp

// CallTables carries out one call on several tables, or of one KV. See job.Process.Call.
func CallTables(ops []TableOp) (count int64, err error) { return servers.Call(ops) }

// Told notes that the program gets an error of the core. See job.Process.Told.
func Told(err error) { servers.Told(err) }
