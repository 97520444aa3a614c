"""Folders of images and arrays: where classes come from, and the hazards of a tree."""

from __future__ import annotations

import io
import os
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from reading import converted, field_of, kinds_of, labels_of, skipping, sources_of
from source_trees import image, npy, put
from trees import ROOT, make_tree, run_cli

from converters import ConvertOptions, Encode, Resize, convert
from datapipe.cli.convert_arguments import EPILOG
from datapipe.cli.main import build_parser
from datapipe.codecs.field_values import NO_LABEL
from datapipe.containers.form import ClassFrom, FieldChoice, Form
from datapipe.containers.listing import is_image_name, list_folders, walk
from datapipe.errors import DecodeError, MissingDataError, OptionError
from datapipe.index.listed import ScanNotes, join
from datapipe.index.manifest import read_manifest
from datapipe.opening.recognise import recognise

DEEP = ("b/x/2.jpg", "a/x/1.jpg", "a/y/3.jpg", "a/0.jpg", "c/4.jpg")


def deep(root: Path) -> Path:
    for number, name in enumerate(DEEP):
        put(root / name, image(number))
    return root


def test_a_list_in_a_folder_of_images_is_asked_about(tmp_path: Path) -> None:
    """Hugging Face's folders have one in each of `train` and `test`."""
    put(tmp_path / "in" / "part" / "0.jpg", image(0))
    put(tmp_path / "in" / "part" / "metadata.csv", "file_name,label\n0.jpg,1\n")
    with pytest.raises(OptionError, match=r"holds images and part/metadata.csv: pass .*/part/metadata.csv to take what it lists"):
        recognise(tmp_path / "in")
    assert recognise(tmp_path / "in", Form(class_from="folder")).form == "image-folder"


@pytest.mark.parametrize(
    ("class_from", "classes", "labels"),
    [
        (ClassFrom.FOLDER, ("a", "b", "c"), [0, 0, 0, 1, 2]),
        (ClassFrom.PARENT, ("a", "c", "x", "y"), [0, 2, 3, 2, 1]),
        (ClassFrom.PATH, ("a", "a/x", "a/y", "b/x", "c"), [0, 1, 2, 3, 4]),
        (ClassFrom.NONE, None, [NO_LABEL] * 5),
    ],
)
def test_where_classes_come_from(
    tmp_path: Path, class_from: ClassFrom, classes: tuple[str, ...] | None, labels: list[int]
) -> None:
    out = converted(deep(tmp_path / "in"), tmp_path / "out", class_from=class_from)
    assert sources_of(out) == ["a/0.jpg", "a/x/1.jpg", "a/y/3.jpg", "b/x/2.jpg", "c/4.jpg"]
    assert (read_manifest(out).classes, labels_of(out)) == (classes, labels)
    assert kinds_of(out) == {"image": "image"} | ({} if classes is None else {"label": "label"})


def test_class_maps_of_paths(tmp_path: Path) -> None:
    source = deep(tmp_path / "in")
    table = put(tmp_path / "map", "a 3\na/x 2\na/y 1\nb/x 0\nc 4")
    assert labels_of(converted(source, tmp_path / "out", class_from=ClassFrom.PATH, class_map=table)) == [3, 2, 1, 0, 4]
    with pytest.raises(OptionError, match=r"has no index for class '[xy]'"):
        converted(source, tmp_path / "no", class_from=ClassFrom.PARENT, class_map=table)
    with pytest.raises(OptionError, match="the samples get no labels"):
        converted(source, tmp_path / "no", class_from=ClassFrom.NONE, class_map=table)


def test_files_beside_the_folders(tmp_path: Path) -> None:
    """Files without a class folder: bad if folders give the classes, samples without label otherwise; ImageFolder skips them."""
    source = deep(tmp_path / "in")
    put(source / "top.jpg", image(7))
    assert len(sources_of(converted(source, tmp_path / "folder"))) == 5
    bad = skipping(source, tmp_path / "path", class_from=ClassFrom.PATH)
    assert bad == {"top.jpg": "lies in no folder that names its class; move it into one, or convert with --class-from none"}
    assert sources_of(converted(source, tmp_path / "none", class_from=ClassFrom.NONE))[0] == "top.jpg"


def test_walking_finds_what_the_index_of_a_folder_finds(tmp_path: Path) -> None:
    """The same files, problems and counts, in a tree of hazards."""
    root = deep(tmp_path / "in")
    for name in (".DS_Store", "._1.jpg", "Thumbs.db", "notes.txt"):
        put(root / "a" / name, "x")
    os.mkfifo(root / "a" / "pipe.jpg")
    (root / "b" / "out.jpg").symlink_to("/etc/passwd")
    (root / "b" / "gone.jpg").symlink_to("nowhere")
    (root / "b" / "ring.jpg").symlink_to("ring.jpg")
    (root / "b" / "up").symlink_to(root / "b")
    (root / "c" / "etc").symlink_to("/etc")
    (root / "c" / "again").symlink_to(root / "a")
    (root / "linked").symlink_to("/usr")
    by_class, by_walk = ScanNotes(), ScanNotes()
    expected = [file for name in list_folders(root, otherwise="") for file in walk(root, name, by_class, is_image_name)]
    found = list(walk(root, b"", by_walk, is_image_name))
    facts = [{(join(f.directory, f.name), f.nbytes, f.mtime_ns, f.problem) for f in files} for files in (expected, found)]
    assert facts[0] == facts[1]
    assert len(found) == len(facts[1]) > 10
    assert (by_walk.num_ignored, by_walk.num_junk) == (by_class.num_ignored, by_class.num_junk)
    assert {problem.source for problem in by_walk.problems} == {problem.source for problem in by_class.problems}


