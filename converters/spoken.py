"""Sound as the source of a conversion: its fields have the names that readers of the target look for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TypeVar

from datapipe.containers.field_names import AUDIO_FIELD, SPOKEN
from datapipe.index.listed import ListedSample, ScanNotes, Source, SourceFacts, Workspace
from datapipe.sources.fields import in_order

_TEXTS = {"parquet": "text"}  # by target: the name of the field of what is said; SPOKEN in all others
_Value = TypeVar("_Value")


class SpokenSource:
    """A source of sound whose fields are called `audio`, and `txt` or, in Parquet, `text`. See `Source`."""

    def __init__(self, source: Source, audio: str, text: str | None, *, to: str) -> None:
        """`audio`, `text`: what the source calls them."""
        self.root = source.root
        self._source = source
        self._names = {audio: AUDIO_FIELD.name}
        if text is not None:
            self._names[text] = _TEXTS.get(to, SPOKEN.name)

    def scan(self, notes: ScanNotes, space: Workspace) -> Iterator[ListedSample]:
        for sample in self._source.scan(notes, space):
            yield sample._replace(origins=self._renamed(sample.origins), values=self._renamed(sample.values))

    def facts(self) -> SourceFacts:
        facts = self._source.facts()
        fields = [dataclasses.replace(one, name=self._names.get(one.name, one.name)) for one in facts.fields]
        return dataclasses.replace(facts, fields=in_order(fields))

    def _renamed(self, values: Mapping[str, _Value]) -> dict[str, _Value]:
        return {self._names.get(name, name): value for name, value in values.items()}
