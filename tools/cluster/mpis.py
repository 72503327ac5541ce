"""The MPIs under test: where they are installed, and how mpirun starts ranks on several hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hosts import Hosts, Result

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("openmpi", "mpich", "impi")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class MPI:
    """One MPI, in a virtual environment that also has Python and paddlempi."""

    name: str
    prefix: Path

    @property
    def python(self) -> Path:
        return self.prefix / "bin" / "python"

    def environment(self) -> dict[str, str]:
        """Return the variables that a user of this environment would set, here as root."""
        env = {"PATH": f"{self.prefix}/bin:{SYSTEM_PATH}"}
        if self.name == "openmpi":
            env["OMPI_ALLOW_RUN_AS_ROOT"] = env["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
            # There are more ranks than cores. Every host takes this machine's cores for its own.
            env["OMPI_MCA_mpi_yield_when_idle"] = "1"
        if self.name == "impi":
            env["I_MPI_ROOT"] = str(self.prefix)
        return env

    def mpirun(self, hosts: Hosts, layout: Sequence[tuple[str, int]]) -> list[str]:
        """Return the mpirun command without the program; `layout` is (host, ranks on it), ..."""
        total = sum(ranks for _, ranks in layout)
        slots = ",".join(f"{host}:{ranks}" for host, ranks in layout)
        command = [f"{self.prefix}/bin/mpirun", "-np", str(total)]
        if self.name == "openmpi":
            return [
                *command,
                "--prtemca",
                "plm_ssh_agent",
                str(hosts.agent),
                "--host",
                slots,
                "--bind-to",
                "none",
            ]
        if self.name == "mpich":
            return [
                *command,
                "-launcher",
                "ssh",
                "-launcher-exec",
                str(hosts.agent),
                "-hosts",
                slots,
            ]
        machines = hosts.scratch / "machines"  # Intel MPI's -hosts ignores slots
        machines.write_text(slots.replace(",", "\n") + "\n")
        return [
            *command,
            "-bootstrap",
            "ssh",
            "-bootstrap-exec",
            str(hosts.agent),
            "-machinefile",
            str(machines),
        ]

    def run(
        self,
        hosts: Hosts,
        layout: Sequence[tuple[str, int]],
        program: Sequence[str | Path],
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
    ) -> Result:
        """Run a Python program (path and arguments) under mpirun, from the login node."""
        return hosts.execute(
            [*self.mpirun(hosts, layout), self.python, *program],
            timeout=timeout,
            env=self.environment() | dict(env or {}),
        )
