"""The arguments of `datapipe convert`."""

from __future__ import annotations

import argparse
from pathlib import Path

from datapipe.cli.arguments import Commands, add_form_options, parsed_by
from datapipe.containers.forms import FORMS, FormFacts

_EPILOG = """\
example:
  datapipe convert photos shards --to webdataset --resize shorter:256 --encode jpeg:90

what SRC may be, with an example each (docs/convert.md has the details):
{forms}

--dry-run shows which form SRC was recognised as, its fields and its first samples. The
same command resumes a killed or interrupted run; after a finished one it
finds nothing to do. Several machines share the work with --part 1/4,
--part 2/4, ... into one destination, or by --engine ray (docs/clusters.md). Sizes take MB, GB, MiB, GiB. With --resize,
images that need resizing are stored as JPEG of quality 90 (PNG if they were PNG)
unless --encode says otherwise; shorter:N and longer:N also enlarge, as
torchvision's Resize does; masks and boxes follow. EXIF orientation is not applied.
"""


def _told(name: str, facts: FormFacts) -> str:
    """Return a form in words, with examples of commands."""
    return "\n".join([f"  {name}: {facts.help}", *(f"    datapipe convert {example}" for example in facts.examples)])


EPILOG = _EPILOG.format(forms="\n".join(_told(name, facts) for name, facts in FORMS.items() if facts.help))


def add_convert(subparsers: Commands) -> None:
    """Add `datapipe convert`."""
    parser = subparsers.add_parser(
        "convert",
        help="repack small files into shards",
        description="Repack images with what belongs to them, texts, videos, sound or tables: atomically, resumably, checked.",
        epilog=EPILOG,
    )
    parser.add_argument("source", metavar="SRC", help="a folder, a file, or the URL of either; see below")
    parser.add_argument("destination", metavar="DST", help="directory to create, or the URL of a place in an object store")
    parser.add_argument(
        "--to",
        required=True,
        choices=("webdataset", "hdf5", "parquet", "tfrecord", "tokens"),
        help="format of the shards (docs/formats.md)",
    )
    add_form_options(parser, "what SRC is")
    _add_token_options(parser)
    _add_table_options(parser)
    _add_video_options(parser)
    _add_audio_options(parser)
    parser.add_argument(
        "--shard-size",
        default="256MB",
        type=parsed_by("parse_nbytes"),
        metavar="SIZE",
        help="source bytes per shard, a target (256MB)",
    )
    parser.add_argument(
        "--resize", type=parsed_by("ResizeRule.parse"), metavar="HOW", help="shorter:256, longer:N or exact:HxW, in pixels"
    )
    parser.add_argument(
        "--encode",
        default="keep",
        type=parsed_by("Encode.parse"),
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
        type=parsed_by("Split.parse_all"),
        default=(),
        metavar="train=0.9,val=0.1",
        help="divide into datasets DST/train, DST/val",
    )
    parser.add_argument(
        "--check", default="header", choices=("header", "decode"), help="check headers and ends, or decode everything"
    )
    parser.add_argument("--on-error", default="fail", choices=("fail", "skip", "quarantine"), help="how to treat a bad sample")
    parser.add_argument(
        "--max-errors", type=parsed_by("Limit.parse"), metavar="LIMIT", help="give up at more bad samples: a count or 0.1%%"
    )
    parser.add_argument(
        "--part",
        type=parsed_by("Part.parse"),
        metavar="I/N",
        help="write only every N-th shard; other processes write the others",
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would be written, and write nothing")
    parser.add_argument("--overwrite", action="store_true", help="replace a finished dataset in DST")
    parser.add_argument("--json", action="store_true", help="report as JSON on standard output")
    parser.set_defaults(run="datapipe.cli.convert:run")


def _add_token_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that only --to tokens has."""
    group = parser.add_argument_group("tokens (--to tokens; SRC holds texts; docs/text.md)")
    group.add_argument(
        "--tokenizer", type=Path, metavar="FILE", help="tokenizer.json, or the folder that holds it and tokenizer_config.json"
    )
    group.add_argument(
        "--eos", default="auto", metavar="TOKEN", help="ends each document: a token, none, or auto (tokenizer_config.json's)"
    )
    group.add_argument(
        "--bos", default="auto", metavar="TOKEN", help="begins each document: likewise (auto: if tokenizer_config.json says so)"
    )
    group.add_argument("--pack", type=int, metavar="LENGTH", help="plan rows of so many tokens now, rather than on first use")
    group.add_argument(
        "--chat-template",
        metavar="FILE|auto",
        help="the texts are chats (JSON lists of messages): render them by this template; the assistant's tokens carry loss",
    )


def _add_video_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that only videos have."""
    group = parser.add_argument_group("videos (SRC holds videos; docs/video.md), kept as they are unless one of these is given")
    group.add_argument("--video-size", type=int, metavar="N", help="encode again, the shorter side at most N pixels")
    group.add_argument(
        "--video-keyframes", type=int, metavar="N", help="encode again, a key frame every N frames (16 with --video-size)"
    )


def _add_audio_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that only sound has."""
    group = parser.add_argument_group("sound (SRC holds sound; docs/audio.md), kept as it is unless one of these is given")
    group.add_argument("--audio-rate", type=int, metavar="HZ", help="resample to so many samples a second, and write FLAC")
    group.add_argument("--audio-channels", type=int, metavar="N", help="1: the mean of the channels; N: one channel, repeated")
    group.add_argument("--audio-format", choices=("flac", "wav"), help="encode again what has another format (FLAC where needed)")
    group.add_argument(
        "--audio-silence",
        type=parsed_by("parse_silence"),
        metavar="keep|drop",
        help="drop: leave out sound that is nowhere louder than -60 dBFS, or another level: drop:-50 (keep)",
    )


def _add_table_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that only tables have."""
    group = parser.add_argument_group("tables (SRC is CSV, JSON lines, Parquet, Arrow or .npy; docs/tables.md)")
    group.add_argument(
        "--schema", type=Path, metavar="FILE", help='JSON of types by column or pattern, {"I*": "float32"}; others by a full scan'
    )
    group.add_argument("--names", metavar="A,B,C", help="columns of CSV without a header row")
    group.add_argument(
        "--delimiter",
        metavar="C",
        help="between values of CSV (the one that the first line uses)",
    )
    group.add_argument("--compression", choices=("none", "snappy", "zstd", "lz4"), help="of Parquet (snappy)")
    group.add_argument("--group-rows", type=int, metavar="N", help="rows of a row group (131072)")
