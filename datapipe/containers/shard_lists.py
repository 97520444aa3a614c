"""The file by which some forms say which shards make up a set, such as MosaicML's `index.json`: its shards, in its order.

A form has such a file if FORMS names it (`lists`), and a module with `listed_shards(text, where)` that reads it, or returns None
for one of another form; where a list has splits, the name of one is the third argument. Shards that lie beside the list and are
not in it, as those of an interrupted run, are not of the set.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from datapipe.containers.forms import FORMS
from datapipe.core import regular_files
from datapipe.core.printable import counted, get_logger, listed
from datapipe.core.remembering import recall
from datapipe.errors import FormatError, MissingDataError, StorageError
from datapipe.stores.location import Location, Place
from datapipe.stores.objects import read_object

_MAX_SHOWN = 3
logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ListedShard:
    """A shard, as the list of its set has it."""

    name: str  # of its file
    nbytes: int | None  # None: its list does not say
    packed: str = ""  # the name of the file that holds it compressed; "" for one that is not
    compression: str = ""  # "zstd", "gz", "litdata", ...
    num_samples: int = 0  # 0: its list does not say
    digests: tuple[tuple[str, str], ...] = ()  # of its bytes as a file: (algorithm, hex), as "sha1"
    packed_digests: tuple[tuple[str, str], ...] = ()  # of those of the compressed file

    def is_packed_in(self, folder: Path) -> bool:
        """Return True if a folder holds it compressed alone."""
        return bool(self.packed) and not (folder / self.name).exists()

    def file_in(self, folder: Path) -> str:
        """Return the name of the file that holds it in a folder."""
        return self.packed if self.is_packed_in(folder) else self.name


@dataclass(frozen=True, slots=True)
class ShardList:
    """The shards of a set, in order, and what says so."""

    folder: Place  # to which their names are relative
    place: Place  # of the list
    shards: tuple[ListedShard, ...]


def shard_list(form: str, place: Place) -> ShardList | None:
    """Return the list of a set at a place, if its form has one; None if there is none, or one of another form.

    Where a list has several splits, a place such as `data/train` means the split `train` of the list in `data`.
    Raises StorageError; OptionError for a list of several splits of which none is named; and FormatError for a list that cannot
    be read, names no shards, or some outside of its folder.
    """
    return recall(("shard list", form, place), lambda: _find(form, place))


def _find(form: str, place: Place) -> ShardList | None:
    facts = FORMS[form]
    places = [(place, "")] + ([(place.parent, place.name)] if facts.has_splits else [])
    for (folder, split), name in itertools.product(places, facts.lists):
        text = _read(folder / name)
        shards = None if text is None else _shards(form, text, folder / name, split)
        if shards is not None:
            return ShardList(folder, folder / name, tuple(shards))
    return None


def _read(place: Place) -> bytes | None:
    """Return the text of a list, read once within `remembered` for all forms that may have written it; None if there is none."""
    return recall(("text of a shard list", place), lambda: _text(place))


def _text(place: Place) -> bytes | None:
    try:
        return read_object(place) if isinstance(place, Location) else regular_files.read_bytes(place)
    except (FileNotFoundError, NotADirectoryError, MissingDataError):
        return None
    except StorageError:
        raise
    except OSError as exc:
        raise StorageError(exc.errno, f"{place}: cannot be read ({exc.strerror}); check its permissions") from exc


def _shards(form: str, text: bytes, place: Place, split: str) -> list[ListedShard] | None:
    read = importlib.import_module(FORMS[form].list_reader).listed_shards
    shards: list[ListedShard] | None = read(text, str(place), split) if FORMS[form].has_splits else read(text, str(place))
    if shards is None:
        return None
    names = [name for shard in shards for name in (shard.name, shard.packed) if name]
    if not names:
        raise FormatError(f"{place}: names no shards with samples; check the path")
    outside = next((name for name in names if not {"", ".", ".."}.isdisjoint(name.split("/"))), None)
    if outside is not None:
        raise FormatError(f"{place}: names a shard outside of its folder: {outside!r:.80}; do not use this set")
    if len(set(names)) < len(names):
        raise FormatError(f"{place}: names a shard twice; write it again")
    return shards


def tell_unlisted(found: Collection[str], shards: Sequence[ListedShard], where: str) -> None:
    """Warn of files of shards that are not in the list of their set."""
    unlisted = sorted(set(found).difference(*((shard.name, shard.packed) for shard in shards)))
    if unlisted:
        shown = listed(unlisted, most=_MAX_SHOWN)
        logger.warning("%s: %s not in its list of shards, so not read: %s", where, counted(len(unlisted), "file"), shown)
