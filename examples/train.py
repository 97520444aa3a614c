"""Train a small network on a converted dataset, on one process or many, and resume after a stop.

    datapipe convert photos shards --to webdataset
    python examples/train.py shards --epochs 2
    torchrun --nproc-per-node 2 examples/train.py shards --epochs 2 --batch-size 32

The checkpoint holds the loader's position together with the weights. Run the same command again after an
interruption, on as many processes as you like while batch size times processes stays the same, and the
epoch continues with the sample after the last one trained on.
"""

from __future__ import annotations

import argparse
import gc
import os
from pathlib import Path

import torch
from torch import distributed, nn

import datapipe as dp
from datapipe import transforms as T


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on a dataset.")
    parser.add_argument("data", help="a converted dataset, WebDataset shards or an image folder")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64, help="per process")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    parser.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--max-steps", type=int, help="stop after so many steps, as an interruption would")
    arguments = parser.parse_args()
    is_parallel = int(os.environ.get("WORLD_SIZE", "1")) > 1
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if torch.cuda.is_available() else torch.device("cpu")
    if is_parallel:
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    train(arguments, device, is_parallel=is_parallel)
    if is_parallel:
        distributed.barrier()  # no process leaves while another still uses the group
        gc.collect()  # what is left of the model holds the group, whose threads must be gone before the interpreter is
        distributed.destroy_process_group()


def train(arguments: argparse.Namespace, device: torch.device, *, is_parallel: bool) -> None:
    loader = dp.DataLoader(
        arguments.data,
        batch_size=arguments.batch_size,
        shuffle=True,
        drop_last=True,
        device=device,
        transform=[
            T.RandomResizedCrop(128),
            T.RandomHorizontalFlip(),
            T.ToDtype(torch.float32, scale=True),
            T.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD),
        ],
    )
    torch.manual_seed(0)
    network = make_network(len(loader.dataset.classes)).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3)
    step, num_steps = 0, arguments.epochs * len(loader)
    if arguments.checkpoint.exists():
        saved = torch.load(arguments.checkpoint, map_location=device, weights_only=True)
        network.load_state_dict(saved["network"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
        print(f"going on after step {step}")
    model = nn.parallel.DistributedDataParallel(network) if is_parallel else network

    def save() -> None:
        if not is_parallel or distributed.get_rank() == 0:
            state = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
            unfinished = arguments.checkpoint.with_suffix(".part")
            torch.save({**state, "step": step}, unfinished)
            unfinished.replace(arguments.checkpoint)

    last_step = min(num_steps, step + (arguments.max_steps or num_steps))
    while step < last_step:
        for images, labels in loader:  # the rest of an epoch after a stop, a whole one otherwise
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            if step % arguments.checkpoint_every == 0 or step == last_step:
                print(f"step {step} of {num_steps}: loss {loss.item():.3f}")
                save()
            if step == last_step:
                break


def make_network(num_classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for fan_in, fan_out in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(fan_in, fan_out, 5, stride=4, padding=2), nn.BatchNorm2d(fan_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, num_classes))


if __name__ == "__main__":
    main()
