"""A training run over rows of tokens that writes down what it consumed, and may be killed at any moment.

    python token_training.py SETTINGS

Every few steps it replaces its state, in which the length of the log is recorded, so that the two belong together; what the log
has beyond that is cut off by the next run. Also read by the test that starts it, for what an undisturbed run consumes.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import datapipe as dp
from datapipe.kernel.loader import Loader

LENGTH = 32
GLOBAL_BATCH = 16
EPOCHS = 2
SAVE_EVERY = 3  # steps


@dataclass(frozen=True)
class Settings:
    """Paths are strings: they travel as JSON."""

    corpora: list[str]  # mixed if there are several
    out: str
    num_ranks: int = 1
    num_workers: int = 2
    balance: str | None = None

    @property
    def log(self) -> Path:
        """A line for each step: the rows of the batch over all ranks, each as its number and a checksum of what it holds."""
        return Path(self.out) / "log.jsonl"

    @property
    def state(self) -> Path:
        return Path(self.out) / "state.json"


def data_of(settings: Settings) -> dp.Tokens:
    options: dict[str, Any] = {"balance": settings.balance, "accumulate": 2}
    fields = ["input_ids", "labels", "position_ids", "loss_tokens", "id"]
    corpora = [dp.Tokens(path, LENGTH, fields=fields, **options) for path in settings.corpora]
    return dp.mix(corpora) if len(corpora) > 1 else corpora[0]


def loaders_of(settings: Settings) -> list[Loader]:
    """One loader for each rank, all in this process."""
    data, num = data_of(settings), settings.num_ranks
    options: dict[str, Any] = {"shuffle": True, "seed": 5, "num_workers": settings.num_workers, "tail": "mask"}
    return [dp.DataLoader(data, GLOBAL_BATCH // num, ranks=(rank, num), **options) for rank in range(num)]


def steps_of(loaders: list[Loader]) -> Iterator[str]:
    """Yield, for each step of one pass, its line of the log."""
    for batches in zip(*loaders, strict=True):
        rows = []
        for batch in batches:
            for row in range(len(batch["id"])):
                held = [batch[name][row].numpy().tobytes() for name in ("input_ids", "labels", "position_ids")]
                if batch["real"][row]:
                    rows.append([int(batch["id"][row]), zlib.crc32(b"".join(held))])
        yield json.dumps([batches[0]["loss_tokens"], rows]) + "\n"


def train(settings: Settings) -> None:
    """Go on with the run in `settings.out`, or begin one."""
    loaders = loaders_of(settings)
    saved = json.loads(settings.state.read_text()) if settings.state.exists() else {"nbytes": 0, "epochs": 0}
    for loader in loaders if "loader" in saved else []:
        loader.load_state_dict(saved["loader"])
    with settings.log.open("ab") as log:
        log.truncate(saved["nbytes"])
        log.seek(0, os.SEEK_END)

        def save(epochs: int) -> None:
            log.flush()
            state = {"nbytes": log.tell(), "epochs": epochs, "loader": loaders[0].state_dict()}
            written = settings.state.with_suffix(".new")
            written.write_text(json.dumps(state))
            written.replace(settings.state)

        for epoch in range(saved["epochs"], EPOCHS):
            for number, line in enumerate(steps_of(loaders), 1):
                log.write(line.encode())
                if number % SAVE_EVERY == 0:
                    save(epoch)
            save(epoch + 1)


def as_script(settings: Settings) -> list[str]:
    """The command that runs this file with the settings."""
    return [sys.executable, __file__, json.dumps(asdict(settings))]


if __name__ == "__main__":
    train(Settings(**json.loads(sys.argv[1])))
