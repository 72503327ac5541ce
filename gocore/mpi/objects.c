// All that is not on the hot path: the table, start and end of MPI, communicators, datatypes, ops,
// attributes and signal handlers.
#define _GNU_SOURCE // NSIG; before any header
#include "calls.h"

#include <signal.h>
#include <stddef.h>
#include <stdlib.h>

#include "table.h"

#define NAMES(name, blocking, nonblocking) "MPI_" #name, "MPI_I" #name,
#define NAME(name, args)                   "MPI_" #name,

// The nonblocking names are MPI_IBcast and so on here. MPI spells them MPI_Ibcast, and the caller
// corrects them.
static const char *const function_names[] = {COLLECTIVES(NAMES) OTHERS(NAME) OPTIONAL(NAME)
												 NEWER(NAME)};
static const char *const optional_names[] = {OPTIONAL(NAME) NEWER(NAME)};

enum {
	FUNCTIONS = sizeof function_names / sizeof function_names[0],
	OPTIONALS = sizeof optional_names / sizeof optional_names[0],
};

_Static_assert(sizeof(struct pmpi_mpi_functions) == FUNCTIONS * sizeof(void *),
			   "one pointer a name");

struct pmpi_mpi_table *pmpi_mpi_new(void) {
	return calloc(1, sizeof(struct pmpi_mpi_table));
}

void pmpi_mpi_free(struct pmpi_mpi_table *t) {
	free(t);
}

const char *pmpi_mpi_function_name(int i) {
	return i < FUNCTIONS ? function_names[i] : NULL;
}

int pmpi_mpi_function_is_optional(int i) {
	return i >= FUNCTIONS - OPTIONALS;
}

void pmpi_mpi_set_function(struct pmpi_mpi_table *t, int i, void *symbol) {
	((void **)&t->f)[i] = symbol;
}

void pmpi_mpi_set_constants(struct pmpi_mpi_table *t, const struct pmpi_mpi_constants *k) {
	t->k = *k;
}

int pmpi_mpi_initialized(const struct pmpi_mpi_table *t, int *flag) {
	return t->f.Initialized(flag);
}

int pmpi_mpi_finalized(const struct pmpi_mpi_table *t, int *flag) {
	return t->f.Finalized(flag);
}

int pmpi_mpi_init(const struct pmpi_mpi_table *t, int required, int *provided) {
	return t->f.Init_thread(NULL, NULL, required, provided);
}

int pmpi_mpi_query_thread(const struct pmpi_mpi_table *t, int *provided) {
	return t->f.Query_thread(provided);
}

int pmpi_mpi_finalize(const struct pmpi_mpi_table *t) {
	return t->f.Finalize();
}

int pmpi_mpi_abort(const struct pmpi_mpi_table *t, uintptr_t comm, int code) {
	return t->f.Abort(comm, code);
}

int pmpi_mpi_version(const struct pmpi_mpi_table *t, int *major, int *minor) {
	return t->f.Get_version(major, minor);
}

int pmpi_mpi_error_class(const struct pmpi_mpi_table *t, int code, int *class_) {
	return t->f.Error_class(code, class_);
}

int pmpi_mpi_error_string(const struct pmpi_mpi_table *t, int code, char *text, int *len) {
	return t->f.Error_string(code, text, len);
}

int pmpi_mpi_rank(const struct pmpi_mpi_table *t, uintptr_t comm, int *rank) {
	return t->f.Comm_rank(comm, rank);
}

int pmpi_mpi_size(const struct pmpi_mpi_table *t, uintptr_t comm, int *size) {
	return t->f.Comm_size(comm, size);
}

static void just_return(handle *comm, int *code, ...) {
	(void)comm, (void)code;
}

int pmpi_mpi_own_errhandler(struct pmpi_mpi_table *t) {
	handle h = 0;
	int rc = t->f.Comm_create_errhandler(just_return, &h);
	if (rc == 0)
		t->k.errors_return = h;
	return rc;
}

