// Package admin carries the administration of a parameter server: who takes part, which tables
// there are, barriers, checkpoints, the learning rate, statistics, and the shards of a master. It
// is a gRPC service; the rows and gradients of a step never travel here (see package link).
//
// A server starts only when Serve is called and a client only when Dial is: a process without a
// parameter server has none of gRPC's goroutines. Neither works in a fork of its process; capi's
// fork flag keeps calls from getting here.
package admin

import (
	"context"
	"encoding/json"

	"github.com/paddlempi/paddlempi/gocore/ps/master"
)

// The roles of a rank. Member.Role has them with commas between, in this order.
const (
	Trainer = "trainer"
	PServer = "pserver"
	Master  = "master"
)

var roles = []string{Trainer, PServer, Master}

// The values of Meta.Kind.
const (
	Sparse = "sparse"
	Dense  = "dense"
	KV     = "kv"
)

// Member is a rank of the job.
type Member struct {
	Rank int
	Role string // such as "trainer,pserver"
	PID  int
	Host string
}

// Meta describes a table; every trainer declares the same.
type Meta struct {
	Name   string
	Kind   string          // Sparse, Dense or KV
	Dim    int64           // elements of a row
	Config json.RawMessage // the configuration of the table (package table), or of the KV
	Count  int64           // Dense: elements of the parameter; Sparse: rows to make room for, or 0
	Dims   []int64         // Dense: the shape of the parameter
}

// Tasks is what a master answers from: a master.Master.
type Tasks interface {
	Open(from int, data master.Data) (epoch int64, err error)
	// Ask may wait for an answer that is not master.Waiting, until ctx is done.
	Ask(ctx context.Context, from int, name string, request uint64, epoch int64) (master.Grant, error)
	Renew(from int, lease master.Lease) (counts bool, err error)
	Done(from int, lease master.Lease) (counts bool, err error)
	Return(from int, lease master.Lease) (counts bool, err error)
}

// Backend is what the server answers from. Several calls run at the same time. An error is a
// *status.Error, whose code, ranks and text reach the client.
type Backend interface {
	Register(from Member) error
	Declare(from int, meta Meta) (id uint32, err error)
	// Barrier returns when all active trainers are in the barrier of this name, or with the error
	// of ctx.
	Barrier(ctx context.Context, from int, name string) error
	Complete(from int) error
	// Checkpoint takes the server through a phase of a checkpoint, or stops in it when ctx is done;
	// detail is what the phase needs besides.
	Checkpoint(ctx context.Context, from int, phase string, dir string, step int64, detail []byte) (report []byte, err error)
	SetLearningRate(name string, rate float64) error
	Statistics() []byte // JSON
}

// TLS names the files of TLS, in PEM. All empty: no TLS, as in a cluster's own network. With CA,
// both sides show certificates and check the other's.
type TLS struct {
	Cert, Key string
	CA        string
}

// Options say how a server listens.
type Options struct {
	Address string // host:port, host or :port; "": the host that gocore/netif chooses, and a free port
	OneHost bool   // all ranks are on this host, so the loopback is enough
	Token   []byte // what every call has to show; see NewToken
	TLS     TLS
	Limit   int // most bytes of a request; 0: DefaultLimit

	// Panicked, if not nil, hears of a panic of the Backend, whose call ends with the code Panic.
	Panicked func(any)
}

const (
	// DefaultLimit is the most bytes of a request, unless Options says otherwise.
	DefaultLimit = 256 << 10
	leastLimit   = 4 << 10
	mostLimit    = 64 << 20
	// MaxAnswer is the most bytes of an answer: of a report or of the statistics.
	MaxAnswer = 64 << 20
)
