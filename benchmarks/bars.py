"""What datapipe set out to reach, and what it reached: a table made from the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks import passes
from benchmarks.audio import BARS as AUDIO_BARS
from benchmarks.audio import KINDS as AUDIO_KINDS
from benchmarks.audio import MAX_RESUME_S
from benchmarks.buckets import OPENED_S, PADDED, PLANNED_S
from benchmarks.conversations import BARS as CONVERSATION_BARS
from benchmarks.conversations import figures as conversation_figures
from benchmarks.shown.cells import line
from benchmarks.shown.machines import on_second_cpu
from benchmarks.tables import BARS as TABLE_BARS
from benchmarks.tables import MAX_HELD_MS, MAX_ORDER_NS
from benchmarks.tokens import BARS as TOKEN_BARS
from benchmarks.tokens import MAX_OPEN_MS, MAX_PLAN_S, MAX_STATE_NBYTES, MIN_EFFICIENCY, MIN_FILL
from benchmarks.video import BARS as CLIP_BARS
from benchmarks.video import CONVERTED_BARS, EPISODE_BARS, MIN_FILES_PER_S, OF_SOURCE

Found = dict[str, Any]  # result by name


@dataclass(frozen=True, slots=True)
class Bar:
    """One aim: `measure` takes its figure out of the results."""

    work: str
    aim: float
    unit: str
    is_lower_better: bool
    measure: Callable[[Found], float]

    def row(self, found: Found, second: Found) -> str:
        """A line of the table: the aim, the figure, whether it is met; the same for results on a `second` kind of CPU, if any."""
        sign = "at most" if self.is_lower_better else "at least"
        try:
            on_second = self._cells(second)
        except KeyError:  # not measured there
            on_second = ["", ""]
        return line(self.work, [f"{sign} {self.aim:g}{self.unit}", *self._cells(found), *on_second])

    def _cells(self, found: Found) -> list[str]:
        value = self.measure(found)
        is_met = value <= self.aim if self.is_lower_better else value >= self.aim
        return [f"{value:.2f}{self.unit}", "yes" if is_met else "**no**"]


def _times(work: str, aim: float, measure: Callable[[Found], float]) -> Bar:
    """Return the aim to be at least so many times as fast as something else."""
    return Bar(work, aim, "x", False, measure)


def _lead(result: str, rival: str) -> Callable[[Found], float]:
    return lambda found: float(found[result]["ratios"][f"ours / {rival}"]["ratio"])


def _raw_gain(rival: str) -> Callable[[Found], float]:
    return lambda found: 1 / float(found["images-raw"]["ratios"][f"ours / {rival}"]["ratio"])


def _against_own_dali(result: str, suffix: str = "") -> Callable[[Found], float]:
    """Against the faster of DALI's own two readers."""
    names = [f"ours-dali{suffix} / dali-{reader}{suffix}" for reader in ("file", "webdataset")]
    return lambda found: min(float(found[result]["ratios"][name]["ratio"]) for name in names)


def _of_tar(container: str) -> Callable[[Found], float]:
    return lambda found: float(found["containers"]["ratios"][f"{container} / tar"]["ratio"])


def _in_place(form: str) -> Callable[[Found], float]:
    return lambda found: float(found["foreign"]["ratios"][f"{form} / tar"]["ratio"])


def _taken_over(ours: str, rival: str) -> Callable[[Found], float]:
    """One contender of `from-torch` against another; the result holds both against the first."""

    def lead(found: Found) -> float:
        ratios = found["images-from-torch"]["ratios"]
        own = 1.0 if ours == "from-torch" else float(ratios[f"from-torch / {ours}"]["ratio"])
        return float(ratios[f"from-torch / {rival}"]["ratio"]) / own

    return lead


_ARRAYS = ("array", "array-resized", "exif", "albumentations", "opencv")
_OWN_DATASETS = dict.fromkeys(passes.TITLES, 0.97) | dict.fromkeys(_ARRAYS, 1.15) | {
    "path": 1.6, "functional": 1.6, "bytes": 1.6, "two-crops": 2.0, "timm": 1.3, "ten-crops": 1.5,
}  # fmt: skip


def _own_dataset(kind: str) -> Callable[[Found], float]:
    return lambda found: float(found["images-any-dataset"]["kinds"][kind]["lengths"]["1600"]["cpu"]["ratio"])


