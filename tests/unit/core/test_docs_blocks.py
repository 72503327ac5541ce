"""What the documents print can be typed: programs compile, commands have their verbs and options.

The programs run in tests/jobs/docs.
"""

from __future__ import annotations

import argparse
import itertools
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from blocks import BLOCKS, COMMANDS, LANGUAGES, PAGES, ROOT, VERBS, WORDS, Block
from paddlempi import cli
from paddlempi.cli.bench.collectives import AGAIN
from paddlempi.testing import launch

SHELL = [block for block in BLOCKS if block.language in COMMANDS]
EXTRAS = set(re.findall(r"^(\w+) = \[\"\w", (ROOT / "pyproject.toml").read_text(), re.M))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_fence_is_closed_and_says_what_it_is(page: Path) -> None:
    mine = [block for block in BLOCKS if block.page == page]
    fences = re.findall(r"^\s*(?:```|~~~)", page.read_text(), re.M)
    assert len(fences) == 2 * len(mine)
    for block in mine:
        assert block.language in LANGUAGES, block
        for word in block.words:
            assert re.fullmatch(WORDS.get(block.language, ""), word), f"{block}: {word}"
        if block.language in ("", "text"):
            commands = re.findall(
                r"^(?:\$ .*|(?:mpirun|srun|python|pip|make) .*)$", block.text, re.M
            )
            assert not commands, f"{block}: its fence must say sh or console"


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "python"], ids=str)
def test_a_program_compiles(block: Block) -> None:
    compile(block.text, str(block), "exec")


def test_few_blocks_are_fragments() -> None:
    fragments = [str(block) for block in BLOCKS if "fragment" in block.words]
    assert len(fragments) <= 3, fragments


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_commands_can_be_typed(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.commands, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    known = [check_command(words) for words in split(block.commands)]
    assert any(known), f"{block} has no command that is checked"


def split(commands: str) -> Iterator[list[str]]:
    """Yield the words of every command, without comments."""
    for line in commands.splitlines():
        words = shlex.split(line, comments=True)
        while words:
            end = next((i for i, word in enumerate(words) if word in ("&", "&&", ";", "|")), None)
            yield words[:end]
            words = [] if end is None else words[end + 1 :]


def check_command(words: list[str]) -> bool:
    """Fail if a command of this project cannot be typed so. Return whether it is one."""
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    match words:
        case ["mpirun", "-np", count, *rest]:
            assert count.isdigit()
            assert check_command(rest)
        case ["mpirun" | "srun", *rest]:
            return check_command(list(itertools.dropwhile(lambda w: w.startswith("--"), rest)))
        case ["make", *rest]:
            for word in rest:
                assert re.match(r"[A-Z_]+=", word) or word in VERBS, f"make {word}"
        case ["pip", "install", *rest]:
            for extra in re.findall(r"^\.\[(\w+)\]$", "\n".join(rest), re.M):
                assert extra in EXTRAS
        case ["python", "-m", "paddlempi", *rest] | ["paddlempi", *rest]:
            chosen = parsed(cli.parser().parse_args, rest)
            words = getattr(chosen, "words", [])
            if words[:1] == ["--"]:
                assert check_command(words[1:])
        case ["python", "-m", "paddlempi.testing.launch", *rest]:
            chosen = parsed(launch.parser().parse_args, rest)
            assert check_command(chosen.command[1:])
        case ["python", "-m", "pytest", *rest] | ["pytest", *rest]:
            assert {word for word in rest if word.startswith("-")} <= {"--mpi", "-q"}
        case ["python", script, *_]:
            assert script.endswith(".py")
            assert "/" not in script or (ROOT / script).is_file()
        case _:
            return False
    return True


def parsed(parse: Callable[[list[str]], object], words: list[str]) -> object:
    try:
        return parse(words)
    except SystemExit:
        pytest.fail(f"these words have no meaning: {words}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_the_text_have_their_options(page: Path) -> None:
    """Also what stands in a sentence: it may be incomplete, but what is there exists."""
    for command in re.findall(r"`(?:[^`\n]*python -m )?paddlempi ([^`\n]+)`", page.read_text()):
        if f"paddlempi {command}" == AGAIN:  # a column of bench
            continue
        parser = cli.parser()
        for word in itertools.takewhile(lambda word: word != "--", command.split()):
            below = [
                action.choices for action in parser._actions if action.nargs == argparse.PARSER
            ]
            if word.startswith("--"):
                assert word.partition("=")[0] in parser._option_string_actions, command
            elif below:
                assert word in below[0], command
                parser = below[0][word]
