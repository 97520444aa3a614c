"""The screen: it fits, begins with the verdict, and leaves nothing harmful out or in."""

from __future__ import annotations

import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from report_documents import KINDS, document

from benchmarks.diagnose_picture import DOCUMENT, MANUAL, README, with_transcript
from datapipe.diagnostics.document import read_document
from datapipe.diagnostics.report.screen import MAX_LINES, WIDTH, screen, takes_colours

PAGE = "out/diagnosis.html"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", [PAGE, None])
def test_it_fits_on_a_screen(kind: str, path: str | None) -> None:
    lines = screen(document(kind), page=path).splitlines()
    assert len(lines) <= MAX_LINES == 24
    assert max(map(len, lines)) <= WIDTH == 100
    assert all(line == line.rstrip() for line in lines)
    assert lines[-1] == f"Page: {PAGE}" if path else lines[-1]


def test_it_fits_with_everything_at_its_longest() -> None:
    found = document("hostile")
    found["verdict"]["figures"] |= {"copy_s": 0.020, "exposed_by_sync_s": 0.011, "sync_share": None}
    found["verdict"]["kind"] = "sync-exposed"
    lines = screen(found, page=PAGE).splitlines()
    assert len(lines) <= MAX_LINES
    assert any("The loop waits for the GPU in" in line for line in lines)
    assert any(line.startswith("What would help") for line in lines)


def test_the_verdict_comes_first_with_its_range() -> None:
    first, second, *_ = screen(document("data-bound")).splitlines()
    assert re.fullmatch(r"The GPU waits for data 37\.\d% of the time\.", first)
    assert re.search(r"of each 67\.\d ms step, range 36\.\d% to 38\.\d% over 474 steady steps", second)
    assert "95" not in second  # the ranges are not those of 95%


def test_without_a_gpu_it_says_so_twice() -> None:
    text = screen(document("host clock"))
    assert "(host clock)" in text.splitlines()[0]
    assert "a GPU that still had work meanwhile waited less" in text.replace("\n  ", " ")
    assert "Not measured: the GPU's idle time" in text


def test_stages_are_bars_by_share() -> None:
    text = screen(document("data-bound"))
    assert "At fault: transforms, 55% of waiting" in text
    bars = re.findall(r"^  (\S.*?) +(#*)\.* +([\d.]+)% +(\S+ \S+)$", text, re.MULTILINE)
    assert [(name, share, seconds) for name, _, share, seconds in bars] == [
        ("transform RandomResizedCrop", "47.0", "5.17 s"),
        ("decode", "30.0", "3.30 s"),
        ("read", "10.0", "1.10 s"),
        ("transform ColorJitter", "8.0", "880 ms"),
    ]
    assert [len(bar) for _, bar, _, _ in bars] == [19, 12, 4, 3]
    assert "2 others, 5.0%" in text


def test_remedies_come_best_first_with_the_line_that_does_them() -> None:
    text = screen(document("data-bound"))
    assert re.search(r"  1\. 4 workers +42\.\d ms  37% shorter \[\d+%, \d+%\]\n     num_workers=4  # train\.py:31: in D", text)
    # A command can be copied, on however many lines, or is not there at all.
    converted = next(one for one in document("data-bound")["remedies"]["predictions"] if one["name"].startswith("converted"))
    shell, python = (one["text"] for one in converted["code"])
    lines = text.partition("     $ ")[2].splitlines()
    assert lines[0].endswith(" \\")
    assert shlex.split(lines[0][:-1] + lines[1]) == shlex.split(shell)
    assert [line.partition("  #")[0] for line in lines[2:4]] == [f"     {line}" for line in python.splitlines()]
    # All remedies, if need be without how they are done; that of the best is kept longest.
    assert re.findall(r"^ +(\d)\. ", text, re.MULTILINE) == ["1", "2", "3", "4"]
    assert "\n     num_workers=4  #" in screen(document("two ranks"), page=PAGE)
    found = document("data-bound")
    found["remedies"]["predictions"] *= 3
    assert re.search(r"^  \d more in the page$", screen(found), re.MULTILINE)
    found = document("data-bound")
    found["remedies"]["best"] = "cached epoch"
    assert re.search(
        r"  1\. cached epoch .*\n     loader = dp\.from_torch\(loader, data=\"DST\"\)  # train\.py:31\n", screen(found)
    )
    found["remedies"]["predictions"][0]["code"][0]["text"] = "x " * 300
    assert "(how: see the page)" in screen(found)


def test_nothing_to_change_is_said_plainly() -> None:
    text = screen(document("compute-bound"))
    assert "Data is not the bottleneck" in text.splitlines()[0]
    assert "Nothing needs to change: the loop hardly waits for data." in text
    assert "Not recommended: cached epoch" in text
    assert "At fault" not in text
    assert "What waiting there is: transforms" in text


def test_a_loop_that_waits_is_never_told_to_change_nothing() -> None:
    text = screen({**document("no remedy"), "run": None, "regimes": []})
    assert "hange nothing" not in text
    assert "Nothing needs to change" not in text
    joined = " ".join(text.split())
    for line in (
        "What would help: no change that is known for this loader is predicted to help.",
        "- decode in train.py:12 (Photos.__getitem__): 3.2 times as fast, and the loop would not wait; if it cost nothing, a "
        "step would take 43.0 ms, 36% shorter at most to try: store images at about the size that is trained on",
        "- transform Slow: if it cost nothing, a step would take 61.0 ms, 9% shorter at most, and the loop would still wait",
        "Would make it slower: 1 worker (1.99 times as long)",
        "datapipe's loader (datapipe sees no files in Photos)",
    ):
        assert line in joined


