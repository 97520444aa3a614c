"""Train a small network while other machines decode its images: nodes of a Ray cluster, or machines that run `datapipe serve`.

    datapipe demo --photos /shared/photos --images 3000         # a folder that all machines see at the same path

    ray start --head --port 6379                                # on the machine with the GPU
    ray start --address GPU-MACHINE:6379                        # on each machine that has cores to spare
    python examples/decode_elsewhere.py /shared/photos --ray-cpus 32

    datapipe serve --root /shared/photos --listen 0.0.0.0:7071 --certificate decoder.pem --key decoder.key     # without Ray
    DATAPIPE_TOKEN=... python examples/decode_elsewhere.py /shared/photos --at grpc+tls://DECODER:7071 --certificate decoder.pem

The batches are those that this machine alone would make. `--threads 0` leaves all decoding to the others.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

import datapipe as dp
from datapipe import transforms as T


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network while other machines decode.")
    parser.add_argument("data", help="an image folder or shards, seen by all machines at the same path")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--ray-cpus", type=int, metavar="N", help="cores of other nodes of the Ray cluster")
    where.add_argument("--at", metavar="PLACES", help="where `datapipe serve` listens, such as grpc+tls://HOST:7071")
    parser.add_argument("--certificate", help="what `datapipe serve` has as its --certificate")
    parser.add_argument("--threads", type=int, default=2, help="that decode here, too")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    arguments = parser.parse_args()
    if arguments.at:
        workers = dp.Workers(arguments.at, certificate=arguments.certificate)
    else:
        workers = dp.Workers("ray", num_cpus=arguments.ray_cpus)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = dp.DataLoader(
        arguments.data,
        batch_size=arguments.batch_size,
        shuffle=True,
        seed=0,
        drop_last=True,
        device=device,
        num_workers=arguments.threads,
        workers=workers,
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
    for epoch in range(arguments.epochs):
        start = time.monotonic()
        losses = []
        for images, labels in loader:
            loss = nn.functional.cross_entropy(network(images), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        rate = len(losses) * arguments.batch_size / (time.monotonic() - start)
        print(f"epoch {epoch + 1}: loss {torch.stack(losses).mean():.3f}, {rate:.0f} images/s")
    print(*(line.strip() for line in str(dp.explain(loader)).splitlines() if "elsewhere" in line.split()), sep="\n")


def make_network(num_classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for fan_in, fan_out in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(fan_in, fan_out, 5, stride=4, padding=2), nn.BatchNorm2d(fan_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, num_classes))


if __name__ == "__main__":
    main()
