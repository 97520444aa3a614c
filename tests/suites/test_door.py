"""What each place is taken for: one answer, which every command gives, or one sentence that asks.

A new form joins by places in `places.py`, and their lines here.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faulty_store import FaultyStore
from fixtures import jpeg
from places import NUM, PLACES, classes, numbers_table, put, write_parquet
from stand_in_stores import BUCKET, moto_store, needs_moto, upload
from tokenizers_of_tests import byte_level

import datapipe as dp
from converters.writers import TARGETS
from datapipe.cli.main import main
from datapipe.containers import look
from datapipe.containers.form import Form
from datapipe.containers.forms import FORMS
from datapipe.core import directories
from datapipe.errors import DatapipeError
from datapipe.kinds import registry
from datapipe.opening.recognise import recognise
from datapipe.stores import objects
from datapipe.stores.location import Location
from datapipe.stores.places import parse_place

_LISTED = "holds images and {}: pass .*{} to take what it lists"
_TWO = "may be several things, say which: --from {} .*; or --from {} "
_TABLE = "--to {}: .* is a table, which is written as parquet or hdf5"
_IN_PLACE = "to read in place: nothing to convert"
_UNKNOWN = "not recognised by its name"
_EMPTY = "no images, videos, sound, .npy files or shards in it"
_OF_TABLES = dict.fromkeys(("webdataset", "tfrecord", "tokens"), "! is a table, which is written as parquet or hdf5")
_OF_TEXTS = dict.fromkeys(("webdataset", "tfrecord", "tokens"), "documents")
_OF_LISTS = dict.fromkeys(("webdataset", "tfrecord", "tokens"), "manifest")
_OF_IDS = dict.fromkeys(TARGETS, f"! {_IN_PLACE}")

_DATA = {"images": dp.Images, "tables": dp.Table, "tokens": dp.Tokens, "clips": dp.Clips, "audio": dp.Audio}

# The form of each place, with the kind of its data where that is not the form's own; or what is said, after "! ". Then, by target
# of a conversion, where that decides: files of rows become tables or documents.
SPECIFICATION: dict[str, tuple[str, dict[str, str]]] = {
    "empty_folder": (f"! {_EMPTY}", {}),
    "folder_of_empty_folders": ("image-folder", {}),
    "image_folder": ("image-folder", {}),
    "image_folder_with_a_readme": ("image-folder", {}),
    "image_folder_with_captions": (f"! {_TWO.format('image-folder', 'pairs')}", {}),
    "image_folder_two_deep": ("image-folder", {}),
    "image_folders_of_train_and_val": ("image-folder", {}),
    "image_folder_with_metadata_on_top": (f"! {_LISTED.format('metadata.jsonl', 'metadata.jsonl')}", {}),
    "image_folder_with_metadata_within": (f"! {_LISTED.format('a/metadata.csv', 'a/metadata.csv')}", {}),
    "images_in_no_folders": ("! images in no class folders: pass --class-from none", {}),
    "images_beside_their_list": (f"! {_LISTED.format('metadata.csv', 'metadata.csv')}", {}),
    "images_beside_masks": ("pairs", {}),
    "images_beside_texts": ("pairs", {}),
    "images_and_masks_in_folders": ("pairs", {}),
    "one_image": ("! a single image; pass the folder", {}),
    "coco_file": ("coco", {}),
    "folder_of_coco": ("! images in no class folders: pass .* COCO's annotation file", {}),
    "other_json": ("! JSON, but not COCO's", {}),
    "list_of_images_csv": ("manifest", {}),
    "list_of_images_tsv": ("manifest", {}),
    "list_of_images_jsonl": ("manifest", {"tokens": "documents"}),
    "list_of_missing_images": ("manifest", {}),
    "csv_of_numbers": ("table", _OF_LISTS),
    "csv_of_texts": ("table", _OF_LISTS),
    "folder_of_csv": ("table", _OF_TABLES),
    "lines_of_numbers": ("table", _OF_LISTS | {"tokens": "documents"}),
    "lines_of_texts": ("table", _OF_TEXTS),
    "lines_of_chats": ("table", _OF_TEXTS),
    "lines_of_texts_compressed": ("documents", {}),
    "folder_of_lines_of_texts": ("table", _OF_TEXTS),
    "pattern_of_lines": ("table", _OF_TEXTS),
    "folder_of_text_files": ("documents", {}),
    "one_text_file": ("documents", {}),
    "zip_of_classes": ("archive", {}),
    "folder_in_a_zip": ("archive", {}),
    "folder_of_zips": ("archive", {}),
    "tar_of_classes": ("archive", {}),
    "tar_of_classes_compressed": ("archive", {}),
    "folder_of_class_tars": ("archive", {}),
    "folder_of_numbered_tars": (f"! {_TWO.format('tar', 'archive')}", {}),
    "lmdb_of_images": ("lmdb", {}),
    "tar_of_samples": ("tar", {}),
    "tar_of_samples_compressed": ("tar", {}),
    "folder_of_tars": ("tar", {}),
    "folder_of_tars_indexed_before": ("tar", {}),
    "pattern_of_tars": ("tar", {}),
    "folder_of_tars_of_two_sets": ("! holds shards of train, val; open one set of them", {}),
    "folder_above_tars": ("! its folder .*inner holds shards: pass that folder", {}),
    "folder_of_tars_and_parquet": (f"! {_TWO.format('tar', 'parquet')}", {}),
    "pattern_of_tars_and_parquet": (f"! {_TWO.format('tar', 'parquet')}", {}),
    "folder_of_tars_and_images": (f"! {_TWO.format('image-folder', 'tar')}", {}),
    "tfrecord_of_images": ("tfrecord", {}),
    "hdf5_of_images": ("hdf5", {}),
    "parquet_of_images": ("parquet", {}),
    "parquet_of_plain_images": ("parquet", {}),
    "parquet_of_images_called_jpg": ("parquet", {}),
    "folder_of_parquet_of_images": ("parquet", {}),
    "folder_of_parquet_of_plain_images": ("parquet", {}),
    "parquet_of_images_in_partitions": ("! its folder .*split=0 holds shards: pass that folder", {}),
    "parquet_of_other_bytes": ("table", _OF_TABLES | {"tokens": "documents"}),
    "arrow_of_images": ("arrow", {}),
    "folder_of_mosaicml": ("mds", {}),
    "folder_of_mosaicml_compressed": ("mds", {}),
    "mosaicml_shard": ("mds", {}),
    "split_of_energon": ("energon", {}),
    "file_of_ffcv": ("beton", {}),
    "dataset_of_lance": ("lance", {}),
    "table_of_lance": ("table", _OF_TABLES),
    "folder_of_litdata": ("litdata", {}),
    "folder_of_litdata_compressed": ("litdata", {}),
    "saved_by_datasets": ("arrow", {}),
    "parquet_of_numbers": ("table", _OF_TABLES | {"tokens": "documents"}),
    "folder_of_parquet_of_numbers": ("table", _OF_TABLES),
    "pattern_of_parquet_of_numbers": ("table", _OF_TABLES | {"tokens": "documents"}),
    "parquet_of_numbers_in_partitions": ("table", _OF_TABLES),
    "parquet_of_texts": ("table", _OF_TEXTS),
    "arrow_of_numbers": ("table", _OF_TABLES | {"tokens": "documents"}),
    "feather_of_numbers": ("table", _OF_TABLES),
    "one_matrix": ("table", _OF_TABLES),
    "folder_of_arrays": ("npy", {}),
    "arrays_of_classes": ("npy", {}),
    "one_video": ("videos", {}),
    "folder_of_videos": ("videos", {}),
    "videos_of_classes": ("videos", {}),
    "pattern_of_videos": ("videos", {}),
    "list_of_videos": ("videos", {}),
    "folder_of_typescript": (f"! {_EMPTY}", {}),
    "tar_of_videos": ("tar of clips", {}),
    "lerobot_dataset": ("lerobot", _OF_IDS),
    "one_recording": ("audio", {}),
    "folder_of_sound": ("audio", {}),
    "sound_of_classes": ("audio", {}),
    "pattern_of_sound": ("audio", {}),
    "list_of_sound": ("audio", {}),
    "librispeech": ("audio", {}),
    "common_voice": ("audio", {}),
    "tar_of_sound": ("audio", {}),
    "parquet_of_sound": ("audio", {"tokens": "documents"}),
    "videos_and_sound": (f"! {_TWO.format('videos', 'audio')}", {}),
    "images_and_videos": ("image-folder", {}),
    "images_and_sound": ("image-folder", {}),
    "tokens_of_datatrove": ("tokens", _OF_IDS),
    "folder_of_tokens_of_datatrove": ("tokens", _OF_IDS),
    "tokens_of_megatron": ("tokens", _OF_IDS),
    "index_of_megatron": ("tokens", _OF_IDS),
    "bare_tokens": (f"! {_UNKNOWN}", {}),
    "converted_to_webdataset": ("dataset", {}),
    "converted_to_hdf5": ("dataset", {}),
    "converted_to_parquet": ("dataset", {}),
    "converted_to_tfrecord": ("dataset", {}),
    "converted_with_splits": ("! holds the datasets train, val; open one of them", {}),
    "converted_to_tokens": ("dataset of tokens", {}),
    "table_converted_to_parquet": ("table", _OF_TABLES),
    "table_converted_to_hdf5": ("table", _OF_TABLES),
    "converted_videos": ("dataset of clips", {}),
    "converted_sound": ("audio", {}),
    "unfinished_conversion": ("! unfinished", {}),
    "folder_above_converted_sets": ("! holds the datasets one, two; open one of them", {}),
    "nothing_there": ("! no such file or directory", {}),
    "pattern_that_matches_nothing": ("! no file matches", {}),
    "file_of_unknown_name": (f"! {_UNKNOWN}", {}),
    "folder_of_unknown_files": (f"! {_EMPTY}", {}),
}  # fmt: skip


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every place, made once. Not to be changed."""
    top, made = tmp_path_factory.mktemp("places"), {}
    for name, make in PLACES.items():
        (top / name).mkdir()
        made[name] = make(top / name)
    return made


