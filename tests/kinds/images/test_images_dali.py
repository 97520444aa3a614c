"""A DALI pipeline gives the right pixels in any batch, after failures, and to every holder of its outputs."""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fixtures import encode, jpeg, picture

import datapipe as dp
from datapipe import transforms as T
from datapipe.codecs.decode import checked_header
from datapipe.kinds.images.dali.gate import CutForm, can_decode, choose_cut_form
from datapipe.kinds.images.dali.installation import installation
from datapipe.kinds.images.dali.pipeline import DaliPipeline, RunError
from datapipe.kinds.images.dali.settings import GraphOptions
from datapipe.order.draws import Draws
from datapipe.testing.loaders.processes import in_forked_child
from datapipe.transforms import Recipe
from datapipe.transforms.protocols import Cuts

pytest.importorskip("nvidia.dali", reason="DALI is not installed")

CROP = Recipe.of([T.RandomResizedCrop(24), T.RandomHorizontalFlip()])
PADDED = Recipe.of([T.Resize((30, 28)), T.RandomCrop(24, padding=9, fill=(9, 80, 200)), T.RandomVerticalFlip()])


def undecodable() -> bytes:
    """A JPEG of a good header, and of tables that make no sense."""
    data = bytearray(encode(picture(0, 200, 200), "JPEG"))
    table = data.find(b"\xff\xc4") + 5
    data[table : table + 10] = b"\xff" * 10
    assert can_decode(bytes(data), checked_header(bytes(data)))
    return bytes(data)


def pipeline_of(recipe: Recipe = CROP, *, max_batch_size: int = 8, decodes_regions: bool = True) -> DaliPipeline:
    installation()
    height, width = recipe.check_equal_sizes()
    return DaliPipeline(GraphOptions(height, width, max_batch_size, None, choose_cut_form(recipe, None), decodes_regions, 2, 0.0))


def batch_of(recipe: Recipe, first: int, num: int = 8, *, bad: tuple[int, ...] = ()) -> tuple[list[bytes], Cuts]:
    """Samples of that number and the following ones, of sizes that differ; rows `bad` do not decode."""
    sizes = np.array([(40 + number % 7, 48 - number % 5) for number in range(first, first + num)])
    data = [jpeg(first + row, *size) for row, size in enumerate(sizes.tolist())]
    (cuts,) = recipe.draw_cuts(Draws(0, 0, np.arange(first, first + num)), sizes)
    for row in bad:
        data[row] = undecodable()
    return data, cuts


def pixels_of(pipeline: DaliPipeline, data: list[bytes], cuts: Cuts) -> torch.Tensor:
    return pipeline.run(data, cuts, None)[0]


@pytest.mark.parametrize("recipe", [CROP, PADDED], ids=["crop", "padded"])
def test_a_sample_is_the_same_in_any_batch(recipe: Recipe) -> None:
    pipeline = pipeline_of(recipe)
    data, cuts = batch_of(recipe, 0)
    together = pixels_of(pipeline, data, cuts)
    for rows in ([0], [7, 2], [3, 3, 3], list(range(7, -1, -1))):
        found = pixels_of(pipeline, [data[row] for row in rows], cuts[np.array(rows)])
        assert torch.equal(found, together[rows])


@pytest.mark.parametrize("recipe", [CROP, PADDED], ids=["crop", "padded"])
def test_decoding_a_region_gives_the_pixels_of_the_whole(recipe: Recipe) -> None:
    data, cuts = batch_of(recipe, 0)
    assert torch.equal(
        pixels_of(pipeline_of(recipe), data, cuts), pixels_of(pipeline_of(recipe, decodes_regions=False), data, cuts)
    )


