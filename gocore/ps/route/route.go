// Package route says how a batch of ids travels to the servers that have their rows: every id once,
// by server; the rows that come back, spread over the batch; the gradients of equal ids, added up.
// It is C, outside the Go heap; route.h describes it. It knows nothing of messages and tables.
package route

/*
#cgo CFLAGS: -std=c11 -O3
#cgo noescape pr_plan
#cgo nocallback pr_plan
#cgo noescape pr_same
#cgo nocallback pr_same
#cgo noescape pr_gather
#cgo nocallback pr_gather
#cgo noescape pr_widen
#cgo nocallback pr_widen
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
	ByModulo By = C.PR_BY_MODULO // (id + offset) modulo servers: blocks of dense parameters in turn
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

// Share returns how many of n rows of a table a server may have: all servers have room for as many,
// but for one row more on the first ones.
func Share(n int64, server, servers int) int64 {
	share := n / int64(servers)
	if int64(server) < n%int64(servers) {
		share++
	}
	return share
}

// modulo returns the rest of a division by n, from 0 to n-1.
func modulo(a, n int64) int64 {
	if a %= n; a < 0 {
		a += n
	}
	return a
}

// Plan says how a batch of ids travels. After New it does not change, so its methods may be called
// from several threads; Free ends its use.
type Plan struct {
	Unique  []int64 // every id once, by server, then in order of appearance; C memory, until Free
	Starts  []int   // servers+1: where the ids of each server begin in Unique, and the end
	Inverse []int32 // for each id of the batch, its place in Unique; C memory, until Free

	memory unsafe.Pointer
	first  *C.uint8_t // for each id of the batch: 1 where it appears first
	isa    C.int32_t
}

var isas = map[string]C.int32_t{"portable": C.PR_PORTABLE, "avx2": C.PR_AVX2, "avx512": C.PR_AVX512}

var dtypes = map[op.DType]C.int32_t{op.Float32: C.PR_FLOAT32, op.Float16: C.PR_FLOAT16, op.BFloat16: C.PR_BFLOAT16}

// key is that of the hash sets of this process. It is random, so nobody can choose ids that
// collide.
var key = sync.OnceValue(func() [2]C.uint64_t {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	return [2]C.uint64_t{C.uint64_t(binary.LittleEndian.Uint64(b[:])), C.uint64_t(binary.LittleEndian.Uint64(b[8:]) | 1)}
})

// New plans a batch. ids is of int64 or int32, contiguous and in host memory. The plan keeps
// nothing of ids.
func New(ids *op.Buf, servers int, by By, offset int) (*Plan, error) {
	return planWith(key(), ids, servers, by, offset)
}

func planWith(key [2]C.uint64_t, ids *op.Buf, servers int, by By, offset int) (*Plan, error) {
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
	}
	p := &Plan{Starts: make([]int, servers+1), isa: isas[reduce.ISA()]}
	if n == 0 {
		return p, nil
	}
	memory, err := mem.Alloc(13 * n)
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
	unique := unsafe.Slice((*int64)(memory), n)
	p.Inverse = unsafe.Slice((*int32)(unsafe.Add(memory, 8*n)), n)
	p.first = (*C.uint8_t)(unsafe.Add(memory, 12*n))
	shift := int64(offset)
	if by == ByModulo {
		shift = modulo(shift, int64(servers))
	}
	C.pr_plan(ids.Data, C.int64_t(n), C.int32_t(ids.DType.Size()), C.int32_t(by), C.int64_t(servers), C.int64_t(shift), &key[0],
		(*C.int64_t)(unsafe.SliceData(unique)), (*C.int64_t)(unsafe.Pointer(unsafe.SliceData(p.Starts))), (*C.int32_t)(unsafe.SliceData(p.Inverse)), p.first, scratch)
	p.Unique = unique[:p.Starts[servers]]
	return p, nil
}

// Of tells whether this is the plan of a batch: ids are those that New got, whatever their dtype.
func (p *Plan) Of(ids *op.Buf) bool {
	n := int64(len(p.Inverse))
	if ids.Count != n || ids.DType != op.Int64 && ids.DType != op.Int32 || !ids.Contiguous() || !ids.OnHost() {
		return false
	}
	return n == 0 || C.pr_same(ids.Data, C.int64_t(n), C.int32_t(ids.DType.Size()), (*C.int64_t)(unsafe.SliceData(p.Unique)), (*C.int32_t)(unsafe.SliceData(p.Inverse))) != 0
}

// Gather copies to each place of out the row of its id: out[i] = rows[Inverse[i]]. rows has
// len(Unique) rows of rowBytes, in the order of Unique. out, contiguous and in host memory, has as
// many rows as the batch has ids.
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

// Widen is Gather for rows of dim elements of float16 or bfloat16; out is of float32.
func (p *Plan) Widen(out *op.Buf, rows unsafe.Pointer, dtype op.DType, dim int64) {
	n := int64(len(p.Inverse))
	if dim < 0 || out.DType != op.Float32 || out.Count != n*dim || dtype != op.Float16 && dtype != op.BFloat16 {
		panic(fmt.Sprintf("route: out has %d elements of %v; %d rows of %d elements of %v need %d of float32", out.Count, out.DType, n, dim, dtype, n*dim))
	}
	if out.Count == 0 {
		return
	}
	C.pr_widen(p.isa, (*C.float)(out.Data), (*C.uint16_t)(rows), dtypes[dtype], C.int64_t(dim), (*C.int32_t)(unsafe.SliceData(p.Inverse)), C.int64_t(n))
}

// Sum adds the gradients of each id, in float32 and in order of appearance: the row u of sums, dim
// elements, becomes the sum of the rows i of gradients with Inverse[i] == u. gradients, of float32,
// float16 or bfloat16, is contiguous and in host memory. The sums have the same bits on every
// processor, except for the bits of a NaN. finite tells whether all of them are finite.
func (p *Plan) Sum(sums []float32, gradients *op.Buf, dim int64) (finite bool) {
	n := int64(len(p.Inverse))
	dtype, known := dtypes[gradients.DType]
	if !known || dim < 0 || gradients.Count != n*dim || int64(len(sums)) != int64(len(p.Unique))*dim {
		panic(fmt.Sprintf("route: gradients are %d elements of %v, and sums %d; %d ids, %d of them different, of dim %d need %d and %d",
			gradients.Count, gradients.DType, len(sums), n, len(p.Unique), dim, n*dim, int64(len(p.Unique))*dim))
	}
	if gradients.Count == 0 {
		return true
	}
	return C.pr_sum(p.isa, (*C.float)(unsafe.SliceData(sums)), gradients.Data, dtype, C.int64_t(dim),
		(*C.int32_t)(unsafe.SliceData(p.Inverse)), p.first, C.int64_t(n)) == 0
}

// NotFinite returns the place of the first value that is infinite or no number; -1 if all are
// finite.
func NotFinite(values []float32) int64 {
	return int64(C.pr_not_finite((*C.float)(unsafe.SliceData(values)), C.int64_t(len(values))))
}

// Free gives the memory of the plan back. It may be called twice.
func (p *Plan) Free() {
	mem.Free(p.memory)
	p.memory, p.Unique, p.Inverse, p.first = nil, nil, nil, nil
}
