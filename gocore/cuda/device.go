package cuda

/*
#include <stdlib.h>
#include "table.h"
*/
import "C"

import (
	"runtime"
	"strings"
	"sync"
	"unsafe"
)

// Stream is a CUstream. 0 and 1 are the legacy default stream, 2 is the calling thread's default
// stream.
type Stream uintptr

// Event is a CUevent without timing.
type Event uintptr

// Function is a kernel.
type Function uintptr

// Device is a device with its primary context and the streams of this library. These streams do not
// synchronise with the legacy default stream, and have the highest priority. All methods are safe
// for concurrent use.
type Device struct {
	Index int
	// Out carries copies to the host, In copies to the device, and Comm kernels and copies between
	// devices.
	Out, In, Comm Stream

	driver     *Driver
	context    C.uintptr_t
	processors int
	mu         sync.Mutex
	events     []Event // events that are not in use
	modules    map[string]C.uintptr_t
	kernels    map[string]Function
}

// Numbers of CUdevice_attribute.
const (
	attributeProcessors = 16
	attributeMajor      = 75
	attributeMinor      = 76
)

func (d *Driver) newDevice(i int) (*Device, error) {
	v := &Device{Index: i, driver: d, modules: map[string]C.uintptr_t{}, kernels: map[string]Function{}}
	if rc := C.pc_device_context(C.int(i), &v.context); rc != 0 {
		return nil, v.fail("cuDevicePrimaryCtxRetain", rc)
	}
	var processors C.int
	if rc := C.pc_device_attribute(C.int(i), attributeProcessors, &processors); rc != 0 {
		return nil, v.fail("cuDeviceGetAttribute", rc)
	}
	v.processors = int(processors)
	for _, s := range []*Stream{&v.Out, &v.In, &v.Comm} {
		if rc := C.pc_stream_new(v.context, (*C.uintptr_t)(unsafe.Pointer(s))); rc != 0 {
			return nil, v.fail("cuStreamCreateWithPriority", rc)
		}
	}
	return v, nil
}

func (v *Device) fail(call string, rc C.int) error {
	if rc == 0 {
		return nil
	}
	return v.driver.fail(v, call, rc)
}

// Facts are properties of a device.
type Facts struct {
	Name       string   `json:"name"`
	UUID       string   `json:"uuid"`
	Bus        string   `json:"bus"` // PCI address
	Memory     int64    `json:"memory_bytes"`
	Capability [2]int   `json:"compute_capability"`
	Processors int      `json:"multiprocessors"`
	UUIDBytes  [16]byte `json:"-"`
}

// Facts reads the properties of the device from the driver.
func (v *Device) Facts() (Facts, error) {
	var f Facts
	var text [256]C.char
	if rc := C.pc_device_name(C.int(v.Index), &text[0], 256); rc != 0 {
		return f, v.fail("cuDeviceGetName", rc)
	}
	f.Name = C.GoString(&text[0])
	if rc := C.pc_device_bus(C.int(v.Index), &text[0], 256); rc != 0 {
		return f, v.fail("cuDeviceGetPCIBusId", rc)
	}
	f.Bus = strings.ToLower(C.GoString(&text[0]))
	if rc := C.pc_device_uuid(C.int(v.Index), (*C.char)(unsafe.Pointer(&f.UUIDBytes[0]))); rc != 0 {
		return f, v.fail("cuDeviceGetUuid", rc)
	}
	f.UUID = uuidText(f.UUIDBytes)
	var bytes C.int64_t
	if rc := C.pc_device_memory(C.int(v.Index), &bytes); rc != 0 {
		return f, v.fail("cuDeviceTotalMem", rc)
	}
	f.Memory = int64(bytes)
	for attribute, to := range map[C.int]*int{attributeMajor: &f.Capability[0], attributeMinor: &f.Capability[1]} {
		var value C.int
		if rc := C.pc_device_attribute(C.int(v.Index), attribute, &value); rc != 0 {
			return f, v.fail("cuDeviceGetAttribute", rc)
		}
		*to = int(value)
	}
	f.Processors = v.processors
	return f, nil
}

// uuidText writes a UUID as nvidia-smi does.
func uuidText(b [16]byte) string {
	const hex = "0123456789abcdef"
	var s strings.Builder
	s.WriteString("GPU-")
	for i, c := range b {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			s.WriteByte('-')
		}
		s.WriteByte(hex[c>>4])
		s.WriteByte(hex[c&15])
	}
	return s.String()
}

