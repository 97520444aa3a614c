"""The images that are measured: made once, kept under benchmarks/.data, made anew by anybody.

A set is a directory with one part per reader: `folder/` (class folders), `shards/`, `raw/`, `hdf5/`, `tfrecord/` and
`parquet/` (datapipe), `webdataset/` (tar files by webdataset's own writer, with DALI's index beside), `ffcv.beton`,
`ffcv-raw.beton`. Files are linked `copies` times under new names so that an epoch is long enough to be
measured; shards and the like hold every copy.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from datapipe.testing.synthetic_images import make_image_folder

DEFAULT_DATA = Path(__file__).parent / ".data"
SHORT_SIDE, QUALITY = 256, 90  # of the 256 px set
_WEBDATASET_SHARDS = 24


@dataclass(frozen=True, slots=True)
class ImageSet:
    """What a set is made of. Two sets with equal values have equal contents."""

    name: str  # "photos" or "256"
    source: str = "generated"  # or the image folder whose files were taken
    num_files: int = 3000  # different files
    copies: int = 4  # of each, linked

    @property
    def num_images(self) -> int:
        return self.num_files * self.copies


@dataclass(frozen=True, slots=True)
class Workshop:
    """Where sets are made, and by which interpreters."""

    data: Path
    ffcv_python: str | None = None
    peers_python: str | None = None  # of an environment with litdata and mosaicml-streaming

    def directory(self, image_set: ImageSet) -> Path:
        return self.data / image_set.name


def prepare(workshop: Workshop, image_set: ImageSet, parts: tuple[str, ...]) -> Path:
    """The set's directory, with these parts in it; what is there already is kept."""
    root = workshop.directory(image_set)
    root.mkdir(parents=True, exist_ok=True)
    note = root / "set.json"
    wanted = json.dumps(dataclasses.asdict(image_set), indent=1)
    if note.exists() and note.read_text() != wanted:
        raise SystemExit(f"{root} holds another set ({note}); delete it, or give another --data")
    note.write_text(wanted)
    for part in dict.fromkeys(("folder", *parts)):
        if not (root / part).exists():
            print(f"making {root / part} ...", flush=True)
            unfinished = root / f"unfinished-{part}"
            _remove(unfinished)
            _MAKERS[part](workshop, image_set, unfinished)
            os.replace(unfinished, root / part)
    return root


def describe(root: Path) -> dict[str, object]:
    """The set as results record it."""
    sizes = [path.stat().st_size for path in (root / "folder").glob("*/*")]
    made_of = json.loads((root / "set.json").read_text())
    return {**made_of, "num_images": len(sizes), "mean_nbytes": round(sum(sizes) / len(sizes))}


def warm(paths: list[Path]) -> None:
    """Read everything once, so that each contender finds it in the page cache."""
    for path in paths:
        for file in [path] if path.is_file() else path.rglob("*"):
            if file.is_file():
                with file.open("rb", buffering=0) as opened:
                    while opened.read(1 << 22):
                        pass


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# -- parts ---------------------------------------------------------------------------------------


def _make_folder(workshop: Workshop, image_set: ImageSet, out: Path) -> None:
    if image_set.name == "256":
        photos = prepare(workshop, dataclasses.replace(image_set, name="photos"), ("folder",)) / "folder"
        originals = [path for path in sorted(photos.glob("*/*")) if path.stem.endswith("-0")]
        _in_threads(lambda path: _shrink(path, out / path.parent.name / path.name), originals)
        files = {path: f"{path.parent.name}/{path.stem.removesuffix('-0')}" for path in sorted(out.glob("*/*"))}
    elif image_set.source == "generated":
        drawn = make_image_folder(out / "drawn", num_images=image_set.num_files)
        files = {path: f"{path.parent.name}/{path.stem}" for path in sorted(drawn.glob("*/*"))}
    else:
        files = _taken_from(Path(image_set.source), image_set.num_files, out / "drawn")
    for path, name in files.items():
        for copy in range(image_set.copies):
            target = out / f"{name}-{copy}{path.suffix}"
            if target != path:
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(path, target)
    _remove(out / "drawn")


def _taken_from(source: Path, num_files: int, copies: Path) -> dict[Path, str]:
    """Copies (links do not cross file systems) of the first files of an image folder, in turn if there are too few."""
    found = [path for path in sorted(source.glob("*/*")) if path.suffix.lower() in (".jpg", ".jpeg")]
    if not found:
        raise SystemExit(f"{source}: holds no class folders with JPEG files")
    files = {}
    for number in range(num_files):
        path = found[number % len(found)]
        name = f"{path.parent.name}/{path.stem}_{number // len(found)}"
        target = copies / f"{name}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        files[Path(shutil.copyfile(path, target))] = name
    return files


def _shrink(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(path) as opened:
        image = opened.convert("RGB")
    scale = SHORT_SIDE / min(image.size)
    if scale < 1:
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR)
    image.save(target, "JPEG", quality=QUALITY)


