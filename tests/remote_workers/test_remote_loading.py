"""Loaders whose images other machines decode: the same batches, whatever becomes of those machines."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
import torch
from batches import Batches, equal
from decoders import TOKEN, Decoder, images_made_here, wait_until
from fixtures import make_folder, mostly_nightly

import datapipe as dp
from converters import ConvertOptions, convert
from converters.options import OnError
from datapipe import transforms as T
from datapipe.errors import BackendError, DependencyError, MissingDataError, OptionError
from datapipe.kinds.images.served import ImageAnswer
from datapipe.remote_workers import fleet as fleets
from datapipe.remote_workers.wire import HELLO, Hello, Look, Seen, packed, unpacked

NUM = 120
CUT = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]
RECIPES: dict[str, list[Any]] = {
    "bytes": CUT,
    "floats": [*CUT, T.ColorJitter(0.4), T.ToDtype(torch.float32, scale=True), T.Normalize((0.5,) * 3, (0.2,) * 3)],
    "mixed": [T.Resize(28), T.CenterCrop(24), T.RandAugment(), T.ToDtype(torch.float32, scale=True), T.MixUp(num_classes=3)],
}
ARGUMENTS: dict[str, Any] = {
    "batch_size": 8, "shuffle": True, "seed": 1, "num_workers": 2, "on_error": "replace", "output": "dict", "transform": CUT,
}  # fmt: skip


@pytest.fixture(scope="module")
def top(decoder: Decoder) -> Path:
    return decoder.top / "remote"


@pytest.fixture(scope="module")
def folder(top: Path) -> Path:
    path = make_folder(top / "folder", num=NUM, size=(40, 48))
    some = sorted(path.rglob("*.jpg"))
    some[7].write_bytes(some[7].read_bytes()[:300])
    some[8].write_bytes(b"no image")
    return path


@pytest.fixture(scope="module")
def shards(folder: Path) -> Path:
    convert(ConvertOptions(folder, folder.parent / "shards", to="webdataset", on_error=OnError.SKIP))
    return folder.parent / "shards"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "_AGAIN_S", 0.05)


@pytest.fixture
def made_here(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows that this process decodes."""
    return images_made_here(monkeypatch)


def batches(path: Path, **options: Any) -> Batches:
    loader = dp.DataLoader(path, **{**ARGUMENTS, **options})
    return [batch for _ in range(2) for batch in loader]


def both(*ports: int) -> dp.Workers:
    return dp.Workers("grpc://" + ",".join(f"127.0.0.1:{port}" for port in ports), token=TOKEN)


@pytest.mark.parametrize("name", RECIPES)
def test_batches_are_those_of_threads(folder: Path, decoder: Decoder, made_here: list[int], name: str) -> None:
    """With bad samples, which are tried here too, and replaced."""
    options: dict[str, Any] = {"transform": RECIPES[name]}
    expected = batches(folder, **options)
    made_here.clear()
    assert equal(batches(folder, **options, num_workers=0, workers=decoder.workers()), expected)
    assert sum(made_here) <= 8, "bad samples and those in their place"
    assert equal(batches(folder, **options, num_workers=3, workers=decoder.workers()), expected)


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_shards_are_read_there(shards: Path, decoder: Decoder, made_here: list[int], on_error: str) -> None:
    expected = batches(shards, on_error=on_error)
    made_here.clear()
    assert equal(batches(shards, on_error=on_error, num_workers=0, workers=decoder.workers()), expected)
    assert not made_here


def test_scaled_decoding_is_done_there(top: Path, decoder: Decoder, made_here: list[int]) -> None:
    path = make_folder(top / "large", num=12, size=(400, 480))
    data = dp.Images(path, decode="scaled")
    expected = batches(data)
    made_here.clear()
    assert equal(batches(data, num_workers=0, workers=decoder.workers()), expected)
    assert not made_here


