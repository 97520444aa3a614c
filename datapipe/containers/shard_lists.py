"""The file by which some forms say which shards make up a set, such as MosaicML's `index.json`: its shards, in its order.

A form has such a file if FORMS names one (`list_name`), and a module with `listed_shards(text, where)` that reads it, or returns
None for one of another form. Shards that lie beside it and are not in it, as those of an interrupted run, are not of the set.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

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


def shards_of_list(form: str, folder: Place) -> list[ListedShard] | None:
    """Return the shards of a set whose form has a list of them, in order; None if there is no list, or one of another form.

    Raises StorageError, and FormatError for a list that cannot be read, names no shards, or some outside of its folder.
    """
    name = FORMS[form].list_name
    return recall(("shard list", form, folder), lambda: _read_list(form, folder / name)) if name else None


def _read_list(form: str, place: Place) -> list[ListedShard] | None:
    try:
        text = read_object(place) if isinstance(place, Location) else regular_files.read_bytes(place)
    except (FileNotFoundError, NotADirectoryError, MissingDataError):
        return None
    except StorageError:
        raise
    except OSError as exc:
        raise StorageError(exc.errno, f"{place}: cannot be read ({exc.strerror}); check its permissions") from exc
    shards: list[ListedShard] | None = importlib.import_module(FORMS[form].list_reader).listed_shards(text, str(place))
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
