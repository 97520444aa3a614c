"""`Tokens`: documents of token ids, packed into rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from datapipe.core.checks import names_or_none, path_name
from datapipe.core.pinning import opened_at
from datapipe.core.printable import counted
from datapipe.errors import MissingDataError, OptionError
from datapipe.index.joined_tokens import joined_index
from datapipe.index.tokens import TokenIndex
from datapipe.kernel.mixing import Mixture, refuse_unlike
from datapipe.kernel.row_data import RowData
from datapipe.kinds.tokens.kind import Corpus, TokenKind
from datapipe.kinds.tokens.settings import TokenSettings
from datapipe.opening.tokens.opening import TokenSource, open_tokens, plan_homes
from datapipe.opening.tokens.texts import refuse_other_tokenizer
from datapipe.packing.joined import JoinedPacks
from datapipe.packing.kept_plans import open_plan
from datapipe.packing.packs import Packs
from datapipe.packing.row_settings import Layout, fields_of, is_balanced
from datapipe.packing.settings import Labels, Long, Packing, default_packs
from datapipe.packing.single import DocumentPacks, pack_ends
from datapipe.packing.stream import StreamPacks
from datapipe.stores.location import is_url
from datapipe.stores.requests import apply_settings
from datapipe.stores.settings import Remote, remote_settings


@dataclass(frozen=True, slots=True)
class _Opening:
    """How a corpus is opened: all that a copy in another process needs."""

    source: TokenSource
    dtype: str | None
    eos: int | None
    vocab_size: int | None
    fields: tuple[str, ...]  # of a converted set; empty: its only one
    remote: Remote

    def open(self) -> list[TokenIndex]:
        """Return the index of the documents of each field."""
        if isinstance(self.source, str) and is_url(self.source):
            apply_settings(self.remote)  # for the opening too
        return [
            open_tokens(self.source, dtype=self.dtype, eos=self.eos, vocab_size=self.vocab_size, field=name)
            for name in self.fields or (None,)
        ]


class Tokens(RowData):
    """Documents of token ids, packed into rows of `length` tokens: what a loader of text reads.

    >>> data = datapipe.Tokens("tokens", length=4096)
    >>> for batch in datapipe.DataLoader(data, batch_size=8, shuffle=True, seed=0):
    ...     loss = model(batch["input_ids"], labels=batch["labels"], position_ids=batch["position_ids"])   # (8, 4096) each

    source: the directory, or the URL in an object store, of what `datapipe convert --to tokens` wrote; files of Megatron (`x.bin`
      beside `x.idx`) or datatrove (`x.ds` beside `x.ds.index`); bare files of ids, such as nanoGPT's `.bin` and OLMo's `.npy`. A
      file, a directory, a glob pattern or a list.
    length: tokens of a row; of several fields, of all or of each.
    packing: "best-fit": documents stay whole, and are fitted into rows with next to no padding; "concat": documents one after the
      other, cut every row; "pad": a document a row, batches of like lengths, as wide as their longest row.
    max_tokens: of a batch of "pad", padding included, instead of a number of rows; the batch size of the loader is 1 then.
    long: what becomes of documents of more tokens: "split" into parts, the default of texts, "truncate", "drop" or "error". Of
      chats, of several fields and with `max_tokens` it must be said if there are such documents.
    max_documents: the most documents of a row.
    repack: put other documents of the same lengths together in each epoch.
    labels: "same": as Hugging Face's models take them, equal to `input_ids`; "shifted": the label of a place is the next token.
      Either way -100 where there is none: at the boundaries of documents, in padding, and where no loss is wanted. "whole": as
      encoder-decoder models take their targets, first tokens too.
    layout: "rows" (b, length), or "flat" (1, b * length) as FlashAttention takes it.
    fields: which of `input_ids`, `labels`, `position_ids`, `document_ids`, `attention_mask`, `cu_seqlens`, `max_seqlen`,
      `loss_tokens` and `id` a batch has; all but `attention_mask` and `id` by default. Of several fields each has its own, named
      `summary_input_ids` and so on; by default `input_ids`, `labels`, `attention_mask` and `loss_tokens`.
    num_seqlens: how many boundaries `cu_seqlens` has, the last one repeated, for `torch.compile`; None: as many as there are.
    pad: the id that fills rows; None: that of the corpus, or 0.
    balance: "step": within each optimizer step, deal rows so that at every micro-batch all ranks have the same work.
    accumulate: micro-batches of an optimizer step, over which rows are dealt and `loss_tokens` are counted.
    dtype, eos: of bare files, the type of their ids, such as "uint16", and the id that ends each document.
    vocab_size: of files of others: all ids are below it, or their rows are bad.
    field: of a converted set with several fields of tokens, which one, or a list of those that a batch has together; that needs
      packing="pad".
    tokenizer: the tokenizer.json of the model, or the folder that holds it: refused if the shards were made by another one.
    remote: a `datapipe.Remote(...)`: how shards in an object store are read.

    A batch is a dict of int64 tensors of the layout's shape, but: `document_ids` int32, numbered from 0 in each row (in a flat
    batch, over all of it), -1 in padding; `cu_seqlens` (n,) int32, where documents and padding begin in the batch's rows laid end
    to end, and the end; `max_seqlen` int, the longest of these; `loss_tokens` int, the labels with loss in the whole optimizer
    step over all ranks, by which the sum of losses is divided; `id` (b,) the numbers of the rows, or with `max_tokens` of the
    documents. With tail="mask" also `real` (b,) bool, False for rows that are repeats, whose labels are -100.

    A row counts as a sample: of `batch_size`, of lengths, orders and states. The plan of the rows of "best-fit" is made once and
    kept beside the shards, or in the user's cache. Raises OptionError for settings that do not fit, and what opening raises.
    """

    settings: TokenSettings

    def __init__(
        self,
        source: TokenSource,
        length: int | Sequence[int],
        *,
        packing: Packing = "best-fit",
        max_tokens: int | None = None,
        long: Long | None = None,
        max_documents: int | None = None,
        repack: bool = False,
        labels: Labels = "same",
        layout: Layout = "rows",
        fields: Sequence[str] | None = None,
        num_seqlens: int | None = None,
        pad: int | None = None,
        balance: str | None = None,
        accumulate: int = 1,
        dtype: str | None = None,
        eos: int | None = None,
        vocab_size: int | None = None,
        field: str | Sequence[str] | None = None,
        tokenizer: str | os.PathLike[str] | None = None,
        remote: Remote | None = None,
    ) -> None:
        names = (field,) if isinstance(field, str) else names_or_none(field, "field") or ()
        if field is not None and (not names or len({*names}) < len(names)):
            raise OptionError(f"field is {field!r:.60}; name fields of tokens, each once")
        opening = _Opening(source, dtype, eos, vocab_size, names, remote_settings(remote))
        with opened_at({}) as self._versions:
            indexes = opening.open()
        if tokenizer is not None:
            refuse_other_tokenizer(indexes[0], Path(path_name(tokenizer, "tokenizer")))
        is_whole = len(indexes) > 1 or max_tokens is not None  # documents, none of them split
        common: dict[str, Any] = {"packing": packing, "max_documents": max_documents, "labels": labels}
        common |= {"long": long} if long is not None else {"long": "error"} if is_whole else {}
        common |= {"max_tokens": max_tokens} if max_tokens is not None else {}
        packs = [replace(default_packs(indexes[0].facts, one), **common) for one in _lengths(length, len(indexes))]
        settings = TokenSettings(
            tuple(packs),
            tuple(f"{name}_" for name in names) if len(names) > 1 else ("",),
            repack=bool(repack),
            layout=layout,
            fields=fields_of(fields),
            num_seqlens=num_seqlens,
            pad=0 if pad is None else pad,
            balance=is_balanced(balance),
            accumulate=accumulate,
        )
        self._set(opening, settings, is_padded=pad is not None, indexes=indexes)

    def _set(
        self, opening: _Opening, settings: TokenSettings, *, is_padded: bool, indexes: Sequence[TokenIndex] | None = None
    ) -> None:
        self._opening, self._is_padded = opening, is_padded
        if indexes is None:
            with opened_at({}) as self._versions:
                indexes = opening.open()
        index = indexes[0]
        if index.facts.image is not None:
            call = f"datapipe.Conversations({index.where!r}, length=..., processor=...)"
            raise OptionError(f"{index.where}: holds conversations with images; read them with {call}")
        self.settings = settings = replace(settings, pad=index.padding(settings.pad if is_padded else None))
        self.corpora = [Corpus(*pair) for pair in zip(indexes, _packs(indexes, settings), strict=True)]
        if not len(self):
            lengths = " and ".join(str(one.length) for one in settings.packs)
            raise MissingDataError(f"{index.where}: no rows of {lengths} tokens; check the path, or `length`")

    @property
    def index(self) -> TokenIndex:
        return self.corpora[0].index

    @property
    def _rows(self) -> Packs:
        return self.corpora[0].packs

    @property
    def shown(self) -> str:
        of = "batch" if self.settings.has_documents else "row"
        return f"{counted(len(self.corpora[0].packs), of)} of {counted(len(self.index), 'document')} at {self.index.where}"

    def open_kind(
        self, arguments: Mapping[str, Any], *, device: Callable[[], torch.device], open_loader: Callable[..., Iterable[Any]]
    ) -> TokenKind:
        if self.settings.has_documents and arguments["batch_size"] != 1:
            raise OptionError(f"batch_size is {arguments['batch_size']!r:.40}, and max_tokens says how many rows; leave it out")
        return TokenKind(self.corpora, self.settings, mixture=self.mixture, remote=self._opening.remote, device=device)

    def mixed(self, others: Sequence[Tokens], *, weights: Sequence[float] | None, num_samples: int | None) -> Tokens:
        """Return these documents and others, of each of which an epoch has a fixed share of rows. See `mix`."""
        parts = (self, *others)
        refuse_unlike(parts, lambda part: self.settings.differing(part.settings))
        if self.settings.packs[0].packing == "pad" and not self.settings.has_documents:
            raise OptionError(
                "mix() of Tokens with packing='pad': rows of like lengths are not mixed; pass max_tokens or packing='best-fit'"
            )
        return Tokens._join(parts, Mixture.of(parts, weights, num_samples))

    def _set_joined(self, parts: Sequence[Tokens], first_shards: list[int]) -> None:
        self.corpora = [
            Corpus(joined_index([one.index for one in of_field]), JoinedPacks([one.packs for one in of_field], first_shards))
            for of_field in zip(*(part.corpora for part in parts), strict=True)
        ]


def _lengths(length: int | Sequence[int], num_fields: int) -> list[int]:
    """Return the length of each field."""
    lengths = list(length) if isinstance(length, Sequence) else [length] * num_fields
    if len(lengths) != num_fields:
        raise OptionError(f"length is {length!r:.60} for {counted(num_fields, 'field')}; pass one, or one of each")
    return lengths


def _packs(indexes: Sequence[TokenIndex], settings: TokenSettings) -> list[Packs]:
    """Return the packs of each field."""
    fields = list(zip(indexes, settings.packs, strict=True))
    index, packs = fields[0]
    if packs.packing == "concat":
        return [StreamPacks(index, packs)]
    if packs.packing == "pad" and packs.max_tokens is None:
        ends = pack_ends(fields)
        return [DocumentPacks(*one, ends=ends) for one in fields]
    plan = open_plan(index, packs, plan_homes(index), beside=fields[1:], repack=settings.repack)
    return [plan] if len(fields) == 1 else [plan.of_field(*one) for one in fields]


def make_data(source: Any, index: TokenIndex | None) -> Tokens | None:
    """Refuse a path alone, which does not say how long rows are; no other object is one of tokens."""
    if index is None:
        return None
    raise OptionError(f"{index.where}: holds token ids; say how long rows are: datapipe.Tokens({str(source)!r}, length=4096)")
