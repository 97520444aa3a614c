"""Lets DALI's loader meet bad samples and reports on each meeting: run by a test in a process of its own.

python bad_batches.py DIRECTORY    # prints one line of JSON per scenario
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from fixtures import encode, jpeg, picture

import datapipe as dp
from datapipe import transforms as T

BATCH = 64
NUM_GOOD = 2 * BATCH
SIZE = 24
PLACES: dict[str, list[int]] = {"first": [0], "middle": [31], "last": [63], "some": [3, 4, 40], "all": list(range(BATCH))}
POLICIES = ("raise", "skip", "replace")

_JPEG = jpeg(0, 120, 130)


def _flipped(bit: int) -> bytes:
    data = bytearray(_JPEG)
    data[bit // 8] ^= 1 << bit % 8
    return bytes(data)


def _without_tables() -> bytes:
    data = bytearray(encode(picture(0, 60, 60)))
    start = data.find(b"\xff\xc4") + 5
    data[start : start + 10] = b"\xff" * 10
    return bytes(data)


# Bad whatever is done with them.
BAD: dict[str, bytes] = {
    "text": b"<html>not found</html>" * 20,
    "empty": b"",
    "zeros": bytes(3000),
    "header only": _JPEG[: _JPEG.find(b"\xff\xda")],
    "header and end": _JPEG[: _JPEG.find(b"\xff\xda")] + b"\xff\xd9",
    "cut": _JPEG[: len(_JPEG) // 2],
    "no tables": _without_tables(),
    "png without pixels": encode(picture(0), "PNG")[:60] + encode(picture(0), "PNG")[-12:],
    "cut gif": encode(picture(0), "GIF")[:200],
    "webp of a lying size": encode(picture(0), "WEBP")[:25] + b"\xff\x3f" + encode(picture(0), "WEBP")[27:],
    "bomb": _JPEG.replace(b"\0\x78\0\x82", b"\xff\xdc\xff\xdc", 1),
}
# Whether they are bad is for the decoders to say.
DOUBTFUL: dict[str, bytes] = {f"bit {bit}": _flipped(bit) for bit in range(8 * 160, 8 * len(_JPEG), 8 * len(_JPEG) // 40 + 1)}


@dataclass(frozen=True)
class Scenario:
    kind: str
    place: str
    policy: str

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.place}, {self.policy}"


SCENARIOS = [Scenario(kind, place, policy) for kind in BAD for place in PLACES for policy in POLICIES]


def main() -> None:
    root = Path(sys.argv[1])
    kinds = [*BAD, *DOUBTFUL]
    (root / "class").mkdir(parents=True)
    for number, data in enumerate([*(jpeg(number, 40, 48) for number in range(NUM_GOOD)), *BAD.values(), *DOUBTFUL.values()]):
        (root / "class" / f"{number:04d}.jpg").write_bytes(data)
    id_of = {kind: NUM_GOOD + number for number, kind in enumerate(kinds)}
    expected = dict(samples(make(root, sampler=range(NUM_GOOD))))
    for scenario in SCENARIOS:
        print(json.dumps({"begins": scenario.name}), flush=True)
        print(json.dumps({**asdict(scenario), **meet(root, scenario, id_of[scenario.kind], expected)}), flush=True)
    print(json.dumps({"begins": "doubtful"}), flush=True)
    print(json.dumps({"kind": "doubtful", **doubt(root, [id_of[kind] for kind in DOUBTFUL], expected)}), flush=True)


def make(root: Path, **changes: Any) -> dp.DataLoader:
    transform = [T.RandomResizedCrop(SIZE, scale=(0.5, 1)), T.RandomHorizontalFlip()]
    defaults = {
        "batch_size": BATCH,
        "transform": transform,
        "num_workers": 2,
        "output": "dict",
        "backend": dp.Dali(num_pipelines=1),
    }
    return dp.DataLoader(root, device="cpu", **(defaults | changes))


def samples(loader: dp.DataLoader) -> Iterator[tuple[int, torch.Tensor]]:
    for batch in loader:
        yield from zip(batch["id"].tolist(), batch["image"].clone(), strict=True)


def meet(root: Path, scenario: Scenario, bad: int, expected: dict[int, torch.Tensor]) -> dict[str, Any]:
    """The outcome of one batch with a bad sample at those places, followed by a good batch."""
    picks = list(range(NUM_GOOD))
    for place in PLACES[scenario.place]:
        picks[place] = bad
    loader = make(root, sampler=picks, on_error=scenario.policy)
    try:
        found = list(samples(loader))
    except dp.errors.DecodeError as exc:
        return {"error": str(exc), "sample": bad}
    return {
        "sample": bad,
        "num": len(found),
        "bad": sum(report.id == bad for report in loader.bad_samples),
        "wrong": [sample for sample, image in found if sample < NUM_GOOD and not torch.equal(image, expected[sample])],
        "planned": sum(sample == pick for (sample, _), pick in zip(found, picks, strict=False)),
    }


def doubt(root: Path, ids: list[int], expected: dict[int, torch.Tensor]) -> dict[str, Any]:
    """Damaged pixels among good samples: both backends have the same word on them."""
    picks = [sample for pair in zip(range(len(ids)), ids, strict=True) for sample in pair]
    loaders = [make(root, sampler=picks, on_error="skip", backend=backend) for backend in (dp.Dali(), "images_cpu")]
    ours, theirs = (dict(samples(loader)) for loader in loaders)
    return {
        "num": len(ids),
        "good": len(ours) - len(ids),
        "judged otherwise": sorted(set(ours) ^ set(theirs)),
        "wrong": [sample for sample, image in ours.items() if sample < NUM_GOOD and not torch.equal(image, expected[sample])],
        "far": [s for s, image in ours.items() if s in theirs and float((image.float() - theirs[s].float()).abs().mean()) > 1],
    }


if __name__ == "__main__":
    main()
