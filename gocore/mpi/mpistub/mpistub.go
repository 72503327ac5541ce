// Package mpistub has functions of MPI in C that say of requests what a test wants them to say. mpifake, in Go, has none of
// the C side of package mpi.
package mpistub

/*
#include <stdint.h>
#include <string.h>

enum { MOST = 256 };

// What is said of the request with a handle.
static struct {
	int32_t size, source, tag, error; // of the layout of MPI_Status
	int32_t narrow;                   // handles have 4 bytes
	int32_t in_status;                // the code MPI_ERR_IN_STATUS
	int32_t fails;                    // the code that Testsome returns, if it is not 0
	int32_t said[MOST];               // by handle: -1 under way, 0 done, else the code of an error
	int32_t looks;                    // calls of Testsome and Test
} now;

static void say(char *status, int32_t h)
{
	memset(status, 0x55, (size_t)now.size); // what MPI does not write is not zero
	memcpy(status + now.source, &h, sizeof h);
	memcpy(status + now.tag, &h, sizeof h);
}

static int stub_testsome(int n, void *requests, int *count, int *index, char *statuses)
{
	int rc = 0;
	now.looks++;
	*count = 0;
	if (now.fails != 0)
		return now.fails;
	for (int i = 0; i < n; i++) {
		uint64_t wide = ((uint64_t *)requests)[now.narrow ? 0 : i];
		int32_t h = now.narrow ? ((int32_t *)requests)[i] : (int32_t)wide;
		if (now.said[h] < 0)
			continue;
		char *status = statuses + *count * now.size;
		say(status, h);
		if (now.said[h] != 0) {
			rc = now.in_status;
			memcpy(status + now.error, &now.said[h], sizeof now.said[h]);
		}
		index[(*count)++] = i;
	}
	for (int i = 0; i < *count && rc != 0; i++) // those that are well have success then
		if (now.said[now.narrow ? ((int32_t *)requests)[index[i]] : (int32_t)((uint64_t *)requests)[index[i]]] == 0)
			memset(statuses + i * now.size + now.error, 0, 4);
	return rc;
}

static int stub_test(void *request, int *flag, char *status)
{
	int32_t h = *(int32_t *)request; // little-endian
	now.looks++;
	*flag = now.said[h] >= 0;
	say(status, h);
	return *flag ? now.said[h] : 0;
}

static int stub_error_class(int code, int *class) { *class = code; return 0; }
static int stub_cancelled(const void *status, int *flag) { *flag = 0; return 0; }

// The length of a message is 100 more than its source.
static int stub_elements(const char *status, uint64_t type, int64_t *n)
{
	int32_t source;
	memcpy(&source, status + now.source, sizeof source);
	*n = 100 + source;
	return 0;
}

static int stub_other(void) { return 0; }

static void *const functions[] = {stub_testsome, stub_test, stub_error_class, stub_cancelled, stub_elements, stub_other};
static void *function(int i) { return functions[i]; }
static void set(const int32_t *layout, int narrow, int in_status, int fails)
{
	memset(&now, 0, sizeof now);
	now.size = layout[0]; now.source = layout[1]; now.tag = layout[2]; now.error = layout[3];
	now.narrow = narrow; now.in_status = in_status; now.fails = fails;
	for (int i = 0; i < MOST; i++)
		now.said[i] = -1;
}
static void tell(int h, int what) { now.said[h] = what; }
static int looks(void) { return now.looks; }
*/
import "C"

import "unsafe"

// UnderWay as what is said of a request; 0 is success, and other values are codes of errors.
const UnderWay = -1

var functions = map[string]C.int{"MPI_Testsome": 0, "MPI_Test": 1, "MPI_Error_class": 2, "MPI_Test_cancelled": 3, "MPI_Get_elements_x": 4}

// Lookup returns a function of MPI. Those that are not about requests return success.
func Lookup(name string) unsafe.Pointer {
	i, ok := functions[name]
	if !ok {
		i = 5
	}
	return C.function(i)
}

// Layout is that of MPI_Status, in bytes.
type Layout struct{ Size, Source, Tag, Error int32 }

// Begin forgets what was said. From now on all requests are under way. inStatus is the code MPI_ERR_IN_STATUS. If fails is not 0, MPI_Testsome
// returns it and does nothing.
func Begin(l Layout, narrowHandles bool, inStatus, fails int32) {
	narrow := C.int(0)
	if narrowHandles {
		narrow = 1
	}
	C.set((*C.int32_t)(unsafe.Pointer(&l)), narrow, C.int(inStatus), C.int(fails))
}

// Say says what the functions say of the request with a handle, from 0 to 255.
func Say(handle int, what int32) { C.tell(C.int(handle), C.int(what)) }

// Looks returns how often requests were tested.
func Looks() int { return int(C.looks()) }