@pytest.mark.daily(4)
@pytest.mark.parametrize("recipe", [CROP, PADDED], ids=["crop", "padded"])
@pytest.mark.parametrize("bad", [(0,), (7,), (3, 4), tuple(range(8))], ids=str)
@pytest.mark.parametrize("forgiven", [True, False])
def test_after_failures_the_next_run_is_right(recipe: Recipe, bad: tuple[int, ...], forgiven: bool) -> None:
    """However many there were in a row: no input of a run that failed comes out of a later one."""
    pipeline = pipeline_of(recipe)
    expected = [pixels_of(pipeline, *batch_of(recipe, 8 * number)).clone() for number in range(3)]
    for num_failures in (1, 2, 3, 1):
        for number in range(num_failures):
            with pytest.raises(RunError, match=r"^Failed to decode sample #\d") as caught:
                pipeline.run(*batch_of(recipe, 8 * number, bad=bad), None)
            assert caught.value.row == bad[0]
            if forgiven:
                pipeline.forgive()
        for number in range(3):
            assert torch.equal(pixels_of(pipeline, *batch_of(recipe, 8 * number)), expected[number])


def count_builds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The largest batch of each pipeline that is built from now on."""
    from datapipe.kinds.images.dali import graph, pipeline

    built: list[int] = []

    def build(options: GraphOptions) -> Any:
        built.append(options.max_batch_size)
        return graph.build_graph(options), "cpu"

    monkeypatch.setattr(pipeline, "_graph_builder", lambda: build)
    return built


def test_two_failures_in_a_row_build_it_anew_unless_the_samples_were_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    built = count_builds(monkeypatch)
    for forgive, num_built in ((True, 1), (False, 4)):
        built.clear()
        pipeline = pipeline_of()
        for _ in range(4):
            with pytest.raises(RunError):
                pipeline.run(*batch_of(CROP, 0, bad=(2,)), None)
            if forgive:
                pipeline.forgive()
        pixels_of(pipeline, *batch_of(CROP, 0))
        assert len(built) == num_built


def test_a_batch_larger_than_all_before(monkeypatch: pytest.MonkeyPatch) -> None:
    built = count_builds(monkeypatch)
    pipeline = pipeline_of(max_batch_size=2)
    data, cuts = batch_of(CROP, 0)
    pairs = [pixels_of(pipeline, data[row : row + 2], cuts[np.arange(row, row + 2)]) for row in (0, 2, 4, 6)]
    for _ in range(2):
        assert torch.equal(pixels_of(pipeline, data, cuts), torch.cat(pairs))
    assert built == [2, 8]


@pytest.mark.parametrize("error", [RuntimeError, TypeError, ValueError, IndexError, StopIteration, MemoryError])
@pytest.mark.parametrize("step", ["feed_input", "schedule_run", "outputs"])
def test_whatever_dali_raises_is_a_failed_run(error: type[Exception], step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = pipeline_of()
    data, cuts = batch_of(CROP, 0)
    expected = pixels_of(pipeline, data, cuts).clone()
    fail_once(monkeypatch, pipeline, step, error("as an operator would"))
    with pytest.raises(RunError, match="as an operator would") as caught:
        pipeline.run(*batch_of(CROP, 20), None)
    assert caught.value.row is None
    if step != "feed_input":  # what was under way when an error was made up is still to come; a real one ends the run
        monkeypatch.undo()
        pipeline._pipeline = None
    assert torch.equal(pixels_of(pipeline, data, cuts), expected)


@pytest.mark.parametrize("step", ["feed_input", "schedule_run", "outputs"])
@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
def test_ctrl_c_in_the_middle_of_a_run_shifts_nothing(step: str, is_late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With num_workers=0 it is the main thread that runs DALI."""
    pipeline = pipeline_of(PADDED)
    data, cuts = batch_of(PADDED, 0)
    expected = pixels_of(pipeline, data, cuts).clone()
    fail_once(monkeypatch, pipeline, step, KeyboardInterrupt(), is_late=is_late)
    with pytest.raises(KeyboardInterrupt):
        pipeline.run(*batch_of(PADDED, 20), None)
    for _ in range(3):
        assert torch.equal(pixels_of(pipeline, data, cuts), expected)


