package cma

const sysReadv = 310 // process_vm_readv
