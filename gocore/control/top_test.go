package control

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/trace"
)

const topTaken = int64(1_700_000_000_000_000_000)

// topOperation is a collective of 1000 floats; times are milliseconds before topTaken, below 0: it did not come so far.
func topOperation(number, seq uint64, begun, arrived, ended int64) trace.OperationRecord {
	dtype, at := op.Float32.String(), func(ms int64) *int64 {
		if ms < 0 {
			return nil
		}
		t := topTaken - ms*1e6
		return &t
	}
	return trace.OperationRecord{Number: number, Group: 1, Seq: &seq, Operation: "all_reduce", DType: &dtype, Count: 1000,
		Signature: [3]uint64{uint64(op.AllReduce) | uint64(op.Float32)<<8}, Submitted: *at(begun), Begun: at(begun), Arrived: at(arrived), Ended: at(ended)}
}

func topSnapshot(list ...trace.OperationRecord) *trace.Snapshot {
	return &trace.Snapshot{Taken: topTaken, Began: topTaken - 60e9, Operations: list}
}

func TestTopCountsTheLastSecond(t *testing.T) {
	a := topOf(topSnapshot(
		topOperation(1, 1, 1900, 1800, 1500), // before
		topOperation(2, 2, 1200, 900, 800),   // waits from -1200 to -900, of which 100 count
		topOperation(3, 3, 950, 850, 700),    // at the same time, to -850
		topOperation(4, 4, 600, -1, 590),     // all had come at once
		topOperation(5, 5, 300, -1, -1),      // waits still
	))
	assert.Equal(t, time.Second.Nanoseconds(), a.Window)
	assert.Equal(t, 3, a.Calls)
	assert.Equal(t, int64(3*4000), a.Bytes)
	assert.Equal(t, int64((150+300)*1e6), a.Waited)
	require.Len(t, a.Trace.Operations, 2, "what is under way, which is also the last of the group, and what ended last")
	assert.Equal(t, []uint64{4, 5}, []uint64{a.Trace.Operations[0].Number, a.Trace.Operations[1].Number})
}

func TestTopLooksBackAsFarAsTheRingReaches(t *testing.T) {
	a := topOf(topSnapshot(topOperation(5000, 5000, 110, 105, 100), topOperation(5001, 5001, 90, 60, 50)))
	assert.Equal(t, int64(100e6), a.Window)
	assert.Equal(t, 1, a.Calls)
	assert.Equal(t, int64(30e6), a.Waited)
}

func TestTopOfARankThatHasJustBegun(t *testing.T) {
	s := topSnapshot()
	s.Began = topTaken - 5e6
	a := topOf(s)
	assert.Equal(t, topAnswer{Trace: s, Window: 5e6}, a)
}

func TestTopOfMessages(t *testing.T) {
	message := func(name string, ended int64) trace.OperationRecord {
		o := topOperation(1, 1, 400, -1, ended)
		o.Operation, o.Message, o.Seq = name, true, nil
		return o
	}
	for _, c := range []struct {
		name          string
		ended, waited int64
	}{{"recv", 100, 300e6}, {"send", 100, 0}, {"send", -1, 400e6}, {"recv", -1, 400e6}} {
		assert.Equal(t, c.waited, topOf(topSnapshot(message(c.name, c.ended))).Waited, "%v", c)
	}
}

func TestTraceNow(t *testing.T) {
	initialised(t)
	reply := control(t, "trace_now", fmt.Sprintf(`{"pids": [%d, 1999999999]}`, os.Getpid()))
	list := reply["processes"].([]any)
	mine, none := list[0].(map[string]any), list[1].(map[string]any)
	assert.Equal(t, float64(os.Getpid()), mine["pid"])
	assert.Empty(t, mine["error"])
	assert.Equal(t, float64(0), mine["trace"].(map[string]any)["rank"])
	assert.Contains(t, none["error"], "there is no process 1999999999")
	assert.Nil(t, none["trace"])
}
