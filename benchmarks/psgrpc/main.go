// Psgrpc is a parameter server over gRPC alone, for python -m paddlempi bench ps: the routes and the tables of
// paddlempi with a stream of grpc-go between them. Its messages have one field of raw bytes. It is no part of
// paddlempi: it checks nothing that comes from the other side.
//
//	psgrpc version
//	psgrpc serve ADDRESS  serves until its input ends
//	psgrpc ask ADDRESS    reads commands, and answers each with the time that it took, in ns:
//	    table ROWS DIM           makes the server's table, SGD, with all rows
//	    batches NUMBER IDS FILE  reads batches: int64 ids of each, then float32 gradients for one
//	    pull BATCH, push BATCH
//	    rows FILE                writes the rows of the last pull
//
// An address is the path of a Unix socket, or host:port.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/route"
	"github.com/paddlempi/paddlempi/gocore/ps/table"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Println(err) // in the place of an answer
		os.Exit(1)
	}
}

func run(words []string) error {
	debug.SetGCPercent(400) // the memory is messages and little else: the collector would often run for nothing
	switch {
	case len(words) == 1 && words[0] == "version":
		fmt.Println(grpc.Version)
		return nil
	case len(words) == 2 && words[0] == "serve":
		return serve(words[1])
	case len(words) == 2 && words[0] == "ask":
		return ask(words[1])
	}
	return errors.New("usage: psgrpc version | serve ADDRESS | ask ADDRESS")
}

// What a message asks for. A message is the code, two numbers (rows and dim of a table; how many ids), the ids
// and the gradients.
const (
	makeTable = iota
	pull
	push
	headBytes = 24
)

const (
	rate   = 0.01
	window = 1 << 30 // as large as gRPC takes: flow control stops no message
)

// Serving

type server struct{ table *table.Table }

var stream = grpc.StreamDesc{StreamName: "Stream", ServerStreams: true, ClientStreams: true, Handler: answerAll}

// schemeOf returns the network of an address, and how grpc names it.
func schemeOf(address string) (network, scheme string) {
	if strings.HasPrefix(address, "/") {
		return "unix", "unix:"
	}
	return "tcp", "passthrough:///"
}

func serve(address string) error {
	network, _ := schemeOf(address)
	listener, err := net.Listen(network, address)
	if err != nil {
		return err
	}
	s := grpc.NewServer(grpc.MaxRecvMsgSize(math.MaxInt32), grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window), grpc.WriteBufferSize(1<<20), grpc.ReadBufferSize(1<<20))
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "bench.Rows", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{stream}}, &server{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		s.Stop()
	}()
	fmt.Println(0)
	return s.Serve(listener)
}

// answerAll answers the messages of a stream in their order.
func answerAll(of any, stream grpc.ServerStream) error {
	s := of.(*server)
	for {
		var in wrapperspb.BytesValue
		if err := stream.RecvMsg(&in); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		out, err := s.answer(in.Value)
		if err != nil {
			return err
		}
		if err := stream.SendMsg(&wrapperspb.BytesValue{Value: out}); err != nil {
			return err
		}
	}
}

func (s *server) answer(request []byte) ([]byte, error) {
	a, b := int64(binary.LittleEndian.Uint64(request[8:])), int64(binary.LittleEndian.Uint64(request[16:]))
	if request[0] == makeTable {
		return nil, s.fill(a, b)
	}
	ids, gradients := request[headBytes:headBytes+8*a], request[headBytes+8*a:]
	if request[0] == push {
		return nil, pinned(ids, gradients, func(b table.Batch) error { return s.table.Push(b, math.NaN(), 0) })
	}
	rows := make([]byte, 4*a*s.table.Dim)
	return rows, pinned(ids, rows, s.table.Pull)
}

func (s *server) fill(rows, dim int64) (err error) {
	if s.table != nil {
		s.table.Free()
	}
	if s.table, err = table.New(table.Config{Dim: dim, DType: "float32", Refuse: true,
		Initializer: table.Initializer{Name: "uniform", A: -0.05, B: 0.05}, Optimizer: table.Optimizer{Name: "sgd", LearningRate: rate}}); err != nil {
		return err
	}
	const step = 50_000
	values := make([]byte, 4*dim*step)
	for begin := int64(0); begin < rows; begin += step {
		var ids []byte
		for id := begin; id < min(begin+step, rows); id++ {
			ids = binary.LittleEndian.AppendUint64(ids, uint64(id))
		}
		if err := pinned(ids, values[:4*dim*int64(len(ids)/8)], s.table.Pull); err != nil {
			return err
		}
	}
	return nil
}

// pinned calls a table with memory of the Go heap, which C gets the address of.
func pinned(ids, values []byte, call func(table.Batch) error) error {
	var pins runtime.Pinner
	defer pins.Unpin()
	for _, b := range [][]byte{ids, values} {
		if len(b) > 0 {
			pins.Pin(&b[0])
		}
	}
	return call(table.Batch{IDs: buf(ids, op.Int64), Values: buf(values, op.Float32)})
}

