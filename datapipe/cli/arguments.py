"""The arguments of the commands that read, measure and show. Each names its function, which is imported after parsing."""

from __future__ import annotations

import argparse
import importlib
import operator
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from datapipe.containers.forms import AUTO, FIELD_KINDS, FORMS
from datapipe.errors import OptionError

if TYPE_CHECKING:
    from datapipe.containers.form import Form

Commands: TypeAlias = "argparse._SubParsersAction[Any]"


_VERIFY_EPILOG = """\
example:
  datapipe verify shards/train
  datapipe verify s3://bucket/train

Reads every byte; each shard of a dataset in a store is downloaded to a temporary directory.
Lists missing, truncated and foreign files, and the samples whose bytes differ.
"""


def add_verify(subparsers: Commands) -> None:
    """Add `datapipe verify`."""
    parser = subparsers.add_parser(
        "verify",
        help="check every byte of a converted dataset",
        description="Check a converted dataset against its manifest: shards, indexes, and every byte.",
        epilog=_VERIFY_EPILOG,
    )
    parser.add_argument(
        "directory", metavar="DST", help="a converted dataset, on disk or the URL of one in a store, or a directory of its splits"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="threads (all cores this process may use)")
    parser.add_argument("--json", action="store_true", help="report as JSON on standard output")
    parser.set_defaults(run="datapipe.cli.datasets:run_verify")


_FIT_EPILOG = """\
example:
  datapipe fit 'train/*.parquet' recipe.json

  recipe.json before:  {"version": 1, "columns": [
                          ["I*", [{"operation": "FillMissing", "value": "median"}, {"operation": "Normalize"}]],
                          ["C*", [{"operation": "Categorify", "min_count": 10}]]]}
  and after: the same, with means, medians and vocabularies; in a script:
                       dp.Table("train/*.parquet", transform=dp.Columns.load("recipe.json"))

Operations: FillMissing, Normalize, Log1p, Clip, Bucketize, HashBucket, Categorify, Cast (docs/tables.md). Ids of Categorify:
0 padding, 1 null, 2 unseen, then by count. One pass over the table; the same bytes for any number of workers.
"""


def add_fit(subparsers: Commands) -> None:
    """Add `datapipe fit`."""
    parser = subparsers.add_parser(
        "fit",
        help="find the means, medians and vocabularies of a table's columns",
        description="Fit a recipe for the columns of tables: find the means, medians and vocabularies that its operations need.",
        epilog=_FIT_EPILOG,
    )
    parser.add_argument("source", metavar="SRC", help="Parquet or Arrow files: a file, a directory or a pattern")
    parser.add_argument("recipe", metavar="RECIPE", type=Path, help="a JSON file that says which operations which columns get")
    parser.add_argument("--output", metavar="FILE", type=Path, help="where the fitted recipe goes (into RECIPE)")
    parser.add_argument("--workers", type=int, metavar="N", help="threads (all cores this process may use)")
    parser.set_defaults(run="datapipe.cli.datasets:run_fit")


