"""The page as text: one file, well formed, nothing in it that a document smuggled in."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from html.parser import HTMLParser

import pytest
from report_documents import HOSTILE, KINDS, document

from datapipe.diagnostics.report.page import page

_VOID = {"meta", "rect", "path", "line", "br"}


class _Outline(HTMLParser):
    """Elements, attributes and text; complains about ends that do not fit."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.texts: list[str] = []
        self.problems: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        self.problems += [f"<{tag}> is left open" for tag in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.problems.append(f"</{tag}> ends nothing")

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] not in ("style", "script"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_one_well_formed_file(kind: str) -> None:
    text = page(document(kind))
    outline = _Outline(text)
    assert text.startswith("<!doctype html>\n")
    assert outline.problems == []
    assert outline.tags.count("script") == outline.tags.count("style") == outline.tags.count("h1") == 1
    text.encode("utf-8")


@pytest.mark.parametrize("kind", KINDS)
def test_it_asks_for_nothing_from_elsewhere(kind: str) -> None:
    text = page(document(kind))
    outline = _Outline(text)
    assert not {"link", "img", "iframe", "object", "embed", "base", "form", "a"} & set(outline.tags)
    assert not [one for one in outline.attributes if one[1] in ("src", "href", "action", "xlink:href") or one[1].startswith("on")]
    assert not re.search(r"https?://|url\(|@import|fetch\(|XMLHttpRequest|WebSocket|innerHTML", text)


def test_its_policy_allows_its_own_script_alone() -> None:
    text = page(document("data-bound"))
    outline = _Outline(text)
    script = text.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [value for _, name, value in outline.attributes if name == "content" and "default-src" in (value or "")]
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def test_it_is_small_with_as_much_as_a_document_holds() -> None:
    found = document("large")
    assert (len(found["steps"]["start_s"]), len(found["spans"])) == (2000, 5000)
    assert len(page(found).encode()) < 400_000


def test_main_facts_are_text() -> None:
    text = _Outline(page(document("data-bound"))).text
    assert re.search(r"The GPU waits for data 37\.\d% of the time\. .* range 36\.\d% to 38\.\d%", text)
    for fact in (
        "transform RandomResizedCrop 47.0% 5.17 s",
        "in train.py:31 num_workers=4 in DataLoader(...); now 2",
        "37% shorter",
        "waiting for data: 25.1 ms (37%)",
        "train.py:31 torch.utils.data.DataLoader ImageFolder",
        "NVIDIA H200",
        "2026-11-20 14:03:11 UTC",
        "6 steps are longer than the chart is high; the longest took 277 ms.",
    ):
        assert fact in text, fact


def test_the_host_clock_is_named_wherever_it_counts() -> None:
    text = _Outline(page(document("host clock"))).text
    assert "(host clock)" in text
    assert "a GPU that still had work meanwhile waited less" in text
    assert "Not measured: the GPU's idle time" in text
    assert "of it: the loop waits in next()" in text
    assert "GPU at work" not in text


def test_remedies_say_what_they_need_and_what_came_of_them() -> None:
    text = _Outline(page(document("two ranks"))).text
    assert "applied: measured 44.7 ms" in text
    assert "--apply tries it without an edit" in text
    assert "changes what is trained" in text
    assert "not recommended" in text
    text = _Outline(page(document("no remedy"))).text
    assert "decode in train.py:12 (Photos.__getitem__): 3.2 times as fast, and the loop would not wait" in text
    assert "first batches 12.0 s, 30%" in text
    assert "persistent_workers=True: the run 40.0 s -> 30.0 s, 25% shorter" in text
    text = _Outline(page(document("compute-bound"))).text
    assert "Nothing needs to change" in text
    assert "another format: the training does not wait for data, so nothing was tried" in text
    assert "Tensor.item 48 times, 1.90 s in all" in text
    assert "print of a tensor once" in text


def test_what_is_copied_is_code_alone() -> None:
    """Line by line as in the document; the line to change and the remarks are next to it."""
    copied = re.findall(r"<code[^>]*>(.*?)</code>", page(document("data-bound")))
    lines = [html.unescape(line) for one in copied for line in one.split("<br>")]
    code = [one["text"] for outlook in document("data-bound")["remedies"]["predictions"] for one in outlook["code"]]
    assert len(code) == 5
    assert {line for text in code for line in text.splitlines()} < set(lines)
    assert not any("train.py:31" in line or "pixels" in line for line in lines)
    older = document("data-bound")
    for outlook in older["remedies"]["predictions"]:
        outlook["how"] = "a sentence, not code"
        del outlook["code"], outlook["where"], outlook["note"]
    assert ">a sentence, not code</small>" in page(older)


def test_nothing_measured_is_said_and_not_drawn() -> None:
    text = page(document("nothing"))
    assert "<svg" not in text
    outline = _Outline(text).text
    assert "No step was kept." in outline
    assert "It was not measured which stage is at fault: no loader was iterated." in outline
    assert outline.count("not measured") >= 10


def test_gaps_that_were_not_measured_are_told_from_none() -> None:
    found = document("data-bound")
    found["steps"]["gap_s"][100:110] = [None] * 10
    assert "Of 10 steps the waiting was not measured" in page(found)


def test_names_are_text_wherever_they_stand() -> None:
    text = page(document("hostile"))
    assert "<script>alert" not in text
    assert "\x1b" not in text
    outline = _Outline(text)
    assert outline.tags.count("script") == 1
    shown = HOSTILE.replace("\x1b", "\ufffd").replace("\ud800", "\ufffd")
    for place in ("command", "loaders", "environment", "troubles"):
        harmless = document("hostile") | {place: document("two ranks")[place]}
        assert outline.texts.count(shown + "x" * 400) >= _Outline(page(harmless)).texts.count(shown + "x" * 400)
    assert sum(shown in one for one in outline.texts) >= 12
