"""Write the figures of benchmarks/README.md and of pages in docs/, and draw the picture of README.md.

All of them come from the committed results, never from a hand.

python -m benchmarks.table            # between the markers in each, and docs/images/images-per-second-*.svg
python -m benchmarks.table --check    # exit 1 if one of them differs
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import bars, cpu_kinds, versions
from benchmarks.contenders import CONTENDERS, OWN_DATASETS
from benchmarks.diagnostics import table as diagnostics
from benchmarks.environment import ROOT
from benchmarks.gpu import table as gpu
from benchmarks.harness import RESULTS
from benchmarks.marked import replace_marked
from benchmarks.rate_picture import pictures
from datapipe.kinds.tables.kind import WINDOW_NBYTES

_ROWS = (
    "ours",
    "ours-folder",
    "ours-uint8",
    "ffcv",
    "dali-file",
    "dali-webdataset",
    "spdl",
    "torch",
    "webdataset",
    "limit-stages",
)
_RAW_ROWS = ("ours", "ours-uint8", "ours-raw", "ours-raw-uint8", "ffcv-raw")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a document or a picture differs")
    arguments = parser.parse_args()
    for path, updated in documents(read_results(arguments.results)).items():
        if arguments.check and (not path.exists() or path.read_text() != updated):
            raise SystemExit(f"{path}: its figures are not those of {arguments.results}; run python -m benchmarks.table")
        if not arguments.check:
            path.write_text(updated)
            print(f"wrote {path}")


def documents(found: dict[str, Any]) -> dict[Path, str]:
    """Return what each file should hold: documents with their tables between the markers, and pictures."""
    marked = {path: replace_marked(path.read_text(), "table", table, where=str(path)) for path, table in tables(found).items()}
    stability = ROOT / "docs" / "stability.md"
    marked[stability] = replace_marked(marked[stability], "cpu-kinds", cpu_kinds.as_markdown(found), where=str(stability))
    readme = ROOT / "README.md"
    told = readme.read_text()
    for name, sentence in (
        ("tables", _tables_in_short),
        ("remote", _stores_in_short),
        ("gpu-sweep", functools.partial(gpu.in_short, found)),
    ):
        told = replace_marked(told, name, _sentence(found, name, sentence), where=str(readme))
    return marked | {readme: told} | pictures(found)


def tables(found: dict[str, Any]) -> dict[Path, str]:
    """What stands between the markers of each file."""
    return {
        ROOT / "docs" / "benchmarks.md": as_markdown(found),
        ROOT / "benchmarks" / "README.md": bars.as_markdown(found),
        ROOT / "docs" / "diagnose.md": diagnostics.as_markdown(found),
        ROOT / "docs" / "stability.md": versions.as_markdown(found),
    }


def read_results(results: Path) -> dict[str, Any]:
    """name -> result of all that are there. Raises SystemExit where there are none."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))}
    if not found:
        raise SystemExit(f"{results}: holds no results; run make bench")
    return found


def as_markdown(found: dict[str, Any]) -> str:
    """The tables and sentences of docs/benchmarks.md, of those results that are there."""
    parts = [
        _peers(found),
        _raw(found),
        _sentence(found, "images-dali", lambda result: _dali_sentence(result, found.get("images-dali-uint8"))),
        _sentence(found, "images-from-torch", _taken_over_sentence),
        _sentence(found, "images-any-dataset", _own_datasets),
        _sentence(found, "containers", _containers_sentence),
        _sentence(found, "cache", _cache_sentence),
        _sentence(found, "recording", _recording_sentence),
        _sentence(found, "convert", _convert_sentence),
        _sentence(found, "convert-sources", _sources_sentence),
        _sentence(found, "open-large", _open_sentence),
        _sentence(found, "gil", _gil_sentence),
        _sentence(found, "tables", _rows_of_tables),
        _sentence(found, "large-table", _large_table_sentence),
        _sentence(found, "tokens", _tokens),
        _sentence(found, "video", _clips),
        _sentence(found, "video-episodes", _episodes),
        _sentence(found, "audio", _sounds),
        _sentence(found, "remote", _stores),
        gpu.as_markdown(found),
    ]
    return "\n\n".join(part for part in parts if part)


