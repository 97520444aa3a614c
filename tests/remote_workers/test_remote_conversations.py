"""Images of conversations that other machines place: those of threads, for every processor, also where one is bad."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from batches import Batches, equal
from conversation_sets import picture, words_model, write_set
from decoders import Decoder

import datapipe as dp
from datapipe.errors import FormatError
from datapipe.kinds.conversations.placing import Placer
from datapipe.kinds.conversations.served import PROCESSORS, PlacingRecipe, _open, packed_recipe
from datapipe.processors.fixed import FixedProcessor
from datapipe.processors.patches import PatchProcessor
from datapipe.processors.pixels import Pixels
from datapipe.processors.processor import Processor
from datapipe.processors.tiles import CanvasProcessor, SplitProcessor
from datapipe.remote_workers.wire import unpacked

PIXELS = Pixels("bicubic", (0.5, 0.4, 0.3), (0.2, 0.25, 0.3), 1 / 255)
MADE: list[Processor] = [
    FixedProcessor(28, 28, 30, PIXELS, 4, 7, "token_type_ids"),
    FixedProcessor(28, 42, None, PIXELS, 4, 7),
    PatchProcessor(14, 2, 2, 28 * 28, 28 * 28 * 9, PIXELS, 4),
    CanvasProcessor(28, 1, 6, PIXELS, 4, 7, (8, 9)),
    SplitProcessor(56, 28, PIXELS, 4, 7, 8, 9, (((1,), (2,)), ((3,), (4,))), (5,), (5, 5)),
]


@pytest.fixture
def made_here(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of conversations whose images this process decodes."""
    made, place = [], Placer.place

    def noted(self: Placer, out: torch.Tensor, extents: Any, images: Any) -> Any:
        made.append(len(extents))
        return place(self, out, extents, images)

    monkeypatch.setattr(Placer, "place", noted)
    return made


def conversations(path: Path, bad: bool = False) -> Path:
    """Documents of words and none, one or several pictures."""
    sizes = [(28, 40), (100, 30), (64, 64), (33, 90)]
    documents: list[list[int | bytes]] = []
    for number in range(40):
        pictures = [picture(*sizes[(number + place) % 4], seed=number + place) for place in range(number % 4)]
        documents.append([number, *pictures, number + 1])
    if bad:
        documents[6] = [6, picture(1, 300), 7]  # which the model refuses
    return write_set(path, documents, words_model(path.with_name(f"{path.name}-model")), shard_nbytes=60_000)


def batches(path: Path, **options: Any) -> Batches:
    data = dp.Conversations(path, 64, words_model(path.with_name(f"{path.name}-model")))
    loader = dp.DataLoader(data, 2, **{"shuffle": True, "seed": 1, "num_workers": 2, "on_error": "skip", **options})
    return [batch for _ in range(2) for batch in loader]


def test_batches_are_those_of_threads(decoder: Decoder, made_here: list[int]) -> None:
    path = conversations(decoder.top / "conversations")
    expected = batches(path)
    assert len(expected) > 4
    made_here.clear()
    assert equal(batches(path, num_workers=0, workers=decoder.workers()), expected)
    assert sum(made_here) < 30, "those without images"
    assert equal(batches(path, num_workers=2, workers=decoder.workers()), expected)


def test_bad_conversations_are_bad_wherever_they_are_tried(
    decoder: Decoder, made_here: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    path = conversations(decoder.top / "bad-conversations", bad=True)
    expected = batches(path)
    told = caplog.text.count("bad sample")
    assert told == 2
    assert equal(batches(path, num_workers=0, workers=decoder.workers()), expected)
    assert caplog.text.count("bad sample") == 2 * told


def test_explain_names_the_workers(decoder: Decoder) -> None:
    path = conversations(decoder.top / "explained")
    data = dp.Conversations(path, 64, words_model(path.with_name("explained-model")))
    text = str(dp.explain(dp.DataLoader(data, 2, workers=decoder.workers())))
    assert f"elsewhere 127.0.0.1:{decoder.port} (1 core): 2 pieces at once" in text


@pytest.mark.parametrize("processor", MADE, ids=lambda one: type(one).__name__)
def test_processors_come_out_equal(processor: Processor) -> None:
    found, placer = _open(unpacked(packed_recipe(processor, scales=True), PlacingRecipe), None)
    assert found == processor
    assert found.name == processor.name
    assert isinstance(placer, Placer)


def test_all_processors_are_tried() -> None:
    assert {type(one).__name__ for one in MADE} == {*PROCESSORS}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("Processor", {}), ("os.system", {}), ("FixedProcessor", {}), ("FixedProcessor", {"height": "x"}),
        ("PatchProcessor", {**msgspec.to_builtins(MADE[2]), "patch": 1.5}),
        ("PatchProcessor", {**msgspec.to_builtins(MADE[2]), "pixels": {"filter": "x"}}),
    ],
)  # fmt: skip
def test_what_names_no_processor_is_refused(name: str, values: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        _open(PlacingRecipe(name, values, scales=False), None)
