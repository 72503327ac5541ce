"""The page of ``trace draw --html`` in a browser: no errors, zoom, search, the table, a telephone.

The page is made here, by a process without MPI, and opened as a file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page
from site_build import ROOT

sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "helpers")]
pytest.importorskip("numpy")

EVIL = "</script><img src=x onerror=\"document.title='ran'\">"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from paddlempi.trace import html
    from timelines_drawn import at, message, timeline, together, training

    made = training(4, 100)
    path = tmp_path_factory.mktemp("timeline") / "run.html"
    html.write(made, path)
    rows = together("all_reduce", 1, [100, 5000], 6000) + message(0, 1, 10_000, 12_000)
    evil = timeline(2, rows, rank1={"host": EVIL, "ended": at(9000), "state": "ended"})
    evil.warnings.append(EVIL)
    html.write(evil, path.with_name("evil.html"))
    return path


EVERY_WIDTH = pytest.mark.parametrize("opened", [400, 1280], indirect=True)


@pytest.fixture
def opened(browser: Browser, file: Path, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The page at a width; whatever the browser complains of, or asks for, fails the test."""
    context = browser.new_context(
        viewport={"width": getattr(request, "param", 1280), "height": 800}
    )
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda asked: wrong.append(asked.url) if asked.url[:4] != "file" else None)
    page.goto(file.as_uri())
    page.wait_for_selector("body[data-ready]")
    yield page
    context.close()
    assert wrong == []


def shown(page: Page) -> float:
    """How many nanoseconds the timeline shows, once it is drawn."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    begin, end = page.evaluate("() => Object.values(document.getElementById('view').dataset)")
    return float(end) - float(begin)


def painted(page: Page) -> int:
    """How many pixels of the canvas are not of the colours of the ground."""
    return int(
        page.evaluate("""() => {
            const canvas = document.getElementById("canvas")
            const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height)
            let count = 0
            for (let i = 0; i < data.length; i += 4) {
                const [r, g, b] = [data[i], data[i + 1], data[i + 2]]
                count += Math.max(r, g, b) - Math.min(r, g, b) > 60
            }
            return count
        }""")
    )


@EVERY_WIDTH
def test_it_is_drawn_and_fits(opened: Page) -> None:
    shown(opened)
    assert painted(opened) > 2000
    assert opened.evaluate("document.documentElement.scrollWidth") == opened.viewport_size["width"]
    assert opened.title().startswith("Timeline: 4 ranks on 2 hosts, ")


@EVERY_WIDTH
def test_it_zooms_and_moves(opened: Page) -> None:
    whole = shown(opened)
    opened.get_by_role("button", name="+").click()
    assert shown(opened) == pytest.approx(0.6 * whole, rel=0.01)
    opened.locator("#view").focus()
    opened.keyboard.press("w")
    assert shown(opened) == pytest.approx(0.36 * whole, rel=0.01)
    box = opened.locator("#view").bounding_box()
    assert box is not None
    middle = box["x"] + box["width"] / 2, box["y"] + 40
    opened.mouse.move(*middle)
    opened.keyboard.down("Control")
    opened.mouse.wheel(0, -300)
    opened.keyboard.up("Control")
    assert shown(opened) == pytest.approx(0.36 / 2.718 * whole, rel=0.02)
    before = opened.evaluate("document.getElementById('view').dataset.from")
    opened.mouse.down()
    opened.mouse.move(middle[0] - 60, middle[1], steps=4)
    opened.mouse.up()
    shown(opened)
    assert float(opened.evaluate("document.getElementById('view').dataset.from")) > float(before)
    opened.keyboard.press("0")
    assert shown(opened) == whole


def test_search_goes_from_call_to_call(opened: Page) -> None:
    whole = shown(opened)
    search = opened.get_by_role("searchbox")
    search.fill("barrier rank:2 #20")
    assert opened.locator("#found").inner_text() == "1 found; Enter goes on"
    search.press("Enter")
    told = opened.locator("#chosen").inner_text()
    assert told.startswith("barrier, rank 2, callers\n") and "waits for rank 1 1.999 ms" in told
    assert "number 20 of the group of all 4 ranks (c0ffee)" in told
    assert shown(opened) < whole
    search.fill("all_reduce")
    assert opened.locator("#found").inner_text() == "800 found; Enter goes on"  # calls and waits
    search.fill("nothing has this name")
    assert opened.locator("#found").inner_text() == "0 found"
    search.press("Escape")
    assert opened.locator("#found").inner_text() == ""


def test_a_call_says_what_it_is_under_the_pointer(opened: Page) -> None:
    opened.get_by_role("searchbox").fill("barrier rank:3 #20")
    opened.get_by_role("searchbox").press("Enter")
    shown(opened)
    box = opened.locator("#view").bounding_box()
    assert box is not None
    left = 62 if box["width"] < 600 else 120
    opened.mouse.move(box["x"] + left + (box["width"] - left) / 2, box["y"] + 22 + 6 * 18 + 9)
    assert opened.locator("#hover").inner_text().startswith("barrier, rank 3, callers")


def test_the_table_names_the_rank_that_others_waited_for(opened: Page) -> None:
    def column(number: int) -> list[str]:
        cells = opened.locator(f"#ranks tbody td:nth-child({number})")
        return cells.all_inner_texts()

    assert column(1)[0] == "1" and column(3)[0] == "59.98 ms"  # 10 steps, 3 ranks, 2 ms
    opened.get_by_role("button", name="rank", exact=True).click()
    assert column(1) == ["3", "2", "1", "0"]
    opened.get_by_role("button", name="rank", exact=True).click()
    assert column(1) == ["0", "1", "2", "3"] and column(6) == ["300", "300", "200", "200"]


def test_words_of_others_run_nowhere(browser: Browser, file: Path) -> None:
    page = browser.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(file.with_name("evil.html").as_uri())
    page.wait_for_selector("body[data-ready]")
    assert page.title().startswith("Timeline: 2 ranks") and not page.locator("img").count()
    assert page.locator("#notes li").inner_text() == EVIL
    assert EVIL in page.locator("#ranks tbody").inner_text()
    page.close()
    assert wrong == []


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Browser, file: Path, colours: str) -> None:
    # The page's own policy keeps axe out, as it keeps everything out.
    context = browser.new_context(color_scheme=colours, bypass_csp=True)
    page = context.new_page()
    page.goto(file.as_uri())
    page.wait_for_selector("body[data-ready]")
    found = Axe().run(page).response["violations"]
    context.close()
    assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == []
