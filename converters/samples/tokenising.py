"""Turn planned documents into token ids: their texts are read, and encoded many at a time."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from converters.samples.examine import Treatment
from converters.samples.reading import LeftOutSample, PlannedSample, Roots, has_fields, read_each
from converters.tokenizer import Encoder, Tokenizing, open_fast, open_reference
from converters.writers import StoredField, StoredSample
from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.codecs.tokenizer_facts import panics_as_errors
from datapipe.errors import DecodeError
from datapipe.index.listed import field_of_origin, missing_fields

_MOST_AT_ONCE, _MOST_NBYTES = 512, 4 << 20  # documents that are encoded at once
_CHECKED_FIRST = 16  # of a shard
_CHECKED_EVERY = 1000


class EncodersDifferError(Exception):
    """The faster encoder gave other ids than the reference."""


def stored_fields(fields: Sequence[FieldSpec]) -> tuple[FieldSpec, ...]:
    """Return the fields of ids that texts become: `tokens` if there is one, else by the names of the texts."""
    texts = _names_of_texts(fields)
    names = ["tokens"] if len(texts) == 1 else texts
    others = [field for field in fields if field.name not in texts]
    return (*(FieldSpec(name, FieldKind.TOKENS) for name in names), *others)


def _names_of_texts(fields: Sequence[FieldSpec]) -> list[str]:
    return [field.name for field in fields if field.kind in (FieldKind.TEXT, FieldKind.JSON)]


def tokenised_samples(
    roots: Roots,
    planned: Iterable[PlannedSample],
    fields: tuple[FieldSpec, ...],
    treatment: Treatment,
    *,
    is_reference: bool = False,
) -> Iterator[tuple[PlannedSample, StoredSample | LeftOutSample]]:
    """Yield the documents of a shard, in order, each with its plan; see `reading.read_samples`.

    `is_reference`: by the reference alone. Raises EncodersDifferError if the faster encoder gives other ids than the reference in
    one of the documents that are compared: the first of the shard, and one in a thousand after those.
    """
    texts = _names_of_texts(fields)
    names = dict(zip(texts, [field.name for field in stored_fields(fields)], strict=False))
    is_complete = has_fields(fields)
    tokenizing = treatment.tokenizing
    assert tokenizing is not None
    has_images = tokenizing.images is not None
    encode = (
        _chats(tokenizing) if tokenizing.template is not None or has_images else _plain(tokenizing, is_reference=is_reference)
    )
    for group in _groups(read_each(roots, planned)):
        found: list[dict[str, str] | str] = []  # of each document, its texts, or what is wrong
        for sample, contents, problem in group:
            if problem is None and not is_complete(sample):
                problem = missing_fields(fields, frozenset((*sample.origins, *sample.values)), sample.label)
            found.append(problem or _texts_of(texts, sample.values, contents))
        encoded = iter(encode([text for one in found if isinstance(one, dict) for text in one.values()]))
        for (sample, contents, _), one in zip(group, found, strict=True):
            made = {} if isinstance(one, str) else {name: next(encoded) for name in one}
            wrong = [f"field {name!r}: {reason}" for name, reason in made.items() if isinstance(reason, DecodeError)]
            if isinstance(one, str) or wrong:
                yield sample, LeftOutSample(sample, one if isinstance(one, str) else wrong[0], contents)
                continue
            stored = {names[name]: field for name, field in made.items() if isinstance(field, StoredField)}
            if has_images:
                try:
                    stored |= _images_of(stored, contents, fields, treatment)
                except DecodeError as exc:
                    yield sample, LeftOutSample(sample, str(exc), contents)
                    continue
            yield sample, StoredSample(sample.id, sample.source, sample.label, (0, 0), stored)


def _images_of(
    stored: Mapping[str, StoredField], contents: Mapping[str, bytes], fields: Sequence[FieldSpec], treatment: Treatment
) -> dict[str, StoredField]:
    """Return the images of a document, whose tokens are stored. Raises DecodeError for a bad one."""
    from converters.samples.conversation_images import stored_images  # which needs Pillow

    assert treatment.tokenizing is not None
    facts = treatment.tokenizing.facts
    (ids,) = (np.frombuffer(one.data, facts.stored) for one in stored.values())
    (name,) = (field.name for field in fields if field.kind is FieldKind.IMAGES)
    images = [data for origin, data in contents.items() if origin != name and field_of_origin(origin) == name]
    return {name: stored_images(images, np.flatnonzero(ids == facts.image), treatment)}


_Read = tuple[PlannedSample, dict[str, bytes], str | None]  # as `read_each` yields it


def _groups(read: Iterator[_Read]) -> Iterator[list[_Read]]:
    """Yield documents that are encoded at once: many, and not much more than a few MB of them."""
    group: list[_Read] = []
    nbytes = 0
    for one in read:
        group.append(one)
        nbytes += sum(map(len, one[1].values())) + sum(map(len, one[0].values.values()))
        if len(group) == _MOST_AT_ONCE or nbytes >= _MOST_NBYTES:
            yield group
            group, nbytes = [], 0
    if group:
        yield group


Encoding = Callable[[Sequence[str]], list[StoredField | DecodeError]]


def _plain(tokenizing: Tokenizing, *, is_reference: bool) -> Encoding:
    """Return what encodes texts."""
    ids_of = open_encoder(tokenizing, is_reference=is_reference)

    def encode(texts: Sequence[str]) -> list[StoredField | DecodeError]:
        try:
            return _stored(tokenizing, ids_of(texts))
        except DecodeError as exc:
            if len(texts) == 1:
                return [exc]
        return [one for text in texts for one in encode([text])]

    return encode


def _chats(tokenizing: Tokenizing) -> Encoding:
    """Return what encodes chats, with the runs of the assistant."""
    from converters.samples.chats import open_renderer

    renderer = open_renderer(tokenizing)

    def encode(texts: Sequence[str]) -> list[StoredField | DecodeError]:
        found = renderer.encode_each(text.encode() for text in texts)
        return [one if isinstance(one, DecodeError) else _stored(tokenizing, [one[0]], [one[1]])[0] for one in found]

    return encode


def _texts_of(names: Sequence[str], values: Mapping[str, str], contents: Mapping[str, bytes]) -> dict[str, str] | str:
    """Return the texts of a document by field, or what is wrong with one of them."""
    found: dict[str, str] = {}
    for name in names:
        if name in values:
            found[name] = values[name]
            try:
                found[name].encode()
            except UnicodeEncodeError:
                return f"field {name!r}: has half of a surrogate pair, which is no text"
        else:
            try:
                found[name] = contents[name].removeprefix(codecs.BOM_UTF8).decode()
            except UnicodeDecodeError as exc:
                return f"field {name!r}: byte 0x{contents[name][exc.start]:02x} at {exc.start} is not UTF-8; save it as UTF-8"
        if not found[name]:
            return f"field {name!r}: has no text"
    return found


def _stored(
    tokenizing: Tokenizing, found: Sequence[NDArray[np.uint32]], runs: Sequence[NDArray[np.int32] | None] | None = None
) -> list[StoredField | DecodeError]:
    """Return documents in the form to write, with the tokens that begin and end them.

    `runs`: of each, (k, 2) of the tokens that carry loss; None for all, with those that begin and end it.
    """
    if not found:
        return []
    facts = tokenizing.facts
    begin, end = ([] if one is None else [np.array([one], np.uint32)] for one in (facts.bos, facts.eos))
    parts = [part for ids in found for part in (*begin, ids, *end)]
    data = np.concatenate(parts).astype(facts.stored).tobytes()
    lengths = [len(begin) + len(ids) + len(end) for ids in found]
    bounds = [0, *itertools.accumulate(num * facts.stored.itemsize for num in lengths)]
    carrying = [b""] * len(found)
    if runs is not None:
        shifted = [np.array([[0, num]]) if one is None else one + len(begin) for one, num in zip(runs, lengths, strict=True)]
        carrying = [one.astype("<i4").tobytes() for one in shifted]
    return [
        StoredField("tokens", data[first:last], carried)
        for first, last, carried in zip(bounds[:-1], bounds[1:], carrying, strict=True)
    ]


def open_encoder(tokenizing: Tokenizing, *, is_reference: bool = False) -> Encoder:
    """Return the encoder of a shard: the faster one, checked, where it takes the tokenizer, else the reference."""
    fast = None if is_reference else open_fast(tokenizing)
    reference = open_reference(tokenizing)
    return reference if fast is None else _checked(fast, reference)


def _checked(fast: Encoder, reference: Encoder) -> Encoder:
    """Return the faster encoder, whose ids are compared with the reference's now and then."""
    num_seen = 0

    def encode(texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        nonlocal num_seen
        try:
            with panics_as_errors():
                found = fast(texts)
        except Exception as exc:  # whatever it does not take is left to the reference
            raise EncodersDifferError from exc
        numbers = range(num_seen, num_seen + len(texts))
        num_seen = numbers.stop
        compared = [place for place, number in enumerate(numbers) if number < _CHECKED_FIRST or not number % _CHECKED_EVERY]
        for place, expected in zip(compared, _each(reference, [texts[place] for place in compared]), strict=True):
            if expected is not None and not np.array_equal(found[place], expected):
                raise EncodersDifferError
        return found

    return encode


def _each(encode: Encoder, texts: Sequence[str]) -> list[NDArray[np.uint32] | None]:
    """Return the ids of each text; None for one that the encoder refuses, as the reference does millions of blanks."""
    try:
        return list(encode(texts))
    except DecodeError:
        return [None] if len(texts) == 1 else [one for text in texts for one in _each(encode, [text])]
