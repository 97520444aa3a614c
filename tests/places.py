"""Small places of every kind that a user may point a command at: what `suites/test_door` says how each is taken for."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fixtures import convert, encode, jpeg, npy, write_beton, write_lance, write_litdata, write_mds

import datapipe as dp

Make = Callable[[Path], Path]  # gets a folder that exists and is empty; returns the place in it
PLACES: dict[str, Make] = {}
NUM = 4
_STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_TEXTS = ("the cat sat", "on the mat", "and ate", "a rat")


def place(make: Make) -> Make:
    """Take a place up, by the name of what makes it."""
    PLACES[make.__name__] = make
    return make


def put(path: Path, data: bytes | str = b"") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def images(top: Path, *, suffix: str = "jpg") -> Path:
    """Images in no folders."""
    for number in range(NUM):
        put(top / f"{number}.{suffix}", jpeg(number))
    return top


def classes(top: Path) -> Path:
    """Images in folders of classes."""
    for number in range(NUM):
        put(top / "ab"[number % 2] / f"{number}.jpg", jpeg(number))
    return top


def tar_of(members: Iterable[tuple[str, bytes]], mode: str = "w") -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode=mode) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return sink.getvalue()


def files_of_classes() -> list[tuple[str, bytes]]:
    return [(f"{'ab'[number % 2]}/{number}.jpg", jpeg(number)) for number in range(NUM)]


def samples(first: int = 0) -> list[tuple[str, bytes]]:
    """The members of WebDataset's samples."""
    numbers = range(first, first + NUM)
    return [
        (f"{number}.{suffix}", data)
        for number in numbers
        for suffix, data in (("jpg", jpeg(number)), ("cls", b"%d" % (number % 2)))
    ]


def numbers_table() -> pa.Table:
    return pa.table({"x": np.arange(NUM, dtype=np.float32), "y": np.arange(NUM, dtype=np.int8)})


def images_table(column: str = "image", *, is_plain: bool = False, labels: Any = (0, 1, 0, 1)) -> pa.Table:
    files = [jpeg(number) for number in range(NUM)]
    values = pa.array(files) if is_plain else pa.array([{"bytes": one, "path": None} for one in files], _STRUCT)
    return pa.table({column: values, "label": pa.array(labels)})


def write_parquet(path: Path, table: pa.Table) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return path


def write_arrow(path: Path, table: pa.Table) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return path


def wav(path: Path, number: int = 0) -> Path:
    from sound_files import sound, write_sound

    return write_sound(path, sound(0.2, seed=number))


def mp4(path: Path, number: int = 0) -> Path:
    from video_files import pictures, write_video

    path.parent.mkdir(parents=True, exist_ok=True)
    return write_video(path, frames=pictures(8, 48, 32, number))


def csv(names: str, rows: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in (names, *rows))


def lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


# -- folders of images ------------------------------------------------------------------------------------


@place
def empty_folder(top: Path) -> Path:
    return top


@place
def folder_of_empty_folders(top: Path) -> Path:
    (top / "a").mkdir()
    (top / "b").mkdir()
    return top


@place
def image_folder(top: Path) -> Path:
    return classes(top)


@place
def image_folder_with_a_readme(top: Path) -> Path:
    put(top / "README.md", "photographs")
    put(top / "LICENSE.txt", "free")
    return classes(top)


@place
def image_folder_with_captions(top: Path) -> Path:
    for number in range(NUM):
        put(top / "ab"[number % 2] / f"{number}.txt", "a caption")
    return classes(top)


@place
def image_folder_two_deep(top: Path) -> Path:
    for number in range(NUM):
        put(top / "ab"[number % 2] / "inner" / f"{number}.jpg", jpeg(number))
    return top


@place
def image_folders_of_train_and_val(top: Path) -> Path:
    classes(top / "train")
    classes(top / "val")
    return top


@place
def image_folder_with_metadata_on_top(top: Path) -> Path:
    put(top / "metadata.jsonl", lines({"file_name": f"{'ab'[number % 2]}/{number}.jpg", "text": "a"} for number in range(NUM)))
    return classes(top)


