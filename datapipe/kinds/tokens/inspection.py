"""Open corpora of token ids, and say what they are, in facts and in words."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.containers.form import Form, refuse_choices
from datapipe.containers.forms import CONVERTED
from datapipe.core.printable import counted
from datapipe.core.ranges import spread
from datapipe.errors import OptionError
from datapipe.index.sample_index import SampleIndex
from datapipe.index.tokens import TokenIndex
from datapipe.opening.samples import open_index
from datapipe.opening.tokens.opening import open_tokens, token_fields
from datapipe.opening.tokens.texts import open_decoder, refuse_other_tokenizer
from datapipe.packing.described import ROWS, facts_of_lengths, facts_of_rows, histogram_lines, line_of_lengths

_DOCUMENTS = 3  # shown as texts
_SHOWN = 400  # characters of a run of text


def open_place(path: str, form: Form) -> TokenIndex:
    """Return the corpus at a path or URL; of a converted set with several fields, its first one."""
    refuse_choices(path, form, "token ids")
    if form.name != CONVERTED:
        return open_tokens(path)
    fields = token_fields(open_index(path, form).manifest)
    return open_tokens(path, field=fields[0] if fields else None)


def describe(index: TokenIndex, args: argparse.Namespace) -> dict[str, Any]:
    """Return the facts of a corpus, JSON-safe."""
    if args.grid is not None:
        raise OptionError(f"--grid: {args.path} holds token ids, without images")
    facts, samples = _facts(index, args.tokenizer), index.samples
    names = token_fields(samples.manifest) if isinstance(samples, SampleIndex) else []
    if len(names) > 1:
        facts["fields"] = {name: _facts(open_tokens(args.path, field=name), args.tokenizer) for name in names}
    return facts


def _facts(index: TokenIndex, tokenizer: Path | None) -> dict[str, Any]:
    lengths = [index.shard(number).num_tokens for number in range(index.num_shards)]
    tokens = np.concatenate(lengths) if lengths else np.zeros(0, np.int64)
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
        **facts_of_lengths(tokens),
        "rows": [_rows_of(index, tokens, length) for length in ROWS if len(tokens)],
        "texts": [] if tokenizer is None else _texts(index, tokenizer),
    }


def _rows_of(index: TokenIndex, tokens: NDArray[np.int64], length: int) -> dict[str, Any]:
    """Return how rows of this length are filled, and which share of documents they cut."""
    ends = np.cumsum(tokens)
    begins = ends - tokens
    cut = (begins // length != np.maximum(ends - 1, begins) // length).mean()
    return {**facts_of_rows(index, tokens, length), "cut_by_concat": float(cut)}


def _texts(index: TokenIndex, tokenizer: Path) -> list[dict[str, Any]]:
    """Return some documents spread over the corpus, as runs of text with and without loss."""
    if index.facts.tokenizer_sha256:
        refuse_other_tokenizer(index, tokenizer)
    decode = open_decoder(tokenizer)
    found = []
    for document in spread(len(index), _DOCUMENTS):
        (number,), (within,) = (column.tolist() for column in index.locate(np.array([document])))
        tokens, carries = index.shard(number).tokens_of(within)
        bounds = [0, *(np.flatnonzero(np.diff(carries)) + 1).tolist(), len(tokens)]
        runs = [
            {"loss": bool(carries[first]), "text": decode(tokens[first:end].tolist())}
            for first, end in itertools.pairwise(bounds)
            if first < end
        ]
        found.append({"document": str(index.describe(document)), "tokens": len(tokens), "runs": runs})
    return found


def as_text(path: str, facts: dict[str, Any]) -> str:
    """Return the facts as text for people."""
    if "fields" in facts:
        return "\n".join(as_text(f"{path}, {name}", of_field) for name, of_field in facts["fields"].items())
    known = [f"vocabulary of {facts['vocab_size']:,}"] if facts["vocab_size"] else []
    known += [f"{name} {facts[name]}" for name in ("bos", "eos") if facts[name] is not None]
    lines = [
        f"{path}: {counted(facts['documents'], 'document')} of {counted(facts['tokens'], 'token')} in"
        f" {counted(facts['shards'], 'shard')}",
        f"  ids       {', '.join([facts['dtype'], *known])}",
        f"  lengths   {line_of_lengths(facts['lengths'])}",
    ]
    if facts["loss_tokens"] != facts["tokens"]:
        lines.append(f"  loss      {facts['loss_tokens'] / max(1, facts['tokens']):.1%} of the tokens carry loss")
    lines += histogram_lines(facts["histogram"])
    if facts["rows"]:
        lines.append("  rows of       best-fit full   longer documents   cut by concat")
    lines += [
        f"  {one['length']:>8,}{one['best_fit_fill']:>19.3%}{one['longer']:>19.2%}{one['cut_by_concat']:>16.2%}"
        for one in facts["rows"]
    ]
    for one in facts["texts"]:
        lines.append(f"{one['document']}: {counted(one['tokens'], 'token')}; those after > carry loss")
        lines += [f"  {'>' if run['loss'] else '|'} {_shortened(run['text'])}" for run in one["runs"]]
    return "\n".join(lines)


def _shortened(text: str) -> str:
    """Return a text on one line, without its middle if it is long."""
    shown = repr(text)[1:-1]
    return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN // 2]} ... {shown[-_SHOWN // 2 :]}"