def _in_threads(work: Callable[[Path], None], paths: list[Path]) -> None:
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for _ in pool.map(work, paths):
            pass


def _make_shards(workshop: Workshop, image_set: ImageSet, out: Path) -> None:
    _convert(workshop.directory(image_set) / "folder", out, "keep")


def _make_raw(workshop: Workshop, image_set: ImageSet, out: Path) -> None:
    _convert(workshop.directory(image_set) / "folder", out, "raw")


def _make_hdf5(workshop: Workshop, image_set: ImageSet, out: Path) -> None:
    _convert(workshop.directory(image_set) / "folder", out, "keep", to="hdf5")


def _make_tfrecord(workshop: Workshop, image_set: ImageSet, out: Path) -> None:
    _convert(workshop.directory(image_set) / "folder", out, "keep", to="tfrecord")


def _make_parquet(workshop: Workshop, image_set: ImageSet, out: Path) -> None:
    _convert(workshop.directory(image_set) / "folder", out, "keep", to="parquet")


def _convert(folder: Path, out: Path, encode: str, *, to: str = "webdataset") -> None:
    from converters import convert
    from converters.options import ConvertOptions, Encode

    convert(ConvertOptions(source=folder, destination=out, to=to, encode=Encode.parse(encode)))


def _make_webdataset(workshop: Workshop, image_set: ImageSet, out: Path) -> None:
    from webdataset import ShardWriter

    out.mkdir()
    folder = workshop.directory(image_set) / "folder"
    labels = {name: label for label, name in enumerate(sorted(path.name for path in folder.iterdir()))}
    files = sorted(folder.glob("*/*"))
    random.Random(0).shuffle(files)
    with ShardWriter(str(out / "%06d.tar"), maxcount=-(-len(files) // _WEBDATASET_SHARDS), verbose=0) as writer:
        for number, path in enumerate(files):
            writer.write({"__key__": f"{number:09d}", "jpg": path.read_bytes(), "cls": labels[path.parent.name]})
    for shard in sorted(out.glob("*.tar")):
        _write_dali_index(shard)


def _write_dali_index(shard: Path) -> None:
    samples: dict[str, list[str]] = {}
    with tarfile.open(shard) as tar:
        for member in tar:
            key, _, field = member.name.partition(".")
            samples.setdefault(key, []).append(f"{field} {member.offset_data} {member.size} {member.name}")
    lines = [f"v1.2 {len(samples)}", *(" ".join(fields) for fields in samples.values())]
    shard.with_suffix(".idx").write_text("\n".join(lines) + "\n")


def _make_ffcv(workshop: Workshop, image_set: ImageSet, out: Path) -> None:
    _write_beton(workshop, workshop.directory(image_set) / "folder", out, "jpg")


def _make_ffcv_raw(workshop: Workshop, image_set: ImageSet, out: Path) -> None:
    _write_beton(workshop, workshop.directory(image_set) / "folder", out, "raw")


def _write_beton(workshop: Workshop, folder: Path, out: Path, mode: str) -> None:
    if workshop.ffcv_python is None:
        raise SystemExit("FFCV's file needs --ffcv-python; benchmarks/README.md says how to install FFCV")
    command = [str(Path(workshop.ffcv_python).absolute()), "-m", "benchmarks.contenders.ffcv_write", str(folder), str(out), mode]
    _run(command)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")


def _make_mds(workshop: Workshop, image_set: ImageSet, out: Path) -> None:
    _write_by_peer(workshop, "mds", workshop.directory(image_set) / "folder", out)


def _make_litdata(workshop: Workshop, image_set: ImageSet, out: Path) -> None:
    _write_by_peer(workshop, "litdata", workshop.directory(image_set) / "folder", out)


def _make_lance(workshop: Workshop, image_set: ImageSet, out: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.contenders.streaming_peers", "write", "lance"]
    _run([*command, str(workshop.directory(image_set) / "folder"), str(out)])


def _write_by_peer(workshop: Workshop, peer: str, folder: Path, out: Path) -> None:
    if workshop.peers_python is None:
        raise SystemExit(f"{peer} needs --peers; benchmarks/README.md says how to install LitData and MosaicML Streaming")
    python = str(Path(workshop.peers_python).absolute())
    _run([python, "-m", "benchmarks.contenders.streaming_peers", "write", peer, str(folder), str(out)])


_MAKERS: dict[str, Callable[[Workshop, ImageSet, Path], None]] = {
    "folder": _make_folder,
    "shards": _make_shards,
    "raw": _make_raw,
    "hdf5": _make_hdf5,
    "tfrecord": _make_tfrecord,
    "parquet": _make_parquet,
    "webdataset": _make_webdataset,
    "mds": _make_mds,
    "litdata": _make_litdata,
    "lance": _make_lance,
    "ffcv.beton": _make_ffcv,
    "ffcv-raw.beton": _make_ffcv_raw,
}
