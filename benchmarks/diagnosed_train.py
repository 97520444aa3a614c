"""The script that docs/diagnose.md has diagnosed: torchvision's ImageNet recipe over a folder, with too few workers.

python -m benchmarks.diagnosed_train PHOTOS
"""

from __future__ import annotations

import sys

import torch
from torch.utils.data import DataLoader

from benchmarks.contenders.torchvision_transforms import import_torchvision, transforms_of


def main(folder: str) -> None:
    torch.set_num_threads(1)  # a GPU would leave the cores to the loader, too
    photos = import_torchvision().datasets.ImageFolder(folder, transforms_of())
    loader = DataLoader(photos, batch_size=16, shuffle=True, drop_last=True, num_workers=1)
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(5):
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1])
