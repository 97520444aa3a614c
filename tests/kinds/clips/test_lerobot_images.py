"""Cameras whose images lie in the tables of LeRobot's datasets give them as LeRobot does, with those of videos beside them."""

from __future__ import annotations

import io
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

av = pytest.importorskip("av")

from lerobot_files import CAMERAS, FPS, LENGTHS, decoded, write_lerobot  # noqa: E402
from stand_in_stores import BUCKET, moto_store, needs_moto, upload  # noqa: E402
from video_files import pictures  # noqa: E402

import datapipe as dp  # noqa: E402
from datapipe.cli.main import main  # noqa: E402
from datapipe.errors import DecodeError, FormatError, OptionError  # noqa: E402

FRONT, BACK = "observation.images.front", "observation.images.back"
TOTAL = sum(LENGTHS)
SCENES = {FRONT: pictures(TOTAL, 40, 32, seed=7), BACK: pictures(TOTAL, 40, 32, seed=8)}


def encoded(image: np.ndarray[Any, Any]) -> bytes:
    held = io.BytesIO()
    Image.fromarray(image).save(held, "PNG")
    return held.getvalue()


def with_images(root: Path, version: str = "v3.0", *, keeps_videos: bool = True) -> Path:
    """A dataset of two cameras of images, and two of videos; row groups of 10 rows."""
    write_lerobot(root, version)
    info = json.loads((root / "meta" / "info.json").read_text())
    for name in (FRONT, BACK):
        info["features"][name] = {"dtype": "image", "shape": [32, 40, 3], "names": ["height", "width", "channels"]}
    if not keeps_videos:
        info["features"] = {name: one for name, one in info["features"].items() if one["dtype"] != "video"}
        info["video_path"] = None
        shutil.rmtree(root / "videos")
    (root / "meta" / "info.json").write_text(json.dumps(info))
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    for path in sorted((root / "data").rglob("*.parquet")):
        table = pq.read_table(path)
        for name in (FRONT, BACK):
            rows = table.column("index").to_pylist()
            images = [{"bytes": encoded(SCENES[name][row]), "path": f"frame-{row:06d}.png"} for row in rows]
            table = table.append_column(name, pa.array(images, kind))
        pq.write_table(table, path, row_group_size=10)
    return root


def loader_of(data: Any, **options: Any) -> Any:
    return dp.DataLoader(data, **{"batch_size": 8, "shuffle": True, "seed": 0, "num_workers": 2} | options)


@pytest.mark.daily(1)
@pytest.mark.parametrize("keeps_videos", [True, False])
@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_images_are_those_of_the_tables(version: str, keeps_videos: bool, tmp_path: Path) -> None:
    path = with_images(tmp_path / "data", version, keeps_videos=keeps_videos)
    deltas = {FRONT: [-0.2, 0.0, 0.1], "action": [0.0, 0.1]}
    data = dp.Clips(path, delta_timestamps=deltas)
    frames = {CAMERAS[0]: decoded(path, CAMERAS[0], TOTAL)} if keeps_videos else {}
    starts = np.cumsum([0, *LENGTHS])
    seen = []
    for batch in loader_of(data):
        assert f"{FRONT}_is_pad" in batch
        assert (CAMERAS[0] in batch) is keeps_videos
        for row, index in enumerate(batch["index"].tolist()):
            episode = int(np.searchsorted(starts, index, side="right")) - 1
            rows = [min(max(index + round(delta * FPS), starts[episode]), starts[episode + 1] - 1) for delta in deltas[FRONT]]
            wanted = torch.from_numpy(np.stack([SCENES[FRONT][one] for one in rows])).permute(0, 3, 1, 2)
            assert torch.equal(batch[FRONT][row], wanted)
            assert torch.equal(batch[BACK][row], torch.from_numpy(SCENES[BACK][index].copy()).permute(2, 0, 1))
            if keeps_videos:
                assert torch.equal(batch[CAMERAS[0]][row], torch.from_numpy(frames[CAMERAS[0]][index]).permute(2, 0, 1))
            seen.append(index)
    assert sorted(seen) == list(range(TOTAL))
    assert "of images" in str(dp.explain(loader_of(data)))


