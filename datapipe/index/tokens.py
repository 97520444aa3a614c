"""Where the documents of a corpus lie: runs of token ids, one after the other, in files."""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.field_values import FieldKind
from datapipe.codecs.tokens import TokenFacts
from datapipe.core.arrow_maps import map_file
from datapipe.core.ranges import ranges
from datapipe.errors import FormatError, IntegrityError, MissingDataError, OptionError, StorageError
from datapipe.index.concat import AnyIndex
from datapipe.index.document_images import DocumentImages
from datapipe.index.entries import Description, Extents, by_number, place_in
from datapipe.index.open_sidecars import Sidecar
from datapipe.index.sample_index import SampleIndex

Ints = NDArray[np.int64]
TOKENS_CONTAINER = "tokens"  # of the shards that datapipe writes
_MOST = 1 << 59  # bytes or tokens; the sum of a place and a size fits 63 bits


@dataclass(frozen=True, slots=True, eq=False)
class LossRuns:
    """The tokens of documents that carry loss, such as those of an assistant: runs of them. A document without runs has none."""

    ends: Ints  # (n + 1,) runs before each document, and in all
    runs: NDArray[np.int32]  # (runs, 2) first token of the document, and the one after the last

    def runs_of(self, document: int) -> NDArray[np.int32]:
        """Return (k, 2) the runs of a document."""
        return self.runs[self.ends[document] : self.ends[document + 1]]

    def of_documents(self, documents: Ints) -> tuple[Ints, NDArray[np.int32]]:
        """Return the runs of these documents, one after the other: (r,) which of `documents` each is of, and (r, 2) the runs."""
        first, num = self.ends[documents], self.ends[documents + 1] - self.ends[documents]
        return np.repeat(np.arange(len(documents)), num), self.runs[ranges(first, num)]

    def covered(self, documents: Ints, begin: Ints, end: Ints) -> Ints:
        """Return (m,) how many of the tokens from `begin` to `end` of each document lie in its runs."""
        which, runs = self.of_documents(documents)
        covered = np.maximum(0, np.minimum(runs[:, 1], end[which]) - np.maximum(runs[:, 0], begin[which]))
        return np.bincount(which, weights=covered, minlength=len(documents)).astype(np.int64)

    def fit(self, num_tokens: Ints) -> bool:
        """Return True if the runs of each document ascend, do not overlap, and lie in its tokens. `num_tokens`: (n,) of each."""
        document = np.repeat(np.arange(len(num_tokens)), np.diff(self.ends))
        begin, end = self.runs[self.ends[0] : self.ends[-1]].T
        overlap = (document[1:] == document[:-1]) & (begin[1:] < end[:-1])
        return not ((begin < 0).any() or (end < begin).any() or (end > num_tokens[document]).any() or overlap.any())