@place
def image_folder_with_metadata_within(top: Path) -> Path:
    put(top / "a" / "metadata.csv", csv("file_name,text", ["0.jpg,a", "2.jpg,b"]))
    return classes(top)


@place
def images_in_no_folders(top: Path) -> Path:
    return images(top)


@place
def images_beside_their_list(top: Path) -> Path:
    put(top / "metadata.csv", csv("file_name,label", (f"{number}.jpg,{number % 2}" for number in range(NUM))))
    return images(top)


@place
def images_beside_masks(top: Path) -> Path:
    for number in range(NUM):
        put(top / f"{number}_mask.png", encode(np.zeros((40, 48), np.uint8), "PNG"))
    return images(top)


@place
def images_beside_texts(top: Path) -> Path:
    for number in range(NUM):
        put(top / f"{number}.txt", "a caption")
    return images(top)


@place
def images_and_masks_in_folders(top: Path) -> Path:
    for number in range(NUM):
        put(top / "masks" / f"{number}.png", encode(np.zeros((40, 48), np.uint8), "PNG"))
    images(top / "images")
    return top


@place
def one_image(top: Path) -> Path:
    return put(top / "x.jpg", jpeg(0))


@place
def coco_file(top: Path) -> Path:
    images(top)
    found = {
        "images": [{"id": number, "file_name": f"{number}.jpg", "width": 48, "height": 40} for number in range(NUM)],
        "annotations": [{"id": number, "image_id": number, "category_id": 1, "bbox": [1, 1, 5, 5]} for number in range(NUM)],
        "categories": [{"id": 1, "name": "cat"}],
    }
    return put(top / "instances.json", json.dumps(found))


@place
def folder_of_coco(top: Path) -> Path:
    coco_file(top)
    return top


@place
def other_json(top: Path) -> Path:
    return put(top / "x.json", json.dumps({"a": 1}))


# -- lists and text -----------------------------------------------------------------------------------------


@place
def list_of_images_csv(top: Path) -> Path:
    images(top)
    return put(top / "list.csv", csv("file,label", (f"{number}.jpg,{number % 2}" for number in range(NUM))))


@place
def list_of_images_tsv(top: Path) -> Path:
    images(top)
    return put(top / "list.tsv", csv("file\tlabel", (f"{number}.jpg\t{number % 2}" for number in range(NUM))))


@place
def list_of_images_jsonl(top: Path) -> Path:
    images(top)
    return put(top / "list.jsonl", lines({"file_name": f"{number}.jpg", "text": "a caption"} for number in range(NUM)))


@place
def list_of_missing_images(top: Path) -> Path:
    return put(top / "list.csv", csv("file,label", (f"{number}.jpg,{number % 2}" for number in range(NUM))))


@place
def csv_of_numbers(top: Path) -> Path:
    return put(top / "x.csv", csv("x,y", (f"{number}.5,{number}" for number in range(NUM))))


@place
def csv_of_texts(top: Path) -> Path:
    return put(top / "x.csv", csv("text,label", (f"{text},{number % 2}" for number, text in enumerate(_TEXTS))))


@place
def folder_of_csv(top: Path) -> Path:
    for number in range(2):
        put(top / f"x-{number}.csv", csv("x,y", (f"{number}.5,{number}" for number in range(NUM))))
    return top


@place
def lines_of_numbers(top: Path) -> Path:
    return put(top / "x.jsonl", lines({"x": number + 0.5, "y": number} for number in range(NUM)))


@place
def lines_of_texts(top: Path) -> Path:
    return put(top / "x.jsonl", lines({"text": text} for text in _TEXTS))


@place
def lines_of_chats(top: Path) -> Path:
    return put(top / "x.jsonl", lines({"messages": [{"role": "user", "content": text}]} for text in _TEXTS))


@place
def lines_of_texts_compressed(top: Path) -> Path:
    import gzip

    return put(top / "x.jsonl.gz", gzip.compress(lines({"text": text} for text in _TEXTS).encode()))