def _least_of_own_datasets(measure: str) -> Callable[[Found], float]:
    def least(found: Found) -> float:
        kinds = found["images-any-dataset"]["kinds"].values()
        return min(float(length[measure]["ratio"]) for kind in kinds for length in kind["lengths"].values())

    return least


def _monitored(steps: str, figure: str) -> Callable[[Found], float]:
    return lambda found: float(found["monitor-cost"][steps][figure])


def _attached(loop: str) -> Callable[[Found], float]:
    return lambda found: float(found["attach-cost"]["loops"][loop]["wall_us"]["cost"])


def _of_tables(ours: str, other: str) -> Callable[[Found], float]:
    return lambda found: float(found["tables"]["speed"][f"{ours} / {other}"]["ratio"])


_TOKENS = {
    ("convert", "tokenizers"): "texts to token ids, against `tokenizers` in as many processes",
    ("pack", "axolotl"): "planning rows of 4,096, against axolotl",
    ("pack", "olmo-core"): "planning rows of 4,096, against OLMo-core",
    ("batches", "torch, 2 workers"): "packed batches, against torch's loader with 2 workers",
    ("batches", "grain, packing"): "packed batches, against Grain's packing",
}


_CLIPS = {"resize": "resized to 224", "crop": "a crop of each to 224"}


def _of_clips(what: str, ours: str, *, result: str = "video", part: str = "speed") -> Callable[[Found], float]:
    return lambda found: float(found[result][part][f"{what}: {ours}"]["ratio"])


def _of_audio(peer: str) -> Callable[[Found], float]:
    return lambda found: float(found["audio"]["speed"][peer]["ratio"])


def _of_resume(kind: str) -> Callable[[Found], float]:
    return lambda found: float(found["audio"]["resume"][kind]["resume_s"])


def _of_conversations(name: str) -> Callable[[Found], float]:
    return lambda found: conversation_figures(found["conversations"])[name]


def _of_tokens(part: str, ours: str, other: str) -> Callable[[Found], float]:
    return lambda found: float(found["tokens"]["speed"][f"{part}: {ours} / {other}"]["ratio"])


def _large(part: str) -> Callable[[Found], float]:
    return lambda found: float(found["tokens"]["large"][part])


def _of_store(variant: str) -> Callable[[Found], float]:
    return lambda found: float(found["remote"]["variants"][variant]["to_local_apart"]["ratio"])


def _held_by_store(found: Found) -> float:
    """By the way that holds it longest, beyond the local shards."""
    held = dict(found["remote"]["held_us_per_image"])
    local = float(held.pop("local"))
    return max(map(float, held.values())) - local


def _of_scripts(part: str, whole: str) -> Callable[[Found], float]:
    return lambda found: float(found["diagnostics-scripts"][part] / found["diagnostics-scripts"][whole])


def _recording(found: Found) -> float:
    """Of the Dataset with a Compose, in us of CPU time per sample."""
    kind = found["recording"]["kinds"]["path"]
    return float(kind["recording_us"] - kind["opening_us"])


def _within_intervals(found: Found) -> float:
    """Of the starved runs whose remedies were carried out in real time."""
    of_starved = found["diagnostics-real"]["of_starved"]
    return float(of_starved["num_within_interval"] / of_starved["num"])


def _from_archive(name: str) -> Callable[[Found], float]:
    return lambda found: float(found["convert-sources"]["rates"][name]["wall_s"]["ratio"])


def _on_ray(found: Found) -> float:
    return float(found["convert-sources"]["ray"]["overhead"]["ratio"])


