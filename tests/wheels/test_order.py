"""How shared words are ordered on aarch64: the instructions of each function that touches one.

x86-64 has no weaker loads and stores than these functions ask for, so no run of it shows a missing
order, and neither does qemu there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import capstone
import pytest

ROOT = Path(__file__).resolve().parents[2]
GOCORE = ROOT / "gocore"
HEADER = GOCORE / "primitives" / "words.h"

# Loads that what comes later cannot pass, stores that what came before cannot pass, and exclusive
# pairs and atomic instructions (LSE) that are one or both.
ACQUIRE, RELEASE = {"ldar", "ldapr"}, {"stlr"}
# A compare-and-swap: the load and the store of the pair, or the one instruction.
ACQ_REL = [({"ldaxr"}, {"stlxr"}), ({"casal"},)]
FORMS: dict[str, list[tuple[set[str], ...]]] = {
    "read64": [(ACQUIRE,)],
    "read32": [(ACQUIRE,)],
    "write64": [(RELEASE,)],
    "write32": [(RELEASE,)],
    "swap64": ACQ_REL,
    "publish64": [({"ldxr", "ldaxr"}, {"stlxr"}), ({"casl", "casal"},)],
    "lock32": [({"ldaxr"}, {"stxr", "stlxr"}), ({"casa", "casal"},)],
    "less32": [({"ldxr", "ldaxr"}, {"stlxr"}), ({"ldaddl", "ldaddal"},)],
    # Not ldapr: it may pass an earlier stlr to another word.
    "read32_in_turn": [({"ldar"},)],
    "more32_in_turn": [({"ldaxr"}, {"stlxr"}), ({"ldaddal"},)],
    "more64_in_turn": [({"ldaxr"}, {"stlxr"}), ({"ldaddal"},)],
    "fence": [({"dmb"},)],
    "enter64": [({"ldaxr"}, {"stlxr"}), ({"ldsetal"},)],
    "leave64": [({"ldaxr"}, {"stlxr"}), ({"ldclral"},)],
    "take64": [({"ldaxr"}, {"stlxr"}), ({"swpal"},)],
}

# What each function does with its word, as words.h has it.
PROBE = """
#include "words.h"
uint64_t probe_read64(const uint64_t *p) { return sw_read64(p); }
uint32_t probe_read32(const uint32_t *p) { return sw_read32(p); }
void probe_write64(uint64_t *p, uint64_t v) { sw_write64(p, v); }
void probe_write32(uint32_t *p, uint32_t v) { sw_write32(p, v); }
uint64_t probe_swap64(uint64_t *p, uint64_t o, uint64_t v) { return sw_swap64(p, &o, v) + o; }
uint64_t probe_publish64(uint64_t *p, uint64_t o, uint64_t v) { return sw_publish64(p, &o, v) + o; }
int probe_lock32(uint32_t *p, uint32_t v) { return sw_lock32(p, v); }
void probe_less32(uint32_t *p) { sw_less32(p); }
uint32_t probe_read32_in_turn(const uint32_t *p) { return sw_read32_in_turn(p); }
void probe_more32_in_turn(uint32_t *p) { sw_more32_in_turn(p); }
void probe_more64_in_turn(uint64_t *p) { sw_more64_in_turn(p); }
void probe_fence(void) { sw_fence(); }
void probe_enter64(uint64_t *p, uint64_t v) { sw_enter64(p, v); }
void probe_leave64(uint64_t *p, uint64_t v) { sw_leave64(p, v); }
uint64_t probe_take64(uint64_t *p) { return sw_take64(p); }
"""

# Processors without and with LSE, and with ldapr (LRCPC).
CPUS = ["generic", "generic+lse", "generic+lse+rcpc"]


def functions(header: str, cpu: str, folder: Path) -> dict[str, list[str]]:
    """Compile the probe with this text of words.h, and return the instructions of its functions."""
    (folder / "words.h").write_text(header)
    source, binary = folder / "probe.c", folder / "probe.o"
    source.write_text(PROBE)
    # As in a build, but without calls to the helpers that look for LSE when they run.
    command = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-gnu.2.17"]
    command += [f"-mcpu={cpu}", "-mno-outline-atomics", "-std=c11", "-O2", "-c"]
    subprocess.run([*command, source.name, "-o", binary.name], cwd=folder, check=True)
    text, symbols = sections(binary)
    machine = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
    return {
        name: [one.mnemonic for one in machine.disasm(text[at : at + size], at)]
        for name, (at, size) in symbols.items()
    }


def sections(binary: Path) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """Return the code of an object file, and where its functions are in it."""
    from elftools.elf.elffile import ELFFile

    with binary.open("rb") as file:
        elf = ELFFile(file)
        index, code = next(
            (i, part) for i, part in enumerate(elf.iter_sections()) if part.name == ".text"
        )
        symbols = {
            one.name.removeprefix("probe_"): (one["st_value"], one["st_size"])
            for one in elf.get_section_by_name(".symtab").iter_symbols()
            if one["st_shndx"] == index and one.name.startswith("probe_")
        }
        return code.data(), symbols


def wrong(found: dict[str, list[str]]) -> list[str]:
    """Return the functions that have none of the forms of theirs."""
    return [
        f"{name}: {' '.join(code)}"
        for name, code in found.items()
        if not any(all(part & set(code) for part in form) for form in FORMS[name])
    ]


@pytest.mark.parametrize("cpu", CPUS)
def test_every_function_has_its_order(tmp_path: Path, cpu: str) -> None:
    found = functions(HEADER.read_text(), cpu, tmp_path)
    assert found.keys() == FORMS.keys()
    assert wrong(found) == []


def test_every_function_of_the_header_is_in_the_probe() -> None:
    assert set(re.findall(r"static inline \w+ sw_(\w+)\(", HEADER.read_text())) == FORMS.keys()


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", [*FORMS])
def test_a_weaker_order_is_found(tmp_path: Path, name: str, cpu: str) -> None:
    """The same function without its order."""
    head, begin, rest = HEADER.read_text().partition(f" sw_{name}(")
    body, end, tail = rest.partition("\n}\n")
    weak = re.sub(r"__ATOMIC_(ACQUIRE|RELEASE|ACQ_REL|SEQ_CST)", "__ATOMIC_RELAXED", body)
    assert weak != body
    found = functions(head + begin + weak + end + tail, cpu, tmp_path)
    assert [line.partition(":")[0] for line in wrong(found)] == [name]


# Files of words that processes share. What is left there has no order, is of one process only, or
# changes the elements of a window, whose order is that of the kernels in combine.c.
SHARING = {
    "arrive/slots.c": set(),
    "coll/shm/chunks.c": set(),
    "primitives/doorbells.h": {"pmpi_bells", "b->next"},
    "coll/bounce/cma.c": {""},
    "coll/bounce/counters.h": set(),
    "coll/bounce/rounds.c": set(),
    "trace/entry.h": set(),
    "transport/memory/bulk.h": set(),
    "transport/memory/quick.c": {"p->id", "p->inside"},
    "transport/memory/rings.h": set(),
    "window/access.c": {"table", "w->id", "w->inside", "taken", ""},
    "window/combine.c": {"(W *)at"},
}
ORDERED = r"__atomic_\w+\(([^;]*?)__ATOMIC_(?:ACQUIRE|RELEASE|ACQ_REL|SEQ_CST)"


@pytest.mark.parametrize("name", [*SHARING])
def test_no_order_is_asked_for_elsewhere(name: str) -> None:
    found = re.findall(ORDERED, (GOCORE / name).read_text(), re.DOTALL)
    words = {re.split(r"[,\[]", one)[0].strip().lstrip("&") for one in found}
    assert words <= SHARING[name]


# Go's side: functions that read or write a word of memory that ranks share, or the word of a
# request that another thread ends, and how.
GO = {
    "arrive.(*doubling).hear": {"LDAR"},
    "arrive.(*doubling).listen": {"LDAR"},
    "arrive.(*Board).put": {"STLR"},
    "arrive.(*doubling).tellNode": {"STLR"},
    "heap.(*Heap).enter": {"STLR"},
    "heap.(*View).entry": {"LDAR"},
    "messages.(*message).Poll": {"LDARW"},
    "messages.(*message).spin": {"LDARW"},
    "trace.(*Ring).Begin": {"STLR"},
    "trace.Mark.End": {"STLR"},
    "trace.Mark.lock": {"LDAR"},
    "transport.Over": {"LDARW"},
    "transport.(*UnderWay).Reap": {"LDARW"},
    "transport/memory.(*outbox).writeQueue": {"STLRW"},
    "transport/memory.(*outbox).streamOn": {"LDAR"},
    "transport/memory.(*inbox).readOn": {"STLR"},
    "transport/memory.(*endpoint).Poll": {"LDARW"},
    "transport/memory.(*round).step": {"LDARW"},
    "transport/memory.(*ring).next": {"LDAR"},
    "transport/memory.(*endpoint).progress": {"LDAR"},
}


@pytest.fixture(scope="session")
def code_of_go(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The instructions of functions on aarch64: of group, and of the rooms that it imports."""
    program = str(tmp_path_factory.mktemp("go") / "room.test")
    go = [sys.executable, str(ROOT / "tools" / "go.py")]
    env = {**os.environ, "PADDLEMPI_TARGET": "aarch64"}
    # Packages of others are compiled as for a wheel, so Go has them. Ours are inlined where they
    # can be: what stores a word stands in the function that is looked at.
    inlined = "-gcflags=github.com/paddlempi/paddlempi/...="
    build = [*go, "test", "-vet=off", inlined, "-c", "-o", program, "./gocore/group"]
    subprocess.run(build, cwd=ROOT, env=env, check=True)
    command = [*go, "tool", "objdump", "-s", "paddlempi/gocore/", program]
    told = subprocess.run(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    return {
        one.partition("(SB)")[0].partition("/gocore/")[2]: set(re.findall(r"\t([A-Z]+)\b", one))
        for one in told.split("TEXT ")[1:]
    }


@pytest.mark.parametrize("name", [*GO])
def test_go_orders_its_words(code_of_go: dict[str, set[str]], name: str) -> None:
    assert GO[name] <= code_of_go[name]
