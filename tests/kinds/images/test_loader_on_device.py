"""The loader with its batches on a device: on a fake one, what a CPU loader gives arrives, in order and unhurried.

The fake runs operations late and lends freed memory at once, so a wait left out shows as wrong values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_device import FakeDevice, assert_released_at_the_end, pretend_gpus
from fixtures import jpeg, open_images
from labelled_scenes import convert_scenes

import datapipe as dp
from datapipe import transforms as T
from datapipe.kernel.pytree import map_nest, tensors_of
from datapipe.kinds.images.dali.pipeline import DaliPipeline

CUDA = torch.device("cuda", 3)
CUT = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]
NORMALISED = [*CUT, T.ToDtype(torch.float32, scale=True), T.Normalize((0.5, 0.4, 0.3), (0.2, 0.2, 0.1))]

CASES: dict[str, dict[str, Any]] = {
    "uint8": {"transform": CUT},
    "float32": {"transform": NORMALISED},
    "colours": {"transform": [*CUT, T.ColorJitter(0.4, 0.4, 0.4, 0.1), *NORMALISED[2:]]},
    "mixed": {"transform": [*NORMALISED, T.MixUp(num_classes=4)]},
    "windows": {"transform": [T.Resize((30, 30)), T.RandomCrop(28, padding=4, fill=(1, 2, 3))]},
    "named and masked": {"transform": NORMALISED, "output": {"image": "x"}, "tail": "mask"},
    "rows in memory order": {"transform": NORMALISED, "memory_format": torch.contiguous_format},
    "bad samples left out": {"transform": NORMALISED, "on_error": "skip", "output": "dict"},
    "bad samples replaced": {"transform": [*CUT, T.RandomGrayscale(0.5)], "on_error": "replace", "output": "dict"},
    "a function of the batch": {"transform": CUT, "batch_transform": lambda batch: (batch[0].float().mul(2), batch[1])},
    "in the caller's thread": {"transform": NORMALISED, "num_workers": 0},
    "a collate_fn that draws": {
        "transform": CUT,
        "collate_fn": lambda samples: torch.stack([x for x, _ in samples]) * torch.rand(()),
    },
    "a collate_fn": {"transform": NORMALISED, "collate_fn": lambda samples: {"x": torch.stack([image for image, _ in samples])}},
}


@pytest.fixture(params=["images_cpu", dp.Dali()], ids=["images_cpu", "dali"])
def backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDevice]:
    """A fake device in CUDA's place; DALI's graph is the CPU's, its result put on the device."""
    device = FakeDevice(seed=7)
    run_on_cpu = DaliPipeline.run
    on_cpus: dict[int, DaliPipeline] = {}
    pretend_gpus(monkeypatch, current=CUDA.index)
    monkeypatch.setattr("datapipe.kinds.images.assembly.region_problem", lambda device_id, hw_decoder_load: None)

    def run(self: DaliPipeline, encoded: Any, cuts: Any, stream: Any) -> Any:
        assert self.options.device_id == CUDA.index, "a graph for the CPU"
        on_cpu = on_cpus.setdefault(id(self), DaliPipeline(dataclasses.replace(self.options, device_id=None)))
        pixels, keep = run_on_cpu(on_cpu, encoded, cuts, None)
        with device.under(stream):
            return device.put(pixels), keep

    monkeypatch.setattr(DaliPipeline, "run", run)
    for room in ("kernel.delivery", "kinds.images.kind"):
        monkeypatch.setattr(f"datapipe.{room}.runtime_of", lambda _: device)
    yield device
    device.drain()
    assert [what for what in device.forbidden if "pageable" not in what] == []


@pytest.fixture(scope="module")
def flawed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """23 images, three of them bad: by header, by body, and one that DALI must not see."""
    root = tmp_path_factory.mktemp("flawed") / "set"
    for number in range(23):
        path = root / f"class_{number % 4}" / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes({3: b"", 9: jpeg(9)[:200] + b"\xff\xd9", 14: b"GIF89a text"}.get(number, jpeg(number, 60 + number, 50)))
    return root


def batches(source: Path, **arguments: Any) -> dp.DataLoader:
    options = {"batch_size": 6, "shuffle": True, "num_workers": 2, "seed": 3, **arguments}
    return open_images(source, **options)


def read_later(fake: FakeDevice, batch: Any) -> Callable[[], Any]:
    """What the consumer's stream sees of a batch; to be called after `drain`."""
    seen = {id(tensor): fake.read(tensor) for tensor in tensors_of(batch)}

    def look(tensor: Any) -> Any:
        return seen[id(tensor)]()

    return lambda: map_nest(batch, look, look)


