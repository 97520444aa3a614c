"""What a contender is asked to do, the same for all; plain values that travel as JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
CROP = 224  # pixels


@dataclass(frozen=True, slots=True)
class Task:
    """RandomResizedCrop(224), horizontal flip, normalise, float32: one contender, one round."""

    contender: str
    data: str  # directory of one set: folder/, webdataset/, shards/, ffcv.beton, ...
    batch_size: int = 128
    num_threads: int = 2  # threads or worker processes that decode
    warmup_images: int = 1024  # returned before the clock starts: JIT, worker start, first read
    num_images: int = 8192
    cores: tuple[int, ...] = ()  # the process is held to these; empty: all
    seed: int = 0

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        value = json.loads(text)
        return cls(**{**value, "cores": tuple(value["cores"])})
