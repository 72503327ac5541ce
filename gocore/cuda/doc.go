// Package cuda is the CUDA driver, found at run time: libcuda.so.1 by dlopen, one table of
// calls, the primary contexts of the devices, and the kernels as PTX. Nothing of CUDA is
// needed to build, and a machine without a GPU never notices (design D6).
//
// Every call may come from any thread: it runs in the primary context of its device, which
// is the one that the frameworks use, and leaves the thread's own context as it was.
package cuda
