"""What could only be converted is loaded where it is: archives, lists, pairs, COCO's annotations, databases, arrays."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from fixtures import CLASSES, encode, jpeg, listing, make_folder, npy

import datapipe as dp
from datapipe import transforms as T
from datapipe.codecs.stored import absent, deflated
from datapipe.containers import foreign
from datapipe.errors import DecodeError, FormatError, MissingDataError, OptionError
from datapipe.fetch.local import LocalFiles
from datapipe.index.manifest import read_manifest, write_manifest
from datapipe.index.sample_index import SampleIndex
from datapipe.index.sidecar import SIDECAR_SUFFIX, FieldExtent, SidecarRows, write_sidecar
from datapipe.opening.samples import open_index

NUM = 6


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "own", num=NUM)


def zipped(folder: Path, path: Path, method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for file in listing(folder):
            archive.write(file, file.relative_to(folder))
    return path


def listed(folder: Path, path: Path) -> Path:
    lines = [f"{file.relative_to(folder.parent)},{file.parent.name}" for file in listing(folder)]
    path.write_text("\n".join(["path,label", *lines]))
    return path


def paired(folder: Path) -> Path:
    for number in range(NUM):
        for name, data in (
            (f"imgs/{number}.jpg", jpeg(number)),
            (f"masks/{number}.npy", npy(np.full((40, 48), number, np.uint8))),
        ):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
    return folder


MAKERS: dict[str, Callable[[Path, Path], Path]] = {
    "zip": lambda folder, root: zipped(folder, root / "x.zip"),
    "deflated zip": lambda folder, root: zipped(folder, root / "x.zip", zipfile.ZIP_DEFLATED),
    "list": lambda folder, root: listed(folder, root / "list.csv"),
    "folder": lambda folder, root: folder,
}


def batches(data: Any, **options: Any) -> list[Any]:
    return list(dp.DataLoader(data, 4, **{"shuffle": True, "seed": 1, "transform": [T.RandomResizedCrop(16)], **options}))


@pytest.mark.parametrize("num_workers", [0, 3])
@pytest.mark.parametrize("name", MAKERS)
def test_the_same_batches_as_of_the_folder(own: Path, tmp_path: Path, name: str, num_workers: int) -> None:
    path = MAKERS[name](own, tmp_path)
    found = batches(path, num_workers=num_workers)
    for one, other in zip(found, batches(own), strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])
    assert dp.Images(path).classes == list(CLASSES)


def test_all_fields_come_in_batches(tmp_path: Path) -> None:
    """The ids are those of a conversion, and a loader and a dataset pickle."""
    loader = dp.DataLoader(paired(tmp_path / "pairs"), 3)
    image, mask = pickle.loads(pickle.dumps(next(iter(loader))))
    assert image.shape == (3, 3, 40, 48)
    assert [int(one.unique()) for one in mask] == [0, 1, 2]
    again = pickle.loads(pickle.dumps(dp.Images(tmp_path / "pairs", fields=["mask"])))
    assert int(again[5][0].unique()) == 5


def test_values_of_a_list_come_in_batches(tmp_path: Path) -> None:
    rows = [{"file": f"{number}.jpg", "label": number % 2, "caption": f"n° {number}", "tags": [number]} for number in range(NUM)]
    for number in range(NUM):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg(number))
    (tmp_path / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))
    image, label, caption, tags = next(iter(dp.DataLoader(tmp_path / "list.jsonl", NUM)))
    assert image.shape == (NUM, 3, 40, 48)
    assert caption == [row["caption"] for row in rows]
    assert tags == [row["tags"] for row in rows]
    assert label.tolist() == [row["label"] for row in rows]


def test_the_index_is_made_once(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [make(own, tmp_path / name) for name, make in MAKERS.items() if (tmp_path / name).mkdir() is None and name != "list"]
    made = [open_index(path).sidecar_directory for path in paths]
    assert len(set(made)) == len(paths)
    monkeypatch.setattr(foreign, "_make_index", lambda *_: pytest.fail("indexed again"))
    assert [open_index(path).sidecar_directory for path in paths] == made


def replace_zip(root: Path) -> Path:
    path = zipped(make_folder(root / "a", num=NUM), root / "x.zip")
    open_index(path)
    return zipped(make_folder(root / "b", num=NUM + 1), path)


def add_a_pair(root: Path) -> Path:
    path = paired(root / "pairs")
    open_index(path)
    shutil.copy(path / "imgs" / "0.jpg", path / "imgs" / "9.jpg")
    shutil.copy(path / "masks" / "0.npy", path / "masks" / "9.npy")
    return path


def add_a_line(root: Path) -> Path:
    folder = make_folder(root / "own", num=NUM)
    path = listed(folder, root / "list.csv")
    open_index(path)
    with path.open("a") as file:
        file.write("\nown/ant/0000.jpg,ant")
    return path


def bring_a_missing_file(root: Path) -> Path:
    folder = make_folder(root / "own", num=NUM)
    path = listed(folder, root / "list.csv")
    with path.open("a") as file:
        file.write("\nown/ant/new.jpg,ant")
    index = open_index(path)
    with pytest.raises(DecodeError, match=r"line 8: 'path' is 'own/ant/new\.jpg': no such file"):
        LocalFiles().read(index.look_up(np.array([NUM]), "image").extents, 0)
    (folder / "ant" / "new.jpg").write_bytes(jpeg(1))
    return path


def turn_into_pairs(root: Path) -> Path:
    """A form that was given is not the one that a look at the place shows, nor does a look outlast what it saw."""
    path = paired(root / "pairs")
    assert dp.Images(path, form="image-folder").classes == ["imgs", "masks"]
    assert open_index(path).manifest.container == "pairs"
    (path / "masks").rename(root / "masks")
    (path / "insects").mkdir()
    shutil.copy(path / "imgs" / "0.jpg", path / "insects" / "9.jpg")
    assert open_index(path).manifest.classes == ("imgs", "insects")
    return path


def add_a_pair_below_a_folder_without_files(root: Path) -> Path:
    path = paired(root / "pairs")
    for name in ("imgs", "masks"):
        (path / name / "a" / "c").mkdir(parents=True)
    open_index(path)
    shutil.copy(path / "imgs" / "0.jpg", path / "imgs" / "a" / "c" / "9.jpg")
    shutil.copy(path / "masks" / "0.npy", path / "masks" / "a" / "c" / "9.npy")
    return path


def bring_the_first_file_of_a_folder(root: Path) -> Path:
    make_folder(root / "own", num=NUM)
    path = listed(root / "own", root / "list.csv")
    with path.open("a") as file:
        file.write("\nown/zoo/deep/new.jpg,ant")
    (root / "own" / "zoo").mkdir()
    assert len(open_index(path)) == NUM + 1
    (root / "own" / "zoo" / "deep").mkdir()
    (root / "own" / "zoo" / "deep" / "new.jpg").write_bytes(jpeg(1))
    return path


def fill_a_class_tar(root: Path) -> tuple[Path, dp.Form]:
    """One that held nothing that was listed."""
    (root / "tars").mkdir()
    for name in ("ant", "bee"):
        shutil.make_archive(str(root / "tars" / name), "tar", make_folder(root / name, num=3) / "ant")
    (root / "empty").mkdir()
    (root / "empty" / "notes.txt").write_text("x")
    shutil.make_archive(str(root / "tars" / "zebra"), "tar", root / "empty")
    size = len(open_index(root / "tars", dp.Form("archive")))
    for number in range(NUM + 1 - size):
        (root / "empty" / f"{number}.jpg").write_bytes(jpeg(number))
    shutil.make_archive(str(root / "tars" / "zebra"), "tar", root / "empty")
    return root / "tars", dp.Form("archive")


def fill_a_folder_of_arrays(root: Path) -> Path:
    for number in range(NUM):
        (root / "npy" / "a").mkdir(parents=True, exist_ok=True)
        np.save(root / "npy" / "a" / f"{number}.npy", np.arange(3))
    (root / "npy" / "b").mkdir()
    open_index(root / "npy", dp.Form("npy"))
    np.save(root / "npy" / "b" / "0.npy", np.arange(3))
    return root / "npy"


@pytest.mark.promise("form: npy")
def test_arrays_of_a_folder_come_in_batches(tmp_path: Path) -> None:
    path = fill_a_folder_of_arrays(tmp_path)
    (labels, arrays), *others = dp.DataLoader(dp.Images(path, form=dp.Form("npy")), 10)
    assert not others
    assert {tuple(array) for array in arrays.tolist()} == {(0, 1, 2)}
    assert labels.tolist() == sorted(labels.tolist())


@pytest.mark.parametrize(
    "change",
    [
        add_a_pair_below_a_folder_without_files,
        bring_the_first_file_of_a_folder,
        fill_a_class_tar,
        lambda root: (fill_a_folder_of_arrays(root), dp.Form("npy")),
    ],
)
def test_changes_where_nothing_was_listed_are_seen(tmp_path: Path, change: Callable[[Path], Any]) -> None:
    changed = change(tmp_path)
    path, form = changed if isinstance(changed, tuple) else (changed, None)
    assert len(open_index(path, form)) == NUM + 1
    field = "array" if form is not None and form.name == "npy" else "image"
    assert LocalFiles().read(open_index(path, form).look_up(np.array([NUM]), field).extents, 0)


def test_what_lies_beside_an_archive_changes_nothing(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, table = zipped(own, tmp_path / "x.zip"), listed(own, tmp_path / "list.csv")
    open_index(path), open_index(table)
    monkeypatch.setattr(foreign, "_make_index", lambda *_: pytest.fail("indexed again"))
    (tmp_path / "checkpoint.pt").write_text("x")
    open_index(path), open_index(table)


def test_one_list_in_two_folders_names_files_of_both(tmp_path: Path) -> None:
    """As in Hugging Face's cache, whose snapshots link to one blob."""
    for number, name in enumerate("ab"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.jpg").write_bytes(jpeg(number))
        (tmp_path / name / "metadata.csv").symlink_to(tmp_path / "blob")
    (tmp_path / "blob").write_text("file_name,label\n0.jpg,x\n")
    for number, name in enumerate("ab"):
        index = open_index(tmp_path / name / "metadata.csv")
        assert LocalFiles().read(index.look_up(np.array([0]), "image").extents, 0) == jpeg(number)


def test_a_relative_root_is_that_of_the_opening(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lists").mkdir()
    path = listed(own, tmp_path / "lists" / "list.csv")
    monkeypatch.chdir(tmp_path)
    data = dp.Images("lists/list.csv", form=dp.Form("manifest", root="."))
    monkeypatch.chdir("/")
    assert data[0][0].shape[0] == 3
    assert dp.Images(path, form=dp.Form("manifest", root=tmp_path)).index.sidecar_directory == data.index.sidecar_directory


@pytest.mark.parametrize("name", ["image-folder", "pairs"])
def test_a_root_that_has_no_effect_is_refused(name: str, own: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=rf"root={tmp_path}: has no effect with form='{name}' unless a list names the files"):
        dp.Images(own, form=dp.Form(name, root=tmp_path))


def test_kept_pixels_are_those_of_the_archive_that_is_there(tmp_path: Path) -> None:
    """Members of tars have no checksums: a tar of the same names and sizes is another one all the same."""
    seen = []
    for value in (10, 200):
        for name in ("a", "b"):
            (tmp_path / "in" / name).mkdir(parents=True, exist_ok=True)
            (tmp_path / "in" / name / "0.bmp").write_bytes(encode(np.full((8, 8, 3), value, np.uint8), "BMP"))
        path = shutil.make_archive(str(tmp_path / "x"), "tar", tmp_path / "in")
        os.utime(path, ns=(0, value))
        seen.append(next(iter(dp.DataLoader(dp.Images(path, cache=tmp_path / "cache"), 2)))[0].unique().tolist())
    assert seen == [[10], [200]]


@pytest.mark.parametrize("change", [replace_zip, add_a_pair, add_a_line, bring_a_missing_file, turn_into_pairs])
def test_changes_are_seen(tmp_path: Path, change: Callable[[Path], Path]) -> None:
    index = open_index(change(tmp_path))
    assert len(index) == NUM + 1
    assert LocalFiles().read(index.look_up(np.array([NUM]), "image").extents, 0)


def test_folders_of_images_are_classes(own: Path) -> None:
    """Though a class is called photos, and a few images and notes lie beside."""
    (own / "ant").rename(own / "photos")
    (own / "bee" / "notes.json").write_text("{}")
    shutil.copy(next((own / "photos").iterdir()), own / "top.jpg")
    assert dp.Images(own).classes == ["bee", "cat", "photos"]


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ("metadata.csv", r"holds images and metadata.csv: pass .*metadata.csv to take what it lists, or say form='image-folder'"),
        ("bee/0001.txt", r"may be several things, say which: form='image-folder' .*; or form='pairs' \(.*0001.txt\)"),
    ],
)
def test_a_folder_that_may_be_two_things_is_asked_about(own: Path, beside: str, said: str) -> None:
    (own / beside).write_text("file_name,text\nant/0000.jpg,x\n")
    with pytest.raises(OptionError, match=said):
        dp.Images(own)
    assert dp.Images(own, form="image-folder").classes == ["ant", "bee", "cat"]


