"""Converted sets of small documents with images, and the folder of a model that takes them, made without transformers."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from converters import ConvertOptions, convert
from converters.tokenizer import Tokenizing

FIRST = 10  # id of the word 0
NUM_WORDS = 1000
SPECIAL = ("<|end|>", "<|pad|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
END, PAD, START, STOP, IMAGE = range(5)


def words_model(path: Path, *, most: int = 28 * 28 * 4) -> Path:
    """Write the folder of a model of Qwen2-VL's kind whose words are numbers: word n has the id FIRST + n."""
    path.mkdir(parents=True, exist_ok=True)
    words = {str(number): FIRST + number for number in range(NUM_WORDS)}
    vocabulary = {**{name: number for number, name in enumerate(SPECIAL)}, "?": len(SPECIAL), **words}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIAL])
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", "pad_token": "<|pad|>"}))
    half = [0.5, 0.5, 0.5]
    size = {"shortest_edge": 28 * 28, "longest_edge": most}
    config = {"image_processor_type": "Qwen2VLImageProcessor", "size": size, "image_mean": half, "image_std": half}
    (path / "preprocessor_config.json").write_text(json.dumps(config))
    return path


def picture(width: int, height: int, *, seed: int = 0, form: str = "PNG") -> bytes:
    """A picture of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    sink = io.BytesIO()
    Image.fromarray(pixels).save(sink, form)
    return sink.getvalue()


def write_set(path: Path, documents: Sequence[Sequence[int | bytes]], model: Path, *, shard_nbytes: int = 1 << 20) -> Path:
    """Convert documents of words and pictures, in their order."""
    source = path.with_name(f"{path.name}-source")
    (source / "images").mkdir(parents=True)
    lines = []
    for number, parts in enumerate(documents):
        texts: list[str | None] = []
        images: list[str | None] = []
        for place, part in enumerate(parts):
            name = f"images/{number}-{place}.png"
            if isinstance(part, bytes):
                (source / name).write_bytes(part)
            texts.append(None if isinstance(part, bytes) else f"{part} ")
            images.append(name if isinstance(part, bytes) else None)
        lines.append(json.dumps({"texts": texts, "images": images}) + "\n")
    (source / "documents.jsonl").write_text("".join(lines))
    tokens = Tokenizing.of(model)
    options = ConvertOptions(
        source / "documents.jsonl", path, to="tokens", form="conversations", tokens=tokens, seed=None, num_workers=1,
        shard_nbytes=shard_nbytes,
    )  # fmt: skip
    convert(options)
    return path