@place
def folder_of_lines_of_texts(top: Path) -> Path:
    for number in range(2):
        put(top / f"x-{number}.jsonl", lines({"text": text} for text in _TEXTS))
    return top


@place
def pattern_of_lines(top: Path) -> Path:
    folder_of_lines_of_texts(top)
    return top / "x-*.jsonl"


@place
def folder_of_text_files(top: Path) -> Path:
    for number, text in enumerate(_TEXTS):
        put(top / f"{number}.txt", text)
    return top


@place
def one_text_file(top: Path) -> Path:
    return put(top / "x.txt", _TEXTS[0])


# -- archives ---------------------------------------------------------------------------------------------------


@place
def zip_of_classes(top: Path) -> Path:
    with zipfile.ZipFile(top / "x.zip", "w") as archive:
        for name, data in files_of_classes():
            archive.writestr(name, data)
    return top / "x.zip"


@place
def folder_in_a_zip(top: Path) -> Path:
    with zipfile.ZipFile(top / "x.zip", "w") as archive:
        for name, data in files_of_classes():
            archive.writestr(f"train/{name}", data)
    return top / "x.zip" / "train"


@place
def folder_of_zips(top: Path) -> Path:
    for number in range(2):
        with zipfile.ZipFile(top / f"{number}.zip", "w") as archive:
            for name, data in files_of_classes():
                archive.writestr(name, data)
    return top


@place
def tar_of_classes(top: Path) -> Path:
    return put(top / "x.tar", tar_of(files_of_classes()))


@place
def tar_of_classes_compressed(top: Path) -> Path:
    return put(top / "x.tar.gz", tar_of(files_of_classes(), "w:gz"))


@place
def folder_of_class_tars(top: Path) -> Path:
    for name in ("cats", "dogs"):
        put(top / f"{name}.tar", tar_of((f"{name}_{number}.jpg", jpeg(number)) for number in range(NUM)))
    return top


@place
def folder_of_numbered_tars(top: Path) -> Path:
    for number in range(2):
        put(top / f"{number}.tar", tar_of((f"{one}.jpg", jpeg(one)) for one in range(NUM)))
    return top


@place
def lmdb_of_images(top: Path) -> Path:
    import lmdb

    with lmdb.open(str(top), map_size=1 << 22) as database, database.begin(write=True) as transaction:
        for number in range(NUM):
            transaction.put(b"%04d" % number, jpeg(number))
    return top


# -- shards ---------------------------------------------------------------------------------------------------------


@place
def tar_of_samples(top: Path) -> Path:
    return put(top / "x.tar", tar_of(samples()))


@place
def tar_of_samples_compressed(top: Path) -> Path:
    return put(top / "x.tar.gz", tar_of(samples(), "w:gz"))


@place
def folder_of_tars(top: Path) -> Path:
    for number in range(2):
        put(top / f"x-{number:03d}.tar", tar_of(samples(NUM * number)))
    return top


@place
def folder_of_tars_indexed_before(top: Path) -> Path:
    folder_of_tars(top)
    dp.Images(top)
    return top


@place
def pattern_of_tars(top: Path) -> Path:
    return folder_of_tars(top) / "x-*.tar"


@place
def folder_of_tars_of_two_sets(top: Path) -> Path:
    put(top / "train-000.tar", tar_of(samples()))
    put(top / "val-000.tar", tar_of(samples()))
    return top


@place
def folder_above_tars(top: Path) -> Path:
    folder_of_tars(top / "inner")
    return top


@place
def folder_of_tars_and_parquet(top: Path) -> Path:
    write_parquet(top / "x.parquet", images_table())
    return folder_of_tars(top)


@place
def pattern_of_tars_and_parquet(top: Path) -> Path:
    return folder_of_tars_and_parquet(top) / "x*"


@place
def folder_of_tars_and_images(top: Path) -> Path:
    classes(top)
    return folder_of_tars(top)


@place
def tfrecord_of_images(top: Path) -> Path:
    from tfrecord.writer import TFRecordWriter

    writer = TFRecordWriter(str(top / "x.tfrecord"))
    for number in range(NUM):
        writer.write({"image/encoded": (jpeg(number), "byte"), "image/class/label": (number % 2, "int")})
    writer.close()
    return top / "x.tfrecord"


