/* The job, which all other files need. */
#include "trampoline.h"

job this_job;
