"""The worked examples of CONTRIBUTING.md, registered as their first lines say, and used through the whole program."""

from __future__ import annotations

import json
import re
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import datapipe as dp
from converters import ConvertOptions, OnError, convert
from converters.verify import verify
from datapipe import transforms as T
from datapipe.cli.main import main
from datapipe.codecs.field_values import LABEL_FIELD, FieldKind, FieldSpec
from datapipe.containers.forms import FORMS, FormFacts
from datapipe.opening.recognise import recognise
from datapipe.order.draws import Draws
from datapipe.testing.synthetic_images import make_image_folder
from datapipe.transforms.protocols import PixelOp

EXAMPLES = Path(__file__).parents[1] / "examples" / "extending"
sys.path.insert(0, str(EXAMPLES))
import form_list  # noqa: E402
import form_pack  # noqa: E402
import form_rows  # noqa: E402
import form_sounds  # noqa: E402
import transform_channels  # noqa: E402


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return make_image_folder(tmp_path / "photos", num_images=12, num_classes=3, scale="small")


@pytest.fixture
def _with_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMS, "pack", FormFacts(title="packs", shards="form_pack", files=re.compile(r".+\.pack")))


@pytest.mark.usefixtures("_with_packs")
def test_a_form_of_shards_is_loaded_and_converted_as_any_other(photos: Path, tmp_path: Path) -> None:
    files = sorted(photos.glob("*/*.jpg"))
    labels = [int(file.parent.name[-3:]) for file in files]
    (tmp_path / "packs").mkdir()
    for number in range(2):
        samples = [(file.read_bytes(), label) for file, label in zip(files, labels, strict=True)][number::2]
        form_pack.write_pack(tmp_path / "packs" / f"x-{number}.pack", samples)
    loader = dp.DataLoader(tmp_path / "packs", batch_size=5, shuffle=True, seed=1, transform=[T.RandomResizedCrop(32)])
    first = next(iter(loader))
    state = loader.state_dict()
    seen = torch.cat([batch[1] for batch in loader])
    assert sorted(seen.tolist()) == sorted(labels)
    loader.load_state_dict(state)
    assert sum(len(batch[1]) for batch in loader) == len(labels) - len(first[1])
    convert(ConvertOptions(tmp_path / "packs", tmp_path / "out"))
    both = [dp.DataLoader(tmp_path / name, 5, True, seed=1, transform=[T.RandomResizedCrop(32)]) for name in ("packs", "out")]
    assert all(torch.equal(one[0], other[0]) for one, other in zip(*both, strict=True))


@pytest.mark.usefixtures("_with_packs")
@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"KCAP", "is no pack"),
        (b"PACK" + b"\0" * 3, "cut within its head"),
        (b"PACK" + struct.pack("<iI", 0, 1 << 31), "reaches to byte"),
        (b"PACK" + struct.pack("<iI", -1, 0), "write labels from 0"),
        (b"PACK", "no samples"),
    ],
)
def test_a_damaged_pack_is_refused(contents: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.pack").write_bytes(contents)
    with pytest.raises(dp.errors.FormatError, match=message):
        dp.DataLoader(tmp_path / "x.pack", batch_size=1)


def test_a_transform_draws_the_same_for_any_blocks_and_threads(photos: Path) -> None:
    assert isinstance(transform_channels.RandomChannels(), PixelOp)
    batches = [
        next(iter(dp.DataLoader(photos, 12, seed=3, num_workers=workers, transform=[T.Resize((16, 16)), operation])))[0]
        for workers in (1, 3)
        for operation in (transform_channels.RandomChannels(),)
    ]
    plain = next(iter(dp.DataLoader(photos, 12, seed=3, transform=[T.Resize((16, 16))])))[0]
    assert torch.equal(*batches)
    assert not torch.equal(batches[0], plain)
    assert torch.equal(batches[0].sort(1).values, plain.sort(1).values)  # the same values, in other channels


def test_a_transform_does_nothing_with_probability_0(photos: Path) -> None:
    loader = dp.DataLoader(photos, 12, seed=3, transform=[T.Resize((16, 16)), transform_channels.RandomChannels(0)])
    plain = dp.DataLoader(photos, 12, seed=3, transform=[T.Resize((16, 16))])
    assert torch.equal(next(iter(loader))[0], next(iter(plain))[0])
    with pytest.raises(dp.errors.OptionError):
        transform_channels.RandomChannels(2)


def test_all_orders_of_channels_are_drawn() -> None:
    draws = Draws(seed=0, epoch=0, ids=np.arange(600))
    channels = transform_channels.RandomChannels().draw(draws, 0, (8, 8))["channels"]
    orders, counts = np.unique(channels, axis=0, return_counts=True)
    assert len(orders) == 6
    assert counts.min() > 60


@pytest.fixture
def _with_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMS, "list", FormFacts(title="a list of images", source="form_list"))