int pmpi_mpi_errors_return(const struct pmpi_mpi_table *t, uintptr_t comm) {
	return t->f.Comm_set_errhandler(comm, t->k.errors_return);
}

int pmpi_mpi_dup(const struct pmpi_mpi_table *t, uintptr_t comm, uintptr_t *out) {
	*out = 0;
	int rc = t->f.Comm_dup(comm, out);
	return rc ? rc : pmpi_mpi_errors_return(t, *out);
}

int pmpi_mpi_create_group(const struct pmpi_mpi_table *t, uintptr_t comm, int n,
						  const int32_t *ranks, int tag, uintptr_t *out) {
	handle all = 0, some = 0;
	*out = 0;
	int rc = t->f.Comm_group(comm, &all);
	if (rc)
		return rc;
	rc = t->f.Group_incl(all, n, ranks, &some);
	if (!rc) {
		rc = t->f.Comm_create_group(comm, some, tag, out);
		t->f.Group_free(&some);
	}
	t->f.Group_free(&all);
	return rc ? rc : pmpi_mpi_errors_return(t, *out);
}

int pmpi_mpi_create_from_group(const struct pmpi_mpi_table *t, uintptr_t comm, int n,
							   const int32_t *ranks, const char *tag, uintptr_t *out) {
	handle all = 0, some = 0;
	*out = 0;
	int rc = t->f.Comm_group(comm, &all);
	if (rc)
		return rc;
	rc = t->f.Group_incl(all, n, ranks, &some);
	if (!rc) {
		rc = t->f.Comm_create_from_group(some, tag, t->k.info_null, t->k.errors_return, out);
		t->f.Group_free(&some);
	}
	t->f.Group_free(&all);
	return rc;
}

int pmpi_mpi_has_create_from_group(const struct pmpi_mpi_table *t) {
	return t->f.Comm_create_from_group != NULL;
}

int pmpi_mpi_split_shared(const struct pmpi_mpi_table *t, uintptr_t comm, uintptr_t *out) {
	*out = 0;
	int rc = t->f.Comm_split_type(comm, t->k.type_shared, 0, t->k.info_null, out);
	return rc ? rc : pmpi_mpi_errors_return(t, *out);
}

int pmpi_mpi_free_comm(const struct pmpi_mpi_table *t, uintptr_t comm) {
	return t->f.Comm_free(&comm);
}

int pmpi_mpi_attribute(const struct pmpi_mpi_table *t, uintptr_t comm, int keyval, int *flag,
					   int *value) {
	int *found = NULL; // MPI stores a pointer to an int of its own here
	int rc = t->f.Comm_get_attr(comm, keyval, &found, flag);
	if (rc == 0 && *flag)
		*value = *found;
	return rc;
}

int pmpi_mpi_bytes(const struct pmpi_mpi_table *t, int64_t n, uintptr_t *out) {
	enum { PIECE = 1 << 30 };
	int64_t pieces = (n + PIECE - 1) / PIECE;
	int *lengths = malloc((size_t)pieces * sizeof *lengths);
	mpi_aint *places = malloc((size_t)pieces * sizeof *places);
	int rc = -1;
	*out = 0;
	if (lengths && places) {
		for (int64_t i = 0; i < pieces; i++) {
			places[i] = i * PIECE;
			lengths[i] = (int)(n - places[i] < PIECE ? n - places[i] : PIECE);
		}
		// MPI sees that adjacent blocks are contiguous, so it does not pack. A struct type would
		// need an array of datatypes, whose width differs between ABIs.
		rc = t->f.Type_create_hindexed((int)pieces, lengths, places, t->k.byte, out);
		if (rc == 0)
			rc = t->f.Type_commit(out);
	}
	free(lengths);
	free(places);
	return rc;
}

