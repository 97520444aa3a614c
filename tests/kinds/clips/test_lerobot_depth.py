"""Cameras of depth in LeRobot's datasets give the millimetres that LeRobot gives, with crops and flips of the others."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

av = pytest.importorskip("av")

from lerobot_files import CAMERAS, LENGTHS, decoded, video_spans, write_lerobot  # noqa: E402
from video_files import x265  # noqa: E402

import datapipe as dp  # noqa: E402
from datapipe.errors import FormatError, OptionError  # noqa: E402

DEPTH = "observation.images.depth"
INFO = {"is_depth_map": True, "video.pix_fmt": "gray12le"}
STORED: dict[str, dict[str, Any]] = {
    "by default": {},
    "of its own": {"video.depth_min": 0.2, "video.depth_max": 4.0, "video.shift": 1.5, "video.use_log": True},
    "linear": {"video.depth_min": 0.0, "video.depth_max": 6.5, "video.use_log": False},
}


def codes(num: int) -> list[np.ndarray[Any, Any]]:
    """Numbers of 12 bits, of 48 x 64 pixels: each frame others, and all of them in each few."""
    rng = np.random.default_rng(0)
    return [rng.permutation(np.arange(64 * 48, dtype=np.uint16) + (time * 256) % 1024).reshape(48, 64) for time in range(num)]


def write_depth_video(path: Path, frames: list[np.ndarray[Any, Any]], codec: str, form: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    options = x265("lossless=1:bframes=0") if codec == "libx265" else {}
    with av.open(str(path), "w") as output:
        stream: Any = output.add_stream(codec, rate=10, options=options)
        stream.height, stream.width, stream.pix_fmt = 48, 64, form
        for image in frames:
            output.mux(stream.encode(av.VideoFrame.from_ndarray(image, format=form)))
        output.mux(stream.encode(None))


def with_depth(root: Path, version: str = "v3.0", *, stored: dict[str, Any] | None = None, form: str = "gray12le") -> Path:
    """A dataset of two cameras, and one of depth."""
    write_lerobot(root, version)
    info = json.loads((root / "meta" / "info.json").read_text())
    feature = {"dtype": "video", "shape": [48, 64, 1], "names": ["height", "width", "channels"], "info": INFO | (stored or {})}
    info["features"][DEPTH] = feature
    (root / "meta" / "info.json").write_text(json.dumps(info))
    if version == "v3.0":
        path = root / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
        table = pq.read_table(path)
        for name in ("chunk_index", "file_index", "from_timestamp", "to_timestamp"):
            table = table.append_column(f"videos/{DEPTH}/{name}", table.column(f"videos/{CAMERAS[0]}/{name}"))
        pq.write_table(table, path)
    frames = codes(sum(LENGTHS))
    frames = [frame << 4 for frame in frames] if form == "gray16le" else frames
    for file, first, end in video_spans(root, version, DEPTH, np.cumsum([0, *LENGTHS])):
        write_depth_video(file, frames[first:end], "libx265" if form == "gray12le" else "ffv1", form)
    return root


def by_lerobot(quantized: torch.Tensor, stored: dict[str, Any]) -> torch.Tensor:
    """What lerobot 0.6 makes of (h, w) stored numbers: its formula, on a tensor of torch's."""
    least, most = stored.get("video.depth_min", 0.01), stored.get("video.depth_max", 10.0)
    shift, is_log = stored.get("video.shift", 3.5), stored.get("video.use_log", True)
    low, high = (math.log(least + shift), math.log(most + shift)) if is_log else (least, most)
    found = quantized.to(torch.float32).mul_((high - low) / 4095).add_(low)
    if is_log:
        found.exp_().sub_(shift)
    return found.clamp_(least, most).unsqueeze(-3).mul_(1000.0).round_().clamp_(0.0, 65535)


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_depth_is_that_of_lerobot(name: str, version: str, tmp_path: Path) -> None:
    path = with_depth(tmp_path / "data", version, stored=STORED[name])
    wanted = [by_lerobot(torch.from_numpy(one.astype(np.int32)), STORED[name]) for one in codes(sum(LENGTHS))]
    top = decoded(path, CAMERAS[0], sum(LENGTHS))
    for deltas in ({}, {DEPTH: [-0.1, 0.0]}):
        data = dp.Clips(path, delta_timestamps=deltas, fields=[DEPTH, CAMERAS[0], "index"])
        transform = [dp.transforms.ToDtype(torch.float32, scale=True)]
        seen = []
        for batch in dp.DataLoader(data, 8, shuffle=True, seed=0, num_workers=2, transform=transform):
            assert batch[DEPTH].dtype == torch.float32
            for row, index in enumerate(batch["index"].tolist()):
                depth = batch[DEPTH][row][-1] if deltas else batch[DEPTH][row]
                assert torch.equal(depth, wanted[index])
                pixels = torch.from_numpy(top[index]).permute(2, 0, 1).float() / 255
                assert torch.allclose(batch[CAMERAS[0]][row], pixels, atol=1e-6)
                seen.append(index)
        assert sorted(seen) == list(range(sum(LENGTHS)))


