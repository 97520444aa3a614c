"""What turns measurements into figures: order of rounds, ratios, the published tables and the picture, the data sets."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import bars, gil, video_stages
from benchmarks.contenders import CONTENDERS
from benchmarks.data import ImageSet, Workshop, describe, prepare
from benchmarks.harness import RESULTS, save, summarise
from benchmarks.marked import replace_marked
from benchmarks.rate_picture import draw
from benchmarks.ratios import ratio_of, rotated
from benchmarks.shown.machines import cpu, on_each_cpu
from benchmarks.table import as_markdown, documents, read_results
from benchmarks.task import Task


def test_everyone_goes_first_and_last() -> None:
    names = ["a", "b", "c"]
    orders = [rotated(names, number) for number in range(6)]
    assert all(sorted(order) == names for order in orders)
    assert {order[0] for order in orders} == {order[-1] for order in orders} == set(names)
    assert len({tuple(order) for order in orders}) > 3


def test_ratio_pairs_rounds() -> None:
    """A machine that halves its speed in some rounds halves both: the ratio is as sure as before."""
    theirs = [100.0, 50.0, 101.0, 49.0, 99.0, 50.5, 100.5]
    ratio = ratio_of([2 * value for value in theirs], theirs)
    assert (ratio.ratio, ratio.low, ratio.high) == (2.0, 2.0, 2.0)
    unsure = ratio_of([100.0, 150.0, 200.0, 120.0, 180.0], [100.0] * 5)
    assert unsure.low < unsure.ratio == 1.5 < unsure.high
    with pytest.raises(ValueError, match="zip"):
        ratio_of([1.0], [1.0, 2.0])


def measured(rate: float) -> dict[str, object]:
    times = {"wall_s": 1.0, "own_cpu_s": 2.0, "first_batch_s": 0.1}
    return {"images_per_s": rate, "num_images": 128, "peak_rss_mb": 300.0, "versions": {}, **times}


def test_table_comes_from_results(tmp_path: Path) -> None:
    rounds = {name: [measured(rate)] * 3 for name, rate in (("ours", 2000.0), ("ours-again", 2010.0), ("torch", 800.0))}
    dataset = {"name": "photos", "source": "generated", "num_files": 30, "copies": 1, "num_images": 30, "mean_nbytes": 78_000}
    settings = {"batch_size": 128, "num_threads": 2, "warmup_images": 1, "num_images": 128, "num_rounds": 3}
    result = {"dataset": dataset, "settings": settings, **summarise(rounds, against="ours")}
    save("images-photos", "test", result, results=tmp_path)
    table = as_markdown(read_results(tmp_path))
    assert "| torch DataLoader + PIL | 800 (2.50x [2.50, 2.50]) |" in table
    assert "30 generated photographs of 78 KB" in table
    assert "`images-photos`" in table.rpartition("### Where each was measured")[2]
    begin, end = "<!-- table:begin -->", "<!-- table:end -->"
    text = f"head\n{begin}\nold\n{end}\ntail\n"
    assert replace_marked(text, "table", table, where="x") == f"head\n{begin}\n{table}\n{end}\ntail\n"
    with pytest.raises(SystemExit, match="has no lines"):
        replace_marked("no markers", "table", table, where="x")
    with pytest.raises(SystemExit, match="no results"):
        read_results(tmp_path / "empty")
    with pytest.raises(SystemExit, match="images-256"):
        bars.as_markdown(read_results(tmp_path))


def test_published_figures_are_those_of_the_results() -> None:
    found = read_results(RESULTS)
    written = documents(found)
    assert {path.name for path in written} >= {"benchmarks.md", "README.md", "images-per-second-light.svg"}
    for path, text in written.items():
        assert path.read_text() == text, f"{path}: run python -m benchmarks.table"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_bars_of_the_picture_are_as_long_as_the_medians(theme: str) -> None:
    found = read_results(RESULTS)
    svg = ElementTree.fromstring(draw(found, theme))
    lengths = [float(shape.get("width", "")) for shape in svg if shape.tag.endswith("rect")]
    rows = ("ours", "ffcv", "dali-webdataset", "torch")
    by_set = [list(on_each_cpu(found, name)) for name in ("images-photos", "images-256")]
    medians = [result["contenders"][row]["median"] for results in by_set for row in rows for result in results]
    scale = lengths[0] / medians[0]
    assert lengths == pytest.approx([median * scale for median in medians], abs=0.2)
    told = {shape.text for shape in svg}
    assert {f"{median:,.0f}" for median in medians} | {cpu(result) for result in by_set[0]} <= told


def test_a_bar_says_whether_it_is_met() -> None:
    higher = bars.Bar("speed", 1.5, "x", False, lambda found: float(found["x"]))
    lower = bars.Bar("time", 1.5, " s", True, lambda found: float(found["x"]))
    assert higher.row({"x": 1.5}, {}).endswith("1.50x | yes |  |  |")
    assert higher.row({"x": 1.49}, {"x": 1.6}).endswith("1.49x | **no** | 1.60x | yes |")
    assert lower.row({"x": 1.49}, {"x": 1.51}).endswith("1.49 s | yes | 1.51 s | **no** |")
    assert lower.row({"x": 1.51}, {"y": 1.0}).endswith("1.51 s | **no** |  |  |")
    with pytest.raises(KeyError):
        higher.row({}, {"x": 1.5})


def test_tasks_travel_as_json() -> None:
    task = Task("ours", "/data", cores=(0, 3))
    assert Task.from_json(task.to_json()) == task


def test_contenders_are_named_once_and_complete() -> None:
    assert all(name == contender.name for name, contender in CONTENDERS.items())
    assert {"ours", "ours-again", "torch", "webdataset", "dali-file", "ffcv"} <= set(CONTENDERS)


@pytest.mark.nightly
def test_sets_are_made_once_and_not_mixed_up(tmp_path: Path) -> None:
    source = Path(prepare(Workshop(tmp_path / "a"), ImageSet("photos", num_files=3, copies=1), ()), "folder")
    workshop = Workshop(tmp_path / "b")
    image_set = ImageSet("256", source=str(source), num_files=4, copies=2)
    root = prepare(workshop, image_set, ("webdataset",))
    made = sorted(path.name for path in (root / "folder").glob("*/*"))
    assert len(made) == describe(root)["num_images"] == 8  # three files, in turn to four, twice each
    before = (root / "webdataset").stat().st_mtime_ns
    prepare(workshop, image_set, ("webdataset",))
    assert (root / "webdataset").stat().st_mtime_ns == before
    indexed = [int(path.read_text().split()[1]) for path in (root / "webdataset").glob("*.idx")]
    assert sum(indexed) == 8
    with pytest.raises(SystemExit, match="holds another set"):
        prepare(workshop, ImageSet("256", source=str(source), num_files=5, copies=2), ())
    assert json.loads((root / "set.json").read_text())["num_files"] == 4


@pytest.mark.nightly
@pytest.mark.parametrize("workers", gil.WORKERS)
def test_time_of_clips_is_that_of_this_process(tmp_path: Path, workers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("av")
    monkeypatch.setenv("DATAPIPE_WORKERS", workers)  # which it sets
    videos = gil.make_videos(tmp_path / "videos", 1, 30)
    of_thread = gil.measure_clips(videos, 32, workers)
    assert len(of_thread) == 5
    assert all(0 < epoch["cpu_us"] < 1.5 * epoch["wall_us"] for epoch in of_thread)


@pytest.mark.nightly
def test_the_parts_of_a_clip_s_time_add_up(tmp_path: Path) -> None:
    pytest.importorskip("av")
    parts = video_stages.measure(gil.make_videos(tmp_path / "videos", 1, 40), per_visit=2)
    whole = parts.pop("in all")
    assert sum(parts.values()) == pytest.approx(whole)
    assert 0 < min(parts.values()) < max(parts.values()) < whole


@pytest.mark.parametrize("backend", gil.BACKENDS)
def test_time_under_the_lock_is_bounded_by_all_of_it(tmp_path: Path, backend: str) -> None:
    for epoch in gil.measure(gil.make_shards(tmp_path, gil.TINY, 64), gil.TINY.crop, backend):
        assert 0 < epoch["cpu_us"] < 1.1 * epoch["wall_us"]
        assert sum(epoch[name] for name in ("plan_us", "read_us", "decode_us", "augment_us")) < epoch["wall_us"]
        assert epoch["calls_us"] > 0
