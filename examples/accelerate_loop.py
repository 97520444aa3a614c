"""Hugging Face Accelerate: accumulation, exact metrics and a state to resume from in mid-epoch.

datapipe convert photos shards --to webdataset --split train=0.9,val=0.1
accelerate launch --num_processes 2 examples/accelerate_loop.py shards/train shards/val
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

import datapipe as dp
from datapipe import transforms as T
from datapipe.adapt.hosts.accelerate import prepare

NORMALIZE = [T.ToDtype(torch.float32, scale=True), T.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network with Accelerate.")
    parser.add_argument("train")
    parser.add_argument("validation")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32, help="per process")
    parser.add_argument("--state", type=Path, default=Path("accelerate-state"))
    parser.add_argument("--max-steps", type=int, help="stop after so many steps, as an interruption would")
    arguments = parser.parse_args()
    accelerator = Accelerator(gradient_accumulation_steps=2)
    train = dp.DataLoader(
        arguments.train, batch_size=arguments.batch_size, shuffle=True, device=accelerator.device,
        transform=[T.RandomResizedCrop(64), T.RandomHorizontalFlip(), *NORMALIZE],
    )  # fmt: skip
    validation = dp.DataLoader(
        arguments.validation, batch_size=arguments.batch_size, device=accelerator.device,
        transform=[T.Resize(72), T.CenterCrop(64), *NORMALIZE],
    )  # fmt: skip
    network = nn.Sequential(
        nn.Conv2d(3, 16, 5, 4, 2), nn.ReLU(), nn.Conv2d(16, 32, 5, 4, 2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, len(train.dataset.classes)),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3)
    model, optimizer, train, validation = prepare(accelerator, network, optimizer, train, validation)
    if arguments.state.exists():
        accelerator.load_state(str(arguments.state))
        accelerator.print(f"going on in epoch {train.state_dict()['epoch']}")
    monitor = dp.Monitor(train)  # writes a line if data starves the training, and costs next to nothing
    step = 0
    for epoch in range(train.state_dict()["epoch"], arguments.epochs):
        train.set_epoch(epoch)
        for images, labels in monitor:  # the rest of an epoch after a stop, a whole one otherwise
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(images), labels))
                optimizer.step()
                optimizer.zero_grad()
            step += 1
            if step == arguments.max_steps:
                break
        accelerator.save_state(str(arguments.state))
        if step == arguments.max_steps:
            break
        hits = [accelerator.gather_for_metrics(model(images).argmax(1) == labels) for images, labels in validation]
        found = torch.cat(hits)  # each sample once, whatever the number of processes
        accelerator.print(f"epoch {epoch}, {step} steps: {int(found.sum())} of {len(found)} right")
    # What holds the process group goes before it does: left to the end of `main`, its threads sometimes wait for ever.
    model, optimizer, train, validation = accelerator.free_memory(model, optimizer, train, validation)
    accelerator.end_training()


if __name__ == "__main__":
    main()