def add_inspect(subparsers: Commands) -> None:
    """Add `datapipe inspect`."""
    parser = subparsers.add_parser(
        "inspect",
        help="describe a dataset; --grid draws a contact sheet",
        description="Describe a converted dataset, whatever `datapipe convert` reads, a table, videos or sound: samples, "
        "classes, shards, encodings, sizes (of up to 200 samples spread over the dataset); of conversations their images, and"
        " with --processor how many tokens these become; "
        "of a table its columns, row groups and nulls; of token ids the lengths of documents, and how full rows of them are; of "
        "videos codecs, sizes, and how far key frames lie apart; of sound rates, channels and lengths.",
        epilog="example: datapipe inspect shards/ --grid sheet.png",
    )
    parser.add_argument("path", help="dataset")
    parser.add_argument("--grid", metavar="PNG", type=Path, help="write a contact sheet of samples spread over the dataset")
    parser.add_argument("--num", metavar="N", type=int, default=24, help="samples on the sheet (default: 24)")
    parser.add_argument("--tokenizer", metavar="FILE", type=Path, help="print some documents of token ids as texts")
    add_processor(parser, "show conversations with images as the model in this folder will see them")
    parser.add_argument(
        "--buckets",
        metavar="AREA[:STEP[:RATIO]]",
        help="show which images belong to which bucket of shapes, such as of 1048576 pixels, sides multiples of 64, 2 times as"
        " long as wide at most (1048576:64:2)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_form_options(parser, "what the data is")
    parser.set_defaults(run="datapipe.cli.inspect:run")


def add_processor(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the folder of a model that takes images. `what` it is for."""
    parser.add_argument("--processor", metavar="MODEL", help=what)


def add_index(subparsers: Commands) -> None:
    """Add `datapipe index`."""
    parser = subparsers.add_parser(
        "index",
        help="index data of other tools ahead of first use",
        description="Create or update the index of data that datapipe did not write: shards, folders, archives, lists of files. "
        "Loading does this by itself on first use.",
        epilog="example: datapipe index 'shards/train-*.tar'",
    )
    parser.add_argument("path", help="data to index")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_form_options(parser, "what the data is")
    parser.set_defaults(run="datapipe.cli.datasets:run_index")


_SERVE_EPILOG = """\
example, on a machine with cores to spare and on the one that trains:
  datapipe serve --root /shared/train --listen 0.0.0.0:7071 --certificate decoder.pem --key decoder.key
  loader = dp.DataLoader("/shared/train", 256, workers=dp.Workers("grpc+tls://decoder:7071", certificate="decoder.pem"))

Both need the same versions of datapipe and of what decodes, and see the data at the same path or URL. Who has the token may
read what lies below the roots, and nothing else, unless --allow-code is given (docs/security.md).
"""


def add_serve(subparsers: Commands) -> None:
    """Add `datapipe serve`."""
    parser = subparsers.add_parser(
        "serve",
        help="decode for loaders on other machines",
        description="Decode images, clips, sound and conversations for loaders on other machines, whose cores are few for their "
        "GPUs. Ends with Ctrl-C or SIGTERM; loaders then do the work themselves.",
        epilog=_SERVE_EPILOG,
    )
    parser.add_argument(
        "--root", action="append", required=True, metavar="DIR", help="what may be read: a folder or URL; may be repeated"
    )
    parser.add_argument(
        "--listen", default="127.0.0.1:7071", metavar="HOST:PORT", help="where (default: %(default)s, this machine alone)"
    )
    parser.add_argument("--cores", type=int, metavar="N", help="cores that decode (all that this process may use)")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="holds the token (DATAPIPE_TOKEN, or a new one, printed)")
    parser.add_argument("--certificate", type=Path, metavar="PEM", help="encrypt with this certificate")
    parser.add_argument("--key", type=Path, metavar="PEM", help="the certificate's key")
    parser.add_argument(
        "--allow-code",
        action="store_true",
        help="also run the Datasets of loaders that from_torch took over: whoever has the token may run any code here",
    )
    parser.set_defaults(run="datapipe.cli.serve:run")


def add_bench(subparsers: Commands) -> None:
    """Add `datapipe bench`."""
    parser = subparsers.add_parser(
        "bench",
        help="measure the loader alone on a dataset, against torch's if asked",
        description="Run the loader without a model. Of images: the usual ImageNet recipe (RandomResizedCrop, flip, normalise to "
        "float32); with --against torch, torch's DataLoader with Pillow does the same work over the same samples in alternated "
        "rounds. Of tables: shuffled batches of all numbers, beside a bare read. Of token ids: rows of 4,096 in batches of 8, "
        "packed in two ways. Of videos: random crops of clips of 8 frames in batches of 16, by visits of 1, 4 and 16. Of sound: "
        "crops of 5 s and whole utterances, in batches of 64. Of conversations with images: rows of 8,192 tokens, with "
        "--processor. The first round of each is a warm-up and does not count.",
        epilog="example: datapipe bench shards/train --against torch",
    )
    parser.add_argument("path", help="dataset")
    parser.add_argument("--against", choices=["torch"], help="measure this loader as well")
    parser.add_argument("--device", metavar="D", default="auto", help="cpu, cuda, cuda:N (default: this machine's GPU, if any)")
    parser.add_argument("--backend", metavar="B", default="auto", help="what decodes: images_cpu, dali or auto (default)")
    parser.add_argument("--batch-size", metavar="N", type=int, default=128, help="images per batch (default: 128)")
    parser.add_argument("--table-batch-size", metavar="N", type=int, default=65536, help="rows per batch of a table (65536)")
    parser.add_argument("--num-workers", metavar="N", type=int, help="threads, and torch's processes (default: usable cores)")
    parser.add_argument("--size", metavar="PIXELS", type=int, default=224, help="side of the crop (default: 224)")
    parser.add_argument("--images", metavar="N", type=int, default=2000, help="images, clips or utterances per round (2000)")
    parser.add_argument("--rounds", metavar="N", type=int, default=3, help="rounds counted (default: 3)")
    add_processor(parser, "of conversations with images: the folder of the model")
    parser.add_argument(
        "--ceilings",
        action="store_true",
        help="measure instead how many samples per second each part of the machine could bring: cores, storage, Python's lock, "
        "memory, the copy to the device; the lowest is what limits the loader",
    )
    parser.add_argument(
        "--demand",
        metavar="N",
        type=float,
        help="samples/s that the model takes, to compare with the ceilings",
    )
    parser.add_argument(
        "--workers",
        metavar="PLACES",
        help="measure instead what other machines bring that decode too: grpc+tls://HOST:7071,HOST:7071 of `datapipe serve`, "
        "whose token is in DATAPIPE_TOKEN, or ray:N, N cores of the Ray cluster that this machine belongs to",
    )
    parser.add_argument("--certificate", metavar="PEM", help="with --workers, the certificates that are trusted")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_form_options(parser, "what the data is")
    parser.set_defaults(run="datapipe.cli.bench:run")


def add_doctor(subparsers: Commands) -> None:
    """Add `datapipe doctor`."""
    parser = subparsers.add_parser(
        "doctor",
        help="show what this machine has, and what to install",
        description="Report cores, memory, limits, GPU, and the packages the loader can use; say what would help.",
        epilog="example: datapipe doctor",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument(
        "--empty-shard-caches", action="store_true", help="first remove the cached shards of object stores that are not in use"
    )
    parser.set_defaults(run="datapipe.cli.doctor:run")


_DEMO_EPILOG = """\
examples:
  datapipe demo
  datapipe demo --all
  datapipe demo --photos photos --images 600
  datapipe demo --make clips videos
  datapipe demo --data photos/train --out /tmp/demo
"""


def add_demo(subparsers: Commands) -> None:
    """Add `datapipe demo`."""
    parser = subparsers.add_parser(
        "demo",
        help="see it work: photos to shards, loaded beside torch's DataLoader, and a training script diagnosed",
        description="Make photographs (or take yours), convert and verify them, and load them in turns: from the files with "
        "torch's DataLoader, from the shards with datapipe's. Then train a small network for a few epochs with each, under "
        "`datapipe diagnose`, and compare the two. It takes about a minute.",
        epilog=_DEMO_EPILOG,
    )
    parser.add_argument("--out", type=Path, default=Path("demo-out"), metavar="DIR", help="where all results go (demo-out)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="your image folder, one directory per class")
    parser.add_argument("--images", type=int, metavar="N", help="photographs to generate (320)")
    parser.add_argument("--photos", type=Path, metavar="DIR", help="only generate photographs, in the new directory DIR")
    parser.add_argument(
        "--make",
        nargs=2,
        metavar=("KIND", "PATH"),
        help="only generate a little data of another kind at a new path: tables, audio, clips (videos) or tokens (texts)",
    )
    parser.add_argument(
        "--all", action="store_true", help="make and load a little data of each other kind too: half a minute more"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="worker processes of torch, threads of datapipe (cores)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON; the commentary goes to standard error")
    parser.set_defaults(run="datapipe.cli.demo:run")


def add_form_options(parser: argparse.ArgumentParser, title: str) -> None:
    """Add the options that say what a path is, and how its files make samples."""
    group = parser.add_argument_group(title)
    group.add_argument("--from", dest="form", default=AUTO, choices=(AUTO, *FORMS), help="auto (default) recognises the form")
    group.add_argument(
        "--root", type=Path, metavar="DIR", help="where the file names in a manifest or COCO file start (its folder)"
    )
    group.add_argument(
        "--field",
        action="append",
        default=[],
        type=parsed_by("FieldChoice.parse", "datapipe.containers.form"),
        metavar="NAME=KIND",
        help=f"the kind of a column, suffix or annotation: {', '.join(FIELD_KINDS[:-1])} (text-file, json-file: a column that"
        " names such files), or none to leave it out; NAME alone is a text; repeatable",
    )
    group.add_argument(
        "--class-from",
        choices=("folder", "parent", "path", "none"),
        help="the class of a file: the folder of the source that it lies in (default), its own folder, the path of that, or none",
    )
    group.add_argument("--class-map", type=Path, metavar="FILE", help='labels: JSON {"class": index} or lines `class index`')


def parse_form(args: argparse.Namespace) -> Form | None:
    """Return the form that such options name; None if none is given."""
    if args.form == AUTO and not any((args.root, args.field, args.class_from, args.class_map)):
        return None
    from datapipe.containers.form import Form

    return Form(args.form, root=args.root, fields=tuple(args.field), class_from=args.class_from, class_map=args.class_map)


def parsed_by(name: str, module: str = "converters.options") -> Callable[[str], Any]:
    """Return what parses an option's text by `name` of a module, which is imported when the option is given."""

    def parse(text: str) -> Any:
        try:
            return operator.attrgetter(name)(importlib.import_module(module))(text)
        except OptionError as exc:
            raise argparse.ArgumentTypeError(str(exc)) from exc

    return parse