// CanAccessPeer tells whether kernels of v can access memory of device other.
func (v *Device) CanAccessPeer(other int) (bool, error) {
	var can C.int
	rc := C.pc_device_can_access(C.int(v.Index), C.int(other), &can)
	return can != 0, v.fail("cuDeviceCanAccessPeer", rc)
}

// Alloc returns device memory, which the caller gives back with Free.
func (v *Device) Alloc(bytes int64) (unsafe.Pointer, error) {
	var p unsafe.Pointer
	rc := C.pc_alloc(v.context, C.int64_t(bytes), (*C.uintptr_t)(unsafe.Pointer(&p)))
	return p, v.fail("cuMemAlloc", rc)
}

// Free gives back memory of Alloc. It waits for the device.
func (v *Device) Free(p unsafe.Pointer) error {
	return v.fail("cuMemFree", C.pc_free(v.context, C.uintptr_t(uintptr(p))))
}

// HostAlloc returns pinned host memory, which all devices access at the same address.
func (v *Device) HostAlloc(bytes int64) (unsafe.Pointer, error) {
	var p unsafe.Pointer
	rc := C.pc_host_alloc(v.context, C.int64_t(bytes), (*C.uintptr_t)(unsafe.Pointer(&p)))
	return p, v.fail("cuMemHostAlloc", rc)
}

// HostFree gives back memory of HostAlloc. It may wait for the device.
func (v *Device) HostFree(p unsafe.Pointer) error {
	return v.fail("cuMemFreeHost", C.pc_host_free(v.context, C.uintptr_t(uintptr(p))))
}

// Copy queues a copy on s, between host memory and device memory in any combination. If host memory
// is not pinned, the call may wait for the copy.
func (v *Device) Copy(dst, src unsafe.Pointer, bytes int64, s Stream) error {
	if bytes == 0 {
		return nil
	}
	rc := C.pc_copy(v.context, C.uintptr_t(uintptr(dst)), C.uintptr_t(uintptr(src)), C.int64_t(bytes), C.uintptr_t(s))
	return v.fail("cuMemcpyAsync", rc)
}

// StreamWait makes work that is queued on s from now on wait for what e stands for now. An event
// that was never recorded stands for nothing.
func (v *Device) StreamWait(s Stream, e Event) error {
	return v.fail("cuStreamWaitEvent", C.pc_stream_wait(v.context, C.uintptr_t(s), C.uintptr_t(e)))
}

// Capturing tells whether s is being captured into a CUDA graph.
func (v *Device) Capturing(s Stream) (bool, error) {
	var is C.int
	rc := C.pc_stream_capturing(v.context, C.uintptr_t(s), &is)
	return is != 0, v.fail("cuStreamIsCapturing", rc)
}

// StreamSync waits for all work that is queued on s.
func (v *Device) StreamSync(s Stream) error {
	return v.fail("cuStreamSynchronize", C.pc_stream_sync(v.context, C.uintptr_t(s)))
}

// NewEvent makes an event. If ipc is set, other processes can open it.
func (v *Device) NewEvent(ipc bool) (Event, error) {
	var e Event
	flag := C.int(0)
	if ipc {
		flag = 1
	}
	rc := C.pc_event_new(v.context, flag, (*C.uintptr_t)(unsafe.Pointer(&e)))
	return e, v.fail("cuEventCreate", rc)
}

// FreeEvent destroys an event. Streams that wait for it still do.
func (v *Device) FreeEvent(e Event) error {
	return v.fail("cuEventDestroy", C.pc_event_free(v.context, C.uintptr_t(e)))
}

// GetEvent returns an event that is not in use. PutEvent gives it back. Streams that wait for it
// still wait for what it stood for.
func (v *Device) GetEvent() (Event, error) {
	v.mu.Lock()
	if n := len(v.events); n > 0 {
		e := v.events[n-1]
		v.events = v.events[:n-1]
		v.mu.Unlock()
		return e, nil
	}
	v.mu.Unlock()
	return v.NewEvent(false)
}

// PutEvent gives back an event of GetEvent.
func (v *Device) PutEvent(e Event) {
	v.mu.Lock()
	v.events = append(v.events, e)
	v.mu.Unlock()
}

