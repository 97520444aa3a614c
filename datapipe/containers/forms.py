"""The forms of data: what a path may hold, each with the modules that know it. Adding a form is a module, and a line in FORMS.

A form whose files are shards has a module with `index_shard(path)`, which says where the fields of the samples in one file lie;
the samples are those of its files, in the order of the files' names. Any other form of samples has a module with
`open_source(place, form) -> Source` (`index/listed`), whose scan lists the samples of a place. Both are loaded and converted.

A form whose files hold rows of tables names a module of `scan` and `open_groups` (`tables/container`); one that holds nothing
else is of the kind "tables", and known by `opening/tables`.

Every command asks the same question of all forms: is this place of yours? (`opening/recognise`). A form is known by the names of
its `files`, or by `recognise(look, form) -> Evidence | None` in its module, where names do not tell (`containers/look`). One that
has `files` or `marks` is asked only where such a name was seen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

IMAGES = "images"
# names of forms
VIDEOS, AUDIO, TABLE, DOCUMENTS, CONVERTED, LEROBOT = "videos", "audio", "table", "documents", "dataset", "lerobot"
CONVERSATIONS = "conversations"
AUTO = "auto"  # the name of a form that is to be recognised
VIDEO_SUFFIXES = (
    ".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".m2ts", ".mts", ".wmv", ".flv", ".3gp", ".ogv",
)  # fmt: skip
AUDIO_SUFFIXES = (
    ".flac", ".wav", ".mp3", ".ogg", ".oga", ".opus", ".aif", ".aiff", ".aifc", ".au", ".caf", ".w64", ".rf64",
)  # fmt: skip
FIELD_KINDS = (
    "image", "mask", "boxes", "text", "json", "array", "bytes", "label", "int", "float", "text-file", "json-file", "none",
)  # fmt: skip
_LISTS = r".+\.(csv|tsv|jsonl|ndjson|json)"  # names of lists of files


@dataclass(frozen=True, slots=True, kw_only=True)
class FormFacts:
    """The facts of a form that are known before anything of it is opened."""

    title: str  # "an image folder"
    source: str = ""  # module of `open_source`; "" for shards, whose samples are those of their index
    shards: str = ""  # module of `index_shard`
    lists: tuple[str, ...] = ()  # files of which one names the shards of a set of this form, if it has such (`shard_lists`)
    entries: str = ""  # module of `entry_of(folder)`: the file by which a folder of this form is read, which is a shard
    list_reader: str = ""  # module of `listed_shards` that reads them
    has_splits: bool = False  # the list has several sets, which are named as if they were folders
    known_by: str = ""  # module of `recognise`; "": the one above, if it has that, else the names of files
    files: re.Pattern[str] | None = None  # the names of its files; those of shards in this case alone
    marks: re.Pattern[str] | None = None  # further names, in lower case, of files and folders that places of this form have
    rows: str = ""  # module that reads row groups by `read_rows`, and names the errors by which it finds DAMAGE
    takes_rows: bool = False  # ... and any rows by `take_rows`
    tables: str = ""  # module of `scan` and `open_groups` (`tables/container`), if files of it hold rows of tables
    row_files: re.Pattern[str] | None = None  # the names of these, in lower case, where they are not all of `files`
    kind: str = IMAGES  # the kind of data that it holds, of `kinds/registry`
    takes_root: bool = False  # names files, which may lie in a folder that is not its own
    in_stores: bool = False  # is converted from object stores, too
    targets: tuple[str, ...] | None = None  # the formats that it is converted to; None: all
    made_for: tuple[str, ...] = ()  # formats for which a place that may be several forms is taken for this one
    help: str = ""  # a line for `datapipe convert --help`
    examples: tuple[str, ...] = ()  # of commands: SRC, DST and options
    about: tuple[str, str, str, str] = ("", "", "", "")  # what SRC is; what a sample is; its fields; what ids follow


FORMS: dict[str, FormFacts] = {
    "image-folder": FormFacts(
        title="an image folder",
        help="a folder per class; deeper or without classes on request",
        examples=("photos/train shards/train --to webdataset", "scans shards/scans --to webdataset --class-from none"),
        about=("a folder", "an image file", "`image`, `label`", "class, folder, name"),
        source="datapipe.sources.file_tree",
        in_stores=True,
    ),
    "manifest": FormFacts(
        title="a manifest",
        help="a .csv, .tsv or .jsonl that lists files, labels and other values",
        examples=("list.csv shards/list --to webdataset --root photos",),
        about=("a `.csv`, `.tsv` or `.jsonl`", "a row", "by column", "the rows"),
        source="datapipe.sources.lists",
        takes_root=True,
        files=re.compile(r".+\.(csv|tsv|jsonl|ndjson)"),
    ),
    "pairs": FormFacts(
        title="files paired by name",
        help="files of one name, as imgs/ and masks/, or a.jpg next to a.txt",
        examples=("roads shards/roads --to webdataset --from pairs",),
        about=("a folder", "the files of one stem", "by folder or suffix", "folder, stem"),
        source="datapipe.sources.pairs",
    ),
    "coco": FormFacts(
        title="COCO annotations",
        help="COCO's annotation file, with the folder of its images",
        examples=("instances.json shards/coco --to webdataset --root val2017",),
        about=("COCO's annotation file", "an image it lists", "`image`, `boxes`, `image_id`", "the ids of the images"),
        source="datapipe.sources.coco",
        files=re.compile(r".+\.json"),
        takes_root=True,
    ),
    "tar": FormFacts(
        title="WebDataset tars",
        help="WebDataset tars, repacked with all their members",
        examples=("old-shards shards/new --to hdf5",),
        about=("a tar, or a folder of them", "the members of one key", "by suffix", "tar by name, then its order"),
        source="datapipe.sources.tars",
        shards="datapipe.containers.tar.scanner",
        files=re.compile(r".+\.tar"),
        marks=re.compile(r".+\.t(ar\.)?(gz|bz2|xz|zst|lz4)|.+\.tbz"),
        in_stores=True,
    ),
    "npy": FormFacts(
        title="a folder of arrays",
        help=".npy files",
        examples=("arrays shards/arrays --to tfrecord --class-from none",),
        about=("a folder", "a `.npy` file", "`array`, `label`", "class, folder, name"),
        source="datapipe.sources.file_tree",
        files=re.compile(r".+\.npy"),
        in_stores=True,
    ),
    "archive": FormFacts(
        title="images in archives",
        help="images in a zip, a tar (.tar.gz, .tar.zst, ...), a tar of tars, or class tars",
        examples=("ILSVRC2012_img_train.tar shards/train --to webdataset", "photos.zip/train shards/train --to webdataset"),
        about=("a zip, a tar, a folder of class tars", "an image in it", "`image`, `label`", "folder, name"),
        source="datapipe.sources.archives.source",
        known_by="datapipe.sources.archives.recognise",
        files=re.compile(r".+\.(zip|t(ar\.)?(gz|bz2|xz|zst|lz4)|tbz)", re.IGNORECASE),
        marks=re.compile(r".+\.tar"),
        in_stores=True,
    ),
    "lmdb": FormFacts(
        title="LMDB databases of images",
        help="a database whose values are images, as LSUN's",
        examples=("bedroom_train_lmdb shards/bedroom --to webdataset",),
        about=("a database, or a folder of them", "an entry", "`image`, `label`", "database, key"),
        source="datapipe.sources.lmdb",
        files=re.compile(r".+\.(mdb|lmdb)"),
    ),
    "parquet": FormFacts(
        title="Parquet files",
        help="files whose rows are samples",
        examples=("'hub/train-*.parquet' shards/train --to webdataset",),
        about=("a file, a folder or a pattern of them", "a row", "as the loader has them", "the files by name, then their rows"),
        shards="datapipe.containers.parquet.scanner",
        rows="datapipe.containers.parquet.rows",
        tables="datapipe.containers.tables.parquet_rows",
        row_files=re.compile(r".+\.(parquet|pq)"),
        files=re.compile(r".+\.parquet"),
        in_stores=True,
    ),
    "hdf5": FormFacts(
        title="HDF5 files",
        help="files whose datasets have a row for each sample",
        examples=("train.h5 shards/train --to webdataset",),
        about=("a file, a folder or a pattern of them", "a row", "as the loader has them", "the files by name, then their rows"),
        shards="datapipe.containers.hdf5.scanner",
        rows="datapipe.containers.hdf5.rows",
        tables="datapipe.containers.hdf5.row_major",
        row_files=re.compile(r".+\.h5"),
        files=re.compile(r".+\.(h5|hdf5|he5)"),
    ),
    "tfrecord": FormFacts(
        title="TFRecord files",
        help="files of tf.train.Example",
        examples=("'train-*.tfrecord' shards/train --to webdataset",),
        about=("a file, a folder or a pattern of them", "an example", "as the loader has them", "the files by name, then order"),
        shards="datapipe.containers.tfrecord.scanner",
        # `x.tfrecord`, `x.tfrecords`, `x.tfrecord.gz` (refused, with the reason), TFDS's `x.tfrecord-00000-of-00010`, and the
        # `train-00000-of-01024` of TensorFlow's own scripts
        files=re.compile(r".+\.tfrecords?([.-].*)?|.+-\d{5}-of-\d{5}"),
    ),
    "arrow": FormFacts(
        title="Arrow files",
        help="files whose rows are samples, as Hugging Face's datasets saves them",
        examples=("saved/train shards/train --to webdataset",),
        about=("a file, a folder or a pattern of them", "a row", "as the loader has them", "the files by name, then their rows"),
        shards="datapipe.peers.arrow",
        tables="datapipe.containers.tables.arrow_rows",
        row_files=re.compile(r".+\.(arrow|feather|ipc)"),
        files=re.compile(r"(?!.+\.index\.).+\.arrow"),
    ),
    "lance": FormFacts(
        title="a Lance dataset",
        help="a Lance dataset (pylance), whose rows are samples, at its latest version",
        examples=("photos.lance shards/train --to webdataset",),
        about=("a folder of Lance", "a row", "the columns", "the rows"),
        shards="datapipe.peers.lance.scanner",
        entries="datapipe.peers.lance.versions",
        rows="datapipe.peers.lance.rows",
        takes_rows=True,
        tables="datapipe.peers.lance.groups",
        files=re.compile(r"\d+\.manifest"),
        marks=re.compile(r"_versions|.+\.lance"),
    ),
    "mds": FormFacts(
        title="MosaicML shards",
        help="MDS shards of MosaicML's streaming, also compressed",
        examples=("mds/train shards/train --to webdataset",),
        about=("a folder with `index.json`, or shards", "a sample", "the columns", "`index.json`, then order"),
        shards="datapipe.peers.mds.scanner",
        lists=("index.json",),
        list_reader="datapipe.peers.mds.index_file",
        files=re.compile(r".+\.mds"),
        marks=re.compile(r".+\.mds\.(br|bz2|gz|snappy|zstd)"),
        in_stores=True,
    ),
    "litdata": FormFacts(
        title="LitData chunks",
        help="chunks of Lightning's litdata, also compressed",
        examples=("optimized/train shards/train --to webdataset",),
        about=("a folder with `index.json` and chunks", "a sample", "the leaves of a sample", "`index.json`, then order"),
        shards="datapipe.peers.litdata.scanner",
        lists=("index.json",),
        list_reader="datapipe.peers.litdata.index_file",
        files=re.compile(r"(unpacked-)?chunk-\d+-\d+\.bin"),
        marks=re.compile(r"chunk-\d+-\d+\.\w+\.bin"),
        in_stores=True,
    ),
    "energon": FormFacts(
        title="an Energon dataset",
        help="tars with the .nv-meta folder of Megatron Energon",
        examples=("energon/train shards/train --to webdataset",),
        about=("a folder with `.nv-meta`, or a split of it", "the members of one key", "by suffix", "`split.yaml`, then order"),
        shards="datapipe.containers.tar.scanner",
        lists=(".nv-meta/split.yaml", ".nv-meta/split.json"),
        list_reader="datapipe.peers.energon",
        has_splits=True,
        marks=re.compile(r".+\.tar"),
        in_stores=True,
    ),
    "beton": FormFacts(
        title="FFCV files",
        help="FFCV's .beton files",
        examples=("train.beton shards/train --to webdataset",),
        about=("a file, a folder or a pattern of them", "a sample", "its fields", "the files by name, then order"),
        shards="datapipe.peers.beton",
        files=re.compile(r".+\.beton"),
        in_stores=True,
    ),
    DOCUMENTS: FormFacts(
        title="documents",
        help="JSON lines with a text each, or text files; also compressed, in archives and in stores",
        examples=("corpus.jsonl tokens --to tokens --tokenizer tokenizer.json",),
        about=("JSON lines, text files, a folder", "a line, or a text file", "`text`, or as chosen", "files by name, then lines"),
        source="datapipe.sources.documents",
        files=re.compile(r".+\.(jsonl|ndjson|json|txt|text|md)(\.(gz|bz2|xz|zst))?", re.IGNORECASE),
        marks=re.compile(r".+\.(parquet|arrow)"),
        in_stores=True,
        made_for=("tokens",),
    ),
    CONVERSATIONS: FormFacts(
        title="conversations with images",
        help="messages with images, as LLaVA, TRL, Cauldron, OBELICS write them: JSON, Parquet or tars",
        examples=("llava.json tokens --to tokens --tokenizer model/ --chat-template auto --root images",),
        about=("JSON lists or lines, Parquet, tars", "a record", "`conversation`, `images`", "files by name, then records"),
        source="datapipe.sources.conversations",
        files=re.compile(r".+\.(json|jsonl|ndjson|parquet|arrow)", re.IGNORECASE),
        takes_root=True,
        in_stores=True,
        targets=("tokens",),
        made_for=("tokens",),
    ),
    TABLE: FormFacts(
        title="a table",
        help="rows of numbers and texts: CSV, JSON lines, many Parquet files, a .npy matrix",
        examples=("clicks.csv tables/clicks --to parquet",),
        about=(
            "CSV, JSON lines, Parquet, Arrow, `.npy` matrices",
            "a row of values",
            "its columns",
            "see [tables.md](tables.md#conversion)",
        ),
        known_by="datapipe.opening.tables",
        files=re.compile(r".+\.(parquet|pq|arrow|feather|ipc|h5|csv|tsv|jsonl|ndjson|npy)|\d+\.manifest", re.IGNORECASE),
        marks=re.compile(r"table\.json|_versions"),
        kind="tables",
        targets=("parquet", "hdf5"),
        made_for=("parquet", "hdf5"),
    ),
    VIDEOS: FormFacts(
        title="videos",
        help="mp4, mov, mkv, webm, ...: a folder of them, a file, or a list of parts",
        examples=(
            "actions shards/actions --to webdataset",
            "parts.csv shards/parts --to webdataset --video-size 256 --video-keyframes 16",
        ),
        about=("a folder of videos, a video, a list", "a video, or a part", "`mp4`, `label`", "class, folder, name; the rows"),
        source="datapipe.opening.videos.opening",
        files=re.compile(rf".+({'|'.join(map(re.escape, VIDEO_SUFFIXES))})", re.IGNORECASE),
        marks=re.compile(_LISTS),
        takes_root=True,
        kind="clips",
        in_stores=True,
    ),
    AUDIO: FormFacts(
        title="sound",
        help="flac, wav, mp3, ...: a folder of them, LibriSpeech, Common Voice, a file, a list of parts, tars or Parquet",
        examples=(
            "speech shards/speech --to webdataset",
            "speech shards/speech16k --to parquet --audio-rate 16000 --audio-format flac",
        ),
        about=(
            "a folder of sound, a file, a list, tars, Parquet",
            "a file, or a part",
            "`audio`, `txt`, `label`",
            "class, folder, name; the rows",
        ),
        source="datapipe.opening.recordings.opening",
        files=re.compile(rf".+({'|'.join(map(re.escape, AUDIO_SUFFIXES))})", re.IGNORECASE),
        marks=re.compile(rf"{_LISTS}|.+\.(tar|parquet)"),
        takes_root=True,
        kind="audio",
    ),
    LEROBOT: FormFacts(
        title="a dataset of LeRobot's",
        known_by="datapipe.opening.videos.lerobot",
        marks=re.compile("meta"),
        kind="clips",
        targets=(),
    ),
    "tokens": FormFacts(
        title="token ids",
        known_by="datapipe.opening.tokens.opening",
        files=re.compile(r".+\.(ds|bin|idx)"),
        kind="tokens",
        targets=(),
    ),
    CONVERTED: FormFacts(
        title="a converted dataset",
        help="a set that convert made, to be stored otherwise",
        examples=("shards/train small --to webdataset --resize shorter:256",),
        about=("a set that `convert` made", "a sample of it", "those of the set", "the ids of the set"),
        known_by="datapipe.opening.converted",
        marks=re.compile(r"dataset\.json"),
        in_stores=True,
    ),
}  # fmt: skip