def test_a_class_called_labels_is_a_class(own: Path) -> None:
    """Unless its files have partners in the folder of the images."""
    (own / "ant").rename(own / "photos")
    (own / "bee").rename(own / "labels")
    assert dp.Images(own).classes == ["cat", "labels", "photos"]
    for path in sorted((own / "photos").iterdir()):
        shutil.copy(path, own / "labels" / path.name)
    with pytest.raises(FormatError, match=r"has no cat .*recognised as files paired by name: if it is not, say form="):
        dp.Images(own)
    assert dp.Images(own, form="image-folder").classes == ["cat", "labels", "photos"]
    shutil.rmtree(own / "cat")
    assert dp.Images(own).index.manifest.container == "pairs"


# -- bad samples ----------------------------------------------------------------------------------


@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
def test_what_the_listing_shows_to_be_bad_is_a_bad_sample(own: Path, tmp_path: Path, on_error: str) -> None:
    path = listed(own, tmp_path / "list.csv")
    path.write_text(path.read_text().replace("own/ant/0000.jpg,", "own/ant/gone.jpg,"))
    loader = dp.DataLoader(path, NUM, on_error=on_error, transform=[T.Resize((8, 8))])
    if on_error == "raise":
        with pytest.raises(DecodeError, match=r"list\.csv: sample 0 \(own/ant/gone\.jpg\): line 2: .*: no such file"):
            list(loader)
    else:
        assert len(next(iter(loader))[0]) == NUM - (on_error == "skip")
        assert [(bad.id, "no such file" in bad.reason) for bad in loader.bad_samples] == [(0, True)]


