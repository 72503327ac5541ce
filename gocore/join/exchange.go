package join

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

const (
	// mostGiven is the most bytes that one rank gives at once.
	mostGiven = 1 << 20
	// noExchange stands where the number of ranks would be, before the text of an error.
	noExchange = 1<<32 - 1
)

// exchange lets the ranks of a job tell each other bytes before anything else connects them. What carries the bytes is
// above the core: a program that has a store in common with the other ranks serves the other end of a socket. The core
// asks there "give this to all ranks, and bring me what they give", and nothing else. It implements transport.Exchange.
// One goroutine at a time uses it.
type exchange struct {
	rank, size int
	conn       net.Conn
	interrupt  work.Interrupt
}

// newExchange returns the exchange of a rank over a connected stream socket, which it owns: also after an error. The interrupt
// may be nil.
//
// What goes there is a length (32 bits, little-endian) and so many bytes. What comes back is the number of ranks, and for
// each of them a length and its bytes; or 0xffffffff, and the length and text of an error.
func newExchange(fd, rank, size int, interrupt work.Interrupt) (*exchange, error) {
	file := os.NewFile(uintptr(fd), "exchange")
	if file == nil {
		return nil, status.New(status.Argument, "init: exchange=%d is no open file", fd)
	}
	defer file.Close() // FileConn has a copy
	if size < 1 || rank < 0 || rank >= size {
		return nil, status.New(status.Argument, "init: rank %d of %d ranks", rank, size)
	}
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, status.New(status.Argument, "init: exchange=%d is no socket: %v", fd, err)
	}
	return &exchange{rank, size, conn, interrupt}, nil
}

func (x *exchange) Rank() int { return x.rank }
func (x *exchange) Size() int { return x.size }

// Free ends the exchange. The other ranks need not do so at the same time.
func (x *exchange) Free() error { return x.conn.Close() }

// Bytes gives bytes to all ranks and returns what each of them gives, by rank. All ranks call it. There is no limit of
// time but that of what carries the bytes.
func (x *exchange) Bytes(mine []byte) ([][]byte, error) {
	if len(mine) > mostGiven {
		return nil, status.New(status.Argument, "init: rank %d has %d bytes for the other ranks, more than %d", x.rank, len(mine), mostGiven)
	}
	request := append(binary.LittleEndian.AppendUint32(nil, uint32(len(mine))), mine...)
	if err := x.all(request, x.conn.Write); err != nil {
		return nil, err
	}
	n, err := x.number()
	if err == nil && n == noExchange {
		var why []byte
		if why, err = x.row(x.rank); err == nil {
			err = status.New(status.Timeout, "init: rank %d of %d: %s", x.rank, x.size, why)
		}
	}
	if err != nil {
		return nil, err
	}
	if int(n) != x.size {
		return nil, status.New(status.Argument, "init: the exchange brings the bytes of %d ranks, and the job has %d", n, x.size)
	}
	rows := make([][]byte, n)
	for r := range rows {
		if rows[r], err = x.row(r); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// row reads a length, and so many bytes of a rank.
func (x *exchange) row(rank int) ([]byte, error) {
	n, err := x.number()
	if err != nil {
		return nil, err
	}
	if n > mostGiven {
		return nil, status.New(status.Argument, "init: the exchange brings %d bytes of rank %d, more than %d", n, rank, mostGiven)
	}
	b := make([]byte, n)
	return b, x.all(b, x.conn.Read)
}

func (x *exchange) number() (uint32, error) {
	var b [4]byte
	err := x.all(b[:], x.conn.Read)
	return binary.LittleEndian.Uint32(b[:]), err
}

// all moves all of b by step, and looks for an interrupt meanwhile.
func (x *exchange) all(b []byte, step func([]byte) (int, error)) error {
	for len(b) > 0 {
		_ = x.conn.SetDeadline(time.Now().Add(work.InterruptEvery))
		n, err := step(b)
		b = b[n:]
		switch {
		case err == nil:
			continue
		case errors.Is(err, os.ErrDeadlineExceeded):
			if x.interrupt != nil {
				if err := x.interrupt(); err != nil {
					return err
				}
			}
			continue
		case err == io.EOF:
			err = errors.New("what serves it has ended")
		}
		return status.New(status.Argument, "init: the exchange of rank %d of %d fails: %v", x.rank, x.size, err)
	}
	return nil
}

// Gather implements transport.Exchange. The wait is not asked: see Bytes.
func (x *exchange) Gather(words []int64, _ transport.Wait) ([][]int64, error) {
	mine, _ := binary.Append(nil, binary.LittleEndian, words) // words have a length
	rows, err := x.Bytes(mine)
	if err != nil {
		return nil, err
	}
	all := make([][]int64, len(rows))
	for r, row := range rows {
		if len(row) != len(mine) {
			return nil, status.New(status.Mismatch, "init: rank %d gives %d bytes where rank %d gives %d: do all ranks run the same version of paddlempi?", r, len(row), x.rank, len(mine))
		}
		all[r] = make([]int64, len(words))
		_, _ = binary.Decode(row, binary.LittleEndian, all[r]) // it has the length
	}
	return all, nil
}

// Min implements transport.Exchange.
func (x *exchange) Min(words []int64) error {
	rows, err := x.Gather(words, nil)
	for _, row := range rows {
		for i, w := range row {
			words[i] = min(words[i], w)
		}
	}
	return err
}

// Node implements transport.Exchange. It is not asked for here: what makes a world of nodes knows these by Nodes.
func (x *exchange) Node() (transport.Exchange, error) {
	return nil, status.New(status.Unsupported, "init: the ranks of a node have no exchange of their own yet")
}

// Nodes returns the node of each rank, and the names of the nodes' hosts. Nodes are numbered in the order of their first
// ranks. Ranks are on one node if they run on the same kernel and their host has the same name for both. All ranks give the
// same id, by which they know that they belong together. It is collective.
func (x *exchange) Nodes(id string) (node []int, names []string, err error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, nil, status.New(status.Unsupported, "init: rank %d cannot tell its host from others: %v", x.rank, err)
	}
	rows, err := x.Bytes(fmt.Appendf(nil, "%s/%s/%s", id, bytes.TrimSpace(boot), hostname()))
	if err != nil {
		return nil, nil, err
	}
	number := map[string]int{}
	for r, row := range rows {
		n, known := number[string(row)]
		if !known {
			about := strings.SplitN(string(row), "/", 3)
			if len(about) < 3 || about[0] != id {
				return nil, nil, status.New(status.Mismatch, "init: rank %d is of the world %.32q, and rank %d of %q", r, about[0], x.rank, id)
			}
			n = len(number)
			number[string(row)] = n
			names = append(names, about[2])
		}
		node = append(node, n)
	}
	return node, names, nil
}

// hostname returns the name of this host, for others to read.
func hostname() string {
	host, err := os.Hostname()
	if err != nil {
		return "?"
	}
	return host
}
