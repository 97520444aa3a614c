"""The libraries whose files and batches datapipe replaces are asked whether they agree; skipped where they are not installed."""

from __future__ import annotations

import importlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from token_corpora import Documents, random_documents, write_datatrove, write_megatron
from tokenizers_of_tests import byte_level

import datapipe as dp

INDEXED = "megatron.core.datasets.indexed_dataset"
VOCAB, LENGTH = 200, 64
DOCUMENTS = random_documents(40, most=60, least=2, vocab=VOCAB)


def documents_of(path: Path) -> list[list[int]]:
    """The documents that datapipe has of a file, in order."""
    loader = dp.DataLoader(dp.Tokens(path, 1000, packing="pad", fields=["input_ids", "attention_mask"]), 1, num_workers=0)
    return [batch["input_ids"][0, : int(batch["attention_mask"].sum())].tolist() for batch in loader]


def theirs(path: Path) -> list[list[int]]:
    """The documents that Megatron has of a file."""
    indexed = importlib.import_module(INDEXED)
    dataset = indexed.IndexedDataset(str(path.with_suffix("")))
    bounds = dataset.document_indices
    return [
        [token for sequence in range(first, end) for token in dataset[sequence].tolist()]
        for first, end in itertools.pairwise(bounds.tolist())
    ]


def built(path: Path, documents: Documents, dtype: type, sequences: int) -> Path:
    """The file that Megatron writes of these documents, of so many sequences each."""
    indexed = importlib.import_module(INDEXED)
    builder = indexed.IndexedDatasetBuilder(str(path.with_suffix(".bin")), dtype=dtype)
    for document in documents:
        lengths = [len(part) for part in np.array_split(document, sequences)]
        builder.add_document(torch.from_numpy(document), lengths)
    builder.finalize(str(path.with_suffix(".idx")))
    return path.with_suffix(".bin")


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
@pytest.mark.parametrize("sequences", [1, 3])
def test_megatron_has_the_same_documents(dtype: str, sequences: int, tmp_path: Path) -> None:
    """Of files that it writes, and of those that our tests write; its documents may be several sequences."""
    pytest.importorskip(INDEXED, reason="Megatron is not installed: pip install megatron-core")
    expected = [document.tolist() for document in DOCUMENTS]
    by_them = built(tmp_path / "theirs", DOCUMENTS, np.dtype(dtype).type, sequences)
    assert documents_of(by_them) == theirs(by_them) == expected
    ours = write_megatron(tmp_path / "ours", DOCUMENTS, dtype, per_document=sequences)
    assert documents_of(ours) == theirs(ours)
    if sequences == 1:
        assert ours.read_bytes() == by_them.read_bytes()
        assert ours.with_suffix(".idx").read_bytes() == by_them.with_suffix(".idx").read_bytes()


def tiny_model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, max_position_embeddings=LENGTH, use_cache=False, **sizes))


def test_trl_trains_on_our_batches_as_on_its_own(tmp_path: Path) -> None:
    """Steps over all documents: padded by TRL's collator, and packed by datapipe. Losses and weights are the same."""
    trl = pytest.importorskip("trl", reason="TRL is not installed: pip install trl")
    datasets = pytest.importorskip("datasets")
    from transformers import PreTrainedTokenizerFast

    corpus = write_datatrove(tmp_path / "corpus", DOCUMENTS)
    data = dp.Tokens(corpus, LENGTH, fields=["input_ids", "labels", "position_ids"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(byte_level(tmp_path / "tokenizer")), pad_token="<|end|>")
    arguments = trl.SFTConfig(
        str(tmp_path / "run"), per_device_train_batch_size=len(DOCUMENTS), num_train_epochs=4, learning_rate=1e-2,
        logging_steps=1, report_to=[], use_cpu=True, max_length=None, gradient_checkpointing=False, bf16=False,
        save_strategy="no", dataset_kwargs={"skip_prepare_dataset": True}, lr_scheduler_type="constant", optim="sgd",
    )  # fmt: skip

    class Packed(trl.SFTTrainer):  # type: ignore[misc, name-defined]
        def get_train_dataloader(self) -> Any:
            return dp.DataLoader(data, len(data), num_workers=0)

    rows = datasets.Dataset.from_list([{"input_ids": document.tolist()} for document in DOCUMENTS])
    found = []
    for kind in (trl.SFTTrainer, Packed):
        trainer = kind(tiny_model(), arguments, train_dataset=rows, processing_class=tokenizer)
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        found.append((losses, torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()])))
    (by_them, their_weights), (by_us, our_weights) = found
    assert len(by_them) == 4
    assert by_them[-1] < by_them[0]
    assert by_us == pytest.approx(by_them, rel=1e-5)
    assert torch.allclose(our_weights, their_weights, atol=1e-6)
