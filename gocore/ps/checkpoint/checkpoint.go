// Package checkpoint writes the tables of servers to files, and reads them back onto any number of
// servers.
//
// A cut is what all tables hold at one step. It is a folder, cut-00000042 for step 42, with a part
// of every server and a manifest that names the parts. It is made in two phases. First every server
// writes its part (WritePart) and tells one of them what it has written. Then this one writes the
// manifest (Commit). A cut is complete when its manifest has its name, and the manifest gets it
// when it and all parts are on the disk. So whenever a server or the machine fails, the cuts that
// were complete are complete. The names of parts are random: nobody writes into a file of another
// attempt.
//
// docs/ps-checkpoint.md has the format. Whoever reads takes nothing for true: lengths and counts
// are compared with those of the file before memory is taken, and every byte is under a checksum.
//
// All servers must see the same directory. Cuts of a directory are written one at a time.
package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Limits of what is written and read.
const (
	MostServers  = 1 << 16
	MostTables   = 1 << 16
	MostName     = 1 << 10  // bytes of a table's name
	MostConfig   = 1 << 20  // bytes of a table's config
	MostManifest = 64 << 20 // bytes of a manifest
	mostDim      = 1 << 16
	mostState    = 1 << 18
	chunkBytes   = 1 << 20  // a chunk has as many rows as fit, and at least one
	mostChunk    = 16 << 20 // bytes of a chunk that is read
	mostReaders  = 16
	mostSketch   = 256 << 20 // bytes of a table's sketch in a part that is read
)

// Source gives the rows of a table that one server has. Nobody changes rows while a part is
// written.
type Source interface {
	Name() string
	Config() []byte // JSON; a cut keeps it and does not read it
	DType() op.DType
	Dim() int64
	StateLen() int64 // floats of the state of a row
	Steps() int64    // the greatest step of a push
	LearningRate() *float64
	// Stamped says whether a cut has the last use of each row: ids of this table come and go.
	Stamped() bool
	// Sketch has the counts of ids that have no row yet; nil: the table counts none.
	Sketch() ([]byte, error)
	// IDs gives every id once, at most most of them at a time, and stops after an error of give.
	IDs(most int64, give func(ids []int64) error) error
	// Read copies rows, in the dtype of the table, states, and the last uses if it is Stamped, else
	// stamps is empty. The memory is outside the Go heap.
	Read(ids []int64, rows []byte, states []float32, stamps []int64) error
}

// Sink takes the rows of a cut.
type Sink interface {
	// Begin comes first, with all tables of the cut.
	Begin(tables []Table) error
	// Own returns which part, of so many, has the rows of this sink and no others; -1: none.
	Own(parts int) int
	// Cap returns how many rows of tables[table] the sink takes at most; 0: all. It gets those of
	// the last uses.
	Cap(table int) int64
	// Rows brings rows of tables[table], their states, and their last uses if the cut has them, else
	// nil. Several goroutines call it at once. The memory is outside the Go heap; it holds other
	// rows after Rows has returned.
	Rows(table int, ids []int64, rows []byte, states []float32, stamps []int64) error
	// Sketch brings the counts of tables[table] in one part.
	Sketch(table int, sketch []byte) error
}

// Table says what a part or a cut has of one table.
type Table struct {
	Name     string          `json:"name"`
	DType    string          `json:"dtype"` // of the rows: float32, float16, bfloat16
	Dim      int64           `json:"dim"`
	StateLen int64           `json:"state_len"`
	Steps    int64           `json:"steps"`
	Rows     int64           `json:"rows"`
	Config   json.RawMessage `json:"config"`
	// LearningRate is that which was set instead of the config's; nil: none was.
	LearningRate *float64 `json:"learning_rate,omitempty"`
	// Stamps says that chunks have the last use of each row, and parts may have a sketch.
	Stamps bool `json:"stamps,omitempty"`
}

