"""`--dedupe`: samples of the same content are left out and named; the first one of the listing stays."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from index_trees import hugging_face
from trees import contents, encoded_image, run_main

from converters import ConvertOptions, OnError, Part, Split, convert, preview
from converters.verify import verify
from datapipe.containers.form import FieldChoice
from datapipe.errors import IntegrityError, OptionError
from datapipe.index.manifest import read_manifest


@pytest.fixture
def doubled(tree: Path) -> Path:
    """24 images, and 4 duplicates: one in another class, two of one image, one in a deeper folder."""
    shutil.copy(tree / "class_0" / "img 0.jpg", tree / "class_2" / "again.jpg")
    for name in ("img 5 copy.jpg", "img 5 copy 2.jpg"):
        shutil.copy(tree / "class_1" / "img 5.jpg", tree / "class_1" / name)
    (tree / "class_1" / "deep").mkdir()
    shutil.copy(tree / "class_1" / "img 0.jpg", tree / "class_1" / "deep" / "img 0.jpg")
    return tree


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.promise("convert: Duplicates")
def test_the_rest_is_as_if_duplicates_had_not_been_there(doubled: Path, tmp_path: Path) -> None:
    options = ConvertOptions(doubled, tmp_path / "out", shard_nbytes=5_000, num_workers=1, dedupe=True)
    assert [one.num_samples for one in preview(options).sets] == [24]
    report = convert(options)
    assert (report.num_samples, report.num_errors) == (24, 0)
    assert lines(tmp_path / "out" / "errors.jsonl") == [
        {"source": source, "id": None, "reason": f"duplicate: has the same bytes as {original}"}
        for source, original in [
            ("class_1/img 5 copy.jpg", "class_1/img 5 copy 2.jpg"),
            ("class_1/img 5.jpg", "class_1/img 5 copy 2.jpg"),
            ("class_1/deep/img 0.jpg", "class_1/img 0.jpg"),
            ("class_2/again.jpg", "class_0/img 0.jpg, with another label"),
        ]
    ]
    (warning,) = [one for one in report.warnings if "duplicates" in one]
    assert warning.startswith(
        "4 duplicates left out, 1 of them with another label than the one kept (errors.jsonl names them all)"
    )
    assert verify(tmp_path / "out", num_workers=1).problems == ()
    for name in ("class_2/again.jpg", "class_1/img 5 copy.jpg", "class_1/img 5.jpg", "class_1/deep/img 0.jpg"):
        (doubled / name).unlink()
    convert(ConvertOptions(doubled, tmp_path / "clean", shard_nbytes=5_000, num_workers=1))
    shards = [path.name for path in (tmp_path / "clean").glob("*.tar")]
    assert len(shards) > 2
    found, expected = contents(tmp_path / "out"), contents(tmp_path / "clean")
    assert [found[name] for name in shards] == [expected[name] for name in shards]


@pytest.mark.promise("convert: Duplicates")
def test_resumed_divided_and_split(doubled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"shard_nbytes": 5_000, "num_workers": 1, "dedupe": True, "split": Split.parse_all("a=0.6,b=0.4")}
    convert(ConvertOptions(doubled, tmp_path / "reference", **settings))  # type: ignore[arg-type]
    convert(ConvertOptions(doubled, tmp_path / "out", part=Part(1, 2), **settings))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="dedupe was True, now None"):
        convert(ConvertOptions(doubled, tmp_path / "out", **{**settings, "dedupe": False}))  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        patch.setattr("converters.planning.building.find_duplicates", lambda *args, **kwargs: pytest.fail("hashed again"))
        convert(ConvertOptions(doubled, tmp_path / "out", **settings))  # type: ignore[arg-type]
    assert contents(tmp_path / "out") == contents(tmp_path / "reference")
    assert len(lines(tmp_path / "out" / "a" / "errors.jsonl")) == 4, "in the first set, as what cannot be listed"
    assert sum(read_manifest(tmp_path / "out" / name).num_samples for name in "ab") == 24
    report = convert(ConvertOptions(doubled, tmp_path / "out", **settings))  # type: ignore[arg-type]
    assert report.compared is not None


def test_only_what_shares_its_size_is_read(doubled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from converters.planning import duplicates

    read: list[bytes] = []
    genuine = duplicates.read_each

    def noting(roots: object, planned: object) -> object:
        for sample, *found in genuine(roots, planned):  # type: ignore[arg-type]
            read.append(sample.source)
            yield sample, *found

    monkeypatch.setattr(duplicates, "read_each", noting)
    convert(ConvertOptions(doubled, tmp_path / "out", num_workers=1, dedupe=True))
    sizes = [path.stat().st_size for path in doubled.rglob("*.jpg")]
    assert len(read) == sum(sizes.count(size) > 1 for size in sizes) < 28


def test_bad_samples_are_no_duplicates(tree: Path, tmp_path: Path) -> None:
    """What cannot be read is not compared; what is read and bad is one bad sample, and its copies are duplicates."""
    os.mkfifo(tree / "class_0" / "a.jpg")
    os.mkfifo(tree / "class_0" / "b.jpg")
    for name in ("x.jpg", "y.jpg"):
        (tree / "class_1" / name).write_bytes(b"no image")
    report = convert(ConvertOptions(tree, tmp_path / "out", num_workers=1, dedupe=True, on_error=OnError.SKIP))
    assert (report.num_samples, report.num_errors) == (24, 3)
    assert [line["id"] is None for line in lines(tmp_path / "out" / "errors.jsonl")] == [True, False, False, False]


def test_rows_are_compared_by_their_image(tmp_path: Path) -> None:
    """In a manifest with the same image twice the first row stays; in a set without images all fields are compared."""
    (tmp_path / "photos").mkdir()
    for number in range(3):
        (tmp_path / "photos" / f"{number}.jpg").write_bytes(encoded_image(number % 2))
    (tmp_path / "list.csv").write_text("image,caption\nphotos/0.jpg,one\nphotos/1.jpg,two\nphotos/2.jpg,three\n")
    report = convert(ConvertOptions(tmp_path / "list.csv", tmp_path / "out", form="manifest", num_workers=1, dedupe=True))
    assert report.num_samples == 2
    (tmp_path / "texts.jsonl").write_text("".join(f'{{"a": "{a}", "b": "{b}"}}\n' for a, b in ("xy", "xz", "xy")))
    kinds = (FieldChoice("a", "text"), FieldChoice("b", "text"))
    texts = ConvertOptions(
        tmp_path / "texts.jsonl", tmp_path / "texts", form="manifest", fields=kinds, num_workers=1, dedupe=True
    )
    assert convert(texts).num_samples == 2


def test_spooled_values(tmp_path: Path) -> None:
    """Values of compressed Parquet, which lie in the spool."""
    made = hugging_face(tmp_path / "source")
    images = {sample["image"] for sample in made.samples}
    report = convert(ConvertOptions(made.source, tmp_path / "out", num_workers=1, dedupe=True, form="parquet", **made.options))
    assert report.num_samples == len(images)


def test_a_file_that_changes_meanwhile(doubled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from converters.planning import duplicates

    genuine = duplicates.read_each

    def changing(roots: object, planned: object) -> object:
        os.utime(doubled / "class_1" / "img 5.jpg", ns=(1, 1))
        return genuine(roots, planned)  # type: ignore[arg-type]

    monkeypatch.setattr(duplicates, "read_each", changing)
    with pytest.raises(IntegrityError, match=r"img 5\.jpg: changed since the source was listed"):
        convert(ConvertOptions(doubled, tmp_path / "out", num_workers=1, dedupe=True))
    assert not (tmp_path / "out").exists()


def test_the_command(doubled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main("convert", doubled, tmp_path / "out", "--to", "hdf5", "--dedupe", "--workers", "1") == 0
    printed = capsys.readouterr()
    assert "4 duplicates left out, 1 of them with another label" in printed.err
    assert "24 samples" in printed.out
