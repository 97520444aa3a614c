"""`datapipe train`: train a classifier on a dataset, on one process or many, resuming after a stop."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datapipe.cli.say import say, say_text
from datapipe.training.options import TrainOptions

if TYPE_CHECKING:
    import torch

    from datapipe.loader import DataLoader, Dataset
    from datapipe.training.run import Report

_EPILOG = """\
examples:
  datapipe train shards/train --val shards/val --epochs 20
  datapipe train photos --model vit --precision bf16 --mixup 0.2 --out runs/vit
  datapipe train photos --model vit --precision bf16 --mixup 0.2 --out runs/vit --resume auto
  torchrun --nproc-per-node 8 -m datapipe train shards/train --model resnet50 --optimizer sgd --lr 1.6
"""
_DEFAULT_OUT = Path("train-out")
_SIZES = {"cnn": 128, "vit": 128}  # pixels; other models take 224


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the program's parser."""
    parser = subparsers.add_parser(
        "train",
        help="train a classifier, and see whether it starves for data",
        description="Train an image classifier on a converted dataset, shards or an image folder. Checkpoints, metrics.jsonl and "
        "run.json go to --out; after Ctrl-C, SIGTERM or a crash, --resume auto continues exactly where it stopped.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", metavar="PATH", help="dataset to train on")
    parser.add_argument("--val", metavar="PATH", help="dataset to validate on after each epoch")
    _add_model(parser)
    _add_data(parser)
    _add_steps(parser)
    _add_run(parser)
    parser.set_defaults(run=run)


def _add_model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        metavar="NAME",
        default="cnn",
        help="cnn, vit, or a network of torchvision or timm by its name there, as resnet50 or timm:convnext_tiny (default: cnn)",
    )
    group.add_argument("--pretrained", type=Path, metavar="FILE", help="weights to begin with; the head may differ")
    group.add_argument("--num-classes", type=int, metavar="N", help="outputs of the head (default: the dataset's classes)")
    group.add_argument("--compile", nargs="?", const="inductor", metavar="BACKEND", help="torch.compile (backend: inductor)")
    group.add_argument("--activation-checkpointing", action="store_true", help="compute activations twice to save memory")
    group.add_argument("--no-channels-last", dest="channels_last", action="store_false", help="leave the memory format alone")


def _add_data(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("data")
    group.add_argument("--batch-size", type=int, metavar="N", default=64, help="samples per batch and process (default: 64)")
    group.add_argument("--size", type=int, metavar="PIXELS", help="side of the crop (default: 128 for cnn and vit, else 224)")
    group.add_argument("--augment", choices=("none", "rand", "trivial"), default="none", help="further augmentation (none)")
    group.add_argument("--mixup", type=float, metavar="ALPHA", default=0.0, help="blend samples in pairs, e.g. 0.2")
    group.add_argument("--cutmix", type=float, metavar="ALPHA", default=0.0, help="paste boxes of other samples, e.g. 1.0")
    group.add_argument("--num-workers", type=int, metavar="N", help="decode threads (default: usable cores)")
    group.add_argument("--device", metavar="D", default="auto", help="cpu, cuda (the rank's own), cuda:N (default: a GPU if any)")
    group.add_argument("--backend", metavar="B", default="auto", help="what decodes: images_cpu, dali or auto (default)")
    group.add_argument("--on-error", choices=("raise", "skip", "replace"), default="raise", help="bad samples (raise)")


def _add_steps(parser: argparse.ArgumentParser) -> None:
    group, default = parser.add_argument_group("steps"), TrainOptions()
    group.add_argument("--epochs", type=int, metavar="N", default=default.epochs, help=f"(default: {default.epochs})")
    group.add_argument("--optimizer", metavar="NAME", default=default.optimizer, help="of torch.optim (default: adamw)")
    group.add_argument("--lr", type=float, metavar="X", help="highest learning rate (default: 0.001 for adamw, 0.05 for sgd)")
    group.add_argument("--weight-decay", type=float, metavar="X", help="not of norms and biases (0.05 for adamw, 1e-4 for sgd)")
    group.add_argument("--momentum", type=float, metavar="X", default=default.momentum, help="of sgd (default: 0.9)")
    group.add_argument("--warmup", type=float, metavar="SHARE", default=default.warmup, help="share of the steps (default: 0.05)")
    group.add_argument("--final-lr", type=float, metavar="SHARE", default=default.final_lr, help="share of --lr at the end (0)")
    group.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default=default.precision, help="(default: fp32)")
    group.add_argument("--accumulate", type=int, metavar="N", default=1, help="batches per change of the weights (default: 1)")
    group.add_argument("--clip-norm", type=float, metavar="X", help="clip the gradient's norm to this")
    group.add_argument("--label-smoothing", type=float, metavar="X", default=0.0, help="(default: 0)")
    group.add_argument("--patience", type=int, metavar="N", help="stop after so many epochs without improvement")
    group.add_argument("--min-delta", type=float, metavar="X", default=0.0, help="the least that counts as improvement (0)")
    group.add_argument("--watch", choices=("accuracy", "loss"), default=default.watch, help="of the validation (accuracy)")


