"""verify names every kind of damage, and nothing where there is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from trees import make_tree, run_cli

from converters import ConvertOptions, OnError, Split, convert
from converters.verify import verify
from converters.writers import TARGETS
from datapipe.cli.main import main
from datapipe.errors import FormatError, MissingDataError, UnfinishedError
from datapipe.index.manifest import read_manifest
from datapipe.index.open_sidecars import Sidecar


@pytest.fixture
def dataset(tmp_path: Path, to: str) -> Path:
    """Two shards or more, and one bad sample left out."""
    tree = make_tree(tmp_path / "source")
    (tree / "class_0" / "bad.jpg").write_bytes(b"no")
    convert(ConvertOptions(tree, tmp_path / "out", to=to, shard_nbytes=12_000, num_workers=1, on_error=OnError.SKIP))
    return tmp_path / "out"


def shards(dataset: Path) -> list[Path]:
    return [dataset / shard.name for shard in read_manifest(dataset).shards]


def index_of(shard: Path) -> Path:
    return shard.with_name(shard.name + ".index.arrow")


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


@pytest.mark.promise("convert: Verifying")
def test_intact(dataset: Path) -> None:
    report = verify(dataset)
    manifest = read_manifest(dataset)
    assert report.problems == ()
    assert report.num_samples == 24
    assert report.nbytes == sum(shard.nbytes for shard in manifest.shards)


def first_image(dataset: Path) -> tuple[int, int, str]:
    """Offset, id and source of the second sample's image in the first shard."""
    sidecar = Sidecar(index_of(shards(dataset)[0]))
    return int(sidecar.offsets("image")[1]), int(sidecar.ids[1]), sidecar.source(1).decode()


@pytest.mark.promise("convert: Verifying")
def test_a_flipped_bit_is_traced_to_its_sample(dataset: Path) -> None:
    offset, sample, source = first_image(dataset)
    flip(shards(dataset)[0], offset + 40)
    texts = [str(problem) for problem in verify(dataset).problems]
    assert any(f"{shards(dataset)[0].name}: differs from what was written (sha256)" in text for text in texts)
    assert any(f"sample {sample} ({source}): field 'image' differs (crc32c)" in text for text in texts)
    assert len(texts) == 2


def test_a_flipped_label_is_traced(dataset: Path) -> None:
    shard = shards(dataset)[1]
    sidecar = Sidecar(index_of(shard))
    flip(shard, int(sidecar.offsets("label")[2]))
    assert any(f"sample {sidecar.ids[2]} " in str(problem) and "'label'" in str(problem) for problem in verify(dataset).problems)


def test_a_flipped_header_is_seen(dataset: Path) -> None:
    flip(shards(dataset)[0], 3)
    assert any("headers, padding or the end differ" in problem.what for problem in verify(dataset).problems)


def cut(dataset: Path) -> None:
    path = shards(dataset)[0]
    path.write_bytes(path.read_bytes()[:-5000])


def cut_behind_a_sample(dataset: Path) -> None:
    """Where every tar reader ends without a word."""
    path = shards(dataset)[0]
    path.write_bytes(path.read_bytes()[: first_image(dataset)[0] - 512])


def lengthen(dataset: Path) -> None:
    path = shards(dataset)[0]
    path.write_bytes(path.read_bytes() + bytes(512))


def named(dataset: Path, name: str) -> Path:
    """`name` with the format's suffix for `*`."""
    return dataset / name.replace("*", shards(dataset)[0].suffix)


def drop(name: str) -> Callable[[Path], None]:
    return lambda dataset: named(dataset, name).unlink()


def spoil(name: str) -> Callable[[Path], None]:
    return lambda dataset: flip(named(dataset, name), 20)


def add(name: str) -> Callable[[Path], None]:
    def write(dataset: Path) -> None:
        named(dataset, name).write_bytes(b"x")

    return write


def forget_error(dataset: Path) -> None:
    (dataset / "errors.jsonl").write_text("")


def swap(dataset: Path) -> None:
    one, two = shards(dataset)[:2]
    data = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(data)


@pytest.mark.promise("convert: Verifying")
@pytest.mark.daily(10)
@pytest.mark.parametrize(
    ("damage", "path", "what"),
    [
        (cut, "shard-000000*", "truncated"),
        (cut_behind_a_sample, "shard-000000*", "truncated"),
        (lengthen, "shard-000000*", "too long"),
        (swap, "shard-000001*", ""),
        (drop("shard-000000*"), "shard-000000*", "missing"),
        (drop("shard-000001*.index.arrow"), "shard-000001*.index.arrow", "missing"),
        (drop("errors.jsonl"), "errors.jsonl", "missing, though 1 sample was left out"),
        (spoil("shard-000000*.index.arrow"), "shard-000000*.index.arrow", "differs"),
        (forget_error, "errors.jsonl", "names 0 bad samples, 1 were left out"),
        (add("shard-000099*"), "shard-000099*", "not part of the dataset"),
        (add("notes.txt"), "notes.txt", "not part of the dataset"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_damage(dataset: Path, damage: Callable[[Path], None], path: str, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = named(dataset, path).name
    damage(dataset)
    problems = verify(dataset).problems
    assert any(problem.path == str(dataset / path) and what in problem.what for problem in problems)
    assert main(["verify", str(dataset)]) == 1
    assert path in capsys.readouterr().out


@pytest.mark.parametrize("to", [name for name, target in TARGETS.items() if target.companion_suffixes])
def test_damage_of_the_index_for_other_readers(dataset: Path) -> None:
    (dataset / "shard-000001.idx").unlink()
    flip(dataset / "shard-000000.idx", 3)
    assert {(problem.path, problem.what) for problem in verify(dataset).problems} == {
        (str(dataset / "shard-000000.idx"), "does not match its shard; convert again"),
        (str(dataset / "shard-000001.idx"), "missing"),
    }


def test_samples_behind_a_cut_are_named(dataset: Path) -> None:
    sidecar = Sidecar(index_of(shards(dataset)[0]))
    last = sidecar.source(sidecar.num_samples - 1).decode()
    cut_behind_a_sample(dataset)
    assert any(last in problem.what and "truncated" in problem.what for problem in verify(dataset).problems)


def test_splits_are_checked_together(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "source")
    convert(ConvertOptions(tree, tmp_path / "out", num_workers=1, split=Split.parse_all("train=0.5,val=0.5")))
    assert verify(tmp_path / "out").num_samples == 24
    assert verify(tmp_path / "out" / "train").num_samples < 24
    flip(tmp_path / "out" / "val" / "val-000000.tar", 2000)
    assert verify(tmp_path / "out").problems
    assert verify(tmp_path / "out" / "train").problems == ()


def test_what_is_no_dataset(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="no such directory"):
        verify(tmp_path / "nothing")
    (tmp_path / "file").touch()
    with pytest.raises(MissingDataError, match="is a file, not a directory that `datapipe convert` made; check the path"):
        verify(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingDataError, match=r"no dataset\.json"):
        verify(tmp_path / "empty")
    (dataset / ".building").mkdir()
    with pytest.raises(UnfinishedError, match="unfinished"):
        verify(dataset)
    (dataset / ".building").rmdir()
    (dataset / "dataset.json").write_text("{")
    with pytest.raises(FormatError, match="not JSON"):
        verify(dataset)


def test_json(dataset: Path) -> None:
    done = run_cli("verify", dataset, "--json")
    value = json.loads(done.stdout)
    assert (done.returncode, value["is_intact"], value["num_samples"]) == (0, True, 24)
    plain = run_cli("verify", dataset)
    assert "intact" in plain.stdout
    assert "GB/s" in plain.stdout
