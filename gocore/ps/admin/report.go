package admin

import "github.com/paddlempi/paddlempi/gocore/ps/master"

// Report is what Statistics says of a server, in JSON. `python -m paddlempi ps status` shows it.
type Report struct {
	Rank    int     `json:"rank"`
	PID     int     `json:"pid"`
	Host    string  `json:"host"`
	Mode    string  `json:"mode"`    // "sync", "async", "ssp", "half_async", "geo" or "dc_asgd"
	Seconds float64 `json:"seconds"` // since the server began
	Step    int64   `json:"step"`    // steps applied
	Queue   int     `json:"queue"`   // requests that wait for their turn

	// Counters since the server began. Who asks twice knows rates.
	Pulls      uint64 `json:"pulls"` // requests
	Pushes     uint64 `json:"pushes"`
	PulledRows uint64 `json:"pulled_rows"`
	PushedRows uint64 `json:"pushed_rows"`
	BytesIn    uint64 `json:"bytes_in"`
	BytesOut   uint64 `json:"bytes_out"`

	// What the administration took: calls of gRPC, and the bytes on its connections. A step makes
	// no call.
	RPCs    uint64 `json:"rpcs"`
	GRPCIn  uint64 `json:"grpc_in"`
	GRPCOut uint64 `json:"grpc_out"`

	Staleness float64 `json:"staleness"`  // mean number of steps of others between a pull and its push
	MostStale int64   `json:"most_stale"` // the greatest
	Failed    string  `json:"failed,omitempty"`

	Tables   []TableReport   `json:"tables"`
	Trainers []TrainerReport `json:"trainers"`

	Master *master.Report `json:"master,omitempty"` // of a server that is the master too. Of another master it is all
}

// TableReport says how large a server's part of a table is.
type TableReport struct {
	Name    string `json:"name"`
	Kind    string `json:"kind"`
	Dim     int64  `json:"dim"`
	Rows    int64  `json:"rows"`
	Bytes   int64  `json:"bytes"`
	Backups int64  `json:"backups"` // rows as trainers have pulled them last, for delay compensation
	Pulled  int64  `json:"pulled"`  // rows
	Pushed  int64  `json:"pushed"`

	// Where ids come and go (admit_after, expire_after, max_rows):
	MaxRows     int64 `json:"max_rows"`     // of this server; 0: no cap
	Dropped     int64 `json:"dropped"`      // ids in pushes that got no row
	Expired     int64 `json:"expired"`      // rows that were removed because nobody pushed them
	Evicted     int64 `json:"evicted"`      // rows that were removed to make room
	SketchBytes int64 `json:"sketch_bytes"` // of the counts of ids without a row
}

// TrainerReport says how far a trainer is, as one server sees it.
type TrainerReport struct {
	Rank      int     `json:"rank"`
	Step      int64   `json:"step"`      // steps that it has pushed
	Since     int64   `json:"since"`     // steps since the mode was set
	Queue     int     `json:"queue"`     // its requests that wait
	Staleness float64 `json:"staleness"` // mean number of steps of others between its pull and its push
	Completed bool    `json:"completed"` // or lost
	State     string  `json:"state"`     // active, completed or lost
	Lag       int64   `json:"lag"`       // steps behind the trainer that is furthest
	Silent    float64 `json:"silent"`    // seconds since its last request
	At        string  `json:"at"`        // the name at which it waits for other trainers; "": none
}
