package world

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/tune"
)

// Tuning is what a world over nodes begins to tune with.
type Tuning struct {
	// The same on all ranks.

	Table   *tune.Table   // nil: there is none
	Latency time.Duration // of a short message between nodes, with what it takes to gather words of all ranks; 0: it was not measured

	// What rank 0 knows of it, and no other rank.

	Here    tune.Fingerprint // of this world
	File    string           // in which the table was; "": there was none
	Problem string           // why that is not taken; ""
}

// Tunes tells whether the ways of this world's group of all ranks are measured. It is the same on all ranks.
func (e *Env) Tunes() bool {
	return len(e.Topo.ByNode(transport.EveryRank(e.Topo.Size))) > 1 && !e.Topo.Joined && e.Groups.Forced&coll.WithoutTuning == 0
}

// TableOf returns the table with which a group of so many ranks begins; nil: none. The times of a table hold for all ranks of the
// world only: in another shape other ways are the best.
func (e *Env) TableOf(size int) *tune.Table {
	if size != e.Topo.Size {
		return nil
	}
	return e.Groups.Tuning.Table
}

// MeasureLatency is collective over all ranks.
func (e *Env) MeasureLatency() error {
	const exchanges = 4
	var times [2 * exchanges]int64 // of each, and the same below 0
	for i := range exchanges + 1 {
		began := time.Now()
		if err := e.Base.Min([]int64{0}); err != nil {
			return err
		}
		if i > 0 { // the first one makes connections
			took := int64(time.Since(began))
			times[2*i-2], times[2*i-1] = took, -took
		}
	}
	if err := e.Base.Min(times[:]); err != nil {
		return err
	}
	least := int64(math.MaxInt64)
	for i := 0; i < len(times); i += 2 {
		least = min(least, (times[i]-times[i+1])/2) // a rank that comes later than others waits less, and they wait more
	}
	e.Groups.Tuning.Latency = time.Duration(least)
	return nil
}

// ShareTable gives all ranks the table whose text rank 0 has; nil: there is none. What comes is checked on every rank, and all take
// it or none does. ShareTable is collective over all ranks.
func (e *Env) ShareTable(text []byte) error {
	const none = math.MaxInt64 // the least of a word of rank 0 and of this is the word of rank 0
	words := []int64{none}
	if e.Topo.Rank == 0 && text != nil {
		words[0] = int64(len(text))
	}
	if err := e.Base.Min(words); err != nil || words[0] == none {
		return err
	}
	length := words[0]
	if length < 0 || length > tune.MostBytes {
		return status.New(status.Mismatch, "init: rank 0 has a table of ways of %d bytes; it has %d at most", length, tune.MostBytes)
	}
	words = make([]int64, (length+7)/8)
	bytes := make([]byte, 8*len(words))
	copy(bytes, text)
	for i := range words {
		if words[i] = none; e.Topo.Rank == 0 {
			words[i] = int64(binary.LittleEndian.Uint64(bytes[8*i:]))
		}
	}
	if err := e.Base.Min(words); err != nil {
		return err
	}
	for i, w := range words {
		binary.LittleEndian.PutUint64(bytes[8*i:], uint64(w))
	}
	table, wrong := tune.Decode(bytes[:length])
	good := []int64{1}
	if wrong != nil {
		good[0] = 0
	}
	if err := e.Base.Min(good); err != nil {
		return err
	}
	if good[0] == 1 {
		e.Groups.Tuning.Table = table
	}
	return nil
}
