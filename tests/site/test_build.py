"""The site has what GitHub shows, and is not built with what leads nowhere."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
import site_hook
from markdown_it import MarkdownIt
from site_build import ROOT, build

# What a reader sees of the structure. Of lists with blank lines between some items, the two make
# other paragraphs.
TAGS = {"h1", "h2", "h3", "h4", "ol", "ul", "li", "table", "tr", "th", "td", "pre", "code"}
TAGS |= {"blockquote", "img", "a", "strong", "em"}

PAGES = {path: path.removeprefix("docs/") for path in site_hook.OUTSIDE} | {
    str(path.relative_to(ROOT)): str(path.relative_to(ROOT / "docs"))
    for path in sorted((ROOT / "docs").rglob("*.md"))
}
PAGES |= site_hook.OUTSIDE


class Tags(HTMLParser):
    """Counts the tags of an article, without the marks that the theme adds."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()
        self.inside = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.inside |= tag == "article"
        if self.inside and tag in TAGS and given.get("class") != "headerlink":
            self.count[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        self.inside &= tag != "article"


def tags(html: str) -> Counter[str]:
    parser = Tags()
    parser.feed(html)
    return parser.count


def place(page: str) -> str:
    """Return the folder of a page in the site."""
    name = page.removesuffix(".md")
    return name.removesuffix("README").removesuffix("index")


@pytest.mark.parametrize("path", PAGES)
def test_a_page_has_the_structure_that_github_shows(site: Path, path: str) -> None:
    shown = MarkdownIt("gfm-like", {"linkify": False}).render((ROOT / path).read_text())
    built = (site / place(PAGES[path]) / "index.html").read_text()
    assert tags(built) == tags(f"<article>{shown}</article>")


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("hang", "my-job-hangs/"),
        ("slurm", "on-a-cluster/"),
        ("shm too small", "install/#memory-to-start-shm-too-small-ulimit"),
        ("bfloat16", "ops/"),
        ("completion", "cli/#completion"),
    ],
)
def test_the_index_of_the_search_has(site: Path, words: str, page: str) -> None:
    """All words stand in one section of the page, as lunr finds them: by their beginnings."""
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = []
    for section in index["docs"]:
        there = f"{section['title']} {section['text']}".lower()
        if all(re.search(rf"\b{word}", there) for word in words.split()):
            found.append(section["location"])
    assert any(place.startswith(page) for place in found), found


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what the site is made from."""
    folder = tmp_path / "tree"
    folder.mkdir()
    for name in ("docs", "tools", "python"):
        leave = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / name, folder / name, ignore=leave)
    for name in ("mkdocs.yml", "LICENSE", *site_hook.OUTSIDE):
        shutil.copy(ROOT / name, folder)
    for name in ("examples", "gocore", "capi", "tests"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def test_what_leads_nowhere_fails(tree: Path, tmp_path: Path) -> None:
    page = tree / "docs" / "jobs.md"
    dead = ["gone.md", "errors.md#gone", "../gone.py", "../README.md#gone", "/gone", "#gone"]
    page.write_text(page.read_text() + "".join(f"\n[a]({target})\n" for target in dead))
    done = build(tree, tmp_path / "site")
    told = done.stdout + done.stderr
    assert done.returncode != 0
    assert f"Aborted with {len(dead)} warnings" in told
    assert all(target.removeprefix("../README.md") in told for target in dead), told


def test_what_nobody_can_find_fails(tree: Path, tmp_path: Path) -> None:
    """A page that is not in mkdocs.yml, and a public name that is on no page."""
    (tree / "docs" / "lost.md").write_text("# Lost\n")
    package = tree / "python" / "paddlempi" / "io" / "__init__.py"
    package.write_text(package.read_text().replace("__all__ = [", '__all__ = ["gone",'))
    done = build(tree, tmp_path / "site")
    told = done.stdout + done.stderr
    assert done.returncode != 0
    assert "lost.md" in told and "paddlempi.io.gone is public" in told


def test_fences() -> None:
    page = "```python ranks=4\nx\n```\n  ```sh run\n```\n```python gpu\n```\n```\n```text\n```\n"
    assert site_hook.fences(page) == (
        '```python title="4 ranks"\nx\n```\n  ```sh\n```\n'
        '```python title="needs a GPU"\n```\n```\n```text\n```\n'
    )
