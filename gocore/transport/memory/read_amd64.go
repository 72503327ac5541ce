package memory

const sysReadv = 310 // process_vm_readv
