package control

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/method"
	"github.com/paddlempi/paddlempi/gocore/registry"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// handler carries a method out. name is the method's, for errors.
type handler func(name string, request []byte, interrupt work.Interrupt) (reply any, err error)

// done is the reply of a method that has nothing to say.
var done = struct{}{}

// with makes a method of a function of its request.
func with[R any](f func(R, work.Interrupt) (any, error)) handler {
	return func(name string, request []byte, interrupt work.Interrupt) (any, error) {
		var r R
		if err := method.Parse(name, request, &r); err != nil {
			return nil, err
		}
		return f(r, interrupt)
	}
}

// ofGroup is the part of a request that names a group.
type ofGroup struct {
	Group int64 `json:"group"`
}

func (r ofGroup) group() (*group.Group, error) { return registry.Group(r.Group) }

// timeoutRequest names a group and a timeout.
type timeoutRequest struct {
	ofGroup
	Timeout *float64 `json:"timeout"`
}

// namesGroup is a request that has an ofGroup.
type namesGroup interface{ group() (*group.Group, error) }

// withGroup is with for a function that also takes the group that its request names.
func withGroup[R namesGroup](f func(*group.Group, R, work.Interrupt) (any, error)) handler {
	return with(func(r R, interrupt work.Interrupt) (any, error) {
		g, err := r.group()
		if err != nil {
			return nil, err
		}
		return f(g, r, interrupt)
	})
}

// memory is the part of a request that names memory of this process.
type memory struct {
	Address uint64 `json:"address"`
	Bytes   int64  `json:"bytes"`
}

func (m *memory) at() unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&m.Address)) }