int pmpi_mpi_free_type(const struct pmpi_mpi_table *t, uintptr_t type) {
	return t->f.Type_free(&type);
}

// The MPI standard does not define MIN and MAX for NaN, and the results of libraries depend on the
// order of the operands. These ops propagate NaN: a comparison with NaN is false, so a NaN in b
// stays, and a NaN in a is found by a != a.
#define USER_OP(name, type, better)                                                                \
	static void name(void *in, void *inout, int *len, handle *dt) {                                \
		const type *a = in;                                                                        \
		type *b = inout;                                                                           \
		(void)dt;                                                                                  \
		for (int i = 0, n = *len; i < n; i++)                                                      \
			b[i] = a[i] better b[i] || a[i] != a[i] ? a[i] : b[i];                                 \
	}

USER_OP(min_float, float, <)
USER_OP(max_float, float, >)
USER_OP(min_double, double, <)
USER_OP(max_double, double, >)

int pmpi_mpi_create_op(const struct pmpi_mpi_table *t, int which, uintptr_t *out) {
	static user_fn *const fns[PMPI_USER_OPS] = {
		[PMPI_USER_MIN_FLOAT] = min_float,
		[PMPI_USER_MAX_FLOAT] = max_float,
		[PMPI_USER_MIN_DOUBLE] = min_double,
		[PMPI_USER_MAX_DOUBLE] = max_double,
	};
	*out = 0;
	return t->f.Op_create(fns[which], 1, out);
}

int pmpi_mpi_free_op(const struct pmpi_mpi_table *t, uintptr_t op) {
	return t->f.Op_free(&op);
}

static void (*finalize_hook)(void);

void pmpi_mpi_set_finalize_hook(void (*hook)(void)) {
	__atomic_store_n(&finalize_hook, hook, __ATOMIC_RELEASE);
}

int pmpi_mpi_has_finalize_hook(void) {
	return __atomic_load_n(&finalize_hook, __ATOMIC_ACQUIRE) != NULL;
}

static int copy_nothing(handle comm, int keyval, void *extra, void *in, void *out, int *flag) {
	(void)comm, (void)keyval, (void)extra, (void)in, (void)out;
	*flag = 0;
	return 0; // MPI_SUCCESS in every ABI
}

static int on_delete(handle comm, int keyval, void *value, void *extra) {
	(void)comm, (void)keyval, (void)value, (void)extra;
	void (*hook)(void) = __atomic_load_n(&finalize_hook, __ATOMIC_ACQUIRE);
	if (hook)
		hook();
	return 0;
}

int pmpi_mpi_on_finalize(const struct pmpi_mpi_table *t, uintptr_t comm) {
	int keyval = t->k.keyval_invalid;
	int rc = t->f.Comm_create_keyval(copy_nothing, on_delete, &keyval, NULL);
	if (rc)
		return rc;
	rc = t->f.Comm_set_attr(comm, keyval, NULL);
	// MPI keeps the key until the attribute is gone.
	int freed = t->f.Comm_free_keyval(&keyval);
	return rc ? rc : freed;
}

int pmpi_mpi_library_version(void *symbol, char *text, int *len) {
	return ((int (*)(char *, int *))symbol)(text, len);
}

int pmpi_mpi_flag(void *symbol, int *flag) {
	return ((int (*)(int *))symbol)(flag);
}

int pmpi_mpi_abi_version(void *symbol, int *major, int *minor) {
	return ((int (*)(int *, int *))symbol)(major, minor);
}

int pmpi_mpi_signals_on_stack(void) {
	int changed = 0;
	for (int sig = 1; sig < NSIG; sig++) {
		struct sigaction action;
		if (sigaction(sig, NULL, &action) != 0 || (action.sa_flags & SA_ONSTACK))
			continue;
		if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN)
			continue;
		action.sa_flags |= SA_ONSTACK;
		if (sigaction(sig, &action, NULL) == 0)
			changed++;
	}
	return changed;
}