@pytest.mark.nightly
def test_depth_of_16_bits_is_read_as_lerobot_reads_it(tmp_path: Path) -> None:
    """By FFmpeg's conversion to 12 bits."""
    data = dp.Clips(with_depth(tmp_path / "data", form="gray16le"), fields=[DEPTH, "index"])
    (batch,) = dp.DataLoader(data, len(data), num_workers=0)
    held = []
    for path in sorted((tmp_path / "data" / "videos" / DEPTH).rglob("*.mp4")):
        with av.open(str(path)) as container:
            held += [frame.to_ndarray(format="gray12le").astype(np.int32) for frame in container.decode(video=0)]
    wanted = [by_lerobot(torch.from_numpy(one), {}) for one in held]
    assert torch.equal(batch[DEPTH], torch.stack([wanted[index] for index in batch["index"].tolist()]))


@pytest.mark.nightly
@pytest.mark.parametrize("resize", ["exact", "fast"])
def test_depth_is_cut_as_the_cameras_are(resize: str, tmp_path: Path) -> None:
    path = with_depth(tmp_path / "data")
    whole = torch.stack([by_lerobot(torch.from_numpy(one.astype(np.int32)), {}) for one in codes(sum(LENGTHS))])
    top = torch.from_numpy(np.stack(decoded(path, CAMERAS[0], sum(LENGTHS)))).permute(0, 3, 1, 2)
    transform = [dp.transforms.RandomCrop(20), dp.transforms.RandomHorizontalFlip()]
    data = dp.Clips(path, fields=[DEPTH, CAMERAS[0], "index"], resize=resize)
    for batch in dp.DataLoader(data, 8, shuffle=True, seed=0, transform=transform, num_workers=2):
        for depth, pixels, index in zip(batch[DEPTH], batch[CAMERAS[0]], batch["index"].tolist(), strict=True):
            places = [
                (y, x, flipped)
                for flipped in (False, True)
                for y in range(29)
                for x in range(45)
                if torch.equal(_part(whole[index], y, x, flipped), depth)
            ]
            assert len(places) == 1
            assert torch.equal(_part(top[index], *places[0]), pixels)
    resized = next(iter(dp.DataLoader(data, 8, transform=[dp.transforms.Resize((24, 32))], num_workers=0)))
    assert resized[DEPTH].shape == (8, 1, 24, 32)
    assert np.isin(resized[DEPTH][0].numpy(), whole[int(resized["index"][0])].numpy()).all()  # none lies between two


def _part(image: torch.Tensor, y: int, x: int, flipped: bool) -> torch.Tensor:
    part = image[:, y : y + 20, x : x + 20]
    return part.flip(2) if flipped else part


def test_wrong_depth_is_refused(tmp_path: Path) -> None:
    path = with_depth(tmp_path / "data")
    with pytest.raises(OptionError, match=r"observation\.images\.depth is depth, which takes a crop or a resize, and flips"):
        dp.DataLoader(dp.Clips(path), 4, transform=[dp.transforms.Resize(40), dp.transforms.RandomCrop(60, padding=20)])
    info = json.loads((path / "meta" / "info.json").read_text())
    for change, said in [
        ({"video.depth_min": 5.0, "video.depth_max": 2.0}, "depth from 5 to 2 m, shifted by 3.5, is no range"),
        ({"video.shift": -1.0}, "shifted by -1, is no range"),
        ({"video.depth_max": "far"}, "does not say how depth is stored"),
        ({"video.depth_max": 10**400}, "not the facts of a LeRobot dataset|does not say how depth is stored"),
    ]:
        changed = {**info, "features": {**info["features"]}}
        changed["features"][DEPTH] = {**info["features"][DEPTH], "info": INFO | change}
        (path / "meta" / "info.json").write_text(json.dumps(changed))
        with pytest.raises(FormatError, match=said):
            dp.Clips(path)
        assert len(dp.Clips(path, fields=[CAMERAS[0]])) == sum(LENGTHS)
