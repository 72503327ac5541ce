#include "groups.h"

#include <stddef.h>

/* The place of a group or window is its number, modulo PLACES. */
enum { PLACES = 256 };

typedef struct window_place {
	int64_t id, group;
} window_place;

static crash_group groups[PLACES];
static window_place windows[PLACES];
static int64_t initial;

static void store(int64_t *to, int64_t value) {
	__atomic_store_n(to, value, __ATOMIC_SEQ_CST);
}

static int64_t load(const int64_t *from) {
	return __atomic_load_n(from, __ATOMIC_SEQ_CST);
}

void crash_name_group(int64_t id, int32_t rank, const char *text) {
	crash_group *g = &groups[(uint64_t)id % PLACES];
	store(&g->id, 0);
	g->rank = rank;
	for (size_t i = 0; i < CRASH_TEXT - 1; i++)
		if ((g->text[i] = text[i]) == 0)
			break;
	store(&g->id, id);
}

void crash_name_window(int64_t window, int64_t group) {
	window_place *w = &windows[(uint64_t)window % PLACES];
	store(&w->id, 0);
	w->group = group;
	store(&w->id, window);
}

void crash_initial(int64_t id) {
	store(&initial, id);
}

const crash_group *crash_group_of(int64_t id) {
	if (id == 0)
		id = load(&initial);
	const crash_group *g = &groups[(uint64_t)id % PLACES];
	return id != 0 && load(&g->id) == id ? g : NULL;
}

const crash_group *crash_group_of_window(int64_t window) {
	const window_place *w = &windows[(uint64_t)window % PLACES];
	return window != 0 && load(&w->id) == window ? crash_group_of(w->group) : NULL;
}