_ARCHIVES = {
    "plain.tar": "a tar",
    "nested.tar": "a tar of the classes' tars",
    "class-tars": "a folder of the classes' tars",
    "stored.zip": "a zip",
    "deflated.zip": "a deflated zip",
    "plain.tar.gz": "a .tar.gz",
}
_TABLES = {
    ("datapipe, 65,536", "bare"): "snappy Parquet to shuffled matrices, against a bare read",
    ("noise: datapipe, 65,536", "noise: bare"): "the same of values that hardly compress",
    (
        "datapipe, 65,536, first epoch",
        "DuckDB by hand, first pass",
    ): "the first epoch, against the first pass of DuckDB's loop",
    ("datapipe, 65,536", "DuckDB by hand"): "later epochs, against later passes of that",
    ("datapipe, 65,536", "Arrow take by hand"): "the same, against Arrow's take",
    ("row-major, 65,536", "bare"): "row-major HDF5, full shuffle, against the bare read",
    ("TensorDataset, from_torch", "TensorDataset, torch"): "from_torch, TensorDataset, batches of 4,096, against torch",
    ("datapipe, 4,096", "Hugging Face, shuffled"): "batches of 4,096, against Hugging Face datasets",
}
BARS = (
    _times("photos, float32, against FFCV", 1.4, _lead("images-photos", "ffcv")),
    _times("photos, float32, against DALI on the CPU", 1.6, _lead("images-photos", "dali-webdataset")),
    _times("photos, float32, against torch DataLoader", 2.4, _lead("images-photos", "torch")),
    _times("256 px, float32, against FFCV", 1.4, _lead("images-256", "ffcv")),
    _times("256 px, float32, against DALI on the CPU", 1.9, _lead("images-256", "dali-webdataset")),
    _times("256 px, float32, against torch DataLoader", 3.4, _lead("images-256", "torch")),
    _times("raw shards against 256 px JPEG, float32", 1.6, _raw_gain("ours-raw")),
    _times("raw shards, uint8, against 256 px JPEG, float32", 2.0, _raw_gain("ours-raw-uint8")),
    _times("backend dali against DALI's own pipeline, CPU, float32", 0.97, _against_own_dali("images-dali")),
    _times("the same, uint8", 0.97, _against_own_dali("images-dali-uint8", "-uint8")),
    _times("HDF5 against tar", 0.97, _of_tar("hdf5")),
    _times("TFRecord against tar", 0.97, _of_tar("tfrecord")),
    _times("Parquet against tar", 0.90, _of_tar("parquet")),
    _times("MosaicML's shards in place against tar", 0.95, _in_place("mds")),
    _times("LitData's chunks in place against tar", 0.95, _in_place("litdata")),
    _times("FFCV's file in place against tar", 0.95, _in_place("beton")),
    _times("a Lance dataset in place against tar", 0.70, _in_place("lance")),
    _times(
        "from_torch, ImageNet recipe, against the loader over the folder",
        0.95,
        _taken_over("from-torch", "ours-folder"),
    ),
    _times(
        "from_torch, a function in the chain, against torch",
        1.0,
        _taken_over("from-torch-own-chain", "torch-own-chain"),
    ),
    *(_times(f"from_torch, {passes.TITLES[kind]}, CPU time", bar, _own_dataset(kind)) for kind, bar in _OWN_DATASETS.items()),
    _times("the least of these, in passes of any length, CPU time", 0.97, _least_of_own_datasets("cpu")),
    _times("the same by the clock", 0.97, _least_of_own_datasets("wall")),
    Bar(
        "convert 5 GB, against tar + sha256sum",
        1.5,
        "x",
        True,
        lambda found: float(found["convert"]["ratios"]["ours / tar"]["ratio"]),
    ),
    Bar("open 10 million samples, first batch", 0.5, " s", True, lambda found: float(found["open-large"]["median"]["total_s"])),
    Bar("its memory above the imports", 30, " MB", True, lambda found: float(found["open-large"]["median"]["anonymous_mb"])),
    Bar(
        "global lock held per image (upper bound)",
        10,
        " us",
        True,
        lambda found: float(found["gil"]["median"]["at_most_us_per_image"]),
    ),
    Bar(
        "global lock held per image before DALI (upper bound)",
        10,
        " us",
        True,
        lambda found: float(found["gil"]["median_dali"]["at_most_us_per_image"]),
    ),
    *(
        _times(f"{what}, float32, against the sum of its stages", 0.93, _lead(f"images-{name}", "limit-stages"))
        for name, what in (("photos", "photos"), ("256", "256 px"))
    ),
    *(
        Bar(f"a step watched by diagnose ({loop}), more than alone", 100, " us", True, _attached(loop))
        for loop in ("bare, batch 4", "5 transforms, batch 256", "5 transforms, batch 256, 2 workers")
    ),
    Bar("a datapipe.Monitor, CPU time of a step of 20 ms", 200, " us", True, _monitored("steps_of_20_ms", "cost_cpu_us")),
    Bar("a step watched by a datapipe.Monitor, more than alone", 60, " us", True, _monitored("bare_steps", "cost_first_us")),
    Bar("the same after 100,000 steps", 60, " us", True, _monitored("bare_steps", "cost_last_us")),
    Bar("recording a Dataset of one's own, per sample, opening its file aside", 200, " us", True, _recording),
    Bar("whole scripts diagnosed: the stage at fault is named", 0.95, "", False, _of_scripts("num_fault_right", "num_scripts")),
    Bar(
        "ranks: the late one is named, with its part and stage",
        0.95,
        "",
        False,
        lambda found: float(found["diagnostics-ranks"]["num_stage_right"] / found["diagnostics-ranks"]["num_late"]),
    ),
    Bar("recommended remedies that make a step longer by more than 3%", 0, "", True, _of_scripts("num_harmful", "num_scripts")),
    Bar(
        "best recommended remedy within 10% of the best there is",
        0.95,
        "",
        False,
        _of_scripts("num_best_near", "num_with_remedies"),
    ),
    Bar("predicted steps within their 95% intervals, in real time", 0.9, "", False, _within_intervals),
    *(_times(f"converting from {what}, against the folder", 0.8, _from_archive(name)) for name, what in _ARCHIVES.items()),
    Bar("converting on a Ray cluster of one machine, against the local time, startup aside", 1.2, "x", True, _on_ray),
    *(_times(_TABLES[ours, other], least, _of_tables(ours, other)) for ours, other, least in TABLE_BARS),
    Bar(
        "order of a table, per row", MAX_ORDER_NS, " ns", True, lambda found: float(found["tables"]["ns_per_row"]["order alone"])
    ),
    Bar(
        "global lock held per batch of 65,536 rows",
        MAX_HELD_MS,
        " ms",
        True,
        lambda found: float(found["tables"]["lock_held_ms_per_batch"]),
    ),
    *(_times(_TOKENS[part, other], least, _of_tokens(part, ours, other)) for part, ours, other, least in TOKEN_BARS),
    Bar("rows of 4,096 tokens, how full", MIN_FILL, "", False, lambda found: float(found["tokens"]["fill"]["4096"])),
    Bar("planning the rows of 10 million documents", MAX_PLAN_S, " s", True, _large("plan_s")),
    Bar("opening 10 million documents with their plan", MAX_OPEN_MS, " ms", True, _large("open_ms")),
    Bar("the state of a loader of tokens", MAX_STATE_NBYTES, " bytes", True, _large("state_nbytes")),
    Bar(
        "rows of 32,768 on 64 ranks, balanced: mean cost by the slowest rank's",
        MIN_EFFICIENCY,
        "",
        False,
        lambda found: float(found["tokens"]["efficiency"][-1]["balanced"]),
    ),
    *(
        _times(f"clips, {_CLIPS[cut]}, {ours}, against torchcodec's CPU time", least, _of_clips(cut, ours))
        for cut, ours, least in CLIP_BARS
    ),
    *(
        _times(
            f"clips, {_CLIPS[cut]}, {ours}, against {OF_SOURCE} of the source",
            least,
            _of_clips(cut, ours, part="speed_of_converted"),
        )
        for cut, ours, least in CONVERTED_BARS
    ),
    *(
        _times(
            f"robots' episodes, {num} frames of two cameras, {ours}, against LeRobot's CPU time",
            least,
            _of_clips(num, ours, result="video-episodes"),
        )
        for num, ours, least in EPISODE_BARS
    ),
    Bar(
        "the index of 10,000 videos, files a second",
        MIN_FILES_PER_S,
        "",
        False,
        lambda found: float(found["video"]["index"]["files_per_s"]),
    ),
    *(_times(f"crops of sound, against {peer}'s CPU time", least, _of_audio(peer)) for peer, least in AUDIO_BARS.items()),
    *(Bar(f"resuming among 10 million utterances, {kind}", MAX_RESUME_S, " s", True, _of_resume(kind)) for kind in AUDIO_KINDS),
    *(
        Bar(f"images inside text: {name}", aim, "", name.startswith("bytes"), _of_conversations(name))
        for name, aim in CONVERSATION_BARS.items()
    ),
    Bar(
        "buckets of shapes: a million images planned",
        PLANNED_S,
        " s",
        True,
        lambda found: float(found["buckets"]["planning"]["planned_s"]),
    ),
    Bar(
        "buckets of shapes: the plan of a million images opened",
        1000 * OPENED_S,
        " ms",
        True,
        lambda found: 1000 * float(found["buckets"]["planning"]["opened_s"]),
    ),
    Bar(
        "buckets of shapes: an epoch of a million images padded, 512 in a step",
        100 * PADDED,
        "%",
        True,
        lambda found: 100 * float(found["buckets"]["planning"]["padded"]["512"]),
    ),
    _times("a store, full shuffle by ranges, nothing cached, against the disk", 0.78, _of_store("ranges")),
    _times("a store, windows, nothing cached, against the disk", 0.9, _of_store("windows, cold")),
    _times("a store, warm shard cache, against the disk", 0.97, _of_store("warm cache")),
    Bar("a store, global lock held per image, more than from the disk", 50, " us", True, _held_by_store),
    Bar(
        "a store, first batch from 2,500 shards at 50 ms",
        3,
        " s",
        True,
        lambda found: float(found["remote"]["first_batch_of_many_shards_s"]["median"]),
    ),
    Bar(
        "decoding elsewhere, the trainer's CPU time for a photograph of 224 x 224",
        120,
        " us",
        True,
        lambda found: float(found["elsewhere"]["cases"]["images"]["cpu_us"]["elsewhere"]),
    ),
    _times(
        "decoding clips elsewhere, the trainer's CPU time, against here",
        8,
        lambda found: float(found["elsewhere"]["cases"]["clips"]["cpu_ratio"]["ratio"]),
    ),
    _times(
        "a worker's core, against the same core without a network",
        0.9,
        lambda found: float(found["elsewhere"]["cases"]["images"]["rate_ratio"]["ratio"]),
    ),
    Bar(
        "workers killed every 10 s, lost beyond their share",
        5,
        "%",
        True,
        lambda found: 100 * float(found["elsewhere"]["kills"]["lost"]),
    ),
)
_NEEDED = (
    "images-photos", "images-256", "images-raw", "images-dali", "images-dali-uint8", "convert", "open-large", "gil", "stages-256",
    "containers", "images-from-torch", "images-any-dataset", "attach-cost", "tables", "tokens", "video", "audio", "remote",
    "conversations", "elsewhere", "foreign", "buckets",
    "diagnostics-real", "diagnostics-scripts", "diagnostics-ranks", "convert-sources", "recording", "monitor-cost",
    "video-episodes", "video-stages",
)  # fmt: skip


