"""Images per second by every loader, and what deferral, caching and containers do to them."""

from __future__ import annotations

from typing import Any

from benchmarks.contenders import CONTENDERS
from benchmarks.shown.cells import interval, line
from benchmarks.shown.machines import cpu, day, maker, on_each_cpu

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


def peers(found: dict[str, Any]) -> str:
    """Every loader over photographs and over 256 px images, on each kind of CPU that has results."""
    columns = {
        f"{title}, {maker(result)}": result
        for name, title in (("images-photos", "photos"), ("images-256", "256 px"))
        for result in on_each_cpu(found, name)
    }
    if not columns:
        return ""
    lines = [line("images/s (datapipe's lead, 95% interval)", list(columns)), "|---|" + "--:|" * len(columns)]
    lines += [
        line(CONTENDERS[row].title, [_cell(result, row) for result in columns.values()])
        for row in _ROWS
        if any(row in result["contenders"] for result in columns.values())
    ]
    noise = ", ".join(f"{title} {interval(result['ratios']['ours / ours-again'])}" for title, result in columns.items())
    return "\n".join(lines) + f"\n\nThe same loader against itself: {noise}. {_conditions(list(columns.values()))}"


def decoded_in_advance(result: dict[str, Any]) -> str:
    """Pixels stored as they are, beside FFCV's."""
    rows = [row for row in _RAW_ROWS if row in result["contenders"]]
    lines = ["| 256 px, decoded in advance | images/s |", "|---|--:|"]
    lines += [f"| {result['contenders'][row]['title']} | {result['contenders'][row]['median']:,.0f} |" for row in rows]
    return "\n".join(lines)


def _cell(result: dict[str, Any], row: str) -> str:
    entry = result["contenders"].get(row)
    if entry is None:
        return "-"
    ratio = None if row.startswith("ours") else result["ratios"].get(f"ours / {row}")
    return f"{entry['median']:,.0f}" + (f" ({interval(ratio)})" if ratio else "")


def _conditions(results: list[dict[str, Any]]) -> str:
    settings, dataset = results[0]["settings"], results[0]["dataset"]
    source = "generated photographs" if dataset["source"] == "generated" else "photographs"
    machines = " and of ".join(dict.fromkeys(f"an {cpu(result)} ({day(result)})" for result in results))
    return (
        f"JPEG to RandomResizedCrop(224), flip, normalise, float32, batches of {settings['batch_size']} "
        f"on {settings['num_threads']} cores of {machines}; {dataset['num_files']:,} {source} "
        f"of {dataset['mean_nbytes'] / 1000:.0f} KB on average; medians of {settings['num_rounds']} alternated rounds."
    )


def dali(result: dict[str, Any]) -> str:
    """Our DALI backend against the faster of two pipelines written for DALI by hand."""
    return (
        '`backend="dali"` on the CPU, shuffling in full, resumable, with its policy for bad samples, over the same photographs: '
        f"{_against_own_dali(result, '')} the speed of a pipeline written for DALI by hand in float32."
    )


def dali_in_uint8(result: dict[str, Any]) -> str:
    """The same in uint8."""
    return f"The same in uint8: {_against_own_dali(result, '-uint8')}."


def _against_own_dali(result: dict[str, Any], suffix: str) -> str:
    ratios = [result["ratios"][f"ours-dali{suffix} / dali-{reader}{suffix}"] for reader in ("file", "webdataset")]
    return interval(min(ratios, key=lambda ratio: float(ratio["ratio"])))


def taken_over(result: dict[str, Any]) -> str:
    """A DataLoader over an ImageFolder, taken over."""
    rates = {name: f"{entry['median']:,.0f}" for name, entry in result["contenders"].items()}
    return (
        f"`from_torch(DataLoader(ImageFolder(...)))` with the ImageNet recipe: {rates['from-torch']} images/s, where our loader "
        f"over the folder reaches {rates['ours-folder']} and torch's own {rates['torch']} in the same run. With a function of "
        f"one's own in the chain {rates['from-torch-own-chain']} against {rates['torch-own-chain']}."
    )


def own_datasets(result: dict[str, Any]) -> str:
    """Datasets of one's own: passes of torch's loader against those of the same one taken over."""
    lengths = result["settings"]["lengths"]
    columns = [f"{_length(one)}: {what}" for one in lengths for what in ("CPU", "clock")]
    lines = [line("a Dataset of one's own", columns), "|---|" + "--:|" * len(columns)]
    for kind in result["kinds"].values():
        of_kind = [kind["lengths"][one["name"]] for one in lengths]
        lines.append(line(kind["title"], [f"{one[measure]['ratio']:.2f}" for one in of_kind for measure in ("cpu", "wall")]))
    days = " to ".join(sorted({day({"environment": kind}) for kind in result["kinds"].values()}))
    told = (
        f"Times as fast as torch's own loader over the same Dataset ({cpu(result)}, {days}): by the CPU time of all "
        "processes from the beginning of a pass to its end, and by the clock, after the first passes. Two workers, batches of "
        "32, passes of both loaders in turn. The stream is torch's own loader in both, so its row shows the noise."
    )
    return "\n".join([*lines, "", told])


