"""What `explain` says of a store: rates over all ranks, bytes under way, the cache, and what a change would bring."""

from __future__ import annotations

import dataclasses
from typing import Any

from datapipe.fetch.remote import StoreFacts
from datapipe.kinds.images.explanation import store_lines

FACTS = StoreFacts(
    rate=1000.0,
    p95_s=0.08,
    limit=120,
    num_under_way=60,
    nbytes_under_way=4_800_000,
    cached=None,
    cache_place="",
    missing_nbytes=0,
)  # fmt: skip


def told(*, ranks: int = 4, in_windows: bool = False, has_shards: bool = True, **changes: Any) -> str:
    facts = dataclasses.replace(FACTS, **changes)
    return "\n".join(store_lines(facts, ranks=ranks, in_windows=in_windows, has_shards=has_shards))


def test_requests_over_all_ranks_against_what_s3_allows() -> None:
    assert "1000 requests/s in this process, 4000 over 4 ranks: 73% of the 5500 that S3 allows for one prefix" in told()
    assert "too many" not in told()
    assert "16000 over 16 ranks: 291% of the 5500" in told(ranks=16)
    assert "too many: S3 answers the rest with 503; lower dp.Remote(requests=...), or keep shards" in told(ranks=16)
    assert "requests/s" not in told(rate=0.0)


def test_bytes_under_way() -> None:
    assert "60 in flight now for 4.8 MB, 120 for 268.4 MB at most, latency of 95% below 80 ms" in told()


def test_what_a_cache_or_windows_would_bring() -> None:
    assert "caches them; what fits is asked for in the first epoch alone" in told()
    assert "each shard would be one stream an epoch" in told(in_windows=True)
    cached: dict[str, Any] = {"cached": (30, 100, 600, 1400), "cache_place": "/local", "missing_nbytes": 17_000_000_000}
    full = told(**cached)
    assert "30 of 100 shards are kept in /local; 30% of the samples came from there" in full
    assert "a cache larger by 17.0 GB would hold all of them" in full
    assert "shuffle='windows' would fetch each of the 100 shards once an epoch, as a stream" in full
    assert "shuffle='windows'" not in told(in_windows=True, **cached)
    assert "larger" not in told(**{**cached, "missing_nbytes": 0})
    assert "shards of others are not kept" in told(has_shards=False)