@place
def hdf5_of_images(top: Path) -> Path:
    import h5py

    with h5py.File(top / "x.h5", "w") as file:
        file["images"] = np.zeros((NUM, 8, 8, 3), np.uint8)
        file["labels"] = np.arange(NUM) % 2
    return top / "x.h5"


@place
def parquet_of_images(top: Path) -> Path:
    return write_parquet(top / "x.parquet", images_table())


@place
def parquet_of_plain_images(top: Path) -> Path:
    return write_parquet(top / "x.parquet", images_table(is_plain=True))


@place
def parquet_of_images_called_jpg(top: Path) -> Path:
    return write_parquet(top / "x.parquet", images_table("jpg", is_plain=True))


@place
def folder_of_parquet_of_images(top: Path) -> Path:
    for number in range(2):
        write_parquet(top / f"train-{number}.parquet", images_table())
    return top


@place
def folder_of_parquet_of_plain_images(top: Path) -> Path:
    for number in range(2):
        write_parquet(top / f"train-{number}.parquet", images_table(is_plain=True))
    return top


@place
def parquet_of_images_in_partitions(top: Path) -> Path:
    for number in range(2):
        write_parquet(top / f"split={number}" / "x.parquet", images_table())
    return top


@place
def parquet_of_other_bytes(top: Path) -> Path:
    return write_parquet(top / "x.parquet", pa.table({"blob": [b"abc"] * NUM, "y": list(range(NUM))}))


@place
def arrow_of_images(top: Path) -> Path:
    return write_arrow(top / "x.arrow", images_table())


@place
def folder_of_mosaicml(top: Path) -> Path:
    return write_mds(classes(top / "photos"), top / "mds")


@place
def folder_of_mosaicml_compressed(top: Path) -> Path:
    return write_mds(classes(top / "photos"), top / "mds", compression="zstd")


@place
def mosaicml_shard(top: Path) -> Path:
    return write_mds(classes(top / "photos"), top / "mds") / "shard.00000.mds"


@place
def folder_of_litdata(top: Path) -> Path:
    return write_litdata(classes(top / "photos"), top / "litdata")


@place
def folder_of_litdata_compressed(top: Path) -> Path:
    return write_litdata(classes(top / "photos"), top / "litdata", compression="zstd")


@place
def split_of_energon(top: Path) -> Path:
    put(top / "set" / "a.tar", tar_of(samples()))
    put(top / "set" / ".nv-meta" / "split.yaml", "split_parts: {train: [a.tar], val: []}")
    return top / "set" / "train"


@place
def dataset_of_lance(top: Path) -> Path:
    return write_lance(classes(top / "photos"), top / "photos.lance")


@place
def table_of_lance(top: Path) -> Path:
    import lance

    lance.write_dataset(pa.table({"x": [1.0, 2.0], "y": [0, 1]}), str(top / "rows.lance"))
    return top / "rows.lance"


@place
def file_of_ffcv(top: Path) -> Path:
    return write_beton(classes(top / "photos"), top / "ffcv") / "0.beton"


@place
def saved_by_datasets(top: Path) -> Path:
    write_arrow(top / "data-00000-of-00001.arrow", images_table())
    put(top / "dataset_info.json", "{}")
    put(top / "state.json", "{}")
    return top


# -- tables ---------------------------------------------------------------------------------------------------------


@place
def parquet_of_numbers(top: Path) -> Path:
    return write_parquet(top / "x.parquet", numbers_table())


@place
def folder_of_parquet_of_numbers(top: Path) -> Path:
    for number in range(2):
        write_parquet(top / f"x-{number}.parquet", numbers_table())
    return top


@place
def pattern_of_parquet_of_numbers(top: Path) -> Path:
    return folder_of_parquet_of_numbers(top) / "x-*.parquet"


@place
def parquet_of_numbers_in_partitions(top: Path) -> Path:
    for number in range(3):
        write_parquet(top / f"label={number}" / "x.parquet", numbers_table())
    return top