def test_train_and_val_are_no_classes(tmp_path: Path) -> None:
    for name in ("train", "val"):
        make_tree(tmp_path / "in" / name, num_classes=1, per_class=1)
    with pytest.raises(OptionError, match="which are separate sets"):
        converted(tmp_path / "in", tmp_path / "out", class_from=ClassFrom.PATH)
    assert len(sources_of(converted(tmp_path / "in", tmp_path / "out", class_from=ClassFrom.NONE))) == 2


@pytest.mark.parametrize("class_from", list(ClassFrom))
def test_links_to_folders_around_them_are_left_out_and_named(tmp_path: Path, class_from: ClassFrom) -> None:
    make_tree(tmp_path / "in", num_classes=2, per_class=2)
    first = min(path for path in (tmp_path / "in").iterdir())
    (first / "up").symlink_to("..")
    options = ConvertOptions(tmp_path / "in", tmp_path / "out", form="image-folder", class_from=class_from, num_workers=1)
    report = convert(options)
    assert report.num_samples == 4
    assert f"1 symbolic link to a folder around it not followed: {first.name}/up" in report.warnings


# -- arrays ---------------------------------------------------------------------------------------


def test_arrays_keep_dtype_and_shape(tmp_path: Path) -> None:
    arrays = [np.zeros((0, 3)), np.float32(2.5), np.arange(6).reshape(2, 3).T, np.array(["a", "é"]), np.array([(1, 2)], "i4,>f8")]
    for number, array in enumerate(arrays):
        put(tmp_path / "in" / f"{number}.NPY", npy(array))
    out = converted(tmp_path / "in", tmp_path / "out", class_from=ClassFrom.NONE)
    assert kinds_of(out) == {"array": "array"}
    for expected, data in zip(arrays, field_of(out, "array"), strict=True):
        found = np.load(io.BytesIO(data))
        assert (found.dtype, found.shape) == (np.asarray(expected).dtype, np.asarray(expected).shape)
        assert np.array_equal(found, expected)
    assert read_manifest(out).image_size is None


def test_bad_arrays(tmp_path: Path) -> None:
    root = tmp_path / "in" / "k"
    good = npy(np.arange(100))
    objects = io.BytesIO()
    np.save(objects, np.array([print], dtype=object), allow_pickle=True)
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 1000000), }"
    files = {
        "good.npy": good, "cut.npy": good[:-1], "empty.npy": b"", "text.npy": b"hello", "objects.npy": objects.getvalue(),
        "bomb.npy": b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header, "version.npy": good[:6] + b"\7\0" + good[8:],
        "garbled.npy": good[:10] + b"{]" + good[12:],
    }  # fmt: skip
    for name, data in files.items():
        put(root / name, data)
    bad = skipping(tmp_path / "in", tmp_path / "out")
    assert sources_of(tmp_path / "out") == ["k/good.npy"]
    words = {"cut": "cut off", "empty": "empty file", "text": "not a .npy file", "objects": "never loaded", "bomb": "cut off"}
    words |= {"version": "version 7.0", "garbled": "does not parse"}
    assert len(bad) == len(words)
    for name, word in words.items():
        assert word in bad[f"k/{name}.npy"]


# -- options that do not fit ----------------------------------------------------------------------


def test_options_that_do_not_fit(tmp_path: Path) -> None:
    put(tmp_path / "in" / "k" / "a.npy", npy([1]))
    for options in ({"resize": Resize.parse("shorter:8")}, {"encode": Encode.parse("png")}):
        with pytest.raises(OptionError, match=r"(--resize shorter:8|--encode png): the samples of .* have no images"):
            converted(tmp_path / "in", tmp_path / "out", **options)
    with pytest.raises(OptionError, match="--field a=int: has no effect with --from npy"):
        converted(tmp_path / "in", tmp_path / "out", fields=(FieldChoice("a", "int"),))
    assert not (tmp_path / "out").exists()
    with pytest.raises(MissingDataError, match=r"no class folders.*pass --class-from none"):
        converted(tmp_path / "in" / "k", tmp_path / "out", form="image-folder")
    with pytest.raises(OptionError, match="--from 'x' is not known; choose one of: auto, image-folder"):
        ConvertOptions(tmp_path, tmp_path / "out", form="x")