def assert_same(found: Any, expected: Any, *, exactly: bool) -> None:
    pairs = list(zip(tensors_of(found), tensors_of(expected), strict=True))
    assert pairs
    for ours, theirs in pairs:
        assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
        if exactly or not ours.is_floating_point():
            assert torch.equal(ours, theirs)
        else:
            torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-5)


@pytest.mark.daily(5)
@pytest.mark.parametrize("case", CASES)
def test_batches_on_the_device_are_the_cpus(
    folder: Path, flawed: Path, fake: FakeDevice, monkeypatch: pytest.MonkeyPatch, backend: Any, case: str
) -> None:
    source, arguments = (flawed if "bad" in case else folder), CASES[case]
    if "collate_fn" in arguments and backend != "images_cpu":
        with pytest.raises(dp.errors.OptionError, match=r"collate_fn takes samples in host memory.*; pass a batch_transform"):
            next(iter(batches(source, device="cuda", backend=backend, **arguments)))
        return
    on_device = batches(source, device="cuda", backend=backend, **arguments)
    later = [read_later(fake, batch) for batch in on_device]
    fake.drain()
    monkeypatch.undo()
    on_cpu = batches(source, device="cpu", backend=backend, **arguments)
    expected = list(on_cpu)
    assert len(later) == len(expected) > 1
    for read, batch in zip(later, expected, strict=True):
        assert_same(read(), batch, exactly=case in ("uint8", "windows"))
    assert len(on_device.bad_samples) == len(on_cpu.bad_samples) == (3 if "bad" in case else 0)


@pytest.mark.parametrize("fields", [None, ["seg", "image", "boxes", "txt"], ["vector", "label"], ["txt"]], ids=str)
def test_further_fields_on_the_device_are_the_cpus(
    fake: FakeDevice, monkeypatch: pytest.MonkeyPatch, backend: Any, fields: list[str] | None, tmp_path: Path
) -> None:
    source = convert_scenes(tmp_path)
    images = {"transform": CUT, "backend": backend} if fields is None or "image" in fields else {}
    arguments: dict[str, Any] = {"fields": fields, "boxes": "padded", "output": "dict", "batch_size": 4, **images}
    later, captions = [], []
    for batch in batches(source, device="cuda", **arguments):
        later.append(read_later(fake, batch))
        captions.append(batch.get("txt"))
    fake.drain()
    monkeypatch.undo()
    expected = list(batches(source, device="cpu", **arguments))
    for read, text, batch in zip(later, captions, expected, strict=True):
        assert_same(read(), batch, exactly=True)
        assert text == batch.get("txt")


def test_every_thread_of_a_loader_enters_the_device(folder: Path, fake: FakeDevice, backend: Any) -> None:
    list(batches(folder, device="cuda", backend=backend, transform=CUT))
    expected = {"datapipe-0", "datapipe-1"} | ({"datapipe-lane-0", "datapipe-lane-1"} if backend != "images_cpu" else set())
    assert sorted(fake.entered) == sorted(expected)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("is_closed", [False, True], ids=["at its end", "closed"])
def test_a_pass_that_ends_keeps_no_memory_that_the_device_is_done_with(
    folder: Path, fake: FakeDevice, monkeypatch: pytest.MonkeyPatch, backend: Any, num_workers: int, is_closed: bool
) -> None:
    loader = batches(folder, device="cuda", backend=backend, transform=CUT, num_workers=num_workers)
    assert_released_at_the_end(fake, loader, len(loader), monkeypatch, is_closed=is_closed)


@pytest.mark.parametrize("operation", [T.MixUp(num_classes=2), T.CutMix(num_classes=2)], ids=repr)
def test_a_label_that_no_class_has_never_reaches_the_device(folder: Path, fake: FakeDevice, operation: Any) -> None:
    loader = batches(folder, device="cuda", backend="images_cpu", transform=[*NORMALISED, operation], shuffle=False)
    with pytest.raises(
        dp.errors.OptionError, match=r"cat/.*: its label is 2, and .*num_classes=2\) takes 0 to 1; pass the dataset's"
    ):
        list(loader)


