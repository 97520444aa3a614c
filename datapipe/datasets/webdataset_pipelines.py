"""webdataset's pipelines over shards that shuffle, decode and map samples: find the shards and the map."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from datapipe.containers.foreign import ForeignShards, open_foreign
from datapipe.containers.remote_shards import open_remote_shards, shards_at
from datapipe.datasets.image_folders import leaves_as_it_is
from datapipe.datasets.seen import DatasetFiles
from datapipe.errors import DatapipeError
from datapipe.index.sample_index import SampleIndex
from datapipe.stores.location import Location, is_url
from datapipe.stores.places import parse_location

_IMAGE_SUFFIXES = frozenset(("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm"))
_PIL = ("pil", "pilrgb")
_PLAIN_CURL = re.compile(r"-[sSfLN]+|--(silent|show-error|fail|location|no-buffer)")
_PLAIN_AWS = {"--quiet", "--no-progress", "--only-show-errors"}
_PLAIN = ("StreamingOpen", "tar_file_expander", "group_by_keys", "check_empty", "single_node_only", "split_by_worker")


class _UnseenError(Exception):
    """The reason why a pipeline cannot be read by datapipe."""


def webdataset_stream(pipeline: Any) -> DatasetFiles | str | None:
    """Return the shards and settings of a `WebDataset`, or the reason why datapipe cannot read it; None for any other object.

    Supported are shards that are local files, or objects of one prefix in a store (`https:`, `s3:`, `gs:`, and `pipe:` with a
    plain `curl` or `aws s3 cp`), `shuffle`, `decode("pil")`, `to_tuple` of an image and optionally `cls`, `map_tuple` and
    `batched`, in any sensible combination.
    """
    kind = type(pipeline)
    if not kind.__module__.startswith("webdataset.") or not hasattr(pipeline, "pipeline"):
        return None
    try:
        return _Stages(pipeline).seen()
    except _UnseenError as exc:
        return f"the webdataset pipeline {exc}"
    except DatapipeError as exc:
        return str(exc)


class _Stages:
    """The stages of a pipeline, parsed one after the other."""

    def __init__(self, pipeline: Any) -> None:
        if pipeline.repetitions != 1 or pipeline.nsamples != -1:
            raise _UnseenError("sets the length of its epochs (with_epoch, repeat)")
        self.names: list[Path | Location] = []
        self.shuffles = self.splits_by_node = self.drop_last = self.decodes = False
        self.wanted: tuple[str, ...] = ()
        self.maps: tuple[Callable[[Any], Any] | None, ...] = ()
        self.batch_size: int | None = None
        for stage in pipeline.pipeline:
            self._take(stage)

    def seen(self) -> DatasetFiles:
        if not self.decodes or not self.wanted:
            raise _UnseenError("does not decode('pil') images and to_tuple() them")
        if len(self.wanted) > 1 and len(self.maps) > 1 and not leaves_as_it_is(self.maps[1]):
            raise _UnseenError("maps labels to others")
        transform = self.maps[0] if self.maps else None
        index = _opened(self.names)
        if len(self.wanted) > 1 and index.manifest.classes is not None:
            raise _UnseenError("has labels that are names, which its decoder does not read")
        return DatasetFiles(
            index=index,
            fields=("image", "label")[: len(self.wanted)],
            transform=transform,
            shuffles=self.shuffles,
            splits_by_node=self.splits_by_node,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
        )

    def _take(self, stage: Any) -> None:
        function = getattr(stage, "f", stage)
        name = getattr(function, "__name__", type(stage).__name__)
        arguments: Sequence[Any] = getattr(stage, "args", ())
        options: dict[str, Any] = getattr(stage, "kw", {})
        handler = options.get("handler", getattr(stage, "handler", None))
        if handler is not None and getattr(handler, "__name__", "") != "reraise_exception":
            raise _UnseenError(f"has an error handler ({getattr(handler, '__name__', type(handler).__name__)})")
        if not str(getattr(function, "__module__", "")).startswith("webdataset."):
            raise _UnseenError(f"has an unsupported stage ({name})")
        if self.batch_size is not None:
            raise _UnseenError(f"does more than batch its samples ({name})")
        if name == "SimpleShardList":
            self.names = [_place_of(url) for url in stage.urls]
        elif name == "_shuffle":
            self.shuffles = self.shuffles or bool(arguments and arguments[0])
        elif name == "split_by_node":
            self.splits_by_node = True
        elif name == "_map" and not self.decodes:
            self._take_decoder(arguments[0])
        elif name == "_to_tuple" and not self.wanted and options.get("missing_is_error", True):
            self._take_fields(arguments)
        elif name == "_map_tuple" and not self.maps:
            self.maps = tuple(arguments)
        elif name == "_batched":
            self._take_batches(arguments, options)
        elif name not in _PLAIN or options.get("select_files") or options.get("rename_files"):
            raise _UnseenError(f"has an unsupported stage ({name})")

    def _take_decoder(self, decoder: Any) -> None:
        handlers = [getattr(one, "imagespec", getattr(one, "__name__", "")) for one in getattr(decoder, "handlers", ())]
        alone = [["gzfilter", spec, "basichandlers"] for spec in _PIL]
        if type(decoder).__name__ != "Decoder" or handlers not in alone or decoder.only is not None:
            name = getattr(decoder, "__name__", type(decoder).__name__)
            raise _UnseenError(f"maps samples with {name}, which is not decode('pil') alone")
        self.decodes = True

    def _take_fields(self, arguments: Sequence[Any]) -> None:
        wanted = arguments[0].split() if len(arguments) == 1 and isinstance(arguments[0], str) else list(arguments)
        images = {part.lower() for part in str(wanted[0]).split(";")}
        if not images <= _IMAGE_SUFFIXES or [str(name) for name in wanted[1:]] not in ([], ["cls"]):
            raise _UnseenError(f"yields {', '.join(map(str, wanted))}, which is not an image and optionally cls")
        self.wanted = tuple(map(str, wanted))

    def _take_batches(self, arguments: Sequence[Any], options: dict[str, Any]) -> None:
        collation = options.get("collation_fn")
        if getattr(collation, "__name__", "") != "default_collation_fn" or len(arguments) > 1:
            raise _UnseenError("collates batches with its own function")
        self.batch_size = arguments[0] if arguments else 20
        self.drop_last = not options.get("partial", True)


def _opened(places: list[Path | Location]) -> SampleIndex:
    """The index of the shards, all of them local files or all of them objects."""
    remote = [place for place in places if isinstance(place, Location)]
    local = [place for place in places if isinstance(place, Path)]
    if remote and not local:
        return open_remote_shards(shards_at(remote, f"{remote[0]}, ..."))
    if remote or len({place.parent for place in local}) != 1:
        raise _UnseenError("reads shards of several directories")
    return open_foreign(ForeignShards("tar", local[0].parent, tuple(place.name for place in local)))


def _place_of(url: Any) -> Path | Location:
    """Where a shard lies. Raises OptionError for URLs that are not read, such as signed ones, and does not repeat secrets."""
    text = os.fspath(url) if isinstance(url, os.PathLike) else str(url)
    if text.startswith("pipe:"):
        text = _url_of_command(text.removeprefix("pipe:"))
    text = text.removeprefix("file:")
    if is_url(text):
        return parse_location(text)
    if ":" in text or not Path(text).is_file():
        raise _UnseenError(f"reads {text}, which is not a local file")
    return Path(text).absolute()


def _url_of_command(command: str) -> str:
    """The URL that a command fetches, where it does nothing else."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = []
    urls, others = [word for word in words if is_url(word)], [word for word in words if not is_url(word)]
    is_curl = others[:1] == ["curl"] and all(_PLAIN_CURL.fullmatch(word) for word in others[1:])
    is_aws = others[:3] == ["aws", "s3", "cp"] and others[-1] == "-" and set(others[3:-1]) <= _PLAIN_AWS
    if len(urls) != 1 or not (is_curl or is_aws):
        program = words[0] if words else "a command"
        raise _UnseenError(f"reads from {program}, of which datapipe knows a plain 'curl URL' and 'aws s3 cp URL -' alone")
    return urls[0]
