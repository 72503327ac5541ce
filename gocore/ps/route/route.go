// Package route says how a batch of ids travels to the servers that have their rows: every id once, by
// server; the rows that come back, spread over the batch; the gradients of equal ids, added up. It is C,
// outside the Go heap; route.h describes it. It knows nothing of messages and tables.
package route

/*
#cgo CFLAGS: -std=c11 -O3
#cgo noescape pr_plan
#cgo nocallback pr_plan
#cgo noescape pr_gather
#cgo nocallback pr_gather
#cgo noescape pr_sum
#cgo nocallback pr_sum
#cgo noescape pr_not_finite
#cgo nocallback pr_not_finite
#include "route.h"
*/
import "C"

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"math/bits"
	"sync"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Limits of a batch.
const (
	MostIDs     = 1 << 30
	MostServers = 1 << 20
)

// By says which server has the row of an id.
type By int

// The ways to distribute rows.
const (
	ByHash   By = C.PR_BY_HASH   // Owner(id + offset, servers)
	ByModulo By = C.PR_BY_MODULO // (id + offset) modulo servers, from 0 on: blocks of dense parameters in turn
)

// Owner returns the server, 0 to servers-1, that has the row of an id: a fixed hash of the id (the
// finalizer of splitmix64), so it is the same in every process and version.
func Owner(id int64, servers int) int {
	h := uint64(id)
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	h ^= h >> 31
	server, _ := bits.Mul64(h, uint64(servers))
	return int(server)
}

// Owner returns the server, 0 to servers-1, that has the row of an id.
func (by By) Owner(id int64, servers, offset int) int {
	if by == ByHash {
		return Owner(id+int64(offset), servers)
	}
	n := int64(servers)
	return int((modulo(id, n) + modulo(int64(offset), n)) % n)
}

// modulo returns the rest of a division by n, from 0 to n-1.
func modulo(a, n int64) int64 {
	if a %= n; a < 0 {
		a += n
	}
	return a
}

// Plan says how a batch of ids travels. After New it does not change, so its methods may be called from
// several threads; Free ends its use.
type Plan struct {
	Unique  []int64 // every id once: those of server 0 first, each server's in order of first appearance
	Starts  []int   // servers+1: where the ids of each server begin in Unique, and the end
	Inverse []int32 // for each id of the batch, its place in Unique; C memory, until Free

	memory unsafe.Pointer
	first  *C.uint8_t // for each id of the batch: 1 where it appears first
	isa    C.int32_t
}

var isas = map[string]C.int32_t{"portable": C.PR_PORTABLE, "avx2": C.PR_AVX2, "avx512": C.PR_AVX512}

var dtypes = map[op.DType]C.int32_t{op.Float32: C.PR_FLOAT32, op.Float16: C.PR_FLOAT16, op.BFloat16: C.PR_BFLOAT16}

// key is that of the hash sets of this process. It is random, so nobody can choose ids that collide.
var key = sync.OnceValue(func() [2]C.uint64_t {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	return [2]C.uint64_t{C.uint64_t(binary.LittleEndian.Uint64(b[:])), C.uint64_t(binary.LittleEndian.Uint64(b[8:]) | 1)}
})

// New plans a batch. ids is of int64 or int32, contiguous and in host memory. unique has room for
// ids.Count ids; the plan's Unique is its beginning.
func New(ids *op.Buf, servers int, by By, offset int, unique []int64) (*Plan, error) {
	return planWith(key(), ids, servers, by, offset, unique)
}

func planWith(key [2]C.uint64_t, ids *op.Buf, servers int, by By, offset int, unique []int64) (*Plan, error) {
	n := ids.Count
	switch {
	case ids.DType != op.Int64 && ids.DType != op.Int32:
		return nil, status.New(status.Type, "ids are of %v; they must be of int64 or int32", ids.DType)
	case n < 0 || n > MostIDs:
		return nil, status.New(status.Argument, "%d ids are more than one call takes, %d", n, MostIDs)
	case !ids.Contiguous():
		return nil, status.New(status.Argument, "ids are not contiguous; pass a contiguous copy")
	case !ids.OnHost():
		return nil, status.New(status.Unsupported, "ids are in device memory; tables take host memory: move them to the CPU")
	case servers < 1 || servers > MostServers:
		return nil, status.New(status.Argument, "servers=%d is not from 1 to %d", servers, MostServers)
	case by != ByHash && by != ByModulo:
		return nil, status.New(status.Argument, "by=%d is neither ByHash nor ByModulo", by)
	case int64(len(unique)) < n:
		return nil, status.New(status.Argument, "unique has room for %d ids; the batch has %d", len(unique), n)
	}
	p := &Plan{Unique: unique[:0], Starts: make([]int, servers+1), isa: isas[reduce.ISA()]}
	if n == 0 {
		return p, nil
	}
	memory, err := mem.Alloc(5 * n)
	if err != nil {
		return nil, err
	}
	scratch, err := mem.Alloc(int64(C.pr_scratch(C.int64_t(n))))
	if err != nil {
		mem.Free(memory)
		return nil, err
	}
	defer mem.Free(scratch)
	p.memory = memory
	p.Inverse = unsafe.Slice((*int32)(memory), n)
	p.first = (*C.uint8_t)(unsafe.Add(memory, 4*n))
	shift := int64(offset)
	if by == ByModulo {
		shift = modulo(shift, int64(servers))
	}
	C.pr_plan(ids.Data, C.int64_t(n), C.int32_t(ids.DType.Size()), C.int32_t(by), C.int64_t(servers), C.int64_t(shift), &key[0],
		(*C.int64_t)(unsafe.SliceData(unique)), (*C.int64_t)(unsafe.Pointer(unsafe.SliceData(p.Starts))), (*C.int32_t)(memory), p.first, scratch)
	p.Unique = unique[:p.Starts[servers]]
	return p, nil
}

