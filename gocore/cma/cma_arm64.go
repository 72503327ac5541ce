package cma

const sysReadv = 270 // process_vm_readv
