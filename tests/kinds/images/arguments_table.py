"""The table of torch's arguments; `python tests/kinds/images/arguments_table.py` writes it into docs/loader.md."""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import NamedTuple

_ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = (_ROOT / "docs" / "loader.md",)


class Status(enum.Enum):
    HONOURED = "honoured"
    BY_CONSTRUCTION = "satisfied by construction"
    REFUSED = "refused"


class Row(NamedTuple):
    """One argument of torch's."""

    status: Status
    meaning: str  # or, where something is refused, the remedy


ARGUMENTS: dict[str, Row] = {
    "dataset": Row(
        Status.HONOURED,
        "a path, `Images(...)`, `Table(...)`, `Clips(...)`, `Audio(...)`, `Tokens(...)`, `mix(...)`, or a torch Dataset whose "
        "files datapipe can identify (`ImageFolder`, `Subset`, `ConcatDataset`, Hugging Face's); for others use `from_torch`",
    ),
    "batch_size": Row(Status.HONOURED, "per rank; `None` is refused: `loader.dataset[i]` gives single samples"),
    "shuffle": Row(
        Status.HONOURED,
        "by `seed` (or `generator`, or `torch.manual_seed`) and epoch, the same on all ranks; `'windows'` reads each shard once",
    ),
    "sampler": Row(Status.HONOURED, "decides for its rank, as in torch; `loader.set_epoch` sets its epoch"),
    "batch_sampler": Row(Status.HONOURED, "excludes `batch_size`, `shuffle`, `sampler`, `drop_last` and `tail`"),
    "num_workers": Row(
        Status.HONOURED, "decode threads; by default the cores this process may use (torch: 0); 0: in the caller's thread"
    ),
    "collate_fn": Row(
        Status.HONOURED,
        "called with a list of samples, each a tuple of the batch's fields (a dict with `output='dict'`), the label an int: in a "
        "decode thread if it certainly draws no random numbers, otherwise in `next()`, [seeded](#a-collate_fn-that-draws)",
    ),
    "pin_memory": Row(
        Status.HONOURED,
        "images are made in page-locked memory if there is a GPU, always if they are for one; this needs no extra copy",
    ),
    "drop_last": Row(Status.HONOURED, 'the same as `tail="drop"`; another `tail` with it is refused'),
    "timeout": Row(Status.HONOURED, "seconds to wait for one batch; `LifecycleError` (a RuntimeError) after that"),
    "worker_init_fn": Row(Status.HONOURED, "called in each decode thread (not in processes) with its number, when a pass starts"),
    "multiprocessing_context": Row(Status.BY_CONSTRUCTION, "workers are threads; their processes start in a way of their own"),
    "generator": Row(Status.HONOURED, "the `seed` is drawn from it when the first pass begins; both at once are refused"),
    "prefetch_factor": Row(
        Status.HONOURED, "batches being made, in total (torch: per worker); more if they are too small to keep every thread busy"
    ),
    "persistent_workers": Row(
        Status.BY_CONSTRUCTION, "threads are cheap to start; decoders and memory are kept from pass to pass"
    ),
    "pin_memory_device": Row(Status.BY_CONSTRUCTION, "page-locked memory serves every GPU (torch has deprecated the argument)"),
    "in_order": Row(Status.BY_CONSTRUCTION, "batches always come in order"),
}


def table() -> str:
    """The table, in Markdown."""
    lines = ["| argument | here | |", "|---|---|---|"]
    lines += [f"| `{name}` | {row.status.value} | {row.meaning} |" for name, row in ARGUMENTS.items()]
    return "\n".join(lines)


def with_table(text: str) -> str:
    """The document with the table in its place."""
    from benchmarks.marked import replace_marked

    return replace_marked(text, "arguments", table(), where="the document")


if __name__ == "__main__":
    sys.path.insert(0, str(_ROOT))  # a script finds what lies beside itself
    for document in DOCUMENTS:
        document.write_text(with_table(document.read_text()))
