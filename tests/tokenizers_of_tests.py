"""Small tokenizers and templates that several tests share."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPECIAL = ["<|end|>", "<|im_start|>", "<|im_end|>"]
END, START, STOP = range(3)
TEXTS = [
    "The quick brown fox jumps over the lazy dog, and the dog looks up.",
    "def add(a, b):\n    return a + b\n",
    "Straße, naïve café, 東京, 😀 and the rest of it; 1234567890",
    "A loader that waits is a loader that starves; a GPU that waits is money.",
] * 3
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML_WITH_BLOCKS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}\n"
    "{% else %}{{ message.content }}<|im_end|>\n{% endif %}{% endfor %}"
)


def byte_level(path: Path, *, vocab_size: int = 400) -> Path:
    """Write a byte-level BPE, which fastokens takes, with a configuration beside it; return tokenizer.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    return _saved(tokenizer, path)


def word_pieces(path: Path) -> Path:
    """Write a WordPiece tokenizer, which fastokens does not take; return tokenizer.json."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=200, special_tokens=[*SPECIAL, "<unk>"]))
    return _saved(tokenizer, path)


def _saved(tokenizer: Tokenizer, path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "eos_token": "<|end|>",
        "bos_token": {"content": "<|im_start|>"},
        "pad_token": "<|im_end|>",
        "chat_template": CHATML,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path / "tokenizer.json"
