"""Conversions of what lies in a store: the shards of a local conversion, and nothing mixed with what changed meanwhile."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from archive_trees import ARCHIVE_SOURCES
from faulty_store import FaultyStore, PlantedFault
from fixtures import make_folder, mostly_nightly
from index_trees import INDEX_SOURCES
from source_trees import SOURCES as PLAIN_SOURCES
from stand_in_stores import BUCKET, directory_store, moto_store, needs_moto

import datapipe as dp
from converters import ConvertOptions, OnError, conversion, convert, preview, recognise
from converters.to_store import convert_to_store
from converters.verify import verify
from datapipe.cli.main import main
from datapipe.containers.form import ClassFrom
from datapipe.errors import IntegrityError
from datapipe.stores.location import Location
from datapipe.stores.objects import list_names, read_object
from datapipe.stores.opening import open_store
from datapipe.stores.places import parse_location, parse_place

pytestmark = needs_moto

SOURCES = {**PLAIN_SOURCES, **INDEX_SOURCES, **ARCHIVE_SOURCES}
READ = [
    name
    for name in SOURCES
    if name.partition(",")[0] in ("image-folder", "npy", "tar", "archive", "dataset", "parquet")
    and not any(word in name for word in (".gz", ".bz2", ".xz", ".zst", ".lz4", "compressed", "hdf5", "tfrecord"))
]


@pytest.fixture(scope="module")
def server() -> Iterator[FaultyStore]:
    with moto_store() as store:
        yield store


@pytest.fixture
def store(server: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    server.log.clear()
    yield server
    server.weather.faults.clear()


def upload_tree(source: Path, prefix: str) -> None:
    store = open_store(parse_location(f"s3://{BUCKET}"))
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        obstore.put(store, f"{prefix}/{path.relative_to(source)}", path.read_bytes())


def options_of(source: Path | Location, out: Path, **options: Any) -> ConvertOptions:
    return ConvertOptions(source, out, **{"shard_nbytes": 5_000, "num_workers": 1, **options})


def shards_of(directory: Path) -> dict[str, bytes]:
    """The files of a dataset; its manifest without the digest of the source, which has the etags of a store in it."""
    files = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
    manifest = json.loads(files["dataset.json"])
    del manifest["source_digest"], manifest["checksum"]
    return {**files, "dataset.json": json.dumps(manifest).encode()}


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", mostly_nightly(READ, *READ[::4]))
def test_the_shards_of_a_local_conversion(store: FaultyStore, tmp_path: Path, name: str) -> None:
    made = SOURCES[name](tmp_path / "source")
    prefix = "from-" + "".join(letter if letter.isalnum() else "-" for letter in name)
    upload_tree(tmp_path / "source", prefix)
    inner = str(made.source.relative_to(tmp_path / "source"))
    url = f"s3://{BUCKET}/{prefix}" + ("" if inner == "." else f"/{inner}")
    convert(options_of(made.source, tmp_path / "local", **made.options))
    options = options_of(parse_place(url), tmp_path / "out", **made.options)
    assert recognise(options).form == name.partition(",")[0]
    report = convert(options)
    assert report.num_samples == len(made.samples)
    assert shards_of(tmp_path / "out") == shards_of(tmp_path / "local")
    assert verify(tmp_path / "out", num_workers=1).problems == ()
    assert convert(options).compared
    told = (tmp_path / "out" / "dataset.json").read_bytes()
    assert b"very-secret" not in told
    assert b"id-of-key" not in told


@pytest.fixture
def photos(store: FaultyStore, tmp_path: Path) -> Path:
    """A folder of classes, which lies at s3://bkt/photos as well."""
    folder = make_folder(tmp_path / "photos", size=(40, 48))
    first = sorted(path for path in folder.rglob("*") if path.is_file())[0]
    first.rename(first.with_name("née of 1 #%41+.jpg"))
    (first.parent / "deeper").mkdir()
    shutil.copy(sorted(folder.rglob("*.jpg"))[0], first.parent / "deeper" / "x.jpg")
    (first.parent / ".hidden.jpg").write_bytes(b"")
    upload_tree(folder, "photos")
    return folder


@pytest.mark.nightly
def test_names_and_folders(store: FaultyStore, photos: Path, tmp_path: Path) -> None:
    for number, options in enumerate(({}, {"class_from": "none"}, {"class_from": "path"})):
        chosen = {name: ClassFrom(value) for name, value in options.items()}
        convert(options_of(photos, tmp_path / f"local{number}", **chosen))
        convert(options_of(parse_place(f"s3://{BUCKET}/photos"), tmp_path / f"out{number}", **chosen))
        assert shards_of(tmp_path / f"out{number}") == shards_of(tmp_path / f"local{number}")


@pytest.mark.nightly
def test_workers_and_a_bad_network(store: FaultyStore, photos: Path, tmp_path: Path) -> None:
    convert(options_of(photos, tmp_path / "local"))
    store.weather.faults = [
        PlantedFault("reset", share=0.05), PlantedFault("status", share=0.1, times=20), PlantedFault("truncate", share=0.05),
    ]  # fmt: skip
    convert(options_of(parse_place(f"s3://{BUCKET}/photos"), tmp_path / "out", num_workers=2))
    assert shards_of(tmp_path / "out") == shards_of(tmp_path / "local")


