#!/bin/sh
# The shell of make's recipes in CI: it ends a recipe after 25 minutes. SIGABRT goes to all processes of the recipe, and
# pytest then prints where its threads stand. tools/results.py reports the group as one that ended without a report.
exec timeout --signal=ABRT --kill-after=30 1500 /bin/sh "$@"
