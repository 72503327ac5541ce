package collective

import (
	"github.com/paddlempi/paddlempi/gocore/buffer"
	"github.com/paddlempi/paddlempi/gocore/neighbours"
)

// copies stand in place of tensors of a call.
type copies struct {
	staged []buffer.Staging   // contiguous ones of host tensors that are not
	shadow *neighbours.Shadow // of tensors in device memory that are exchanged with neighbours; or nil
}

// pack copies the tensors that are not contiguous to memory that is.
func (k *copies) pack() error {
	for i := range k.staged {
		if err := k.staged[i].Pack(); err != nil {
			return err
		}
	}
	return nil
}

// unpack writes results back, unless the operation failed.
func (k *copies) unpack(err error) error {
	for i := range k.staged {
		if err == nil {
			err = k.staged[i].Unpack()
		}
	}
	if err == nil && k.shadow != nil {
		err = k.shadow.Write()
	}
	return err
}

// free gives them back.
func (k *copies) free() {
	for i := range k.staged {
		k.staged[i].Free()
	}
	if k.shadow != nil {
		k.shadow.Free()
	}
	*k = copies{}
}