def _peers(found: dict[str, Any]) -> str:
    sets = [name for name in ("images-photos", "images-256") if name in found]
    if not sets:
        return ""
    titles = {"images-photos": "photos", "images-256": "256 px"}
    lines = [_row("images/s (datapipe's lead, 95% interval)", [titles[name] for name in sets]), "|---|" + "--:|" * len(sets)]
    for row in _ROWS:
        present = [found[name]["contenders"].get(row) for name in sets]
        if any(present):
            lines.append(_row(CONTENDERS[row].title, [_cell(found[name], row) for name in sets]))
    noise = ", ".join(f"{titles[name]} {_interval(found[name]['ratios']['ours / ours-again'])}" for name in sets)
    return "\n".join(lines) + f"\n\nThe same loader against itself: {noise}. {_conditions(found[sets[0]])}"


def _raw(found: dict[str, Any]) -> str:
    if "images-raw" not in found:
        return ""
    result = found["images-raw"]
    rows = [row for row in _RAW_ROWS if row in result["contenders"]]
    lines = ["| 256 px, decoded in advance | images/s |", "|---|--:|"]
    lines += [f"| {result['contenders'][row]['title']} | {result['contenders'][row]['median']:,.0f} |" for row in rows]
    return "\n".join(lines)


def _cell(result: dict[str, Any], row: str) -> str:
    entry = result["contenders"].get(row)
    if entry is None:
        return "-"
    ratio = None if row.startswith("ours") else result["ratios"].get(f"ours / {row}")
    return f"{entry['median']:,.0f}" + (f" ({_interval(ratio)})" if ratio else "")


def _interval(ratio: dict[str, float]) -> str:
    return f"{ratio['ratio']:.2f}x [{ratio['low']:.2f}, {ratio['high']:.2f}]"


def _row(title: str, cells: list[str]) -> str:
    return "| " + " | ".join([title, *cells]) + " |"


def _conditions(result: dict[str, Any]) -> str:
    environment, settings, dataset = result["environment"], result["settings"], result["dataset"]
    source = "generated photographs" if dataset["source"] == "generated" else "photographs"
    return (
        f"JPEG to RandomResizedCrop(224), flip, normalise, float32, batches of {settings['batch_size']} "
        f"on {settings['num_threads']} cores of an {environment['cpu']}; {dataset['num_files']:,} {source} "
        f"of {dataset['mean_nbytes'] / 1000:.0f} KB on average; medians of {settings['num_rounds']} alternated rounds, "
        f"{environment['date'][:10]}."
    )


def _sentence(found: dict[str, Any], name: str, sentence: Any) -> str:
    return str(sentence(found[name])) if name in found else ""


def _cache_sentence(result: dict[str, Any]) -> str:
    def gains(recipe: str) -> str:
        variants = [result["variants"][f"{recipe}, {place}"] for place in ("ram", "disk")]
        ram, disk = (_interval(variant["later_to_none"]) for variant in variants)
        return f"{ram} in memory and {disk} on disk"

    again = _interval(result["variants"]["whole, none-again"]["later_to_none"])
    return (
        f"Decoded images kept by `cache=`, epochs from the second on against the same loader without: {gains('whole')} of whole "
        f"photographs, {gains('resized')} of photographs resized to 256 px; without against itself {again}."
    )


def _dali_sentence(result: dict[str, Any], in_uint8: dict[str, Any] | None) -> str:
    def slower(of: dict[str, Any], suffix: str) -> str:
        ratios = [of["ratios"][f"ours-dali{suffix} / dali-{reader}{suffix}"] for reader in ("file", "webdataset")]
        return _interval(min(ratios, key=lambda ratio: float(ratio["ratio"])))

    uint8 = "" if in_uint8 is None else f", {slower(in_uint8, '-uint8')} in uint8"
    return (
        f'`backend="dali"` on the CPU, shuffling in full, resumable, with its policy for bad samples: {slower(result, "")} the '
        f"speed of a pipeline written for DALI by hand in float32{uint8}, over the same photographs."
    )


def _taken_over_sentence(result: dict[str, Any]) -> str:
    rates = {name: f"{entry['median']:,.0f}" for name, entry in result["contenders"].items()}
    return (
        f"`from_torch(DataLoader(ImageFolder(...)))` with the ImageNet recipe: {rates['from-torch']} images/s, where our loader "
        f"over the folder reaches {rates['ours-folder']} and torch's own {rates['torch']} in the same run. With a function of "
        f"one's own in the chain {rates['from-torch-own-chain']} against {rates['torch-own-chain']}."
    )


