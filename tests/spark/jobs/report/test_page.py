"""The pages of all reports and of the demo: their structure, and their look in a browser where there is one."""

from __future__ import annotations

import base64
import importlib.util
import re
from html.parser import HTMLParser
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import pytest
from tests.spark.jobs.report.samples import REPORTS, audit_report, write_demo

from cometmq.spark.jobs.report import drawing
from cometmq.spark.jobs.report.page import page, table
from cometmq.spark.jobs.report.parts import Table

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

DRAWN: Final = {"audit", "delay", "skew", "trace"}
"""Reports whose plots are drawn here: all kinds of plots are among them, and each plot takes a fifth of a second."""
EMPTY: Final = {"meta", "img", "source", "br"}
TAGS: Final = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "script",
        "h1",
        "h2",
        "p",
        "div",
        "b",
        "i",
        "a",
        "code",
        "small",
    ),
    *("ol", "ul", "li", "span", "section", "figure", "figcaption", "picture", "source", "img"),
    *("table", "caption", "thead", "tbody", "tfoot", "tr", "th", "td", "button"),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page of each kind of report, and of the demo."""
    place = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        for name, make in REPORTS.items():
            if name not in DRAWN:
                patch.setattr(drawing, "figures", lambda _: [])
            make().write_page(place / f"{name}.html", f"cometmq pipeline {name}")
            patch.undo()
    (place / "demo").mkdir()
    return {name: place / f"{name}.html" for name in REPORTS} | {"demo": write_demo(place / "demo")}


class Outline(HTMLParser):
    """The elements of a page, with proof that each is closed in its place."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: dict[str, str] = {}
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts[self.open[-1]] = self.texts.get(self.open[-1], "") + data


def test_pages_are_well_formed_and_have_one_design(pages: dict[str, Path]) -> None:
    styles = set()
    for name, path in pages.items():
        text = path.read_text(encoding="utf-8")
        outline = Outline(text)
        assert set(outline.tags) <= TAGS, f"{name}: no <pre>, and nothing that came from a message"
        assert outline.tags.count("script") == 1
        assert outline.tags.count("caption") == outline.tags.count("table") > 0
        assert "@media (prefers-color-scheme: dark)" in outline.texts["style"]
        assert outline.tags.index("h1") < text.count("<h1") + outline.tags.index("div"), "the title, then the verdict"
        assert text.index('class="verdict') < text.index("<ol") < text.index("<table")
        styles.add(outline.texts["style"])
        links = [value for _, attribute, value in outline.attributes if attribute in ("src", "srcset", "href")]
        assert all(link.startswith("data:image/svg+xml;base64,") or link.endswith(".html") for link in links)
        assert not [attribute for _, attribute, _ in outline.attributes if attribute.startswith("on")]
    assert len(styles) == 1


def test_pictures_are_well_formed_have_no_script_and_follow_the_colour_scheme(pages: dict[str, Path]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install cometmq[plot])")
    for picture in pictures(pages["trace"].read_text(encoding="utf-8")):
        kinds = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(picture).iter()}
        assert (
            kinds <= {"svg", "style", "metadata", "defs", "g", "path", "rect", "text", "tspan", "use", "clipPath"} | RDF
        )
        assert "prefers-color-scheme: dark" in picture
        assert "fill: #0e7490" not in picture


RDF: Final = {"RDF", "Work", "type", "format", "creator", "Agent", "title"}


def pictures(text: str) -> list[str]:
    found = re.findall(r'data:image/svg\+xml;base64,([^"]+)', text)
    return [base64.b64decode(data).decode() for data in found]


