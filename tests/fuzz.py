"""Damaged inputs by the million: every reader of foreign files gives a result or a DatapipeError.

    python tests/fuzz.py --inputs 1000000                   # or `make fuzz`; random, the same for the same --seed
    python tests/fuzz.py --only hdf5:0:12345                # one input again: format, seed, number

Valid files of each format, recipes, and answers of a web server are damaged, and looked at in a process of their own. Another
exception, a crash, more than 10 seconds (where a target has no limit of its own), 300 MB, or 4 GB of address space are findings:
they are printed with the input's name, saved in --keep, and make the exit status 1.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import math
import multiprocessing
import os
import random
import resource
import signal
import stat
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fuzz_http
import fuzz_lerobot
import fuzz_peers
import fuzz_remote
import fuzz_sound
import fuzz_tables
import fuzz_tokenizers
import fuzz_tokens
import fuzz_videos
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fixtures import encode, mds_shard, picture
from PIL import Image
from tar_files import link_to, sparse_tars, tar_of

from datapipe.codecs.decode import checked_header
from datapipe.codecs.probe import probe
from datapipe.codecs.stored import decode_stored
from datapipe.containers.formats import read_rows
from datapipe.containers.hdf5 import scanner as hdf5
from datapipe.containers.parquet import scanner as parquet
from datapipe.containers.tar import scanner as tar
from datapipe.containers.tfrecord import layout as frame
from datapipe.containers.tfrecord import scanner as tfrecord
from datapipe.errors import DatapipeError
from datapipe.index.entries import RowGroup
from datapipe.index.listed import ScanNotes, Workspace
from datapipe.peers import beton
from datapipe.peers.mds import scanner as mds
from datapipe.sources.archives.members import scan_archive

MAX_S = 10
MAX_GROWTH_MB = 300
MAX_RESERVED = 4 << 30  # bytes of address space; who asks for more gets a MemoryError
BATCH = 2000  # inputs per process
KEEP = Path(tempfile.gettempdir()) / "datapipe-fuzz"
IMAGES = [b"\xff\xd8\xff" + bytes([number]) * number + b"\xff\xd9" for number in (0, 3, 40)]  # small: what is around them counts
NUMBERS = (0, 1, 2, 7, 8, 0x7F, 0x80, 0xFF, 0xFFFF, 1 << 40, *(2**bits - back for bits in (31, 32, 63, 64) for back in (0, 1)))


@dataclass(frozen=True)
class Change:
    """One act of damage. `at`: where, as a share of the length; `length`: bytes that are meant."""

    kind: str  # "set", "number", "drop", "again", "move", "cut", "zero"
    at: float
    length: int
    value: int

    def apply(self, data: bytearray) -> None:
        start = min(int(self.at * len(data)), max(0, len(data) - 1))
        end = start + self.length
        if self.kind == "set" and data:
            data[start] = self.value & 0xFF
        elif self.kind == "number":
            width = (1, 2, 4, 8)[self.length % 4]
            order = "<" if self.length % 8 < 4 else ">"
            data[start : start + width] = struct.pack(order + "BHIQ"["1248".index(str(width))], self.value & (1 << 8 * width) - 1)
        elif self.kind == "drop":
            del data[start:end]
        elif self.kind == "again":
            data[start:start] = data[start:end]
        elif self.kind == "move":
            there = self.value % (len(data) + 1)
            data[there : there + self.length] = data[start:end]
        elif self.kind == "zero":
            data[start:end] = bytes(len(data[start:end]))
        else:
            del data[start:]


KINDS = ("set", "set", "set", "number", "number", "drop", "again", "move", "zero", "cut")


def random_change(rng: random.Random) -> Change:
    value = rng.choice(NUMBERS) if rng.random() < 0.5 else rng.getrandbits(16)
    return Change(rng.choice(KINDS), rng.random(), rng.choice((1, 2, 3, 4, 5, 6, 7, 8, 16, 60, 512, 700)), value)


@dataclass(frozen=True)
class Target:
    """A format: valid files of it, what looks at one, and what makes checksums right again."""

    make: Callable[[], list[bytes]]
    look: Callable[[bytes, Path], object]
    mend: Callable[[bytearray], None] = lambda data: None
    share: float = 1.0  # of the inputs that others get; less for one that waits, or reads all that a file holds
    max_s: int | None = None  # for one that has limits of its own
    max_growth_mb: int | None = None

    def damaged(self, seeds: list[bytes], number: int, changes: Sequence[Change], *, mended: bool) -> bytes:
        data = bytearray(seeds[number % len(seeds)])
        for change in changes:
            change.apply(data)
        if mended:
            self.mend(data)
        return bytes(data)


# -- the formats ------------------------------------------------------------------------------------


def _scanned(index_shard: Callable[[Path], Any], container: str = "") -> Callable[[bytes, Path], object]:
    """Index the file, and read what is addressed by rows."""

    def look(data: bytes, scratch: Path) -> object:
        scratch.write_bytes(data)
        rows, _ = index_shard(scratch)
        for column in rows.columns.values():
            if column.column is not None:
                assert column.offset.tolist() == list(range(rows.row_groups[-1])) == list(range(len(rows)))
                for number, (first, end) in enumerate(itertools.pairwise(rows.row_groups)):
                    _read_all(RowGroup(container, str(scratch), column.column, number, first, end))
            elif len(rows):
                for offset, nbytes, codec in zip(column.offset, column.nbytes, column.codecs, strict=False):
                    with contextlib.suppress(DatapipeError):
                        decode_stored(data[offset : offset + nbytes], codec)
                assert 0 <= column.offset.min() <= (column.offset + column.nbytes).max() <= len(data), column
                assert column.nbytes.min() >= 0
        return rows

    return look


def _read_all(group: RowGroup) -> None:
    with contextlib.suppress(DatapipeError):
        values = read_rows(group)
        for row in range(len(group)):
            with contextlib.suppress(DatapipeError):
                assert type(values[row]) is bytes


def _parquet_files() -> list[bytes]:
    structs = pa.array([{"bytes": image, "path": "a.jpg"} for image in IMAGES * 2])
    features = b'{"info": {"features": {"label": {"_type": "ClassLabel", "names": ["a", "b"]}}}}'
    table = pa.table({"image": structs, "label": [0, 1] * 3, "key": list("abcdef")})
    plain = pa.table({"image": IMAGES * 2, "y": pa.array([0, 1] * 3, pa.int32())}).replace_schema_metadata(
        {b"huggingface": features}
    )
    nested = pa.table(
        {
            "image": structs,
            "caption": ["a", "bc", None] * 2,
            "n": [0.5, None] * 3,
            "vector": [[1, 2], [], [3]] * 2,
            "pair": pa.array([[1, 2]] * 6, pa.list_(pa.float32(), 2)),
            "objects": [[{"box": [1.0, 2.0], "name": "x"}], [], None] * 2,
        }
    )
    common = {"use_dictionary": ["label", "key"], "compression": "none"}
    files = []
    for source, options in (
        (table, {"row_group_size": 4, "write_page_index": True}),
        (table, {"data_page_version": "2.0", "compression": {"label": "zstd", "key": "snappy"}}),
        (table, {"data_page_size": 8, "write_batch_size": 1, "store_schema": False, "write_page_checksum": True}),
        (plain, {"write_statistics": False, "use_dictionary": False}),
        (plain, {"compression": "snappy", "use_dictionary": False, "row_group_size": 4}),
        (plain, {"use_dictionary": True, "compression": "zstd", "data_page_version": "2.0"}),
        (nested, {"compression": "gzip", "use_dictionary": True, "write_page_checksum": True}),
        (nested, {"compression": "brotli", "use_dictionary": False, "data_page_version": "2.0", "row_group_size": 4}),
        (plain, {"use_dictionary": False, "column_encoding": {"image": "DELTA_BYTE_ARRAY"}, "data_page_size": 60}),
        (nested.drop_columns(["objects"]), {"compression": "lz4", "data_page_size": 8, "write_batch_size": 1}),
    ):
        sink = io.BytesIO()
        pq.write_table(source, sink, **(common | options))
        files.append(sink.getvalue())
    return files


def _tfrecord_files() -> list[bytes]:
    def framed(*examples: dict[str, bytes | int]) -> bytes:
        out = b""
        for example in examples:
            data = b"".join(frame.encode_example(example).parts)
            out += frame.frame_head(len(data)) + data + frame.frame_tail([data])
        return out

    ours = [{"__key__": b"k", frame.IMAGE: image, frame.LABEL: number, frame.HEIGHT: 3} for number, image in enumerate(IMAGES)]
    return [framed(*ours), framed(*({"x": image, "label": -1} for image in IMAGES)), framed({"image": IMAGES[2]})]


def _mend_tfrecord(data: bytearray) -> None:
    position = 0
    while position + frame.HEAD_NBYTES <= len(data):
        nbytes = int.from_bytes(data[position : position + 8], "little")
        data[position : position + frame.HEAD_NBYTES] = frame.frame_head(nbytes)
        position += frame.HEAD_NBYTES + nbytes + frame.TAIL_NBYTES


def _mds_files() -> list[bytes]:
    pil = b"".join(number.to_bytes(4, "little") for number in (2, 3, 1)) + b"L" + bytes(6)
    columns = {"x": "bytes", "y": "int", "name": "str", "raw": "pil", "a": "ndarray", "b": "ndarray:int16", "s": "str_int"}
    arrays = b"\x08\x08\x02\x01ab", b"\x04\x03abcdef"
    return [
        mds_shard(columns, [(image, bytes(8), b"k%d" % number, pil, *arrays, b"12") for number, image in enumerate(IMAGES)]),
        mds_shard({"image": "png", "class": "str", "e": "ndarray:float32:4"}, [(IMAGES[0], b"cat", bytes(16))] * 2),
        mds_shard({"p": "pkl", "tokens": "ndarray:uint8"}, [(b"?", b"\x04\x02ab")]),
    ]


def _hdf5_files() -> list[bytes]:
    def vlen(file: h5py.File, **options: Any) -> None:
        images = file.create_dataset("images", (len(IMAGES),), h5py.vlen_dtype(np.uint8), **options)
        for row, image in enumerate(IMAGES):
            images[row] = np.frombuffer(image, np.uint8)
        file["labels"] = np.arange(len(IMAGES))

    def blobs(file: h5py.File) -> None:
        file["image/data"] = np.frombuffer(b"".join(IMAGES), np.uint8)
        file["image/offsets"] = np.cumsum([0, *map(len, IMAGES)])
        file["label"] = np.arange(len(IMAGES))
        file["key"] = np.array([b"a", b"b", b"c"])

    def pixels(file: h5py.File, **options: Any) -> None:
        file.create_dataset("x", data=np.zeros((4, 5, 6, 3), np.uint8), **options)
        file.create_dataset("y", data=np.arange(4), chunks=(2,), compression="gzip")

    def further(file: h5py.File, **options: Any) -> None:
        file["image/data"] = np.frombuffer(b"".join(IMAGES), np.uint8)
        file["image/offsets"] = np.cumsum([0, *map(len, IMAGES)])
        file.create_dataset("caption", data=["a", "bc", ""], **options)
        file.create_dataset("name", data=np.array([b"a", b"bc", b""]), **options)
        file.create_dataset("vector", data=np.arange(6.0).reshape(3, 2), **options)
        boxes = file.create_dataset("boxes", (3,), h5py.vlen_dtype(np.int16), **options)
        for row in range(3):
            boxes[row] = np.arange(row)

    two, latest = {"chunks": (2,)}, {"libver": "latest"}
    one_image, some_images = {"chunks": (1, 5, 6, 3)}, {"chunks": (3, 5, 3, 3), "compression": "gzip", "shuffle": True}
    files = []
    for write, options, file_options in (
        (vlen, {}, {}), (vlen, two, latest), (blobs, {}, {}), (blobs, {}, latest), (pixels, {}, {}), (pixels, one_image, {}),
        (pixels, one_image, latest), (pixels, some_images, {}), (pixels, some_images | {"fletcher32": True}, latest),
        (pixels, {"chunks": (2, 5, 6, 3), "compression": "lzf"}, {}), (vlen, two | {"compression": "gzip"}, {}),
        (further, {}, {}), (further, {"chunks": True, "compression": "gzip"}, {}), (further, {"chunks": True}, latest),
    ):  # fmt: skip
        sink = io.BytesIO()
        with h5py.File(sink, "w", **file_options) as file:
            write(file, **options)  # type: ignore[operator]
        files.append(sink.getvalue())
    return files


def _tar_files() -> list[bytes]:
    import tarfile

    files = []
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        sink = io.BytesIO()
        with tarfile.open(fileobj=sink, mode="w", format=form) as file:
            for number, image in enumerate(IMAGES):
                key = str(number) if form == tarfile.USTAR_FORMAT else "n" * 120 + str(number)
                for suffix, data in (("jpg", image), ("cls", b"%d" % number)):
                    info = tarfile.TarInfo(f"{key}.{suffix}")
                    info.size = len(data)
                    info.mtime = 0.5 if form == tarfile.PAX_FORMAT else 0  # type: ignore[assignment]
                    file.addfile(info, io.BytesIO(data))
        data = sink.getvalue().rstrip(b"\0")
        files.append(data + bytes(-len(data) % 512 + 1024))  # not all of the zeros that fill up the last record
    sparse = sparse_tars(IMAGES[2] + bytes(700), [(0, 20), (30, len(IMAGES[2]) - 30)], name="a.jpg")
    links = tar_of(link_to("a.jpg", "b.jpg"), link_to("b.jpg", "c.jpg", is_hard=True), link_to("../x.jpg", "d.jpg"))[: 3 * 512]
    files += [data + links + bytes(1024) for data in sparse.values()]
    files.append(tar_of(("a.jpg", IMAGES[0])) + links + tar_of(("n.jpg", IMAGES[1])).rstrip(b"\0") + bytes(1536))
    return files


def _zip_files() -> list[bytes]:
    import zipfile

    files = []
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        sink = io.BytesIO()
        with zipfile.ZipFile(sink, "w", method) as file:
            for number, image in enumerate(IMAGES):
                info = zipfile.ZipInfo("x")
                info.filename = f"a\\{number}.jpg" if number else "a/0.jpg"
                file.writestr(info, image, method)
            for name, target in (("b/l.jpg", "../a/0.jpg"), ("b/m.jpg", "l.jpg"), ("c", "a"), ("d.jpg", "/x")):
                link = zipfile.ZipInfo(name)
                link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
                file.writestr(link, target, method)
        files.append(sink.getvalue())
    return files


def _look_at_zip(data: bytes, scratch: Path) -> object:
    """List the members, and read what can be."""
    path = scratch.with_suffix(".zip")
    path.write_bytes(data)
    members = list(scan_archive(path.parent, os.fsencode(path.name), Workspace(path.parent, None), ScanNotes()))
    for member in members:
        origin = member.origin
        if member.problem is None:
            assert 0 <= origin.offset <= origin.offset + origin.nbytes <= len(data), member
            with contextlib.suppress(DatapipeError):
                decode_stored(data[origin.offset : origin.offset + origin.nbytes], origin.codec)
    return members


def _mend_tar(data: bytearray) -> None:
    for block in range(0, len(data) - 511, 512):
        if data[block + 257 : block + 262] == b"ustar":
            data[block + 148 : block + 156] = b" " * 8
            data[block + 148 : block + 156] = b"%06o\0 " % sum(data[block : block + 512])


def _image_files() -> list[bytes]:
    pixels = picture(1, 6, 7)
    files = [encode(pixels, form) for form in ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM")]
    files += [encode(pixels, "WEBP", lossless=True), encode(pixels, "JPEG", progressive=True), encode(pixels, "PNG", mode="P")]
    sink = io.BytesIO()
    Image.fromarray(pixels).save(sink, "WEBP", exif=b"Exif\0\0" + bytes(20))
    files.append(sink.getvalue())
    for array in (pixels, pixels[:, :, 0]):
        sink = io.BytesIO()
        np.save(sink, array)
        files.append(sink.getvalue())
    return files


def _rare_images() -> list[bytes]:
    """Images that Pillow alone reads."""
    pixels = picture(1, 16, 16)
    forms = ("AVIF", "JPEG2000", "TGA", "ICO", "ICNS", "PCX", "DDS", "DIB", "IM", "QOI", "SGI", "SPIDER")
    files = [encode(pixels, form) for form in forms]
    files += [encode(pixels, form, mode=mode) for form, mode in (("BLP", "P"), ("MSP", "1"), ("XBM", "1"))]
    return [*files, encode(pixels, "GIF")[:-1]]


TARGETS = {
    "parquet": Target(_parquet_files, _scanned(parquet.index_shard, "parquet")),
    "tfrecord": Target(_tfrecord_files, _scanned(tfrecord.index_shard), _mend_tfrecord),
    "mds": Target(_mds_files, _scanned(mds.index_shard)),
    "litdata": Target(fuzz_peers.litdata_chunks, fuzz_peers.look_at_chunk),
    "litdata-framed": Target(fuzz_peers.framed_chunks, fuzz_peers.look_at_framed),
    "beton": Target(fuzz_peers.beton_files, _scanned(beton.index_shard)),
    "lance": Target(fuzz_peers.lance_manifests, fuzz_peers.look_at_manifest),
    "shard-list": Target(fuzz_peers.list_files, fuzz_peers.look_at_list),
    "hdf5": Target(_hdf5_files, _scanned(hdf5.index_shard, "hdf5")),
    "tar": Target(_tar_files, _scanned(tar.index_shard), _mend_tar),
    "zip": Target(_zip_files, _look_at_zip),
    "header": Target(_image_files, lambda data, scratch: probe(data)),
    "rare-image": Target(_rare_images, lambda data, scratch: checked_header(data), share=0.1),
    "table-parquet": Target(fuzz_tables.parquet_files, fuzz_tables.look_at_parquet, fuzz_tables.tamper_footer),
    "arrow": Target(fuzz_tables.arrow_files, fuzz_tables.look_at_arrow),
    "csv": Target(fuzz_tables.csv_files, fuzz_tables.look_at_csv, fuzz_tables.scatter_quotes),
    "recipe": Target(fuzz_tables.recipe_files, fuzz_tables.look_at_recipe, fuzz_tables.tamper_recipe),
    "megatron": Target(fuzz_tokens.megatron_files, fuzz_tokens.look_at_megatron, share=0.1),
    "datatrove": Target(fuzz_tokens.datatrove_files, fuzz_tokens.look_at_datatrove, share=0.1),
    "token-array": Target(fuzz_tokens.numpy_files, fuzz_tokens.look_at_numpy, share=0.1),
    "token-index": Target(fuzz_tokens.index_files, fuzz_tokens.look_at_index, share=0.1),
    "packs": Target(fuzz_tokens.plan_files, fuzz_tokens.look_at_plan),
    "forged-packs": Target(fuzz_tokens.plan_files, fuzz_tokens.look_at_forged_plan),
    "mp3": Target(fuzz_sound.mp3_files, fuzz_sound.look_at_sound, share=0.2),
    "ogg": Target(fuzz_sound.ogg_files, fuzz_sound.look_at_sound, share=0.2),
    "sound-claims": Target(fuzz_sound.claiming_files, fuzz_sound.look_at_claims, share=0.1),
    "video": Target(fuzz_videos.video_files, fuzz_videos.look_at_video, share=0.1),
    "neighbours": Target(lambda: [*fuzz_videos.neighbours().values()], fuzz_videos.look_at_neighbours, share=0.1),
    "lerobot": Target(fuzz_lerobot.lerobot_files, fuzz_lerobot.look_at_lerobot, fuzz_lerobot.tamper_facts, share=0.1),
    "tokenizer": Target(
        fuzz_tokenizers.tokenizer_files,
        fuzz_tokenizers.look_at_tokenizer,
        fuzz_tokenizers.tamper_tokenizer,
        share=0.002,
        max_s=120,
    ),
    "template": Target(
        fuzz_tokenizers.template_files,
        fuzz_tokenizers.look_at_template,
        fuzz_tokenizers.add_snippets,
        share=0.001,
        max_s=120,
        max_growth_mb=1200,
    ),
    "remote-request": Target(
        fuzz_remote.requests, fuzz_remote.look_at_request, fuzz_remote.tamper_request, share=0.2, max_growth_mb=600
    ),
    "http": Target(fuzz_http.answers, fuzz_http.look_at_answer, share=0.02),
}


def examine(target: Target, data: bytes, scratch: Path) -> None:
    """Look at one input. Raises what a user must never see."""
    with contextlib.suppress(DatapipeError):
        target.look(data, scratch)


# -- the driver -------------------------------------------------------------------------------------


def input_of(target: Target, seeds: list[bytes], name: str) -> bytes:
    """The input of that name, `format:seed:number`."""
    rng = random.Random(name)
    changes = [random_change(rng) for _ in range(rng.choice((1, 1, 1, 2, 3, 5)))]
    return target.damaged(seeds, rng.getrandbits(16), changes, mended=rng.random() < 0.5)


def _work(name: str, seed: int, first: int, end: int, place: Any, scratch: Path) -> None:
    """The life of a process: inputs one after the other; `place` says which."""
    target = TARGETS[name]
    seeds = target.make()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process
    for sound in seeds:
        examine(target, sound, scratch)
    limit = _virtual_nbytes() + MAX_RESERVED
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(first, end):
        place.value = number
        signal.alarm(target.max_s or MAX_S)
        examine(target, input_of(target, seeds, f"{name}:{seed}:{number}"), scratch)
        grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) >> 10
        if grown_mb > (target.max_growth_mb or MAX_GROWTH_MB):
            raise MemoryError(f"{grown_mb} MB more than before")
    signal.alarm(0)


def _virtual_nbytes() -> int:
    """Return how much memory this process has reserved, whether or not it uses it."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _process(name: str, seed: int, first: int, end: int, place: Any, scratch: Path) -> None:
    # libraries print what they think of damaged files, a line for each
    quiet = os.open(os.devnull, os.O_WRONLY)
    errors = os.dup(2)
    os.dup2(quiet, 2)
    try:
        _work(name, seed, first, end, place, scratch)
    except BaseException:
        os.write(errors, traceback.format_exc().encode())
        os._exit(1)
    os._exit(0)


