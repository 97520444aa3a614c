"""Conversations with images: packed batches against transformers' processor in a collate function; plans, states, ranks.

    python -m benchmarks.conversations              # 10 minutes
    python -m benchmarks.conversations --dry-run    # little of everything: does it run?

Photographs have ImageNet's sizes; one to three of them are in a conversation, and the model is of Qwen2-VL's kind with its usual
limits. Contenders run once per round in fresh processes, in rotated order. Plans and the balance of ranks are those of a million
conversations of which only the sizes are made up, as nothing else is needed for them.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.conversation_contenders import CONTENDERS, FIELDS, LENGTH, STAGES
from benchmarks.ratios import ratio_of, rotated

BARS = {  # what must hold
    "samples/s of packed batches, against transformers in a DataLoader's collate": 3.0,
    "CPU time of an image, transformers' over ours": 1.5,
    "how full rows of 8,192 tokens are": 0.98,
    "conversations planned a second": 500_000,
    "conversations converted a second": 500,
    "efficiency of 64 ranks, language": 0.95,
    "efficiency of 64 ranks, vision": 0.95,
    "bytes of a state": 1000,  # at most
}
RANKS, ACCUMULATE = 64, 4
_SIDES = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}  # pixels of an image, as Qwen2-VL has them


def main() -> None:
    arguments = _parse()
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as name:
        directory = Path(name)
        converted = _make(directory, num_photos=40 if arguments.dry_run else 800, copies=1 if arguments.dry_run else 10)
        rounds: dict[str, list[dict[str, float]]] = {one: [] for one in CONTENDERS}
        for number in range(arguments.rounds):
            for one in rotated(list(CONTENDERS), number):
                found = harness.run_contender(
                    one, ["benchmarks.conversation_contenders", one, str(directory)], limit_s=900,
                    environment={"XDG_CACHE_HOME": str(directory / "cache")},
                )  # fmt: skip
                rounds[one].append(found)
                print(f"round {number + 1}/{arguments.rounds}  {one:<20} {json.dumps(found)}", flush=True)
        planned = _planned(directory, 20_000 if arguments.dry_run else 1_000_000)
        resumed = _resumed(directory)
    result = {
        "settings": {"num_rounds": arguments.rounds, "length": LENGTH, "ranks": RANKS, "accumulate": ACCUMULATE},
        "rounds": rounds,
        "samples_per_s": _medians(rounds, "samples_per_s"),
        "images_per_s": _medians(rounds, "images_per_s"),
        "cpu_ms_per_image": _medians(rounds, "cpu_ms_per_image"),
        "speed": {
            "batches": _ratio(rounds, "datapipe", "transformers", "samples_per_s"),
            "pixels": _ratio(rounds, "transformers pixels", "datapipe pixels", "cpu_ms_per_image"),
        },
        "stages_ms": {one: _medians(rounds, one)["datapipe pixels"] for one in STAGES},
        "pixels_equal": all(one["equal"] == 1 for one in rounds["datapipe pixels"]),
        "planned": planned,
        "converted_per_s": converted,
        "resumed": resumed,
    }
    print("\n".join(as_lines(result)))
    if not arguments.dry_run:
        harness.save("conversations", "benchmarks.conversations", result, results=arguments.results)


def figures(result: dict[str, Any]) -> dict[str, float]:
    """What is measured, by the name of its bar."""
    planned = result["planned"]
    values = [
        result["speed"]["batches"]["ratio"], result["speed"]["pixels"]["ratio"], planned["fill"], planned["per_s"],
        result["converted_per_s"], planned["efficiency"]["language"], planned["efficiency"]["vision"],
        result["resumed"]["state_nbytes"],
    ]  # fmt: skip
    return dict(zip(BARS, values, strict=True))


def as_lines(result: dict[str, Any]) -> list[str]:
    """The figures in words."""
    lines = []
    for name, value in figures(result).items():
        holds = value <= BARS[name] if name.startswith("bytes") else value >= BARS[name]
        lines.append(f"{name}: {value:,.4g}, bar {BARS[name]:,g} {'holds' if holds else 'MISSED'}")
    same = "the same" if result["resumed"]["are_equal"] else "OTHER"
    lines.append(f"resumed on 2, 4 and 1 ranks in mid-epoch: {same} batches; pixels equal: {result['pixels_equal']}")
    return lines


def _medians(rounds: dict[str, list[dict[str, float]]], what: str) -> dict[str, float]:
    return {name: round(statistics.median(one[what] for one in of), 2) for name, of in rounds.items() if what in of[0]}


def _ratio(rounds: dict[str, list[dict[str, float]]], one: str, other: str, what: str) -> dict[str, Any]:
    return dataclasses.asdict(ratio_of([found[what] for found in rounds[one]], [found[what] for found in rounds[other]]))


def _make(directory: Path, *, num_photos: int, copies: int) -> float:
    """Make photographs, conversations about them and a model's folder, and convert; return conversations a second.

    `copies`: of the conversations, for the rate of converting alone, in which starting processes should not count much.
    """
    from converters import ConvertOptions, convert
    from converters.tokenizer import Tokenizing
    from datapipe.kinds.conversations.trial_data import write_model
    from datapipe.testing.synthetic_images import make_image_folder

    make_image_folder(directory / "photos", num_images=num_photos, num_classes=2)
    write_model(directory / "model")
    path = directory / "model" / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"size": _SIDES}))
    names = sorted(str(one.relative_to(directory / "photos")) for one in (directory / "photos").rglob("*.jpg"))
    rng, records = np.random.default_rng(0), []
    while names:
        some, names = names[: (num := int(rng.integers(1, 4)))], names[num:]
        asked = "<image>\n" * len(some) + "What is in it? " * int(rng.integers(1, 12))
        answered = "a red circle and a blue square " * int(rng.integers(1, 20))
        turns = [{"from": "human", "value": asked}, {"from": "gpt", "value": answered}]
        records.append({"image": some, "conversations": turns})
    tokens = Tokenizing.of(directory / "model", chat_template="auto")
    options = functools.partial(ConvertOptions, to="tokens", tokens=tokens, root=directory / "photos", shard_nbytes=20_000_000)
    (directory / "conversations.json").write_text(json.dumps(records))
    convert(options(directory / "conversations.json", directory / "shards"))
    (directory / "many.json").write_text(json.dumps(records * copies))
    started = time.perf_counter()
    convert(options(directory / "many.json", directory / "many"))
    return len(records) * copies / (time.perf_counter() - started)


def _planned(directory: Path, num: int) -> dict[str, Any]:
    """How fast rows of conversations are planned from the sizes of their images, how full they are, and how even ranks are."""
    from datapipe.kinds.conversations.documents import Conversations
    from datapipe.packing.kept_plans import open_plan
    from datapipe.packing.settings import PackSettings
    from datapipe.processors.reading import read_processor

    index = _made_up(num)
    started = time.perf_counter()
    documents = Conversations(index, read_processor(directory / "model"))
    home = directory / "plans"
    home.mkdir()
    plan = open_plan(documents, PackSettings(LENGTH, long="drop"), [home])
    seconds = time.perf_counter() - started
    lengths = documents.num_tokens(np.arange(num))
    return {
        "conversations": num,
        "rows": len(plan),
        "per_s": round(num / seconds),
        "fill": float(lengths[lengths <= LENGTH].sum() / (len(plan) * LENGTH)),
        "efficiency": _efficiency(documents, plan),
    }


def _made_up(num: int) -> Any:
    """The index of conversations of which nothing is known but lengths of texts and sizes of images: none in one of twelve."""
    from datapipe.codecs.tokens import TokenFacts
    from datapipe.index.document_images import DocumentImages
    from datapipe.index.tokens import TokenIndex, TokenShard

    rng, of_shard = np.random.default_rng(0), 1 << 16
    shards = []
    for first in range(0, num, of_shard):
        here = min(of_shard, num - first)
        num_images = np.where(rng.random(here) < 1 / 12, 0, np.minimum(rng.geometric(0.7, here), 6))
        ends = np.concatenate([[0], np.cumsum(num_images)])
        width, height = np.clip(np.exp(rng.normal(np.log(560), 0.4, (2, ends[-1]))), 60, 2000).astype(np.int32)
        place = np.arange(ends[-1]) - np.repeat(ends[:-1], num_images)
        rows = np.stack([place, np.ones_like(place), width, height, np.ones_like(place)], axis=1).astype(np.int32)
        tokens = num_images + np.clip(np.exp(rng.normal(np.log(180), 0.9, here)), 20, 4000).astype(np.int64)
        offset = 4 * np.concatenate([[0], np.cumsum(tokens + num_images)[:-1]])
        images = DocumentImages(ends, rows, offset + 4 * tokens, num_images.astype(np.int64), np.zeros(here, np.uint32))
        shards.append(TokenShard(f"shard {first}", np.dtype("<u4"), offset, tokens, images=images))
    facts = TokenFacts("uint32", image=_image_token())
    return TokenIndex("made up", [len(one) for one in shards], shards.__getitem__, fingerprint="made up", facts=facts)


def _image_token() -> int:
    from datapipe.kinds.conversations.trial_data import SPECIAL

    return SPECIAL.index("<|image_pad|>")


def _efficiency(documents: Any, plan: Any) -> dict[str, float]:
    """Of each tower, the mean work of ranks over that of the busiest, at whose end a micro-batch ends, over an epoch."""
    import torch

    from datapipe.kinds.conversations.kind import ConversationKind
    from datapipe.kinds.conversations.settings import ConversationSettings
    from datapipe.stores.settings import Remote

    settings = ConversationSettings(plan.settings, (), balance=True, accumulate=ACCUMULATE)
    device: Callable[[], torch.device] = functools.partial(torch.device, "cpu")
    kind = ConversationKind(documents, plan, settings, mixture=None, remote=Remote(), device=device)
    order = kind.order(0, shuffle=True, global_batch=RANKS)
    num = len(plan) // (RANKS * ACCUMULATE) * RANKS * ACCUMULATE
    packs = order(0, np.arange(num, dtype=np.int64))
    costs = documents.costs(plan.segments(packs, seed=0, epoch=0), num).reshape(2, -1, RANKS)
    found = (costs.mean(axis=2).sum(axis=1) / costs.max(axis=2).sum(axis=1)).tolist()
    return dict(zip(("language", "vision"), found, strict=True))


def _resumed(directory: Path) -> dict[str, Any]:
    """Whether 2, then 4, then 1 ranks make the batches of an epoch that one rank makes, from states in mid-epoch."""
    import torch

    import datapipe as dp

    os.environ["XDG_CACHE_HOME"] = str(directory / "cache")
    data = dp.Conversations(directory / "shards", 4096, directory / "model", fields=FIELDS, long="drop")

    def rows_of(world_size: int, state: dict[str, Any] | None, num_steps: int | None) -> tuple[list[Any], dict[str, Any]]:
        """The rows of steps over all ranks, in order, and the state after them."""
        loaders = [
            dp.DataLoader(data, 4 // world_size, shuffle=True, seed=0, ranks=(rank, world_size), tail="drop")
            for rank in range(world_size)
        ]
        found: list[Any] = []
        if state is not None:
            for one in loaders:
                one.load_state_dict(state)
        iterators = [iter(one) for one in loaders]
        while num_steps is None or num_steps > 0:
            batches = [batch for one in iterators if (batch := next(one, None)) is not None]
            if not batches:
                break
            found.append({
                name: torch.cat([batch[name] for batch in batches], dim=1 if name == "position_ids" else 0) for name in FIELDS
            })  # fmt: skip
            num_steps = None if num_steps is None else num_steps - 1
        return found, loaders[0].state_dict()

    whole, _ = rows_of(1, None, None)
    third = max(1, len(whole) // 3)
    first, state = rows_of(2, None, third)
    second, later = rows_of(4, state, third)
    last, _ = rows_of(1, later, None)
    resumed = [*first, *second, *last]
    equal = len(resumed) == len(whole) and all(
        torch.equal(one[name], other[name]) for one, other in zip(whole, resumed, strict=True) for name in FIELDS
    )
    return {"are_equal": equal, "steps": len(whole), "state_nbytes": len(json.dumps(later))}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    return harness.run_arguments(parser, rounds=5, scratch="photographs and shards, 1 GB")


if __name__ == "__main__":
    main()
