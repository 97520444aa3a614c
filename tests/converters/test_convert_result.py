"""What a conversion writes: every reader agrees, and only source and options decide."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c
from fixtures import encode
from PIL import Image
from trees import ROOT, contents, encoded_image, make_tree, run_cli, run_main

from converters import Check, ConvertOptions, Encode, Part, Resize, Split, convert, preview
from converters.planning.building import split_of
from converters.samples.images import resized_size
from datapipe.errors import DecodeError, OptionError
from datapipe.index.manifest import read_manifest
from datapipe.index.sample_index import SampleIndex


def source_files(tree: Path) -> list[Path]:
    """In ImageFolder's order: by sample."""
    return [path for folder in sorted(tree.iterdir()) for path in sorted(folder.iterdir())]


def samples_by_tarfile(directory: Path) -> dict[str, dict[str, bytes]]:
    """Key -> suffix -> bytes over all shards, by Python's own reader."""
    samples: dict[str, dict[str, bytes]] = {}
    for path in sorted(directory.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                assert (member.uid, member.gid, member.mtime, member.mode, member.uname) == (0, 0, 0, 0o644, "")
                assert not member.pax_headers
                key, _, suffix = member.name.partition(".")
                file = tar.extractfile(member)
                assert file is not None
                assert suffix not in samples.setdefault(key, {})
                samples[key][suffix] = file.read()
    return samples


def open_index(directory: Path) -> SampleIndex:
    return SampleIndex(read_manifest(directory), data_directory=directory, sidecar_directory=directory)


@pytest.fixture
def converted(tree: Path, tmp_path: Path) -> Path:
    convert(ConvertOptions(tree, tmp_path / "out", shard_nbytes=9_000, num_workers=1))
    return tmp_path / "out"


def test_tarfile_reads_every_sample(tree: Path, converted: Path) -> None:
    samples = samples_by_tarfile(converted)
    files = source_files(tree)
    assert sorted(samples) == [f"{sample:09d}" for sample in range(len(files))]
    for sample, path in enumerate(files):
        label = int(path.parent.name.removeprefix("class_"))
        assert samples[f"{sample:09d}"] == {"jpg": path.read_bytes(), "cls": str(label).encode()}


def test_webdataset_reads_every_sample(tree: Path, converted: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    dataset = webdataset.WebDataset([str(path) for path in sorted(converted.glob("*.tar"))], shardshuffle=False)
    found = {sample["__key__"]: (sample["jpg"], int(sample["cls"])) for sample in dataset}
    expected = {
        f"{sample:09d}": (path.read_bytes(), int(path.parent.name.removeprefix("class_")))
        for sample, path in enumerate(source_files(tree))
    }
    assert found == expected


@pytest.mark.parametrize("is_indexed", [True, False], ids=["with idx", "without"])
def test_dali_reads_every_sample(tree: Path, converted: Path, *, is_indexed: bool) -> None:
    pytest.importorskip("nvidia.dali")
    from nvidia.dali import fn, pipeline_def

    shards = [str(path) for path in sorted(converted.glob("*.tar"))]
    indexes = [path.removesuffix(".tar") + ".idx" for path in shards] if is_indexed else []

    @pipeline_def(batch_size=24, num_threads=1, device_id=None)
    def read() -> tuple[object, object]:
        images, labels = fn.readers.webdataset(paths=shards, index_paths=indexes, ext=["jpg", "cls"])
        return images, labels

    pipeline = read()
    pipeline.build()
    images, labels = pipeline.run()
    found = sorted((bytes(np.asarray(images[row])), int(bytes(np.asarray(labels[row])))) for row in range(24))
    expected = sorted((path.read_bytes(), int(path.parent.name.removeprefix("class_"))) for path in source_files(tree))
    assert found == expected


def test_index_finds_every_sample_by_its_id(tree: Path, tmp_path: Path, to: str) -> None:
    convert(ConvertOptions(tree, tmp_path / "out", to=to, shard_nbytes=9_000, num_workers=1))
    index, files = open_index(tmp_path / "out"), source_files(tree)
    entries = index.look_up(np.arange(len(files)), "image")
    extents = entries.extents
    for sample, path in enumerate(files):
        with open(extents.paths[sample], "rb") as file:
            file.seek(int(extents.offset[sample]))
            data = file.read(int(extents.nbytes[sample]))
        assert data == path.read_bytes()
        assert extents.has_crc[sample]
        assert crc32c(data) == extents.crc32c[sample]
        assert entries.labels[sample] == int(path.parent.name.removeprefix("class_"))
        assert index.describe(sample).source == f"{path.parent.name}/{path.name}"


def test_manifest_tells_classes_and_sizes(converted: Path) -> None:
    manifest = read_manifest(converted)
    assert manifest.classes == ("class_0", "class_1", "class_2")
    assert manifest.class_to_idx == {"class_0": 0, "class_1": 1, "class_2": 2}
    assert manifest.image_size == (40, 56)
    assert manifest.num_samples == 24
    assert len(manifest.shards) == 3
    assert all("source" not in str(value) for value in manifest.options.values())


def test_write_order_is_shuffled_by_the_seed(tree: Path, tmp_path: Path) -> None:
    orders = []
    for number, seed in enumerate((0, 0, 1, None)):
        out = tmp_path / f"out{number}"
        convert(ConvertOptions(tree, out, num_workers=1, seed=seed))
        orders.append(list(samples_by_tarfile(out)))
    assert orders[0] == orders[1] != orders[2]
    assert orders[3] == sorted(orders[0]) != orders[0]


@pytest.mark.promise("convert: Several machines")
@pytest.mark.nightly
def test_workers_and_parts_do_not_show(tree: Path, tmp_path: Path, to: str) -> None:
    outs = []
    for num_workers in (1, 3):
        outs.append(tmp_path / f"workers{num_workers}")
        report = convert(ConvertOptions(tree, outs[-1], to=to, shard_nbytes=5_000, num_workers=num_workers))
        assert report.is_finished
    outs.append(tmp_path / "parts")
    for index in (2, 3, 1):
        report = convert(ConvertOptions(tree, outs[-1], to=to, shard_nbytes=5_000, num_workers=1, part=Part(index, 3)))
        assert report.is_finished == (index == 1)
    outs.append(tmp_path / "joined")
    convert(ConvertOptions(tree, outs[-1], to=to, shard_nbytes=5_000, num_workers=1, part=Part(2, 4)))
    report = convert(ConvertOptions(tree, outs[-1], to=to, shard_nbytes=5_000, num_workers=1))
    assert report.num_resumed > 0
    assert all(contents(out) == contents(outs[0]) for out in outs[1:])


@pytest.mark.nightly
def test_a_moved_source_gives_the_same_bytes_later(tree: Path, tmp_path: Path, to: str) -> None:
    convert(ConvertOptions(tree, tmp_path / "one", to=to, num_workers=1))
    time.sleep(1.1)  # formats that note times count seconds
    moved = tree.rename(tmp_path / "elsewhere")
    os.utime(next(moved.rglob("*.jpg")))
    convert(ConvertOptions(moved, tmp_path / "two", to=to, num_workers=1))
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


@pytest.mark.promise("convert: Several machines")
def test_a_finished_part_may_be_started_again(tree: Path, tmp_path: Path) -> None:
    options = ConvertOptions(tree, tmp_path / "out", num_workers=1, part=Part(1, 1))
    convert(options)
    before = contents(tmp_path / "out")
    assert convert(options).is_finished
    assert contents(tmp_path / "out") == before


def test_shards_hold_no_more_samples_than_memory_should(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    """However few bytes they have."""
    monkeypatch.setattr("converters.planning.building.MAX_SHARD_SAMPLES", 5)
    (tree / "class_0" / "img 0.jpg").write_bytes(encoded_image(0, size=(400, 560)))  # most of the bytes: shares are uneven
    convert(ConvertOptions(tree, tmp_path / "out", to=to, num_workers=1))
    counts = [shard.num_samples for shard in read_manifest(tmp_path / "out").shards]
    assert sum(counts) == 24
    assert max(counts) <= 5
    assert len(open_index(tmp_path / "out").labels()) == 24


def test_shards_share_the_bytes_evenly(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "source", num_classes=2, per_class=60)
    report = convert(ConvertOptions(tree, tmp_path / "out", shard_nbytes=10_000, num_workers=1))
    total = sum(path.stat().st_size for path in tree.rglob("*.jpg"))
    assert report.sets[0].num_shards == -(-total // 10_000)
    counts = [shard.num_samples for shard in read_manifest(tmp_path / "out").shards]
    assert max(counts) - min(counts) <= 2


def test_split(tree: Path, tmp_path: Path) -> None:
    report = convert(ConvertOptions(tree, tmp_path / "out", num_workers=1, split=Split.parse_all("train=0.75,val=0.25")))
    assert {one.name for one in report.sets} == {"train", "val"}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["train", "val"]
    seen: list[str] = []
    for name in ("train", "val"):
        directory = tmp_path / "out" / name
        index = open_index(directory)
        sources = [index.describe(sample).source for sample in range(len(index))]
        assert sources == sorted(sources)  # ids count in the listing's order within the split
        assert sorted(samples_by_tarfile(directory)) == [f"{sample:09d}" for sample in range(len(index))]
        assert index.manifest.classes == ("class_0", "class_1", "class_2")
        assert index.manifest.shards[0].name == f"{name}-000000.tar"
        seen += sources
    assert sorted(seen) == [str(path.relative_to(tree)) for path in source_files(tree)]


def test_split_depends_on_place_and_seed_only() -> None:
    shares = (Fraction("0.9"), Fraction("0.1"))
    all_at_once = split_of(np.arange(100_000), seed=0, shares=shares)
    assert abs(all_at_once.mean() - 0.1) < 0.005
    assert np.array_equal(split_of(np.arange(5_000, 6_000), seed=0, shares=shares), all_at_once[5_000:6_000])
    assert not np.array_equal(split_of(np.arange(1_000), seed=1, shares=shares), all_at_once[:1_000])


def test_a_split_without_samples_is_refused(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="val gets none of 24"):
        convert(ConvertOptions(tree, tmp_path / "out", num_workers=1, split=Split.parse_all("train=0.9999,val=0.0001")))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("as_json", [True, False])
def test_class_map(tree: Path, tmp_path: Path, *, as_json: bool) -> None:
    table = {"class_2": 0, "unused class": 1, "class_0": 2, "class_1": 3}
    path = tmp_path / "map"
    path.write_text(json.dumps(table) if as_json else "\n".join(f"{name} {label}" for name, label in table.items()))
    convert(ConvertOptions(tree, tmp_path / "out", num_workers=1, class_map=path))
    manifest = read_manifest(tmp_path / "out")
    assert manifest.classes == ("class_2", "unused class", "class_0", "class_1")
    index = open_index(tmp_path / "out")
    labels = index.look_up(np.arange(24), "label").labels
    assert labels.tolist() == [2] * 8 + [3] * 8 + [0] * 8
    assert {sample["cls"] for sample in samples_by_tarfile(tmp_path / "out").values()} == {b"0", b"2", b"3"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"class_0": 0, "class_1": 1}', "no index for class folders 'class_2'"),
        ('{"class_0": 0, "class_1": 1, "class_2": 3}', "0 to 2, each once"),
        ('{"class_0": 0, "class_1": 1, "class_2": 1}', "each once"),
        ('{"class_0": "0"}', "expected an integer"),
        ("{", "not JSON"),
        ("class_0", "line 1 is 'class_0'"),
        ("class_0 0\nclass_0 1", "a second time"),
    ],
)
def test_class_maps_that_do_not_fit(tree: Path, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "map").write_text(text)
    with pytest.raises(OptionError, match=message):
        convert(ConvertOptions(tree, tmp_path / "out", class_map=tmp_path / "map"))
    assert not (tmp_path / "out").exists()


def test_content_decides_about_the_suffix(tmp_path: Path) -> None:
    folder = tmp_path / "source" / "k"
    folder.mkdir(parents=True)
    for number, form in enumerate(("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")):
        (folder / f"{number}.JPEG").write_bytes(encoded_image(number, form=form))
    convert(ConvertOptions(tmp_path / "source", tmp_path / "out", num_workers=1))
    suffixes = [next(iter(fields)) for _, fields in sorted(samples_by_tarfile(tmp_path / "out").items())]
    assert suffixes == ["png", "jpg", "webp", "bmp", "gif", "tif", "ppm"]


def test_cmyk_and_grey_images_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "source" / "k"
    folder.mkdir(parents=True)
    for mode in ("CMYK", "L"):
        (folder / f"{mode}.jpg").write_bytes(encoded_image(1, mode=mode))
    convert(ConvertOptions(tmp_path / "source", tmp_path / "out", num_workers=1, check=Check.DECODE))
    assert len(samples_by_tarfile(tmp_path / "out")) == 2


@pytest.mark.parametrize(
    ("resize", "size", "expected"),
    [
        ("shorter:256", (375, 500), (256, 341)),
        ("shorter:256", (500, 375), (341, 256)),
        ("shorter:256", (100, 100), (256, 256)),
        ("longer:128", (375, 500), (96, 128)),
        ("longer:8", (1, 500), (1, 8)),
        ("exact:10x20", (375, 500), (10, 20)),
    ],
)
def test_resized_size(resize: str, size: tuple[int, int], expected: tuple[int, int]) -> None:
    assert resized_size(Resize.parse(resize), *size) == expected


def test_an_image_that_resizing_would_make_too_large_is_bad(tmp_path: Path) -> None:
    """However small it is itself."""
    (tmp_path / "source" / "k").mkdir(parents=True)
    (tmp_path / "source" / "k" / "0.png").write_bytes(encode(np.zeros((1, 4000, 3), np.uint8), "PNG"))
    options = ConvertOptions(tmp_path / "source", tmp_path / "out", num_workers=1, resize=Resize.parse("shorter:256"))
    with pytest.raises(DecodeError, match="1x4000 pixels resized to 256x1024000 exceed the limit of 178956970"):
        convert(options)


def pixels_of(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def test_resize_is_pillows_bilinear(tree: Path, tmp_path: Path) -> None:
    """Lossless storage shows the resized pixels as they are."""
    convert(ConvertOptions(tree, tmp_path / "out", num_workers=1, resize=Resize.parse("shorter:24"), encode=Encode.parse("png")))
    samples = samples_by_tarfile(tmp_path / "out")
    for sample, path in enumerate(source_files(tree)):
        image = Image.open(path).convert("RGB").resize((33, 24), Image.Resampling.BILINEAR)
        assert np.array_equal(pixels_of(samples[f"{sample:09d}"]["png"]), np.asarray(image))
    assert read_manifest(tmp_path / "out").image_size == (24, 33)


def test_raw_stores_npy_files(tree: Path, tmp_path: Path) -> None:
    convert(ConvertOptions(tree, tmp_path / "out", num_workers=1, resize=Resize.parse("exact:16x16"), encode=Encode.parse("raw")))
    samples = samples_by_tarfile(tmp_path / "out")
    for sample, path in enumerate(source_files(tree)):
        image = Image.open(path).convert("RGB").resize((16, 16), Image.Resampling.BILINEAR)
        stored = np.load(io.BytesIO(samples[f"{sample:09d}"]["npy"]))
        assert stored.dtype == np.uint8
        assert np.array_equal(stored, np.asarray(image))
    assert read_manifest(tmp_path / "out").image_size == (16, 16)


def test_jpeg_is_encoded_as_asked(tree: Path, tmp_path: Path) -> None:
    convert(ConvertOptions(tree, tmp_path / "out", num_workers=1, encode=Encode.parse("jpeg:30")))
    samples = samples_by_tarfile(tmp_path / "out")
    for sample, path in enumerate(source_files(tree)):
        sink = io.BytesIO()
        Image.open(path).convert("RGB").save(sink, "JPEG", quality=30)
        assert samples[f"{sample:09d}"]["jpg"] == sink.getvalue()


def test_keep_with_resize_keeps_what_fits_and_the_kind(tmp_path: Path) -> None:
    folder = tmp_path / "source" / "k"
    folder.mkdir(parents=True)
    (folder / "0.jpg").write_bytes(encoded_image(0, size=(32, 48)))
    (folder / "1.jpg").write_bytes(encoded_image(1, size=(64, 64)))
    (folder / "2.png").write_bytes(encoded_image(2, size=(64, 64), form="PNG"))
    (folder / "3.bmp").write_bytes(encoded_image(3, size=(64, 64), form="BMP"))
    convert(ConvertOptions(tmp_path / "source", tmp_path / "out", num_workers=1, resize=Resize.parse("shorter:32")))
    samples = samples_by_tarfile(tmp_path / "out")
    assert samples["000000000"]["jpg"] == (folder / "0.jpg").read_bytes()
    assert [next(iter(samples[key])) for key in sorted(samples)] == ["jpg", "jpg", "png", "jpg"]
    assert {pixels_of(next(iter(fields.values()))).shape for fields in samples.values()} == {(32, 48, 3), (32, 32, 3)}
    assert read_manifest(tmp_path / "out").image_size is None


def test_preview_writes_nothing(tree: Path, tmp_path: Path) -> None:
    seen = preview(ConvertOptions(tree, tmp_path / "out", shard_nbytes=9_000))
    assert not (tmp_path / "out").exists()
    convert(ConvertOptions(tree, tmp_path / "out", shard_nbytes=9_000, num_workers=1))
    manifest = read_manifest(tmp_path / "out")
    assert (seen.sets[0].num_samples, seen.sets[0].num_shards, seen.num_classes) == (24, len(manifest.shards), 3)
    assert seen.nbytes == sum(path.stat().st_size for path in tree.rglob("*.jpg"))
    assert seen.needed_nbytes is not None
    assert seen.nbytes < seen.needed_nbytes < seen.free_nbytes
    first_shard = list(samples_by_tarfile(tmp_path / "out"))[: min(10, manifest.shards[0].num_samples)]
    assert [sample.key for sample in seen.sets[0].first] == first_shard


def test_odd_names_survive(tmp_path: Path, to: str) -> None:
    root = os.fsencode(tmp_path) + b"/source/caf\xff"
    os.makedirs(root)
    names = [b"a.b.jpg", b"new\nline.jpg", b"\xfe.jpg", "ünï.jpg".encode()]
    for number, name in enumerate(names):
        with open(root + b"/" + name, "wb") as file:
            file.write(encoded_image(number))
    done = run_cli("convert", tmp_path / "source", tmp_path / "out", "--to", to, "--workers", "1")
    assert done.returncode == 0, done.stderr
    index = open_index(tmp_path / "out")
    assert [os.fsencode(index.describe(sample).source) for sample in range(4)] == [b"caf\xff/" + name for name in sorted(names)]
    assert index.manifest.classes == (os.fsdecode(b"caf\xff"),)
    assert run_main("verify", tmp_path / "out") == 0


@pytest.mark.nightly
def test_converting_imports_no_torch(tree: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; import converters; from converters.verify import verify;"
        f"converters.convert(converters.ConvertOptions(Path({str(tree)!r}), Path({str(tmp_path / 'out')!r}), num_workers=1));"
        f"verify(Path({str(tmp_path / 'out')!r})); assert not {{'torch', 'torchvision', 'webdataset'}} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
