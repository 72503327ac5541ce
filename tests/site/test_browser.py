"""The site in a browser: no errors, search, narrow screens, accessibility."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Request
from site_build import ROOT

# Axe takes a second for each.
AXE = (
    *(("", colours) for colours in ("light", "dark")),
    *(("jax/", colours) for colours in ("light", "dark")),
    *((path, "light") for path in ("settings/", "ps-transpile/", "adr/")),
)

NARROW = {"width": 400, "height": 800}


def test_no_page_has_an_error_or_scrolls_sideways(
    browser: Browser, site: Path, address: str
) -> None:
    """On a telephone of 400 pixels. Nothing comes from another host."""
    context = browser.new_context(viewport=NARROW)
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda m: wrong.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: foreign(request, address, wrong))
    found: dict[str, list[str]] = {}
    for path in pages(site):
        page.goto(f"{address}/{path}", wait_until="load")
        # A page that is wider scrolls to the side; so does an article, which the theme would cut.
        width, needs, has = page.evaluate("""() => {
            const text = document.querySelector("article")
            return [document.documentElement.scrollWidth, text.scrollWidth, text.clientWidth]
        }""")
        if width > NARROW["width"] or needs > NARROW["width"] or has < 0.8 * NARROW["width"]:
            wrong.append(f"width {width}, of the text {needs} in {has}")
        if wrong:
            found[path], wrong[:] = wrong[:], []
    context.close()
    assert not found


@pytest.mark.parametrize("width", [400, 1280])
def test_no_table_of_the_first_page_hides_a_column(
    browser: Browser, address: str, width: int
) -> None:
    """Whoever does not see that a table scrolls does not look for its last column."""
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(f"{address}/", wait_until="load")
    hidden = page.evaluate("""() => [...document.querySelectorAll(".md-typeset__scrollwrap")]
        .filter(around => around.scrollWidth > around.clientWidth + 1)
        .map(around => around.innerText.slice(0, 40))""")
    page.close()
    assert hidden == []


@pytest.mark.parametrize("width", [400, 1280])
def test_the_first_page_begins_with_a_program_and_copies_it(
    browser: Browser, address: str, width: int
) -> None:
    """What it is and a program are on the first two screens, and all of the program is taken."""
    (program,) = re.findall(
        r"^```python\n(# train.py\n.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S
    )
    context = browser.new_context(
        viewport={"width": width, "height": 800},
        permissions=["clipboard-read", "clipboard-write"],
    )
    page = context.new_page()
    page.goto(f"{address}/", wait_until="load")
    code = page.locator("article .highlight").first
    box = code.bounding_box()
    assert box and box["y"] < 2 * 800
    code.hover()
    code.get_by_role("button", name="Copy to clipboard").click()
    page.get_by_text("Copied to clipboard").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    context.close()
    assert copied.strip() == program.strip()


def test_dark_colours_are_kept_from_page_to_page(page: Page, address: str) -> None:
    page.goto(f"{address}/")
    seen = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(seen)
    page.get_by_title("To dark colours").click()
    dark = page.evaluate(seen)
    page.goto(f"{address}/my-job-hangs/")
    assert light != dark and page.evaluate(seen) == dark


def pages(site: Path) -> list[str]:
    """Return all pages, and of the decisions, which are alike, the list and one."""
    every = [f"{path.parent.relative_to(site)}/" for path in sorted(site.rglob("index.html"))]
    some = [path for path in every if not path.startswith("adr/0") or "0050" in path]
    assert len(some) > 30
    return ["" if path == "./" else path for path in some]


def foreign(request: Request, address: str, wrong: list[str]) -> None:
    if not request.url.startswith((address, "data:", "blob:")):
        wrong.append(f"asks another host: {request.url}")


@pytest.mark.parametrize(
    ("words", "page_found"),
    [
        ("halo", "numpy/"),
        ("PADDLEMPI_TRACE_SIGNAL", "settings/"),
        ("MismatchError", "errors/"),
        ("hang", "my-job-hangs/"),
        ("slurm", "on-a-cluster/"),
        ("shm too small", "install/"),
        ("bfloat16", "torch/"),
    ],
)
def test_the_search_finds(page: Page, address: str, words: str, page_found: str) -> None:
    page.goto(f"{address}/")
    page.get_by_role("textbox", name="Search").fill(words)
    results = page.locator("a.md-search-result__link")
    results.first.wait_for()
    links = [link.get_attribute("href") or "" for link in results.all()]
    assert any(page_found in link for link in links)
    assert not re.search(r"/(adr|algorithms|contributing|glossary|changelog)/", links[0])
    results.first.click()
    page.wait_for_url(lambda url: url.rstrip("/") != address)
    assert words.lower() in page.locator("article").inner_text().lower()


@pytest.mark.parametrize(("path", "colours"), AXE)
def test_axe_finds_nothing_serious(browser: Browser, address: str, path: str, colours: str) -> None:
    context = browser.new_context(color_scheme=colours)
    page = context.new_page()
    page.goto(f"{address}/{path}")
    found = Axe().run(page).response["violations"]
    context.close()
    serious = {
        one["id"]: [node["html"] for node in one["nodes"][:5]]
        for one in found
        if one["impact"] in ("serious", "critical")
    }
    assert not serious