@pytest.mark.usefixtures("_with_lists")
def test_a_form_that_lists_is_converted_and_loaded_as_any_other(photos: Path, tmp_path: Path) -> None:
    files = sorted(photos.glob("*/*.jpg"))
    lines = [f"{file.relative_to(photos)} {number % 4}" for number, file in enumerate(files)]
    (photos / "list.txt").write_text("\n".join([*lines[:6], "", *lines[6:], "class_000/gone.jpg 1"]))
    report = convert(ConvertOptions(photos / "list.txt", tmp_path / "out", form="list", on_error=OnError.SKIP))
    assert (report.num_samples, report.num_errors) == (12, 1)
    assert not verify(tmp_path / "out").problems
    assert "gone.jpg" in json.loads((tmp_path / "out" / "errors.jsonl").read_text())["source"]
    labels = torch.cat([labels for _, labels in dp.DataLoader(tmp_path / "out", transform=[T.Resize((8, 8))])])
    assert sorted(labels.tolist()) == sorted(number % 4 for number in range(12))
    in_place = dp.Images(photos / "list.txt", form="list")
    assert (len(in_place), in_place.index.manifest.classes) == (13, ("0", "1", "2", "3"))
    with pytest.raises(dp.errors.DecodeError, match=r"gone\.jpg.*cannot be read"):
        in_place[12]
    labels = torch.cat([labels for _, labels in dp.DataLoader(in_place, on_error="skip", transform=[T.Resize((8, 8))])])
    assert labels.tolist() == [number % 4 for number in range(12)]
    named = (photos / "list.txt").rename(photos / "photos.list")
    assert len(dp.Images(named)) == 13
    assert recognise(named, target="parquet").form == "list"


ZIP = """
import zipfile
from datapipe.codecs.field_values import IMAGE_FIELD, LABEL_FIELD
from datapipe.index.sidecar import FieldExtent, SidecarRows
def index_shard(path):
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
        members = sorted((one for one in archive.infolist() if one.filename.endswith(".jpg")), key=lambda one: one.filename)
    classes = tuple(sorted({one.filename.split("/")[-2] for one in members}))
    rows = SidecarRows(("image",), classes=classes)
    for number, one in enumerate(members):
        with open(path, "rb") as file:
            file.seek(one.header_offset + 26)
            start = file.tell() + 4 + sum(int.from_bytes(file.read(2), "little") for _ in range(2))
        name, label = one.filename.encode(), classes.index(one.filename.split("/")[-2])
        extents = {"image": FieldExtent("jpeg", start, one.file_size, None)}
        rows.append(id=number, key=name, source=name, label=label, size=(0, 0), extents=extents)
    return rows, (IMAGE_FIELD, LABEL_FIELD)
"""


def test_seventeen_lines_make_a_zip_load_and_convert(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(ZIP.strip().splitlines()) <= 17
    (tmp_path / "seventeen.py").write_text(ZIP)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(FORMS, "comic", FormFacts(title="comics", shards="seventeen", files=re.compile(r".+\.cbz")))
    with zipfile.ZipFile(tmp_path / "x.cbz", "w") as archive:
        for file in sorted(photos.glob("*/*.jpg")):
            archive.write(file, file.relative_to(photos))
    convert(ConvertOptions(tmp_path / "x.cbz", tmp_path / "out"))
    options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 1, "transform": [T.RandomResizedCrop(32)]}
    batches = [list(dp.DataLoader(path, **options)) for path in (photos, tmp_path / "x.cbz", tmp_path / "out")]
    for of_folder, *others in zip(*batches, strict=True):
        assert all(torch.equal(one, other[place]) for other in others for place, one in enumerate(of_folder))


