"""Segment: masks are cut, resized and flipped with their images.

python examples/make_scenes.py scenes
datapipe convert scenes/pairs scenes-shards --to webdataset --from pairs
python examples/segmentation.py scenes-shards
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import datapipe as dp
from datapipe import transforms as T


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small segmentation network.")
    parser.add_argument("data", help="a converted dataset with images and masks")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--classes", type=int, default=3, help="labels in the masks, 0 included")
    arguments = parser.parse_args()
    loader = dp.DataLoader(
        dp.Images(arguments.data, fields=["image", "mask"]),
        batch_size=arguments.batch_size,
        shuffle=True,
        transform=[
            T.RandomResizedCrop(48, scale=(0.3, 1.0)),
            T.RandomHorizontalFlip(),
            T.ToDtype(torch.float32, scale=True),
            T.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD),
        ],
    )
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, arguments.classes, 1)
    ).to(loader.device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    for epoch in range(arguments.epochs):
        correct = total = 0
        for images, masks in loader:  # (b, 3, 48, 48) float32, (b, 48, 48) uint8
            scores = network(images)
            loss = nn.functional.cross_entropy(scores, masks.long())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            inside = masks > 0
            correct += int((scores.argmax(1) > 0)[inside].sum())
            total += int(inside.sum())
        print(f"epoch {epoch}: loss {loss.item():.3f}, {correct / total:.0%} of the objects' pixels found")


if __name__ == "__main__":
    main()