def test_a_page_without_matplotlib_says_how_to_get_plots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    audit_report().write_page(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "pip install" in text
    assert "<img" not in text


def test_a_long_table_says_how_much_the_page_leaves_out() -> None:
    text = table(Table(("<key",), [(str(n),) for n in range(5_000)], "Keys"))
    assert text.count("<tr>") == 1 + 1_000
    assert "Keys (the first 1,000 rows of 5,000; the JSON contains all)" in text


# In a browser ----------------------------------------------------------------------------------------


LOOK: Final = """() => {
  const light = color => {
    const [r, g, b] = color.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255).map(
      v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = it => {
    const color = getComputedStyle(it).backgroundColor;
    return color === 'rgba(0, 0, 0, 0)' && it.parentElement ? behind(it.parentElement) : color;
  };
  const contrast = it => {
    const [a, b] = [light(getComputedStyle(it).color), light(behind(it))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  };
  const all = [...document.querySelectorAll('body *')];
  const texts = all.filter(it => [...it.childNodes].some(child => child.nodeType === 3 && child.data.trim()));
  return {
    overflows: all.filter(it => !it.closest('.wide, .code') && it.getBoundingClientRect().right > innerWidth + 1)
      .map(it => it.outerHTML),
    width: document.documentElement.scrollWidth,
    contrast: Math.min(...texts.filter(it => it.tagName !== 'SCRIPT').map(contrast)),
    verdict: document.querySelector('.verdict').getBoundingClientRect().top,
    picture: document.images.length ? document.images[0].getBoundingClientRect().width : innerWidth,
  };
}"""
"""Elements beyond the edge, the width, the least contrast of a text, where the verdict is, the width of a picture."""
LOOKS: Final = [(width, scheme) for width in (390, 1280) for scheme in ("light", "dark")]


def test_pages_fit_the_screen_and_can_be_read(browser: Any, pages: dict[str, Path]) -> None:
    """On phones and desktops, in both colour schemes."""
    shown = browser.new_page()
    failures: list[str] = []
    shown.on("pageerror", lambda error: failures.append(str(error)))
    shown.on("console", lambda message: failures.append(message.text) if message.type == "error" else None)
    shown.on("request", lambda request: None if request.url[:5] in ("file:", "data:") else failures.append(request.url))
    for name, path in pages.items():
        shown.goto(path.as_uri())
        title = shown.title()
        assert title == "CometMQ demo" or title in shown.inner_text("h1"), "nothing in a message has run"
        for width, scheme in LOOKS:
            shown.set_viewport_size({"width": width, "height": 900})
            shown.emulate_media(color_scheme=scheme)
            shown.wait_for_function("[...document.images].every(it => it.complete && it.naturalWidth)")
            look = shown.evaluate(LOOK)
            where = f"{name}, {width} pixels, {scheme}"
            assert (look["overflows"], look["width"] <= width) == ([], True), where
            assert look["contrast"] >= 4.5, where
            assert look["verdict"] < 450, f"{where}: the verdict is seen without scrolling"
            assert look["picture"] > width * 0.75, where
    shown.close()
    assert failures == []


TEXTS: Final = """() => [...document.querySelectorAll('svg text')].filter(it => it.textContent.trim()).map(it => {
  const box = it.getBBox(), to = it.getCTM(), at = (x, y) => [x * to.a + y * to.c + to.e, x * to.b + y * to.d + to.f];
  const [x, y, w, h] = [box.x, box.y + 0.15 * box.height, box.width, 0.7 * box.height];
  return [it.textContent, [at(x, y), at(x + w, y), at(x + w, y + h), at(x, y + h)]];
})"""


def test_labels_of_plots_do_not_overlap(browser: Any, pages: dict[str, Path]) -> None:
    """In the browser's own letters, in the wide pictures and in the narrow ones."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install cometmq[plot])")
    shown = browser.new_page()
    for name, path in pages.items():
        for number, picture in enumerate(pictures(path.read_text(encoding="utf-8"))):
            shown.set_content(picture)
            width, height = (float(size) for size in re.findall(r'(?:width|height)="([\d.]+)pt"', picture)[:2])
            texts = shown.evaluate(TEXTS)
            assert texts
            for text, corners in texts:
                inside = all(-2 <= x <= width * 4 / 3 + 2 and -2 <= y <= height * 4 / 3 + 2 for x, y in corners)
                assert inside, f"{name}, picture {number}: {text!r} is cut off"
            for (one, of_one), (other, of_other) in combinations(texts, 2):
                assert not overlap(of_one, of_other), f"{name}, picture {number}: {one!r} is over {other!r}"
    shown.close()


def overlap(one: list[list[float]], other: list[list[float]]) -> bool:
    """Tell whether two rectangles, perhaps aslant, have more than an edge in common: no line goes between them."""
    for corners in (one, other):
        for (x, y), (to_x, to_y) in pairwise(corners[:3]):
            across = (y - to_y, to_x - x)
            left, right = ([across[0] * px + across[1] * py for px, py in of] for of in (one, other))
            length = (across[0] ** 2 + across[1] ** 2) ** 0.5
            if max(left) <= min(right) + length / 2 or max(right) <= min(left) + length / 2:
                return False
    return True


def test_tables_sort_by_a_click_and_by_the_keyboard(browser: Any, tmp_path: Path) -> None:
    rows = [("b10", 1_200, "1.5%"), ("b9", None, "20.0%"), ("a", 90, "3.0%")]
    inside = table(Table(("<name", ">count", ">share"), rows, "Some"), ("all", 1_290, "100%"))
    (tmp_path / "page.html").write_bytes(page("Sorting", inside))
    shown = browser.new_page()
    shown.goto((tmp_path / "page.html").as_uri())

    def names() -> list[str]:
        found: list[str] = shown.eval_on_selector_all("tbody tr", "rows => rows.map(row => row.cells[0].textContent)")
        return found

    shown.click("text=count")
    assert names() == ["b10", "a", "b9"], "the largest first; a dash is last"
    shown.click("text=count")
    assert names() == ["a", "b10", "b9"]
    assert shown.get_attribute("th:nth-child(2)", "aria-sort") == "ascending"
    shown.focus("text=name")
    shown.keyboard.press("Enter")
    assert names() == ["a", "b9", "b10"], "numbers in names count as numbers"
    shown.click("text=share")
    assert names() == ["b9", "a", "b10"]
    assert shown.inner_text("tfoot td") == "all"
    shown.close()
