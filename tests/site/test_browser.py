"""The site in a browser: no errors, search, narrow screens, accessibility."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Request

# Axe takes a second for each.
AXE = (
    *(("", colours) for colours in ("light", "dark")),
    *(("jax/", colours) for colours in ("light", "dark")),
    *((path, "light") for path in ("settings/", "ps-programs/", "adr/")),
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
    [("halo", "halos/"), ("PADDLEMPI_TRACE_SIGNAL", "settings/"), ("MismatchError", "errors/")],
)
def test_the_search_finds(page: Page, address: str, words: str, page_found: str) -> None:
    page.goto(f"{address}/")
    page.get_by_role("textbox", name="Search").fill(words)
    results = page.locator("a.md-search-result__link")
    results.first.wait_for()
    assert any(page_found in (link.get_attribute("href") or "") for link in results.all())
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