def answer(place: Path | str, target: str | None = None) -> str:
    """What a place is taken for, as the specification writes it."""
    try:
        found = recognise(parse_place(str(place)), target=target)
    except DatapipeError as exc:
        return f"! {exc}"
    return found.form if found.kind == FORMS[found.form].kind else f"{found.form} of {found.kind}"


def agrees(found: str, expected: str) -> bool:
    return found == expected or (
        expected.startswith("! ") and found.startswith("! ") and re.search(expected[2:], found) is not None
    )


@pytest.mark.promise("form: table", "form: lerobot", "form: tokens")
def test_each_place_has_one_answer(places: dict[str, Path]) -> None:
    assert SPECIFICATION.keys() == PLACES.keys()
    wrong = []
    for name, (expected, by_target) in SPECIFICATION.items():
        for target in (None, *TARGETS):
            wanted = expected if target is None else by_target.get(target, expected)
            found = answer(places[name], target)
            if not agrees(found, wanted):
                wrong.append(f"{name}, {target}: {found} instead of {wanted}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", SPECIFICATION)
@pytest.mark.daily(8)
def test_every_command_gives_the_answer(
    name: str, places: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, (expected, by_target) = places[name], SPECIFICATION[name]
    form = expected.partition(" of ")[0]
    kind = expected.partition(" of ")[2] or (FORMS[form].kind if form in FORMS else "")
    asked: list[str] = []
    for one in registry.KINDS:
        monkeypatch.setattr(registry.part(one, "bench"), "measure", lambda index, args, one=one: asked.append(one) or {})
        monkeypatch.setattr(registry.part(one, "bench"), "as_text", lambda result: "measured")
    with contextlib.suppress(DatapipeError):
        assert type(registry.open_data(str(place))) is _DATA[kind]
    for command in ("inspect", "bench"):
        code, said = run(command, str(place))
        if not kind:
            assert code, said
            assert re.search(expected[2:], said), said
    assert all(one == kind for one in asked)
    for target in TARGETS:
        tokens = ["--tokenizer", str(byte_level(tmp_path / "tokenizer.json"))] if target == "tokens" else []
        wanted = by_target.get(target, expected)
        _, said = run("convert", str(place), str(tmp_path / "out"), "--to", target, "--dry-run", *tokens)
        if wanted.startswith("! "):
            assert re.search(wanted[2:], said), said
        else:
            assert f"--from {wanted.partition(' of ')[0]})" in said, said


# -- one look ------------------------------------------------------------------------------------------


class Scans:
    """How often each directory below a place is read, while one is watched."""

    def __init__(self) -> None:
        self._top = ""
        self._found: Counter[str] = Counter()
        sys.addaudithook(self._take)  # which stays

    def _take(self, event: str, args: tuple[Any, ...]) -> None:
        if self._top and event in ("os.scandir", "os.listdir") and not isinstance(args[0], int):
            path = os.path.realpath(os.fsdecode(args[0] or "."))
            if path.startswith(self._top):
                self._found[path] += 1

    @contextlib.contextmanager
    def counted(self, top: Path) -> Iterator[Counter[str]]:
        self._found.clear()
        self._top = os.path.realpath(top)
        try:
            yield self._found
        finally:
            self._top = ""


@pytest.fixture(scope="module")
def scans() -> Scans:
    return Scans()


def commands(place: str, out: Path) -> Iterator[tuple[str, ...]]:
    yield "inspect", place
    for target in ("webdataset", "parquet"):
        yield "convert", place, str(out), "--to", target, "--dry-run"


@pytest.mark.parametrize("name", SPECIFICATION)
@pytest.mark.daily(12)
def test_a_directory_is_read_once(name: str, places: dict[str, Path], scans: Scans, tmp_path: Path) -> None:
    place = places[name]
    with scans.counted(place if place.is_dir() else place.parent) as found, contextlib.suppress(DatapipeError):
        registry.open_data(str(place))
    assert not [path for path, times in found.items() if times > 1], found
    for kind, data in _DATA.items():
        with scans.counted(place if place.is_dir() else place.parent) as found, contextlib.suppress(DatapipeError):
            data(str(place), *((8,) if kind == "tokens" else ()))
        assert not [path for path, times in found.items() if times > 1], (kind, found)
    for command in commands(str(place), tmp_path / "out"):
        with scans.counted(place if place.is_dir() else place.parent) as found:
            run(*command)
        assert not [path for path, times in found.items() if times > 1], (command, found)


def test_a_table_of_many_directories_is_listed_once(scans: Scans, tmp_path: Path) -> None:
    for number in range(60):
        write_parquet(tmp_path / "in" / f"label={number}" / "x.parquet", numbers_table())
    with scans.counted(tmp_path / "in") as found:
        assert len(registry.open_data(str(tmp_path / "in"))) == 60 * NUM
    assert len(found) == 61
    assert set(found.values()) == {1}


def test_more_files_than_are_kept_are_read_on(scans: Scans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a look has taken of a directory is not lost, and what is beyond the bound is read again."""
    for number in range(300):
        put(tmp_path / "in" / "ab"[number % 2] / f"{number}.jpg", jpeg(0))
    monkeypatch.setattr(look, "MAX_NAMES", 10)
    with scans.counted(tmp_path / "in") as found:
        assert len(registry.open_data(str(tmp_path / "in"))) == 300
    assert set(found.values()) == {1}
    monkeypatch.setattr(directories, "MAX_KEPT", 15)
    (tmp_path / "in" / "a" / "more.jpg").write_bytes(jpeg(0))
    assert len(registry.open_data(str(tmp_path / "in"))) == 301


def test_a_file_that_comes_after_the_look_is_found_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a directory, by which its index is known to be true, is that from before it was looked at."""
    top = classes(tmp_path)
    plain = registry.part("images", "inspection").open_place

    def late(path: str, form: Form) -> Any:
        put(top / "a" / "late.jpg", jpeg(9))
        return plain(path, form)

    monkeypatch.setattr(registry.part("images", "inspection"), "open_place", late)
    first = len(registry.open_data(str(top)))
    monkeypatch.undo()
    assert (first, len(registry.open_data(str(top)))) == (NUM, NUM + 1)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyStore]:
    top = tmp_path_factory.mktemp("sets")
    with moto_store() as found:
        for name in sorted({name.partition("/")[0] for name in IN_STORES} & PLACES.keys()):
            (top / name).mkdir()
            made = PLACES[name](top / name)
            upload(made, name)
        yield found


IN_STORES = {
    "image_folder": "image-folder",
    "folder_of_tars": "tar",
    "folder_of_parquet_of_numbers": "table",
    "videos_of_classes": "videos",
    "converted_to_webdataset": "dataset",
    "folder_of_tars/x-000.tar": "tar",
    "folder_of_tars/x-*.tar": "tar",
    "folder_of_tars/x-{000..001}.tar": "tar",
    "folder_of_parquet_of_numbers/x-0.parquet": "table",
    "videos_of_classes/a/x.mp4": "videos",
    "nothing": "! nothing under this prefix; check the URL",
}


@needs_moto
@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("name", IN_STORES)
def test_a_place_in_a_store_is_the_same_and_listed_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url, expected = f"s3://{BUCKET}/{name}", IN_STORES[name]
    assert agrees(answer(url), expected)
    assert agrees(answer(url, "webdataset"), f"! {_TABLE.format('webdataset')}" if expected == "table" else expected)
    listed: Counter[str] = Counter()
    for function in ("_ask_for_listing", "list_below"):
        plain = getattr(objects, function)

        def counted(location: Location, *args: Any, _plain: Any = plain, _name: str = function) -> Any:
            listed[f"{_name} {location}"] += 1
            return _plain(location, *args)

        monkeypatch.setattr(objects, function, counted)
    with contextlib.suppress(DatapipeError):
        registry.open_data(url)
    assert not [one for one, times in listed.items() if times > 1], listed


def run(*argv: str) -> tuple[int, str]:
    """The status of a command, and what it said."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(list(argv))
    return code, said.getvalue()
