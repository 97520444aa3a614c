"""Batches of clips have the frames that a player shows at their moments, cut alike in a clip, whatever shares their decoding."""

from __future__ import annotations

import functools
import json
import pickle
import re
import shutil
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

av = pytest.importorskip("av")

from video_files import KINDS, X264, pictures, write_video, x264  # noqa: E402

import datapipe as dp  # noqa: E402
from datapipe.cli.main import main  # noqa: E402
from datapipe.codecs.video.conversion import FrameConverter, fill_frames  # noqa: E402
from datapipe.codecs.video.decoding import VideoDecoder  # noqa: E402
from datapipe.errors import DecodeError, FormatError, MissingDataError, OptionError  # noqa: E402
from datapipe.index.media import MediaSource  # noqa: E402
from datapipe.kinds.registry import open_path  # noqa: E402
from datapipe.opening.videos.indexing import look_at  # noqa: E402
from datapipe.order.draws import Draws  # noqa: E402
from datapipe.transforms import Recipe  # noqa: E402
from datapipe.transforms.execute import cut_through, row_cuts  # noqa: E402

ALL = ["video", "label", "is_pad", "times", "id"]
FLOAT = dp.transforms.ToDtype(torch.float32, scale=True)
RGB = [name for name in KINDS if not name.startswith("depth")]


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six videos in folders of two classes, 30 to 70 frames each, key frames every 12. Not to be changed."""
    root = tmp_path_factory.mktemp("videos")
    for label in range(2):
        (root / f"class{label}").mkdir()
        for number in range(3):
            frames = pictures(30 + 20 * number, 96, 64, seed=10 * label + number)
            write_video(root / f"class{label}" / f"{number}.mp4", frames=frames, options=x264(f"{X264}:bframes=3"))
    return root


@functools.cache
def in_order(path: str) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
    """The frames of a video, decoded one after the other, as RGB."""
    entry = look_at(MediaSource(path))
    assert entry.track is not None
    height, width = entry.track.coding.shown_size
    out = np.zeros((len(entry.track), height, width, 3), np.uint8)
    data = Path(path).read_bytes()
    read = lambda offset, nbytes: data[offset : offset + nbytes]  # noqa: E731
    assert fill_frames(VideoDecoder(skips=False), FrameConverter(), entry.track, read, np.arange(len(out)), out) == []
    return list(out)


def loader_of(path: Any, *, batch_size: int = 4, **options: Any) -> Any:
    names = ("shuffle", "num_workers", "ranks", "tail", "on_error", "transform", "output", "batch_transform")
    of_loader = {name: options.pop(name) for name in names if name in options}
    data = dp.Clips(path, **{"frames": 4, "stride": 2, "step": 3} | options)
    return dp.DataLoader(data, batch_size, **{"shuffle": True, "seed": 5, "num_workers": 2} | of_loader)


def frames_of(loader: Any, clip: int) -> tuple[str, list[int]]:
    index = loader.dataset.index
    found = index.frames(clip)
    return index.parts.videos.source(found.video).path, found.frames.tolist()


def test_a_folder_of_typescript_holds_no_videos(tmp_path: Path) -> None:
    (tmp_path / "index.ts").write_text("export const greeting: string = 'hello';\n" * 20)
    (tmp_path / "pipe.ts").symlink_to("/dev/stdin")
    with pytest.raises(dp.errors.OptionError, match="no images, videos, sound"):
        open_path(tmp_path)
    (tmp_path / "streams").mkdir()
    write_video(tmp_path / "streams" / "a.ts", frames=pictures(12))
    kind, found = open_path(tmp_path / "streams")
    assert (kind, len(found.videos)) == ("clips", 1)


@pytest.mark.daily(2)
@pytest.mark.parametrize("per_visit", [1, 3, 40])
@pytest.mark.parametrize("shuffle", [True, False])
def test_each_clip_comes_once_with_its_frames(videos: Path, per_visit: int, shuffle: bool) -> None:
    loader = loader_of(videos, per_visit=per_visit, shuffle=shuffle, fields=ALL)
    for _ in range(2):
        seen = []
        for batch in loader:
            for row, clip in enumerate(batch["id"].tolist()):
                path, frames = frames_of(loader, clip)
                expected = np.stack([in_order(path)[frame] for frame in frames])
                assert (batch["video"][row].permute(0, 2, 3, 1).numpy() == expected).all()
                assert batch["label"][row] == int("class1" in path)
                assert batch["times"][row].tolist() == pytest.approx([frame / 30 for frame in frames])
                assert not batch["is_pad"][row].any()
                seen.append(clip)
        assert sorted(seen) == list(range(len(loader.dataset)))
        assert (seen == sorted(seen)) is not shuffle


@pytest.mark.daily(13)
@pytest.mark.parametrize("name", RGB)
def test_videos_of_every_kind(name: str, tmp_path: Path) -> None:
    path = KINDS[name](tmp_path / name)
    loader = loader_of(path, per_visit=3, fields=["video", "id"], batch_size=3)
    num = 0
    for batch in loader:
        for row, clip in enumerate(batch["id"].tolist()):
            expected = np.stack([in_order(str(path))[frame] for frame in frames_of(loader, clip)[1]])
            assert (batch["video"][row].permute(0, 2, 3, 1).numpy() == expected).all()
            num += 1
    assert num == len(loader.dataset) >= 5


@pytest.mark.daily(1)
@pytest.mark.parametrize("per_visit", [1, 4])
def test_transforms_draw_once_for_a_clip(videos: Path, per_visit: int) -> None:
    transform = [
        dp.transforms.RandomResizedCrop(32),
        dp.transforms.RandomHorizontalFlip(),
        dp.transforms.ColorJitter(0.4, 0.4),
        dp.transforms.ToDtype(torch.float32, scale=True),
    ]
    recipe = Recipe.of(transform)
    loader = loader_of(videos, transform=transform, per_visit=per_visit, fields=["video", "id"])
    for batch in loader:
        assert batch["video"].dtype == torch.float32
        for row, clip in enumerate(batch["id"].tolist()):
            path, frames = frames_of(loader, clip)
            draws = Draws(5, 0, np.full(len(frames), clip))
            block = torch.zeros((len(frames), 32, 32, 3), dtype=torch.uint8)
            chain = recipe.draw_cuts(draws, np.array([(64, 96)] * len(frames)))
            for place, steps in enumerate(zip(*map(row_cuts, chain), strict=True)):
                top, left, height, width = steps[0].region
                part = in_order(path)[frames[place]][top : top + height, left : left + width]
                cut_through(part, steps, block.numpy()[place])
            expected = torch.empty(block.shape, dtype=torch.float32)
            recipe.run_pixels(block, draws, expected)
            assert torch.equal(batch["video"][row].permute(0, 2, 3, 1), expected)


def test_fast_resizes_are_near_the_exact_ones(videos: Path) -> None:
    transform = [dp.transforms.RandomResizedCrop(32), dp.transforms.RandomHorizontalFlip()]
    exact, fast = (loader_of(videos, transform=transform, resize=how) for how in ("exact", "fast"))
    for one, other in zip(exact, fast, strict=True):
        error = (one["video"].float() - other["video"].float()).square().mean()
        assert 10 * torch.log10(255**2 / error) > 26  # dB; crops of a few pixels begin half a pixel off
        assert torch.equal(one["label"], other["label"])


def test_threads_and_visits_change_no_pixel_and_states_resume(videos: Path) -> None:
    def everything(loader: Any) -> list[tuple[list[int], torch.Tensor]]:
        return [(batch["id"].tolist(), batch["video"].clone()) for batch in loader]

    options: dict[str, Any] = {"fields": ["video", "id"], "transform": [dp.transforms.RandomCrop(40)]}
    alone = everything(loader_of(videos, num_workers=0, **options))
    by_clip = dict(pair for ids, pixels in alone for pair in zip(ids, pixels, strict=True))
    for other in (loader_of(videos, num_workers=3, **options), loader_of(videos, per_visit=1, **options)):
        for ids, pixels in everything(other):
            assert all(torch.equal(by_clip[clip], one) for clip, one in zip(ids, pixels, strict=True))
    loader = loader_of(videos, **options)
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    resumed = pickle.loads(pickle.dumps(loader_of(videos, **options)))
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    rest = everything(resumed)
    assert [ids for ids, _ in rest] == [ids for ids, _ in alone[5:]]
    assert all(torch.equal(one, other) for (_, one), (_, other) in zip(rest, alone[5:], strict=True))


def test_ranks_share_the_clips_of_a_step(videos: Path) -> None:
    options: dict[str, Any] = {"fields": ["id"], "tail": "drop"}
    alone = [batch["id"].tolist() for batch in loader_of(videos, batch_size=8, **options)]
    ranks = [loader_of(videos, batch_size=2, ranks=(rank, 4), **options) for rank in range(4)]
    assert [[clip for batch in step for clip in batch["id"].tolist()] for step in zip(*ranks, strict=True)] == alone


def test_layouts_are_views_of_the_same_pixels(videos: Path) -> None:
    batches = [next(iter(loader_of(videos, layout=layout)))["video"] for layout in ("BTCHW", "BCTHW", "BTHWC")]
    assert [tuple(batch.shape) for batch in batches] == [(4, 4, 3, 64, 96), (4, 3, 4, 64, 96), (4, 4, 64, 96, 3)]
    assert torch.equal(batches[0], batches[1].transpose(1, 2))
    assert torch.equal(batches[0], batches[2].permute(0, 1, 4, 2, 3))


def test_clips_at_a_rate_have_the_frames_shown_at_these_moments(tmp_path: Path) -> None:
    path = KINDS["h264-irregular.mp4"](tmp_path / "x.mp4")  # of a variable frame rate
    loader = loader_of(path, frames=5, stride=1, step=1, fps=10, fields=["video", "times", "id"], shuffle=False)
    track = loader.dataset.index.videos.track(0)
    for batch in loader:
        for clip, times, pixels in zip(batch["id"].tolist(), batch["times"].numpy(), batch["video"], strict=True):
            moments = track.times[0] + (clip + np.arange(5)) / 10
            frames = [int(np.flatnonzero(track.times <= moment + 1e-6)[-1]) for moment in moments]
            assert times.tolist() == track.times[frames].tolist()
            assert (pixels.permute(0, 2, 3, 1).numpy() == np.stack([in_order(str(path))[frame] for frame in frames])).all()
    assert len(loader.dataset) == pytest.approx((track.times[-1] - track.times[0]) * 10 - 4, abs=1.5)


def test_parts_of_videos_by_a_list(videos: Path, tmp_path: Path) -> None:
    rows = [
        {"path": str(videos / "class0" / "2.mp4"), "start": 0.5, "end": 1.5, "label": "wave"},
        {"path": str(videos / "class1" / "1.mp4"), "start": 1, "label": "jump"},
        {"path": str(videos / "class0" / "2.mp4"), "start": 1.9, "end": 2.0, "label": "wave"},
    ]
    (tmp_path / "parts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = ["path", "start", "end", "label"]
    lines = [",".join(columns), *(",".join(str(row.get(name, "")) for name in columns) for row in rows)]
    (tmp_path / "parts.csv").write_text("\n".join(lines))
    for name in ("parts.jsonl", "parts.csv"):
        loader = loader_of(tmp_path / name, fields=ALL, shuffle=False)
        assert loader.dataset.classes == ("jump", "wave")
        batches = list(loader)
        labels = torch.cat([batch["label"] for batch in batches]).tolist()
        times = torch.cat([batch["times"] for batch in batches])
        is_pad = torch.cat([batch["is_pad"] for batch in batches])
        first = [label == 1 and start < 1.8 for label, start in zip(labels, times[:, 0].tolist(), strict=True)]
        assert times[first].min() >= 0.5 - 1e-3
        assert times[first].max() < 1.5
        assert times[[label == 0 for label in labels]].min() >= 1 - 1e-3
        assert labels[-1] == 1
        assert is_pad[-1].tolist() == [False, False, True, True]  # three frames: at 0 and 2, and then no more
        assert times[-1].tolist() == pytest.approx([1.9, 1.9 + 2 / 30, 1.9 + 2 / 30, 1.9 + 2 / 30], abs=1e-3)


def test_what_is_shorter_than_a_clip(videos: Path) -> None:
    num = {short: len(dp.Clips(videos, frames=40, short=short)) for short in ("repeat", "drop")}  # of 30, 50 and 70 frames
    assert num == {"repeat": 6, "drop": 4}
    with pytest.raises(OptionError, match=r"0\.mp4: has 30 frames, and a clip spans 40; pass short='repeat' or 'drop'"):
        dp.Clips(videos, frames=40, short="error")
    assert "2 parts shorter than a clip" in str(dp.explain(loader_of(videos, frames=40, stride=1)))


def damaged(videos: Path, path: Path) -> Path:
    """A copy in which a packet of a video is damaged."""
    for file in videos.rglob("*.mp4"):
        (path / file.parent.name).mkdir(exist_ok=True, parents=True)
        (path / file.parent.name / file.name).write_bytes(file.read_bytes())
    file = path / "class0" / "1.mp4"
    track = look_at(MediaSource(str(file))).track
    assert track is not None
    packet = int(track.group_packet[1])
    offset, size = int(track.packets.offset[packet]), int(track.packets.size[packet])
    data = bytearray(file.read_bytes())
    data[offset + 40 : offset + size] = np.random.default_rng(0).bytes(size - 40)
    file.write_bytes(data)
    return path


@pytest.mark.parametrize("per_visit", [1, 4])
def test_a_damaged_packet_takes_the_clips_that_need_it(videos: Path, tmp_path: Path, per_visit: int) -> None:
    path = damaged(videos, tmp_path / "copy")
    with pytest.raises(DecodeError, match=r"1\.mp4: sample \d+ \(.* s\): frame 1\d .* does not decode"):
        list(loader_of(path, per_visit=per_visit))
    loader = loader_of(path, per_visit=per_visit, on_error="skip", fields=["video", "id"])
    kept = {clip for batch in loader for clip in batch["id"].tolist()}
    bad = {one.id for one in loader.bad_samples}
    assert kept | bad == set(range(len(loader.dataset)))
    assert not kept & bad
    for clip in bad:
        name, frames = frames_of(loader, clip)
        assert name.endswith("class0/1.mp4")
        assert any(12 <= frame < 24 for frame in frames)
    loader = loader_of(path, per_visit=per_visit, on_error="replace", tail="drop", fields=["video", "id"])
    for batch in loader:
        for row, clip in enumerate(batch["id"].tolist()):
            name, frames = frames_of(loader, clip)
            expected = [in_order(name.replace(str(path), str(videos)))[frame] for frame in frames]
            assert clip not in bad
            assert (batch["video"][row].permute(0, 2, 3, 1).numpy() == np.stack(expected)).all()
    assert {one.id for one in loader.bad_samples} <= bad


def test_a_video_that_cannot_be_decoded_at_all(videos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is an error, or left out: which is logged once, not by copies in other processes, and said by `explain`."""
    path = damaged(videos, tmp_path / "copy")
    (path / "class1" / "broken.mp4").write_bytes(b"no video" * 100)
    with pytest.raises(FormatError, match=r"broken\.mp4: no video file .*; remove it from the data, or pass skip_bad=True$"):
        dp.Clips(path)
    with pytest.raises(MissingDataError, match=r"no clips \(1 video left out: .*broken\.mp4: .*\); check the path"):
        dp.Clips(path / "class1" / "broken.mp4", skip_bad=True)
    data = pickle.loads(pickle.dumps(dp.Clips(path, skip_bad=True)))
    assert len(data) == len(dp.Clips(videos))
    said = f"1 video left out: {path}/class1/broken.mp4: no video file"
    assert [one.getMessage()[: len(f"{path}: {said}")] for one in caplog.records] == [f"{path}: {said}"]
    assert f"bad       {said}" in str(dp.explain(dp.DataLoader(data, batch_size=2)))


