#ifndef PADDLEMPI_DESCRIPTORS_FORK_H
#define PADDLEMPI_DESCRIPTORS_FORK_H

void pd_note(int fd);
void pd_forget(int fd);

#endif
