"""Arguments and attributes of the loaders of 0.1, until they go in 0.3: what takes their place, and what to write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from datapipe.core.deprecation import warn_deprecated
from datapipe.errors import OptionError
from datapipe.kernel.cache_settings import Cache
from datapipe.kinds.registry import part

_OF_IMAGES = ("fields", "boxes", "memory_format", "cache", "remote")


def with_images(arguments: dict[str, Any]) -> list[tuple[str, str]]:
    """Replace what says what a sample is: it belongs to `Images`."""
    given = {name: arguments.pop(name) for name in _OF_IMAGES if name in arguments}
    former = [*given]
    if "cache_nbytes" in arguments:
        former.append("cache_nbytes")
        given["cache"] = with_capacity(given.get("cache"), arguments.pop("cache_nbytes"))
    if not former:
        return []
    arguments["dataset"] = part("images", "data").Images(arguments["dataset"], **given)
    return [(_listed(former), f"DataLoader(datapipe.Images(source, {written(given)}), ...)")]


def with_capacity(cache: Any, nbytes: Any) -> Any:
    """Return `cache=` and `cache_nbytes=` as one. Raises OptionError for a capacity of no cache."""
    if cache is None and nbytes is not None:
        raise OptionError(f"cache_nbytes={nbytes} without a cache; pass cache=datapipe.Cache('ram', nbytes={nbytes})")
    return None if cache is None else Cache(cache, nbytes)


def with_output(arguments: dict[str, Any]) -> list[tuple[str, str]]:
    """Replace `rename`, which `output` says now."""
    if "rename" not in arguments:
        return []
    rename = arguments.pop("rename")
    if rename is not None and not hasattr(rename, "items"):
        raise OptionError(f"rename is {rename!r:.60}; pass output={{'image': 'pixel_values'}}")
    if rename and arguments.get("output") != "dict":
        raise OptionError("rename needs output='dict'; pass output= with the new names")
    if rename:
        arguments["output"] = rename
    return [("rename=", f"output={rename!r:.80}")]


def with_ranks(arguments: dict[str, Any]) -> list[tuple[str, str]]:
    """Replace `rank` and `world_size`, which `ranks` says now."""
    given = [name for name in ("rank", "world_size") if name in arguments]
    if not given:
        return []
    pair = arguments.pop("rank", None), arguments.pop("world_size", None)
    if (pair[0] is None) != (pair[1] is None):
        raise OptionError(f"rank={pair[0]}, world_size={pair[1]}: pass ranks=(rank, world_size)")
    arguments["ranks"] = None if pair[0] is None else pair
    return [(_listed(given), "ranks=(rank, world_size)")]


def written(arguments: dict[str, Any]) -> str:
    """Return arguments as a call has them."""
    return ", ".join(f"{name}={value!r:.60}" for name, value in arguments.items())


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"{name}=" for name in names)


def _attribute(now: str, find: Callable[[Any], Any]) -> Callable[[str, Any], Any]:
    def found(name: str, loader: Any) -> Any:
        warn_deprecated(f"loader.{name}", now, stacklevel=3)
        return find(loader)

    return found


# Attributes of the loaders of 0.1.
FORMER_ATTRIBUTES = {
    "fields": _attribute("loader.dataset.fields", lambda loader: loader.dataset.fields),
    "layout": _attribute("loader.dataset.layout", lambda loader: loader.dataset.layout),
    "recipe": _attribute("datapipe.explain(loader)", lambda loader: loader._passes.kind.recipe),
    "plan": _attribute("datapipe.explain(loader)", lambda loader: loader._passes.source),
    "store_facts": _attribute("datapipe.explain(loader)", lambda loader: loader._passes.kind.store_facts),
    "decoder_device": _attribute(
        "datapipe.explain(loader)",
        lambda loader: lambda: loader._passes.kind.decoder_device(loader._passes.settings()),
    ),
}