def fail_once(
    monkeypatch: pytest.MonkeyPatch, pipeline: DaliPipeline, step: str, error: BaseException, *, is_late: bool = False
) -> None:
    """Let DALI's method `step` raise at its second call from now on, before or after its work."""
    real, calls = getattr(pipeline._pipeline, step), itertools.count(1 if step == "feed_input" else 2)

    def once(*args: Any, **kwargs: Any) -> Any:
        is_due = next(calls) == 2
        if is_due and not is_late:
            raise error
        result = real(*args, **kwargs)
        if is_due:
            raise error
        return result

    monkeypatch.setattr(pipeline._pipeline, step, once)


class OutputsOfGpu:
    """What a pipeline gives out on a GPU, over the pixels of a real run on the CPU."""

    def __init__(self, outputs: Any, events: list[str]) -> None:
        self._pixels = np.array(outputs.as_tensor())
        self._events = events

    def as_tensor(self) -> OutputsOfGpu:
        return self

    def shape(self) -> list[int]:
        return list(self._pixels.shape)

    def copy_to_external(self, ptr: ctypes.c_void_p, cuda_stream: ctypes.c_void_p, non_blocking: bool = False) -> None:
        assert ptr.value is not None
        ctypes.memmove(ptr.value, self._pixels.ctypes.data, self._pixels.nbytes)
        self._events.append(f"copy on {cuda_stream.value}" + " and wait" * (not non_blocking))

    def __dlpack__(self, **_: Any) -> Any:
        raise AssertionError("its release waits for the whole device")