@dataclass(frozen=True, eq=False)
class TokenShard:
    """The documents of one file, one after the other. The arrays may be mapped.

    Between documents may be those of another field. Raises FormatError for documents that overlap or lie nowhere, and for runs
    of tokens with loss that are not theirs.
    """

    path: str  # or its URL
    dtype: np.dtype[Any]  # of an id
    offset: Ints  # (n,) bytes at which documents begin
    num_tokens: Ints  # (n,)
    crc32c: NDArray[np.uint32] | None = None  # (n,) of their bytes; None: not known
    loss: LossRuns | None = None  # None: all tokens carry loss
    describe: Callable[[int], str] | None = None  # where a document came from, for people
    images: DocumentImages | None = None  # None: of texts alone
    weights: None = None  # documents are no work besides their tokens

    def __post_init__(self) -> None:
        size = self.dtype.itemsize
        if max(int(self.num_tokens.max(initial=0)), int(self.offset.max(initial=0))) > _MOST:
            raise FormatError(f"{self.path}: its index names places that no file has; make its index again")
        if (
            (self.num_tokens < 0).any()
            or (self.offset[:1] < 0).any()
            or (self.offset[1:] < self.offset[:-1] + self.num_tokens[:-1] * size).any()
        ):
            raise FormatError(f"{self.path}: its documents overlap; make its index again")
        if ((self.offset - self.offset[:1]) % size).any():
            raise FormatError(f"{self.path}: a document does not begin at a token; make its index again")
        if self.loss is not None and not self.loss.fit(self.num_tokens):
            raise FormatError(f"{self.path}: tokens with loss lie outside of their document, or overlap; convert again")
        if self.images is not None and not self.images.fit(self.num_tokens):
            raise FormatError(
                f"{self.path}: images have no places among the tokens of their documents, or no size; convert again"
            )

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def has_gaps(self) -> bool:
        """True if something else lies between documents."""
        ends = self.offset + self.num_tokens * self.dtype.itemsize
        return bool((self.offset[1:] != ends[:-1]).any())

    def tokens_of(self, document: int) -> tuple[Ints, NDArray[np.bool_]]:
        """Return (t,) the ids of a document, and (t,) whether each carries loss. Only of a local file; raises as `mapped`."""
        ids, _ = self.mapped
        begin = int(self.offset[document] - self.offset[0]) // self.dtype.itemsize
        tokens = ids[begin : begin + int(self.num_tokens[document])].astype(np.int64)
        carries = np.full(len(tokens), self.loss is None)
        for first, end in [] if self.loss is None else self.loss.runs_of(document).tolist():
            carries[first:end] = True
        return tokens, carries

    def begins(self, documents: Ints) -> Ints:
        """Return (m,) the token of the file's stream at which each of these documents begins. There are no gaps."""
        begins: Ints = (self.offset[documents] - self.offset[0]) // self.dtype.itemsize
        return begins

    def documents_at(self, tokens: Ints) -> Ints:
        """Return (m,) the document in which each of these tokens of the file's stream lies. There are no gaps."""
        places = self.offset[0] + tokens * self.dtype.itemsize
        found: Ints = np.searchsorted(self.offset, places, side="right") - 1
        return found

    @functools.cached_property
    def mapped(self) -> tuple[NDArray[Any], memoryview]:
        """The ids of the whole file from its first document on, and its bytes, mapped. Only of a local file.

        Raises MissingDataError or StorageError if it cannot be mapped, IntegrityError if it ends before its documents do.
        """
        try:
            data = map_file(self.path)
        except FileNotFoundError as exc:
            raise MissingDataError(f"{self.path}: is missing; `datapipe verify` lists everything that is") from exc
        except OSError as exc:
            raise StorageError(exc.errno or errno.EIO, f"{self.path}: cannot be mapped ({exc.strerror or exc})") from exc
        start = int(self.offset[0])
        num = int(self.offset[-1] - start) // self.dtype.itemsize + int(self.num_tokens[-1])
        if start + num * self.dtype.itemsize > data.size:
            raise IntegrityError(f"{self.path}: ends before its documents do: truncated; `datapipe verify` lists all damage")
        return np.frombuffer(data, self.dtype, num, start), memoryview(data)

    def extents(self, documents: Ints, first: Ints, num: Ints) -> Extents:
        """Return where `num` tokens of these documents lie, from token `first` on; those of whole documents have checksums."""
        size = self.dtype.itemsize
        whole = (first == 0) & (num == self.num_tokens[documents])
        has_crc = whole if self.crc32c is not None else np.zeros(len(documents), np.bool_)
        crc32c = np.zeros(len(documents), np.uint32) if self.crc32c is None else self.crc32c[documents]
        offset = self.offset[documents] + first * size
        paths = [self.path] * len(documents)
        return Extents(paths, offset, num * size, crc32c, has_crc.astype(np.uint8), one_file_each=False)


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """What is known of a shard before its documents are opened."""

    num_documents: int
    num_tokens: int
    dtype: str  # of an id, as `TokenFacts` has it
    crc32c: int  # of the lengths of its documents
    open: Callable[[], TokenShard]


