"""Several corpora as one: their documents one after the other."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from datapipe.errors import OptionError
from datapipe.index.concat import concatenated
from datapipe.index.entries import place_in
from datapipe.index.tokens import TokenIndex, TokenShard


def joined_index(indexes: Sequence[TokenIndex]) -> TokenIndex:
    """Return one index of several corpora. Raises OptionError if they were made by different tokenizers, as far as is known."""
    first = indexes[0].facts
    for index in indexes[1:]:
        for name in ("tokenizer_sha256", "vocab_size"):
            ours, theirs = getattr(first, name), getattr(index.facts, name)
            if ours and theirs and ours != theirs:
                what = name.replace("_", " ")
                raise OptionError(f"{indexes[0].where} and {index.where}: have different tokenizers ({what}); convert one again")
    starts = np.cumsum([0, *(index.num_shards for index in indexes)])

    def open_shard(number: int) -> TokenShard:
        part, there = place_in(starts, number)
        return indexes[part].shard(there)

    samples = [index.samples for index in indexes if index.samples is not None]
    digest = hashlib.sha256(" ".join(index.fingerprint for index in indexes).encode()).hexdigest()
    return TokenIndex(
        ", ".join(index.where for index in indexes),
        [int(num) for index in indexes for num in np.diff(index.starts)],
        open_shard,
        fingerprint=digest[:16],
        facts=replace(first, vocab_size=max((index.facts.vocab_size or 0 for index in indexes), default=0) or None),
        samples=concatenated(samples) if samples else None,
    )