@pytest.mark.parametrize(("handle", "copied_on"), [(77, 77), (0, 1)], ids=["a stream", "the default stream"])
def test_pixels_leave_a_gpu_by_a_copy_that_nobody_waits_for(handle: int, copied_on: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline, events = pipeline_of(), list[str]()
    data, cuts = batch_of(CROP, 0)
    expected = pixels_of(pipeline, data, cuts).clone()
    on_cpu = pipeline._pipeline.outputs
    stream: Any = SimpleNamespace(device=torch.device("cpu"), cuda_stream=handle, synchronize=lambda: events.append("wait"))

    def outputs(cuda_stream: Any) -> tuple[OutputsOfGpu]:
        assert cuda_stream is stream
        (images,) = on_cpu()
        return (OutputsOfGpu(images, events),)

    @contextmanager
    def within(one: Any) -> Iterator[None]:
        events.append("enter")
        assert one in (stream, stream.device)
        yield
        events.append("leave")

    monkeypatch.setattr(pipeline._pipeline, "outputs", outputs)
    monkeypatch.setattr("torch.cuda.stream", within)
    monkeypatch.setattr("torch.cuda.device", within)
    pixels, kept = pipeline.run(data, cuts, stream)
    assert torch.equal(pixels, expected)
    assert events == ["enter", "enter", "leave", "leave", f"copy on {copied_on}"]
    assert any(isinstance(one, OutputsOfGpu) for one in kept), "DALI's memory is kept until the copy is over"  # type: ignore[attr-defined]


def test_a_closed_pipeline_runs_no_more() -> None:
    pipeline = pipeline_of()
    pixels_of(pipeline, *batch_of(CROP, 0))
    pipeline.close()
    with pytest.raises(dp.errors.BackendError, match="shut down with the interpreter"):
        pipeline.run(*batch_of(CROP, 0), None)


@pytest.mark.nightly
def test_a_fork_waits_for_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """DALI's threads enter the interpreter while they run, and CPython 3.11 forks a child then that hangs."""
    pipeline = pipeline_of()
    pixels_of(pipeline, *batch_of(CROP, 0))
    is_running, has_ended = threading.Event(), threading.Event()
    run = DaliPipeline._run

    def slow_run(self: DaliPipeline, *arguments: Any) -> Any:
        is_running.set()
        found = run(self, *arguments)
        time.sleep(0.3)
        has_ended.set()
        return found

    monkeypatch.setattr(DaliPipeline, "_run", slow_run)
    thread = threading.Thread(target=pixels_of, args=(pipeline, *batch_of(CROP, 0)))
    thread.start()
    assert is_running.wait(30)

    def child() -> None:
        assert has_ended.is_set()
        pixels_of(pipeline, *batch_of(CROP, 0))  # by threads of its own

    assert in_forked_child(child) == 0
    thread.join(30)
    pixels_of(pipeline, *batch_of(CROP, 0))  # the parent's goes on


def test_a_graph_that_cannot_be_built_is_said() -> None:
    pipeline = DaliPipeline(GraphOptions(24, 24, 8, 7, CutForm(False, (0, 0, 0)), True, 2, 0.0))  # no machine here has GPU 7
    with pytest.raises(dp.errors.BackendError, match=r"pipeline cannot be built: .*datapipe doctor"):
        pipeline.run(*batch_of(CROP, 0), None)


@pytest.mark.parametrize("decodes_regions", [True, False])
@pytest.mark.parametrize(("device_id", "where"), [(None, "cpu"), (0, "gpu")])
def test_a_graph_says_where_it_decodes(
    device_id: int | None, where: str, decodes_regions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nvidia.dali import Pipeline

    from datapipe.kinds.images.dali.graph import build_graph, decoder_device

    monkeypatch.setattr(Pipeline, "build", Pipeline._build_graph)  # as far as it goes without a GPU
    built = build_graph(GraphOptions(24, 24, 8, device_id, CutForm(False, (0, 0, 0)), decodes_regions, 2, 0.0))
    assert decoder_device(built) == where


def test_a_gpus_decoder_gets_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    from nvidia.dali import Pipeline, fn

    from datapipe.kinds.images.dali.graph import build_graph

    given: list[dict[str, Any]] = []
    decode = fn.decoders.image_slice

    def noted(*inputs: Any, **options: Any) -> Any:
        given.append(options)
        return decode(*inputs, **options)

    monkeypatch.setattr(Pipeline, "build", Pipeline._build_graph)
    monkeypatch.setattr(fn.decoders, "image_slice", noted)
    for device_id in (0, None):
        build_graph(GraphOptions(24, 24, 8, device_id, CutForm(False, (0, 0, 0)), True, 2, 0.35, 250_000))
    on_gpu, on_cpu = given
    assert (on_gpu["hw_decoder_load"], on_gpu["hybrid_huffman_threshold"], on_gpu["affine"]) == (0.35, 250_000, False)
    assert not {"hw_decoder_load", "hybrid_huffman_threshold", "affine"} & on_cpu.keys()


def test_a_pipeline_says_what_it_built() -> None:
    pipeline = pipeline_of()
    assert pipeline.decoder_device is None
    assert pipeline.build() == "cpu"
    built = pipeline._pipeline
    pixels_of(pipeline, *batch_of(CROP, 0))
    assert pipeline._pipeline is built
    assert pipeline.decoder_device == "cpu"


def test_pixels_are_their_holders_alone() -> None:
    """They lie in DALI's memory: it must not use it again while a view of them lives, nor mind what is written there."""
    pipeline = pipeline_of()
    batches = [batch_of(CROP, 8 * number) for number in range(4)]
    kept, copied = [], []
    for turn in range(40):
        pixels = pixels_of(pipeline, *batches[turn % 4])
        if turn % 3 == 0:
            pixels.fill_(turn)
        kept.append(pixels if turn % 2 else pixels[2:5, 3:, 1:7])
        copied.append(kept[-1].clone())
        del pixels
    assert all(torch.equal(view, copy) for view, copy in zip(kept, copied, strict=True))
    expected = pixels_of(pipeline_of(), *batches[1])
    assert torch.equal(kept[1], expected)
    del pipeline
    assert all(torch.equal(view, copy) for view, copy in zip(kept, copied, strict=True)), "it outlives the pipeline"
