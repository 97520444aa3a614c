"""One contender of `benchmarks.conversations`, in its own process: prints images and conversations a second, as JSON.

    python -m benchmarks.conversation_contenders NAME DIRECTORY

Batches are made on two threads or workers, of which each contender has had one pass before it is measured, or in one thread:
"pixels" makes what the model takes of one image after the other, from its JPEG.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PASSES = 3
STAGES = ("decode", "resize and place", "normalise")  # of an image by datapipe
LENGTH, WORKERS, BATCH_SIZE = 8192, 2, 8  # tokens of a row; conversations of a padded batch, about as many as fill a row
CONTENDERS = ("transformers", "datapipe", "transformers pixels", "datapipe pixels")


def by_datapipe(directory: Path) -> Callable[[], Iterator[tuple[int, int]]]:
    """Return what yields the images and the conversations of each batch of a pass."""
    import datapipe as dp

    data = dp.Conversations(directory / "shards", LENGTH, directory / "model", fields=[*FIELDS, "document_ids"])
    loader = dp.DataLoader(data, 1, shuffle=True, seed=0, num_workers=WORKERS)

    def batches() -> Iterator[tuple[int, int]]:
        for batch in loader:
            yield len(batch["image_grid_thw"]), int(batch["document_ids"].max()) + 1

    return batches


FIELDS = ("input_ids", "labels", "position_ids", "pixel_values", "image_grid_thw")


def processor_of(directory: Path) -> Any:
    """The processor of Qwen2-VL in transformers, over the tokenizer, the sizes and the template of the model's folder."""
    from benchmarks.contenders.torchvision_transforms import import_torchvision

    import_torchvision()
    import transformers

    model = directory / "model"
    config = json.loads((model / "preprocessor_config.json").read_text())
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(model / "tokenizer.json"), pad_token="<|end|>")
    images = transformers.Qwen2VLImageProcessor(
        size=config["size"], image_mean=config["image_mean"], image_std=config["image_std"]
    )
    template = (model / "chat_template.jinja").read_text()
    return transformers.Qwen2VLProcessor(images, tokenizer, transformers.Qwen2VLVideoProcessor(), chat_template=template)


def by_transformers(directory: Path) -> Callable[[], Iterator[tuple[int, int]]]:
    """Return the same of a DataLoader whose collate calls the processor, with labels as its examples make them."""
    import torch
    from PIL import Image

    processor = processor_of(directory)
    records = json.loads((directory / "conversations.json").read_text())

    def collate(some: list[dict[str, Any]]) -> dict[str, Any]:
        texts, images = [], []
        for record in some:
            asked, answered = (turn["value"] for turn in record["conversations"])
            parts = [{"type": "image"}] * len(record["image"])
            parts.append({"type": "text", "text": asked.replace("<image>\n", "")})
            said = [{"role": "user", "content": parts}, {"role": "assistant", "content": [{"type": "text", "text": answered}]}]
            texts.append(processor.apply_chat_template(said, tokenize=False))
            images += [Image.open(directory / "photos" / name).convert("RGB") for name in record["image"]]
        batch: dict[str, Any] = processor(text=texts, images=images, padding=True, return_tensors="pt")
        batch["labels"] = batch["input_ids"].clone()
        batch["labels"][batch["attention_mask"] == 0] = -100
        batch["num"] = len(some)
        return batch

    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader(
        records, BATCH_SIZE, shuffle=True, num_workers=WORKERS, collate_fn=collate, persistent_workers=True
    )

    def batches() -> Iterator[tuple[int, int]]:
        for batch in loader:
            yield len(batch["image_grid_thw"]), batch["num"]

    return batches


def pixels_by_datapipe(directory: Path, data: list[bytes]) -> Callable[..., Any]:
    """Return what makes `pixel_values` of these JPEGs, whose grids are known from their headers, as in a plan."""
    import numpy as np
    import torch

    from datapipe.codecs.decode import open_decoder
    from datapipe.codecs.probe import probe
    from datapipe.processors.reading import read_processor

    processor, decode = read_processor(directory / "model"), open_decoder("simplejpeg")
    numbers, levels = torch.empty(1 << 23), torch.empty((1 << 13, *processor.unit), dtype=torch.uint8)
    headers = [probe(one) for one in data]
    sizes = (np.array([getattr(one, side) for one in headers], np.int64) for side in ("width", "height"))
    grids = dict(zip(data, processor.grids(*sizes).tolist(), strict=True))

    def made(data: bytes, stages: dict[str, float] | None = None) -> Any:
        """Make the numbers; `stages` gets the CPU seconds of each part of that."""
        clock = [time.process_time()]
        pixels, (rows, columns) = decode(data, probe(data)), grids[data]
        clock.append(time.process_time())
        units = levels[: rows * columns]
        processor.place(pixels, rows, columns, units)
        clock.append(time.process_time())
        (width,) = processor.value
        found = processor.values(units, numbers[: len(units) * width].view(len(units), width))
        clock.append(time.process_time())
        if stages is not None:
            for number, name in enumerate(STAGES):
                stages[name] = stages.get(name, 0.0) + clock[number + 1] - clock[number]
        return found

    return made


def pixels_by_transformers(directory: Path, data: list[bytes]) -> Callable[..., Any]:
    """Return the same by the processor of transformers, over Pillow."""
    from PIL import Image

    processor = processor_of(directory).image_processor

    def made(data: bytes) -> Any:
        return processor(images=[Image.open(io.BytesIO(data)).convert("RGB")], return_tensors="pt")["pixel_values"]

    return made


def _measured(batches: Callable[[], Iterator[tuple[int, int]]]) -> dict[str, float]:
    for _ in batches():
        pass
    started = time.perf_counter()
    counts = [one for _ in range(PASSES) for one in batches()]
    seconds = time.perf_counter() - started
    num_images, num = (sum(column) for column in zip(*counts, strict=True))
    return {"samples_per_s": num / seconds, "images_per_s": num_images / seconds}


def _measured_pixels(name: str, directory: Path) -> dict[str, float]:
    """CPU time of an image, and whether the two make the same of the first ones."""
    import torch

    torch.set_num_threads(1)
    makers = {"datapipe pixels": pixels_by_datapipe, "transformers pixels": pixels_by_transformers}
    data = [path.read_bytes() for path in sorted((directory / "photos").rglob("*.jpg"))[:200]]
    made = makers[name](directory, data)
    for one in data[:10]:
        made(one)
    cpu = time.process_time()
    for one in data:
        made(one)
    found = {"cpu_ms_per_image": 1000 * (time.process_time() - cpu) / len(data)}
    if name == "datapipe pixels":
        theirs = pixels_by_transformers(directory, data)
        stages: dict[str, float] = {}
        for one in data:
            made(one, stages)
        found |= {name: 1000 * seconds / len(data) for name, seconds in stages.items()}
        found["equal"] = float(all(torch.equal(made(one), theirs(one)) for one in data[:20]))
    return found


def main() -> None:
    name, directory = sys.argv[1], Path(sys.argv[2])
    if name.endswith("pixels"):
        found = _measured_pixels(name, directory)
    else:
        found = _measured({"datapipe": by_datapipe, "transformers": by_transformers}[name](directory))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