def test_a_video_that_claims_to_last_for_weeks_is_bad(videos: Path, tmp_path: Path) -> None:
    """Where frames are counted at a rate, memory is for those that there are."""
    shutil.copytree(videos / "class0", tmp_path / "class0")
    slow = next(iter(sorted((tmp_path / "class0").iterdir())))
    data = bytearray(slow.read_bytes().replace(b"edts", b"free"))  # without the edit list, which says when it ends
    struct.pack_into(">I", data, data.rfind(b"mdhd") + 16, 1)  # units of time a second
    slow.write_bytes(data)
    said = r"class0/0\.mp4: says that its \d+ frames last [\d,]+ s; pass less than fps=1000, or repair its times"
    with pytest.raises(FormatError, match=said + ", or pass skip_bad=True"):
        dp.Clips(tmp_path, frames=4, fps=1000)
    assert "1 video left out: " in str(dp.Clips(tmp_path, frames=4, fps=1000, skip_bad=True).index.left_out)
    tracemalloc.start()
    index = dp.Clips(slow, frames=4, fps=100).index
    assert index.frames(len(index) - 1, 0).frames.tolist() == 4 * [int(index.videos.num_frames[0]) - 1]
    assert tracemalloc.get_traced_memory()[0] < 8_000_000, "memory for each moment is kept"
    tracemalloc.stop()


