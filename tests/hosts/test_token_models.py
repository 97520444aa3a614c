"""Models on packed rows give each document the loss that it has alone: Hugging Face's, FlexAttention, and the example's."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from token_corpora import random_documents, write_datatrove
from tokenizers_of_tests import TEXTS, byte_level
from torch.nn import functional as F

import datapipe as dp
from benchmarks.contenders.torchvision_transforms import import_torchvision
from converters import ConvertOptions, FieldChoice, convert
from converters.tokenizer import Tokenizing

VOCAB, LENGTH = 200, 64
DOCUMENTS = random_documents(40, most=60, least=2, vocab=VOCAB)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_datatrove(tmp_path_factory.mktemp("corpus"), DOCUMENTS)


@pytest.fixture(scope="module")
def model() -> Any:
    import_torchvision()  # which transformers imports, and whose compiled part need not fit this torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    # With a cache, its default also in training, it looks across documents, as docs/text.md says.
    config = LlamaConfig(vocab_size=VOCAB, max_position_embeddings=LENGTH, use_cache=False, **sizes)
    return LlamaForCausalLM(config).eval()


def summed_loss_of_each(model: Any) -> float:
    """Of every document by itself."""
    total = 0.0
    for document in DOCUMENTS:
        ids = torch.from_numpy(document)[None]
        total += float(model(input_ids=ids, labels=ids).loss) * (len(document) - 1)
    return total


@pytest.mark.nightly
@pytest.mark.parametrize(
    "options", [{}, {"packing": "pad", "fields": ["input_ids", "labels", "attention_mask"]}], ids=["packed", "padded"]
)
@torch.no_grad()
def test_a_model_of_hugging_face_has_the_loss_of_documents_alone(options: dict[str, Any], corpus: Path, model: Any) -> None:
    fields = {"fields": ["input_ids", "labels", "position_ids"]} | options
    loader = dp.DataLoader(dp.Tokens(corpus, LENGTH, **fields), 4, shuffle=True, seed=0, num_workers=0)
    total = 0.0
    for batch in loader:
        num = int((batch["labels"][:, 1:] != -100).sum())
        total += float(model(**batch).loss) * num
    assert total == pytest.approx(summed_loss_of_each(model), rel=1e-5)


@torch.no_grad()
def test_an_encoder_and_decoder_has_the_loss_of_pairs_alone(tmp_path: Path) -> None:
    """T5 on articles and summaries, padded to batches of so many tokens."""
    import_torchvision()
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
    model = T5ForConditionalGeneration(T5Config(vocab_size=400, decoder_start_token_id=2, pad_token_id=2, **sizes)).eval()
    rows = [{"article": TEXTS[number % len(TEXTS)] * 2, "summary": TEXTS[-number % len(TEXTS)][:40]} for number in range(20)]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokens = Tokenizing.of(byte_level(tmp_path / "tokenizer"))
    fields = (FieldChoice("article", "text"), FieldChoice("summary", "text"))
    convert(ConvertOptions(tmp_path / "corpus.jsonl", tmp_path / "pairs", to="tokens", tokens=tokens, fields=fields))
    names = {"article_input_ids": "input_ids", "article_attention_mask": "attention_mask", "summary_labels": "labels"}

    def loss(max_tokens: int) -> tuple[float, int]:
        data = dp.Tokens(
            tmp_path / "pairs", 512, field=["article", "summary"], packing="pad", max_tokens=max_tokens, labels="whole",
            long="error", fields=[*names],
        )  # fmt: skip
        total, num_batches = 0.0, 0
        for batch in dp.DataLoader(data, shuffle=True, seed=0, num_workers=0, output=names):
            total += float(model(**batch).loss) * int((batch["labels"] != -100).sum())
            num_batches += 1
        return total, num_batches

    (alone, _), (together, num_batches) = loss(1024), loss(4096)
    assert num_batches < 20
    assert together == pytest.approx(alone, rel=1e-5)


def test_a_trainer_of_hugging_face_sees_the_loss_of_its_own_collator(corpus: Path, model: Any, tmp_path: Path) -> None:
    """The loss that it evaluates, over the same documents, padded by its collator and packed by datapipe."""
    from transformers import Trainer, TrainingArguments

    loader = dp.DataLoader(dp.Tokens(corpus, LENGTH, fields=["input_ids", "labels", "position_ids"]), 4, num_workers=0)

    class Packed(Trainer):
        def get_eval_dataloader(self, dataset: Any = None) -> Any:
            return loader

    def collated(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        width = max(len(row["input_ids"]) for row in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.int64)
        labels, mask = torch.full_like(ids, -100), torch.zeros_like(ids)
        for number, row in enumerate(rows):
            num = len(row["input_ids"])
            ids[number, :num], mask[number, :num] = torch.from_numpy(row["input_ids"]), 1
            labels[number, :num] = ids[number, :num]
        return {"input_ids": ids, "labels": labels, "attention_mask": mask}

    arguments = TrainingArguments(str(tmp_path), per_device_eval_batch_size=1, report_to=[], use_cpu=True)
    rows = [{"input_ids": document} for document in DOCUMENTS]
    theirs = [float(model(**collated([row])).loss) * (len(row["input_ids"]) - 1) for row in rows]
    ours = Packed(model, arguments, eval_dataset=rows).evaluate()["eval_loss"]
    weights = [int((batch["labels"][:, 1:] != -100).sum()) for batch in loader]
    with torch.no_grad():
        by_batch = [float(model(**batch).loss) for batch in loader]
    assert np.dot(by_batch, weights) == pytest.approx(sum(theirs), rel=1e-5)
    sizes = [len(batch["input_ids"]) for batch in loader]
    assert ours == pytest.approx(np.average(by_batch, weights=sizes), rel=1e-4)  # the Trainer averages over rows


@pytest.mark.nightly
@torch.no_grad()
def test_flex_attention_by_document_ids_is_that_of_each_document_alone(corpus: Path) -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    batch = next(iter(dp.DataLoader(dp.Tokens(corpus, LENGTH), 4, num_workers=0)))
    numbers = batch["document_ids"]
    torch.manual_seed(0)
    query, key, value = torch.randn(3, len(numbers), 2, LENGTH, 8)

    def in_document(row: Any, head: Any, place: Any, other: Any) -> Any:
        return (numbers[row, place] == numbers[row, other]) & (place >= other)

    mask = create_block_mask(in_document, len(numbers), None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=LENGTH)
    found = flex_attention(query, key, value, block_mask=mask)
    bounds = batch["cu_seqlens"].tolist()
    assert len(bounds) > 8
    for start, end in itertools.pairwise(bounds):
        row, here = start // LENGTH, slice(start % LENGTH, start % LENGTH + end - start)
        alone = F.scaled_dot_product_attention(*(one[row : row + 1, :, here] for one in (query, key, value)), is_causal=True)
        assert torch.allclose(found[row : row + 1, :, here], alone, atol=1e-5)
