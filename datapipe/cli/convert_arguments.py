"""The arguments of `datapipe convert`."""

from __future__ import annotations

import argparse
import importlib
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datapipe.cli.arguments import Commands
from datapipe.errors import OptionError

EPILOG = """\
example:
  datapipe convert photos shards --to webdataset --resize shorter:256 --encode jpeg:90

what SRC may be, with an example each (docs/convert.md has the details):
  image-folder: a folder per class; deeper or without classes on request
    datapipe convert photos/train shards/train --to webdataset
    datapipe convert scans shards/scans --to webdataset --class-from none
  manifest: a .csv, .tsv or .jsonl that lists files, labels and other values
    datapipe convert list.csv shards/list --to webdataset --root photos
  pairs: files of one name, as imgs/ and masks/, or a.jpg next to a.txt
    datapipe convert roads shards/roads --to webdataset --from pairs
  coco: COCO's annotation file, with the folder of its images
    datapipe convert instances.json shards/coco --to webdataset --root val2017
  tar: WebDataset tars, repacked with all their members
    datapipe convert old-shards shards/new --to hdf5
  archive: images in a zip, a tar (.tar.gz, .tar.zst, ...), a tar of tars, or class tars
    datapipe convert ILSVRC2012_img_train.tar shards/train --to webdataset
    datapipe convert photos.zip/train shards/train --to webdataset
  lmdb: a database whose values are images, as LSUN's
    datapipe convert bedroom_train_lmdb shards/bedroom --to webdataset
  parquet, hdf5, tfrecord, arrow: files of others that the loader can open
    datapipe convert 'hub/train-*.parquet' shards/train --to webdataset
  dataset: a set that convert made, to be stored otherwise
    datapipe convert shards/train small --to webdataset --resize shorter:256
  npy: .npy files
    datapipe convert arrays shards/arrays --to tfrecord --class-from none
  table: CSV, JSON lines, many Parquet files, a .npy matrix: rows of numbers
    datapipe convert clicks.csv tables/clicks --to parquet

--dry-run shows which form SRC was recognised as, its fields and its first samples. The
same command resumes a killed or interrupted run; after a finished one it
finds nothing to do. Several machines share the work with --part 1/4,
--part 2/4, ... into one destination, or by --engine ray (docs/clusters.md). Sizes take MB, GB, MiB, GiB. With --resize,
images that need resizing are stored as JPEG of quality 90 (PNG if they were PNG)
unless --encode says otherwise; shorter:N and longer:N also enlarge, as
torchvision's Resize does; masks and boxes follow. EXIF orientation is not applied.
"""


