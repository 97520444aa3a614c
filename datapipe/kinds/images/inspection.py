"""Open samples, and say what they are, in facts and in words; `contact_sheet` draws them."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from typing import Any

import numpy as np

from datapipe.codecs.decode import checked_header
from datapipe.containers.form import Form
from datapipe.core.printable import counted
from datapipe.errors import DecodeError, IntegrityError, OptionError
from datapipe.fetch.files import open_files
from datapipe.index.sample_index import SampleIndex
from datapipe.kinds.images.contact_sheet import draw_sheet, spread_ids
from datapipe.opening.samples import open_index

_LOOKED_AT = 200  # samples opened to describe encodings and sizes


def open_place(path: str, form: Form) -> SampleIndex:
    """Return the index of the samples at a path or URL. Raises as `open_index` does if there are none."""
    return open_index(path, form)


def describe(index: SampleIndex, args: argparse.Namespace) -> dict[str, Any]:
    """Return the facts of a dataset, JSON-safe, and draw its contact sheet. Raises OptionError for one without images."""
    files, num = open_files(index), len(index)
    ids = spread_ids(index, _LOOKED_AT if index.has_images else 0)
    encodings: Counter[str] = Counter()
    sizes: list[tuple[int, int]] = []
    nbytes: list[int] = []
    bad: list[str] = []
    entries = index.look_up(ids, "image") if len(ids) else None
    on_their_way = None if entries is None else files.will_need(entries.extents)
    for row in range(len(ids)):
        assert entries is not None
        try:
            data = files.read(entries.extents, row)
            header = checked_header(data)
        except (DecodeError, IntegrityError) as exc:
            bad.append(f"{index.describe(int(ids[row]))}: {exc}")
            continue
        encodings[header.encoding] += 1
        sizes.append((header.height, header.width))
        nbytes.append(len(data))
    del on_their_way
    manifest = index.manifest
    facts = {
        "container": manifest.container,
        "is_listing": manifest.is_listing,
        "samples": num,
        "fields": {field.name: field.kind.value for field in manifest.fields},
        "classes": None if manifest.classes is None else len(manifest.classes),
        "shards": len(manifest.shards),
        "bytes": None if manifest.takes_rows else sum(shard.nbytes for shard in manifest.shards),
        "options": manifest.options,
        "looked_at": {
            "samples": len(ids),
            "encodings": dict(encodings.most_common()),
            "median_size": [int(value) for value in np.median(np.array(sizes), axis=0)] if sizes else None,
            "median_bytes": int(np.median(nbytes)) if nbytes else None,
            "bad": bad,
        },
        "first": str(index.describe(int(index.ids(np.zeros(1, np.int64))[0]))) if num else None,
    }
    if args.buckets is not None:
        if not index.has_images:
            raise OptionError(f"--buckets: {args.path} holds no images; leave it out")
        from datapipe.kinds.images.buckets import plan_of  # late, as it needs torch

        facts["buckets"] = plan_of(index, files, _buckets_of(args.buckets)).describe()
    if args.grid is not None:
        if not index.has_images:
            raise OptionError(f"--grid: {args.path} holds no images; leave it out")
        facts["grid"] = str(args.grid)
        draw_sheet(index, args.grid, num_images=args.num)
    return facts


def _buckets_of(text: str) -> Any:
    """Return the buckets that AREA[:STEP[:RATIO]] names. Raises OptionError."""
    from datapipe.transforms.buckets import Buckets

    parts = text.split(":")
    try:
        area, step, ratio = (*parts, *("64", "2.0")[len(parts) - 1 :])
        values = int(area), int(step), float(ratio)
    except ValueError:
        raise OptionError(f"--buckets {text!r:.60}: write AREA[:STEP[:RATIO]], such as 1048576:64:2") from None
    return Buckets(area=values[0], step=values[1], ratio=values[2])


def as_text(path: str | os.PathLike[str], facts: dict[str, Any]) -> str:
    """Return the facts as text for people."""
    seen = facts["looked_at"]
    encodings = ", ".join(f"{count} {name}" for name, count in seen["encodings"].items())
    fields = ", ".join(f"{name} ({kind})" for name, kind in facts["fields"].items())
    parts = counted(facts["shards"], "index part" if facts["is_listing"] else "shard")
    size = "" if facts["bytes"] is None else f", {facts['bytes'] / 1e6:,.1f} MB"
    lines = [
        f"{os.fspath(path)}: {facts['container']}, {counted(facts['samples'], 'sample')}{size} in {parts}",
        f"  fields   {fields}",
        f"  classes  {facts['classes'] if facts['classes'] is not None else 'not named'}",
    ]
    if "image" in facts["fields"]:
        lines.append(f"  images   {encodings or 'none readable'} among {seen['samples']} looked at")
    if seen["median_size"]:
        height, width = seen["median_size"]
        lines.append(f"  median   {height} x {width} pixels (height x width), {seen['median_bytes'] / 1e3:,.1f} kB")
    lines.append(f"  first    {facts['first']}")
    lines += [f"  {'' if number else 'buckets':<9}{line}" for number, line in enumerate(facts.get("buckets", ()))]
    lines += [f"  bad      {text}" for text in seen["bad"]]
    if "grid" in facts:
        lines.append(f"  sheet    {facts['grid']}")
    return "\n".join(lines)
