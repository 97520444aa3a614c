"""Decode threads with a process each give what threads alone give, and go on alone where a process ends."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from batches import equal
from fixtures import make_folder
from process_requests import noted_requests

import datapipe as dp
from converters import ConvertOptions, convert
from converters.options import OnError
from datapipe import transforms as T
from datapipe.errors import MissingDataError
from datapipe.kernel.own_process import can_be_sent
from datapipe.kernel.processes import WorkerProcess
from datapipe.kinds.images.process_workers import IMPORTS
from datapipe.transforms import Recipe

RECIPE = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]
NUM = 60
ARGUMENTS: dict[str, Any] = {
    "transform": RECIPE, "batch_size": 8, "shuffle": True, "seed": 1, "num_workers": 2, "on_error": "replace", "output": "dict",
    "backend": "images_cpu",
}  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The requests that processes are asked."""
    yield from noted_requests(IMPORTS, monkeypatch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_folder(tmp_path_factory.mktemp("images") / "folder", num=NUM, size=(40, 48))
    some = sorted(path.rglob("*.jpg"))
    some[7].write_bytes(some[7].read_bytes()[:300])
    some[8].write_bytes(b"no image")
    return path


@pytest.fixture(scope="module")
def shards(folder: Path) -> Path:
    convert(ConvertOptions(folder, folder.parent / "shards", to="webdataset", on_error=OnError.SKIP))
    return folder.parent / "shards"


def batches(path: Path, monkeypatch: pytest.MonkeyPatch, where: str, **options: Any) -> list[dict[str, torch.Tensor]]:
    monkeypatch.setenv("DATAPIPE_WORKERS", where)
    loader = dp.DataLoader(path, **{**ARGUMENTS, "num_workers": 3, **options})
    return [batch for _ in range(2) for batch in loader]


@pytest.mark.nightly
@pytest.mark.parametrize("further", [[], [T.ToDtype(torch.float32, scale=True), T.Normalize((0.5,) * 3, (0.2,) * 3)]])
def test_batches_are_those_of_threads(
    folder: Path, further: list[Any], monkeypatch: pytest.MonkeyPatch, asked: list[Any]
) -> None:
    for on_error in ("skip", "replace"):
        options: dict[str, Any] = {"transform": [*RECIPE, *further], "on_error": on_error}
        expected = batches(folder, monkeypatch, "threads", **options)
        assert not asked
        assert equal(batches(folder, monkeypatch, "processes", **options), expected)
        assert asked
        asked.clear()


def test_shards_are_read_as_threads_read_them(shards: Path, monkeypatch: pytest.MonkeyPatch, asked: list[Any]) -> None:
    expected = batches(shards, monkeypatch, "threads")
    assert equal(batches(shards, monkeypatch, "processes"), expected)
    assert asked


def test_a_process_that_is_killed_is_done_without(
    folder: Path, monkeypatch: pytest.MonkeyPatch, asked: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    expected = batches(folder, monkeypatch, "threads")
    begun = []
    make = WorkerProcess.__init__

    def noted(worker: WorkerProcess, *arguments: Any) -> None:
        make(worker, *arguments)
        begun.append(worker)

    monkeypatch.setattr(WorkerProcess, "__init__", noted)
    monkeypatch.setenv("DATAPIPE_WORKERS", "processes")
    loader = dp.DataLoader(folder, **ARGUMENTS)
    iterator = iter(loader)
    found = [next(iterator)]
    for worker in begun:
        worker._connection.shutdown(socket.SHUT_RDWR)  # as if it were killed
    found += list(iterator) + list(loader)
    begun.clear()
    assert equal(found, expected)
    assert "made by a thread from now on" in caplog.text


def test_errors_are_those_of_threads(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[Any]) -> None:
    copied = shutil.copytree(shards, tmp_path / "shards")
    loader = dp.DataLoader(copied, batch_size=4, num_workers=2, transform=RECIPE, on_error="skip")
    next(iter(loader))
    for shard in copied.glob("*.tar"):
        shard.unlink()
    other = dp.DataLoader(copied, batch_size=4, num_workers=2, transform=RECIPE, on_error="skip")
    with pytest.raises(MissingDataError, match=r"is missing"):
        list(other)
    assert asked


def test_a_forked_child_has_threads(folder: Path, monkeypatch: pytest.MonkeyPatch, asked: list[Any]) -> None:
    expected = batches(folder, monkeypatch, "threads")
    monkeypatch.setenv("DATAPIPE_WORKERS", "processes")
    loader = dp.DataLoader(folder, **ARGUMENTS)
    first = list(loader)

    def child() -> None:
        os._exit(0 if equal(list(loader), expected[len(first) :]) else 1)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert equal(first + list(loader), expected)


def test_parent_and_children_make_batches_at_the_same_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch, asked: list[Any]
) -> None:
    """Each in memory of its own; what the child does to a batch that it inherits is its own."""
    expected = batches(folder, monkeypatch, "threads")
    monkeypatch.setenv("DATAPIPE_WORKERS", "processes")
    loader = dp.DataLoader(folder, **ARGUMENTS)
    held = list(loader)

    def child() -> None:
        for batch in held:
            batch["image"].zero_()
        os._exit(0 if equal(list(loader), expected[len(held) :]) else 1)

    children = [multiprocessing.get_context("fork").Process(target=child) for _ in range(2)]
    for process in children:
        process.start()
    after = list(loader)
    for process in children:
        process.join(60)
    assert [process.exitcode for process in children] == [0, 0]
    assert equal(held + after, expected)


def test_relative_paths_follow_the_current_directory(shards: Path, monkeypatch: pytest.MonkeyPatch, asked: list[Any]) -> None:
    expected = batches(shards, monkeypatch, "threads")
    monkeypatch.chdir(shards.parent)
    assert equal(batches(Path(shards.name), monkeypatch, "processes"), expected)
    assert asked


class Darker:
    """An operation of a user's own, which datapipe knows by its methods."""

    output_dtype = torch.uint8

    def draw(self, draws: Any, operation: int) -> None:
        pass

    def apply(self, block: torch.Tensor, drawn: Any, out: torch.Tensor) -> None:
        out.copy_(block // SHADE)


SHADE = 2


def test_settings_of_pillow_hold(folder: Path, monkeypatch: pytest.MonkeyPatch, asked: list[Any]) -> None:
    monkeypatch.setattr("PIL.ImageFile.LOAD_TRUNCATED_IMAGES", True)
    batches(folder, monkeypatch, "processes")
    assert not asked


def test_only_what_is_datapipe_s_is_sent() -> None:
    assert can_be_sent(Recipe.of(RECIPE))
    assert can_be_sent(Recipe.of([*RECIPE, T.ToDtype(torch.float32, scale=True), T.RandomApply([T.ColorJitter(0.2)], p=0.5)]))
    assert not can_be_sent(Recipe.of([*RECIPE, equal]))
    assert not can_be_sent(dataclasses.replace(Recipe.of(RECIPE), pixels=((0, Darker()),)))  # type: ignore[arg-type]


def test_what_has_the_user_s_code_or_a_cache_stays_with_threads(folder: Path, asked: list[Any]) -> None:
    arguments: dict[str, Any] = {"batch_size": 8, "num_workers": 2, "on_error": "skip"}
    list(dp.DataLoader(folder, transform=[*RECIPE, lambda image: torch.zeros(3)], **arguments))
    list(dp.DataLoader(dp.Images(folder, cache="ram"), transform=RECIPE, **arguments))
    assert not asked
    loader = dp.DataLoader(folder, transform=RECIPE, **arguments)
    list(loader)
    assert asked
    assert "2 threads, each with a process" in str(dp.explain(loader))


@pytest.mark.gpu
def test_processes_take_none_of_the_gpu_s_memory(folder: Path, asked: list[Any]) -> None:
    loader = dp.DataLoader(folder, **{**ARGUMENTS, "num_workers": 8, "device": "cuda"})
    torch.zeros(1, device="cuda")
    free, _ = torch.cuda.mem_get_info()
    list(loader)
    assert asked
    assert free - torch.cuda.mem_get_info()[0] < 300e6, "a context alone takes half a gigabyte"
