"""Match images and captions, as CLIP does: two small towers and a contrastive loss.

python examples/make_scenes.py scenes
datapipe convert scenes/pairs scenes-shards --to webdataset --from pairs
python examples/captions.py scenes-shards --text txt
"""

from __future__ import annotations

import argparse
import zlib

import torch
from torch import nn

import datapipe as dp
from datapipe import transforms as T

VOCABULARY, WIDTH = 1024, 32


def main() -> None:
    parser = argparse.ArgumentParser(description="Train two towers on images and captions.")
    parser.add_argument("data", help="a converted dataset with images and captions")
    parser.add_argument("--text", default="txt", help="the field with the captions")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    arguments = parser.parse_args()
    loader = dp.DataLoader(
        dp.Images(arguments.data, fields=["image", arguments.text]),
        batch_size=arguments.batch_size,
        shuffle=True,
        drop_last=True,
        output={"image": "pixel_values", arguments.text: "caption"},
        transform=[
            T.RandomResizedCrop(48, scale=(0.5, 1.0)),
            T.RandomHorizontalFlip(),
            T.ToDtype(torch.float32, scale=True),
            T.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD),
        ],
    )
    torch.manual_seed(0)
    image_tower = nn.Sequential(
        nn.Conv2d(3, 16, 5, 4, 2), nn.ReLU(), nn.Conv2d(16, WIDTH, 5, 4, 2), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten()
    ).to(loader.device)
    text_tower = nn.EmbeddingBag(VOCABULARY, WIDTH, mode="mean").to(loader.device)
    optimizer = torch.optim.AdamW([*image_tower.parameters(), *text_tower.parameters()], lr=1e-2)
    for epoch in range(arguments.epochs):
        hits = total = 0
        for batch in loader:  # "pixel_values": (b, 3, 48, 48) float32, "caption": a list of str, "id": (b,)
            tokens, starts = tokenize(batch["caption"])
            images = nn.functional.normalize(image_tower(batch["pixel_values"]))
            texts = nn.functional.normalize(text_tower(tokens.to(loader.device), starts.to(loader.device)))
            scores = images @ texts.T * 10
            same = torch.tensor([[a == b for b in batch["caption"]] for a in batch["caption"]], device=loader.device)
            wanted = same / same.sum(1, keepdim=True)  # several images of a batch may have one caption
            loss = nn.functional.cross_entropy(scores, wanted) + nn.functional.cross_entropy(scores.T, wanted)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            hits += int(same[torch.arange(len(same)), scores.argmax(1)].sum())
            total += len(same)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {hits / total:.0%} of the images find their caption")


def tokenize(captions: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of all words, and where each caption's begin: a stand-in for a tokenizer."""
    words = [caption.split() for caption in captions]
    numbers = [zlib.crc32(word.encode()) % VOCABULARY for caption in words for word in caption]
    lengths = torch.tensor([0, *map(len, words)])
    return torch.tensor(numbers), lengths.cumsum(0)[:-1]


if __name__ == "__main__":
    main()
