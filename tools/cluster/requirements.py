"""What hosts and Slurm need on this machine, and how that is installed.

Each function returns None if all is there, and otherwise the reason for a skip. The reasons are
fixed strings because CI compares them with the list of skips that it allows.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from hosts import Hosts, HostsError, kill_group

NOT_ROOT = "hosts: needs root to make hosts in network namespaces"
NO_TOOLS = "hosts: needs iproute2 and util-linux, and apt-get could not install them"
NO_NAMESPACES = "hosts: this machine does not let root make namespaces"
NO_TUN = "hosts: needs /dev/net/tun for a delay between hosts"
NO_SLURM = "hosts: needs slurm-wlm, munge and libpmix2, and apt-get could not install them"

_APT_SECONDS = 240


def hosts_missing() -> str | None:
    """Return why there can be no hosts here."""
    if os.geteuid() != 0:
        return NOT_ROOT
    if not _tools(("ip", "nsenter", "unshare"), ("iproute2", "util-linux")):
        return NO_TOOLS
    try:
        with Hosts(1):
            return None
    except HostsError:
        return NO_NAMESPACES


def delay_missing() -> str | None:
    """Return why there can be no delay between hosts here."""
    return None if Path("/dev/net/tun").exists() else NO_TUN


def slurm_missing() -> str | None:
    """Return why there can be no Slurm here, on hosts that exist."""
    daemons = ("slurmctld", "slurmd", "munged", "srun", "sbatch")
    packages = ("slurm-wlm", "munge", "libpmix2")
    if _tools(daemons, packages) and any(Path("/usr/lib").glob("*/pmix2/lib/libpmix.so.2")):
        return None
    return NO_SLURM


def venv_missing(python: Path) -> str | None:
    """Return why ranks have no Python with an MPI; `python` is .venv-NAME/bin/python."""
    if python.exists():
        return None
    venv = python.parents[1].name
    return f"hosts: needs {venv}: make {venv}"


def _tools(commands: Sequence[str], packages: Sequence[str]) -> bool:
    def there() -> bool:
        return all(
            shutil.which(command, path="/usr/sbin:/usr/bin:/sbin:/bin") for command in commands
        )

    if there():
        return True
    if shutil.which("apt-get") is None:
        return False
    install = [
        "install",
        "-y",
        "--no-install-recommends",
        "-o",
        "DPkg::Lock::Timeout=60",
        *packages,
    ]
    return (_apt(install) or (_apt(["update"]) and _apt(install))) and there()


def _apt(arguments: Sequence[str]) -> bool:
    # With RUNLEVEL=1 the packages do not start their daemons. The tests start them on the hosts.
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    process = subprocess.Popen(
        ["apt-get", "-qq", *arguments],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(_APT_SECONDS) == 0
    except subprocess.TimeoutExpired:
        kill_group(process)
        return False