func buf(b []byte, t op.DType) *op.Buf {
	return &op.Buf{Data: unsafe.Pointer(unsafe.SliceData(b)), Count: int64(len(b)) / int64(t.Size()), DType: t, NDim: 1}
}

// Asking

type asker struct {
	stream    grpc.ClientStream
	dim       int64
	ids       []*op.Buf // of each batch
	gradients *op.Buf
	out       *op.Buf
	message   []byte
}

func ask(address string) error {
	_, scheme := schemeOf(address)
	connection, err := grpc.NewClient(scheme+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window), grpc.WithWriteBufferSize(1<<20), grpc.WithReadBufferSize(1<<20))
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }()
	var a asker
	if a.stream, err = connection.NewStream(context.Background(), &stream, "/bench.Rows/Stream"); err != nil {
		return err
	}
	fmt.Println(0)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		took, err := a.do(strings.Fields(lines.Text()))
		if err != nil {
			return err
		}
		fmt.Println(took.Nanoseconds())
	}
	return lines.Err()
}

func (a *asker) do(words []string) (time.Duration, error) {
	numbers := make([]int64, len(words))
	for i, word := range words {
		numbers[i], _ = strconv.ParseInt(word, 10, 64) // the other words are no numbers
	}
	begin := time.Now()
	var err error
	switch words[0] {
	case "table":
		a.dim = numbers[2]
		_, err = a.call(makeTable, numbers[1], nil)
	case "batches":
		err = a.read(numbers[1], numbers[2], words[3])
	case "pull":
		err = a.pull(a.ids[numbers[1]])
	case "push":
		err = a.push(a.ids[numbers[1]])
	case "rows":
		err = os.WriteFile(words[1], unsafe.Slice((*byte)(a.out.Data), a.out.Bytes()), 0o600)
	default:
		err = fmt.Errorf("psgrpc: %q is no command", words[0])
	}
	return time.Since(begin), err
}

// call sends a message and returns the answer. The caller has filled the message behind its head; nil: there is no more.
func (a *asker) call(what byte, count int64, message []byte) ([]byte, error) {
	if message == nil {
		message = make([]byte, headBytes)
	}
	message[0] = what
	binary.LittleEndian.PutUint64(message[8:], uint64(count))
	binary.LittleEndian.PutUint64(message[16:], uint64(a.dim))
	if err := a.stream.SendMsg(&wrapperspb.BytesValue{Value: message}); err != nil {
		return nil, err
	}
	var answer wrapperspb.BytesValue
	err := a.stream.RecvMsg(&answer)
	return answer.Value, err
}

func (a *asker) plan(ids *op.Buf, rows bool) (*route.Plan, error) {
	plan, err := route.New(ids, 1, route.ByHash, 0)
	if err != nil {
		return nil, err
	}
	size := headBytes + 8*int64(len(plan.Unique))
	if rows {
		size += 4 * a.dim * int64(len(plan.Unique))
	}
	if int64(cap(a.message)) < size {
		a.message = make([]byte, size)
	}
	a.message = a.message[:size]
	copy(a.message[headBytes:], unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(plan.Unique))), 8*len(plan.Unique)))
	return plan, nil
}

func (a *asker) pull(ids *op.Buf) error {
	plan, err := a.plan(ids, false)
	if err != nil {
		return err
	}
	defer plan.Free()
	rows, err := a.call(pull, int64(len(plan.Unique)), a.message)
	if err != nil {
		return err
	}
	plan.Gather(a.out, unsafe.Pointer(unsafe.SliceData(rows)), 4*a.dim)
	return nil
}

func (a *asker) push(ids *op.Buf) error {
	plan, err := a.plan(ids, true)
	if err != nil {
		return err
	}
	defer plan.Free()
	n := len(plan.Unique)
	sums := unsafe.Slice((*float32)(unsafe.Pointer(&a.message[headBytes+8*n])), int64(n)*a.dim)
	plan.Sum(sums, a.gradients, a.dim)
	if route.NotFinite(sums) >= 0 {
		return fmt.Errorf("psgrpc: a gradient is not finite")
	}
	_, err = a.call(push, int64(n), a.message)
	return err
}

// read reads batches into memory outside the Go heap, as that of a caller of paddlempi.
func (a *asker) read(number, n int64, file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for _, b := range append(a.ids, a.gradients, a.out) {
		if b != nil {
			mem.Free(b.Data)
		}
	}
	a.ids = nil
	for range number {
		b, err := outside(content[:8*n], op.Int64)
		if err != nil {
			return err
		}
		a.ids, content = append(a.ids, b), content[8*n:]
	}
	if a.gradients, err = outside(content, op.Float32); err != nil {
		return err
	}
	a.out, err = outside(make([]byte, 4*n*a.dim), op.Float32)
	return err
}

func outside(content []byte, t op.DType) (*op.Buf, error) {
	memory, err := mem.Alloc(int64(max(1, len(content))))
	if err != nil {
		return nil, err
	}
	copy(unsafe.Slice((*byte)(memory), len(content)), content)
	return &op.Buf{Data: memory, Count: int64(len(content)) / int64(t.Size()), DType: t, NDim: 1}, nil
}
