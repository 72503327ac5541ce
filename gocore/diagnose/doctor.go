package diagnose

import (
	"encoding/hex"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// What python -m paddlempi doctor tries with the CUDA driver. What passes between ranks, Python passes
// on between the steps.
var steps = map[string]func(*Request, World) (any, error){
	"devices":   devices,
	"bandwidth": bandwidth,
	"export":    export,
	"open":      open,
	"release":   release,
	"transfer":  transfer,
}

// Request is one step of the doctor's.
type Request struct {
	Step   string `json:"step"`
	Device int    `json:"device"`
	Bytes  int64  `json:"bytes"`
	Handle string `json:"handle"` // of export, in hexadecimal
	Seed   int    `json:"seed"`   // decides what is written and expected
	To     int    `json:"to"`     // world ranks of a transfer
	From   int    `json:"from"`
}

// World returns the MPI of the ranks that a transfer goes between, and their number.
type World func() (lib mpi.Library, size int, err error)

// Run carries out one step. Its answer can be written as JSON.
func Run(r *Request, world World) (any, error) {
	step, ok := steps[r.Step]
	if !ok {
		return nil, status.New(status.Argument, "doctor_cuda: there is no step %q", r.Step)
	}
	if r.Bytes < 1 || r.Bytes > 1<<30 {
		return nil, status.New(status.Argument, "doctor_cuda: bytes is %d; it takes 1 to 2^30", r.Bytes)
	}
	return step(r, world)
}

func (r *Request) open() (*cuda.Device, error) {
	driver, err := cuda.Open()
	if err != nil {
		return nil, err
	}
	return driver.Device(r.Device)
}

// CUDA is what there is of CUDA, found without a context on a device.
type CUDA struct {
	Driver  string       `json:"driver"` // the file; "" where there is none
	Version string       `json:"version"`
	Devices []cuda.Facts `json:"devices"`
	Error   string       `json:"error"` // why there is none
}

// FindCUDA looks for the driver and its devices.
func FindCUDA() (info CUDA) {
	info.Devices = []cuda.Facts{}
	driver, err := cuda.Open()
	if err != nil {
		info.Error = err.Error()
		return info
	}
	major, minor := driver.Version()
	info.Driver, info.Version = driver.Path(), fmt.Sprintf("%d.%d", major, minor)
	for i := range driver.DeviceCount() {
		facts, err := driver.Facts(i)
		if err != nil {
			info.Error = err.Error()
			return info
		}
		info.Devices = append(info.Devices, facts)
	}
	return info
}

// devices adds to them which can reach which.
func devices(*Request, World) (any, error) {
	info := FindCUDA()
	driver, err := cuda.Open()
	if err != nil {
		return nil, err
	}
	peers := make([][]bool, len(info.Devices))
	for i := range peers {
		peers[i] = make([]bool, len(info.Devices))
		for j := range peers {
			if peers[i][j] = i == j; i == j {
				continue
			}
			if peers[i][j], err = driver.CanAccessPeer(i, j); err != nil {
				return nil, err
			}
		}
	}
	return struct {
		CUDA
		Peers [][]bool `json:"peers"`
	}{info, peers}, nil
}

// bandwidth copies between pinned memory and the device, each way a few times, and
// gives the best in bytes a second.
func bandwidth(r *Request, _ World) (any, error) {
	dev, err := r.open()
	if err != nil {
		return nil, err
	}
	host, err := dev.HostAlloc(r.Bytes)
	if err != nil {
		return nil, err
	}
	defer dev.HostFree(host)
	device, err := dev.Alloc(r.Bytes)
	if err != nil {
		return nil, err
	}
	defer dev.Free(device)
	best := func(dst, src unsafe.Pointer, s cuda.Stream) (float64, error) {
		var best float64
		for range 4 { // the first one warms up
			start := time.Now()
			if err := dev.Copy(dst, src, r.Bytes, s); err != nil {
				return 0, err
			}
			if err := dev.StreamSync(s); err != nil {
				return 0, err
			}
			best = max(best, float64(r.Bytes)/time.Since(start).Seconds())
		}
		return best, nil
	}
	in, err := best(device, host, dev.In)
	if err != nil {
		return nil, err
	}
	out, err := best(host, device, dev.Out)
	return map[string]float64{"host_to_device": in, "device_to_host": out}, err
}

// exported is the memory that other ranks open, until it is released.
var exported struct {
	sync.Mutex
	device *cuda.Device
	memory unsafe.Pointer
}

// export allocates device memory, writes to it, and returns the handle for others.
func export(r *Request, _ World) (any, error) {
	dev, err := r.open()
	if err != nil {
		return nil, err
	}
	exported.Lock()
	defer exported.Unlock()
	if exported.memory != nil {
		return nil, status.New(status.Argument, "doctor_cuda: export came twice without a release")
	}
	memory, err := dev.Alloc(r.Bytes)
	if err != nil {
		return nil, err
	}
	handle, err := dev.IPCHandle(memory)
	if err == nil {
		err = onHost(r, func(host unsafe.Pointer, content []byte) error {
			for k := range content {
				content[k] = pattern(r.Seed, r.Bytes, k)
			}
			if err := dev.Copy(memory, host, r.Bytes, dev.In); err != nil {
				return err
			}
			return dev.StreamSync(dev.In)
		})
	}
	if err != nil {
		_ = dev.Free(memory)
		return nil, err
	}
	exported.device, exported.memory = dev, memory
	return map[string]string{"handle": hex.EncodeToString(handle[:])}, nil
}

// open maps another rank's memory, reads it back and looks whether it is that rank's.
func open(r *Request, _ World) (any, error) {
	dev, err := r.open()
	if err != nil {
		return nil, err
	}
	var handle [64]byte
	if n, err := hex.Decode(handle[:], []byte(r.Handle)[:min(len(r.Handle), 128)]); err != nil || n != len(handle) {
		return nil, status.New(status.Argument, "doctor_cuda: handle is not 64 bytes in hexadecimal")
	}
	memory, err := dev.OpenIPC(handle)
	if err != nil {
		return nil, err
	}
	defer dev.CloseIPC(memory)
	return struct{}{}, onHost(r, func(host unsafe.Pointer, content []byte) error {
		if err := dev.Copy(host, memory, r.Bytes, dev.Out); err != nil {
			return err
		}
		if err := dev.StreamSync(dev.Out); err != nil {
			return err
		}
		for k := range content {
			if content[k] != pattern(r.Seed, r.Bytes, k) {
				return status.New(status.Cuda, "byte %d of %d read from another process by IPC is wrong", k, r.Bytes)
			}
		}
		return nil
	})
}

// onHost lends memory that C may see.
func onHost(r *Request, use func(host unsafe.Pointer, content []byte) error) error {
	host, err := mem.Alloc(r.Bytes)
	if err != nil {
		return err
	}
	defer mem.Free(host)
	return use(host, unsafe.Slice((*byte)(host), r.Bytes))
}

// release frees what was exported; the others have closed it.
func release(*Request, World) (any, error) {
	exported.Lock()
	defer exported.Unlock()
	if exported.memory == nil {
		return struct{}{}, nil
	}
	err := exported.device.Free(exported.memory)
	exported.device, exported.memory = nil, nil
	return struct{}{}, err
}

// transfer moves device memory between ranks through MPI. Every rank calls it; before
// that a trial has shown that it does not end the process.
func transfer(r *Request, world World) (any, error) {
	lib, size, err := world()
	if err != nil {
		return nil, err
	}
	dev, err := r.open()
	if err != nil {
		return nil, err
	}
	for _, rank := range []int{r.To, r.From} {
		if rank < 0 || rank >= size {
			return nil, status.New(status.Argument, "doctor_cuda: rank %d; the world has ranks 0 to %d", rank, size-1)
		}
	}
	comm, err := lib.Dup(lib.World())
	if err != nil {
		return nil, err
	}
	if err := moveOnDevice(lib, comm, dev, r.To, r.From, r.Bytes, trialLimit); err != nil {
		return nil, err
	}
	return struct{}{}, lib.Free(comm)
}
