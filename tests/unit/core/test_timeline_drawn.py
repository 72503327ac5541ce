"""Timelines as a picture and as a page, without a browser (tests/site/test_timeline_page.py)."""

from __future__ import annotations

import base64
import json
import re
import xml.etree.ElementTree as ElementTree
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paddlempi.trace import html, slices, svg
from paddlempi.trace.model import MESSAGE
from timelines_drawn import at, message, operation, timeline, together, training

EVIL = "</script><script>alert(1)</script>&\"'<img src=x onerror=alert(2)>"
SVG = "{http://www.w3.org/2000/svg}"


def drawn(made: Any) -> Any:
    text, told = svg.draw(made)
    return ElementTree.fromstring(text), told


def titles(root: Any) -> list[str]:
    return [one.text for one in root.iter(f"{SVG}title")]


def test_the_picture_says_what_each_call_is() -> None:
    rows = together("all_reduce", 1, [100, 5000], 6000) + message(0, 1, 10_000, 12_000)
    root, told = drawn(timeline(2, rows, rank1={"ended": at(9000)}))
    assert told == []
    found = titles(root)
    assert "all_reduce, 32 bytes, ok: 5.9 ms, of which 4.9 ms for rank 1" in found
    assert "rank 1 comes 4.9 ms after the others" in found and "rank 1 ended" in found
    assert found[0].startswith("2 ranks on 1 host, 12 ms from 2023-11-14 22:13:20 UTC")
    assert [one.get("class") for one in root.iter(f"{SVG}path")].count("arrow") == 1
    words = ["".join(one.itertext()) for one in root.iter(f"{SVG}text")]
    assert "rank 0 host0" in words and "messages: moves, waits" in words


def test_the_picture_adds_up_what_is_narrower_than_it_shows() -> None:
    """It stays small, and the columns are as high as the share of time in calls."""
    rows = [operation(0, "barrier", 10 * i, 10 * i + 5, seq=i) for i in range(1, 20_001)]
    text, _ = svg.draw(timeline(1, rows))
    assert len(text) < 100_000
    found = re.findall(
        r'<rect class="barrier" x="\d+" width="(\d+)" y="[\d.]+" height="([\d.]+)"', text
    )
    bars = [(int(width), float(height)) for width, height in found]
    assert sum(width for width, _ in bars) == pytest.approx(1030, abs=2)
    mean = sum(width * height for width, height in bars) / 1030
    assert mean == pytest.approx(0.5 * 16, rel=0.05)


def test_a_picture_of_many_ranks_says_which() -> None:
    rows = together("barrier", 1, [100] * 299 + [5000], 6000)
    root, told = drawn(timeline(300, rows))
    assert told == ["256 of 300 ranks are drawn: those that others have waited for longest"]
    assert "rank 299 comes 4.9 ms after the others" in titles(root)


def test_who_made_the_others_wait() -> None:
    made = training(4, 20)
    by = svg.caused(made, slices.slices(made))
    assert by[1] == pytest.approx(2 * 3 * 2e6, rel=0.01) and sum(by.values()) == by[1]


def embedded(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the page's script reads."""
    found = re.search(r'id="meta">(.*?)</script>\n.*id="data">(.*?)</script>', text, re.S)
    assert found
    meta, packed, columns, place = json.loads(found[1]), base64.b64decode(found[2]), {}, 0
    raw = zlib.decompress(packed)
    for name, kind, count in meta["columns"]:
        columns[name] = np.frombuffer(raw, f"<{kind}", count, place)
        place += columns[name].nbytes
    assert place == len(raw)
    return meta, columns


def test_the_page_has_every_call() -> None:
    text, told = html.page(training(4, 10))
    meta, columns = embedded(text)
    assert told == [] and meta["order"] == [0, 1, 2, 3]
    assert [row["name"] for row in meta["lanes"][:2]] == ["callers", "under way"]
    assert [row["to"] - row["from"] for row in meta["lanes"]] == [30, 10, 30, 10, 20, 10, 20, 10]
    for row in meta["lanes"]:
        begin, last = (columns[name][row["from"] : row["to"]] for name in ("begin", "last"))
        assert (begin[1:] >= (begin + last)[:-1]).all()
    assert len(columns["sent"]) == len(columns["got"]) == 10
    heads = [head for head, _ in meta["table"]["heads"]]
    lines = [dict(zip(heads, line, strict=True)) for line in meta["table"]["lines"]]
    assert lines[1]["others waited"] == pytest.approx(6e6, rel=0.01)
    assert 0 < lines[2]["hidden"] < 1


def test_the_page_is_thinned_by_a_rule_that_it_names() -> None:
    text, [rule] = html.page(training(2, 100), most=300)
    meta, columns = embedded(text)
    assert meta["notes"] == [rule] and 0 < len(columns["begin"]) <= 300


def test_words_of_others_run_nowhere(tmp_path: Path) -> None:
    made = timeline(1, together("barrier", 1, [1000], 2000), rank0={"host": EVIL})
    made.warnings.append(EVIL)
    html.write(made, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert EVIL not in text and text.count("<script") == 3 and "<img" not in text
    assert embedded(text)[0]["notes"] == [EVIL]
    svg.write(made, tmp_path / "picture.svg")
    root = ElementTree.parse(tmp_path / "picture.svg").getroot()
    assert not list(root.iter(f"{SVG}script")) and not list(root.iter(f"{SVG}img"))


def test_an_empty_recording_is_drawn(tmp_path: Path) -> None:
    made = timeline(1, [], rank0={"problem": "the files of process 7 belong to another user"})
    root, _ = drawn(made)
    assert any("belong to another user" in "".join(one.itertext()) for one in root)
    assert embedded(html.page(made)[0])[0]["lanes"][0]["to"] == 0


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    for write in (html.write, svg.write):
        with pytest.raises(OSError):
            write(training(1, 1), tmp_path / "page")
    assert [path.name for path in tmp_path.iterdir()] == ["page"]


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        ("all_reduce reduce_scatter scan", "reduce"),
        ("all_gather broadcast scatter", "spread"),
        ("all_to_all neighbor_all_to_all halo_exchange", "exchange"),
        ("barrier", "barrier"),
    ],
)
def test_the_kinds_of_calls(names: str, kind: str) -> None:
    assert {slices.family(name) for name in names.split()} == {kind}
    assert slices.family("recv", MESSAGE) == "message"
    assert slices.family("Window.put", MESSAGE) == slices.family("new") == "other"