def test_what_makes_a_step_longer_is_said_however_many_others_there_are() -> None:
    """By whole names with their factors, the worst first, not behind what is cut."""
    found = document("no remedy")
    (one,) = [outlook for outlook in found["remedies"]["within_noise"] if outlook["name"] == "1 worker"]
    harmless = [dict(one, name=f"harmless {number} of a long name", gain=dict.fromkeys(one["gain"], 0.0)) for number in range(20)]
    factors = {"slower": 1.3, "much slower": 2.5}
    harmful = [
        dict(one, name=name, gain=dict.fromkeys(one["gain"], 1 - factor), step_s=dict.fromkeys(one["step_s"], factor))
        for name, factor in factors.items()
    ]
    found["remedies"]["within_noise"] = [*harmless, *harmful]
    text = screen(found)
    assert "  Would make it slower: much slower (2.5 times as long), slower (1.30 times as long)\n" in text
    assert re.search(r"Not recommended: harmless 0 of a long name \(no change\),[^.]*\d+ more in the page", text)
    assert len(text.splitlines()) <= MAX_LINES


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("datapipe.from_torch, the Dataset as it is", "datapipe.from_torch, the Dataset as it is (1.75 times as long), 9 more"),
        ("a remedy " * 12 + "of a long name", "a remedy a remedy a remedy "),
    ],
)
def test_a_loss_is_said_in_one_line_with_its_factor_however_long_its_name_is(name: str, shown: str) -> None:
    found = document("no remedy")
    (one,) = [outlook for outlook in found["remedies"]["within_noise"] if outlook["name"] == "1 worker"]
    others = [
        dict(
            one,
            name=f"{'slower too ' * 4}{number}",
            gain=dict.fromkeys(one["gain"], -0.3),
            step_s=dict.fromkeys(one["step_s"], 1.3),
        )
        for number in range(9)
    ]
    loss = dict(one, name=name, gain=dict.fromkeys(one["gain"], -0.75), step_s=dict.fromkeys(one["step_s"], 1.75))
    found["remedies"]["within_noise"] = [*others, loss]
    (line,) = [line for line in screen(found).splitlines() if "Would make it slower" in line]
    assert line.startswith(f"  Would make it slower: {shown}")
    assert "(1.75 times as long), 9 more" in line
    assert len(line) <= 100


def test_the_whole_run_is_told_where_steady_steps_are_little_of_it() -> None:
    joined = " ".join(screen(document("no remedy")).split())
    for line in (
        "Epochs differ: epoch 1 waits 90% (90.0 ms a step), epochs 2 to 8 wait 37% (90.0 ms a step). What follows is about the "
        "last of them.",
        "Of the run's 40.0 s went 30% to the first batches of passes, such as starting workers, 22% to validation; 35% to "
        "training steps and waiting between them.",
        "The validation loader takes 22% of the run; 80% of that is waiting for data.",
        "What would shorten the run: persistent_workers=True: the run 40.0 s -> 30.0 s, 25% shorter",
    ):
        assert line in joined


def test_ranks_what_was_applied_and_troubles() -> None:
    text = screen(document("two ranks"))
    assert "The other rank waits for rank 1 on node-7 25.2 ms of each step (62%): its data takes longer in" in text
    assert "Waiting by rank, for data + for others  0: 1.8% + 64.4%, 1: 37.4% + 2.0%" in text
    assert "Applied: 4 workers: predicted 43.1 ms [42.5, 43.9] per step, measured 44.7 ms, waiting for data 1.2%" in text
    assert "Trouble: rank 1: 3 batches came from a worker that left no profile (and 1 more)" in text
    found = document("two ranks")
    found["applied"] |= {"measured_step_s": None, "starvation": None, "reason": "the script failed"}
    assert "per step, not measured (the script failed)" in screen(found)


def test_waits_are_named_where_they_are_to_blame() -> None:
    found = document("data-bound")
    found["syncs"] = {"print of a tensor": {"num": 1, "host_s": 0.04}, "Tensor.item": {"num": 480, "host_s": 1.9}}
    assert "Tensor.item" not in screen(found)
    found["verdict"]["kind"] = "sync-exposed"
    assert "The loop waits for the GPU in Tensor.item 480 times, print of a tensor once" in screen(found)


@pytest.mark.parametrize("kind", KINDS)
def test_colours_change_no_text(kind: str) -> None:
    plain, painted = screen(document(kind)), screen(document(kind), colours=True)
    assert "\x1b" not in plain
    assert "\x1b[" in painted
    assert re.sub(r"\x1b\[[\d;]*m", "", painted) == plain


@pytest.mark.parametrize("page", [MANUAL, README])
def test_the_pages_show_the_screen_of_the_committed_document(page: Path) -> None:
    found, text = json.loads(DOCUMENT.read_text()), page.read_text()
    read_document(found)
    assert with_transcript(text, found, where=page) == text, "run python -m benchmarks.diagnose_picture --keep"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "expected"),
    [
        (_Terminal(), {"TERM": "xterm"}, True),
        (_Terminal(), {"TERM": "dumb"}, False),
        (_Terminal(), {"NO_COLOR": "1"}, False),
        (io.StringIO(), {"TERM": "xterm"}, False),
    ],
)
def test_colours_are_for_terminals(stream: Any, environment: dict[str, str], expected: bool) -> None:
    assert takes_colours(stream, environment) is expected
