"""Read `index.json` of a LitData folder: its chunks, how they are compressed, and how the values of a sample are stored.

`data_spec` is the tree of a sample, as torch's pytree writes it: a node is {"type", "context", "children_spec"}, of which the
type of a leaf is null, and the context of a dict is a JSON list of its keys. `data_format` says, leaf by leaf, how it is stored
(litdata/streaming/writer.py).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

import msgspec

from datapipe.containers.foreign import stamp_of
from datapipe.containers.shard_lists import ListedShard
from datapipe.core import regular_files
from datapipe.errors import FormatError, MissingDataError, StorageError
from datapipe.peers.litdata.formats import parse_format
from datapipe.peers.packed_fields import StoredAs
from datapipe.stores.location import is_url
from datapipe.stores.objects import read_object
from datapipe.stores.places import parse_location

NAME = "index.json"
_MAX_LEAVES = 1000
_MAX_DEPTH = 32
_MAX_KEPT = 4  # indexes, whose chunks are looked at one after the other


class _Chunk(msgspec.Struct):
    filename: str
    chunk_bytes: int
    chunk_size: int


class _Config(msgspec.Struct):
    data_format: list[str] | None = None
    data_spec: str | None = None
    compression: str | None = None
    compression_level: str | int | None = None
    encryption: Any = None
    item_loader: str | None = None


class _Index(msgspec.Struct):
    chunks: list[_Chunk] | None = None
    config: _Config = msgspec.field(default_factory=_Config)


def listed_shards(text: bytes, where: str) -> list[ListedShard] | None:
    """Return the chunks that an `index.json` names; None for one of another form. `where`: its path.

    Raises FormatError, also for chunks that are not read.
    """
    index = _parsed(text, where)
    config, chunks = index.config, index.chunks
    if chunks is None:
        return None
    if config.encryption is not None:
        raise FormatError(f"{where}: its chunks are encrypted, and not read; write them without encryption")
    if config.item_loader not in (None, "PyTreeLoader"):
        raise FormatError(
            f"{where}: its chunks are those of LitData's {config.item_loader!r:.40}; those of its PyTreeLoader are read"
        )
    algorithm, level = (config.compression or "").partition(":")[0], config.compression_level or "chunk"
    if not algorithm:
        return [ListedShard(one.filename, one.chunk_bytes) for one in chunks]
    if algorithm != "zstd" or level not in ("chunk", "batch"):
        raise FormatError(
            f"{where}: its chunks are compressed by {algorithm!r:.20} per {level!r:.20}; zstd per chunk or batch is read"
        )
    if level == "batch":
        return [ListedShard(f"unpacked-{one.filename}", None, one.filename, "litdata") for one in chunks]
    return [ListedShard(f"unpacked-{one.filename}", one.chunk_bytes, one.filename, algorithm) for one in chunks]


def leaves_beside(path: str) -> dict[str, StoredAs]:
    """Return how the values of samples are stored, by their paths in a sample, for the chunk at `path`, or at its URL.

    Raises MissingDataError or StorageError without an `index.json` beside it, and FormatError.
    """
    place = f"{path.rpartition('/')[0]}/{NAME}"
    return _leaves_in(place, stamp_of(place))


@functools.lru_cache(maxsize=_MAX_KEPT)
def _leaves_in(place: str, stamp: tuple[int, int]) -> dict[str, StoredAs]:
    try:
        text = read_object(parse_location(place)) if is_url(place) else regular_files.read_bytes(place)
    except (FileNotFoundError, MissingDataError) as exc:
        raise MissingDataError(f"{place}: is missing, and chunks of LitData's cannot be read without it") from exc
    except StorageError:
        raise
    except OSError as exc:
        raise StorageError(exc.errno, f"{place}: cannot be read ({exc.strerror})") from exc
    config = _parsed(text, place).config
    names = list(_names(config.data_spec, place))
    formats = config.data_format or []
    if not 0 < len(names) == len(formats) <= _MAX_LEAVES or len(set(names)) < len(names):
        raise FormatError(f"{place}: names {len(names)} values a sample and {len(formats)} formats; write the set again")
    return {name or one.partition(":")[0]: parse_format(one) for name, one in zip(names, formats, strict=True)}


def _parsed(text: bytes, where: str) -> _Index:
    try:
        return msgspec.json.decode(text, type=_Index)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise FormatError(f"{where}: does not parse as LitData's ({exc}); get the file again") from exc


def _names(spec: str | None, where: str) -> Iterator[str]:
    """Yield the paths of leaves in a sample, as `camera.front`; "" for a sample that is a leaf itself."""
    try:
        _, tree = json.loads(spec or "")
        for number, name in enumerate(_leaves(tree, (), 0)):
            if number > _MAX_LEAVES:
                break
            yield name
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise FormatError(f"{where}: its data_spec, the tree of a sample, does not parse ({exc!r:.80})") from exc


def _leaves(node: Any, path: tuple[str, ...], depth: int) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        raise ValueError("too deep")
    if node["type"] is None:
        yield ".".join(path)
        return
    children = node["children_spec"]
    keys = json.loads(node["context"]) if node["type"].endswith("dict") else range(len(children))
    for key, child in zip(keys, children, strict=True):
        yield from _leaves(child, (*path, str(key)), depth + 1)
