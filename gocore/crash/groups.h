/* What groups and windows are called in the line that a crash prints. A signal handler cannot ask
 * Go, so Go writes it down here when a group or a window is made. */
#ifndef PADDLEMPI_CRASH_GROUPS_H
#define PADDLEMPI_CRASH_GROUPS_H

#include <stdint.h>

#pragma GCC visibility push(hidden)

enum { CRASH_TEXT = 112 };

/* A group: its number, the rank of this process in the world, and its text, which ends with 0. */
typedef struct crash_group {
	int64_t id;
	int32_t rank;
	char text[CRASH_TEXT];
} crash_group;

/* crash_name_group notes a group, and crash_name_window of which group a window is. Calls come one
 * at a time. A later group may take the place of an older one. */
void crash_name_group(int64_t id, int32_t rank, const char *text);
void crash_name_window(int64_t window, int64_t group);

/* crash_initial says which group the number 0 stands for. */
void crash_initial(int64_t id);

/* crash_group_of returns a group, crash_group_of_window that of a window. NULL: it is not known.
 * Both may be called in a signal handler. */
const crash_group *crash_group_of(int64_t id);
const crash_group *crash_group_of_window(int64_t window);

#pragma GCC visibility pop

#endif
