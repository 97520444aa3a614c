"""A little data of this kind for trials: pictures of coloured shapes, questions about them, and a model's folder."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from datapipe.codecs.tokens import import_tokenizers

TITLE = "conversations.json"
_MODEL, _PICTURES = "model", "pictures"  # beside it
_NUM = 600
COLOURS = {
    "red": (200, 40, 40),
    "green": (40, 160, 60),
    "blue": (50, 80, 200),
    "yellow": (230, 200, 50),
    "white": (240, 240, 240),
}
SHAPES = ("circle", "square", "triangle")
SPECIAL = ("<|end|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
TEMPLATE = (  # of Qwen2-VL's form
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MOST_PIXELS = 28 * 28 * 64


def convert_options(path: Path) -> list[str]:
    """Return the options of `datapipe convert` for the conversations that were made there."""
    return ["--to", "tokens", "--tokenizer", str(path.with_name(_MODEL)), "--chat-template", "auto"]


def bench_options(path: Path) -> list[str]:
    """Return the options of `datapipe bench` for what was converted of them."""
    return ["--processor", str(path.with_name(_MODEL))]


def make(path: Path, num: int = _NUM) -> None:
    """Write LLaVA's JSON, its pictures, and the folder of a model beside it. Raises DependencyError without `tokenizers`."""
    pictures = path.with_name(_PICTURES)
    pictures.mkdir(parents=True, exist_ok=True)
    records = []
    for number in range(num):
        rng = np.random.default_rng(number)
        names, answers = [], []
        for place in range(int(rng.integers(0, 4)) if number % 8 else 0):
            name, colour, shape = f"{number:04d}-{place}.jpg", str(rng.choice([*COLOURS])), str(rng.choice(SHAPES))
            (pictures / name).write_bytes(drawn(rng, colour, shape))
            names.append(f"{_PICTURES}/{name}")
            answers.append(f"a {colour} {shape}")
        question = "What is in it?" if len(names) == 1 else "What is in them?" if names else "Is there a picture?"
        turns = [
            {"from": "human", "value": "<image>\n" * len(names) + question},
            {"from": "gpt", "value": " and ".join(answers) or "no picture"},
        ]
        records.append({"id": number, "image": names, "conversations": turns})
    write_model(path.with_name(_MODEL))
    path.write_text(json.dumps(records))


def drawn(rng: np.random.Generator, colour: str, shape: str) -> bytes:
    """Return a JPEG of 96 to 480 pixels a side, of a shape on noise."""
    width, height = (int(side) for side in rng.integers(96, 481, 2))
    noise = rng.integers(60, 120, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
    image = Image.fromarray(noise).resize((width, height), Image.Resampling.BILINEAR)
    side = int(min(width, height) * rng.uniform(0.5, 0.9))
    left, top = int(rng.integers(0, width - side + 1)), int(rng.integers(0, height - side + 1))
    box, draw = (left, top, left + side - 1, top + side - 1), ImageDraw.Draw(image)
    if shape == "circle":
        draw.ellipse(box, fill=COLOURS[colour])
    elif shape == "square":
        draw.rectangle(box, fill=COLOURS[colour])
    else:
        draw.polygon([(left, box[3]), (box[2], box[3]), (left + side // 2, top)], fill=COLOURS[colour])
    sink = io.BytesIO()
    image.save(sink, "JPEG", quality=90)
    return sink.getvalue()


def write_model(path: Path) -> None:
    """Write the folder of a small model of Qwen2-VL's kind, without weights: a tokenizer of bytes, a template, a processor.

    Raises DependencyError without `tokenizers`.
    """
    library = import_tokenizers("making conversations")
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    texts = [f"user assistant What is in it? them Is there a picture? no and a {one}" for one in (*COLOURS, *SHAPES)] * 4
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    trainer = library.trainers.BpeTrainer(
        vocab_size=512, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path / "tokenizer.json"))
    half = [0.5, 0.5, 0.5]
    size = {"shortest_edge": 4 * 28 * 28, "longest_edge": MOST_PIXELS}
    configs: dict[str, Any] = {
        "tokenizer_config.json": {"eos_token": "<|im_end|>", "pad_token": "<|end|>"},
        "preprocessor_config.json": {
            "image_processor_type": "Qwen2VLImageProcessor", "size": size, "image_mean": half, "image_std": half,
        },
    }  # fmt: skip
    for name, config in configs.items():
        (path / name).write_text(json.dumps(config))
    (path / "chat_template.jinja").write_text(TEMPLATE)