def _length(one: dict[str, Any]) -> str:
    return f"{one['num_samples']:,} samples a pass" + (", workers persist" if one["persists"] else "")


def containers(result: dict[str, Any]) -> str:
    """Each container against tar."""
    shares = ", ".join(
        f"{title} {interval(result['ratios'][f'{name} / tar'])}"
        for name, title in (("hdf5", "HDF5"), ("tfrecord", "TFRecord"), ("parquet", "Parquet"), ("folder", "the folder"))
    )
    noise = interval(result["ratios"]["tar-again / tar"])
    return f"The same photographs from other containers, against tar: {shares}; tar against itself {noise}."


def in_place(result: dict[str, Any]) -> str:
    """Shards of other loaders, against tar and against their own loaders."""
    ratios = result["ratios"]
    forms = [(form, title) for form, title, _ in _FORMS if f"{form} / tar" in ratios]
    of_tar = ", ".join(f"{title} {interval(ratios[f'{form} / tar'])}" for form, title in forms)
    own = ", ".join(
        f"{title} {interval(ratios[f'{form} / {name}'])}" for form, title, name in _FORMS if f"{form} / {name}" in ratios
    )
    beside = f" Against their own loaders in the same run, which decode with Pillow in worker processes: {own}." if own else ""
    return f"The same photographs in shards of other loaders, read in place, against tar: {of_tar}.{beside}"


_FORMS = (
    ("mds", "MosaicML's", "mosaicml"), ("litdata", "LitData's", "lightning"), ("beton", "FFCV's", "ffcv"),
    ("lance", "Lance's", "pylance"),
)  # fmt: skip


def scaled(result: dict[str, Any]) -> str:
    """Decoding at a scale against decoding in full."""
    lines = [
        '`decode="scaled"` against `"exact"`, photographs to 224 pixels, in one thread:',
        "",
        "| | exact, ms | scaled, ms | gain | pixels differ, of 255: mean, at most |",
        "|---|--:|--:|--:|--:|",
    ]
    for title, case in result["cases"].items():
        differ = f"{case['mean_difference']:.2f}, {case['largest_difference']}"
        lines.append(f"| {title} | {case['exact_ms']:.1f} | {case['scaled_ms']:.1f} | {interval(case['ratio'])} | {differ} |")
    return "\n".join(lines)


def buckets(result: dict[str, Any]) -> str:
    """Buckets of shapes: planning, padding, and batches against a bucket sampler by hand."""
    planning, ratio = result["planning"], interval(result["ratio"])
    padded = ", ".join(f"{100 * share:.2f}% at {int(size):,}" for size, share in planning["padded"].items())
    dropped = ", ".join(f"{100 * share:.2f}%" for share in planning["dropped"].values())
    num, rate = result["settings"]["num_planned"], result["rates"]["datapipe"]
    return (
        f"Buckets of shapes: the plan of {num:,} images is made in {planning['planned_s']:.2f} s once their sizes are known, and "
        f"opened in {1000 * planning['opened_s']:.1f} ms. An epoch is padded by so much, by the samples of a step over all "
        f"ranks: {padded}; with `drop_last` it lacks {dropped}. Batches of {rate:,.0f} images a second, {ratio} of a bucket "
        "sampler by hand with Pillow in as many worker processes as there are threads here."
    )


def cache(result: dict[str, Any]) -> str:
    """Epochs with decoded images kept, against none."""

    def gains(recipe: str) -> str:
        variants = [result["variants"][f"{recipe}, {place}"] for place in ("ram", "disk")]
        ram, disk = (interval(variant["later_to_none"]) for variant in variants)
        return f"{ram} in memory and {disk} on disk"

    again = interval(result["variants"]["whole, none-again"]["later_to_none"])
    return (
        f"Decoded images kept by `cache=`, epochs from the second on against the same loader without: {gains('whole')} of whole "
        f"photographs, {gains('resized')} of photographs resized to 256 px; without against itself {again}."
    )


def recording(result: dict[str, Any]) -> str:
    """What deferral costs before any image is made."""
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


def lock(result: dict[str, Any]) -> str:
    """How long Python's lock is held by an image and by a clip."""
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
