"""The source of a conversion: its form is recognised, and its samples are listed by the form's own scan, or by their index.

The fields of sound have the names that readers of the target look for.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from typing import TypeVar

from converters.index_source import IndexSource
from converters.options import ConvertOptions
from datapipe.containers.field_names import AUDIO_FIELD, SPOKEN
from datapipe.containers.forms import AUDIO, AUTO, CONVERSATIONS, FORMS, TABLE
from datapipe.errors import OptionError
from datapipe.index.listed import ListedSample, ScanNotes, Source, SourceFacts, Workspace
from datapipe.opening.media import media_in_shards
from datapipe.opening.recognise import Recognition
from datapipe.opening.recognise import recognise as recognise_place
from datapipe.opening.recordings.shards import spoken_fields
from datapipe.sources.fields import in_order
from datapipe.stores.location import Location

_Value = TypeVar("_Value")


def recognise(options: ConvertOptions) -> Recognition:
    """Return the form of `options.source`, as every command recognises it.

    Raises OptionError if it may be several forms, or none; MissingDataError or StorageError if it cannot be read.
    """
    return recognise_place(options.source, options.how, target=options.to)


def resolved(options: ConvertOptions) -> ConvertOptions:
    """Return the options with the form of their source, and with the tokens of images, if it has any.

    Raises as `recognise` does, and as `Tokenizing.with_images`.
    """
    if options.form == AUTO:
        options = dataclasses.replace(options, form=recognise(options).form)
    if options.form == CONVERSATIONS and options.tokens is not None:
        options = dataclasses.replace(options, tokens=options.tokens.with_images())
    return options


def open_source(options: ConvertOptions) -> Source:
    """Return the source that `options` name; its form must be known. Raises errors that are known without listing it."""
    facts = FORMS[options.form]
    if facts.kind == FORMS[TABLE].kind:
        raise OptionError(f"{options.source}: is a table; convert it with `datapipe convert {options.source} DST --from table`")
    if facts.targets == ():
        raise OptionError(f"{options.source}: {facts.title}, to be read in place: nothing to convert")
    is_sound = facts.kind == FORMS[AUDIO].kind
    if is_sound and not isinstance(options.source, Location) and media_in_shards(str(options.source)) == AUDIO:
        shards = IndexSource(options.source, options.how.named(AUTO) if options.form == AUDIO else options.how)
        return _SpokenSource(shards, *spoken_fields(shards.fields, str(options.source)), to=options.to)
    if not facts.source:
        return IndexSource(options.source, options.how)
    source: Source = importlib.import_module(facts.source).open_source(options.source, options.how)
    return _SpokenSource(source, AUDIO_FIELD.name, SPOKEN.name, to=options.to) if options.form == AUDIO else source


class _SpokenSource:
    """A source of sound whose fields are called `audio`, and `txt` or, in Parquet, `text`. See `Source`."""

    def __init__(self, source: Source, audio: str, text: str | None, *, to: str) -> None:
        """`audio`, `text`: what the source calls them."""
        self.root = source.root
        self._source = source
        self._names = {audio: AUDIO_FIELD.name}
        if text is not None:
            self._names[text] = "text" if to == "parquet" else SPOKEN.name

    def scan(self, notes: ScanNotes, space: Workspace) -> Iterator[ListedSample]:
        for sample in self._source.scan(notes, space):
            yield sample._replace(origins=self._renamed(sample.origins), values=self._renamed(sample.values))

    def facts(self) -> SourceFacts:
        facts = self._source.facts()
        fields = [dataclasses.replace(one, name=self._names.get(one.name, one.name)) for one in facts.fields]
        return dataclasses.replace(facts, fields=in_order(fields))

    def _renamed(self, values: Mapping[str, _Value]) -> dict[str, _Value]:
        return {self._names.get(name, name): value for name, value in values.items()}
