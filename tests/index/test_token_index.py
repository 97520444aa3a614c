"""Indexes of documents of token ids refuse what lies nowhere, overlaps, or does not belong together."""

from __future__ import annotations

import numpy as np
import pytest

from datapipe.codecs.tokens import TokenFacts
from datapipe.errors import FormatError, OptionError
from datapipe.index.joined_tokens import joined_index
from datapipe.index.tokens import LossRuns, TokenIndex, TokenShard


def corpus(vocab_size: int) -> TokenIndex:
    facts = TokenFacts("uint16", vocab_size=vocab_size)
    shard = TokenShard("0.ds", np.dtype("<u2"), np.array([0]), np.array([3]))
    return TokenIndex("corpus", [1], lambda number: shard, fingerprint="f", facts=facts)


def test_corpora_of_different_tokenizers_are_refused() -> None:
    with pytest.raises(OptionError, match="different tokenizers"):
        joined_index([corpus(100), corpus(200)])


def test_documents_that_overlap_are_refused() -> None:
    with pytest.raises(FormatError, match="overlap"):
        TokenShard("x.ds", np.dtype("<u2"), np.array([0, 4]), np.array([3, 4]))
    with pytest.raises(FormatError, match="does not begin at a token"):
        TokenShard("x.ds", np.dtype("<u2"), np.array([0, 7]), np.array([3, 4]))
    with pytest.raises(FormatError, match="places that no file has"):
        TokenShard("x.ds", np.dtype("<u2"), np.array([0, 1 << 62]), np.array([3, 4]))


@pytest.mark.parametrize("runs", [[(-1, 2)], [(2, 1)], [(0, 4)], [(0, 2), (1, 3)], [(2, 3), (0, 1)]])
def test_tokens_with_loss_lie_in_their_document_once(runs: list[tuple[int, int]]) -> None:
    """They would be counted in the loss of a step, and not be in a batch."""
    loss = LossRuns(np.array([0, 1, 1 + len(runs)]), np.array([(0, 2), *runs], np.int32))
    with pytest.raises(FormatError, match=r"x\.ds: tokens with loss lie outside of their document, or overlap"):
        TokenShard("x.ds", np.dtype("<u2"), np.array([0, 4]), np.array([2, 3]), loss=loss)