@pytest.mark.usefixtures("_with_lists")
@pytest.mark.parametrize(("line", "error"), [("a.jpg", "expected `PATH LABEL`"), ("../out.jpg 1", "out.jpg")])
def test_a_line_that_is_none_is_refused(line: str, error: str, photos: Path, tmp_path: Path) -> None:
    (photos / "list.txt").write_text(f"class_000/000000.jpg 0\n{line}\n")
    with pytest.raises(dp.errors.FormatError, match=error):
        convert(ConvertOptions(photos / "list.txt", tmp_path / "out", form="list"))


@pytest.fixture
def _with_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = ("parquet", "hdf5")
    facts = FormFacts(
        title="files of rows", kind="tables", tables="form_rows", known_by="datapipe.opening.tables",
        files=re.compile(r".+\.rows"), targets=targets, made_for=targets,
    )  # fmt: skip
    monkeypatch.setitem(FORMS, "rows", facts)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    (tmp_path / "rows").mkdir()
    for number, first in enumerate((0, 600)):
        x = np.arange(first, first + 600 - 93 * number)
        form_rows.write_rows(tmp_path / "rows" / f"{number}.rows", {"x": x.astype("<f4"), "y": x.astype("<i2")}, 100)
    return tmp_path / "rows"


@pytest.mark.usefixtures("_with_rows")
def test_a_container_of_tables_is_loaded_inspected_and_converted_as_any_other(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (recognise(rows).form, recognise(rows / "0.rows", target="parquet").form) == ("rows", "rows")
    assert len(dp.Table(rows / "0.rows")) == 600
    loader = dp.DataLoader(rows, 50, shuffle=True, seed=1)
    batches = iter(loader)
    first, state = next(batches), loader.state_dict()
    rest = torch.cat(list(batches))
    assert sorted([*first[:, 0].tolist(), *rest[:, 1].tolist()]) == list(range(1107))
    assert first[:, 0].tolist() != list(range(50))
    again = dp.DataLoader(rows, 50, shuffle=True, seed=1)
    again.load_state_dict(state)
    assert torch.equal(torch.cat(list(again)), rest)
    table = dp.Table(rows, label="y")
    of_ranks = [dp.DataLoader(table, 50, shuffle=True, seed=1, ranks=(rank, 2)) for rank in range(2)]
    labels = torch.cat([labels for one in of_ranks for _, labels in one])
    assert sorted(set(labels.tolist())) == list(range(1107))
    assert main(["inspect", str(rows)]) == 0
    assert "1,107" in capsys.readouterr().out
    assert main(["convert", str(rows), str(tmp_path / "out"), "--to", "parquet", "--no-shuffle"]) == 0
    both = [dp.DataLoader(dp.Table(path, label="y"), 100) for path in (rows, tmp_path / "out")]
    assert all(torch.equal(one[0], other[0]) for one, other in zip(*both, strict=True))
    assert main(["convert", str(rows), str(tmp_path / "shards"), "--to", "webdataset"]) != 0
    assert "is a table, which is written as parquet or hdf5" in capsys.readouterr().err


@pytest.mark.usefixtures("_with_rows")
@pytest.mark.parametrize("damage", [b"", b"{}\n", b'{"columns": [["x", "<f4"]], "groups": [2]}\n1234', b"[" * 2_000_000])
def test_a_damaged_file_of_rows_is_refused(damage: bytes, rows: Path) -> None:
    (rows / "1.rows").write_bytes(damage)
    with pytest.raises(dp.errors.FormatError, match=r"1\.rows"):
        dp.Table(rows)


@pytest.fixture
def sounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from sound_files import sound, write_sound

    facts = FormFacts(title="packs of sound", shards="form_sounds", kind="audio", files=re.compile(r".+\.sounds"))
    monkeypatch.setitem(FORMS, "sounds", facts)
    (tmp_path / "sounds").mkdir()
    for number in range(2):
        files = [write_sound(tmp_path / "wav" / f"{number}{row}.flac", sound(0.3, seed=row)) for row in range(4)]
        samples = [(file.read_bytes(), row) for row, file in enumerate(files)]
        form_sounds.write_sounds(tmp_path / "sounds" / f"{number}.sounds", samples)
    return tmp_path / "sounds"


def test_a_form_of_sound_is_loaded_inspected_and_converted_as_any_other(
    sounds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (recognise(sounds).form, recognise(sounds).kind) == ("sounds", "audio")
    data = dp.Audio(sounds, seconds=0.1)
    loader = dp.DataLoader(data, 3, shuffle=True, seed=1)
    batches = iter(loader)
    first, state = next(batches), loader.state_dict()
    rest = torch.cat([batch["label"] for batch in batches])
    assert sorted([*first["label"].tolist(), *rest.tolist()]) == [0, 0, 1, 1, 2, 2, 3, 3]
    again = dp.DataLoader(data, 3, shuffle=True, seed=1)
    again.load_state_dict(state)
    assert torch.equal(torch.cat([batch["label"] for batch in again]), rest)
    with pytest.raises(dp.errors.OptionError, match="holds sound"):
        dp.DataLoader(sounds, 3)
    assert main(["inspect", str(sounds)]) == 0
    assert "8 utterances" in capsys.readouterr().out
    assert main(["convert", str(sounds), str(tmp_path / "no"), "--to", "hdf5"]) != 0
    assert "datapipe.Audio reads WebDataset tars and Parquet" in capsys.readouterr().err
    assert main(["convert", str(sounds), str(tmp_path / "8k"), "--to", "webdataset", "--audio-rate", "8000"]) == 0
    for target in ("webdataset", "parquet"):
        assert main(["convert", str(sounds), str(tmp_path / target), "--to", target, "--no-shuffle"]) == 0
        both = [dp.DataLoader(dp.Audio(path, whole=True), 4) for path in (sounds, tmp_path / target)]
        for one, other in zip(*both, strict=True):
            assert all(torch.equal(one[name], other[name]) for name in ("audio", "label"))


def test_a_form_of_videos_is_loaded_inspected_and_converted_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from places import mp4

    video = FieldSpec("mp4", FieldKind.BYTES)
    monkeypatch.setattr(form_sounds, "AUDIO_FIELD", video)
    monkeypatch.setattr(form_sounds, "_FIELDS", (video, LABEL_FIELD))
    facts = FormFacts(title="packs of videos", shards="form_sounds", kind="clips", files=re.compile(r".+\.videos"))
    monkeypatch.setitem(FORMS, "videos-in-packs", facts)
    path = tmp_path / "x.videos"
    form_sounds.write_sounds(path, [(mp4(tmp_path / f"{number}.mp4", number).read_bytes(), number) for number in range(3)])
    assert main(["inspect", str(path)]) == 0
    assert "3 videos" in capsys.readouterr().out
    assert main(["convert", str(path), str(tmp_path / "out"), "--to", "webdataset", "--no-shuffle"]) == 0
    both = [dp.DataLoader(dp.Clips(one, frames=2), 3) for one in (path, tmp_path / "out")]
    for one, other in zip(*both, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in ("video", "label"))


@pytest.mark.parametrize("damage", [b"", b"WAVE", b"SNDS", b"SNDS\0\0", form_sounds.MAGIC + struct.pack("<iI", 0, 1 << 31)])
def test_a_damaged_pack_of_sound_is_refused(damage: bytes, sounds: Path) -> None:
    (sounds / "1.sounds").write_bytes(damage)
    with pytest.raises(dp.errors.FormatError, match=r"1\.sounds"):
        dp.Audio(sounds, seconds=0.1)


def test_the_examples_are_as_short_as_promised() -> None:
    assert all(len(path.read_text().splitlines()) <= 90 for path in EXAMPLES.glob("*.py"))
    assert form_list.__doc__ is not None
