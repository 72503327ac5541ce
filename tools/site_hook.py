"""What mkdocs does not know of our documents: a hook of mkdocs.yml.

The documents are written for GitHub. Here they keep their text, and:

* README.md, CONTRIBUTING.md and CHANGELOG.md, which are outside docs/, are pages, too;
* a link to another file of the repository leads to where the sources are published;
* headings have GitHub's anchors, and lists may be indented as there;
* of a fence as ```` ```python ranks=4 ````, the words behind the language become a title, if they
  tell a reader something.

``make docs`` is strict: it fails at a link or an anchor without a target, at a page that is not in
mkdocs.yml, and at a public name of the package that no page has.
"""

from __future__ import annotations

import ast
import logging
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from markdown import Extension, Markdown
from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).resolve().parent / "build"))

import links

ROOT = Path(__file__).resolve().parents[1]

# Pages outside docs/, and where the site has them.
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}

# The files that mkdocs.yml adds to the theme's.
LOOKS = {"tools/site.css": "site.css", "tools/site.js": "site.js"}

# Pages for who changes the package, by the beginnings of their places.
INSIDE = ("adr/", "algorithms", "architecture", "changelog", "contributing", "glossary", "way")

# A warning of mkdocs makes a strict build fail.
log = logging.getLogger("mkdocs.plugins.site_hook")


def slug(heading: str, separator: str = "-") -> str:
    """Return the anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


class Indented(Extension):  # type: ignore[misc]
    """Two blanks are a level of a list, as on GitHub; Python's Markdown wants four.

    It must be the first extension, because the parser is built again.
    """

    def extendMarkdown(self, md: Markdown) -> None:
        md.tab_length = 2
        md.build_parser()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    config.markdown_extensions.insert(0, Indented())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, place in [*OUTSIDE.items(), *LOOKS.items()]:
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    for name in undocumented(ROOT / "docs"):
        log.warning("%s is public, and no page of docs/ has it in code", name)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    if page.file.src_uri.startswith(INSIDE):  # the search shows the pages of users before these
        page.meta["search"] = {"boost": 0.2}
    return fences(relinked(markdown, page.file.src_uri))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Name the theme's dialog, for those who hear the page."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')


def relinked(markdown: str, page: str) -> str:
    """Return the text of a page with links that the site has. ``page`` is its place in the site."""
    sources = {place: source for source, place in OUTSIDE.items()}
    source = sources.get(page, f"docs/{page}")

    def change(target: str, loaded: bool) -> str:
        file, hash_, anchor = target.partition("#")
        if links.is_elsewhere(target) or not file:
            return target
        there = posixpath.normpath(posixpath.join(posixpath.dirname(source), file))
        if not (ROOT / there).exists():
            log.warning("%s: %s: no such file", source, target)
        if there in OUTSIDE:
            place = OUTSIDE[there]
        elif there.startswith("docs/") and (ROOT / there).is_file():
            place = there.removeprefix("docs/")
        else:
            return links.address(there + hash_ + anchor, loaded)
        return posixpath.relpath(place, posixpath.dirname(page) or ".") + hash_ + anchor

    return links.rewrite(markdown, change)


def fences(markdown: str) -> str:
    """Return a page whose fences have a language, and a title instead of our words behind it."""

    def change(match: re.Match[str]) -> str:
        words = match["words"].split()
        ranks = next((w.removeprefix("ranks=") for w in words if w.startswith("ranks=")), "")
        title = "1 process" if ranks == "1" else f"{ranks} ranks" if ranks else ""
        title = "needs a GPU" if "gpu" in words else title
        return match["fence"] + (f' title="{title}"' if title else "")

    return re.sub(r"^(?P<fence> *```\w+)(?P<words> [^\n`]*)$", change, markdown, flags=re.M)


def undocumented(pages: Path) -> Iterator[str]:
    """Yield the public names that no page has in a span or a block of code.

    These are what the package and the packages in it export; their modules are not for programs.
    """
    text = "\n".join(page.read_text() for page in sorted(pages.glob("*.md")))
    blocks = re.findall(r"^ *```.*?^ *```", text, re.M | re.S)
    spans = re.findall(r"`([^`]+)`", re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S))
    words = set(re.findall(r"\w+", " ".join([*blocks, *spans])))
    package = ROOT / "python" / "paddlempi"
    for file in sorted([package / "__init__.py", *package.glob("[!_]*/__init__.py")]):
        module = ".".join(file.parent.relative_to(package.parent).parts)
        yield from (f"{module}.{name}" for name in exported(file) if name not in words)


def exported(file: Path) -> list[str]:
    """Return the names in ``__all__`` of a module."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return []
