"""`datapipe train`: train a classifier on a dataset, on one process or many, resuming after a stop."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import torch

from datapipe.core.checks import whole_number
from datapipe.core.printable import counted, say, say_text
from datapipe.kernel.accelerators import accelerator
from datapipe.kernel.ranks import resolve_device, resolve_rank
from datapipe.kinds.images.data import Images
from datapipe.kinds.loader import DataLoader
from datapipe.training.data import check_same_classes, count_classes, open_labelled, training_recipe, validation_recipe
from datapipe.training.models import make_model
from datapipe.training.options import TrainOptions
from datapipe.training.process_group import launched_group
from datapipe.training.run import TrainingReport, fit


def run(args: argparse.Namespace) -> int:
    """Train. Raises what `datapipe.training.fit` raises, and OptionError for data that a classifier cannot be trained on."""
    for name in ("batch_size", "size", "num_classes"):
        if getattr(args, name) is not None:
            whole_number(getattr(args, name), f"--{name.replace('_', '-')}", least=1)
    names = TrainOptions.__dataclass_fields__
    options = TrainOptions(**{name: value for name, value in vars(args).items() if name in names})
    # Under torchrun every rank gets the same "cuda", which means its own GPU.
    found = accelerator()
    device = resolve_device("auto" if found is not None and args.device == found.type else args.device)()
    with launched_group(device) as leads:
        report = train(args, options, device, leads=leads)
    if leads:
        say_text(json.dumps(report.to_json(), indent=1) if args.json else as_text(report))
    return 0


def train(args: argparse.Namespace, options: TrainOptions, device: torch.device, *, leads: bool) -> TrainingReport:
    """Train as the arguments say. Returns the report."""
    dataset = open_labelled(args.path)
    num_classes = count_classes(dataset, args.num_classes, where=args.path)
    size = args.size or (128 if args.model == "cnn" else 224)
    loader = _loader(args, dataset, device, transform=training_recipe(size), seed=options.seed, training=True)
    val_loader = None
    if args.val is not None:
        val = open_labelled(args.val)
        check_same_classes(dataset, val)
        count_classes(val, num_classes, where=args.val)
        val_loader = _loader(args, val, device, transform=validation_recipe(size), seed=options.seed, training=False)
    torch.manual_seed(options.seed)
    model = make_model(args.model, num_classes)
    about: dict[str, Any] = {"path": str(args.path), "val": args.val, "model_name": args.model, "size": size}
    about |= {"num_classes": num_classes, "seed": options.seed}
    if leads:
        num = sum(parameter.numel() for parameter in model.parameters())
        say(
            f"{args.model}: {num:,} weights, {counted(num_classes, 'class')};"
            f" {counted(len(dataset), 'image')} of {size} pixels on {device}",
            file=sys.stderr,
        )
    return fit(model, loader, options=options, val_loader=val_loader, about=about)


def _loader(
    args: argparse.Namespace, dataset: Images, device: torch.device, *, transform: object, seed: int, training: bool
) -> DataLoader:
    full = args.batch_size * resolve_rank().world_size
    return DataLoader(
        Images(dataset, fields=("image", "label")),
        batch_size=args.batch_size,
        shuffle=training,
        # Validation counts each sample once; training also accepts a set smaller than a batch.
        tail=("drop" if len(dataset) >= full else "pad") if training else "mask",
        num_workers=args.num_workers,
        transform=transform,
        device=device,
        backend=args.backend,
        seed=seed,
        on_error=args.on_error,
    )


def as_text(report: TrainingReport) -> str:
    """Return the summary of a run as text for people."""
    lines = [f"{report.status} after {counted(len(report.epochs), 'epoch')}, {counted(report.step, 'step')}"]
    if report.best.epoch is not None:
        lines.append(f"best: epoch {report.best.epoch + 1}, {report.best.value:.4f}")
    if report.out is not None:
        lines.append(f"wrote {report.out}/last.pt, metrics.jsonl and run.json")
    return "\n".join(lines)
