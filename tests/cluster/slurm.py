"""A small Slurm on the hosts of hosts.py: munged and slurmctld on the login node, slurmd on hosts.

Needs Debian's slurm-wlm, munge and libpmix2. The machine's own Slurm and munge are not used or
changed. Configuration, key, sockets and state are in the hosts' scratch directory and vanish with
it. The daemons end with the hosts.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hosts import Hosts, HostsError, Result, wait_for

CPUS = 4  # the number that every node claims to have, enough for the tests on any machine

# The minimum without cgroups and systemd. Every node has its own directories (%n), because mpi/pmix
# puts sockets there and all nodes share one file system.
_CONF = """\
ClusterName=lab
SlurmctldHost=login
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={state}/munge.socket
CredType=cred/munge
StateSaveLocation={state}/state
SlurmctldPidFile={state}/slurmctld.run
SlurmdPidFile={state}/slurmd.%n.run
SlurmdSpoolDir={state}/spool.%n
TmpFS={state}/tmp.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
SlurmdTimeout=30
NodeName={nodes} CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """Slurm on all of `hosts`. It ends when the hosts end."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.state = hosts.scratch / "slurm"
        self.environment = {"SLURM_CONF": str(self.state / "slurm.conf")}
        self._configure()
        self._start()

    def _configure(self) -> None:
        (self.state / "state").mkdir(parents=True)
        for name in self.hosts.names:
            (self.state / f"tmp.{name}").mkdir()
        nodes = ",".join(self.hosts.names)
        (self.state / "slurm.conf").write_text(
            _CONF.format(state=self.state, nodes=nodes, cpus=CPUS)
        )
        # No cgroup is used. But the default, to detect their version, fails if there are none.
        (self.state / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        key = self.state / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(1024))
        self._provide_pmix()

    def _provide_pmix(self) -> None:
        """Give the nodes a libpmix.so, which Slurm's pmix plugin opens.

        Only the package libpmix-dev brings that link. So a copy of the library's directory gets
        the link, and the nodes mount the copy over the original.
        """
        for library in Path("/usr/lib").glob("*/pmix2/lib/libpmix.so.2"):
            if not (library.parent / "libpmix.so").exists():
                copy = self.state / "pmix"
                shutil.copytree(library.parent, copy, symlinks=True)
                (copy / "libpmix.so").symlink_to(library.name)
                self.hosts.bind(copy, library.parent)

    def _start(self) -> None:
        self.hosts.daemon(
            "munged",
            [
                "munged",
                "--foreground",
                "--force",  # the scratch directory's parent is /tmp, which every user may write to
                f"--key-file={self.state}/munge.key",
                f"--socket={self.state}/munge.socket",
                f"--pid-file={self.state}/munged.run",
                f"--log-file={self.state}/munged.log",
                f"--seed-file={self.state}/munged.seed",
            ],
            env={},
        )
        socket = self.state / "munge.socket"
        for _ in wait_for(10):
            if socket.exists():
                break
        self.hosts.daemon("slurmctld", ["slurmctld", "-D"], env=self.environment)
        for name in self.hosts.names:
            self.hosts.daemon(
                f"slurmd.{name}", ["slurmd", "-D", "-N", name], host=name, env=self.environment
            )
        for _ in wait_for(30, step=0.3):
            idle = self._ask("sinfo", "-h", "-t", "idle", "-o", "%D")
            if idle.out.strip() == str(len(self.hosts.names)):
                return
        logs = [
            self.hosts.scratch / f"{name}.log"
            for name in ("munged", "slurmctld", *(f"slurmd.{n}" for n in self.hosts.names))
        ]
        told = "\n".join(
            f"--- {log.name}\n{log.read_text(errors='replace')}" for log in logs if log.exists()
        )
        raise HostsError(f"Slurm's nodes are not idle after 30 s\n{told}")

    def _ask(self, *argv: str, env: Mapping[str, str] | None = None) -> Result:
        """Run a short Slurm command without a sweep, which could kill what the daemons start."""
        return self.hosts.execute(
            argv, timeout=20, env=self.environment | dict(env or {}), sweep=False
        )

    def srun(
        self,
        plugin: str,
        nodes: int,
        ranks_per_node: int,
        argv: Sequence[str | Path],
        *,
        timeout: float,
        env: Mapping[str, str],
    ) -> Result:
        """Run a command with `srun --mpi=plugin` on the first `nodes` hosts."""
        command = [
            "srun",
            f"--mpi={plugin}",
            f"-N{nodes}",
            f"-n{nodes * ranks_per_node}",
            f"--ntasks-per-node={ranks_per_node}",
        ]
        return self._job([*command, *argv], timeout, env)

    def sbatch(
        self,
        nodes: int,
        ranks_per_node: int,
        script: str,
        *,
        timeout: float,
        env: Mapping[str, str],
    ) -> Result:
        """Submit a shell script, wait for its end, and return the script's result."""
        place = self.hosts.scratch / "batch"
        place.write_text(f"#!/bin/sh\n{script}\n")
        out, err = place.with_suffix(".out"), place.with_suffix(".err")
        started = time.monotonic()
        # Not --wait, because sbatch looks at the job only every few seconds.
        submitted = self._ask(
            "sbatch", "--parsable", f"-N{nodes}", f"--ntasks-per-node={ranks_per_node}",
            f"--output={out}", f"--error={err}", str(place),
            env=env,
        )  # fmt: skip
        if submitted.code != 0:
            return submitted
        timed_out = not self._queue_empties(timeout)
        seconds, ended = time.monotonic() - started, time.time()
        if timed_out:
            self._cancel()
        job = self._ask("scontrol", "show", "job", submitted.out.strip())
        status = re.search(r"ExitCode=(\d+):", job.out)
        if status is None:
            raise HostsError(f"no exit status of the batch job: {job}")
        printed = [path.read_text(errors="replace") if path.exists() else "" for path in (out, err)]
        return Result(int(status[1]), printed[0], printed[1], seconds, ended, timed_out, strays=())

    def _job(self, argv: Sequence[str | Path], timeout: float, env: Mapping[str, str]) -> Result:
        result = self.hosts.execute(argv, timeout=timeout, env=self.environment | dict(env))
        if result.timed_out or result.strays:
            self._cancel()
        # The controller may still count the job as running, and the next job would wait for CPUs.
        if not self._queue_empties(20):
            raise HostsError(f"a job is still in the queue 20 s after {argv} ended: {result}")
        return result

    def _queue_empties(self, seconds: float) -> bool:
        return any(
            not self._ask("squeue", "-h", "-o", "%i").out.strip()
            for _ in wait_for(seconds, step=0.2)
        )

    def _cancel(self) -> None:
        self._ask("scancel", "--user=root", "--signal=KILL", "--full")
        self._ask("scancel", "--user=root")
        if not self._queue_empties(20):
            raise HostsError("a job is still in the queue 20 s after it was cancelled")
