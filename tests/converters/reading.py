"""What a conversion made, sample by sample."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from converters import ConvertOptions, OnError, convert
from datapipe.fetch.local import LocalFiles
from datapipe.opening.samples import open_index


def converted(source: Path, out: Path, **options: Any) -> Path:
    """`out`, converted from `source` by one worker."""
    options["fields"] = tuple(options.pop("fields", ()))
    convert(ConvertOptions(source, out, **({"num_workers": 1} | options)))
    return out


def skipping(source: Path, out: Path, **options: Any) -> dict[str, str]:
    """Reason by source of the samples that are left out."""
    converted(source, out, **({"on_error": OnError.SKIP} | options))
    path = out / "errors.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {value["source"]: value["reason"] for value in map(json.loads, lines)}


def field_of(out: Path, name: str) -> list[bytes]:
    """The bytes of a field, by id."""
    index, files = open_index(out), LocalFiles()
    extents = index.look_up(index.ids(np.arange(len(index))), name).extents
    found = [files.read(extents, row) for row in range(len(extents))]
    files.close()
    return found


def labels_of(out: Path) -> list[int]:
    return [int(label) for label in open_index(out).labels()]


def kinds_of(out: Path) -> dict[str, str]:
    return {field.name: field.kind.value for field in open_index(out).manifest.fields}


def sources_of(out: Path) -> list[str]:
    index = open_index(out)
    return [index.describe(int(number)).source for number in index.ids(np.arange(len(index)))]