def fuzz(name: str, *, seed: int, num: int, keep: Path) -> list[str]:
    """Look at `num` damaged inputs of a format; the names of those that were findings."""
    context = multiprocessing.get_context("fork")
    place = context.RawValue("q", 0)
    findings: list[str] = []
    first = 0
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as directory:
        while first < num:
            end = min(first + BATCH, num)
            process = context.Process(target=_process, args=(name, seed, first, end, place, Path(directory) / "x"))
            process.start()
            process.join()
            if not process.exitcode:
                first = end
                continue
            finding = f"{name}:{seed}:{place.value}"
            code = process.exitcode
            what = "an exception, or too much memory" if code > 0 else f"died of {signal.Signals(-code).name}"
            print(f"FOUND {finding}: {what}", flush=True)
            keep.mkdir(parents=True, exist_ok=True)
            (keep / finding.replace(":", "-")).write_bytes(input_of(TARGETS[name], TARGETS[name].make(), finding))
            findings.append(finding)
            first = place.value + 1
    return findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000, help="in all (100,000)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="another one, other inputs (the time)")
    parser.add_argument("--formats", default=",".join(TARGETS), help=",".join(TARGETS))
    parser.add_argument("--keep", type=Path, default=KEEP, help="where findings are saved")
    parser.add_argument("--only", metavar="FORMAT:SEED:NUMBER", help="look at one input again, with its traceback")
    args = parser.parse_args()
    if args.only:
        target = TARGETS[args.only.partition(":")[0]]
        with tempfile.TemporaryDirectory() as directory:
            examine(target, input_of(target, target.make(), args.only), Path(directory) / "x")
        return 0
    names, findings = args.formats.split(","), []
    for name in names:
        started, num = time.monotonic(), math.ceil(args.inputs / len(names) * TARGETS[name].share)
        found = fuzz(name, seed=args.seed, num=num, keep=args.keep)
        findings += found
        rate = num / (time.monotonic() - started)
        print(f"{name}: {num:,} inputs of seed {args.seed}, {len(found)} findings, {rate:,.0f}/s", flush=True)
    if findings:
        print(f"saved in {args.keep}; look again with --only NAME")
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
