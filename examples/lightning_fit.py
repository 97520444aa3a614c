"""PyTorch Lightning: the loader goes in as it is, on one process or many, and comes back from a checkpoint in mid-epoch.

datapipe convert photos shards --to webdataset --split train=0.9,val=0.1
python examples/lightning_fit.py shards/train shards/val --devices 2
python examples/lightning_fit.py shards/train shards/val --devices 2 --resume last
"""

from __future__ import annotations

import argparse

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

import datapipe as dp
from datapipe import transforms as T
from datapipe.diagnostics.hosts.lightning import MonitorCallback  # writes a line if data starves the training

NORMALIZE = [T.ToDtype(torch.float32, scale=True), T.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD)]


class Classifier(pl.LightningModule):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(3, 16, 5, 4, 2), nn.ReLU(), nn.Conv2d(16, 32, 5, 4, 2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, num_classes),
        )  # fmt: skip

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.network(images), labels)

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:
        images, labels = batch
        self.log("accuracy", (self.network(images).argmax(1) == labels).float().mean(), sync_dist=True, prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network with PyTorch Lightning.")
    parser.add_argument("train")
    parser.add_argument("validation")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32, help="per process")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--max-steps", type=int, default=-1)
    parser.add_argument("--directory", default="lightning")
    parser.add_argument("--resume", help="a checkpoint, or 'last'")
    arguments = parser.parse_args()
    train = dp.DataLoader(
        arguments.train, batch_size=arguments.batch_size, shuffle=True, drop_last=True,
        transform=[T.RandomResizedCrop(64), T.RandomHorizontalFlip(), *NORMALIZE],
    )  # fmt: skip
    validation = dp.DataLoader(
        arguments.validation, batch_size=arguments.batch_size, transform=[T.Resize(72), T.CenterCrop(64), *NORMALIZE]
    )
    trainer = pl.Trainer(
        max_epochs=arguments.epochs, max_steps=arguments.max_steps, devices=arguments.devices, logger=False,
        callbacks=[ModelCheckpoint(arguments.directory, save_last=True, every_n_train_steps=1), MonitorCallback()],
    )  # fmt: skip
    model = Classifier(len(train.dataset.classes))
    trainer.fit(model, train, validation, ckpt_path=arguments.resume)
    print(f"step {trainer.global_step}: accuracy {trainer.callback_metrics.get('accuracy', torch.tensor(0.0)).item():.2f}")


if __name__ == "__main__":
    main()