@pytest.mark.parametrize("short", ["repeat", "drop", "error"])
def test_parts_in_which_no_frame_begins(short: Any, videos: Path, tmp_path: Path) -> None:
    """They are errors whatever becomes of short parts, or left out, and said."""
    path = tmp_path / "parts.csv"
    rows = ["class0/0.mp4,0,1", "class0/0.mp4,66,76", "class0/0.mp4,1.34,1.35", "class0/0.mp4,99,"]
    path.write_text("path,start,end\n" + "".join(f"{videos}/{row}\n" for row in rows))
    said = r"0\.mp4: no frame begins from 66 to 76 s, and its last one begins at \d\.\d+ s; repair the times in \S+parts\.csv"
    with pytest.raises(FormatError, match=said + r", or pass skip_bad=True \(and 2 others\)$"):
        dp.Clips(path, frames=4, short=short)
    data = dp.Clips(path, frames=4, short=short, skip_bad=True)
    assert (data.index.starts == len(data)).tolist() == [False, True, True, True, True]
    assert re.search(f"bad       3 parts left out: .*{said}", str(dp.explain(dp.DataLoader(data, batch_size=2))))


def test_commands(videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(videos), "--grid", str(tmp_path / "sheet.png"), "--num", "4"]) == 0
    said = capsys.readouterr().out
    assert "6 videos, 300 frames in all" in said
    assert "h264 (6); 96 x 64 pixels" in said
    assert "groups    of 11" in said or "groups    of 12" in said or "groups    of 10" in said
    assert (tmp_path / "sheet.png").stat().st_size > 1000
    assert main(["inspect", "--json", str(videos)]) == 0
    assert json.loads(capsys.readouterr().out)["videos"] == 6
    assert main(["bench", str(videos), "--rounds", "1", "--size", "32", "--images", "20"]) == 0
    assert "clips/s" in capsys.readouterr().out
    assert main(["inspect", str(videos), "--tokenizer", "x"]) == 2
    assert "no token ids" in capsys.readouterr().err
    with pytest.raises(OptionError, match=r"holds videos; say how many frames a clip has: datapipe\.Clips"):
        dp.DataLoader(videos)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"frames": 0}, "frames is 0"),
        ({"frames": 1 << 31}, "frames is 2147483648; it must be at most 2147483647"),
        ({"frames": 10**400}, "frames is a huge number; it must be at most"),
        ({"frames": (1 << 31) - 1}, r"a batch of 4 clips takes [\d,]+ GB, and this machine has \d+; pass fewer frames"),
        ({"stride": 1 << 62}, "stride is 4611686018427387904; it must be at most"),
        ({"step": 1 << 62}, "step is 4611686018427387904; it must be at most"),
        ({"fps": 1e300}, r"fps is 1e\+300; it must be at most 1e\+06"),
        ({"fps": 10**400}, "fps is inf; it must be finite"),
        ({"fps": 1 << 31}, r"fps is 2.14748e\+09; it must be at most 1e\+06"),
        ({"per_visit": 1 << 31}, "per_visit is 2147483648; it must be at most 1048576"),
        ({"lanes": 1 << 62}, "lanes is 4611686018427387904; it must be at most 1048576"),
        ({"stride": 0}, "stride is 0"),
        ({"step": 0}, "step is 0"),
        ({"fps": 0}, "fps is 0"),
        ({"short": "wrap"}, "short is 'wrap'"),
        ({"per_visit": 0}, "per_visit is 0"),
        ({"lanes": 7}, "lanes is 7, and a step has 4 clips over all ranks; pass a multiple of that"),
        ({"layout": "TBCHW"}, "layout is 'TBCHW'"),
        ({"resize": "best"}, "resize is 'best'"),
        ({"fields": []}, "fields is empty"),
        ({"fields": ["image"]}, "fields has 'image'"),
        ({"transform": [lambda image: image]}, "is called per image .*; pass transforms of datapipe"),
        (
            {"transform": [dp.transforms.ToDtype(torch.float32, scale=True), dp.transforms.MixUp(num_classes=2)]},
            "mixes images; mix clips in a batch_transform",
        ),
        ({"output": {"image": "x"}}, "output renames 'image', which batches have not"),
    ],
)
def test_wrong_settings_are_refused(videos: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        list(loader_of(videos, **options))


def test_wrong_sources_are_refused(videos: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingDataError, match="no videos in it; videos are recognised by suffix"):
        dp.Clips(tmp_path / "empty")
    with pytest.raises(MissingDataError, match="is no file; name videos, or their folder"):
        dp.Clips(tmp_path / "absent.mp4")
    with pytest.raises(MissingDataError, match="no file matches"):
        dp.Clips(str(tmp_path / "*.mp4"))
    with pytest.raises(OptionError, match="the list of videos is empty"):
        dp.Clips([])
    with pytest.raises(OptionError, match="has no labels; put videos in folders of classes"):
        dp.Clips(sorted(videos.rglob("*.mp4")), fields=["video", "label"])
    other = write_video(tmp_path / "other.mp4", frames=pictures(20, 48, 48))
    with pytest.raises(OptionError, match="the videos differ in size"):
        dp.DataLoader(dp.Clips([*videos.rglob("*.mp4"), other]), 2)
    for line, said in [
        ('{"file": 3}', "line 1: file is 3; name a file"),
        ('{"path": "a.mp4", "start": "soon"}', "start is 'soon'; give seconds"),
        ('{"path": "a.mp4", "start": 3, "end": 2}', "from 3 to 2 s is no part of a file"),
        ('{"name": "a.mp4"}', "no column names the files"),
        ('{"path": "a.mp4"}', r"a\.mp4"),
    ]:
        (tmp_path / "list.jsonl").write_text(line + "\n")
        with pytest.raises((FormatError, MissingDataError), match=said):
            dp.Clips(tmp_path / "list.jsonl")
