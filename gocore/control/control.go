// Package control has the methods of pmpi_control, each in a file that is named after what it
// controls. Requests and replies are JSON objects. Control is for what happens a few times in a job,
// never for operations.
package control

import (
	"encoding/json"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/registry"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// methods are the methods by name, but for those of tables and parameter servers (gocore/ps/job).
var methods = map[string]handler{
	"init":              with(initialise),
	"destroy":           destroy,
	"revoke":            with(revoke),
	"reform":            with(reform),
	"new_group":         withGroup(newGroup),
	"cartesian":         withGroup(cartesian),
	"halo":              withGroup(halo),
	"halo_boxes":        withGroup(haloBoxes),
	"graph":             withGroup(graph),
	"destroy_group":     withGroup(destroyGroup),
	"group_info":        withGroup(groupInfo),
	"set_timeout":       withGroup(setTimeout),
	"spawn":             withGroup(spawn),
	"get_parent":        withGroup(getParent),
	"accept":            withGroup(accept),
	"connect":           withGroup(connect),
	"disconnect":        with(disconnect),
	"monitored_barrier": withGroup(monitoredBarrier),
	"info":              with(info),
	"threads":           with(setThreads),
	"time_copies":       with(timeCopies),
	"cuda":              with(cuda),
	"cuda_trial":        with(cudaTrial),
	"doctor_cuda":       doctorCUDA,
	"launcher":          with(launcher),
	"addresses":         with(addresses),
	"abort":             with(abort),
	"heap_has":          with(heapHas),
	"heap_adopt":        with(heapAdopt),
	"heap_disown":       with(heapDisown),
	"file_open":         with(fileOpen),
	"file_write":        fileMove("file_write", (*mpi.File).Write),
	"file_read":         fileMove("file_read", (*mpi.File).Read),
	"file_sync":         with(fileSync),
	"file_close":        with(fileClose),
	"trace_dump":        with(traceDump),
	"trace_record":      with(traceRecord),
	"trace_recorded":    with(traceRecorded),
	"trace_write":       with(traceWrite),
	"trace_now":         with(traceNow),
	"window_info":       with(windowInfo),
	"window_in_use":     with(windowInUse),
	"window_map":        with(windowMap),
	"window_unmap":      with(windowUnmap),
}

// Call calls a method and returns its reply.
func Call(name string, request []byte, interrupt work.Interrupt) ([]byte, error) {
	if len(request) == 0 {
		request = []byte("{}")
	}
	var reply any
	var err error
	if f, ok := methods[name]; ok {
		reply, err = f(name, request, interrupt)
	} else if f, ok := registry.Servers.Methods()[name]; ok {
		reply, err = f(request, interrupt)
	} else {
		err = status.New(status.Argument, "control: there is no method %q", name)
	}
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(reply)
	if err != nil {
		return nil, status.New(status.Panic, "control %s: %v", name, err)
	}
	return b, nil
}
