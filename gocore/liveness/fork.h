// The descriptors of liveness in a forked child. A connection ends only when all processes that
// have it have closed it. So a child that has inherited it would hide the death of its parent.
#ifndef PADDLEMPI_LIVENESS_FORK_H
#define PADDLEMPI_LIVENESS_FORK_H

// pl_note has a forked child close fd. It is called after fd was opened.
void pl_note(int fd);

// pl_forget takes pl_note back. It is called before fd is closed, so that a child never closes a
// descriptor that has got the same number.
void pl_forget(int fd);

#endif
