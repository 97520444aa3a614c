"""Converting the same photographs from archives instead of a folder, and on a Ray cluster of this machine.

    python -m benchmarks.convert_sources --gigabytes 5
    python -m benchmarks.convert_sources --gigabytes 0.1 --rounds 1     # a look

Rounds are alternated, from a warm page cache. Archives are compared by CPU time as well as by the clock: a ratio is the rate of
a conversion from the archive over that from the folder. Ray's overhead is that of the clock, with the time of a conversion of
a few files, which is start-up, taken off. Archives and shards are deleted in the end.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
import statistics
import tarfile
import zipfile
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.convert import convert_command, make_source, parse_arguments, run_once
from benchmarks.data import ImageSet, Workshop, prepare
from benchmarks.ratios import ratio_of, rotated

_NUM_FEW = 8  # files, to measure start-up


def main() -> None:
    arguments = parse_arguments("benchmarks.convert_sources")
    photos = prepare(Workshop(arguments.data), ImageSet("photos", num_files=arguments.files, copies=4), ("folder",)) / "folder"
    folder = make_source(photos, arguments.data / f"convert-{arguments.gigabytes:g}GB", arguments.gigabytes)
    place = arguments.data / "convert-sources"
    place.mkdir()
    try:
        result = measure(folder, place, arguments.rounds, arguments.workers)
    finally:
        shutil.rmtree(place)
    harness.save("convert-sources", "benchmarks.convert_sources", result, results=arguments.results)
    print("\n".join(as_lines(result)))


def measure(folder: Path, place: Path, num_rounds: int, workers: int) -> dict[str, Any]:
    """Make the archives, run the rounds; the result."""
    sources = {"folder": folder, "folder-again": folder, **make_archives(folder, place)}
    few = make_few(folder, place / "few")
    runs = {name: (path, "local") for name, path in sources.items()}
    if importlib.util.find_spec("ray") is None:
        print("Ray is not installed: its overhead is not measured", flush=True)
    else:
        runs |= {"local-few": (few, "local"), "ray": (folder, "ray"), "ray-few": (few, "ray")}
    out = place / "out"
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in runs}
    for number in range(num_rounds):
        for name in rotated(list(runs), number):
            source, engine = runs[name]
            form = "archive" if source.parent == place and source != few else "image-folder"
            options = ("--from", form, "--workers", str(workers), "--engine", engine)
            rounds[name].append(run_once(convert_command(source, out / "shards", *options), source, out))
            took = rounds[name][-1]
            print(f"round {number + 1}/{num_rounds}  {name:<14} {took['wall_s']:7.2f} s, CPU {took['cpu_s']:7.2f} s", flush=True)
    sizes = [path.stat().st_size for path in folder.glob("*/*")]
    return {
        "dataset": {"num_files": len(sizes), "nbytes": sum(sizes)},
        "settings": {"workers": workers, "num_rounds": num_rounds, "check": "header", "encode": "keep"},
        **summarise(rounds),
    }


def make_archives(folder: Path, place: Path) -> dict[str, Path]:
    """The files of the folder as tars, zips and class tars."""
    print("making archives ...", flush=True)
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    (place / "class-tars").mkdir()
    for one in classes:
        with tarfile.open(place / "class-tars" / f"{one.name}.tar", "w") as tar:
            tar.add(one, arcname=".")
    with tarfile.open(place / "nested.tar", "w") as tar:
        tar.add(place / "class-tars", arcname=".")
    for name, mode in (("plain.tar", "w"), ("plain.tar.gz", "w:gz")):
        with tarfile.open(place / name, mode) as tar:  # type: ignore[call-overload]
            tar.add(folder, arcname=".")
    for name, method in (("stored.zip", zipfile.ZIP_STORED), ("deflated.zip", zipfile.ZIP_DEFLATED)):
        with zipfile.ZipFile(place / name, "w", method) as archive:
            for path in sorted(folder.glob("*/*")):
                archive.write(path, path.relative_to(folder))
    names = ("plain.tar", "nested.tar", "class-tars", "stored.zip", "deflated.zip", "plain.tar.gz")
    return {name: place / name for name in names}


def make_few(folder: Path, target: Path) -> Path:
    """A folder of a few of the files, in two classes."""
    for number, path in enumerate(sorted(folder.glob("*/*"))[:_NUM_FEW]):
        to = target / f"class_{number % 2}" / path.name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to)
    return target


def summarise(rounds: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Medians, the rates of archives over the folder's, and Ray's overhead."""
    of = {key: {name: [one[key] for one in some] for name, some in rounds.items()} for key in ("wall_s", "cpu_s")}
    archives = [name for name in rounds if name not in ("folder", "local-few", "ray", "ray-few")]
    result: dict[str, Any] = {
        "contenders": {name: {key: round(statistics.median(of[key][name]), 3) for key in ("wall_s", "cpu_s")} for name in rounds},
        "rates": {
            name: {key: dataclasses.asdict(ratio_of(of[key]["folder"], of[key][name])) for key in ("wall_s", "cpu_s")}
            for name in archives
        },
    }
    if "ray" in rounds:
        walls = of["wall_s"]
        started = [ray - few for ray, few in zip(walls["ray"], walls["ray-few"], strict=True)]
        locally = [local - few for local, few in zip(walls["folder"], walls["local-few"], strict=True)]
        result["ray"] = {
            "overhead": dataclasses.asdict(ratio_of(started, locally)),
            "startup_s": round(statistics.median(walls["ray-few"]), 2),
        }
    return result


def as_lines(result: dict[str, Any]) -> list[str]:
    """The figures in words."""
    lines = []
    for name, rates in result["rates"].items():
        wall, cpu = (
            f"{rates[key]['ratio']:.2f} [{rates[key]['low']:.2f}, {rates[key]['high']:.2f}]" for key in ("wall_s", "cpu_s")
        )
        lines.append(f"{name:<14} {wall} of the folder's rate, by CPU time {cpu}")
    if "ray" in result:
        ratio, startup_s = result["ray"]["overhead"], result["ray"]["startup_s"]
        lines.append(
            f"ray: {ratio['ratio']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}] of the local time; {startup_s} s to start"
        )
    return lines


if __name__ == "__main__":
    main()
