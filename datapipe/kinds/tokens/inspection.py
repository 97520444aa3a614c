"""Recognise corpora of token ids, and say what they are, in facts and in words."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np

from datapipe.containers.tokens.opening import MEGATRON, form_of, open_tokens, token_fields
from datapipe.core.printable import counted
from datapipe.errors import DatapipeError, OptionError
from datapipe.index.manifest import MANIFEST_NAME, read_manifest
from datapipe.index.sample_index import SampleIndex
from datapipe.index.tokens import TOKENS_CONTAINER, TokenIndex
from datapipe.stores.location import is_url

_LENGTHS = (0, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_BAR = 40  # characters of the longest bar of the histogram


def claim(path: str) -> TokenIndex | None:
    """Return the corpus at a path, None for what is none, and for bare files, which do not say what their ids are."""
    if is_url(path):
        return None
    here = Path(path)
    if os.path.lexists(here / MANIFEST_NAME):
        try:
            manifest = read_manifest(here)
        except DatapipeError:
            return None  # images are asked next, and say what is wrong
        return open_tokens(path, field=token_fields(manifest)[0]) if manifest.container == TOKENS_CONTAINER else None
    if here.is_dir():
        return open_tokens(path) if any(_says_what_it_is(one) for one in here.iterdir()) else None
    return open_tokens(path) if _says_what_it_is(here) and here.is_file() else None


def _says_what_it_is(path: Path) -> bool:
    return path.suffix in (".ds", ".bin", ".idx") and (path.suffix == ".ds" or form_of(path) == MEGATRON)


def describe(index: TokenIndex, args: argparse.Namespace) -> dict[str, Any]:
    """Return the facts of a corpus, JSON-safe."""
    if args.grid is not None:
        raise OptionError(f"--grid: {args.path} holds token ids, without images")
    facts, samples = _facts(index), index.samples
    names = token_fields(samples.manifest) if isinstance(samples, SampleIndex) else []
    if len(names) > 1:
        facts["fields"] = {name: _facts(open_tokens(args.path, field=name)) for name in names}
    return facts


def _facts(index: TokenIndex) -> dict[str, Any]:
    lengths = [index.shard(number).num_tokens for number in range(index.num_shards)]
    tokens = np.concatenate(lengths) if lengths else np.zeros(0, np.int64)
    bounds = [bound for bound in _LENGTHS if not len(tokens) or bound <= tokens.max()]
    counts = np.histogram(tokens, [*bounds, np.iinfo(np.int64).max])[0]
    loss = [index.shard(number).loss for number in range(index.num_shards)]
    carried = [int(np.diff(one.runs, axis=1).sum()) for one in loss if one is not None]
    facts = index.facts
    return {
        "documents": len(index),
        "shards": index.num_shards,
        "tokens": int(tokens.sum()),
        "loss_tokens": sum(carried) if carried else int(tokens.sum()),
        "dtype": facts.dtype,
        "vocab_size": facts.vocab_size,
        "bos": facts.bos,
        "eos": facts.eos,
        "tokenizer_sha256": facts.tokenizer_sha256,
        "lengths": {
            "least": int(tokens.min()) if len(tokens) else 0,
            "median": int(np.median(tokens)) if len(tokens) else 0,
            "mean": float(tokens.mean()) if len(tokens) else 0.0,
            "most": int(tokens.max(initial=0)),
        },
        "histogram": [{"from": bound, "documents": int(count)} for bound, count in zip(bounds, counts.tolist(), strict=True)],
    }


def as_text(path: str, facts: dict[str, Any]) -> str:
    """Return the facts as text for people."""
    if "fields" in facts:
        return "\n".join(as_text(f"{path}, {name}", of_field) for name, of_field in facts["fields"].items())
    lengths = facts["lengths"]
    known = [f"vocabulary of {facts['vocab_size']:,}"] if facts["vocab_size"] else []
    known += [f"{name} {facts[name]}" for name in ("bos", "eos") if facts[name] is not None]
    lines = [
        f"{path}: {counted(facts['documents'], 'document')} of {counted(facts['tokens'], 'token')} in"
        f" {counted(facts['shards'], 'shard')}",
        f"  ids       {', '.join([facts['dtype'], *known])}",
        f"  lengths   {lengths['least']:,} to {lengths['most']:,} tokens, median {lengths['median']:,},"
        f" mean {lengths['mean']:,.0f}",
    ]
    if facts["loss_tokens"] != facts["tokens"]:
        lines.append(f"  loss      {facts['loss_tokens'] / max(1, facts['tokens']):.1%} of the tokens carry loss")
    most = max((one["documents"] for one in facts["histogram"]), default=0)
    for one in facts["histogram"]:
        if one["documents"]:
            bar = "#" * max(1, round(_BAR * one["documents"] / most))
            lines.append(f"  {one['from']:>8,}  {one['documents']:>12,}  {bar}")
    return "\n".join(lines)