@place
def parquet_of_texts(top: Path) -> Path:
    return write_parquet(top / "x.parquet", pa.table({"text": list(_TEXTS)}))


@place
def arrow_of_numbers(top: Path) -> Path:
    return write_arrow(top / "x.arrow", numbers_table())


@place
def feather_of_numbers(top: Path) -> Path:
    return write_arrow(top / "x.feather", numbers_table())


@place
def one_matrix(top: Path) -> Path:
    return put(top / "x.npy", npy(np.zeros((NUM, 3), np.float32)))


@place
def folder_of_arrays(top: Path) -> Path:
    for number in range(NUM):
        put(top / f"{number}.npy", npy(np.zeros((2, 3), np.float32)))
    return top


@place
def arrays_of_classes(top: Path) -> Path:
    for number in range(NUM):
        put(top / "ab"[number % 2] / f"{number}.npy", npy(np.zeros((2, 3), np.float32)))
    return top


# -- videos and sound ---------------------------------------------------------------------------------------------


@place
def one_video(top: Path) -> Path:
    return mp4(top / "x.mp4")


@place
def folder_of_videos(top: Path) -> Path:
    mp4(top / "x.mp4")
    mp4(top / "y.mp4", 1)
    return top


@place
def videos_of_classes(top: Path) -> Path:
    mp4(top / "a" / "x.mp4")
    mp4(top / "b" / "y.mp4", 1)
    return top


@place
def pattern_of_videos(top: Path) -> Path:
    return folder_of_videos(top) / "*.mp4"


@place
def list_of_videos(top: Path) -> Path:
    folder_of_videos(top)
    return put(top / "list.csv", csv("path,label", ["x.mp4,0", "y.mp4,1"]))


@place
def folder_of_typescript(top: Path) -> Path:
    put(top / "x.ts", "export const x = 1;\n")
    return top


@place
def tar_of_videos(top: Path) -> Path:
    data = mp4(top / "x.mp4").read_bytes()
    (top / "x.mp4").unlink()
    return put(top / "x.tar", tar_of([("0.mp4", data), ("0.cls", b"0"), ("1.mp4", data), ("1.cls", b"1")]))


@place
def lerobot_dataset(top: Path) -> Path:
    from lerobot_files import write_lerobot

    return write_lerobot(top / "robot", lengths=(5, 4, 6))


@place
def one_recording(top: Path) -> Path:
    return wav(top / "x.wav")


@place
def folder_of_sound(top: Path) -> Path:
    wav(top / "x.wav")
    wav(top / "y.wav", 1)
    return top


@place
def sound_of_classes(top: Path) -> Path:
    wav(top / "a" / "x.wav")
    wav(top / "b" / "y.wav", 1)
    return top


@place
def pattern_of_sound(top: Path) -> Path:
    return folder_of_sound(top) / "*.wav"


@place
def list_of_sound(top: Path) -> Path:
    folder_of_sound(top)
    return put(top / "list.csv", csv("path,text", ["x.wav,one", "y.wav,two"]))


@place
def librispeech(top: Path) -> Path:
    wav(top / "1" / "2" / "1-2-0.flac")
    wav(top / "1" / "2" / "1-2-1.flac", 1)
    put(top / "1" / "2" / "1-2.trans.txt", "1-2-0 ONE\n1-2-1 TWO\n")
    return top


@place
def common_voice(top: Path) -> Path:
    wav(top / "clips" / "x.wav")
    wav(top / "clips" / "y.wav", 1)
    put(top / "validated.tsv", csv("client_id\tpath\tsentence", ["c\tx.wav\tone", "c\ty.wav\ttwo"]))
    return top


@place
def tar_of_sound(top: Path) -> Path:
    data = wav(top / "x.wav").read_bytes()
    (top / "x.wav").unlink()
    return put(top / "x.tar", tar_of([("0.wav", data), ("0.txt", b"one"), ("1.wav", data), ("1.txt", b"two")]))