def test_a_gpu_that_cannot_decode_regions_decodes_whole_images(
    folder: Path, fake: FakeDevice, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = "its test was killed by SIGSEGV"
    for room in ("kinds.images.assembly", "kinds.images.explanation"):
        monkeypatch.setattr(f"datapipe.{room}.region_problem", lambda device_id, hw_decoder_load: problem)
    monkeypatch.setattr(DaliPipeline, "build", lambda self: "cpu" if self.options.decodes_regions else "gpu")
    loader = batches(folder, device="cuda", backend=dp.Dali(), transform=CUT)
    print(dp.explain(loader))
    said = capsys.readouterr().out
    assert "on the GPU in 2 pipelines" in said
    assert f"decodes whole images, then crops: {problem}; 0% of the JPEGs on the GPU's JPEG engines" in said


# -- a cache on the device ---------------------------------------------------------------------------

FRONT = T.Resize((30, 32))
KEPT: dict[str, dict[str, Any]] = {
    "nothing behind": {"transform": [FRONT]},
    "whole images": {"transform": [], "fields": ["image", "label"]},
    "flips": {"transform": [FRONT, T.RandomHorizontalFlip(), T.RandomVerticalFlip()]},
    "crops": {"transform": [FRONT, T.CenterCrop(29), T.RandomCrop((28, 20)), T.RandomHorizontalFlip(), *NORMALISED[2:]]},
    "padded": {"transform": [FRONT, T.RandomCrop(30, padding=4, fill=(1, 2, 3)), T.RandomVerticalFlip()]},
    "padded twice": {"transform": [FRONT, T.RandomHorizontalFlip(), T.Pad(3, fill=9), T.RandomCrop(34, padding=2, fill=200)]},
    "colours": {"transform": [FRONT, T.RandomHorizontalFlip(), T.ColorJitter(0.4, 0.4, 0.4, 0.1)]},
    "mixed": {"transform": [FRONT, *NORMALISED[2:], T.MixUp(num_classes=4)], "output": "dict", "tail": "mask"},
    "bad samples left out": {"transform": [FRONT, T.RandomHorizontalFlip()], "on_error": "skip", "output": "dict"},
    "bad samples replaced": {"transform": [FRONT, T.RandomCrop(24)], "on_error": "replace", "output": "dict"},
    "in the caller's thread": {"transform": [FRONT, T.RandomCrop(24)], "num_workers": 0},
    "room for few": {"transform": [FRONT, T.RandomHorizontalFlip()], "cache": dp.Cache("gpu", 5 * 30 * 32 * 3 + 7)},
}


@pytest.mark.daily(3)
@pytest.mark.parametrize("case", KEPT)
def test_batches_of_images_kept_on_the_device_are_those_without_a_cache(
    folder: Path, flawed: Path, fake: FakeDevice, monkeypatch: pytest.MonkeyPatch, backend: Any, case: str, tmp_path: Path
) -> None:
    source, arguments = (flawed if "bad" in case else folder), dict(KEPT[case])
    if case == "padded twice" and backend != "images_cpu":
        pytest.skip("without a cache images_cpu would decode: its two cuts are one too many for DALI's graph")
    if case == "whole images":
        source = convert_scenes(tmp_path)
    cache = arguments.pop("cache", "gpu")
    loader = batches(source, device="cuda", backend=backend, cache=cache, **arguments)
    later = [[read_later(fake, batch) for batch in loader] for _ in range(3)]
    fake.drain()
    stats, num = loader.cache_stats, len(loader.dataset)
    assert stats is not None
    num_bad = 3 if "bad" in case else 0
    assert stats.num_kept == (5 if case == "room for few" else num - num_bad)
    assert stats.nbytes <= stats.capacity
    if case in ("bad samples replaced", "mixed"):  # samples that come again in place of bad ones, and to fill the last batch
        assert stats.hits > 2 * stats.num_kept
    else:
        assert (stats.hits, stats.hits + stats.misses) == (2 * stats.num_kept, 3 * num)
    monkeypatch.undo()
    plain = batches(source, device="cpu", backend=backend, **arguments)
    for epoch in later:
        for read, batch in zip(epoch, plain, strict=True):
            is_exact = arguments.get("transform", [])[-1:] != [NORMALISED[-1]] and case != "colours" and backend == "images_cpu"
            assert_same(read(), batch, exactly=is_exact)
    assert sorted(loader.bad_samples, key=str) == sorted(plain.bad_samples, key=str)


def test_what_is_kept_is_not_read_again(folder: Path, fake: FakeDevice, backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datapipe.kinds.images.explanation.region_problem", lambda device_id, hw_decoder_load: None)
    monkeypatch.setattr(DaliPipeline, "build", lambda self: "gpu")
    loader = batches(folder, device="cuda", backend=backend, cache="gpu", transform=[FRONT, T.RandomHorizontalFlip()])
    assert f"has 0 of {len(loader.dataset)} images; all fit, in " in str(dp.explain(loader))
    list(loader)
    assert f"has {len(loader.dataset)} of {len(loader.dataset)} images; all fit, in " in str(dp.explain(loader))
    events: list[Any] = []
    loader.observe(events.append)
    assert len(list(loader)) == len(loader)
    assert sum(event.nbytes for event in events if event.stage.value == "read") == 0


def test_auto_measures_what_is_kept(folder: Path, fake: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """DALI could not make all of this recipe, but it can make the images to keep."""
    opened: list[dp.DataLoader] = []

    def rates_of(candidates: Any, open_loader: Any, **_: Any) -> list[float]:
        opened.extend(map(open_loader, candidates))
        return [float(candidate is None) for candidate in candidates]

    monkeypatch.setattr("datapipe.kinds.images.evidence.rates_of", rates_of)
    loader = batches(folder, device="cuda", cache="gpu", **KEPT["padded twice"])
    assert loader.choice.backend == "images_cpu"
    assert {repr(one._passes.kind.recipe) for one in opened} == {repr(loader._passes.kind.recipe.split_front()[0])}
    assert len(opened) > 1


def test_masks_and_boxes_move_with_images_that_are_kept(
    fake: FakeDevice, monkeypatch: pytest.MonkeyPatch, backend: Any, tmp_path: Path
) -> None:
    arguments: dict[str, Any] = {"transform": [FRONT, T.RandomCrop(20), T.RandomHorizontalFlip()], "backend": backend}
    arguments |= {"fields": ["image", "seg", "boxes"], "boxes": "padded", "output": "dict", "batch_size": 4}
    source = convert_scenes(tmp_path)
    loader = batches(source, device="cuda", cache="gpu", **arguments)
    later = [[read_later(fake, batch) for batch in loader] for _ in range(2)]
    fake.drain()
    monkeypatch.undo()
    plain = batches(source, device="cpu", **arguments)
    for epoch in later:
        for read, batch in zip(epoch, plain, strict=True):
            assert_same(read(), batch, exactly=backend == "images_cpu")


def test_a_file_that_changed_is_loaded_again(flawed: Path, fake: FakeDevice, tmp_path: Path) -> None:
    root = tmp_path / "set" / "a"
    root.mkdir(parents=True)
    for number in range(3):
        (root / f"{number}.jpg").write_bytes(jpeg(number, 40, 40))
    loader = batches(root.parent, device="cuda", cache="gpu", transform=[FRONT], backend="images_cpu", shuffle=False)
    first = [read_later(fake, batch) for batch in loader]
    (root / "1.jpg").write_bytes(jpeg(77, 40, 41))
    second = [read_later(fake, batch) for batch in loader]
    fake.drain()
    ((before, _),), ((after, _),) = [[read() for read in one] for one in (first, second)]
    assert [bool((x == y).all()) for x, y in zip(before, after, strict=True)] == [True, False, True]


def test_rows_of_a_batch_that_failed_are_filled_by_another(
    folder: Path, fake: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = batches(folder, device="cuda", cache="gpu", transform=[FRONT], backend="images_cpu", num_workers=0)
    iterator = iter(loader)
    with monkeypatch.context() as patch:
        patch.setattr("datapipe.kinds.images.device_images.DeviceImages._put", _out_of_order)
        with pytest.raises(RuntimeError, match="the device is out of order"):
            next(iterator)
    num = len(loader.dataset)
    list(iterator)
    assert loader.cache_stats.num_kept == num - 6  # type: ignore[union-attr]
    list(loader)
    assert loader.cache_stats.num_kept == num  # type: ignore[union-attr]


def _out_of_order(*arguments: object) -> None:
    raise RuntimeError("the device is out of order")


@pytest.mark.parametrize(("arguments", "problem"), [
    ({"transform": CUT}, r"RandomResizedCrop\(24\) resamples each image in every epoch; pass cache='ram'"),
    ({"transform": [T.Resize(30)]}, r"images of one size, and these would differ; begin the transforms with Resize\(\(height"),
    ({"transform": [FRONT, abs]}, r"cache='gpu': .* runs per sample on the CPU; pass cache='ram'"),
    ({"transform": [FRONT], "collate_fn": list}, r"collate_fn takes samples in host memory; pass a batch_tr"),
    ({"transform": [FRONT], "device": "cpu"}, r"keeps images on a GPU, and device is cpu; pass cache='ram'"),
    ({"transform": [FRONT], "cache": dp.Cache("gpu", 100)}, r"an image takes 2,880 bytes, and the cache may take 100 on meta"),
])  # fmt: skip
def test_what_cannot_be_kept_on_a_device_is_refused(
    folder: Path, fake: FakeDevice, arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises(dp.errors.OptionError, match=problem):
        list(batches(folder, **{"device": "cuda", "cache": "gpu", "backend": "images_cpu", **arguments}))
