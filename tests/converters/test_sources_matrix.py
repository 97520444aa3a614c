"""Every form of source into every format: told by a look, converted, read back by the index, verified, resumed."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from archive_trees import ARCHIVE_SOURCES
from fixtures import mostly_nightly
from index_trees import INDEX_SOURCES
from source_trees import SOURCES as PLAIN_SOURCES
from source_trees import Made
from test_source_lmdb import lsun
from trees import contents

from converters import ConvertOptions, Part, convert, recognise
from converters.verify import verify
from datapipe.codecs.field_values import NO_LABEL
from datapipe.containers.form import FieldChoice
from datapipe.errors import FormatError, IntegrityError, OptionError
from datapipe.fetch.local import LocalFiles
from datapipe.index.manifest import read_manifest
from datapipe.opening.samples import open_index

SOURCES = {**PLAIN_SOURCES, **INDEX_SOURCES, **ARCHIVE_SOURCES, "lmdb": lsun}


# Sources that workers read as they read another one of the same form: by night.
READ_ALIKE = {
    "image-folder, no classes", "manifest, jsonl", "parquet, petastorm", "archive, deflated zip", "archive, folder in a zip",
    "archive, class tars", "archive, tar of class tars", "archive, tar.bz2", "archive, tar.xz", "archive, tar.zst",
}  # fmt: skip


@pytest.fixture(params=mostly_nightly(SOURCES, *({*SOURCES} - READ_ALIKE)))
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    """Each source in turn."""
    return SOURCES[request.param](tmp_path / "source")


# what lies beside the samples of a source
_OTHERS = re.compile(r"\.(json|jsonl|csv|txt|idx|index\.arrow)$|_common_metadata$|lock\.mdb$|\.datapipe-index/")


def options_of(
    made: Made, out: Path, *, to: str = "webdataset", part: Part | None = None, num_workers: int = 1
) -> ConvertOptions:
    return ConvertOptions(made.source, out, to=to, shard_nbytes=5_000, num_workers=num_workers, part=part, **made.options)


@pytest.mark.daily(13)
def test_what_went_in_comes_out(made: Made, tmp_path: Path, to: str) -> None:
    """Keys, labels, bytes and further fields, by ids."""
    out = tmp_path / "out"
    report = convert(options_of(made, out, to=to))
    assert (report.num_samples, report.num_errors) == (len(made.samples), 0)
    assert report.sets[0].num_shards > 1
    manifest = read_manifest(out)
    has_image = "image" in made.samples[0]
    kinds = {**({"image": "image"} if has_image else {}), **made.kinds, **({} if made.labels is None else {"label": "label"})}
    assert {spec.name: spec.kind.value for spec in manifest.fields} == kinds
    assert manifest.classes == made.classes
    index, files = open_index(out), LocalFiles()
    ids = index.ids(np.arange(len(index)))
    assert ids.tolist() == list(range(len(made.samples)))
    for name in made.samples[0]:
        entries = index.look_up(ids, name)
        assert entries.extents.has_crc.all()
        for number, sample in enumerate(made.samples):
            assert files.read(entries.extents, number) == sample[name], (number, name)
        assert entries.labels.tolist() == (made.labels or [NO_LABEL] * len(made.samples))
    files.close()
    assert verify(out, num_workers=1).problems == ()


@pytest.mark.daily(13)
def test_what_lies_in_place_is_what_comes_out(made: Made, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A loader that opens the source itself has the ids, labels, classes, fields and bytes of its conversion."""
    options = options_of(made, tmp_path / "out")
    if any(name in request.node.name for name in ("tar.gz", "tar.bz2", "tar.xz", "tar.zst")):
        with pytest.raises(FormatError, match="compressed tar, whose members cannot be read one by one"):
            open_index(made.source, options.how)
        return
    convert(options)
    in_place, out = open_index(made.source, options.how), open_index(tmp_path / "out")
    files, ids = LocalFiles(), np.arange(len(made.samples))
    assert (in_place.manifest.classes, len(in_place)) == (out.manifest.classes, len(out))
    assert in_place.labels().tolist() == out.labels().tolist()
    assert {spec for spec in out.manifest.fields if spec.name in made.samples[0]} <= {*in_place.manifest.fields}
    for name in made.samples[0]:
        both = [index.look_up(ids, name).extents for index in (in_place, out)]
        assert [[files.read(extents, row) for row in ids.tolist()] for extents in both] == [
            [one[name] for one in made.samples]
        ] * 2
    files.close()


def test_the_form_is_told_by_a_look(made: Made, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    form = next(name for name in SOURCES if f"[{name}]" in request.node.name).partition(",")[0]
    assert recognise(options_of(made, tmp_path / "out")).form == form


@pytest.mark.nightly
def test_parts_and_workers_do_not_show(made: Made, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    num_workers = 1 if request.node.callspec.params["made"] in READ_ALIKE else 2
    reference = tmp_path / "reference"
    convert(options_of(made, reference))
    for number in (2, 1):
        report = convert(options_of(made, tmp_path / "parts", part=Part(number, 2)))
    assert report.is_finished
    convert(options_of(made, tmp_path / "joined", part=Part(1, 3)))
    report = convert(options_of(made, tmp_path / "joined", num_workers=num_workers))  # one command takes up what parts have left
    assert 0 < report.num_resumed < report.num_resumed + report.num_written
    assert contents(tmp_path / "parts") == contents(reference) == contents(tmp_path / "joined")


@pytest.mark.daily(13)
def test_a_source_that_changed_is_refused(made: Made, tmp_path: Path) -> None:
    """Resuming names what changed; once that is restored, it continues."""
    options, out = options_of(made, tmp_path / "out"), tmp_path / "out"
    convert(options_of(made, out, part=Part(1, 2)))
    place = next(path for path in (made.source, *made.source.parents) if path.exists())
    root = made.options.get("root", place if place.is_dir() else place.parent)
    victim = sorted(path for path in root.rglob("*") if path.is_file() and not _OTHERS.search(str(path)))[-1]
    status = victim.stat()
    os.utime(victim, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(IntegrityError, match=r"changed since the conversion began: .* was modified"):
        convert(options)
    os.utime(victim, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert convert(options).is_finished


def test_choices_of_fields_are_options(tmp_path: Path) -> None:
    made = SOURCES["pairs"](tmp_path / "source")
    convert(options_of(made, tmp_path / "out", part=Part(1, 2)))
    left_out = ConvertOptions(made.source, tmp_path / "out", shard_nbytes=5_000, fields=(FieldChoice("captions", "none"),))
    with pytest.raises(OptionError, match=r"fields was None, now \['captions=none'\]"):
        convert(left_out)
