"""The pictures of `bench --plot`, `inspect --sizes` and `train --plot` show the figures that they are made of."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from datapipe.cli.charts import _BOX, _OTHERS, _OURS, Bar, draw_bars, draw_histogram, draw_shares
from datapipe.cli.inspect import draw_sizes
from datapipe.cli.main import main
from datapipe.cli.train import draw_waiting
from datapipe.containers import open_index
from datapipe.testing.synthetic_images import make_image_folder

LEFT, TOP, RIGHT, BOTTOM = _BOX


def seen(path: Path, colour: str) -> NDArray[np.bool_]:
    """(h, w) True where the picture has that colour."""
    with Image.open(path) as image:
        return np.asarray((np.asarray(image.convert("RGB")) == tuple(bytes.fromhex(colour[1:]))).all(2))


def test_bars_are_as_long_as_their_values(tmp_path: Path) -> None:
    draw_bars(tmp_path / "x.png", [Bar("a", 300, 300, 300), Bar("b", 100, 100, 100)], title="t", subtitle="s")
    rows = [seen(tmp_path / "x.png", colour)[TOP:BOTTOM].sum(1) for colour in (_OURS, _OTHERS)]
    ours, theirs = (np.median(one[one > 100]) for one in rows)  # without the grey of letters
    assert ours == pytest.approx(3 * theirs, abs=4)


def test_columns_are_as_high_as_their_counts(tmp_path: Path) -> None:
    draw_histogram(tmp_path / "x.png", [10, 40, 0, 20], ["0", "1", "2", "3", "4"], title="t", subtitle="s")
    columns = np.array_split(seen(tmp_path / "x.png", _OURS)[:, LEFT:RIGHT], 4, axis=1)
    heights = [int(column[:, 20:-20].sum(0).max()) for column in columns]
    assert heights == pytest.approx([(BOTTOM - TOP) * share for share in (0.25, 1, 0, 0.5)], abs=3)


def test_shares_are_where_they_belong(tmp_path: Path) -> None:
    draw_shares(tmp_path / "x.png", [(0, 0.5), (10, 0.5)], [5], title="t", subtitle="s")
    rows = np.flatnonzero(seen(tmp_path / "x.png", _OURS)[:, (LEFT + RIGHT) // 2])
    assert rows.mean() == pytest.approx((TOP + BOTTOM) / 2, abs=2)


def test_sizes_are_those_of_the_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = make_image_folder(tmp_path / "photos", num_images=20, num_classes=2, scale="small")
    drawn = {}
    monkeypatch.setattr("datapipe.cli.inspect.draw_histogram", lambda path, counts, edges, **words: drawn.update(words, n=counts))
    draw_sizes(open_index(photos), tmp_path / "x.png", where="photos")
    largest = max(path.stat().st_size for path in photos.glob("*/*.jpg"))
    assert sum(drawn["n"]) == 20
    assert drawn["n"][0] > 0 < drawn["n"][-1]
    assert f"the largest {largest / 1000:.2g} KB" in drawn["subtitle"]


def test_waiting_is_that_of_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [{"step": 1, "loss": 2.0, "starvation": None}, {"step": 2, "loss": 2.0, "starvation": 0.25}]
    lines += [{"step": 2, "train_loss": 2.0, "starvation": 0.3}, {"step": 3, "loss": 1.0, "starvation": 0.5}]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    drawn = []
    monkeypatch.setattr("datapipe.cli.train.draw_shares", lambda path, points, ends, **words: drawn.append((points, ends)))
    draw_waiting(tmp_path, tmp_path / "x.png", where="photos")
    assert drawn == [([(2, 0.25), (3, 0.5)], [2])]


def test_the_commands_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = str(make_image_folder(tmp_path / "photos", num_images=20, num_classes=2, scale="small"))
    few = ["--images", "20", "--rounds", "1", "--batch-size", "10", "--size", "32", "--num-workers", "1"]
    assert main(["bench", photos, *few, "--plot", str(tmp_path / "rates.png")]) == 0
    assert main(["inspect", photos, "--sizes", str(tmp_path / "sizes.png")]) == 0
    run = ["--out", str(tmp_path / "run"), "--batch-size", "10", "--size", "32", "--num-workers", "1", "--log-every", "1"]
    assert main(["train", photos, *run, "--epochs", "1", "--plot", str(tmp_path / "waiting.png")]) == 0
    for name, height in (("rates", 275), ("sizes", 540), ("waiting", 540)):  # one bar needs no more
        with Image.open(tmp_path / f"{name}.png") as picture:
            assert picture.size == (960, height)
