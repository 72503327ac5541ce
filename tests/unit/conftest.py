"""What the tests of one process have in common. Some start jobs."""

import sys
from pathlib import Path

import quick_start  # noqa: F401 (jobs inherit the variable that it sets)

# pytest puts this folder on the path for this file. Where torch is not installed, `import torch`
# would find the folder of its tests here, as a package without a file.
sys.path[:] = [place for place in sys.path if Path(place) != Path(__file__).resolve().parent]
