"""The page in headless Chromium: it runs without complaint, fits its window, and can be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_chromium import NAMES, Browser, browser, find_chromium
from report_documents import KINDS, document

from datapipe.diagnostics.report.page import page

CHROMIUM = find_chromium()
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(CHROMIUM is None, reason=f"none of {', '.join(NAMES)} is installed (CHROMIUM names another)"),
]

# What sticks out of the window, but for what lies in a part that scrolls or cuts by itself.
_OVERFLOWING = """
(() => {
  const width = document.documentElement.clientWidth, found = [];
  if (document.documentElement.scrollWidth > width) found.push(`page ${document.documentElement.scrollWidth}`);
  for (const one of document.body.querySelectorAll("*")) {
    const box = one.getBoundingClientRect();
    if (!box.width || (box.right <= width + 1 && box.left >= -1)) continue;
    let around = one.parentElement;
    while (around && getComputedStyle(around).overflowX === "visible") around = around.parentElement;
    if (!around) found.push(`${one.tagName}.${one.className.baseVal ?? one.className}`);
  }
  return found;
})()
"""
# Text whose colour is too close to its background: contrast below 4.5, the limit of WCAG 2 for text.
_FAINT = """
(() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (text) => {
    const linear = (one) => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = parts(text).map((one) => linear(one / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor, alpha = parts(colour)[3];
      if (alpha === undefined || alpha > 0.99) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const found = [];
  for (const one of document.body.querySelectorAll("*")) {
    if (![...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
    if (one.closest("script, style, svg")) continue;
    const [first, second] = [light(getComputedStyle(one).color), light(behind(one))];
    const contrast = (Math.max(first, second) + 0.05) / (Math.min(first, second) + 0.05);
    if (contrast < 4.5) found.push(`${one.tagName}.${one.className} ${contrast.toFixed(2)}: ${one.textContent.slice(0, 30)}`);
  }
  return found;
})()
"""


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    assert CHROMIUM is not None
    with browser(CHROMIUM) as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {kind: folder / f"{kind.replace(' ', '-')}.html" for kind in KINDS}
    for kind, path in found.items():
        path.write_text(page(document(kind)), encoding="utf-8")
    return found


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("kind", KINDS)
def test_it_fits_and_nothing_goes_wrong(tab: Browser, pages: dict[str, Path], kind: str, width: int) -> None:
    tab.open(pages[kind], width=width)
    assert tab.value("document.documentElement.clientWidth") == width
    assert tab.value(_OVERFLOWING) == []
    assert tab.complaints == []
    assert tab.requests == [pages[kind].as_uri()]
    tab.value("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert tab.value(_OVERFLOWING) == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("kind", ["two ranks", "compute-bound", "nothing"])
def test_text_can_be_read_by_day_and_night(tab: Browser, pages: dict[str, Path], kind: str, dark: bool) -> None:
    tab.open(pages[kind], width=1280, dark=dark)
    paper = tab.value("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")
    assert tab.value(_FAINT) == []


def test_the_checks_see_what_they_are_for(tab: Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["nothing"], width=400)
    tab.value("document.querySelector('main').insertAdjacentHTML('beforeend', '<div style=\"width:900px;color:#aaa\">x</div>')")
    assert tab.value(_OVERFLOWING) == ["page 912", "DIV."]
    assert tab.value(_FAINT) == ["DIV. 2.32: x"]
    misdeeds = "console.error('here'); new Image().src = 'https://example.invalid/x.png'; throw new Error('there');"
    tab.value(f"setTimeout(() => {{ {misdeeds} }})")
    tab.value("new Promise((done) => setTimeout(done, 100))")
    assert any("here" in one for one in tab.complaints)
    assert any("there" in one for one in tab.complaints)
    assert any("Content Security Policy" in one for one in tab.complaints)


def test_main_facts_need_no_script(tab: Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["two ranks"], width=1280, script=False)
    assert tab.value("document.querySelectorAll('.tools').length") == 0
    text = tab.value("document.body.innerText")
    for fact in ("The GPU waits for data", "RandomResizedCrop", "num_workers=4", "evaluation"):
        assert fact in text
    assert tab.value("[...document.querySelectorAll('.plot svg')].every((one) => one.getBoundingClientRect().width > 900)")


def _box(tab: Browser, selector: str) -> dict[str, Any]:
    tab.value(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center', behavior: 'instant'}})")
    box: dict[str, Any] = tab.value(
        f"(() => {{ const b = document.querySelector({selector!r}).getBoundingClientRect();"
        "return {x: b.x, y: b.y, width: b.width, height: b.height}; })()"
    )
    return box


def test_figures_are_shown_under_the_pointer(tab: Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["data-bound"], width=1280)
    box = _box(tab, ".plot.steps svg")
    tab.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 5)
    tip = tab.value("document.querySelector('.tip').innerText")
    found = document("data-bound")
    start_s = found["steps"]["start_s"]
    middle = start_s[0] + (start_s[-1] + found["steps"]["step_s"][-1] - start_s[0]) / 2
    row = max(place for place, one in enumerate(start_s) if one <= middle)
    lines = tip.splitlines()
    assert lines[0].startswith("at 16.")
    near = [f"{1e3 * found['steps']['step_s'][place]:.3g}" for place in range(row - 1, row + 2)]
    assert any(f"step of {value}" in lines[0] for value in near)
    assert lines[1].startswith("the GPU waited ")
    assert lines[3] == "steady"
    tab.move(5, 5)
    assert tab.value("document.querySelector('.tip').hidden")
