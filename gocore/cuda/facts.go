package cuda

import "github.com/paddlempi/paddlempi/gocore/status"

// Facts returns the properties of device i. It makes no context on the device.
func (d *Driver) Facts(i int) (Facts, error) {
	if i < 0 || i >= d.DeviceCount() {
		return Facts{}, status.New(status.Argument, "there is no CUDA device %d: this process sees %d (CUDA_VISIBLE_DEVICES)", i, d.DeviceCount())
	}
	return (&Device{Index: i, driver: d}).Facts()
}

// CanAccessPeer tells whether kernels of device i can access memory of device other. It makes no
// context on either.
func (d *Driver) CanAccessPeer(i, other int) (bool, error) {
	return (&Device{Index: i, driver: d}).CanAccessPeer(other)
}
