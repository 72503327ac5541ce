"""Who has no repository beside the page gets addresses; and the settings are those of the code."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest
from paddlempi._pages import PAGES

ROOT = Path(__file__).resolve().parents[3]
PROJECT = (ROOT / "pyproject.toml").read_text()


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return tools/build/links.py."""
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "build"))
    return importlib.import_module("links")


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return tools/settings.py."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("settings")


def test_there_is_one_address(links: ModuleType) -> None:
    (module,) = re.findall(r"^module (\S+)$", (ROOT / "go.mod").read_text(), re.M)
    assert f"https://{module}" == links.REPOSITORY
    assert links.address("docs") == PAGES
    assert f'Documentation = "{PAGES}"' in PROJECT
    assert f'Homepage = "{links.REPOSITORY}"' in PROJECT
    assert f'const Pages = "{PAGES}"' in (ROOT / "gocore/status/status.go").read_text()
    assert "github.com" not in re.sub(re.escape(links.REPOSITORY), "", PROJECT)


def strings(file: Path) -> list[str]:
    """Return the strings of a module but its docstrings; what an f-string puts in is ``{}``."""
    found, known = [], set()
    for node in ast.walk(ast.parse(file.read_text())):  # from the outside in
        if id(node) in known:
            continue
        if isinstance(node, ast.Expr):
            known.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            known.update(map(id, node.values))
            parts = [p.value if isinstance(p, ast.Constant) else "{}" for p in node.values]
            found.append("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


def test_no_message_names_a_file_that_a_user_lacks() -> None:
    """A document, as docs/ops.md, is one: messages have its address."""
    named: dict[str, list[str]] = {}
    for file in (ROOT / "python").rglob("*.py"):
        for text in strings(file):
            for page in re.findall(r"(?<![/\w-])(?:docs/)?[\w-]+\.md\b", text):
                named.setdefault(str(file.relative_to(ROOT)), []).append(page)
    for file in (ROOT / "gocore").rglob("*.go"):
        code = "" if file.name.endswith("_test.go") else file.read_text()
        for text in re.findall(r'"(?:\\.|[^"\\\n])*"', re.sub(r"(?m)^\s*//.*$", "", code)):
            for page in re.findall(r"(?<![/\w-])(?:docs/)?[\w-]+\.md\b", text):
                named.setdefault(str(file.relative_to(ROOT)), []).append(page)
    assert not named
    pages = re.findall(r"\{PAGES\}/([\w-]+\.md)", "".join(map(Path.read_text, _python())))
    pages += re.findall(r'%s/([\w-]+\.md)[^"]*".*status\.Pages', _go())
    assert len(pages) >= 3
    assert all((ROOT / "docs" / page).is_file() for page in pages), pages


def _python() -> list[Path]:
    return sorted((ROOT / "python").rglob("*.py"))


def _go() -> str:
    return "".join(file.read_text() for file in sorted((ROOT / "gocore").rglob("*.go")))


def test_the_long_description_has_no_relative_link(links: ModuleType) -> None:
    text = links.absolute((ROOT / "README.md").read_text(), "README.md")
    targets: list[str] = []
    links.rewrite(text, lambda target, loaded: targets.append(target) or target)
    assert len(targets) > 30
    assert all(target.startswith("https://") for target in targets)
    ours = [t.removeprefix(links.REPOSITORY) for t in targets if t.startswith(links.REPOSITORY)]
    for target in ours:
        path = re.fullmatch(r"/(?:blob|raw)/main/([^#]*)(?:#.*)?", target)
        assert path and (ROOT / path[1]).exists(), target


BLOB, RAW = (f"https://github.com/paddlempi/paddlempi/{how}/main" for how in ("blob", "raw"))


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("[a](b.md#c)", f"[a]({BLOB}/docs/b.md#c)"),
        ("[a](../LICENSE 'title')", f"[a]({BLOB}/LICENSE 'title')"),
        ("[a](#c)", f"[a]({BLOB}/docs/page.md#c)"),
        ("[`a`](b.md), [c](d.md)", f"[`a`]({BLOB}/docs/b.md), [c]({BLOB}/docs/d.md)"),
        ("![a](img/b.svg)", f"![a]({RAW}/docs/img/b.svg)"),
        ("[![a](b.svg)](c.md)", f"[![a]({RAW}/docs/b.svg)]({BLOB}/docs/c.md)"),
        ('<img alt="a" src="b.svg">', f'<img alt="a" src="{RAW}/docs/b.svg">'),
        ('<a href="b.md">', f'<a href="{BLOB}/docs/b.md">'),
        ("[a]: b.md", f"[a]: {BLOB}/docs/b.md"),
        ("[a](https://b/c) [d](mailto:e@f) [g](//h/i)",) * 2,
        ("`[a](b)` ``[a](`b)``",) * 2,
        ("```python\n[a](b)\n```\n",) * 2,
        ("  ~~~\n[a](b)\n```\n[c](d)\n  ~~~\n",) * 2,
    ],
)
def test_links_become_absolute(links: ModuleType, text: str, want: str) -> None:
    assert links.absolute(text, "docs/page.md") == want


def test_the_table_of_settings_is_up_to_date(settings: ModuleType) -> None:
    assert settings.written(settings.PAGE.read_text()) == settings.PAGE.read_text()
    assert settings.main(["--check"]) == 0


def test_a_setting_without_a_sentence_is_noticed(settings: ModuleType) -> None:
    found = settings.reads()
    assert "gocore/netif/netif.go" in found["PADDLEMPI_IFNAME"]
    assert "PADDLEMPI_KILL" not in found
    with pytest.raises(ValueError, match=r"PADDLEMPI_NEW: is read, and has no sentence"):
        settings.table(found | {"PADDLEMPI_NEW": ["gocore/core.go"]})
    del found["PADDLEMPI_IFNAME"]
    with pytest.raises(ValueError, match=r"PADDLEMPI_IFNAME: has a sentence .* nothing reads it"):
        settings.table(found)