def test_some_episodes_crops_copies_and_mixtures(tmp_path: Path) -> None:
    path = with_images(tmp_path / "data", keeps_videos=False)
    transform = [dp.transforms.RandomCrop(16)]
    data = dp.Clips(path, episodes=[2, 0], fields=[FRONT, BACK, "index"])
    batches = list(loader_of(data, transform=transform))
    assert sum(len(batch["index"]) for batch in batches) == LENGTHS[0] + LENGTHS[2]
    for batch in batches:
        for front, back, index in zip(batch[FRONT], batch[BACK], batch["index"].tolist(), strict=True):
            whole = [torch.from_numpy(SCENES[name][index].copy()).permute(2, 0, 1) for name in (FRONT, BACK)]
            places = [(y, x) for y in range(17) for x in range(25) if torch.equal(whole[0][:, y : y + 16, x : x + 16], front)]
            assert len(places) == 1
            y, x = places[0]
            assert torch.equal(whole[1][:, y : y + 16, x : x + 16], back)
    again = list(pickle.loads(pickle.dumps(loader_of(data, transform=transform, num_workers=0))))
    assert all(torch.equal(one[FRONT], other[FRONT]) for one, other in zip(batches, again, strict=True))
    mixed = dp.mix([dp.Clips(path, fields=[FRONT, "index"]) for _ in range(2)], [1, 1], num_samples=60)
    for batch in loader_of(mixed):
        for front, index in zip(batch[FRONT], batch["index"].tolist(), strict=True):
            assert torch.equal(front, torch.from_numpy(SCENES[FRONT][index].copy()).permute(2, 0, 1))


@pytest.mark.nightly
@needs_moto
def test_images_in_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = with_images(tmp_path / "data")
    with moto_store():
        upload(path, "data")
        how: dict[str, Any] = {"fields": [FRONT, CAMERAS[0], "index"]}
        there, here = (list(loader_of(dp.Clips(place, **how))) for place in (f"s3://{BUCKET}/data", path))
        assert all(torch.equal(one[name], other[name]) for one, other in zip(there, here, strict=True) for name in one)


def test_bad_images_and_wrong_facts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = with_images(tmp_path / "data", keeps_videos=False)
    (file, *_) = sorted((path / "data").rglob("*.parquet"))
    table = pq.read_table(file)
    images = table.column(FRONT).to_pylist()
    images[3]["bytes"] = images[3]["bytes"][:300]
    images[5]["bytes"] = encoded(pictures(1, 20, 16)[0])
    number = table.column_names.index(FRONT)
    pq.write_table(table.set_column(number, FRONT, pa.array(images, table.schema.field(FRONT).type)), file, row_group_size=10)
    data = dp.Clips(path, fields=[FRONT, "index"])
    with pytest.raises(DecodeError, match=r"file-000\.parquet: sample \d \(frame \d of episode 0\)"):
        list(loader_of(data))
    loader = loader_of(data, on_error="skip")
    seen = [index for batch in loader for index in batch["index"].tolist()]
    assert sorted(seen) == [row for row in range(TOTAL) if row not in (3, 5)]
    assert any("20 x 16 pixels, not 40 x 32" in bad.reason for bad in loader.bad_samples)
    assert main(["inspect", str(path)]) == 1
    assert "cameras are images in Parquet" in capsys.readouterr().err
    info = json.loads((path / "meta" / "info.json").read_text())
    for change, error, said in [
        ({"shape": [32, 40, 1]}, OptionError, "images of 1 channels, or of depth, are not served; name other fields"),
        ({"info": {"is_depth_map": True}}, OptionError, "or of depth, are not served"),
        ({"shape": [32, 40]}, FormatError, r"its shape is \[32, 40\], not that of images"),
        ({"shape": [1 << 39, 40, 3]}, FormatError, "images of 549755813888 x 40 pixels exceed the limit"),
    ]:
        changed = {**info, "features": {**info["features"], BACK: {**info["features"][BACK], **change}}}
        (path / "meta" / "info.json").write_text(json.dumps(changed))
        with pytest.raises(error, match=said):
            dp.Clips(path)
        assert len(dp.Clips(path, fields=[FRONT])) == TOTAL
    info["features"]["observation.images.gone"] = info["features"][FRONT]
    (path / "meta" / "info.json").write_text(json.dumps(info))
    with pytest.raises(FormatError, match=r"has no column observation\.images\.gone"):
        dp.Clips(path)
