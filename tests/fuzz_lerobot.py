"""What `fuzz` looks at of LeRobot datasets: their facts, episodes and tasks, damaged as one file with `BETWEEN` between."""

from __future__ import annotations

import functools
import json
import random
import shutil
import tempfile
import zlib
from pathlib import Path

from fuzz_tables import tamper
from lerobot_files import LENGTHS, write_lerobot

from datapipe.opening.videos.lerobot_files import read_episodes, read_info, read_table

BETWEEN = b"\n<between>\n"
_PARTS = {
    "v2.1": ("meta/info.json", "meta/episodes.jsonl", "meta/tasks.jsonl"),
    "v3.0": ("meta/info.json", "meta/episodes/chunk-000/file-000.parquet", "meta/tasks.parquet"),
}


@functools.cache
def _folder(version: str) -> Path:
    """A sound dataset without its videos, for as long as the process lives."""
    root = write_lerobot(Path(tempfile.mkdtemp(prefix="fuzz-lerobot-")) / version, version)
    shutil.rmtree(root / "videos")
    return root


def lerobot_files() -> list[bytes]:
    return [BETWEEN.join((_folder(version) / name).read_bytes() for name in names) for version, names in _PARTS.items()]


def tamper_facts(data: bytearray) -> None:
    """Replace some values of those parts that are JSON."""
    rng = random.Random(zlib.crc32(data))
    parts = bytes(data).split(BETWEEN)
    number = rng.randrange(len(parts))
    lines = parts[number].splitlines()
    try:
        documents = [json.loads(line) for line in lines]
    except (ValueError, RecursionError):
        return
    tamper(documents, rng)
    parts[number] = b"\n".join(json.dumps(document).encode() for document in documents)
    data[:] = BETWEEN.join(parts)


def look_at_lerobot(data: bytes, scratch: Path) -> object:
    parts = data.split(BETWEEN)
    version = "v3.0" if parts[-1].startswith(b"PAR1") or b"PAR1" in data else "v2.1"
    root = scratch.with_name(f"{scratch.name}-{version}")
    if not root.exists():
        shutil.copytree(_folder(version), root)
    for name, part in zip(_PARTS[version], parts, strict=False):
        (root / name).write_bytes(part)
    info = read_info(root)
    episodes = read_episodes(info)
    assert (episodes.first_row >= 0).all()
    assert (episodes.length >= 0).all()
    table = read_table(info, episodes)
    assert table.num_rows <= sum(LENGTHS)
    assert (episodes.first_row + episodes.length <= table.num_rows).all()
    assert all(len(column) == table.num_rows for column in table.columns.values())
    assert {*table.columns.get("task_index", ())} <= {*table.tasks} or "task_index" not in table.columns
    return table