def _own_datasets(result: dict[str, Any]) -> str:
    """A table of Datasets of one's own, each taken over against the same one in torch's loader."""
    lines = ["| a Dataset of one's own, images/s | torch | `from_torch` | gain | by CPU time |", "|---|--:|--:|--:|--:|"]
    for kind, title in OWN_DATASETS.items():
        names = [f"{whose}-any-{kind}" for whose in ("torch", "from-torch")]
        if names[0] not in result["contenders"]:
            continue
        theirs, ours = (result["contenders"][name] for name in names)
        pair = result["pairs"][f"{names[1]} / {names[0]}"]
        gains = [_interval(pair[way]) for way in ("wall", "cpu")]
        lines.append(_row(title, [f"{theirs['median']:,.0f}", f"{ours['median']:,.0f}", *gains]))
    told = "The Datasets are unchanged, and both loaders have the same workers; an image with two crops counts once."
    return "\n".join([*lines, "", told])


def _containers_sentence(result: dict[str, Any]) -> str:
    shares = ", ".join(
        f"{title} {_interval(result['ratios'][f'{name} / tar'])}"
        for name, title in (("hdf5", "HDF5"), ("tfrecord", "TFRecord"), ("parquet", "Parquet"), ("folder", "the folder"))
    )
    noise = _interval(result["ratios"]["tar-again / tar"])
    return f"The same photographs from other containers, against tar: {shares}; tar against itself {noise}."


def _recording_sentence(result: dict[str, Any]) -> str:
    words = {"path": "a Compose", "functional": "functions and Python's random", "two-crops": "two crops, SimCLR's recipe"}
    each = [
        f"{one['recording_us']:.0f} us with {words[kind]} ({one['opening_us']:.0f} to open and read the file; without deferral "
        f"{one['eager_us']:,.0f} us)"
        for kind, one in result["kinds"].items()
    ]
    return (
        "Before any image is made, a sample of a Dataset of one's own, whose code runs while its images only record, takes this "
        f"CPU time: {', '.join(each)}."
    )


def _convert_sentence(result: dict[str, Any]) -> str:
    ours, (few, many) = result["contenders"]["ours"], result["memory"]
    return (
        f"Converting {result['dataset']['nbytes'] / 1e9:.1f} GB of loose files took {_interval(result['ratios']['ours / tar'])} "
        f"the time of `tar cf` and `sha256sum` ({ours['median_s']:.1f} s), with {few['peak_anonymous_mb']:.0f} MB of memory "
        f"for {few['num_files']:,} files and {many['peak_anonymous_mb']:.0f} MB for {many['num_files']:,}."
    )


def _sources_sentence(result: dict[str, Any]) -> str:
    of_folder = {name: _interval(rates["wall_s"]) for name, rates in result["rates"].items()}
    ray = result["ray"]
    return (
        f"Converting {result['dataset']['nbytes'] / 1e9:.1f} GB of photographs from an archive, read in place, against the "
        f"folder (which a second time had {of_folder['folder-again']} of its own rate): a tar {of_folder['plain.tar']}, a tar of "
        f"the classes' tars {of_folder['nested.tar']}, a folder of those {of_folder['class-tars']}, a zip "
        f"{of_folder['stored.zip']}, deflated {of_folder['deflated.zip']}; a .tar.gz, which is unpacked first, "
        f"{of_folder['plain.tar.gz']}. On a Ray cluster of the same machine the folder took {_interval(ray['overhead'])} of the "
        f"local time, after {ray['startup_s']:.1f} s to start."
    )


def _open_sentence(result: dict[str, Any]) -> str:
    dataset, median = result["dataset"], result["median"]
    return (
        f"A dataset of {dataset['num_samples'] / 1e6:.0f} million samples in {dataset['num_shards']:,} shards opened and planned "
        f"its first shuffled batch in {median['total_s']:.2f} s with {median['anonymous_mb']:.0f} MB of memory."
    )


def _gil_sentence(result: dict[str, Any]) -> str:
    cpu, dali = (result[name]["at_most_us_per_image"] for name in ("median", "median_dali"))
    held = result["held_us_per_image"]
    return (
        f"Python's global lock is held for at most {cpu:.0f} us per image on the CPU path and {dali:.0f} us before DALI, on tiny "
        f"images. It was found held for {held['tiny, images_cpu']:.0f} and {held['tiny, dali']:.0f} us of these, and on images "
        f"of 500 x 375 pixels, which push Python's memory out of the caches, for {held['photo-sized, images_cpu']:.0f} and "
        f"{held['photo-sized, dali']:.0f} us." + _clips_held(result)
    )