@pytest.mark.nightly
def test_an_object_that_changed(store: FaultyStore, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaced by one of the same size since the listing: an error; once it is restored, the same command goes on."""
    place, options = parse_location(f"s3://{BUCKET}/photos"), options_of(parse_place(f"s3://{BUCKET}/photos"), tmp_path / "out")
    victim = sorted(path for path in photos.rglob("*.jpg") if not path.name.startswith("."))[3]
    name = str(victim.relative_to(photos))
    other = bytearray(victim.read_bytes())
    other[-3] ^= 1
    build = conversion.run_shards

    def replace_and_run(*args: Any, **kwargs: Any) -> None:
        obstore.put(open_store(place), f"photos/{name}", bytes(other))
        build(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(conversion, "run_shards", replace_and_run)
        with pytest.raises(IntegrityError, match=f"{place}/{name}: changed since the source was listed; restore it"):
            convert(options)
    with pytest.raises(IntegrityError, match=f"{place}: changed since the conversion began: {name} was modified"):
        convert(options)
    obstore.put(open_store(place), f"photos/{name}", victim.read_bytes())
    convert(options)
    obstore.put(open_store(place), f"photos/{name}", bytes(other))
    with pytest.raises(IntegrityError, match="holds a finished dataset, made of"):
        convert(options)
    obstore.put(open_store(place), f"photos/{name}", victim.read_bytes())


@pytest.mark.nightly
def test_an_object_that_is_gone(store: FaultyStore, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build, place = conversion.run_shards, parse_location(f"s3://{BUCKET}/photos")
    name = str(sorted(photos.rglob("*.jpg"))[5].relative_to(photos))

    def delete_and_run(*args: Any, **kwargs: Any) -> None:
        obstore.delete(open_store(place), f"photos/{name}")
        build(*args, **kwargs)

    monkeypatch.setattr(conversion, "run_shards", delete_and_run)
    with pytest.raises(IntegrityError, match=f"{place}/{name}: was removed after the source was listed"):
        convert(options_of(place, tmp_path / "out", on_error=OnError.SKIP))


@pytest.mark.nightly
def test_from_one_store_into_another_place_by_the_command(
    store: FaultyStore, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, url = f"s3://{BUCKET}/photos", f"s3://{BUCKET}/made"
    assert main(["convert", source, url, "--to", "webdataset", "--workers", "2", "--shard-size", "5kB"]) == 0
    said = capsys.readouterr()
    assert "recognised as an image folder (images in folders; --from image-folder)" in said.err
    assert "very-secret" not in said.out + said.err
    convert(options_of(photos, tmp_path / "local"))
    found = {name: read_object(parse_location(url) / name) for name in list_names(parse_location(url))}
    (tmp_path / "found").mkdir()
    for name, data in found.items():
        (tmp_path / "found" / name).write_bytes(data)
    assert shards_of(tmp_path / "found") == shards_of(tmp_path / "local")
    assert main(["convert", source, url, "--to", "webdataset", "--shard-size", "5kB"]) == 0
    assert "already converted" in capsys.readouterr().out


def test_a_dry_run_shows_names(store: FaultyStore, photos: Path, tmp_path: Path) -> None:
    shown = preview(options_of(parse_place(f"s3://{BUCKET}/photos"), tmp_path / "out"))
    assert shown.sets[0].first[0].source.count("/") >= 1
    assert not (tmp_path / "out").exists()


def test_tars_of_a_web_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A web server lists nothing: tars are named by braces."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    name = next(name for name in READ if name.partition(",")[0] == "tar")
    made = SOURCES[name](tmp_path / "source")
    folder = made.source if made.source.is_dir() else made.source.parent
    tars = sorted(folder.glob("*.tar"))
    renamed = tmp_path / "renamed"
    renamed.mkdir()
    for number, path in enumerate(tars):
        shutil.copy(path, renamed / f"train-{number:03d}.tar")
    convert(options_of(renamed, tmp_path / "local", **made.options))
    with directory_store(tmp_path / "served", tars=renamed) as store:
        url = f"{store.url}/{BUCKET}/tars/train-{{000..{len(tars) - 1:03d}}}.tar"
        convert(options_of(parse_place(url), tmp_path / "out", **made.options))
        assert shards_of(tmp_path / "out") == shards_of(tmp_path / "local")
        with pytest.raises(dp.errors.OptionError, match="a web server does not list what it has"):
            convert(options_of(parse_place(f"{store.url}/{BUCKET}/tars"), tmp_path / "other", form="tar"))


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("source", "form", "said"),
    [
        ("photos/list.csv", "manifest", "--from manifest is not read from stores"),
        ("photos", "coco", "--from coco is not read from stores"),
        ("nothing-here", "auto", "nothing under this prefix; check the URL"),
        ("nothing-here", "image-folder", "no objects under this prefix; check the URL"),
        ("x.tar.gz", "tar", "a compressed tar cannot be read at random"),
        ("x.tar.gz", "archive", "a compressed tar cannot be read at random"),
    ],
)
def test_what_is_not_read(store: FaultyStore, photos: Path, tmp_path: Path, source: str, form: str, said: str) -> None:
    obstore.put(open_store(parse_location(f"s3://{BUCKET}")), "x.tar.gz", b"x")
    with pytest.raises((dp.errors.OptionError, dp.errors.MissingDataError), match=said):
        convert(options_of(parse_place(f"s3://{BUCKET}/{source}"), tmp_path / "out", form=form))


@pytest.mark.nightly
def test_a_place_within_the_source(store: FaultyStore, photos: Path) -> None:
    place = parse_location(f"s3://{BUCKET}/photos")
    for other in (place, place / "made"):
        with pytest.raises(dp.errors.OptionError, match="lie within each other; choose another destination"):
            convert_to_store(options_of(place, Path("unused")), other)
