"""The arguments of `datapipe train` and `datapipe diagnose`. What is not given is left to the defaults of TrainOptions."""

from __future__ import annotations

import argparse
from pathlib import Path

from datapipe.cli.arguments import Commands

_TRAIN_EPILOG = """\
examples:
  datapipe train shards/train --val shards/val --epochs 20
  datapipe train photos --model resnet50 --precision bf16 --out runs/resnet
  datapipe train photos --model resnet50 --precision bf16 --out runs/resnet --resume auto
  torchrun --nproc-per-node 8 -m datapipe train shards/train --model resnet50 --optimizer sgd --lr 1.6
"""

_DIAGNOSE_EPILOG = """\
examples:
  datapipe diagnose train.py --epochs 1
  datapipe diagnose --steps 500 -m package.train --config base
  datapipe diagnose -- torchrun --nproc-per-node 2 train.py
  datapipe diagnose --fail-if 'starvation>10%' train.py
  datapipe diagnose run.dpr
  datapipe diagnose --compare before/diagnosis.json after/diagnosis.json
"""


def _sizes(text: str) -> tuple[int, ...]:
    """Return whole numbers above 0, which commas separate."""
    sizes = tuple(int(one) if one.strip().isdecimal() else 0 for one in text.split(","))
    if min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not one or more batch sizes, such as 32,128")
    return sizes


def add_train(subparsers: Commands) -> None:
    """Add `datapipe train`."""
    parser = subparsers.add_parser(
        "train",
        help="train a classifier, and see whether it starves for data",
        description="Train an image classifier on a converted dataset, shards or an image folder. Checkpoints, metrics.jsonl and "
        "run.json go to --out; after Ctrl-C, SIGTERM or a crash, --resume auto continues exactly where it stopped.",
        epilog=_TRAIN_EPILOG,
    )
    parser.add_argument("path", metavar="PATH", help="dataset to train on")
    parser.add_argument("--val", metavar="PATH", help="dataset to validate on after each epoch")
    _add_model(parser)
    _add_data(parser)
    _add_steps(parser)
    _add_run(parser)
    parser.set_defaults(run="datapipe.cli.train:run")


def _add_model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        metavar="NAME",
        default="cnn",
        help="cnn, or a network of torchvision or timm by its name there, as resnet50 or timm:convnext_tiny (default: cnn)",
    )
    group.add_argument("--num-classes", type=int, metavar="N", help="outputs of the head (default: the dataset's classes)")
    group.add_argument("--compile", nargs="?", const="inductor", metavar="BACKEND", help="torch.compile (backend: inductor)")
    group.add_argument("--activation-checkpointing", action="store_true", help="compute activations twice to save memory")
    group.add_argument("--no-channels-last", dest="channels_last", action="store_false", help="leave the memory format alone")