def test_a_field_that_some_lack_is_bad_where_it_is_asked_for(tmp_path: Path) -> None:
    path = paired(tmp_path / "pairs")
    (path / "masks" / "2.npy").unlink()
    assert len(next(iter(dp.DataLoader(dp.Images(path, fields=["image"]), NUM)))[0]) == NUM
    with pytest.raises(DecodeError, match=r"2\.jpg: sample 2: has no mask \(has: image\), which others have"):
        list(dp.DataLoader(path, NUM))


def test_a_sample_without_a_label_is_bad_where_labels_alone_are_read(own: Path, tmp_path: Path) -> None:
    path = listed(own, tmp_path / "list.csv")
    path.write_text(path.read_text().replace("0002.jpg,ant", "0002.jpg,"))
    data = dp.Images(path, fields=["label"])
    with pytest.raises(DecodeError, match="line 3: 'label' is empty: no label"):
        list(dp.DataLoader(data, NUM))
    assert next(iter(dp.DataLoader(data, NUM, on_error="skip")))[0].min() == 0


def test_a_place_of_bad_samples_alone_is_refused(own: Path, tmp_path: Path) -> None:
    path = zipped(own, tmp_path / "x.zip")
    with zipfile.ZipFile(tmp_path / "flat.zip", "w") as archive:
        for file in listing(own):
            archive.write(file, file.name)
    with pytest.raises(
        FormatError, match=r"flat\.zip: none of its 6 samples can be read; 0000\.jpg .lies in no folder .*class_from='none'"
    ):
        dp.Images(tmp_path / "flat.zip")
    assert len(dp.Images(tmp_path / "flat.zip", form=dp.Form(class_from="none"))) == NUM
    assert dp.Images(path).root == str(path)


