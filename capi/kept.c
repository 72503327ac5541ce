#ifdef PMPI_PYMODULE
/* What operations keep alive; see kept.h. The GIL guards all of it. */
#include "kept.h"

#include <stdlib.h>
#include <string.h>

kept *kept_orphans;

/* tensors_ref returns a new reference to tensors. If they are a list it returns a tuple of its
 * items, because the caller may change the list. */
static PyObject *tensors_ref(PyObject *tensors) {
	if (PyType_GetFlags(tensors->ob_type) & TPFLAGS_LIST) {
		PyObject *items = PyList_AsTuple(tensors);
		if (items)
			return items;
		PyErr_Clear(); /* no memory: keep the list, which is right unless the caller changes it */
	}
	Py_IncRef(tensors);
	return tensors;
}

kept *kept_new(const side *a, const side *b) {
	const size_t views = (size_t)(a->n_views + b->n_views) * sizeof(Py_buffer),
				 tensors = (size_t)(a->n + b->n) * sizeof(crash_tensor);
	kept *k = malloc(sizeof *k + views + tensors);
	if (k == NULL) {
		PyErr_NoMemory();
		return NULL;
	}
	memset(k, 0, sizeof *k);
	k->crash.tensors = (crash_tensor *)((char *)k->views + views);
	return k;
}

void kept_take(kept *k, const pmpi_op *op, PyObject *send, PyObject *recv, side *a, side *b) {
	memcpy(k->views, a->views, (size_t)a->n_views * sizeof k->views[0]);
	memcpy(k->views + a->n_views, b->views, (size_t)b->n_views * sizeof k->views[0]);
	k->n = a->n_views + b->n_views;
	a->n_views = b->n_views = 0;
	k->send = tensors_ref(send);
	k->recv = tensors_ref(recv);
	k->crash.state = op->state;
	crash_pend(&k->crash, op);
}

void kept_drop(kept *k) {
	PyObject *send = k->send, *recv = k->recv;
	int32_t n = k->n;
	k->send = k->recv = NULL;
	k->n = 0;
	crash_over(&k->crash);
	for (int32_t i = 0; i < n; i++)
		PyBuffer_Release(&k->views[i]);
	if (send)
		Py_DecRef(send);
	if (recv)
		Py_DecRef(recv);
}

void kept_release(pmpi_work work, kept *k) {
	if (work != 0 && pmpi_release(work)) {
		k->work = work;
		k->next = kept_orphans;
		kept_orphans = k;
		return;
	}
	kept_drop(k);
	free(k);
}

void kept_collect(void) {
	pmpi_work work;
	while (kept_orphans && (work = pmpi_next_released()) != 0) {
		for (kept **p = &kept_orphans; *p; p = &(*p)->next) {
			if ((*p)->work == work) {
				kept *k = *p;
				*p = k->next;
				kept_drop(k);
				free(k);
				break;
			}
		}
	}
}

void kept_linger(const pmpi_op *op, pmpi_work work, PyObject *send, PyObject *recv, side *a,
				 side *b) {
	PyObject *t, *v, *tb;
	PyErr_Fetch(&t, &v, &tb); /* the exception of a signal handler */
	kept *k = kept_new(a, b);
	if (k) {
		kept_take(k, op, send, recv, a, b);
		kept_release(work, k);
	} else { /* no memory for a kept: the tensors stay for ever */
		PyErr_Clear();
		tensors_ref(send);
		tensors_ref(recv);
		a->n_views = b->n_views = 0;
	}
	PyErr_Restore(t, v, tb);
}
#endif
