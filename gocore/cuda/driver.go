package cuda

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall
#include <stdlib.h>
#include "table.h"
*/
import "C"

import (
	"strconv"
	"sync"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/dl"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Setting is the variable that names the file of the driver's library.
const Setting = "PADDLEMPI_CUDA"

// oldest is the oldest driver that is served, CUDA 11.0, in the form of cuDriverGetVersion.
const oldest = 11000

// Driver is the CUDA driver of this process. All methods are safe for concurrent use.
type Driver struct {
	path    string
	version int
	mu      sync.Mutex
	devices []*Device // by index; nil until Device is called for it
}

var (
	opening sync.Mutex
	opened  *Driver
	refused error // the reason why there is no driver; Open tries only once
)

// Open loads and initialises the driver, once for the process. If there is no driver, the error has
// the code Unsupported and says what is missing.
func Open() (*Driver, error) {
	opening.Lock()
	defer opening.Unlock()
	if opened == nil && refused == nil {
		opened, refused = open()
	}
	return opened, refused
}

// Loaded returns the driver if Open has found one already, or else nil.
func Loaded() *Driver {
	opening.Lock()
	defer opening.Unlock()
	return opened
}

func open() (*Driver, error) {
	name, set := dl.Getenv(Setting)
	if !set || name == "" {
		name = "libcuda.so.1"
	}
	lib, err := dl.Open(name, dl.Now|dl.Local)
	if err != nil {
		return nil, status.New(status.Unsupported, "no CUDA driver: %v; install NVIDIA's driver (not only the CUDA toolkit), give the container its GPUs, or set %s to the path of libcuda.so.1", err, Setting)
	}
	for i := 0; ; i++ {
		f := C.pc_name(C.int(i))
		if f == nil {
			break
		}
		address := lib.Lookup(C.GoString(f))
		if address == nil {
			return nil, status.New(status.Unsupported, "the CUDA driver at %s is too old: it has no %s; this needs a driver of CUDA 11.0 or later", lib.Path(), C.GoString(f))
		}
		C.pc_set(C.int(i), address)
	}
	d := &Driver{path: lib.Path()}
	var version C.int
	if rc := C.pc_version(&version); rc != 0 {
		return nil, d.fail(nil, "cuDriverGetVersion", rc)
	}
	if d.version = int(version); d.version < oldest {
		return nil, status.New(status.Unsupported, "the CUDA driver at %s is of CUDA %d.%d; this needs one of CUDA 11.0 or later: update the driver",
			d.path, d.version/1000, d.version%1000/10)
	}
	if rc := C.pc_init(); rc != 0 {
		return nil, d.fail(nil, "cuInit", rc)
	}
	var n C.int
	if rc := C.pc_device_count(&n); rc != 0 {
		return nil, d.fail(nil, "cuDeviceGetCount", rc)
	}
	d.devices = make([]*Device, int(n))
	return d, nil
}

// Path returns the file from which the driver was loaded.
func (d *Driver) Path() string { return d.path }

// Version returns the version of CUDA that the driver serves.
func (d *Driver) Version() (major, minor int) { return d.version / 1000, d.version % 1000 / 10 }

// DeviceCount returns the number of devices that this process sees (CUDA_VISIBLE_DEVICES).
func (d *Driver) DeviceCount() int { return len(d.devices) }

// Device returns device i. The first call retains its primary context, which is never released. The
// frameworks use the same context.
func (d *Driver) Device(i int) (*Device, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if i < 0 || i >= len(d.devices) {
		return nil, status.New(status.Argument, "there is no CUDA device %d: this process sees %d (CUDA_VISIBLE_DEVICES)", i, len(d.devices))
	}
	if d.devices[i] == nil {
		dev, err := d.newDevice(i)
		if err != nil {
			return nil, err
		}
		d.devices[i] = dev
	}
	return d.devices[i], nil
}

// Kind is a kind of memory.
type Kind int

const (
	Host    Kind = iota // pageable memory, which the driver does not know
	Pinned              // host memory that devices can access
	Managed             // moves between host and device
	OnDevice
)

// Location says in which memory a pointer is.
type Location struct {
	Kind   Kind
	Device int     // for the kinds Managed and OnDevice
	Base   uintptr // start of the allocation; Size is its length in bytes
	Size   int64
	// ID identifies the allocation in this process. Unlike its address it is never used again.
	ID uint64
	// IPC tells whether cuIpcGetMemHandle takes this kind of allocation. It does not take pool
	// memory, virtual memory management (expandable segments) and managed memory.
	IPC bool
}

// Where returns the location of a pointer.
func (d *Driver) Where(p unsafe.Pointer) (Location, error) {
	const host, device = 1, 2
	var kind, managed, ordinal, ipc C.int
	var id C.uint64_t
	var base C.uintptr_t
	var size C.int64_t
	rc := C.pc_where(C.uintptr_t(uintptr(p)), &kind, &managed, &ordinal, &id, &base, &size, &ipc)
	if rc == C.PC_INVALID_VALUE { // pageable memory, to drivers before CUDA 11 (which open refuses)
		return Location{}, nil
	}
	if rc != 0 {
		return Location{}, d.fail(nil, "cuPointerGetAttributes", rc)
	}
	l := Location{Device: int(ordinal), Base: uintptr(base), Size: int64(size), ID: uint64(id), IPC: ipc != 0}
	switch {
	case managed != 0:
		l.Kind, l.IPC = Managed, false
	case kind == device:
		l.Kind = OnDevice
	case kind == host:
		l.Kind, l.IPC = Pinned, false
	default:
		l = Location{}
	}
	return l, nil
}

// fail makes an error of a CUresult other than 0. dev is nil if the call was not for a device.
func (d *Driver) fail(dev *Device, call string, rc C.int) error {
	var name, text *C.char
	C.pc_error(rc, &name, &text)
	where := ""
	if dev != nil {
		where = " on CUDA device " + strconv.Itoa(dev.Index)
	}
	what := C.GoString(name) + " (" + strconv.Itoa(int(rc)) + ")"
	switch {
	case rc == C.PC_OUT_OF_MEMORY:
		return status.New(status.NoMemory, "%s%s: %s: %s", call, where, what, C.GoString(text))
	case rc == C.PC_NO_DEVICE:
		return status.New(status.Unsupported, "%s: %s: the driver sees no CUDA device; look at nvidia-smi, CUDA_VISIBLE_DEVICES and what the container was given", call, what)
	case rc == C.PC_NOT_INITIALIZED && dev == nil:
		return status.New(status.Unsupported, "%s: %s: the CUDA driver does not start in this process; it never does after a fork: start workers with the spawn method", call, what)
	case sticky(int(rc)):
		return status.New(status.Cuda, "%s%s: %s: %s. An operation queued on the device before has failed, most likely a kernel of the program's own: paddlempi only reports it, "+
			"and every later call in this process will fail with the same error. With CUDA_LAUNCH_BLOCKING=1 the failing call itself raises", call, where, what, C.GoString(text))
	}
	return status.New(status.Cuda, "%s%s: %s: %s", call, where, what, C.GoString(text))
}

// sticky tells whether the error is of work that was queued before, and all later calls in the
// context will return it, too.
func sticky(rc int) bool {
	switch rc {
	case 214, 220, 226: // ECC_UNCORRECTABLE, NVLINK_UNCORRECTABLE, CONTAINED
		return true
	}
	return rc >= 700 && rc <= 719 && rc != 701 && rc != 704 && rc != 705 && rc != 708 && rc != 712 && rc != 713
}