def test_values_that_are_read_outlast_another_listing(tmp_path: Path) -> None:
    """A job goes on although another one opened the list after it was changed."""
    (tmp_path / "0.jpg").write_bytes(jpeg(0))
    (tmp_path / "list.csv").write_text("file,caption\n0.jpg,before\n")
    before = dp.Images(tmp_path / "list.csv", fields=["caption"])
    assert before[0] == ("before",)
    (tmp_path / "list.csv").write_text("file,caption\n0.jpg,after now\n")
    assert dp.Images(tmp_path / "list.csv", fields=["caption"])[0] == ("after now",)
    assert before[0] == ("before",)


def test_a_reason_may_name_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    path = paired(tmp_path / "pairs")
    os.symlink("gone", os.path.join(os.fsencode(path), b"masks", b"\xff.png"))
    with pytest.raises(DecodeError, match="dangling symbolic link"):
        LocalFiles().read(open_index(path).look_up(np.array([NUM]), "mask").extents, 0)


def test_a_damaged_member_is_named(own: Path, tmp_path: Path) -> None:
    path = zipped(own, tmp_path / "x.zip")
    data = bytearray(path.read_bytes())
    place = data.index(listing(own)[2].read_bytes()) + 300
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        DecodeError,
        match=r"x\.zip: sample 2 \(ant/0004\.jpg\): its bytes have the checksum [0-9a-f]{8}, expected [0-9a-f]{8}: damaged",
    ):
        batches(path, shuffle=False)


