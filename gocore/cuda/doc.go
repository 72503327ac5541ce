// Package cuda is the CUDA driver of a process, found at run time: libcuda.so.1 by dlopen, a table
// of calls, the primary contexts of the devices, and the kernels as PTX. A build needs nothing of
// CUDA, and a machine without a GPU is not affected (design D6).
//
// A call may come from any thread. It runs in the primary context of its device, which the
// frameworks use, too, and leaves the thread's current context as it was.
package cuda
