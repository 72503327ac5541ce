package mpi

/*
#include <stdlib.h>
#include "calls.h"
*/
import "C"

import (
	"sync"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/transport"
)

// requests is a pool of requests in C memory. It keeps what it has allocated, so it grows to the largest
// number of calls that were under way at once.
type requests struct {
	lock sync.Mutex
	free []*transport.Request
}

const requestsAtOnce = 64

// take returns a request that is all zero.
func (p *requests) take() *transport.Request {
	p.lock.Lock()
	defer p.lock.Unlock()
	if len(p.free) == 0 {
		block := unsafe.Slice((*transport.Request)(C.calloc(requestsAtOnce, C.sizeof_struct_pmpi_mpi_request)), requestsAtOnce)
		for i := range block {
			p.free = append(p.free, &block[i])
		}
	}
	r := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	*r = transport.Request{}
	return r
}

func (p *requests) give(r *transport.Request) {
	p.lock.Lock()
	p.free = append(p.free, r)
	p.lock.Unlock()
}
