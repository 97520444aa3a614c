"""Arguments and attributes of loaders that go in 0.3: what takes their place, and what to write."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from datapipe.core.deprecation import warn_deprecated
from datapipe.errors import OptionError
from datapipe.kernel.cache_settings import Cache
from datapipe.kinds.registry import part

_OF_IMAGES = ("fields", "boxes", "memory_format", "cache", "remote")
OF_RANKS = ("rank", "world_size")
OF_LOADERS = (*_OF_IMAGES, "cache_nbytes", "rename", *OF_RANKS)


def with_images(arguments: dict[str, Any]) -> list[tuple[str, str]]:
    """Replace what says what a sample is: it belongs to `Images`."""
    given = {name: arguments.pop(name) for name in _OF_IMAGES if name in arguments}
    former = [*given]
    if "cache_nbytes" in arguments:
        former.append("cache_nbytes")
        given["cache"] = with_capacity(given.get("cache"), arguments.pop("cache_nbytes"))
    if not former:
        return []
    dataset = arguments["dataset"]
    images = part("images", "data").Images
    if hasattr(dataset, "open_kind") and not isinstance(dataset, images):
        raise OptionError(
            f"{listed(former)} is for images, and the data is {dataset!r:.80}; leave it out, or pass it to the data"
        )
    arguments["dataset"] = images(dataset, **given)
    return [(listed(former), f"DataLoader(datapipe.Images(source, {_written(given)}), ...)")]


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
    return [("rename=", f"output={rename!r}")]


def with_ranks(arguments: dict[str, Any]) -> list[tuple[str, str]]:
    """Replace `rank` and `world_size`, which `ranks` says now."""
    given = [name for name in OF_RANKS if name in arguments]
    if not given:
        return []
    pair = arguments.pop("rank", None), arguments.pop("world_size", None)
    if (pair[0] is None) != (pair[1] is None):
        raise OptionError(f"rank={pair[0]}, world_size={pair[1]}: pass ranks=(rank, world_size)")
    arguments["ranks"] = None if pair[0] is None else pair
    return [(listed(given), "ranks=(rank, world_size)")]


def _written(arguments: dict[str, Any]) -> str:
    """Return arguments as a call has them, long values left out."""
    texts = {name: repr(value).replace("Cache(where=", "datapipe.Cache(") for name, value in arguments.items()}
    return ", ".join(f"{name}={text if len(text) < 60 else '...'}" for name, text in texts.items())


def listed(names: Iterable[str]) -> str:
    """Return names of arguments as a message has them."""
    return ", ".join(f"{name}=" for name in names)


def _attribute(now: str, find: Callable[[Any], Any]) -> Callable[[str, Any], Any]:
    def found(name: str, loader: Any) -> Any:
        try:
            value = find(loader)
        except AttributeError as exc:
            raise AttributeError(f"{type(loader).__name__!r} object has no attribute {name!r}") from exc
        warn_deprecated(f"loader.{name}", now, stacklevel=3)
        return value

    return found


FORMER_ATTRIBUTES = {
    "fields": _attribute("loader.dataset.fields", lambda loader: loader.dataset.fields),
    "layout": _attribute("loader.dataset.layout", lambda loader: loader.dataset.layout),
    "recipe": _attribute("datapipe.explain(loader), which says it", lambda loader: loader._passes.kind.recipe),
    "plan": _attribute("datapipe.explain(loader), which says it", lambda loader: loader._passes.source),
    "store_facts": _attribute("datapipe.explain(loader), which says it", lambda loader: loader._passes.kind.store_facts),
    "decoder_device": _attribute(
        "datapipe.explain(loader), which says it",
        lambda loader: lambda: loader._passes.kind.decoder_device(loader._passes.settings()),
    ),
}