def _clips_held(result: dict[str, Any]) -> str:
    if "held_us_per_clip" not in result:
        return ""
    held_ms = {how: value / 1e3 for how, value in result["held_us_per_clip"].items()}
    return (
        f" A clip of 8 frames (640 x 480, cut at random to 224) holds it for {held_ms['threads']:.2f} ms where a thread decodes, "
        f"and for {held_ms['processes']:.2f} ms where the thread has a process."
    )


_ROWS_OF_TABLES = {
    "bare": "pyarrow reads the file to columns, nothing more, two threads",
    "bare, one thread": "the same, one thread",
    "datapipe, 65,536, first epoch": "datapipe, shuffled matrices of 65,536 rows, first epoch",
    "datapipe, 65,536": "later epochs",
    "datapipe, 4,096": "datapipe, of 4,096 rows",
    "row-major, 65,536": "datapipe, row-major HDF5, of 65,536 rows",
    "DuckDB by hand, first pass": "DuckDB, a loop by hand, of 65,536 rows, first pass",
    "DuckDB by hand": "later passes",
    "Arrow take by hand": "Arrow's `take`, a loop by hand, of 65,536 rows",
    "TensorDataset, torch": "torch's DataLoader over a TensorDataset in memory, of 4,096 rows",
    "TensorDataset, from_torch": "the same by `from_torch`",
    "Hugging Face, shuffled": 'Hugging Face datasets, `with_format("torch")`, of 4,096 rows',
    "noise: bare": "values that hardly compress: pyarrow reads the file, two threads",
    "noise: datapipe, 65,536": "values that hardly compress: datapipe, of 65,536 rows, later epochs",
}


def _rows_of_tables(result: dict[str, Any]) -> str:
    """A table of everything that makes batches of a table's rows."""
    lines = ["| 13 float32, 26 int64 columns, a label; snappy | rows/s | CPU, ns a row |", "|---|--:|--:|"]
    for name, title in _ROWS_OF_TABLES.items():
        if name in result["ns_per_row"]:
            lines.append(_row(title, [f"{1e9 / result['ns_per_row'][name]:,.0f}", f"{result['cpu_ns_per_row'][name]:,.0f}"]))
    against = ", ".join(
        f"{_interval(result['speed'][f'datapipe, 65,536 / {other}'])} the speed of {title}"
        for other, title in (("bare", "the bare read"), ("DuckDB by hand", "DuckDB"), ("Arrow take by hand", "Arrow's `take`"))
        if f"datapipe, 65,536 / {other}" in result["speed"]
    )
    if first := result["speed"].get(_FIRST_PASSES):
        against += f"; the first epoch at {_interval(first)} that of DuckDB's first pass"
    noise = result["speed"][_OF_NOISE]
    against += (
        f"; of values that hardly compress at {_interval(noise)} that of the bare read, which by CPU time is "
        f"{noise['cpu']['ratio']:.2f}x: packing columns into rows and gathering the shuffled ones move each byte twice more"
    )
    settings, memory = result["settings"], result["memory_mb"]
    told = (
        f"{settings['num_rows']:,} rows, {settings['num_rounds']} alternated rounds on {settings['num_threads']} cores. Shuffled "
        f"batches from Parquet come at {against}. Python's global lock was found held for {result['lock_held_ms_per_batch']:.1f} "
        f"ms per batch of 65,536 rows. Memory grew by {memory['rows']:,} MB, and by {memory['twice the rows']:,} MB with "
        f"twice the rows; {WINDOW_NBYTES / 1e6:,.0f} MB are those of the windows."
    )
    return "\n".join([*lines, "", told])


_TOKENS = {
    "datapipe": "datapipe, in the caller's thread",
    "datapipe, 2 threads": "datapipe, 2 threads",
    "torch, no workers": "torch's DataLoader over the same rows, no workers",
    "torch, 2 workers": "the same, 2 workers",
    "grain, packing": "Grain, packing as it goes",
}


