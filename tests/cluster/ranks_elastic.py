"""An elastic job of an MPI's launcher on two hosts, which loses one rank in a step.

argv[2] says how: "kill", or "raise". Each rank that is left reports how the job ended for it: its
sums, or the error that says who would go on.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from array import array

import paddlempi as dist
import ranks_report

STEPS, AT, VICTIM = 20, 5, 1


def main() -> None:
    facts: ranks_report.Facts = {}
    try:
        with dist.elastic(timeout=30) as job:
            facts["rank"] = first = job.rank
            total = array("q", [0])
            job.attach(total)
            for step in job.steps(STEPS):
                with step:
                    if (first, step.number, job.size) == (VICTIM, AT, 3):
                        if sys.argv[2] == "kill":
                            os.kill(os.getpid(), signal.SIGKILL)
                        raise ValueError("of this rank")
                    parts = array("q", [job.size])
                    dist.all_reduce(parts)
                    total[0] += parts[0]
            facts |= {"size": job.size, "local": dist.get_local_size(), "total": total[0]}
            facts["generation"] = job.generation
    except (dist.Error, ValueError) as error:
        facts |= {"error": type(error).__name__, "message": str(error)}
    ranks_report.write(facts)
    time.sleep(1)  # a rank that ends by an error may end the others before they report


main()