# -- refusals -------------------------------------------------------------------------------------


def test_a_compressed_tar_names_the_conversion(tmp_path: Path) -> None:
    shutil.make_archive(str(tmp_path / "my photos"), "gztar", make_folder(tmp_path / "own", num=3))
    with pytest.raises(FormatError, match=r"my photos\.tar\.gz: .* one by one; unpack it, or convert"):
        open_index(tmp_path / "my photos.tar.gz")


@pytest.mark.parametrize(("make", "said"), [
    (lambda own, root: (own, dp.Form("tar", fields={"jpg": "none"})), "have no effect on WebDataset tars"),
    (lambda own, root: (own, dp.Form("tar", class_map="gone.json")), "have no effect on WebDataset tars"),
    (lambda own, root: (own, dp.Form("parquet")), "no regular files of the form parquet"),
    (lambda own, root: (own / "*.tar", dp.Form("parquet")), "holds WebDataset tars, not the form parquet"),
    (lambda own, root: (own / "0.tar", dp.Form(class_from="none")), "have no effect"),
    (lambda own, root: (shutil.copy(own / "0.tar", root / "X.TAR"), None), "with names in lower case"),
    (lambda own, root: (shutil.copy(own / "0.tar", root / "x.tar.gz"), None), "a compressed tar, whose members"),
])  # fmt: skip
def test_a_form_fits_the_shards_or_is_refused(tmp_path: Path, make: Callable[[Path, Path], Any], said: str) -> None:
    (tmp_path / "in").mkdir()
    for number in range(2):
        (tmp_path / "in" / f"{number}.jpg").write_bytes(jpeg(number))
        (tmp_path / "in" / f"{number}.cls").write_text("1")
    (tmp_path / "tars").mkdir()
    shutil.make_archive(str(tmp_path / "tars" / "0"), "tar", tmp_path / "in")
    path, form = make(tmp_path / "tars", tmp_path)
    with pytest.raises((FormatError, OptionError), match=said):
        dp.Images(path, form=form)
    assert len(dp.Images(tmp_path / "tars", form="tar")) == 2


def test_archives_that_are_no_archives(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"PK" + bytes(100))
    with pytest.raises(FormatError, match=r"x\.zip: not a zip, or cut off"):
        open_index(tmp_path / "x.zip")