def test_relative_paths_mean_the_same_there(top: Path, folder: Path, decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = batches(folder)
    monkeypatch.chdir(top)
    assert equal(batches(Path("folder"), num_workers=0, workers=decoder.workers()), expected)


def test_explain_names_the_workers(folder: Path, decoder: Decoder) -> None:
    text = str(dp.explain(dp.DataLoader(folder, **ARGUMENTS, workers=decoder.workers())))
    assert f"elsewhere 127.0.0.1:{decoder.port} (1 core): 2 blocks at once" in text
    assert "workers on other machines decode with this one" in text
    assert TOKEN not in text + repr(decoder.workers())


def test_worker_init_fn_is_called_for_threads_of_this_machine(folder: Path, decoder: Decoder) -> None:
    called: list[int] = []
    list(dp.DataLoader(folder, **ARGUMENTS, workers=decoder.workers(), worker_init_fn=called.append))
    assert sorted(called) == [0, 1]


def test_a_state_resumes_with_and_without_workers(folder: Path, decoder: Decoder) -> None:
    expected = batches(folder)
    first = dp.DataLoader(folder, **ARGUMENTS, workers=decoder.workers())
    iterator = iter(first)
    found = [next(iterator) for _ in range(4)]
    state = first.state_dict()
    del iterator
    second = dp.DataLoader(folder, **ARGUMENTS)
    second.load_state_dict(state)
    found += [*second, *second]
    assert equal(found, expected)


# -- faults ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", mostly_nightly(("killed", "stopped", "terminated"), "killed"))
def test_a_worker_that_goes_loses_nothing_and_is_used_again(
    top: Path, folder: Path, how: str, made_here: list[int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleets, "_LEAST_S", 1.0)
    expected = batches(folder)
    service = Decoder(top)
    loader = dp.DataLoader(folder, **{**ARGUMENTS, "num_workers": 0}, workers=service.workers())
    iterator = iter(loader)
    found = [next(iterator) for _ in range(2)]
    made_here.clear()
    if how == "stopped":
        service.process.send_signal(signal.SIGSTOP)
    else:
        service.stop(signal.SIGKILL if how == "killed" else signal.SIGTERM)
    found += list(iterator)
    assert sum(made_here) > NUM // 3, "decoded here"
    assert caplog.text.count("no worker is left: threads make the batches until one answers again") == 1
    if how == "stopped":
        service.process.send_signal(signal.SIGCONT)
    else:
        service = Decoder(top, port=service.port)
    (worker,) = loader._passes.kind.elsewhere.fleet.workers
    wait_until(lambda: worker.is_here, what="the worker is not found again")
    made_here.clear()
    found += list(loader)
    assert sum(made_here) <= 8, "decoded there"
    assert equal(found, expected)
    assert service.stop(signal.SIGTERM) == 0


@pytest.mark.nightly
def test_of_two_workers_one_makes_what_the_other_cannot(top: Path, folder: Path, decoder: Decoder, made_here: list[int]) -> None:
    expected = batches(folder)
    other = Decoder(top)
    loader = dp.DataLoader(folder, **{**ARGUMENTS, "num_workers": 0}, workers=both(other.port, decoder.port))
    iterator = iter(loader)
    found = [next(iterator)]
    made_here.clear()
    other.stop()
    found += [*iterator, *loader]
    assert sum(made_here) <= 8
    assert equal(found, expected)


def test_a_process_of_a_worker_that_is_killed_is_replaced(
    folder: Path, decoder: Decoder, made_here: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    expected = batches(folder)
    loader = dp.DataLoader(folder, **{**ARGUMENTS, "num_workers": 0}, workers=decoder.workers())
    first = list(loader)
    made_here.clear()
    for pid in decoder.processes()[1:]:
        os.kill(pid, signal.SIGKILL)
    assert equal([*first, *loader], expected)
    assert 0 < sum(made_here) < NUM, "the blocks of these processes are made here, and others by new ones"
    assert "a process of the service ended" in caplog.text


@pytest.mark.nightly
def test_a_worker_that_is_late_at_the_start_is_used_when_it_answers(
    top: Path, folder: Path, decoder: Decoder, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    loader = dp.DataLoader(folder, **ARGUMENTS, workers=both(port, decoder.port))
    expected = batches(folder)
    found = list(loader)
    assert f"the worker at 127.0.0.1:{port} does not answer" in caplog.text
    late = Decoder(top, port=port)
    worker, _ = loader._passes.kind.elsewhere.fleet.workers
    wait_until(lambda: worker.is_here, what="the worker is not found")
    found += list(loader)
    assert worker.num_pieces
    assert equal(found, expected)
    late.stop()


def test_what_a_worker_cannot_read_is_read_here(
    tmp_path: Path, decoder: Decoder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its samples are no bad ones. As if other files had been looked at when the loader began."""
    monkeypatch.setattr(fleets.Fleet, "_look", lambda *_: None)
    path = make_folder(tmp_path / "elsewhere", num=9, size=(40, 48))
    assert equal(batches(path, num_workers=0, workers=decoder.workers()), batches(path))
    assert caplog.text.count("lies below none of the roots that this worker serves; what it cannot do is made here") == 1


class Liar(flight.FlightServerBase):  # type: ignore[misc]
    """A worker that greets well, and answers as it likes."""

    def __init__(self, rows: int, width: int, answer: bytes) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._rows, self._width, self._answer = rows, width, answer

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        if action.type == HELLO:
            return [packed(Hello("liar", 1, 1 << 40, [], fleets.versions(fleets.DECODING)))]
        look = unpacked(action.body.to_pybytes(), Look)
        return [packed(Seen([os.stat(path).st_size for path in look.paths]))]

    def do_get(self, context: Any, ticket: Any) -> Any:
        column = pa.array([bytes(self._width)] * self._rows, pa.binary(self._width))
        schema = pa.schema([("rows", column.type)])
        return flight.GeneratorStream(schema, iter([(pa.record_batch([column], schema=schema), self._answer)]))


@pytest.mark.parametrize(
    ("rows", "width", "answer"),
    [
        (3, 24 * 24 * 3, b""),
        (8, 7, b""),
        (8, 24 * 24 * 3, b""),
        (8, 24 * 24 * 3, b"\xc0"),
        (8, 24 * 24 * 3, packed(ImageAnswer([], {99: (1, 1)}, 0, 0, 0, 0))),
    ],
)
def test_an_answer_that_is_none_is_not_used(
    folder: Path, rows: int, width: int, answer: bytes, made_here: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleets, "_MOST_SEATS", 2)
    expected = batches(folder)
    with Liar(rows, width, answer) as liar:
        workers = dp.Workers(f"grpc://127.0.0.1:{liar.port}", token=TOKEN)
        made_here.clear()
        assert equal(batches(folder, num_workers=0, workers=workers), expected)
    assert sum(made_here) >= 2 * NUM


@pytest.mark.nightly
def test_a_worker_that_comes_back_without_the_data_is_left_out(
    top: Path, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = batches(folder)
    service = Decoder(top)
    loader = dp.DataLoader(folder, **ARGUMENTS, workers=service.workers())
    found = list(loader)
    service.stop()
    found += list(loader)
    service = Decoder(tmp_path, port=service.port)
    wait_until(lambda: "none of the roots" in caplog.text, what="the worker is not asked again")
    wait_until(lambda: "it is left out" in caplog.text, what="the worker is not left out")
    assert equal(found, expected)
    service.stop()


@pytest.mark.nightly
def test_twenty_kills_lose_and_repeat_nothing(top: Path, folder: Path, decoder: Decoder) -> None:
    """Of processes, and every fifth of a whole service beside another."""
    expected = batches(folder, batch_size=4)
    for number in range(20):
        is_whole = number % 5 == 0
        other = Decoder(top) if is_whole else decoder
        workers = both(other.port, decoder.port) if is_whole else decoder.workers()
        loader = dp.DataLoader(folder, **{**ARGUMENTS, "batch_size": 4, "num_workers": number % 3}, workers=workers)

        def kill(other: Decoder = other, is_whole: bool = is_whole) -> None:
            if is_whole:
                other.stop()
            else:
                for pid in other.processes()[1:]:
                    os.kill(pid, signal.SIGKILL)

        killing = threading.Timer(0.02 * number, kill)
        found = []
        killing.start()
        for batch in (batch for _ in range(2) for batch in loader):
            found.append(batch)
            time.sleep(0.005)
        killing.join()
        assert equal(found, expected)


# -- at the start ---------------------------------------------------------------------------------------


def test_nobody_answers(folder: Path) -> None:
    loader = dp.DataLoader(folder, **ARGUMENTS, workers=dp.Workers("grpc://127.0.0.1:1", token=TOKEN))
    with pytest.raises(
        BackendError, match=r"workers: the worker at 127\.0\.0\.1:1 does not answer .*; start `datapipe serve` there"
    ):
        next(iter(loader))


def test_another_token_is_refused(folder: Path, decoder: Decoder) -> None:
    loader = dp.DataLoader(folder, **ARGUMENTS, workers=decoder.workers(token="another-long-token"))
    with pytest.raises(OptionError, match=r"the worker at 127\.0\.0\.1:\d+ refuses the token; pass the one"):
        next(iter(loader))


def test_other_versions_are_refused_by_name(folder: Path, decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "_versions_here", lambda: {**fleets.versions(fleets.DECODING), "pillow": "1.2.3"})
    loader = dp.DataLoader(folder, **ARGUMENTS, workers=decoder.workers())
    with pytest.raises(DependencyError, match=r"the worker at \S+ has pillow \S+ instead of 1\.2\.3; install the same versions"):
        next(iter(loader))


def test_data_that_a_worker_does_not_serve_is_named(tmp_path: Path, decoder: Decoder) -> None:
    path = make_folder(tmp_path / "elsewhere", num=4, size=(40, 48))
    loader = dp.DataLoader(path, **ARGUMENTS, workers=decoder.workers())
    with pytest.raises(
        OptionError, match=r"\.jpg: the worker at \S+ cannot read it \(.*none of the roots.*\); it must see the same"
    ):
        next(iter(loader))


def test_data_that_differs_there_is_named(top: Path, folder: Path, decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this machine had mounted another disk at the same place."""
    stat, file = os.stat, str(next(folder.rglob("*.jpg")))
    monkeypatch.setattr(fleets.os, "stat", lambda path: os.stat_result((*stat(path)[:6], 1, *stat(path)[7:10])))
    with pytest.raises(OptionError, match=r"has 1 bytes here, and [\d,]+ at the worker at "):
        fleets.Fleet(decoder.workers(), [file])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "dali"}, "decodes here, and workers= elsewhere"),
        ({"transform": [T.Resize(24)]}, "images would differ in size"),
        ({"transform": [*CUT, lambda image: image]}, "it runs here, sample by sample"),
        ({"workers": "grpc://127.0.0.1:1"}, r"workers is 'grpc://127.0.0.1:1'; pass datapipe.Workers\("),
    ],
)
def test_what_workers_do_not_make_is_refused(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        dp.DataLoader(folder, **{**ARGUMENTS, "workers": dp.Workers("grpc://127.0.0.1:1", token=TOKEN), **options})


def test_a_cache_of_images_here_is_refused(folder: Path) -> None:
    data = dp.Images(folder, cache="ram")
    with pytest.raises(OptionError, match="a cache keeps decoded images here"):
        dp.DataLoader(data, **ARGUMENTS, workers=dp.Workers("grpc://127.0.0.1:1", token=TOKEN))


def test_a_missing_certificate_is_named(folder: Path, tmp_path: Path) -> None:
    workers = dp.Workers("grpc+tls://decoder:1", token=TOKEN, certificate=tmp_path / "none.pem")
    with pytest.raises(MissingDataError, match=r"none\.pem: is missing"):
        next(iter(dp.DataLoader(folder, **ARGUMENTS, workers=workers)))
