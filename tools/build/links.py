"""The links of the repository's Markdown, for readers who have no repository beside the page.

On GitHub a link is relative: ``docs/install.md``. The page of a package registry has no such file,
so setup.py makes the links of README.md absolute. The site (tools/site_hook.py) has most files at
other places.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable

# Where the sources are published; pyproject.toml has the same address.
REPOSITORY = "https://github.com/paddlempi/paddlempi"

# A span of code, in which nothing is a link; an image; a link; a definition of one; an attribute of
# HTML. The group "image" or "link" is what it points to.
_LINKS = re.compile(
    r"(?P<ticks>`+)(?!`).*?(?<!`)(?P=ticks)(?!`)"
    r"|!\[[^\]]*\]\((?P<image>[^)\s]+)"
    r"|\]\((?P<link>[^)\s]+)"
    r"|^ {0,3}\[[^\]]+\]: +(?P<defined>\S+)"
    r"|<\w[^>]*?\s(?:href|srcset|src)=\"(?P<attribute>[^\"\s]+)",
    re.M | re.S,
)
_FENCES = re.compile(r"^( *)(`{3,}|~{3,})[^\n]*\n.*?^ *\2`*~* *$\n?", re.M | re.S)


def rewrite(text: str, change: Callable[[str, bool], str]) -> str:
    """Return Markdown with other targets of its links.

    ``change`` gets a target as it is written, and whether the reader's program loads it: an image.
    Code is left as it is.
    """
    parts, end = [], 0
    for fence in _FENCES.finditer(text):
        parts += [_LINKS.sub(lambda m: _changed(m, change), text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINKS.sub(lambda m: _changed(m, change), text[end:])])


def _changed(match: re.Match[str], change: Callable[[str, bool], str]) -> str:
    for name in ("image", "link", "defined", "attribute"):
        target = match[name]
        if target is not None:
            loaded = name == "image" or (name == "attribute" and "href=" not in match[0])
            start, end = (place - match.start() for place in match.span(name))
            return match[0][:start] + change(target, loaded) + match[0][end:]
    return match[0]


def is_elsewhere(target: str) -> bool:
    """Tell whether a target is an address, and not a file of the repository."""
    return re.match(r"[a-z][a-z+.-]*:|//", target, re.I) is not None


def address(path: str, loaded: bool = False) -> str:
    """Return the address of a file of the repository, ``path#anchor``; as bytes if it is loaded."""
    return f"{REPOSITORY}/{'raw' if loaded else 'blob'}/main/{path}"


def absolute(text: str, path: str) -> str:
    """Return the text of the Markdown file at ``path`` with absolute links."""

    def change(target: str, loaded: bool) -> str:
        if is_elsewhere(target):
            return target
        file, hash_, anchor = target.partition("#")
        there = posixpath.normpath(posixpath.join(posixpath.dirname(path), file)) if file else path
        return address(there + hash_ + anchor, loaded)

    return rewrite(text, change)