# -- what a source is -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a.jpg", "b.jpg"], "images in no class folders: pass --class-from none"),
        (
            ["train/a.jpg", "train/metadata.csv"],
            r"holds images and train/metadata\.csv: pass .*train/metadata\.csv to take what",
        ),
        (["a.jpg", "metadata.csv"], r"images and metadata\.csv: pass .*metadata\.csv to take what it lists"),
        (["k/a.jpg", "labels.csv"], r"holds images and labels\.csv: pass .* or say --from image-folder"),
        (["k/a.jpg", "k/a.txt"], r"may be several things, say which: --from image-folder .* or --from pairs .*a\.txt"),
        (["k/a.jpg", "x.tar"], r"--from image-folder .*; or --from tar \(it holds \.tar files\)"),
        (["notes.pdf"], r"no images, videos, sound, \.npy files or shards in it"),
        (["instances.json"], r"a folder with instances\.json: pass .*instances\.json itself, and --root"),
        (["zarr.json", "c/0/0"], r"a Zarr array, which is not read: cut the parts that are samples into \.npy"),
        (["manifest.jsonl"], r"a folder with manifest\.jsonl"),
        (["x.parquet", "y.h5"], r"--from hdf5 \(it holds \.h5 files\); or --from parquet|--from parquet .*; or --from hdf5"),
        (["data/train-00000-of-00001.parquet"], r"its folder .*data holds shards: pass that folder"),
    ],
)
def test_what_cannot_be_told_is_refused_with_the_remedy(tmp_path: Path, names: list[str], said: str) -> None:
    for name in names:
        put(tmp_path / "in" / name, image(0) if name.endswith(".jpg") else "x")
    with pytest.raises(OptionError, match=said):
        converted(tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [("x.json", "JSON, but not COCO's"), ("x.pdf", "not recognised by its name"), ("x.csv.gz", "not recognised")],
)
def test_files_that_are_not_known(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        converted(put(tmp_path / name, "{}"), tmp_path / "out")


def test_the_command_says_what_it_took_the_source_for(tmp_path: Path) -> None:
    source = deep(tmp_path / "in")
    taken = f"{source}: recognised as an image folder (images in folders; --from image-folder)"
    dry = run_cli("convert", source, tmp_path / "out", "--to", "webdataset", "--dry-run")
    assert taken in dry.stderr
    assert "fields: image, label\n" in dry.stdout
    done = run_cli("convert", source, tmp_path / "out", "--to", "webdataset", "--class-from", "none", "--workers", "1")
    assert taken in done.stderr
    assert f"{tmp_path / 'out'}: 5 samples in 1 shard" in done.stdout
    told = run_cli("convert", source, tmp_path / "no", "--to", "hdf5", "--from", "image-folder", "--dry-run")
    assert "recognised as" not in told.stderr
    usage = run_cli("convert", source, tmp_path / "no", "--to", "hdf5", "--field", "a=b")
    assert (usage.returncode, "is not NAME=KIND" in usage.stderr) == (2, True)


def test_a_dry_run_names_samples_that_cannot_be_read(tmp_path: Path) -> None:
    root = tmp_path / "in"
    put(root / "a.jpg", image(0))
    source = put(root / "list.csv", "image\na.jpg\ngone.jpg\n")
    dry = run_cli("convert", source, tmp_path / "out", "--to", "hdf5", "--dry-run")
    assert "warning: 1 sample cannot be read: gone.jpg: line 3: 'image' is 'gone.jpg': no such file" in dry.stderr
    assert dry.returncode == 0


def test_names_that_are_not_utf8_in_a_folder_without_classes(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path) + b"/in/caf\xff"
    os.makedirs(root)
    with open(root + b"/\xfe\n.jpg", "wb") as file:
        file.write(image(0))
    out = converted(tmp_path / "in", tmp_path / "out", class_from=ClassFrom.PARENT)
    assert [os.fsencode(name) for name in sources_of(out)] == [b"caf\xff/\xfe\n.jpg"]
    assert read_manifest(out).classes == (os.fsdecode(b"caf\xff"),)


def test_files_that_are_too_large_are_not_read(tmp_path: Path) -> None:
    source = deep(tmp_path / "in")
    with open(source / "a" / "huge.jpg", "wb") as file:
        file.truncate((1 << 30) + 1)  # no blocks on disk
    assert skipping(source, tmp_path / "out") == {
        "a/huge.jpg": f"{(1 << 30) + 1} bytes exceed the limit of {1 << 30} for one sample"
    }


def test_commands_of_the_documentation_parse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    parser = build_parser()
    lines = re.findall(r"^ *(?:datapipe )(convert [^#\n]+)", (ROOT / "docs" / "convert.md").read_text() + EPILOG, re.MULTILINE)
    assert len(lines) > 15
    forms = set()
    for line in lines:
        args = parser.parse_args(shlex.split(line))
        forms.add(args.form)
        assert args.destination
    assert {"auto", "pairs"} <= forms


def test_bad_files_stop_a_run_before_it_writes(tmp_path: Path) -> None:
    source = deep(tmp_path / "in")
    os.mkfifo(source / "a" / "pipe.jpg")
    with pytest.raises(
        DecodeError, match=r"1 of 6 samples cannot be read: a/pipe\.jpg: bad sample: not a regular file but a named pipe"
    ):
        convert(ConvertOptions(source, tmp_path / "out", num_workers=1))
    assert not (tmp_path / "out").exists()
