"""What the tests of one process have in common. Some start jobs."""

import quick_start  # noqa: F401 (jobs inherit the variable that it sets)