def add_convert(subparsers: Commands) -> None:
    """Add `datapipe convert`."""
    parser = subparsers.add_parser(
        "convert",
        help="repack small files into shards",
        description="Repack images, and what belongs to them, into shards: atomically, resumably, checked.",
        epilog=EPILOG,
    )
    parser.add_argument("source", metavar="SRC", help="a folder, a file, or the URL of either; see below")
    parser.add_argument("destination", metavar="DST", help="directory to create, or the URL of a place in an object store")
    parser.add_argument(
        "--to",
        required=True,
        choices=("webdataset", "hdf5", "parquet", "tfrecord"),
        help="format of the shards (docs/formats.md)",
    )
    _add_source_options(parser)
    _add_table_options(parser)
    parser.add_argument(
        "--shard-size",
        default="256MB",
        type=_parser("parse_nbytes"),
        metavar="SIZE",
        help="source bytes per shard, a target (256MB)",
    )
    parser.add_argument(
        "--resize", type=_parser("ResizeRule.parse"), metavar="HOW", help="shorter:256, longer:N or exact:HxW, in pixels"
    )
    parser.add_argument(
        "--encode",
        default="keep",
        type=_parser("Encode.parse"),
        metavar="FORM",
        help="keep (default), jpeg:90, webp:80, webp:lossless, png or raw",
    )
    parser.add_argument(
        "--dedupe",
        action="store_true",
        help="leave out samples whose image is byte for byte that of an earlier one, and name them",
    )
    parser.add_argument(
        "--strip-exif", action="store_true", help="take EXIF, XMP and comments out of images that keep their bytes"
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="processes (all cores this process may use; with --engine ray, of the cluster)"
    )
    parser.add_argument(
        "--engine", default="local", choices=("local", "ray"), help="build the shards on this machine, or on a Ray cluster"
    )
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="a Ray cluster; on its machines `auto` (RAY_ADDRESS, or one of this machine)",
    )
    order = parser.add_mutually_exclusive_group()
    order.add_argument("--seed", type=int, default=0, help="seed of the order in which samples are written (0)")
    order.add_argument("--no-shuffle", action="store_true", help="write samples in the order of the listing")
    parser.add_argument(
        "--split",
        type=_parser("Split.parse_all"),
        default=(),
        metavar="train=0.9,val=0.1",
        help="divide into datasets DST/train, DST/val",
    )
    parser.add_argument(
        "--check", default="header", choices=("header", "decode"), help="check headers and ends, or decode everything"
    )
    parser.add_argument("--on-error", default="fail", choices=("fail", "skip", "quarantine"), help="how to treat a bad sample")
    parser.add_argument(
        "--max-errors", type=_parser("Limit.parse"), metavar="LIMIT", help="give up at more bad samples: a count or 0.1%%"
    )
    parser.add_argument(
        "--part", type=_parser("Part.parse"), metavar="I/N", help="write only every N-th shard; other processes write the others"
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would be written, and write nothing")
    parser.add_argument("--overwrite", action="store_true", help="replace a finished dataset in DST")
    parser.add_argument("--json", action="store_true", help="report as JSON on standard output")
    parser.set_defaults(run="datapipe.cli.convert:run")


def _add_source_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe SRC and what is read from it."""
    group = parser.add_argument_group("what SRC is")
    forms = (
        "auto", "image-folder", "manifest", "pairs", "coco", "tar", "npy", "table", "archive", "dataset", "hdf5", "parquet",
        "tfrecord", "arrow", "lmdb",
    )  # fmt: skip
    group.add_argument(
        "--from", dest="form", default="auto", choices=forms, help="auto (default) recognises the form, and prints it"
    )
    group.add_argument(
        "--root", type=Path, metavar="DIR", help="where the file names in a manifest or COCO file start (its folder)"
    )
    group.add_argument(
        "--field", action="append", default=[], type=_parser("FieldChoice.parse"), metavar="NAME=KIND",
        help="the kind of a column, suffix or annotation: image, mask, boxes, text, json, array, bytes, label, int, float,"
        " text-file, json-file (a column that names such files), or none to leave it out; repeatable",
    )  # fmt: skip
    group.add_argument(
        "--class-from", choices=("folder", "parent", "path", "none"),
        help="the class of a file: the folder of SRC in which it lies (default), its own folder, the path of that, or none",
    )  # fmt: skip
    group.add_argument("--class-map", type=Path, metavar="FILE", help='labels: JSON {"class": index} or lines `class index`')


def _add_table_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that only tables have."""
    group = parser.add_argument_group("tables (SRC is CSV, JSON lines, Parquet, Arrow or .npy; docs/tables.md)")
    group.add_argument(
        "--schema", type=Path, metavar="FILE", help='JSON of types by column or pattern, {"I*": "float32"}; others by a full scan'
    )
    group.add_argument("--names", metavar="A,B,C", help="columns of CSV without a header row")
    group.add_argument("--delimiter", metavar="C", help="between values of CSV (a comma, or a tab in .tsv)")
    group.add_argument("--compression", choices=("none", "snappy", "zstd", "lz4"), help="of Parquet (snappy)")
    group.add_argument("--group-rows", type=int, metavar="N", help="rows of a row group (131072)")


def _parser(name: str) -> Callable[[str], Any]:
    """Return what parses an option's text by `name` of `converters.options`, which is imported when the option is given."""

    def parse(text: str) -> Any:
        try:
            return operator.attrgetter(name)(importlib.import_module("converters.options"))(text)
        except OptionError as exc:
            raise argparse.ArgumentTypeError(str(exc)) from exc

    return parse