def _tokens(result: dict[str, Any]) -> str:
    """Batches of packed rows by everything that makes them, and what goes before."""
    rates, large = result["per_second"], result["large"]
    lines = ["| packed rows of 4,096 tokens | M tokens/s |", "|---|--:|"]
    lines += [
        _row(title, [f"{rates['batches'][name] / 1e6:,.1f}"]) for name, title in _TOKENS.items() if name in rates["batches"]
    ]
    speed = {name: _interval(one) for name, one in result["speed"].items()}
    packed = ", ".join(f"{name} {rate:,.0f}" for name, rate in rates["pack"].items())
    encoded = f"{rates['convert']['datapipe'] / 1e6:.1f} MB/s, {speed['convert: datapipe / tokenizers']} the speed"
    opened = f"takes {large['plan_s']:.1f} s and {large['plan_nbytes_per_document']:.1f} bytes a document"
    fills = f"Rows of 4,096 are {result['fill']['4096']:.2%} full, those of 32,768 {result['fill']['32768']:.2%}."
    told = (
        f"{result['settings']['texts_nbytes'] / 1e6:,.0f} MB of Python's source code become token ids at {encoded} of "
        "`tokenizers` in as many processes, start included, with the same ids, by a tokenizer with the words of Qwen 2. That is "
        "less than the encoder alone would reach: documents are listed, read and written one by one, each with its checksum and "
        f"its place. {fills} Documents planned per second: {packed}. A plan for {large['documents']:,} documents "
        f"{opened}, and opens in {large['open_ms']:.0f} ms; a state takes {large['state_nbytes']} bytes."
    )
    balanced = "; ".join(
        f"rows of {one['length']:,}: {one['plain']:.3f}, dealt evenly {one['balanced']:.3f}" for one in result["efficiency"]
    )
    costs = f"Mean cost by that of the slowest of 64 ranks, over 4 micro-batches of a 7B model, by arithmetic: {balanced}."
    return "\n".join([*lines, "", told, "", costs])


def _clips(result: dict[str, Any]) -> str:
    """CPU time of clips by everything that makes them, and the index."""
    titles = {"resize": "resized to 224", "crop": "a crop of each to 224"}
    cuts = [cut for cut in titles if cut in result["cpu_ms"]]
    lines = [
        _row("CPU-ms a clip of 8 frames, every fourth of 640 x 480", [titles[cut] for cut in cuts]),
        "|---|" + "--:|" * len(cuts),
    ]
    lines += _costs(result, cuts)
    index = result["index"]
    told = (
        "In parentheses: times as fast as torchcodec. H.264 with a key frame every 60; shuffled batches of 32, two threads or "
        f"workers. {index['files']:,} videos are looked at once, {index['files_per_s']:,} a second, and then "
        f"compared with their files, {index['reopened_per_s']:,} a second."
    )
    return "\n".join([*lines, "", told])


def _costs(result: dict[str, Any], tasks: Sequence[str], **titles: str) -> Iterator[str]:
    """A row for each contender: CPU-ms of each task, and how many times as fast as the peer. `titles`: of contenders by name."""
    for name in result["cpu_ms"][tasks[0]]:
        cells = []
        for task in tasks:
            ratio = result["speed"].get(f"{task}: {name}")
            cells.append(f"{result['cpu_ms'][task][name]:.1f}" + (f" ({_interval(ratio)})" if ratio else ""))
        yield _row(titles.get(name, name), cells)


def _episodes(result: dict[str, Any]) -> str:
    """CPU time of samples of robots' episodes by everything that makes them."""
    nums = list(result["cpu_ms"])
    lines = [
        _row("CPU-ms a sample of two cameras, AV1 of 640 x 480", [f"{num} frame{'s' * (num != '1')} of each" for num in nums])
    ]
    lines.append("|---|" + "--:|" * len(nums))
    lines += _costs(result, nums, lerobot="DataLoader + LeRobotDataset")
    told = (
        "In parentheses: times as fast as LeRobot. Frames are uint8; `floats` are float32, as `from_torch` hands them out. "
        "A key frame every 2; shuffled batches of 32, two threads or workers."
    )
    return "\n".join([*lines, "", told])


def _sounds(result: dict[str, Any]) -> str:
    """CPU time of crops of sound by everything that makes them, resuming, and the index."""
    titles = {"torchcodec": "DataLoader + torchcodec", "soundfile": "DataLoader + soundfile", "datapipe": "datapipe"}
    lines = [_row("crops of 5 s from FLAC of 16 kHz", ["CPU-ms"]), "|---|--:|"]
    for name, cpu_ms in result["cpu_ms"].items():
        ratio = result["speed"].get(name)
        lines.append(_row(titles[name], [f"{cpu_ms:.2f}" + (f" ({_interval(ratio)})" if ratio else "")]))
    resume, index = result["resume"], result["index"]
    seconds = "; ".join(f"{name}: {one['resume_s']:.2f} s" for name, one in resume.items() if isinstance(one, dict))
    told = (
        "In parentheses: times the CPU time of datapipe's. Shuffled batches of 64, two threads or workers. From a state in "
        f"mid-epoch to the next batch, among {resume['utterances']:,} utterances: {seconds}. An index of files is made at "
        f"{index['files_per_s']:,} a second."
    )
    return "\n".join([*lines, "", told])


