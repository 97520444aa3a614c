"""Scan WebDataset shards: tar files in which consecutive members with one key make a sample.

Which files a tar has is told by `members`. As in webdataset, the base name is split at its *first* dot: `dir/a.b.jpg` has key
`dir/a` and field `b.jpg`; suffixes are lower-cased; hidden files (`._x.jpg`, `.DS_Store`) are not samples.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from datapipe.codecs.field_values import IMAGE_FIELD, LABEL_FIELD, NO_LABEL, FieldKind, FieldSpec
from datapipe.codecs.stored import why_absent
from datapipe.containers.columns import FieldExtents, further_fields, rows_of_extents
from datapipe.containers.field_names import AUDIO_FIELD, HEAD_NBYTES, IMAGE, LABEL
from datapipe.containers.listing import is_audio_name, is_video_name
from datapipe.containers.mapped import ByteSource, byte_source
from datapipe.containers.tar.layout import IMAGE_SUFFIXES, LABEL_SUFFIX, LABEL_SUFFIXES, field_of_suffix, label_number, label_text
from datapipe.containers.tar.members import Member, scan_members
from datapipe.core.printable import counted, get_logger, listed
from datapipe.errors import DecodeError, FormatError
from datapipe.index.sidecar import SidecarRows

_MAX_SUFFIXES = 1000  # limit of different ones
_MAX_SHOWN = 3  # samples in a message
_MAX_NAMED = 20  # suffixes in a message
_MAX_LABEL_NBYTES = 256  # of its text, blanks included

logger = get_logger(__name__)


def split_name(name: bytes) -> tuple[bytes, str] | None:
    """Return (key, field suffix) of a member, or None for a hidden file or one without a suffix."""
    directory, slash, base = name.rpartition(b"/")
    stem, dot, suffix = base.partition(b".")
    if not stem or not dot or not suffix:
        return None
    return directory + slash + stem, suffix.decode(errors="replace").lower()


def index_shard(path: str | Path) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    """Scan one shard; ids are row numbers. Fields: the image, the label, and others that all samples have.

    Every sample needs an image, unless none has one and there are videos or sound; either every sample has a `cls` member (a
    decimal class number) or none. Without these, members `label` are labels if all samples have such a number. A further field
    that only some have is left out, and counted in `lacking` of the rows. Raises MissingDataError, StorageError or FormatError,
    naming shard and sample.
    """
    with byte_source(path, "a tar") as data:
        return _index_members(data, str(path))


def _index_members(data: ByteSource, where: str) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    keys: list[bytes] = []
    columns: dict[str, FieldExtents] = {}  # by suffix
    texts: dict[str, list[bytes]] = {}  # of labels, by suffix; read as they are met, so that a tar in a store is passed over once
    bad: dict[bytes, str] = {}  # samples some field of which cannot be read, by key
    num_strange = 0
    for row, (key, members) in enumerate(_group(scan_members(data, where), where)):
        keys.append(key)
        for suffix, member in members.items():
            column = columns.get(suffix)
            if column is None:
                if len(columns) == _MAX_SUFFIXES:
                    num_strange += 1
                    continue
                head = member.head(data, HEAD_NBYTES)
                column = columns[suffix] = FieldExtents(field_of_suffix(suffix, head))
            column.add(row, member.offset, member.nbytes, member.codec)
            if member.codec and (reason := why_absent(member.codec)) is not None:
                bad[key] = f"{suffix} {reason}"
            if suffix in LABEL_SUFFIXES:
                texts.setdefault(suffix, []).append(_label_text(member, data, where))
    if not keys:
        raise FormatError(f"{where}: no samples (no file with a name like KEY.jpg)")
    _tell_bad(bad, len(keys), where)
    names = [f".{suffix}".encode() for suffix in columns]
    has_others = any(is_video_name(name) or is_audio_name(name) for name in names)
    has_images = not has_others or any(column.spec == IMAGE_FIELD for column in columns.values())
    images = {IMAGE: _images(columns, keys, where)} if has_images else {}
    if not has_images:  # sound is one field, whatever its formats
        for suffix, column in columns.items():
            if "." not in suffix and is_audio_name(f".{suffix}".encode()):
                column.spec = AUDIO_FIELD
    suffix, numbers = _labels(texts, keys, columns, where)
    labels = {LABEL: columns.pop(suffix)} if suffix else {}
    for column in labels.values():
        column.spec = LABEL_FIELD
    further, lacking = further_fields(columns, len(keys))
    rows, specs = rows_of_extents(images | labels | further, keys, numbers, label_encoding=LABEL_SUFFIX)
    rows.lacking = lacking
    if num_strange:
        rows.unread["..."] = f"{num_strange} members of more than {_MAX_SUFFIXES} suffixes: do the keys have dots?"
    return rows, specs


def _images(columns: dict[str, FieldExtents], keys: list[bytes], where: str) -> FieldExtents:
    """Return the image of every sample, removed from `columns`: the best one of several with nothing but a suffix as name."""
    suffixes = [suffix for suffix, column in columns.items() if column.spec == IMAGE_FIELD]
    image = FieldExtents(IMAGE_FIELD)
    others: dict[str, FieldExtents] = {}
    taken = np.zeros(len(keys), bool)
    for suffix in sorted(suffixes, key=lambda suffix: IMAGE_SUFFIXES.index(suffix.rpartition(".")[2])):
        column = columns.pop(suffix)
        mine, rest = column.parted(~taken[column.rows])
        taken[mine.rows] = True
        image = image.joined(mine) if len(image) else mine
        if len(rest):
            rest.spec = FieldSpec(suffix.replace(".", "_"), FieldKind.IMAGE)
            others[suffix] = rest
    if not taken.all():
        row = int(np.argmin(taken))
        has = [suffix for suffix, column in (columns | others).items() if row in column.rows]
        remedy = f"{len(keys) - int(taken.sum())} of {counted(len(keys), 'sample')}: convert --on-error skip leaves them out"
        if any(suffix.rpartition(".")[0] and suffix.rpartition(".")[2] in IMAGE_SUFFIXES for suffix in has):
            remedy = "a key ends at the first dot of a name: if keys have dots in them, pack the files under names without"
        raise FormatError(
            f"{where}: sample {keys[row].decode(errors='replace')!r} has no image (has: {listed(has, most=_MAX_NAMED)};"
            f" looked for {', '.join(IMAGE_SUFFIXES)}); {remedy}"
        )
    columns.update(others)
    return image


def _labels(
    texts: dict[str, list[bytes]], keys: list[bytes], columns: dict[str, FieldExtents], where: str
) -> tuple[str, list[int]]:
    """Return the suffix of the labels, "" if there are none, and the label of each sample. `texts`: by suffix, in order."""
    suffix = next((name for name in LABEL_SUFFIXES if name in texts), "")
    if not suffix:
        return "", [NO_LABEL] * len(keys)
    parsed = [*map(_label_number, texts[suffix])]
    numbers = [number for number in parsed if number is not None]
    if len(numbers) == len(keys):
        return suffix, numbers
    is_whole = len(parsed) == len(keys)
    row = parsed.index(None) if is_whole else int(np.setdiff1d(np.arange(len(keys)), columns[suffix].rows)[0])
    name = keys[row].decode(errors="replace")
    what = f"label of sample {name!r} is {texts[suffix][row][:40]!r}, expected a decimal class number" if is_whole else ""
    if suffix == LABEL_SUFFIX:
        lacking = f"{len(keys) - len(parsed)} of {counted(len(keys), 'sample')}: convert --on-error skip leaves them out"
        problem = what or f"some samples have a field {LABEL_SUFFIX!r} and some do not, e.g. {name!r}; {lacking}"
        raise FormatError(f"{where}: {problem}{'; datapipe convert numbers names of classes' if what else ''}")
    logger.warning(
        "%s: %r holds no class numbers of all samples (%s); the set is read without labels", where, suffix, what or name
    )
    return "", [NO_LABEL] * len(keys)


def _label_number(text: bytes) -> int | None:
    try:
        return label_number(label_text(text))
    except UnicodeDecodeError:
        return None


def _group(members: Iterator[Member], where: str) -> Iterator[tuple[bytes, dict[str, Member]]]:
    """Yield the key of each sample, and its members by suffix: consecutive members with one key."""
    done: set[bytes] = set()
    named = ((*split, member) for member in members if (split := split_name(member.name)) is not None)
    for key, group in itertools.groupby(named, key=operator.itemgetter(0)):
        if key in done:
            raise FormatError(
                f"{where}: the members of sample {key.decode(errors='replace')!r} are not consecutive; "
                "readers would take it for two samples: sort the members by name, or convert again"
            )
        done.add(key)
        fields: dict[str, Member] = {}
        for _, suffix, member in group:
            if suffix in fields:
                raise FormatError(f"{where}: sample {key.decode(errors='replace')!r} has two fields {suffix!r}; convert again")
            fields[suffix] = member
        yield key, fields


def _tell_bad(bad: dict[bytes, str], num: int, where: str) -> None:
    """Log how many samples cannot be read. Raises FormatError if that is all of them."""
    shown = "; ".join(f"{key.decode(errors='replace')} ({why})" for key, why in itertools.islice(bad.items(), _MAX_SHOWN))
    if len(bad) == num:
        raise FormatError(f"{where}: none of its {counted(num, 'sample')} can be read: {shown}")
    if bad:
        logger.warning(
            "%s: %d of %s cannot be read, which on_error= decides about: %s", where, len(bad), counted(num, "sample"), shown
        )


def _label_text(member: Member, data: ByteSource, where: str) -> bytes:
    try:
        return member.short_value(data, at_most=_MAX_LABEL_NBYTES)
    except DecodeError as exc:
        raise FormatError(f"{where}: label {member.name.decode(errors='replace')!r} {exc}") from exc
