"""`Conversations`: conversations and documents with images, packed into rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from datapipe.codecs.decode import Decode
from datapipe.core.checks import path_name
from datapipe.core.pinning import opened_at
from datapipe.core.printable import counted
from datapipe.errors import MissingDataError, OptionError
from datapipe.index.joined_tokens import joined_index
from datapipe.index.tokens import TokenIndex
from datapipe.kernel.mixing import Mixture, refuse_unlike
from datapipe.kernel.row_data import RowData
from datapipe.kinds.conversations import documents as lengths
from datapipe.kinds.conversations.kind import ConversationKind
from datapipe.kinds.conversations.settings import ConversationSettings
from datapipe.opening.tokens.opening import open_tokens, plan_homes
from datapipe.packing.joined import JoinedPacks
from datapipe.packing.kept_plans import open_plan
from datapipe.packing.packs import Packs
from datapipe.packing.row_settings import Layout, fields_of, is_balanced
from datapipe.packing.settings import Labels, Long, Packing, PackSettings
from datapipe.packing.single import DocumentPacks
from datapipe.processors.processor import Processor
from datapipe.processors.reading import read_processor
from datapipe.stores.location import is_url
from datapipe.stores.requests import apply_settings
from datapipe.stores.settings import Remote, remote_settings


@dataclass(frozen=True, slots=True)
class _Opening:
    """How a set is opened: all that a copy in another process needs."""

    source: str
    processor: Processor
    remote: Remote

    def open(self) -> lengths.Conversations:
        if is_url(self.source):
            apply_settings(self.remote)  # for the opening too
        return lengths.Conversations(open_tokens(self.source), self.processor)


class Conversations(RowData):
    """Conversations and documents with images, packed into rows of `length` tokens, for vision-language models.

    >>> data = datapipe.Conversations("shards", length=8192, processor="Qwen2.5-VL-3B-Instruct")
    >>> for batch in datapipe.DataLoader(data, batch_size=1, shuffle=True, seed=0):
    ...     loss = model(batch["input_ids"], labels=batch["labels"], position_ids=batch["position_ids"],
    ...                  pixel_values=batch["pixel_values"], image_grid_thw=batch["image_grid_thw"]).loss

    How many tokens an image becomes is arithmetic on its size, so rows are planned without decoding any, once for each processor.

    source: the directory, or the URL in an object store, of what `datapipe convert --to tokens` made of such conversations.
    length: tokens of a row, those of images included.
    processor: the folder of the model, which has `preprocessor_config.json` and `tokenizer.json`; or an object of your own with
      the methods of `datapipe.processors.processor.Processor`.
    packing: "best-fit": conversations are fitted into rows with next to no padding; "pad": a conversation a row, batches of like
      lengths, as wide as their longest row. Either way conversations stay whole.
    long: what becomes of conversations of more tokens: "error", or "drop".
    max_documents: the most conversations of a row.
    repack: put other conversations of the same lengths together in each epoch.
    labels: "same": as Hugging Face's models take them; "shifted": the label of a place is the next token. -100 where there is
      none: at boundaries, in padding, for tokens of images, and where no loss is wanted.
    layout: "rows" (b, length), or "flat" (1, b * length) as FlashAttention takes it.
    fields: which of `input_ids`, `labels`, `position_ids`, `document_ids`, `attention_mask`, `cu_seqlens`, `max_seqlen`,
      `loss_tokens`, `pixel_values`, what else the model takes, and `id` a batch has; all but `document_ids`, `attention_mask` and
      `id` by default.
    num_seqlens: how many boundaries `cu_seqlens` has, the last one repeated, for `torch.compile`; None: as many as there are.
    pad: the id that fills rows; None: that of the tokenizer, or 0.
    balance: "step": within each optimizer step, deal rows so that at every micro-batch all ranks have the same work.
    accumulate: micro-batches of an optimizer step, over which rows are dealt and `loss_tokens` are counted.
    decode: "exact": pixels are those of transformers' processor; "scaled": JPEGs that are much larger than the processor
      resizes them to are decoded at a smaller scale, faster, and a little different.
    remote: a `datapipe.Remote(...)`: how shards in an object store are read.

    A batch is a dict. Fields of tokens are as those of `Tokens`. `position_ids` of models with M-RoPE are (4, b, length): the
    place in its conversation, by which transformers keeps conversations of a row apart, and positions in time, down and across.
    `pixel_values`: float32, as the model's processor in transformers makes them, of all images in the order of their tokens:
    patches (n, numbers) or tiles (n, 3, height, width), normalised on the device. `image_grid_thw` (images, 3), where the model
    takes it. Both are None in a batch without images.

    A bad image makes its conversation a bad sample: left out, it is padding; replaced, another one as long, or shorter, is in its
    place. A row counts as a sample of `batch_size`, of lengths, orders and states. Raises OptionError for settings that do not
    fit, and what opening raises.
    """

    settings: ConversationSettings

    def __init__(
        self,
        source: str | os.PathLike[str],
        length: int,
        processor: str | os.PathLike[str] | Processor,
        *,
        packing: Packing = "best-fit",
        long: Long = "error",
        max_documents: int | None = None,
        repack: bool = False,
        labels: Labels = "same",
        layout: Layout = "rows",
        fields: Sequence[str] | None = None,
        num_seqlens: int | None = None,
        pad: int | None = None,
        balance: str | None = None,
        accumulate: int = 1,
        decode: Decode = "exact",
        remote: Remote | None = None,
    ) -> None:
        found = read_processor(processor) if isinstance(processor, (str, os.PathLike)) else processor
        opening = _Opening(path_name(source, "the path to the conversations"), found, remote_settings(remote))
        packs = PackSettings(length, packing=packing, long=long, max_documents=max_documents, labels=labels)
        of_model = (*found.inputs(np.zeros((0, 2), np.int64)), *filter(None, [found.token_types]))
        settings = ConversationSettings(
            packs, of_model, decode, repack=bool(repack), layout=layout, fields=fields_of(fields), num_seqlens=num_seqlens,
            pad=0 if pad is None else pad, balance=is_balanced(balance), accumulate=accumulate,
        )  # fmt: skip
        self._set(opening, settings, is_padded=pad is not None)

    def _set(self, opening: _Opening, settings: ConversationSettings, *, is_padded: bool) -> None:
        self._opening, self._is_padded = opening, is_padded
        with opened_at({}) as self._versions:
            self.documents = opening.open()
        self.settings = settings = replace(settings, pad=self.index.padding(settings.pad if is_padded else None))
        self.packs: Packs = _packs(self.documents, settings)
        if not len(self):
            raise MissingDataError(f"{self.where}: no rows of {settings.packs.length} tokens; check the path, or `length`")

    @property
    def index(self) -> TokenIndex:
        """The conversations as they are stored."""
        return self.documents.index

    @property
    def _rows(self) -> Packs:
        return self.packs

    @property
    def shown(self) -> str:
        return f"{counted(len(self.packs), 'row')} of {counted(len(self.index), 'conversation')} at {self.where}"

    def open_kind(
        self, arguments: Mapping[str, Any], *, device: Callable[[], torch.device], open_loader: Callable[..., Iterable[Any]]
    ) -> ConversationKind:
        return ConversationKind(
            self.documents, self.packs, self.settings, mixture=self.mixture, remote=self._opening.remote, device=device
        )

    def mixed(
        self, others: Sequence[Conversations], *, weights: Sequence[float] | None, num_samples: int | None
    ) -> Conversations:
        """Return these conversations and others, of each of which an epoch has a fixed share of rows. See `mix`."""
        parts = (self, *others)
        refuse_unlike(parts, self._differing)
        if self.settings.packs.packing == "pad":
            raise OptionError("mix() of Conversations with packing='pad': rows of like lengths are not mixed; pass 'best-fit'")
        return Conversations._join(parts, Mixture.of(parts, weights, num_samples))

    def _differing(self, other: Conversations) -> list[str]:
        is_other = other.documents.digest != self.documents.digest
        return self.settings.differing(other.settings) + ["processor"] * is_other

    def _set_joined(self, parts: Sequence[Conversations], first_shards: list[int]) -> None:
        self.documents = lengths.Conversations(joined_index([part.index for part in parts]), self._opening.processor)
        self.packs = JoinedPacks([part.packs for part in parts], first_shards)


def _packs(found: lengths.Conversations, settings: ConversationSettings) -> Packs:
    if settings.packs.packing == "pad":
        return DocumentPacks(found, settings.packs)
    return open_plan(found, settings.packs, plan_homes(found.index), repack=settings.repack)


def make_data(source: Any, index: TokenIndex | None) -> Conversations | None:
    """Refuse a path alone, which does not say how long rows are; no other object is one of conversations."""
    if index is None:
        return None
    call = f"datapipe.Conversations({str(source)!r}, length=8192, processor='model/')"
    raise OptionError(f"{index.where}: holds conversations with images; say how long rows are, and the model: {call}")