// Gather copies to each place of out the row of its id: out[i] = rows[Inverse[i]]. rows has
// len(Unique) rows of rowBytes, in the order of Unique. out, contiguous and in host memory, has as many
// rows as the batch has ids.
func (p *Plan) Gather(out *op.Buf, rows unsafe.Pointer, rowBytes int64) {
	n := int64(len(p.Inverse))
	if rowBytes < 0 || out.Bytes() != n*rowBytes {
		panic(fmt.Sprintf("route: out has %d bytes; %d rows of %d bytes need %d", out.Bytes(), n, rowBytes, n*rowBytes))
	}
	if out.Bytes() == 0 {
		return
	}
	C.pr_gather(p.isa, out.Data, rows, C.int64_t(rowBytes), (*C.int32_t)(unsafe.SliceData(p.Inverse)), C.int64_t(n))
}

// Sum adds the gradients of each id, in float32 and in order of appearance: the row u of sums, dim
// elements, becomes the sum of the rows i of gradients with Inverse[i] == u. gradients, of float32,
// float16 or bfloat16, is contiguous and in host memory. The sums have the same bits on every
// processor, except for the bits of a NaN.
func (p *Plan) Sum(sums []float32, gradients *op.Buf, dim int64) {
	p.sumPart(sums, gradients, dim, 0, len(p.Inverse))
}

// SumFinite is Sum, and returns the place of the first sum that is infinite or no number; -1 if all are finite.
// If there is one, other sums may be missing.
func (p *Plan) SumFinite(sums []float32, gradients *op.Buf, dim int64) int64 {
	n := len(p.Inverse)
	// A server's ids are in order of appearance. So where every id is there once, and one server has them all,
	// the rows of a part of the batch lie together: they are looked at while they are in the cache.
	if len(p.Unique) != n || len(p.Starts) != 2 || dim == 0 {
		p.Sum(sums, gradients, dim)
		return NotFinite(sums)
	}
	step := max(1, int(inCache/(4*dim)))
	for from := 0; from < n; from += step {
		to := min(from+step, n)
		p.sumPart(sums, gradients, dim, from, to)
		if at := NotFinite(sums[int64(from)*dim : int64(to)*dim]); at >= 0 {
			return int64(from)*dim + at
		}
	}
	return -1
}

// inCache is how many bytes of sums SumFinite makes and looks at in turn.
const inCache = 256 << 10

// sumPart is Sum for the places from, to to-1 of the batch, after those before them.
func (p *Plan) sumPart(sums []float32, gradients *op.Buf, dim int64, from, to int) {
	n := int64(len(p.Inverse))
	dtype, known := dtypes[gradients.DType]
	if !known || dim < 0 || gradients.Count != n*dim || int64(len(sums)) != int64(len(p.Unique))*dim {
		panic(fmt.Sprintf("route: gradients are %d elements of %v, and sums %d; %d ids, %d of them different, of dim %d need %d and %d",
			gradients.Count, gradients.DType, len(sums), n, len(p.Unique), dim, n*dim, int64(len(p.Unique))*dim))
	}
	if gradients.Count == 0 {
		return
	}
	part := p.Inverse[from:to]
	C.pr_sum(p.isa, (*C.float)(unsafe.SliceData(sums)), unsafe.Add(gradients.Data, int64(from)*dim*int64(gradients.DType.Size())), dtype, C.int64_t(dim),
		(*C.int32_t)(unsafe.SliceData(part)), (*C.uint8_t)(unsafe.Add(unsafe.Pointer(p.first), from)), C.int64_t(len(part)))
}

// NotFinite returns the place of the first value that is infinite or no number; -1 if all are finite.
func NotFinite(values []float32) int64 {
	return int64(C.pr_not_finite((*C.float)(unsafe.SliceData(values)), C.int64_t(len(values))))
}

// Free gives the memory of the plan back. It may be called twice. Unique stays as it is, in the caller's
// memory.
func (p *Plan) Free() {
	mem.Free(p.memory)
	p.memory, p.Inverse, p.first = nil, nil, nil
}
