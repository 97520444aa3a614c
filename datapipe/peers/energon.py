"""Read the splits of a Megatron Energon dataset: which of its tars make up which, by `.nv-meta/split.yaml`.

    split_parts: {train: ["shards/{000..037}.tar", ...], val: [...]}
    exclude: ["shards/005.tar", ...]

The tars are WebDataset's (megatron/energon/flavors/webdataset/structs.py). What `dataset.yaml` says of samples is for Energon's
own code, and not read: fields are called by the suffixes of members.
"""

from __future__ import annotations

import json
from typing import Any

from datapipe.containers.remote_shards import expanded
from datapipe.containers.shard_lists import ListedShard
from datapipe.core.printable import listed
from datapipe.errors import DependencyError, FormatError, OptionError

_MAX_EXCLUDED_SHOWN = 3


def listed_shards(text: bytes, where: str, split: str) -> list[ListedShard] | None:
    """Return the tars of a split, without excluded ones; None if there is none of that name. `split`: "" for the only one.

    Raises OptionError if there are several and none is named; FormatError if the list does not parse, or excludes single samples;
    DependencyError for YAML without PyYAML.
    """
    splits, excluded = _parsed(text, where)
    if not split:
        full = [name for name, shards in splits.items() if shards]
        if len(full) != 1:
            folder, named = where.rpartition("/.nv-meta/")[0], listed(full, most=5) or "none"
            raise OptionError(f"{where}: has the splits {named}; open one, as {folder}/{(full or ['train'])[0]}")
        split = full[0]
    if split not in splits:
        return None
    left_out = {name for pattern in excluded for name in expanded(pattern)}
    names = [name for pattern in splits[split] for name in expanded(pattern)]
    single = sorted(name for name in left_out if name not in names and any(name.startswith(f"{one}/") for one in names))
    if single:
        shown = listed(single, most=_MAX_EXCLUDED_SHOWN)
        raise FormatError(f"{where}: excludes single samples ({shown}), which is not read; write the shards without them")
    return [ListedShard(name, None) for name in names if name not in left_out]


def _parsed(text: bytes, where: str) -> tuple[dict[str, list[str]], list[str]]:
    """Return the tars by split, and what is excluded; names may have braces."""
    try:
        value: Any = json.loads(text) if where.endswith(".json") else _yaml(text, where)
        splits, excluded = value["split_parts"], value.get("exclude") or []
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise FormatError(f"{where}: does not parse as Energon's ({str(exc)!r:.80}); prepare the dataset again") from exc
    lists = [*splits.values(), excluded] if isinstance(splits, dict) else [None]
    if not all(isinstance(one, list) and all(isinstance(name, str) for name in one) for one in lists):
        raise FormatError(f"{where}: its splits are no lists of names; prepare the dataset again")
    return splits, excluded


def _yaml(text: bytes, where: str) -> Any:
    try:
        import yaml  # type: ignore[import-untyped]  # late: only Energon's datasets need it
    except ImportError as exc:
        raise DependencyError(f"{where}: needs PyYAML; pip install pyyaml") from exc
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as exc:
        raise ValueError(str(exc).splitlines()[0]) from exc
