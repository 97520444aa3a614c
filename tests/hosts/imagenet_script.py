"""Train a classifier on an image folder: the shape that PyTorch's ImageNet example has given to many scripts.

As that one it takes `DIR/train` and `DIR/val`, runs alone or on the ranks of torchrun, and validates after each epoch. What a
step was given goes to a file: images are of one colour each, and the colour says which they are.
"""

import argparse
import json
import os

import torch
import torch.distributed as dist
import torch.utils.data
import torchvision.datasets as datasets
import torchvision.transforms as transforms

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def main(argv):
    parser = argparse.ArgumentParser(description="ImageNet training")
    parser.add_argument("data", metavar="DIR")
    parser.add_argument("-j", "--workers", default=1, type=int)
    parser.add_argument("--epochs", default=2, type=int)
    parser.add_argument("-b", "--batch-size", default=5, type=int)
    parser.add_argument("--lr", default=0.01, type=float)
    args = parser.parse_args(argv)
    args.distributed = "RANK" in os.environ
    if args.distributed:
        dist.init_process_group("gloo")
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(12, 3))
    if args.distributed:
        model = torch.nn.parallel.DistributedDataParallel(model)
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)

    normalize = transforms.Normalize(mean=MEAN, std=STD)
    train_dataset = datasets.ImageFolder(
        os.path.join(args.data, "train"),
        transforms.Compose(
            [transforms.RandomResizedCrop(24), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize]
        ),
    )
    val_dataset = datasets.ImageFolder(
        os.path.join(args.data, "val"),
        transforms.Compose([transforms.Resize(28), transforms.CenterCrop(24), transforms.ToTensor(), normalize]),
    )
    if args.distributed:
        train_sampler = torch.utils.data.distributed.DistributedSampler(train_dataset)
        val_sampler = torch.utils.data.distributed.DistributedSampler(val_dataset, shuffle=False, drop_last=True)
    else:
        train_sampler = None
        val_sampler = None
    train_loader = torch.utils.data.DataLoader(
        train_dataset, batch_size=args.batch_size, shuffle=(train_sampler is None),
        num_workers=args.workers, pin_memory=False, sampler=train_sampler)  # fmt: skip
    val_loader = torch.utils.data.DataLoader(
        val_dataset, batch_size=args.batch_size, shuffle=False,
        num_workers=args.workers, pin_memory=False, sampler=val_sampler)  # fmt: skip

    seen = {"train": [], "val": []}
    for epoch in range(args.epochs):
        if args.distributed:
            train_sampler.set_epoch(epoch)
        seen["train"].append(train(train_loader, model, criterion, optimizer))
        seen["val"].append(validate(val_loader, model, criterion, args))
    if args.distributed:
        dist.barrier()
        del model, optimizer  # freed after its process group, a model can wait for the group's threads for ever
        dist.destroy_process_group()
    return json.dumps(seen)


def train(loader, model, criterion, optimizer):
    model.train()
    steps = []
    for _, (images, target) in enumerate(loader):
        loss = criterion(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps.append(numbers_of(images))
    assert len(steps) == len(loader)
    return steps


def validate(val_loader, model, criterion, args):
    model.eval()
    steps = []

    def run(loader):
        with torch.no_grad():
            for images, target in loader:
                criterion(model(images), target)
                steps.append(numbers_of(images))

    run(val_loader)
    if args.distributed and len(val_loader.sampler) * dist.get_world_size() < len(val_loader.dataset):
        first = len(val_loader.sampler) * dist.get_world_size()
        rest = torch.utils.data.Subset(val_loader.dataset, range(first, len(val_loader.dataset)))
        run(torch.utils.data.DataLoader(rest, batch_size=args.batch_size, shuffle=False))
    return steps


def numbers_of(images):
    """Which images these are, by the red of their pixels."""
    return ((images[:, 0, 0, 0] * STD[0] + MEAN[0]) * 255).round().int().tolist()