class TokenIndex:
    """The documents of a corpus. Thread-safe.

    `where` names it in messages. `num_documents`: of each shard. `open_shard`: opens one by its number, when it is needed.
    `samples`: the index of the same documents as samples, of a converted set.
    """

    can_be_cut = True

    def __init__(
        self,
        where: str,
        num_documents: Sequence[int],
        open_shard: Callable[[int], TokenShard],
        *,
        fingerprint: str,
        facts: TokenFacts,
        field: str = "tokens",
        samples: AnyIndex | None = None,
    ) -> None:
        self.where, self.fingerprint, self.facts, self.field, self.samples = where, fingerprint, facts, field, samples
        self.starts: Ints = np.cumsum([0, *num_documents], dtype=np.int64)
        self._open_shard = open_shard
        self._opened: dict[int, TokenShard] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def num_shards(self) -> int:
        return len(self.starts) - 1

    def shard(self, number: int) -> TokenShard:
        """Return a shard. Raises FormatError if it has other documents than the index says."""
        found = self._opened.get(number)
        if found is None:
            with self._lock:
                found = self._opened.get(number) or self._open_shard(number)
                if len(found) != self.starts[number + 1] - self.starts[number]:
                    expected = self.starts[number + 1] - self.starts[number]
                    raise FormatError(f"{found.path}: its index has {len(found)} documents, not {expected}; make the index again")
                self._opened[number] = found
        return found

    def padding(self, wanted: int | None) -> int:
        """Return the id that fills rows: the wanted one, or else the tokenizer's, or 0. Raises OptionError for no id."""
        facts = self.facts
        pad = next((one for one in (wanted, facts.pad, facts.eos) if one is not None), 0)
        if facts.vocab_size is not None and pad >= facts.vocab_size:
            raise OptionError(f"{self.where}: pad is {pad}, beyond the vocabulary of {facts.vocab_size}; pass an id of it")
        return pad

    def locate(self, documents: Ints) -> tuple[Ints, Ints]:
        """Return the shard of each document, and its number there."""
        shards = np.searchsorted(self.starts, documents, side="right") - 1
        return shards, documents - self.starts[shards]

    def num_tokens(self, documents: Ints) -> Ints:
        """Return (m,) the number of tokens of each document."""
        return num_tokens_of(documents, self)

    def describe(self, document: int) -> Description:
        """Return a description of one document, for messages."""
        part, number = place_in(self.starts, document)
        shard = self.shard(part)
        source = "" if shard.describe is None else shard.describe(number)
        return Description(document, shard.path, f"document {number}".encode(), source)


def num_tokens_of(documents: Ints, index: Any) -> Ints:
    """Return (m,) the number of tokens of documents, as the shards of an index have them, which it locates and opens."""
    shards, within = index.locate(documents)
    found = np.empty(len(documents), np.int64)
    for number, here in by_number(shards):
        found[here] = index.shard(number).num_tokens[within[here]]
    return found


def _loss_runs(sidecar: Sidecar, field: str) -> LossRuns | None:
    found = sidecar.runs(field)
    return None if found is None else LossRuns(*found)


def index_of_set(samples: SampleIndex, facts: TokenFacts, field: str) -> TokenIndex:
    """Return the documents of a converted set, with their images if it has a field of them."""
    images = next((spec.name for spec in samples.manifest.fields if spec.kind is FieldKind.IMAGES), None)

    def open_shard(number: int) -> TokenShard:
        sidecar = samples.sidecar(number)
        path = samples.shard_path(number)
        size = facts.stored.itemsize
        nbytes = sidecar.nbytes(field)
        if (nbytes % size).any():
            raise FormatError(f"{sidecar.path}: a document is no whole number of {facts.dtype} ids; convert again")
        return TokenShard(
            path,
            facts.stored,
            offset=sidecar.offsets(field),
            num_tokens=nbytes // size,
            crc32c=sidecar.crc32c(field),
            loss=_loss_runs(sidecar, field),
            describe=lambda row: os.fsdecode(sidecar.source(row)),
            images=None if images is None else DocumentImages.of(sidecar, images),
        )

    num_documents = [shard.num_samples for shard in samples.manifest.shards]
    fingerprint = hashlib.sha256(f"{samples.fingerprint} {field}".encode()).hexdigest()[:16]
    return TokenIndex(
        samples.where, num_documents, open_shard, fingerprint=fingerprint, facts=facts, field=field, samples=samples
    )