// ServerPart says what one server has written. It travels as JSON to the server that commits.
type ServerPart struct {
	Step    int64   `json:"step"`
	Server  int     `json:"server"`
	Servers int     `json:"servers"`
	File    string  `json:"file"` // in the folder of the cut
	Bytes   int64   `json:"bytes"`
	Chunks  int64   `json:"chunks"`
	CRC     uint32  `json:"crc32"` // of the index of the chunks
	Tables  []Table `json:"tables"`
	// Version is how many updates the server had applied: whoever calls WritePart says it.
	Version int64 `json:"version,omitempty"`
}

// File is a part in a manifest.
type File struct {
	Name   string  `json:"file"`
	Bytes  int64   `json:"bytes"`
	Chunks int64   `json:"chunks"`
	CRC    uint32  `json:"crc32"`
	Rows   []int64 `json:"rows"` // of each table
	// Version is how many updates the server had applied; 0 also in cuts of versions of paddlempi
	// that did not note it.
	Version int64 `json:"version,omitempty"`
}

// Manifest is a complete cut.
type Manifest struct {
	Format int     `json:"format"`
	Step   int64   `json:"step"`
	Tables []Table `json:"tables"` // by name; Rows of all parts together
	Parts  []File  `json:"parts"`  // of server 0, 1 and so on
	Extra  []byte  `json:"extra"`  // what Commit was given
	// Serial counts the cuts of a directory in the order in which they became complete, from 0.
	Serial int64 `json:"serial,omitempty"`
	// Supersedes are the cuts that the job had left behind when it wrote this one.
	Supersedes []Label `json:"supersedes,omitempty"`

	Folder string `json:"-"` // where the cut lies
}

func argument(format string, args ...any) error {
	return status.New(status.Argument, "checkpoint: "+format, args...)
}

// given returns the error of a caller that has given up, or whose deadline has passed; nil while it
// waits.
func given(ctx context.Context) error {
	switch err := ctx.Err(); {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return status.New(status.Timeout, "checkpoint: the deadline of the call has passed; complete cuts are as they were")
	}
	return status.New(status.Interrupted, "checkpoint: the caller has given up; complete cuts are as they were")
}

// itemBytes returns the bytes of an element of rows, or 0 if rows cannot be of the dtype.
func itemBytes(dtype string) int64 {
	switch dtype {
	case op.Float32.String():
		return 4
	case op.Float16.String(), op.BFloat16.String():
		return 2
	}
	return 0
}

// check looks at everything but the number of rows.
func (t *Table) check() error {
	switch {
	case t.Name == "" || len(t.Name) > MostName || !utf8.ValidString(t.Name):
		return fmt.Errorf("a table's name has %d bytes, or is not UTF-8; it needs 1 to %d bytes of UTF-8: %.40q", len(t.Name), MostName, t.Name)
	case itemBytes(t.DType) == 0:
		return fmt.Errorf("table %q has dtype %.40q, which is none of float32, float16, bfloat16", t.Name, t.DType)
	case t.Dim < 1 || t.Dim > mostDim:
		return fmt.Errorf("table %q has dim %d, which is not from 1 to %d", t.Name, t.Dim, mostDim)
	case t.StateLen < 0 || t.StateLen > mostState:
		return fmt.Errorf("table %q has states of %d floats; 0 to %d are possible", t.Name, t.StateLen, mostState)
	case t.LearningRate != nil && !(*t.LearningRate >= 0 && *t.LearningRate <= math.MaxFloat64):
		return fmt.Errorf("table %q has the learning rate %v, which is not a finite number of at least 0", t.Name, *t.LearningRate)
	case t.Steps < 0 || t.Rows < 0:
		return fmt.Errorf("table %q has %d steps and %d rows", t.Name, t.Steps, t.Rows)
	case len(t.Config) > MostConfig || !json.Valid(t.Config):
		return fmt.Errorf("the config of table %q has %d bytes, or is no JSON; it must be JSON of at most %d bytes", t.Name, len(t.Config), MostConfig)
	}
	return nil
}

// same tells whether two servers mean the same table.
func (t *Table) same(o *Table) bool {
	return t.Name == o.Name && t.DType == o.DType && t.Dim == o.Dim && t.StateLen == o.StateLen && t.Stamps == o.Stamps && string(t.Config) == string(o.Config)
}
