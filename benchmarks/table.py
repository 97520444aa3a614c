"""Write the figures of benchmarks/README.md and of pages in docs/, and draw the picture of README.md.

All of them come from the committed results, never from a hand.

python -m benchmarks.table            # between the markers in each, and docs/images/images-per-second-*.svg
python -m benchmarks.table --check    # exit 1 if one of them differs
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import bars, cpu_kinds, versions
from benchmarks.diagnostics import table as diagnostics
from benchmarks.environment import ROOT
from benchmarks.gpu import table as gpu
from benchmarks.harness import RESULTS
from benchmarks.marked import replace_marked
from benchmarks.rate_picture import pictures
from benchmarks.shown import conversion, images, machines, machines_elsewhere, media, minutes, rows, stores, tokens
from benchmarks.shown.cells import part

# What the page says of each result, in this order.
_PARTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "images-raw": images.decoded_in_advance,
    "images-dali": images.dali,
    "images-dali-uint8": images.dali_in_uint8,
    "images-from-torch": images.taken_over,
    "containers": images.containers,
    "foreign": images.in_place,
    "scaled": images.scaled,
    "buckets": images.buckets,
    "cache": images.cache,
    "recording": images.recording,
    "convert": conversion.converting,
    "convert-sources": conversion.from_archives,
    "open-large": conversion.opening,
    "gil": images.lock,
    "tables": rows.rows_of_tables,
    "large-table": rows.large_table,
    "tokens": tokens.tokens,
    "video": media.clips,
    "video-episodes": media.episodes,
    "audio": media.sounds,
    "conversations": media.conversations,
    "remote": stores.stores,
    "elsewhere": machines_elsewhere.elsewhere,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a document or a picture differs")
    arguments = parser.parse_args()
    for path, updated in documents(read_results(arguments.results)).items():
        if arguments.check and (not path.exists() or path.read_text() != updated):
            raise SystemExit(f"{path}: its figures are not those of {arguments.results}; run python -m benchmarks.table")
        if not arguments.check:
            path.write_text(updated)
            print(f"wrote {path}")


def documents(found: dict[str, Any]) -> dict[Path, str]:
    """Return what each file should hold: documents with their tables between the markers, and pictures."""
    marked = {path: replace_marked(path.read_text(), "table", table, where=str(path)) for path, table in tables(found).items()}
    stability = ROOT / "docs" / "stability.md"
    marked[stability] = replace_marked(marked[stability], "cpu-kinds", cpu_kinds.as_markdown(found), where=str(stability))
    loader = ROOT / "docs" / "loader.md"
    told = part(found, "images-any-dataset", images.own_datasets)
    marked[loader] = replace_marked(loader.read_text(), "own-datasets", told, where=str(loader))
    readme = ROOT / "README.md"
    told = readme.read_text()
    for name, sentence in (
        ("tables", rows.in_short),
        ("remote", stores.in_short),
        ("first-minutes", minutes.in_short),
        ("gpu-sweep", functools.partial(gpu.in_short, found)),
    ):
        told = replace_marked(told, name, part(found, name, sentence), where=str(readme))
    return marked | {readme: told} | pictures(found)


def tables(found: dict[str, Any]) -> dict[Path, str]:
    """What stands between the markers of each file."""
    return {
        ROOT / "docs" / "benchmarks.md": as_markdown(found),
        ROOT / "benchmarks" / "README.md": bars.as_markdown(found),
        ROOT / "docs" / "diagnose.md": diagnostics.as_markdown(found),
        ROOT / "docs" / "stability.md": versions.as_markdown(found),
    }


def read_results(results: Path) -> dict[str, Any]:
    """name -> result of all that are there. Raises SystemExit where there are none."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))}
    if not found:
        raise SystemExit(f"{results}: holds no results; run make bench")
    return found


def as_markdown(found: dict[str, Any]) -> str:
    """The tables and sentences of docs/benchmarks.md, of those results that are there."""
    told = (
        images.peers(found),
        *(part(found, name, shown) for name, shown in _PARTS.items()),
        gpu.as_markdown(found),
        machines.as_markdown(found),
    )
    return "\n\n".join(each for each in told if each)


if __name__ == "__main__":
    main()
