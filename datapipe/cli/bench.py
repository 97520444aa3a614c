"""`datapipe bench`: measure how fast the loader is on this data and this machine, and where its time goes."""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datapipe.cli.say import say_text

if TYPE_CHECKING:
    import torch

    from datapipe.core.observe import StageEvent
    from datapipe.index.sample_index import SampleIndex


def add_parser(subparsers: Any) -> None:
    """Add the command to the program's parser."""
    parser = subparsers.add_parser(
        "bench",
        help="measure the loader alone on a dataset, against torch's if asked",
        description="Run the loader with the usual ImageNet recipe (RandomResizedCrop, flip, normalise to float32) without a "
        "model. With --against torch, torch's DataLoader with Pillow does the same work over the same samples in alternated "
        "rounds. Of a table, shuffled batches of all numbers beside a bare read. The first round of each is a warm-up and "
        "does not count.",
        epilog="example: datapipe bench shards/train --against torch --plot rates.png",
    )
    parser.add_argument("path", help="dataset")
    parser.add_argument("--against", choices=["torch"], help="measure this loader as well")
    parser.add_argument("--device", metavar="D", default="auto", help="cpu, cuda, cuda:N (default: this machine's GPU, if any)")
    parser.add_argument("--backend", metavar="B", default="auto", help="what decodes: images_cpu, dali or auto (default)")
    parser.add_argument("--batch-size", metavar="N", type=int, default=128, help="samples per batch (default: 128)")
    parser.add_argument("--table-batch-size", metavar="N", type=int, default=65536, help="rows per batch of a table (65536)")
    parser.add_argument("--num-workers", metavar="N", type=int, help="threads, and torch's processes (default: usable cores)")
    parser.add_argument("--size", metavar="PIXELS", type=int, default=224, help="side of the crop (default: 224)")
    parser.add_argument("--images", metavar="N", type=int, default=2000, help="images per round (default: 2000)")
    parser.add_argument("--rounds", metavar="N", type=int, default=3, help="rounds counted (default: 3)")
    parser.add_argument("--plot", metavar="PNG", type=Path, help="draw the rates as bars")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


class StageTotals:
    """An observer that adds up the time of every stage. Thread-safe."""

    def __init__(self) -> None:
        self.duration_ns: dict[str, int] = defaultdict(int)
        self.num_images = 0
        self._lock = threading.Lock()

    def __call__(self, event: StageEvent, /) -> None:
        with self._lock:
            self.duration_ns[event.stage.value] += event.duration_ns
            if event.stage.value == "read":
                self.num_images += event.num_samples


def run(args: argparse.Namespace) -> int:
    """Measure and print. Raises OptionError for counts below 1, and what `open_index` and the loader raise."""
    from datapipe.cli.charts import Bar, draw_bars
    from datapipe.cli.table_facts import measure_table, measured_text, samples_or_table
    from datapipe.core.atomic import refuse_to_replace
    from datapipe.core.errors import OptionError
    from datapipe.index.tables import TableIndex

    if args.plot is not None:
        refuse_to_replace(args.plot)
    for name in ("batch_size", "table_batch_size", "size", "images", "rounds"):
        if getattr(args, name) < 1:
            raise OptionError(f"--{name.replace('_', '-')} is {getattr(args, name)}; it must be at least 1")
    index = samples_or_table(args.path)
    if isinstance(index, TableIndex):
        if args.against is not None or args.plot is not None:
            raise OptionError("--against and --plot are for images; a table is measured beside a bare read of its columns")
        found = measure_table(index, args)
        say_text(json.dumps(found, indent=1) if args.json else measured_text(found))
        return 0
    result = measure(index, args)
    if args.plot is not None:
        bars = [
            Bar(name, rate, min(result["rounds"][name]), max(result["rounds"][name]))
            for name, rate in result["images_per_s"].items()
        ]
        words = f"{result['samples']:,} samples, batches of {result['batch_size']}, {result['num_workers']} workers"
        draw_bars(args.plot, bars, title=f"images per second: {args.path}", subtitle=f"{words}, on {result['device']}")
    say_text(json.dumps(result, indent=1) if args.json else as_text(result))
    return 0


def measure(index: SampleIndex, args: argparse.Namespace) -> dict[str, Any]:
    """Return images per second of each loader, by round, and per-image stage times of datapipe's."""
    import datapipe as dp
    from datapipe.cli.torch_baseline import torch_loader
    from datapipe.loader.parsing import default_num_workers

    num_workers = default_num_workers() if args.num_workers is None else args.num_workers
    batch_size = min(args.batch_size, len(index))
    crop = [dp.RandomResizedCrop(args.size), dp.RandomHorizontalFlip()]
    recipe = [*crop, dp.ToDtype(_float32(), scale=True), dp.Normalize(dp.IMAGENET_MEAN, dp.IMAGENET_STD)]
    held = [spec.name for spec in index.manifest.fields]
    ours = dp.DataLoader(
        dp.Dataset(index),
        fields=[name for name in ("image", "label") if name == "image" or name in held],
        batch_size=batch_size,
        shuffle=True,
        seed=0,
        drop_last=True,
        num_workers=num_workers,
        transform=recipe,
        device=args.device,
        backend=args.backend,
    )
    loaders: dict[str, Iterable[Any]] = {"datapipe": ours}
    if args.against == "torch":
        loaders["torch"] = torch_loader(index, size=args.size, batch_size=batch_size, num_workers=num_workers)
    totals = StageTotals()
    ours.observe(totals)
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    for number in range(args.rounds + 1):
        for name, loader in loaders.items():
            rate = _rate(loader, args.images, device=ours.device)
            if number:
                rates[name].append(rate)
    stages = {name: total / totals.num_images / 1e6 for name, total in totals.duration_ns.items()}
    return {
        "samples": len(index),
        "batch_size": batch_size,
        "num_workers": num_workers,
        "device": str(ours.device),
        "backend": ours.choice.backend,
        "reason": ours.choice.reason,
        "images_per_s": {name: round(statistics.median(values), 1) for name, values in rates.items()},
        "rounds": {name: [round(value, 1) for value in values] for name, values in rates.items()},
        "ms_per_image": {name: round(value, 4) for name, value in stages.items()},
    }


def _rate(loader: Iterable[Any], num_images: int, *, device: torch.device) -> float:
    """Return images per second over at least `num_images`, in whole batches, over as many epochs as needed."""
    import torch

    seen, start_s = 0, time.perf_counter()
    while seen < num_images:
        for batch in loader:
            seen += len(batch[0])
            if seen >= num_images:
                break
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # a batch is delivered before the GPU has made it
    return seen / (time.perf_counter() - start_s)


def _float32() -> Any:
    import torch

    return torch.float32


def as_text(result: dict[str, Any]) -> str:
    """Return the figures as text for people."""
    rates = result["images_per_s"]
    lines = [
        f"{result['samples']:,} samples, batches of {result['batch_size']}, {result['num_workers']} workers, "
        f"on {result['device']} by {result['backend']} ({result['reason']})"
    ]
    for name, rate in rates.items():
        rounds = result["rounds"][name]
        lines.append(f"  {name:<9}{rate:>10,.0f} images/s   (rounds {min(rounds):,.0f} to {max(rounds):,.0f})")
    if "torch" in rates:
        lines.append(f"  ratio    {rates['datapipe'] / rates['torch']:>10.2f}")
    shares = ", ".join(f"{name} {value:.3f}" for name, value in result["ms_per_image"].items() if name != "wait")
    lines.append(f"  thread time per image, ms: {shares}")
    return "\n".join(lines)
