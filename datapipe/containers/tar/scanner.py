"""Scan WebDataset shards: tar files in which consecutive members with one key make a sample.

Which files a tar has is told by `members`. As in webdataset, the base name is split at its *first* dot: `dir/a.b.jpg` has key
`dir/a` and field `b.jpg`; suffixes are lower-cased; hidden files (`._x.jpg`, `.DS_Store`) are not samples.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from datapipe.codecs.field_values import IMAGE_FIELD, LABEL_FIELD, NO_LABEL, FieldKind, FieldSpec
from datapipe.codecs.stored import why_absent
from datapipe.containers.columns import FieldExtents, further_fields, rows_of_extents
from datapipe.containers.field_names import AUDIO_FIELD, HEAD_NBYTES, IMAGE, LABEL
from datapipe.containers.labels import (
    LABEL_NAMES,
    MAX_LABEL_NBYTES,
    SaidLabels,
    is_no_class,
    label_names,
    label_text,
    said_labels,
    webdataset_number,
)
from datapipe.containers.listing import is_audio_name, is_video_name
from datapipe.containers.mapped import ByteSource, byte_source
from datapipe.containers.tar.layout import IMAGE_SUFFIXES, LABEL_SUFFIX, field_of_suffix
from datapipe.containers.tar.members import Member, scan_members
from datapipe.core.printable import counted, get_logger, listed
from datapipe.errors import DecodeError, FormatError
from datapipe.index.sidecar import SidecarRows

_MAX_SUFFIXES = 1000  # limit of different ones
_MAX_SHOWN = 3  # samples in a message
_MAX_NAMED = 20  # suffixes in a message

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

    Every sample needs an image, unless none has one and there are videos or sound. Labels are members `cls`, or without any,
    `label`: class numbers, or names of classes, as `said` of the rows has them; a sample without one is bad. A further field
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
            if suffix in LABEL_NAMES["tar"]:
                texts.setdefault(suffix, []).append(_label_bytes(member, data, where))
    if not keys:
        raise FormatError(f"{where}: no samples (no file with a name like KEY.jpg)")
    labels = _read_labels(texts, columns, keys, where)
    _tell_bad(bad if labels is None else labels.lacking | bad, len(keys), where)
    names = [f".{suffix}".encode() for suffix in columns]
    has_others = any(is_video_name(name) or is_audio_name(name) for name in names)
    has_images = not has_others or any(column.spec == IMAGE_FIELD for column in columns.values())
    images = {IMAGE: _images(columns, keys, where)} if has_images else {}
    if not has_images:  # sound is one field, whatever its formats
        for suffix, column in columns.items():
            if "." not in suffix and is_audio_name(f".{suffix}".encode()):
                column.spec = AUDIO_FIELD
    label = None if labels is None else columns.pop(labels.suffix)
    further, lacking = further_fields(columns, len(keys))
    fields = images | further
    if label is not None:
        label.spec = LABEL_FIELD
        fields = images | ({LABEL: label} if len(label) == len(keys) else {}) | further
    numbers = [NO_LABEL] * len(keys) if labels is None else labels.said.labels
    rows, specs = rows_of_extents(fields, keys, numbers, label_encoding=LABEL_SUFFIX)
    if labels is not None:
        rows.said = labels.said.texts
        if LABEL_FIELD not in specs:
            specs = (*specs[: len(images)], LABEL_FIELD, *specs[len(images) :])
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


@dataclass(frozen=True, slots=True)
class _Labels:
    """The labels of a shard."""

    suffix: str  # of the members that say them
    said: SaidLabels
    lacking: dict[bytes, str]  # samples without one, by key: why


def _read_labels(
    texts: dict[str, list[bytes]], columns: dict[str, FieldExtents], keys: list[bytes], where: str
) -> _Labels | None:
    """Return the labels; None if there are none. `texts`: of members that may be labels, by suffix, in their order.

    Raises FormatError for a number that is no class number.
    """
    suffix = next(iter(label_names("tar", texts)), None)
    if suffix is None:
        return None
    said = [""] * len(keys)
    lacking = dict.fromkeys(keys, f"has no {suffix}, which others have")
    for row, data in zip(columns[suffix].rows.tolist(), texts[suffix], strict=True):
        try:
            text = label_text(data)
        except UnicodeDecodeError:
            lacking[keys[row]] = f"its label {data[:20]!r} is not text"
            continue
        if is_no_class(text, webdataset_number):
            name = keys[row].decode(errors="replace")
            raise FormatError(
                f"{where}: label of sample {name!r} is {data[:40]!r}, expected a class number: whole, from 0, or -1"
            )
        said[row] = text
        if text:
            del lacking[keys[row]]
        else:
            lacking[keys[row]] = "its label is empty"
    return _Labels(suffix, said_labels(said, webdataset_number), lacking)


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


def _label_bytes(member: Member, data: ByteSource, where: str) -> bytes:
    try:
        return member.short_value(data, at_most=MAX_LABEL_NBYTES)
    except DecodeError as exc:
        raise FormatError(f"{where}: label {member.name.decode(errors='replace')!r} {exc}") from exc