@pytest.mark.parametrize(("make", "said"), [
    (lambda: dp.Form("photo"), "form 'photo' is not known; choose one of: auto, image-folder"),
    (lambda: dp.Form("manifest", fields={"a": "number"}), "'a' is 'number'; a kind is one of: image, mask"),
    (lambda: dp.Form("manifest", fields=["a"]), "pass kinds by name"),  # type: ignore[arg-type]
    (lambda: dp.Form("manifest", fields=("a",)), "pass kinds by name"),  # type: ignore[arg-type]
    (lambda: dp.Form(class_from="top"), "class_from is 'top'; pass one of: folder, parent, path, none"),
    (lambda: dp.Form(root=3), "root is 3"),  # type: ignore[arg-type]
    (lambda: dp.Images("x", form=3), r"form is 3; pass a name, such as 'pairs', or a datapipe\.Form"),  # type: ignore[arg-type]
    (lambda: dp.Images("s3://bucket/x", form="coco"), "coco is not read from stores by loaders"),
    (lambda: dp.Images(torch.utils.data.TensorDataset(), form="coco"), "says how a path is read"),
])  # fmt: skip
def test_wrong_forms_are_refused(make: Callable[[], object], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        make()


def test_errors_name_arguments_of_python(own: Path, tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    path = listed(own, tmp_path / "lists" / "list.csv")
    with pytest.raises(MissingDataError, match=r"pass root=.*datapipe\.Form"):
        dp.Images(path)
    assert len(dp.Images(path, form=dp.Form("manifest", root=tmp_path))) == NUM
    with pytest.raises(OptionError, match=r"pass class_from='none'"):
        dp.Images(own / "ant")
    assert len(dp.Images(own / "ant", form=dp.Form(class_from="none"))) == 3
    with pytest.raises(FormatError, match="form hdf5"):
        dp.Images(own, form="hdf5")
    with pytest.raises(MissingDataError) as caught:
        dp.Images(tmp_path / "exp--root 1")
    assert caught.value.__cause__ is not caught.value
    assert "exp--root 1" in str(caught.value)
    (own / "x").mkdir()
    shutil.copytree(own / "ant", tmp_path / "my --from pairs" / "train" / "ant")
    shutil.copytree(own / "ant", tmp_path / "my --from pairs" / "val" / "ant")
    with pytest.raises(OptionError, match="separate sets"):
        dp.Images(tmp_path / "my --from pairs")
    with pytest.raises(OptionError, match="is Images already"):
        dp.Images(dp.Images(own), form="pairs")


def test_a_class_map_renumbers_and_counts(own: Path, tmp_path: Path) -> None:
    mapped = tmp_path / "map.json"
    labels = []
    for numbers in ((2, 1, 0), (1, 2, 0)):
        mapped.write_text(json.dumps(dict(zip(CLASSES, numbers, strict=True))))
        os.utime(mapped, ns=(0, numbers[0]))
        labels.append(dp.Images(own, form=dp.Form("image-folder", class_map=mapped)).targets)
    assert labels == [[2, 2, 2, 1, 1, 0], [1, 1, 1, 2, 2, 0]]


# -- hostile indexes ------------------------------------------------------------------------------

SECRET = b"what nobody was to see"


def spoiled(index: SampleIndex, home: Path, extent: FieldExtent, **about: Any) -> SampleIndex:
    """An index that says so of its first sample."""
    home.mkdir()
    rows = SidecarRows(("image",), **about)
    rows.append(id=0, key=b"x", source=b"x", label=0, size=(0, 0), extents={"image": extent})
    (shard, *_) = index.manifest.shards
    digest = write_sidecar(home / f"{shard.name}{SIDECAR_SUFFIX}", rows, shard.name)
    shard = dataclasses.replace(shard, num_samples=1, num_slots=1, index_sha256=digest)
    manifest = dataclasses.replace(index.manifest, shards=(shard,))
    return SampleIndex(manifest, data_directory=index.data_directory, sidecar_directory=home)


@pytest.mark.parametrize("path", [b"/SECRET", b"../secret", b"a/../../secret"])
def test_paths_lead_nowhere_else(own: Path, tmp_path: Path, path: bytes) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    named = path.replace(b"/SECRET", os.fsencode(tmp_path / "secret"))
    index = spoiled(open_index(own), tmp_path / "home", FieldExtent("", 0, 5, None, path=named), ranges={"image"})
    with pytest.raises(FormatError, match=r"names the file .* outside of"):
        index.look_up(np.array([0]), "image")
    values = spoiled(open_index(own), tmp_path / "other", FieldExtent("", 0, 5, None), values_file={"image": os.fsdecode(named)})
    with pytest.raises(FormatError, match=r"names the file .* outside of"):
        values.look_up(np.array([0]), "image")


@pytest.mark.parametrize(
    "codec",
    [
        "deflate:1",
        "deflate:-1:00000000",
        "deflate:9:00000000+deflate:5:00000000",
        "prefix:zz",
        "unzip:1",
        "crc32:",
        "+",
        "prefix",
    ],
)
def test_codecs_that_are_none_are_bad_samples(own: Path, tmp_path: Path, codec: str) -> None:
    extent = FieldExtent("", 0, 5, None, path=b"ant/0000.jpg", codec=codec)
    index = spoiled(open_index(own), tmp_path / "home", extent, ranges={"image"})
    with pytest.raises(DecodeError, match="its index says that it is stored as"):
        LocalFiles().read(index.look_up(np.array([0]), "image").extents, 0)


def test_a_bomb_is_not_unpacked(own: Path, tmp_path: Path) -> None:
    extent = FieldExtent("", 0, 5, None, path=b"ant/0000.jpg", codec=deflated(1 << 40, 0))
    index = spoiled(open_index(own), tmp_path / "home", extent, ranges={"image"})
    with pytest.raises(DecodeError, match="exceed the limit"):
        LocalFiles().read(index.look_up(np.array([0]), "image").extents, 0)


@pytest.mark.parametrize("what", ["folder", "file"])
def test_links_made_later_lead_nowhere_else(own: Path, tmp_path: Path, what: str) -> None:
    """Whoever may change the data could else lead the loader to any file."""
    index = open_index(listed(own, tmp_path / "list.csv"))
    inside = own / "ant" if what == "folder" else own / "ant" / "0000.jpg"
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    os.rename(inside, outside)
    inside.symlink_to(outside)
    extents = index.look_up(np.arange(NUM), "image").extents
    assert LocalFiles().read(extents, NUM - 1)
    with pytest.raises(DecodeError, match="a link leads out of"):
        LocalFiles().read(extents, 0)


def test_a_range_is_not_read_that_is_larger_than_a_sample(own: Path, tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 34)
    shutil.move(tmp_path / "sparse", own / "ant" / "sparse")
    extent = FieldExtent("", 0, 1 << 33, None, path=b"ant/sparse", codec=deflated(5, 0))
    index = spoiled(open_index(own), tmp_path / "home", extent, ranges={"image"})
    with pytest.raises(DecodeError, match="exceed the limit"):
        LocalFiles().read(index.look_up(np.array([0]), "image").extents, 0)


def test_an_index_beside_shards_lists_no_files(own: Path, tmp_path: Path) -> None:
    """Whoever wrote it could lead the loader through any link to any file."""
    root = tmp_path / "tars"
    root.mkdir()
    with tarfile.open(root / "x.tar", "w") as tar:
        tar.add(listing(own)[0], "0.jpg")
    home = open_index(root / "x.tar").sidecar_directory
    manifest = read_manifest(home)
    write_manifest(home, dataclasses.replace(manifest, is_listing=True))
    with pytest.raises(FormatError, match="an index of other data"):
        open_index(root / "x.tar")


def test_reasons_may_be_any_text(own: Path, tmp_path: Path) -> None:
    reason = "line 3: 'a+b:c' is é, +crc32:00000000"
    index = spoiled(open_index(own), tmp_path / "home", FieldExtent("", 0, 0, None, codec=absent(reason)))
    with pytest.raises(DecodeError) as caught:
        LocalFiles().read(index.look_up(np.array([0]), "image").extents, 0)
    assert str(caught.value) == reason


def test_further_columns_are_those_that_an_index_has(own: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    index = spoiled(open_index(own), home, FieldExtent("", 0, 5, None, path=b"ant/0000.jpg"))
    path = next(home.glob(f"*{SIDECAR_SUFFIX}"))
    with pa.ipc.open_file(path) as reader:
        table = reader.read_all()
    metadata: Any = dict(table.schema.metadata) | {b"datapipe.further.image": b"path,place"}
    with pa.ipc.new_file(path, table.schema.with_metadata(metadata)) as writer:
        writer.write_table(table.replace_schema_metadata(metadata))
    shard = dataclasses.replace(index.manifest.shards[0], index_sha256="")
    manifest = dataclasses.replace(index.manifest, shards=(shard,))
    again = SampleIndex(manifest, data_directory=own, sidecar_directory=home)
    with pytest.raises(FormatError, match="has columns that no index has"):
        again.look_up(np.array([0]), "image")
