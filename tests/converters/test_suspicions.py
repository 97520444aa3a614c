"""What a source was taken for is said before anything is written, and what looks wrong with it is, with its option."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from source_trees import image, put
from test_source_tar import jpegs, tar
from trees import make_tree, run_cli

from converters import Advance, ConvertOptions, Phase, convert, preview
from datapipe.containers.form import ClassFrom
from datapipe.errors import OptionError


def warned(source: Path, out: Path, **options: object) -> str:
    return "\n".join(preview(ConvertOptions(source, out, **options)).warnings)  # type: ignore[arg-type]


def test_counts_come_before_the_first_byte(tmp_path: Path) -> None:
    """Once, when the plan is there and no shard is begun; again when a run goes on."""
    source, out = make_tree(tmp_path / "source"), tmp_path / "out"
    seen: list[tuple[Advance, list[str]]] = []

    def note(advance: Advance, /) -> None:
        seen.append((advance, [path.name for path in (out / ".building").glob("shard-*")]))

    convert(ConvertOptions(source, out, num_workers=1), note)
    ((advance, shards),) = [one for one in seen if one[0].overview is not None]
    assert advance.overview is not None
    assert (advance.overview.num_samples, advance.overview.num_classes) == (24, 3)
    assert advance.overview.fields == (("image", "image"), ("label", "label"))
    assert advance.overview.nbytes == sum(path.stat().st_size for path in source.rglob("*.jpg"))
    assert advance.overview.warnings == ()
    assert shards == []
    assert [one.phase for one, _ in seen].index(Phase.WRITE) > seen.index((advance, shards))


def test_the_program_says_them(tmp_path: Path) -> None:
    source = tar(tmp_path / "x.tar", jpegs("a", "b"))
    done = run_cli("convert", source, tmp_path / "out", "--to", "webdataset")
    lines = done.stderr.splitlines()
    assert done.returncode == 0
    assert lines[0].startswith(f"{source}: recognised as WebDataset tars")
    assert lines[1].startswith("2 samples, 0.0 MB; fields: image")
    assert lines[2].startswith("warning: samples have no label")
    assert done.stderr.count("warning: samples have no label") == 1


def test_a_preview_shows_ten_samples(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "source")
    done = run_cli("convert", source, tmp_path / "out", "--to", "webdataset", "--dry-run")
    shown = [line for line in done.stdout.splitlines() if line.startswith("  0")]
    assert len(shown) == 10
    key, name = shown[0].split()[0], shown[0].split("  label")[0].split("  ")[-1]
    number = int(key)
    assert name == f"class_{number // 8}/img {number % 8}.jpg"
    nbytes = (source / name).stat().st_size
    assert shown[0].endswith(f"  label {number // 8} (class_{number // 8})  image {nbytes} B")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["k/a.jpg", "k/b.jpg", "k/c.jpg"], "all 3 samples are of one class, 'k'; --class-from parent"),
        (["a/x.jpg", "b/x.jpg", "c/x.jpg"], "each of the 3 samples is of a class of its own, such as 'a'; --class-from parent"),
        (["a/x.jpg"], "only 1 sample; if SRC holds more, --from"),
        (["a/x.jpg", "b/y.jpg", "b/1.mat", "b/2.mat", "b/3.mat"], "3 files ignored: .* more than there are samples; --from"),
    ],
)
def test_folders_of_a_strange_shape(tmp_path: Path, names: list[str], said: str) -> None:
    for number, name in enumerate(names):
        put(tmp_path / "in" / name, image(number))
    assert re.search(said, warned(tmp_path / "in", tmp_path / "out"))


def test_what_was_asked_for_is_not_warned_of(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "source")
    assert warned(source, tmp_path / "out") == ""
    assert warned(source, tmp_path / "out", class_from=ClassFrom.NONE) == ""


def test_megabytes_that_are_called_bytes(tmp_path: Path) -> None:
    members = [("a.jpg", image(0)), ("a.psd", bytes(1_100_000)), ("a.cls", b"0"), ("b.jpg", image(1)),
               ("b.psd", bytes(1_000_000)), ("b.cls", b"1")]  # fmt: skip
    source = tar(tmp_path / "x.tar", members)
    said = warned(source, tmp_path / "out")
    assert said == "field 'psd' is kept as bytes, 1.1 MB a sample; --field psd=KIND says what it is, =none leaves it out"


def test_shards_of_a_sample_each_are_refused_and_small_ones_warned_of(tmp_path: Path) -> None:
    for number in range(20):
        put(tmp_path / "in" / f"c{number % 2}" / f"{number}.jpg", image(number))
    with pytest.raises(OptionError, match=r"--shard-size is 5 bytes, and a sample takes .* each of 20 samples would be a shard"):
        preview(ConvertOptions(tmp_path / "in", tmp_path / "out", shard_nbytes=5))
    with pytest.raises(OptionError, match="--shard-size is 5 bytes"):
        convert(ConvertOptions(tmp_path / "in", tmp_path / "out", shard_nbytes=5))
    assert not (tmp_path / "out").exists()
    sizes = preview(ConvertOptions(tmp_path / "in", tmp_path / "out"))
    assert not any("--shard-size" in warning for warning in sizes.warnings)
    small = preview(ConvertOptions(tmp_path / "in", tmp_path / "out", shard_nbytes=sizes.nbytes // 4))
    assert [warning for warning in small.warnings if "shards of about 4 samples: below 1 MB" in warning]


def test_a_single_image_is_no_source(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"0\.jpg: a single image; pass the folder"):
        preview(ConvertOptions(put(tmp_path / "0.jpg", image(0)), tmp_path / "out"))
