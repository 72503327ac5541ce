"""Run Go's tests and write what they say: ``go_tests.py REPORT WORD...``; `make verify` vets.

The words are go's; ``-long`` stands for what -short leaves out, and for nothing else. After a
failure go runs again only the packages that failed: it remembers the others' results.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GO = ROOT / "tools" / "go.py"
ASKS = "testing.Short"


def long_tests(files: list[Path]) -> dict[str, set[str]]:
    """Return the tests, by package, of which -short leaves out something.

    They ask whether the tests are short, or call a function of the package that does.
    """
    bodies: dict[str, dict[str, str]] = {}
    for file in files:
        for text in re.split(r"^(?=func )", file.read_text(), flags=re.M)[1:]:
            if name := re.match(r"func (?:\(.*?\) )?(\w+)", text):
                here = bodies.setdefault(f"./{file.parent.relative_to(ROOT)}", {})
                here[name[1]] = here.get(name[1], "") + text
    found = {}
    for package, texts in bodies.items():
        asking: set[str] = set()
        while more := {
            name
            for name in texts.keys() - asking
            if any(re.search(rf"\b{word}\(", texts[name]) for word in (ASKS, *asking - {name}))
        }:
            asking |= more
        if tests := {name for name in asking if name.startswith("Test")}:
            found[package] = tests
    return found


def main(arguments: list[str]) -> int:
    """Return go's status."""
    report, *words = arguments
    env = dict(os.environ)
    if "-long" in words:
        words.remove("-long")
        found = long_tests(sorted(ROOT.glob("gocore/**/*_test.go")))
        names = sorted(set().union(*found.values()))
        words += ["-run", f"^({'|'.join(names)})$", *sorted(found)]
        env["GO_TESTS"] = "long"  # a test that -short makes shorter runs the rest of it
    words = [sys.executable, str(GO), "test", "-vet=off", "-json", *words]
    with Path(report).open("wb") as out:
        return subprocess.run(words, stdout=out, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
