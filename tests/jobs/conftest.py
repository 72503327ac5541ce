"""What all tests have in common that start jobs."""

import quick_start  # noqa: F401 (jobs inherit the variable that it sets)