def as_markdown(found: Found) -> str:
    """The table of aims, and where the time of an image goes. Raises SystemExit where results are missing."""
    missing = [name for name in _NEEDED if name not in found]
    if missing:
        raise SystemExit(f"results of {', '.join(missing)} are missing; run make bench")
    second = on_second_cpu(found)
    lines = [
        line("work", ["aim", "measured", "met", "on another kind of CPU", "met"]),
        "|---" * 6 + "|",
        *(bar.row(found, second) for bar in BARS),
    ]
    steps = dict(found["stages-256"]["median_us_per_image"])
    total = steps.pop("the loader, all in all")
    parts = ", ".join(f"{name} {value:.0f}" for name, value in steps.items())
    images = (
        f"Where the {total:.0f} us of a 256 px image go, in one thread: {parts}; the rest is planning, Python and shared caches."
    )
    return "\n".join([*lines, "", images, "", _of_videos(found["video-stages"])])


def _of_videos(result: dict[str, Any]) -> str:
    """Where the time of a clip goes, of videos as they are and converted, and that of a file of the index."""
    rows = []
    for name, times in result["median_ms_per_clip"].items():
        parts = dict(times)
        whole = parts.pop("in all")
        rows.append(f"{name}: {whole:.1f} ({', '.join(f'{part} {value:.1f}' for part, value in parts.items())})")
    index, num_frames = result["index_us_per_file"], result["settings"]["num_frames"]
    return (
        f"Where the CPU-ms of a clip resized to 224 go, in one thread: {'; '.join(rows)}. Of a file ({num_frames} frames) of the "
        f"index the kernel takes {index['kernel']:.0f} us to open and read it, and Python {index['Python']:.0f} us for its boxes "
        "and packets."
    )