def _add_run(parser: argparse.ArgumentParser) -> None:
    group, default = parser.add_argument_group("run"), TrainOptions()
    group.add_argument("--out", type=Path, metavar="DIR", default=_DEFAULT_OUT, help=f"(default: {_DEFAULT_OUT})")
    group.add_argument("--resume", metavar="auto|FILE", help="continue the run in --out, if there is one, or from a checkpoint")
    group.add_argument("--save-every-steps", type=int, metavar="N", help="checkpoints in addition to those of every epoch")
    group.add_argument(
        "--save-every-minutes", type=float, metavar="X", default=default.save_every_minutes, help="likewise (default: 15)"
    )
    group.add_argument("--seed", type=int, metavar="N", default=0, help="of weights, order and augmentation (default: 0)")
    group.add_argument("--log-every", type=int, metavar="STEPS", default=default.log_every, help="line of metrics (default: 10)")
    group.add_argument("--plot", type=Path, metavar="PNG", help="draw the share of waiting for data over the run")
    group.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Train. Raises what `datapipe.training.fit` raises, and OptionError for data that a classifier cannot be trained on."""
    from datapipe.core.atomic import refuse_to_replace
    from datapipe.core.errors import OptionError

    if args.plot is not None:
        refuse_to_replace(args.plot)
    for name in ("batch_size", "size", "num_classes"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise OptionError(f"--{name.replace('_', '-')} is {value}; it must be at least 1")
    names = TrainOptions.__dataclass_fields__
    options = TrainOptions(**{name: value for name, value in vars(args).items() if name in names})
    import torch

    from datapipe.loader.choice import resolve_device

    # Under torchrun every rank gets the same "cuda", which means its own GPU.
    device = resolve_device("auto" if args.device == "cuda" and torch.cuda.is_available() else args.device)()
    with process_group(device) as leads:
        report = train(args, options, device, leads=leads)
    if leads and args.plot is not None:
        draw_waiting(args.out, args.plot, where=args.path)
    if leads:
        say_text(json.dumps(report.to_json(), indent=1) if args.json else as_text(report))
    return 0


def draw_waiting(out: Path, path: Path, *, where: str) -> None:
    """Write a PNG with the share of waiting over the steps of the run in `out`, each value that of its epoch so far."""
    from datapipe.cli.charts import draw_shares
    from datapipe.training.record import METRICS

    lines = [json.loads(line) for line in (out / METRICS).read_text(encoding="utf-8").splitlines()]
    points = [(line["step"], line["starvation"]) for line in lines if "loss" in line and line["starvation"] is not None]
    ends = [line["step"] for line in lines if "train_loss" in line]
    words = "in each epoch so far; vertical lines are the ends of epochs" if points else "not measured: too few steps"
    draw_shares(path, points, ends, title=f"waiting for data: {where}", subtitle=words)


def train(args: argparse.Namespace, options: TrainOptions, device: torch.device, *, leads: bool) -> Report:
    """Train as the arguments say. Returns the report."""
    import torch

    from datapipe.training.checkpoint import load_pretrained
    from datapipe.training.data import check_same_classes, count_classes, open_labelled, training_recipe, validation_recipe
    from datapipe.training.models import make_model
    from datapipe.training.run import fit

    dataset = open_labelled(args.path)
    num_classes = count_classes(dataset, args.num_classes, where=args.path)
    size = args.size or _SIZES.get(args.model, 224)
    recipe = training_recipe(size, num_classes=num_classes, augment=args.augment, mixup=args.mixup, cutmix=args.cutmix)
    loader = _loader(args, dataset, device, transform=recipe, training=True)
    val_loader = None
    if args.val is not None:
        val = open_labelled(args.val)
        check_same_classes(dataset, val)
        count_classes(val, num_classes, where=args.val)
        val_loader = _loader(args, val, device, transform=validation_recipe(size), training=False)
    torch.manual_seed(args.seed)
    model = make_model(args.model, num_classes, size=size)
    about: dict[str, Any] = {"path": str(args.path), "val": args.val, "model_name": args.model, "size": size}
    about |= {"num_classes": num_classes, "seed": args.seed, "augment": args.augment, "mixup": args.mixup, "cutmix": args.cutmix}
    if leads:
        num = sum(parameter.numel() for parameter in model.parameters())
        _tell(f"{args.model}: {num:,} weights, {num_classes} classes; {len(dataset):,} images of {size} pixels on {device}")
    if args.pretrained is not None:
        loaded = load_pretrained(model, args.pretrained, num_classes=num_classes)
        about["pretrained"] = {"file": str(args.pretrained), "outcome": str(loaded)}
        if leads:
            _tell(f"{args.pretrained}: {loaded}")
    return fit(model, loader, options=options, val_loader=val_loader, about=about)


def _loader(args: argparse.Namespace, dataset: Dataset, device: torch.device, *, transform: object, training: bool) -> DataLoader:
    from datapipe.loader import DataLoader
    from datapipe.loader.ranks import resolve_rank

    full = args.batch_size * resolve_rank(None, None).world_size
    return DataLoader(
        dataset,
        batch_size=args.batch_size,
        shuffle=training,
        # Validation counts each sample once; training also accepts a set smaller than a batch.
        tail=("drop" if len(dataset) >= full else "pad") if training else "mask",
        fields=("image", "label"),
        num_workers=args.num_workers,
        transform=transform,
        device=device,
        backend=args.backend,
        seed=args.seed,
        on_error=args.on_error,
    )


@contextlib.contextmanager
def process_group(device: torch.device) -> Iterator[bool]:
    """Join the processes that torchrun started, if it did. Yields whether this one leads.

    After an error no process waits for the others: the launcher ends them.
    """
    import torch
    from torch import distributed

    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield True
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield distributed.get_rank() == 0
        distributed.barrier()  # no process leaves while another still communicates with it
    except (SystemExit, KeyboardInterrupt):  # a stop on which all ranks have agreed
        _leave_group()
        raise
    _leave_group()


def _leave_group() -> None:
    import gc

    from torch import distributed

    gc.collect()  # the rest of the model holds the group, whose threads must end before the interpreter does
    distributed.destroy_process_group()


def as_text(report: Report) -> str:
    """Return the summary of a run as text for people."""
    lines = [f"{report.status} after {len(report.epochs)} epochs, {report.step:,} steps"]
    if report.best.epoch is not None:
        lines.append(f"best: epoch {report.best.epoch + 1}, {report.best.value:.4f}")
    if report.out is not None:
        lines.append(f"wrote {report.out}/last.pt, metrics.jsonl and run.json")
    return "\n".join(lines)


def _tell(text: str) -> None:
    say(text, file=sys.stderr)