def _add_data(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("data")
    group.add_argument("--batch-size", type=int, metavar="N", default=64, help="samples per batch and process (default: 64)")
    group.add_argument("--size", type=int, metavar="PIXELS", help="side of the crop (default: 128 for cnn, else 224)")
    group.add_argument("--num-workers", type=int, metavar="N", help="decode threads (default: usable cores)")
    group.add_argument("--device", metavar="D", default="auto", help="cpu, cuda (the rank's own), cuda:N (default: a GPU if any)")
    group.add_argument("--backend", metavar="B", default="auto", help="what decodes: images_cpu, dali or auto (default)")
    group.add_argument("--on-error", choices=("raise", "skip", "replace"), default="raise", help="bad samples (raise)")


def _add_steps(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("steps", argument_default=argparse.SUPPRESS)
    group.add_argument("--epochs", type=int, metavar="N", help="(default: 10)")
    group.add_argument("--optimizer", choices=("adamw", "sgd"), help="(default: adamw)")
    group.add_argument("--lr", type=float, metavar="X", help="highest learning rate (default: 0.001 for adamw, 0.05 for sgd)")
    group.add_argument("--weight-decay", type=float, metavar="X", help="not of norms and biases (0.05 for adamw, 1e-4 for sgd)")
    group.add_argument("--momentum", type=float, metavar="X", help="of sgd (default: 0.9)")
    group.add_argument("--warmup", type=float, metavar="SHARE", help="share of the steps (default: 0.05)")
    group.add_argument("--final-lr", type=float, metavar="SHARE", help="share of --lr at the end (0)")
    group.add_argument("--precision", choices=("fp32", "bf16", "fp16"), help="(default: fp32)")
    group.add_argument("--accumulate", type=int, metavar="N", help="batches per change of the weights (default: 1)")
    group.add_argument("--clip-norm", type=float, metavar="X", help="clip the gradient's norm to this")
    group.add_argument("--label-smoothing", type=float, metavar="X", help="(default: 0)")
    group.add_argument("--patience", type=int, metavar="N", help="stop after so many epochs without improvement")
    group.add_argument("--min-delta", type=float, metavar="X", help="the least that counts as improvement (0)")
    group.add_argument("--watch", choices=("accuracy", "loss"), help="of the validation (accuracy)")


def _add_run(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("run", argument_default=argparse.SUPPRESS)
    group.add_argument("--out", type=Path, metavar="DIR", default=Path("train-out"), help="(default: train-out)")
    group.add_argument("--resume", metavar="auto|FILE", help="continue the run in --out, if there is one, or from a checkpoint")
    group.add_argument("--save-every-steps", type=int, metavar="N", help="checkpoints in addition to those of every epoch")
    group.add_argument("--save-every-minutes", type=float, metavar="X", help="likewise (default: 15)")
    group.add_argument("--seed", type=int, metavar="N", help="of weights, order and augmentation (default: 0)")
    group.add_argument("--log-every", type=int, metavar="STEPS", help="line of metrics (default: 10)")
    group.add_argument("--json", action="store_true", default=False, help="print the result as JSON")


def add_diagnose(subparsers: Commands) -> None:
    """Add `datapipe diagnose`."""
    parser = subparsers.add_parser(
        "diagnose",
        help="run an unchanged training script: how long it waits for data, why, and what would help",
        description="Run a training script, unmodified, and measure how long the GPU stands idle for data, which stage is at "
        "fault, and what each remedy would bring. Exits with the script's own status. Options of diagnose come first. "
        "RECORDING is a directory that a datapipe.Monitor(saves=RECORDING) has saved a run in: nothing is run then.",
        usage="datapipe diagnose [options] SCRIPT ARGS... | -m MODULE ARGS... | -- COMMAND ARGS... | RECORDING",
        epilog=_DIAGNOSE_EPILOG,
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the results go (default: a fresh diagnosis-DATE-TIME)")
    parser.add_argument("--steps", type=int, metavar="N", help="stop measuring after N training steps; the script continues")
    parser.add_argument("--json", action="store_true", help="print the diagnosis as JSON; what the script prints goes to stderr")
    parser.add_argument("--html", action=argparse.BooleanOptionalAction, default=True, help="write an HTML page (default)")
    parser.add_argument("--trace", action="store_true", help="write trace.json, for chrome://tracing or ui.perfetto.dev")
    parser.add_argument(
        "--nvtx",
        action="store_true",
        help="put NVTX ranges around each next() and each step, and around what workers do, for Nsight Systems: "
        "nsys profile datapipe diagnose --nvtx SCRIPT",
    )
    parser.add_argument("--profile", action="store_true", help="have torch.profiler record 10 steps, which are then not measured")
    parser.add_argument(
        "--flops",
        action="store_true",
        help="count the floating point operations and the bytes of 4 steps, which are then not measured, and say what bounds the "
        "model: compute, memory, launches or data",
    )
    parser.add_argument(
        "--batch-sizes",
        metavar="N,N,...",
        type=_sizes,
        default=(),
        help="run the script again with each of these batch sizes, from its start and for at most 300 steps, with everything "
        "that it writes, and say what a step takes then, and what bounds it; with --flops",
    )
    parser.add_argument(
        "--trials",
        type=float,
        metavar="SECONDS",
        default=15.0,
        help="after the script has ended, if it waits for data, try datapipe's loader and converted data on up to 1,000 of the "
        "samples for about this long; 0: do not (default: 15)",
    )
    parser.add_argument(
        "--fail-if",
        metavar="CONDITION",
        action="append",
        default=[],
        help="exit with status 1 if this holds, such as 'starvation>10%%' or 'step>120ms'; may be repeated",
    )
    parser.add_argument(
        "--apply",
        action="store_true",
        help="apply the best remedy that needs no edit and run the script again, from its start and for at most "
        "300 steps, with everything that it writes",
    )
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("A", "B"), help="show what changed between two diagnoses")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="run a module, as python -m does")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="SCRIPT", help="a script and its arguments")
    parser.set_defaults(run="datapipe.diagnostics.command:run")
