/* Errors. MPI has codes, and a function that turns a code into a text. XLA calls it at once and
 * puts the text into its own error. So the latest texts are kept here, each under a code of its
 * own. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "trampoline.h"

enum {
	FIRST_CODE = 0x10000, /* above the classes of MPI */
	KEPT = 64,            /* at most so many threads fail at the same time */
	ROOM = 1024           /* MPI_MAX_ERROR_STRING of jaxlib's client */
};

static struct {
	int code, class;
	char text[ROOM];
} kept[KEPT];
static int next = FIRST_CODE;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int keep(int class, const char *function, const char *text) {
	pthread_mutex_lock(&lock);
	int code = next;
	next = next == INT32_MAX ? FIRST_CODE : next + 1;
	kept[code % KEPT].code = code;
	kept[code % KEPT].class = class;
	char *out = kept[code % KEPT].text;
	int n = this_job.core
				? snprintf(out, ROOM, "paddlempi, rank %d, %s: %s", this_job.rank, function, text)
				: snprintf(out, ROOM, "paddlempi, %s: %s", function, text);
	if (n >= ROOM)
		memcpy(out + ROOM - 4, "...", 4);
	pthread_mutex_unlock(&lock);
	return code;
}

int core_error(const char *function) {
	enum { OTHER = 16 };
	const pmpi_error *e = this_job.core->last_error();
	return keep(e->mpi_class ? e->mpi_class : OTHER, function, e->message);
}

int own_error(const char *function, int class, const char *format, ...) {
	char text[ROOM];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	return keep(class, function, text);
}

int refused(const char *name) {
	enum { UNSUPPORTED_OPERATION = 58 };
	char function[64];
	snprintf(function, sizeof function, "MPI_%s", name);
	return keep(UNSUPPORTED_OPERATION, function,
				"this function is not carried out for XLA; its collectives do not need it");
}

int error_text(int code, char *text, int room) {
	pthread_mutex_lock(&lock);
	int class = code;
	if (code < FIRST_CODE) {
		snprintf(text, room, code == 0 ? "no error" : "error class %d of MPI", code);
	} else if (kept[code % KEPT].code == code) {
		class = kept[code % KEPT].class;
		snprintf(text, room, "%s", kept[code % KEPT].text);
	} else {
		snprintf(text, room, "an error whose text is not kept any more: %d others followed", KEPT);
	}
	pthread_mutex_unlock(&lock);
	return class;
}
