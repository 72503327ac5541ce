"""``python -m paddlempi`` as a script, for jobs that start warm."""

import sys

from paddlempi.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