def _tables_in_short(result: dict[str, Any]) -> str:
    speed = result["speed"]
    return (
        f"Shuffled batches of 65,536 rows come {speed['datapipe, 65,536 / DuckDB by hand']['ratio']:.1f} times as fast as from a "
        f"loop with DuckDB ({speed[_FIRST_PASSES]['ratio']:.1f} times in the first epoch), and `from_torch` makes a "
        f"`TensorDataset` {speed[_TAKEN_OVER]['ratio']:.0f} times as fast."
    )


_FIRST_PASSES = "datapipe, 65,536, first epoch / DuckDB by hand, first pass"
_OF_NOISE = "noise: datapipe, 65,536 / noise: bare"
_TAKEN_OVER = "TensorDataset, from_torch / TensorDataset, torch"


def _large_table_sentence(result: dict[str, Any]) -> str:
    memory = result["memory_mb"]
    return (
        f"A table of {result['settings']['num_rows'] / 1e6:.0f} million rows (six columns) trained an embedding model at "
        f"{result['rows_per_s'] / 1e6:.1f} million rows/s; memory at the tenths of the epoch lay between {min(memory)} and "
        f"{max(memory)} MB above that before it."
    )


_PEERS = {"litdata, cold": "LitData", "mds, cold": "MosaicML Streaming"}
_STORE_ROWS = {
    "local": "datapipe, shards on the disk",
    "warm cache": "datapipe, `s3://`, all shards in the shard cache",
    "windows, cold": 'datapipe, `s3://`, `shuffle="windows"`, nothing cached',
    "ranges": "datapipe, `s3://`, full shuffle by ranges, nothing cached",
    **{name: f"{title}, nothing cached" for name, title in _PEERS.items()},
}


def _stores(result: dict[str, Any]) -> str:
    """A table of the ways to read photographs from a store."""
    settings, server, first = result["settings"], result["server"], result["first_batch_of_many_shards_s"]
    lines = ["| photographs from a store | images/s | to the disk | apart from the server | lock held, us an image |"]
    lines.append("|---|--:|--:|--:|--:|")
    for name, title in _STORE_ROWS.items():
        if name in result["variants"]:
            found, held = result["variants"][name], result["held_us_per_image"].get(name)
            ratios = ["", ""] if name == "local" else [_interval(found[key]) for key in ("to_local", "to_local_apart")]
            lines.append(_row(title, [f"{found['images_per_s']:,.0f}", *ratios, "" if held is None else f"{held:.0f}"]))
    told = (
        f"The store is a server of ours on the loopback interface that answers after {settings['latency_ms']} ms. It takes "
        f"{server['cpu_us_per_answer']} us of CPU per answer, on the same {settings['num_threads']} cores; apart from the "
        f"server means with that time, spread over the cores, taken off the clock. The disk against itself: "
        f"{_interval(result['variants']['local-again']['to_local'])}. A set of {settings['many_shards']:,} shards of which "
        f"nothing is cached gives its first shuffled batch after {first['median']:.1f} s ({first['highest']:.1f} at most)."
    )
    for name, title in _PEERS.items():
        if failed := result["variants"].get(name, {}).get("num_failed"):
            told += f" {title} failed in {failed} of {settings['num_rounds']} rounds, which are left out."
    return "\n".join([*lines, "", told])


def _stores_in_short(result: dict[str, Any]) -> str:
    ratios = {name: found["to_local_apart"]["ratio"] for name, found in result["variants"].items()}
    peers = [f"{title} {ratios[name]:.0%}" for name, title in _PEERS.items() if name in ratios]
    told = (
        f"From a store that takes {result['settings']['latency_ms']} ms to answer, fully shuffled photographs load at "
        f"{ratios['ranges']:.0%} of the speed of a local disk with nothing cached, and at {ratios['warm cache']:.0%} with "
        "the shard cache."
    )
    return f"{told} {', '.join(peers).replace(' ', ' reaches ', 1)}." if peers else told


if __name__ == "__main__":
    main()
