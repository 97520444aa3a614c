"""Open sets of conversations with images, and say what they are: in facts, in words, and as a model will see some of them."""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from datapipe.containers.form import Form, refuse_choices
from datapipe.core.printable import counted, size_text
from datapipe.core.ranges import spread
from datapipe.errors import OptionError
from datapipe.index.tokens import TokenIndex
from datapipe.opening.tokens.opening import open_tokens
from datapipe.opening.tokens.texts import open_decoder
from datapipe.packing.described import ROWS, facts_of_lengths, facts_of_rows, histogram_lines, line_of_lengths

if TYPE_CHECKING:
    from datapipe.kinds.conversations.documents import Conversations

_SHOWN = 3  # conversations
_CHARACTERS = 200  # of a run of text


def open_place(path: str, form: Form) -> TokenIndex:
    """Return the conversations of a converted set at a path or URL, as they are stored."""
    refuse_choices(path, form, "conversations")
    return open_tokens(path)


def describe(index: TokenIndex, args: argparse.Namespace) -> dict[str, Any]:
    """Return the facts of a set, JSON-safe. With a processor, also those of its conversations as the model takes them."""
    if args.grid is not None:
        raise OptionError(f"--grid: {args.path} holds images inside text; pass --processor MODEL to see some conversations")
    shards = [index.shard(number) for number in range(index.num_shards)]
    tokens = np.concatenate([one.num_tokens for one in shards])
    rows = np.concatenate([one.images.rows for one in shards if one.images is not None])
    num_images = np.concatenate([np.diff(one.images.ends) for one in shards if one.images is not None])
    loss = [one.loss for one in shards]
    carried = [int(np.diff(one.runs, axis=1).sum()) for one in loss if one is not None]
    facts: dict[str, Any] = {
        "conversations": len(index),
        "shards": index.num_shards,
        "tokens": int(tokens.sum()),
        "loss_tokens": sum(carried) if carried else int(tokens.sum()),
        "images": {
            "num": len(rows),
            "nbytes": int(rows[:, 1].sum(dtype=np.int64)),
            "most_in_one": int(num_images.max(initial=0)),
            "without": int((num_images == 0).sum()),
            "median_size": np.median(rows[:, 2:4], axis=0).astype(int).tolist() if len(rows) else None,
            "turned": int((rows[:, 4] != 1).sum()),
        },
        **facts_of_lengths(tokens),
        "model": None,
    }
    if args.processor is not None:
        facts["model"] = _as_seen(index, Path(args.processor))
    return facts


def _as_seen(index: TokenIndex, processor: Path) -> dict[str, Any]:
    """Return the facts that a processor decides: lengths with images, rows, and some conversations."""
    from datapipe.kinds.conversations.documents import Conversations  # which needs torch
    from datapipe.processors.reading import read_processor

    found = Conversations(index, read_processor(processor))
    shards = [found.shard(number) for number in range(found.num_shards)]
    tokens = np.concatenate([one.num_tokens for one in shards])
    images = np.concatenate([one.image_tokens for one in shards])
    return {
        "tokens": int(tokens.sum()),
        "image_tokens": int(images.sum()),
        "refused": int(sum((one.grids[:, 0] < 0).sum() for one in shards)),
        **facts_of_lengths(tokens),
        "rows": [facts_of_rows(found, tokens, length, long="drop") for length in ROWS if (tokens <= length).any()],
        "shown": [_shown(found, number, processor) for number in spread(len(index), _SHOWN)],
    }


def _shown(found: Conversations, document: int, processor: Path) -> dict[str, Any]:
    """Return a conversation as runs of text, with and without loss, and its images by size, grid and tokens."""
    decode = open_decoder(processor)
    (number,), (within,) = (column.tolist() for column in found.locate(np.array([document])))
    shard = found.shard(number)
    images = shard.images
    tokens, carries = shard.stored.tokens_of(within)
    some = slice(int(images.ends[within]), int(images.ends[within + 1]))
    places = dict(zip(images.places[some].tolist(), range(some.start, some.stop), strict=True))
    edges = {place + after for place in places for after in (0, 1)}
    bounds = sorted({0, len(tokens), *edges, *(np.flatnonzero(np.diff(carries)) + 1).tolist()})
    runs: list[dict[str, Any]] = []
    for first, end in itertools.pairwise(bounds):
        if first in places:
            width, height = images.rows[places[first], 2:4].tolist()
            grid, num = shard.grids[places[first]].tolist(), int(shard.image_tokens[places[first]])
            runs.append({"image": [width, height], "grid": grid, "tokens": num})
        else:
            runs.append({"loss": bool(carries[first]), "text": decode(tokens[first:end].tolist())})
    return {"conversation": str(found.describe(document)), "tokens": int(shard.num_tokens[within]), "runs": runs}


def as_text(path: str, facts: dict[str, Any]) -> str:
    """Return the facts as text for people."""
    images = facts["images"]
    size = "" if images["median_size"] is None else ", median {} x {} pixels".format(*images["median_size"])
    turned = f"; {counted(images['turned'], 'image')} turned as EXIF says" if images["turned"] else ""
    lines = [
        f"{path}: {counted(facts['conversations'], 'conversation')} with {counted(images['num'], 'image')} in"
        f" {counted(facts['shards'], 'shard')}",
        f"  images    {size_text(images['nbytes'])}{size}, at most {images['most_in_one']} in a conversation,"
        f" {images['without']:,} without any{turned}",
        f"  texts     {line_of_lengths(facts['lengths'])}, an image counted as one",
    ]
    if facts["loss_tokens"] != facts["tokens"]:
        lines.append(f"  loss      {facts['loss_tokens'] / max(1, facts['tokens']):.1%} of these tokens carry loss")
    seen = facts["model"]
    if seen is None:
        return "\n".join(
            [*lines, *histogram_lines(facts["histogram"]), "  --processor MODEL tells how many tokens images become"]
        )
    share = seen["image_tokens"] / max(1, seen["tokens"])
    lines.append(f"  lengths   {line_of_lengths(seen['lengths'])}, with images, whose tokens are {share:.1%} of all")
    if seen["refused"]:
        lines.append(f"  refused   {counted(seen['refused'], 'image')}, whose conversations are bad samples")
    lines += histogram_lines(seen["histogram"])
    if seen["rows"]:
        lines.append("  rows of       best-fit full   longer conversations, dropped")
    lines += [f"  {one['length']:>8,}{one['best_fit_fill']:>19.3%}{one['longer']:>24.2%}" for one in seen["rows"]]
    for one in seen["shown"]:
        lines.append(f"{one['conversation']}: {counted(one['tokens'], 'token')}; those after > carry loss")
        lines += [f"  {_line_of(run)}" for run in one["runs"]]
    return "\n".join(lines)


def _line_of(run: dict[str, Any]) -> str:
    if "image" in run:
        (width, height), (rows, columns) = run["image"], run["grid"]
        if rows < 0:
            return f"| [image of {width} x {height} pixels, which the model refuses]"
        return f"| [image of {width} x {height} pixels: grid of {rows} x {columns}, {counted(run['tokens'], 'token')}]"
    shown = json.dumps(run["text"], ensure_ascii=False)[1:-1]
    if len(shown) > _CHARACTERS:
        shown = f"{shown[: _CHARACTERS // 2]} ... {shown[-_CHARACTERS // 2 :]}"
    return f"{'>' if run['loss'] else '|'} {shown}"
