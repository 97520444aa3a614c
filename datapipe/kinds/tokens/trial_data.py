"""A little data of this kind for trials: the source code of Python's standard library, and a tokenizer for it."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

from datapipe.codecs.tokens import import_tokenizers

TITLE = "corpus.jsonl"
_TOKENIZER = "tokenizer.json"  # beside the corpus
_END = "<|end|>"
_VOCABULARY = 4096


def convert_options(path: Path) -> list[str]:
    """Return the options of `datapipe convert` for the corpus that was made there."""
    return ["--to", "tokens", "--tokenizer", str(path.with_name(_TOKENIZER)), "--eos", _END]


def make(path: Path) -> None:
    """Write a module as a JSON line each, some 5 MB, to a path, and a tokenizer beside it.

    Raises DependencyError without `tokenizers`.
    """
    library = import_tokenizers("making texts")
    texts = [file.read_text(errors="replace") for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    trainer = library.trainers.BpeTrainer(
        vocab_size=_VOCABULARY, special_tokens=[_END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path.with_name(_TOKENIZER)))
