"""What every loader promises, held against each kind of data: a new kind joins by one entry in KINDS.

`numbers` is the worked example of CONTRIBUTING.md: one folder, and its lines here and in the registry.
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conversation_sets import FIRST as FIRST_WORD
from conversation_sets import picture, words_model, write_set
from decoders import Decoder
from fixtures import made_once, make_folder, mostly_nightly
from process_requests import require_processes

import datapipe as dp
from datapipe.cli.main import main
from datapipe.containers.forms import FORMS, FormFacts
from datapipe.index.media import MediaSource
from datapipe.kernel.loader import Loader
from datapipe.kinds import registry
from datapipe.kinds.clips import process_workers as clip_workers
from datapipe.kinds.conversations import placing as conversation_workers
from datapipe.kinds.images import process_workers as image_workers
from datapipe.kinds.images.dali.installation import installation
from datapipe.opening.videos.indexing import look_at
from datapipe.order.sampling import interleaved
from datapipe.testing.loaders import (
    NUM_SAMPLES,
    BadSampleSuite,
    InterruptSuite,
    LoaderOf,
    LoaderSuite,
    OptionSuite,
    PassSuite,
    ProcessSuite,
    SamenessSuite,
    SeedSuite,
    StateSuite,
)
from datapipe.testing.loaders.kind import values

EXTENDING = Path(__file__).parents[2] / "examples" / "extending"
sys.path.insert(0, str(EXTENDING))
from kind_numbers.data import Numbers  # noqa: E402

TOKENS = 8  # of a row
WITH_IMAGE = 8  # ... of a document with a picture, which has at least 6
CLIPS = 17  # of a video
SAMPLES = 4000  # of a sound file, or more
PER_FILE, BAD_NUMBER, BAD_GROUP = 8, 11, slice(10, 12)
FIRST = 34  # samples of the first dataset of a mixture of two, which has all others in the second
WHICH, NUMBER = interleaved((FIRST, NUM_SAMPLES - FIRST), np.arange(NUM_SAMPLES))
PLACES = np.argsort(FIRST * WHICH + NUMBER)  # by id, in the stored order of such a mixture: what the suite takes for ids
BAD_OF_MIXED = 5  # whose id is its place
assert PLACES[BAD_OF_MIXED] == BAD_OF_MIXED


def ids_of(batch: Any) -> list[int]:
    """By name, or the batch itself; a mask comes after it."""
    found = batch[0] if isinstance(batch, tuple) else batch
    return [int(sample) for sample in (found["id"] if isinstance(found, dict) else found).view(-1).tolist()]


def make_images(path: Path, num: int) -> Path:
    return make_folder(path, num=num, size=(40, 48))


def spoil_image(path: Path) -> set[int]:
    bad = sorted(path.rglob("*.jpg"))[BAD_NUMBER]
    bad.write_bytes(bad.read_bytes()[:500])
    return {BAD_NUMBER}


def open_images(path: Path, **options: Any) -> Loader:
    transform = [dp.transforms.RandomResizedCrop(24), dp.transforms.RandomHorizontalFlip()]
    return dp.DataLoader(path, **{"backend": "images_cpu", "output": "dict", "transform": transform} | options)


def open_bucketed_images(path: Path, **options: Any) -> Loader:
    """Of one shape that has images, so that it is known which samples a step has that is not full."""
    data = dp.Images(path, buckets=dp.Buckets([(24, 24), (20, 24)], crop="random"))
    return dp.DataLoader(data, **{"output": "dict", "transform": [dp.transforms.RandomHorizontalFlip()]} | options)


def open_images_by_dali(path: Path, **options: Any) -> Loader:
    try:
        installation()
    except dp.errors.DependencyError as exc:
        pytest.skip(str(exc))
    return open_images(path, **{"backend": "dali"} | options)


def make_table(path: Path, num: int) -> Path:
    path.mkdir(parents=True)
    rows = np.arange(num)
    table = pa.table({"id": rows, "value": rows / 3})
    pq.write_table(table, path / "0.parquet", row_group_size=2, use_dictionary=False)
    return path


def spoil_row_group(path: Path) -> set[int]:
    (file,) = path.glob("*.parquet")
    chunk = pq.read_metadata(file).row_group(BAD_GROUP.start // 2).column(0)
    data = bytearray(file.read_bytes())
    data[chunk.data_page_offset : chunk.data_page_offset + 16] = bytes(16)
    file.write_bytes(data)
    return set(range(NUM_SAMPLES)[BAD_GROUP])


def open_table(path: Path, **options: Any) -> Loader:
    return dp.TableLoader(path, columns={"id": ["id"], "value": ["value"]}, **{"batch_size": 1} | options)


def make_tokens(path: Path, num: int) -> Path:
    """Documents that fill a row each, of one id."""
    path.mkdir(parents=True)
    ids = np.repeat(np.arange(num, dtype="<u2"), TOKENS)
    (path / "x.ds").write_bytes(ids.tobytes())
    (path / "x.ds.index").write_bytes((TOKENS * np.arange(1, num + 1, dtype="<u8")).tobytes())
    return path


def spoil_document(path: Path) -> set[int]:
    """By an id beyond the vocabulary."""
    ids = np.fromfile(path / "x.ds", "<u2")
    ids[BAD_NUMBER * TOKENS + 1] = 40_000
    (path / "x.ds").write_bytes(ids.tobytes())
    return {BAD_NUMBER}


def open_tokens(path: Path, **options: Any) -> Loader:
    return dp.DataLoader(dp.Tokens(path, TOKENS, vocab_size=1000), **options)


def ids_of_tokens(batch: Any) -> list[int]:
    return [int(row[0]) for row in batch["input_ids"]]


@made_once
def make_conversations(path: Path, num: int) -> Path:
    """Documents of a word and a picture, each of which needs a row of its own."""
    return write_conversations(path, num, {})


def spoil_conversation(path: Path) -> set[int]:
    """By a picture that its model refuses, among words, so that any other document fits into its place."""
    shutil.rmtree(path)
    write_conversations(path, NUM_SAMPLES, {BAD_NUMBER: picture(1, 300)})
    return {BAD_NUMBER}


def write_conversations(path: Path, num: int, others: dict[int, bytes]) -> Path:
    model = words_model(path.with_name(f"{path.name}-model"))
    pictures = [others.get(number) or picture(28 + number, 40, seed=number) for number in range(num)]
    documents = [[number, *range(4 * (number in others)), one] for number, one in enumerate(pictures)]
    return write_set(path, documents, model, shard_nbytes=100_000)


def open_conversations(path: Path, **options: Any) -> Loader:
    data = dp.Conversations(path, WITH_IMAGE, words_model(path.with_name("model")))
    return dp.DataLoader(data, **options)


def ids_of_conversations(batch: Any) -> list[int]:
    return [int(row[0]) - FIRST_WORD for row in batch["input_ids"]]


def _write_video() -> Any:
    pytest.importorskip("av")
    from video_files import write_video

    return write_video


@made_once
def make_clips(path: Path, num: int) -> Path:
    """Clips of two frames, 17 in a video."""
    write_video = _write_video()
    path.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for video, first in enumerate(range(0, num, CLIPS)):
        frames = rng.integers(0, 255, (2 * min(CLIPS, num - first), 16, 16, 3), np.uint8)
        write_video(path / f"{video}.mov", "mjpeg", frames=frames, pixel_format="yuvj420p")
    return path


def spoil_clip(path: Path, bad: int = BAD_NUMBER) -> set[int]:
    """One frame of a clip."""
    number, clip = divmod(bad, CLIPS)
    file = path / f"{number}.mov"
    packets = look_at(MediaSource(str(file))).track.packets
    offset, size = int(packets.offset[2 * clip]), int(packets.size[2 * clip])
    data = bytearray(file.read_bytes())
    data[offset : offset + size] = bytes(size)
    file.write_bytes(data)
    return {bad}


def open_clips(data: Path | Any, **options: Any) -> Loader:
    transform = [dp.transforms.RandomCrop(12), dp.transforms.RandomHorizontalFlip()]
    data = clips_of(data) if isinstance(data, Path) else data
    return dp.DataLoader(data, **{"transform": transform} | options)


def clips_of(source: Any) -> dp.Clips:
    return dp.Clips(source, frames=2, fields=["video", "id"], per_visit=3)


@made_once
def make_videos(path: Path, num: int) -> Path:
    """Videos of one frame or two, of which a clip of one is drawn."""
    write_video = _write_video()
    path.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(num):
        frames = rng.integers(0, 255, (1 + number % 2, 16, 16, 3), np.uint8)
        write_video(path / f"{number:03d}.mov", "mjpeg", frames=frames, pixel_format="yuvj420p")
    return path


def spoil_video(path: Path, bad: int = 10) -> set[int]:
    """The only frame of a video."""
    file = path / f"{bad:03d}.mov"
    packets = look_at(MediaSource(str(file))).track.packets
    data = bytearray(file.read_bytes())
    data[int(packets.offset[0]) : int(packets.offset[0] + packets.size[0])] = bytes(int(packets.size[0]))
    file.write_bytes(data)
    return {bad}


def open_drawn_clips(path: Path, **options: Any) -> Loader:
    return open_clips(dp.Clips(path, frames=1, clips="random", fields=["video", "id"]), **options)


def open_mixed_clips(path: Path, **options: Any) -> Loader:
    """Two videos and the others, by their sizes: each clip once in an epoch."""
    files = sorted(path.glob("*.mov"))
    return open_clips(dp.mix([clips_of(some) for some in (files[:2], files[2:]) if some]), **options)


def ids_of_clips(batch: Any) -> list[int]:
    return [int(clip) for clip in batch["id"]]


def spoil_mixed_clip(path: Path) -> set[int]:
    return spoil_clip(path, BAD_OF_MIXED)


def ids_of_mixed(batch: Any) -> list[int]:
    return [int(PLACES[sample]) for sample in batch["id"]]


def make_numbers(path: Path, num: int) -> Path:
    path.mkdir(parents=True)
    for start in range(0, num, PER_FILE):
        lines = range(start, min(start + PER_FILE, num))
        (path / f"{start // PER_FILE}.numbers").write_text("".join(f"{line}\n" for line in lines))
    return path


def spoil_number(path: Path) -> set[int]:
    file = path / f"{BAD_NUMBER // PER_FILE}.numbers"
    file.write_text(file.read_text().replace(f"{BAD_NUMBER}\n", "??\n"))
    return {BAD_NUMBER}


def open_numbers(path: Path, **options: Any) -> Loader:
    return dp.DataLoader(Numbers(path), **options)


@made_once
def make_audio(path: Path, num: int) -> Path:
    """Files of a second or a bit more, each of its own noise."""
    soundfile = pytest.importorskip("soundfile")
    path.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(num):
        soundfile.write(path / f"{number:03d}.flac", rng.normal(0, 0.1, SAMPLES + 7 * number), 8000)
    return path


def spoil_audio(path: Path, number: int = BAD_NUMBER) -> set[int]:
    bad = path / f"{number:03d}.flac"
    bad.write_bytes(bad.read_bytes()[:600])
    return {number}


def spoil_mixed_audio(path: Path) -> set[int]:
    return spoil_audio(path, BAD_OF_MIXED)


def open_crops(path: Path, **options: Any) -> Loader:
    return dp.DataLoader(dp.Audio(path, seconds=0.1, fields=["audio", "lengths", "id"]), **options)


def open_mixed_crops(path: Path, **options: Any) -> Loader:
    files, how = sorted(path.glob("*.flac")), {"seconds": 0.1, "fields": ["audio", "lengths", "id"]}
    return dp.DataLoader(dp.mix([dp.Audio(some, **how) for some in (files[:FIRST], files[FIRST:])]), **options)


def open_utterances(path: Path, **options: Any) -> Loader:
    return dp.DataLoader(dp.Audio(path, whole=True, fields=["audio", "lengths", "id"]), **options)


KINDS = {
    "images": LoaderOf(make_images, spoil_image, open_images, ids_of),
    "images_by_dali": LoaderOf(make_images, spoil_image, open_images_by_dali, ids_of, most_threads=2),
    "bucketed_images": LoaderOf(make_images, spoil_image, open_bucketed_images, ids_of),
    "tables": LoaderOf(make_table, spoil_row_group, open_table, ids_of),
    "tokens": LoaderOf(make_tokens, spoil_document, open_tokens, ids_of_tokens),
    "conversations": LoaderOf(make_conversations, spoil_conversation, open_conversations, ids_of_conversations),
    "clips": LoaderOf(make_clips, spoil_clip, open_clips, ids_of_clips),
    "drawn_clips": LoaderOf(make_videos, spoil_video, open_drawn_clips, ids_of_clips),
    "mixed_clips": LoaderOf(make_clips, spoil_mixed_clip, open_mixed_clips, ids_of_mixed),
    "audio": LoaderOf(make_audio, spoil_audio, open_crops, ids_of),
    "mixed_audio": LoaderOf(make_audio, spoil_mixed_audio, open_mixed_crops, ids_of_mixed),
    "utterances": LoaderOf(make_audio, spoil_audio, open_utterances, ids_of),
    "numbers": LoaderOf(make_numbers, spoil_number, open_numbers, ids_of),
}

ONE_OF_EACH = ("images", "tables", "tokens", "conversations", "clips", "audio", "numbers")


class OfTheKernel(PassSuite, SeedSuite, OptionSuite, InterruptSuite, ProcessSuite):
    """Promises that code keeps which knows no kind."""


class OfTheKind(SamenessSuite, StateSuite, BadSampleSuite):
    """Promises that each kind has a part in."""


class TestKernel(OfTheKernel):
    """By day on the cheapest kind, by night on every one."""

    @pytest.fixture(params=mostly_nightly(ONE_OF_EACH, "numbers"))
    def kind(self, request: pytest.FixtureRequest) -> LoaderOf:
        return KINDS[request.param]


@pytest.mark.promise("kind: images", "kind: tables", "kind: tokens", "kind: conversations", "kind: clips", "kind: audio")
class TestKinds(OfTheKind):
    """By day on every kind; by night also by each backend of images, and for each way of taking clips and sound."""

    @pytest.fixture(params=mostly_nightly(KINDS, *ONE_OF_EACH))
    def kind(self, request: pytest.FixtureRequest) -> LoaderOf:
        return KINDS[request.param]


class InProcesses:
    """Kinds whose decode threads have a process each, from the first batch on. By day tests of these processes stand for it."""

    files_per_worker = 2  # the socket and the memory of its process

    @pytest.fixture
    def kind(self, name: str, monkeypatch: pytest.MonkeyPatch) -> LoaderOf:
        workers = {"images": image_workers, "clips": clip_workers, "conversations": conversation_workers}
        require_processes(workers[name].IMPORTS, monkeypatch)
        return KINDS[name]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["images", "clips", "conversations"])
class TestKindsInProcesses(InProcesses, OfTheKind):
    pass


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["images"])
class TestKernelInProcesses(InProcesses, OfTheKernel):
    pass


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Decoder]:
    service = Decoder(tmp_path_factory.getbasetemp())
    yield service
    service.stop()


class Elsewhere:
    """Kinds whose samples are made by a worker with this machine."""

    files_per_worker = 20  # connections, and files that only some passes read here

    @pytest.fixture
    def kind(self, name: str, worker: Decoder) -> LoaderOf:
        here = KINDS[name]
        return dataclasses.replace(here, open=lambda path, **options: here.open(path, workers=worker.workers(), **options))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["images", "clips", "conversations", "audio"])
class TestKindsElsewhere(Elsewhere, OfTheKind):
    pass


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["images"])
class TestKernelElsewhere(Elsewhere, OfTheKernel):
    test_without_threads_the_caller_does_the_work = None  # workers do it
    test_its_stages_are_observed = None  # without threads the caller's time would be all of them
    test_a_slow_consumer_finds_few_batches_waiting = None  # but as many more as they can be asked for at once


def test_the_parts_are_the_suite() -> None:
    assert {*OfTheKernel.__bases__, *OfTheKind.__bases__} == {*LoaderSuite.__bases__}


@pytest.mark.gpu
@pytest.mark.parametrize("name", KINDS)
def test_batches_on_a_gpu_are_the_host_s(name: str, tmp_path: Path) -> None:
    """While the stream that reads them is late."""
    kind = KINDS[name]
    path = kind.make(tmp_path / "samples", NUM_SAMPLES)
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 3, "num_workers": 3}
    expected = [*kind.open(path, **options, device="cpu")]
    for _ in range(2):
        for batch, host in zip(kind.open(path, **options, device="cuda"), expected, strict=True):
            torch.cuda._sleep(20_000_000)
            assert kind.ids(batch) == kind.ids(host)
            for found, wanted in zip(values(batch), values(host), strict=True):
                if found.ndim == 4:  # images: another decoder may round otherwise
                    assert (found.cpu().float() - wanted.float()).abs().mean() < 1.5
                else:
                    assert found.cpu().equal(wanted)


def test_a_kind_is_known_by_its_line_in_the_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry, "KINDS", {"numbers": "kind_numbers", **registry.KINDS})
    form = FormFacts(title="files of numbers", known_by="kind_numbers.inspection", kind="numbers")
    monkeypatch.setitem(FORMS, "numbers", form)
    path = make_numbers(tmp_path / "numbers", NUM_SAMPLES)
    assert main(["inspect", str(path)]) == 0
    assert f"{NUM_SAMPLES} numbers in 5 files" in capsys.readouterr().out
    assert main(["bench", str(path), "--rounds", "1"]) == 0
    assert "numbers/s" in capsys.readouterr().out
    assert isinstance(dp.DataLoader(path).dataset, Numbers)
    assert registry.open_path(str(make_table(tmp_path / "table", NUM_SAMPLES)))[0] == "tables"
    assert registry.open_path(str(make_images(tmp_path / "folder", NUM_SAMPLES)))[0] == "images"


@pytest.mark.nightly
def test_ceilings_are_measured_of_any_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry, "KINDS", {"numbers": "kind_numbers", **registry.KINDS})
    form = FormFacts(title="files of numbers", known_by="kind_numbers.inspection", kind="numbers")
    monkeypatch.setitem(FORMS, "numbers", form)
    path = make_numbers(tmp_path / "numbers", NUM_SAMPLES)
    assert main(["bench", str(path), "--ceilings", "--images", "10"]) == 0
    assert "The lowest ceiling is " in capsys.readouterr().out