@place
def parquet_of_sound(top: Path) -> Path:
    data = wav(top / "x.wav").read_bytes()
    (top / "x.wav").unlink()
    values = pa.array([{"bytes": data, "path": "x.wav"}] * 2, _STRUCT)
    return write_parquet(top / "x.parquet", pa.table({"audio": values, "text": ["one", "two"]}))


@place
def videos_and_sound(top: Path) -> Path:
    wav(top / "x.wav")
    mp4(top / "x.mp4")
    return top


@place
def images_and_videos(top: Path) -> Path:
    mp4(top / "a" / "x.mp4")
    return classes(top)


@place
def images_and_sound(top: Path) -> Path:
    wav(top / "a" / "x.wav")
    return classes(top)


# -- token ids --------------------------------------------------------------------------------------------------


@place
def tokens_of_datatrove(top: Path) -> Path:
    from token_corpora import random_documents, write_datatrove

    return write_datatrove(top, random_documents(5)) / "x.ds"


@place
def folder_of_tokens_of_datatrove(top: Path) -> Path:
    tokens_of_datatrove(top)
    return top


@place
def tokens_of_megatron(top: Path) -> Path:
    from token_corpora import random_documents, write_megatron

    return write_megatron(top / "x.bin", random_documents(5))


@place
def index_of_megatron(top: Path) -> Path:
    return tokens_of_megatron(top).with_suffix(".idx")


@place
def bare_tokens(top: Path) -> Path:
    return put(top / "x.bin", np.arange(64, dtype=np.uint16).tobytes())


# -- what `convert` made --------------------------------------------------------------------------------------


def _converted(to: str) -> Make:
    def make(top: Path) -> Path:
        return convert(classes(top / "src"), top / "out", to=to)

    make.__name__ = f"converted_to_{to}"
    return make


for _to in ("webdataset", "hdf5", "parquet", "tfrecord"):
    place(_converted(_to))


@place
def converted_with_splits(top: Path) -> Path:
    from converters import Split

    return convert(classes(top / "src"), top / "out", split=Split.parse_all("train=0.5,val=0.5"))


@place
def converted_to_tokens(top: Path) -> Path:
    from tokenizers_of_tests import byte_level

    from converters.tokenizer import Tokenizing

    tokens = Tokenizing.of(byte_level(top / "tokenizer.json"))
    source = put(top / "x.jsonl", lines({"text": text} for text in _TEXTS))
    return convert(source, top / "out", to="tokens", tokens=tokens, form="documents")


def _table(to: str) -> Make:
    def make(top: Path) -> Path:
        from converters.tables.conversion import convert_table
        from converters.tables.options import TableConversion

        source = write_parquet(top / "x.parquet", numbers_table())
        convert_table(TableConversion(source=source, destination=top / "out", to=to, num_workers=1))  # type: ignore[arg-type]
        return top / "out"

    make.__name__ = f"table_converted_to_{to}"
    return make


for _to in ("parquet", "hdf5"):
    place(_table(_to))


@place
def converted_videos(top: Path) -> Path:
    return convert(folder_of_videos(put(top / "src" / ".keep").parent), top / "out")


@place
def converted_sound(top: Path) -> Path:
    return convert(folder_of_sound(put(top / "src" / ".keep").parent), top / "out")


@place
def unfinished_conversion(top: Path) -> Path:
    (top / ".building").mkdir()
    put(top / "x-000.tar", tar_of(samples()))
    return top


@place
def folder_above_converted_sets(top: Path) -> Path:
    convert(classes(top / "src"), top / "all" / "one")
    convert(top / "src", top / "all" / "two")
    return top / "all"


# -- nothing to read -------------------------------------------------------------------------------------------------


@place
def nothing_there(top: Path) -> Path:
    return top / "missing"


@place
def pattern_that_matches_nothing(top: Path) -> Path:
    return top / "*.tar"


@place
def file_of_unknown_name(top: Path) -> Path:
    return put(top / "x.xyz", b"abc")


@place
def folder_of_unknown_files(top: Path) -> Path:
    put(top / "x.xyz", b"abc")
    return top