// Mark makes *e stand for all work that is queued on s by now. If *e is 0, Mark first sets it by
// GetEvent.
func (v *Device) Mark(e *Event, s Stream) error {
	if *e != 0 {
		return v.Record(*e, s)
	}
	fresh, err := v.GetEvent()
	if err != nil {
		return err
	}
	if err := v.Record(fresh, s); err != nil {
		v.PutEvent(fresh)
		return err
	}
	*e = fresh
	return nil
}

// Record makes e stand for all work that is queued on s by now.
func (v *Device) Record(e Event, s Stream) error {
	return v.fail("cuEventRecord", C.pc_event_record(v.context, C.uintptr_t(e), C.uintptr_t(s)))
}

// Query tells whether the work that e stands for has ended.
func (v *Device) Query(e Event) (bool, error) {
	rc := C.pc_event_query(v.context, C.uintptr_t(e))
	if rc == C.PC_NOT_READY {
		return false, nil
	}
	return rc == 0, v.fail("cuEventQuery", rc)
}

// IPCHandle returns a handle with which another process of this host can open the allocation of p.
// It names the allocation, not p.
func (v *Device) IPCHandle(p unsafe.Pointer) (h [64]byte, err error) {
	rc := C.pc_ipc_get(v.context, C.uintptr_t(uintptr(p)), (*C.pc_handle)(unsafe.Pointer(&h)))
	return h, v.fail("cuIpcGetMemHandle", rc)
}

// OpenIPC maps an allocation of another process until CloseIPC.
func (v *Device) OpenIPC(h [64]byte) (unsafe.Pointer, error) {
	var p unsafe.Pointer
	rc := C.pc_ipc_open(v.context, (*C.pc_handle)(unsafe.Pointer(&h)), (*C.uintptr_t)(unsafe.Pointer(&p)))
	return p, v.fail("cuIpcOpenMemHandle", rc)
}

// CloseIPC unmaps an allocation that OpenIPC mapped.
func (v *Device) CloseIPC(p unsafe.Pointer) error {
	return v.fail("cuIpcCloseMemHandle", C.pc_ipc_close(v.context, C.uintptr_t(uintptr(p))))
}

// IPCEventHandle returns a handle with which another process can open e, an event of
// NewEvent(true).
func (v *Device) IPCEventHandle(e Event) (h [64]byte, err error) {
	rc := C.pc_ipc_get_event(v.context, C.uintptr_t(e), (*C.pc_handle)(unsafe.Pointer(&h)))
	return h, v.fail("cuIpcGetEventHandle", rc)
}

// OpenIPCEvent opens an event of another process until FreeEvent.
func (v *Device) OpenIPCEvent(h [64]byte) (Event, error) {
	var e Event
	rc := C.pc_ipc_open_event(v.context, (*C.pc_handle)(unsafe.Pointer(&h)), (*C.uintptr_t)(unsafe.Pointer(&e)))
	return e, v.fail("cuIpcOpenEventHandle", rc)
}

// Kernel returns the kernel of that name from the PTX text of a module. The first call for a module
// compiles it for the device.
func (v *Device) Kernel(module, ptx, name string) (Function, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if f, ok := v.kernels[name]; ok {
		return f, nil
	}
	m, ok := v.modules[module]
	if !ok {
		text := C.CString(ptx)
		defer C.free(unsafe.Pointer(text))
		if rc := C.pc_module_load(v.context, text, &m); rc != 0 {
			return 0, v.fail("cuModuleLoadData of "+module, rc)
		}
		v.modules[module] = m
	}
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	var f Function
	if rc := C.pc_module_function(v.context, m, n, (*C.uintptr_t)(unsafe.Pointer(&f))); rc != 0 {
		return 0, v.fail("cuModuleGetFunction of "+name, rc)
	}
	v.kernels[name] = f
	return f, nil
}

// Launch queues a kernel with one parameter: a struct without Go pointers, which is copied during
// the call.
func (v *Device) Launch(f Function, grid, block uint32, parameter unsafe.Pointer, s Stream) error {
	rc := C.pc_launch(v.context, C.uintptr_t(f), C.uint32_t(grid), C.uint32_t(block), parameter, C.uintptr_t(s))
	return v.fail("cuLaunchKernel", rc)
}

// Wait waits on this thread until e has ended. It polls and yields, because a synchronising call of
// the driver would keep the thread in C.
func (v *Device) Wait(e Event) error {
	for {
		done, err := v.Query(e)
		if done || err != nil {
			return err
		}
		runtime.Gosched()
	}
}
