"""Read `index.json` of an MDS folder: which shards make up the set, in which order, and how they are compressed."""

from __future__ import annotations

import msgspec

from datapipe.containers.shard_lists import ListedShard
from datapipe.errors import FormatError


class _File(msgspec.Struct):
    basename: str
    bytes: int
    hashes: dict[str, str] = {}


class _Shard(msgspec.Struct):
    format: str
    raw_data: _File
    samples: int
    compression: str | None = None
    zip_data: _File | None = None


class _Index(msgspec.Struct):
    shards: list[_Shard] | None = None


def listed_shards(text: bytes, where: str) -> list[ListedShard] | None:
    """Return the shards that an `index.json` names, without those of no samples; None for one of another form.

    `where`: its path. Raises FormatError.
    """
    try:
        index = msgspec.json.decode(text, type=_Index)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise FormatError(f"{where}: does not parse as MosaicML's ({exc}); get the file again") from exc
    if index.shards is None:
        return None
    other = next((shard.format for shard in index.shards if shard.format != "mds"), None)
    if other is not None:
        raise FormatError(f"{where}: names shards of the format {other!r:.20}; of MosaicML's, mds is read")
    return [_listed(shard) for shard in index.shards if shard.samples]


def _listed(shard: _Shard) -> ListedShard:
    raw, packed = shard.raw_data, shard.zip_data
    return ListedShard(
        raw.basename,
        raw.bytes,
        packed="" if packed is None else packed.basename,
        compression="" if packed is None else (shard.compression or "").partition(":")[0],
        num_samples=shard.samples,
        digests=tuple(raw.hashes.items()),
        packed_digests=() if packed is None else tuple(packed.hashes.items()),
    )
