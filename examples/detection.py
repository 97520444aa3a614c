"""Detect: boxes are cut, scaled and flipped with their images; those of which the crop leaves nothing are gone.

python examples/make_scenes.py scenes
datapipe convert scenes/annotations.json boxes-shards --to webdataset --root scenes/pairs
python examples/detection.py boxes-shards
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import torch
from torch import nn

import datapipe as dp
from datapipe import transforms as T

SIDE, CELLS = 64, 8


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Train a small detector: one box, its class and a score for each cell of a grid."
    )
    parser.add_argument("data", help="a converted dataset with images and boxes")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    arguments = parser.parse_args()
    loader = dp.DataLoader(
        dp.Images(arguments.data, fields=["image", "boxes"], boxes="padded"),
        batch_size=arguments.batch_size,
        shuffle=True,
        transform=[
            T.RandomResizedCrop(SIDE, scale=(0.5, 1.0)),
            T.RandomHorizontalFlip(),
            T.ToDtype(torch.float32, scale=True),
            T.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD),
        ],
    )
    num_classes = len(loader.dataset.classes)
    torch.manual_seed(0)
    widths = (3, 16, 32, 32)
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Conv2d(a, b, 5, 2, 2), nn.ReLU())]
    network = nn.Sequential(*layers, nn.Conv2d(32, 5 + num_classes, 1)).to(loader.device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    for epoch in range(arguments.epochs):
        hits = total = 0
        for images, boxes in loader:  # (b, 3, 64, 64) float32, (b, k, 5): left, top, right, bottom, label or -1
            out = network(images).permute(0, 2, 3, 1)  # (b, cells, cells, 5 + classes)
            row, at = torch.nonzero(boxes[..., 4] >= 0, as_tuple=True)
            real = boxes[row, at]
            centre = (real[:, :2] + real[:, 2:4]) / 2
            x, y = (centre * CELLS / SIDE).long().clamp(0, CELLS - 1).unbind(1)
            has_box = torch.zeros(out.shape[:3], device=out.device)
            has_box[row, y, x] = 1
            mine = out[row, y, x]
            loss = nn.functional.binary_cross_entropy_with_logits(out[..., 0], has_box)
            if len(real):
                loss = loss + nn.functional.smooth_l1_loss(mine[:, 1:5], real[:, :4] / SIDE)
                loss = loss + nn.functional.cross_entropy(mine[:, 5:], real[:, 4].long())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            best = out[..., 0].flatten(1).argmax(1)
            hits += int((best[row] == y * CELLS + x).sum())
            total += len(real)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {hits / max(1, total):.0%} of the boxes have the best cell")


if __name__ == "__main__":
    main()
