package buffer

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Locate returns the device of a tensor that its caller says is on one, and where exactly its
// memory is.
func Locate(code op.Code, side string, i int, b *op.Buf) (*cuda.Device, cuda.Location, error) {
	if b.DeviceType != op.DeviceCUDA && b.DeviceType != op.DeviceCUDAManaged {
		return nil, cuda.Location{}, status.New(status.Unsupported, "%s: %s tensor %d is in the memory of a device of DLPack type %d; CUDA's and the host's are served: copy it to the CPU first",
			code, side, i, b.DeviceType)
	}
	driver, err := cuda.Open()
	if err != nil {
		return nil, cuda.Location{}, status.New(status.Unsupported, "%s: %s tensor %d is on CUDA device %d: %v", code, side, i, b.DeviceID, err)
	}
	at := cuda.Location{Kind: cuda.OnDevice, Device: int(b.DeviceID)}
	if b.Count > 0 {
		if at, err = driver.Where(b.Data); err != nil {
			return nil, at, err
		}
		switch at.Kind {
		case cuda.Host:
			return nil, at, status.New(status.Argument, "%s: %s tensor %d says that it is on CUDA device %d, but the driver does not know its memory at %p: it was freed, or belongs to another driver",
				code, side, i, b.DeviceID, b.Data)
		case cuda.Pinned, cuda.Managed:
			at.Device = int(b.DeviceID)
		}
	}
	dev, err := driver.Device(at.Device)
	return dev, at, err
}

// Beside is Locate for a tensor of a call whose other tensors are on the device on; nil: none of them is on one yet. kind names
// the call in an error: "call", "message".
func Beside(code op.Code, side string, i int, b *op.Buf, on *cuda.Device, kind string) (*cuda.Device, cuda.Location, error) {
	dev, at, err := Locate(code, side, i, b)
	if err == nil && on != nil && on != dev {
		err = status.New(status.Argument, "%s: %s tensor %d is on CUDA device %d, another tensor of the %s on device %d; all device tensors of a %s must be on one device",
			code, side, i, dev.Index, kind, on.Index, kind)
	}
	return dev, at, err
}

// Lasting returns b without what its caller keeps only during Submit: shape and strides are copies, and a contiguous tensor
// has none.
func Lasting(b *op.Buf) op.Buf {
	if !b.Contiguous() {
		return *Layout(b)
	}
	flat := *b
	flat.NDim, flat.Shape, flat.Strides = 0, nil, nil
	return flat
}

// Layout returns b with copies of its shape and strides, which the caller keeps only during Submit.
// Only Go reads the copies.
func Layout(b *op.Buf) *op.Buf {
	described := *b
	dims := append(append(make([]int64, 0, 2*b.NDim), b.Dims()...), b.Steps()...)
	described.Shape, described.Strides = unsafe.Pointer(&dims[0]), unsafe.Pointer(&dims[b.NDim])
	return &described
}

// Mark returns an event that follows everything that stream has queued by now.
func Mark(code op.Code, dev *cuda.Device, stream cuda.Stream) (cuda.Event, error) {
	capturing, err := dev.Capturing(stream)
	if err != nil {
		return 0, err
	}
	if capturing {
		return 0, status.New(status.Unsupported, "%s: the stream of the tensors on CUDA device %d is being captured into a graph, and MPI cannot be part of one: call it outside of the capture", code, dev.Index)
	}
	var e cuda.Event
	err = dev.Mark(&e, stream)
	return e, err
}
