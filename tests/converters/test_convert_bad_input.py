"""Bad samples, full disks, changed sources and options, destinations in use: what each run says and leaves."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import struct
import subprocess
from pathlib import Path

import pytest
from fixtures import OF_SAMPLES
from trees import ROOT, cli_command, contents, encoded_image, make_tree, run_cli, run_main, run_process

from converters import Check, ConvertOptions, Encode, Limit, OnError, Part, Resize, Split, convert, parse_nbytes
from converters.verify import verify
from converters.writers import Target
from datapipe.errors import (
    DatapipeError,
    DecodeError,
    IntegrityError,
    MissingDataError,
    OptionError,
    StorageError,
    UnfinishedError,
)
from datapipe.index.manifest import read_manifest

BOMB = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0) + bytes(40) + b"IEND\xaeB`\x82"


def spoiled(tree: Path) -> dict[str, str]:
    """Put one bad file of each kind into `tree`: source -> what its reason must say."""
    good = encoded_image(7)
    files = {
        "class_0/empty.jpg": (b"", "empty file"),
        "class_0/zeros.jpg": (bytes(500), "500 zero bytes"),
        "class_1/text.jpg": (b"<html>404 not found</html>", "not an image"),
        "class_1/cut.jpg": (good[: len(good) * 2 // 3], "truncated"),
        "class_1/header only.jpg": (good[:3], "header does not parse"),
        "class_2/bomb.png": (BOMB, "bomb"),
        "class_2/cut.png": (encoded_image(3, form="PNG")[:-60], "truncated"),
    }
    for source, (data, _) in files.items():
        (tree / source).write_bytes(data)
    os.mkfifo(tree / "class_2" / "pipe.jpg")
    (tree / "class_2" / "link.jpg").symlink_to("/etc/passwd")
    (tree / "class_2" / "gone.jpg").symlink_to("nowhere.jpg")
    reasons = {source: reason for source, (_, reason) in files.items()}
    return reasons | {
        "class_2/pipe.jpg": "named pipe",
        "class_2/link.jpg": "leads out of the source",
        "class_2/gone.jpg": "dangling",
    }


def errors_of(directory: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (directory / "errors.jsonl").read_text().splitlines()]


# -- policies -----------------------------------------------------------------------------------


@pytest.mark.promise("convert: Bad samples")
@pytest.mark.parametrize("num_workers", [1, 2])
def test_fail_names_the_file_and_leaves_nothing_complete(tree: Path, tmp_path: Path, num_workers: int) -> None:
    (tree / "class_1" / "text.jpg").write_bytes(b"hello")
    with pytest.raises(DecodeError, match=r"class_1/text\.jpg: bad sample: not an image: 5 bytes starting with b'hello'"):
        convert(ConvertOptions(tree, tmp_path / "out", shard_nbytes=5_000, num_workers=num_workers))
    with pytest.raises(UnfinishedError):
        read_manifest(tmp_path / "out")


@pytest.mark.promise("convert: Bad samples")
def test_skip_leaves_every_bad_sample_out(tree: Path, tmp_path: Path, to: str) -> None:
    skip_every_bad_sample(tree, tmp_path, to=to, num_workers=1)


def test_workers_skip_as_well(tree: Path, tmp_path: Path) -> None:
    skip_every_bad_sample(tree, tmp_path, to="webdataset", num_workers=2)


def skip_every_bad_sample(tree: Path, tmp_path: Path, *, to: str, num_workers: int) -> None:
    num_good = len(list(tree.rglob("*.jpg")))
    reasons = spoiled(tree)
    out = tmp_path / "out"
    report = convert(ConvertOptions(tree, out, to=to, shard_nbytes=5_000, num_workers=num_workers, on_error=OnError.SKIP))
    assert (report.num_samples, report.num_errors) == (num_good, len(reasons))
    errors = errors_of(out)
    assert {str(error["source"]) for error in errors} == set(reasons)
    for error in errors:
        assert reasons[str(error["source"])] in str(error["reason"])
    ids = [int(str(error["id"])) for error in errors]
    assert ids == sorted(ids)
    assert not (out / "quarantine").exists()
    assert run_main("verify", out) == 0


def test_skipped_samples_keep_the_ids_of_the_others(tree: Path, tmp_path: Path, to: str) -> None:
    (tree / "class_0" / "aaa.jpg").write_bytes(b"")  # first in the listing
    convert(ConvertOptions(tree, tmp_path / "out", to=to, shard_nbytes=5_000, num_workers=1, on_error=OnError.SKIP))
    manifest = read_manifest(tmp_path / "out")
    assert (manifest.num_slots, manifest.num_samples) == (25, 24)
    assert errors_of(tmp_path / "out")[0]["id"] == 0
    assert sum(len(shard.skipped) for shard in manifest.shards) == 1


@pytest.mark.promise("convert: Bad samples")
def test_quarantine_copies_what_can_be_read(tree: Path, tmp_path: Path, to: str) -> None:
    reasons = spoiled(tree)
    out = tmp_path / "out"
    convert(ConvertOptions(tree, out, to=to, num_workers=1, on_error=OnError.QUARANTINE))
    unreadable = {source for source in reasons if source.endswith(("pipe.jpg", "link.jpg", "gone.jpg"))}
    kept = {str(path.relative_to(out / "quarantine")) for path in (out / "quarantine").rglob("*") if path.is_file()}
    assert kept == set(reasons) - unreadable
    assert all((out / "quarantine" / source).read_bytes() == (tree / source).read_bytes() for source in kept)
    assert run_main("verify", out) == 0


def test_quarantine_of_a_split_lies_in_the_split(tree: Path, tmp_path: Path) -> None:
    spoiled(tree)
    split = Split.parse_all("train=0.5,val=0.5")
    convert(ConvertOptions(tree, tmp_path / "out", num_workers=1, on_error=OnError.QUARANTINE, split=split))
    for name in ("train", "val"):
        directory = tmp_path / "out" / name
        named = {str(error["source"]) for error in errors_of(directory)}
        kept = {
            str(path.relative_to(directory / "quarantine")) for path in (directory / "quarantine").rglob("*") if path.is_file()
        }
        assert kept
        assert kept <= named
    assert run_main("verify", tmp_path / "out") == 0


def test_decode_finds_what_headers_do_not_show(tree: Path, tmp_path: Path) -> None:
    data = bytearray(encoded_image(5, form="PNG"))
    data[60:80] = bytes(20)  # in the compressed pixels
    (tree / "class_0" / "rotten.png").write_bytes(data)
    convert(ConvertOptions(tree, tmp_path / "header", num_workers=1))
    assert read_manifest(tmp_path / "header").num_samples == 25
    with pytest.raises(DecodeError, match=r"rotten\.png"):
        convert(ConvertOptions(tree, tmp_path / "decode", num_workers=1, check=Check.DECODE))
    with pytest.raises(DecodeError, match=r"rotten\.png"):
        convert(ConvertOptions(tree, tmp_path / "resize", num_workers=1, resize=Resize.parse("shorter:8")))


@pytest.mark.parametrize(("limit", "is_bearable"), [("10", True), ("9", False), ("30%", True), ("29%", False)])
def test_max_errors(tree: Path, tmp_path: Path, limit: str, *, is_bearable: bool) -> None:
    spoiled(tree)  # 10 of 34
    options = ConvertOptions(
        tree, tmp_path / "out", shard_nbytes=3_000, num_workers=1, on_error=OnError.SKIP, max_errors=Limit.parse(limit)
    )
    if is_bearable:
        assert convert(options).num_errors == 10
        return
    with pytest.raises(DecodeError, match="bad samples exceed --max-errors"):
        convert(options)
    with pytest.raises(UnfinishedError):
        read_manifest(tmp_path / "out")
    with pytest.raises(DecodeError, match="bad samples exceed --max-errors"):
        convert(options)


def test_the_policy_may_change_on_resuming(tree: Path, tmp_path: Path) -> None:
    """fail, then skip, then quarantine: the end is that of a run that quarantined from the start."""
    spoiled(tree)
    arguments = {"shard_nbytes": 3_000, "num_workers": 1}
    with pytest.raises(DecodeError):
        convert(ConvertOptions(tree, tmp_path / "out", **arguments))  # type: ignore[arg-type]
    with pytest.raises(DecodeError, match="max-errors"):
        convert(ConvertOptions(tree, tmp_path / "out", on_error=OnError.SKIP, max_errors=Limit(5), **arguments))  # type: ignore[arg-type]
    convert(ConvertOptions(tree, tmp_path / "out", on_error=OnError.QUARANTINE, **arguments))  # type: ignore[arg-type]
    convert(ConvertOptions(tree, tmp_path / "reference", on_error=OnError.QUARANTINE, **arguments))  # type: ignore[arg-type]
    assert contents(tmp_path / "out") == contents(tmp_path / "reference")


def test_unreadable_directories(tree: Path, tmp_path: Path) -> None:
    outside = make_tree(tmp_path / "elsewhere", num_classes=1, per_class=2)
    (tree / "class_0" / "linked").symlink_to(outside)
    with pytest.raises(StorageError, match=r"class_0/linked: symbolic link leads out"):
        convert(ConvertOptions(tree, tmp_path / "out", num_workers=1))
    assert not (tmp_path / "out").exists()
    convert(ConvertOptions(tree, tmp_path / "out", num_workers=1, on_error=OnError.SKIP))
    assert [(error["source"], error["id"]) for error in errors_of(tmp_path / "out")] == [("class_0/linked", None)]
    assert run_main("verify", tmp_path / "out") == 0


# -- the operating system -----------------------------------------------------------------------


@pytest.mark.daily(5)
@pytest.mark.parametrize("last_call", [1, 3, 6])
def test_full_disk(tree: Path, tmp_path: Path, to: str, last_call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ConvertOptions(tree, tmp_path / "out", to=to, shard_nbytes=5_000, num_workers=1)
    write, calls = os.write, 0

    def fill_up(descriptor: int, data: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls == last_call:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fill_up)
        with pytest.raises(StorageError, match=r"No space left on device.*free space there and run the same command again"):
            convert(options)
    assert not list((tmp_path / "out" / ".building").glob("*.part"))
    convert(options)
    convert(ConvertOptions(tree, tmp_path / "reference", to=to, shard_nbytes=5_000, num_workers=1))
    assert contents(tmp_path / "out") == contents(tmp_path / "reference")


@pytest.mark.nightly
def test_a_refusal_in_a_worker_is_reported_without_traceback(tree: Path, tmp_path: Path) -> None:
    """Workers inherit a limit on file sizes, which the kernel enforces."""

    def limit_file_size() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

    big = make_tree(tmp_path / "big", num_classes=2, per_class=10, size=(100, 150))
    command = cli_command("convert", big, tmp_path / "out", "--to", "webdataset", "--shard-size", "100KB", "--workers", "2")
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, preexec_fn=limit_file_size)
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert "run the same command again" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_room_is_said_before_anything_is_written(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converters.conversion.free_nbytes", lambda directory: 1000)
    with pytest.raises(StorageError, match=r"needs 0\.00 GB more"):
        convert(ConvertOptions(tree, tmp_path / "out", num_workers=1))
    assert not list((tmp_path / "out").rglob("*.tar"))


def test_a_destination_that_is_a_file(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x")
    with pytest.raises(OptionError, match="not a directory"):
        convert(ConvertOptions(tree, tmp_path / "out"))
    with pytest.raises(DatapipeError, match=r"cannot be written"):
        convert(ConvertOptions(tree, tmp_path / "out" / "below"))


def test_a_destination_within_a_dataset_is_refused(tree: Path, tmp_path: Path) -> None:
    convert(ConvertOptions(tree, tmp_path / "out", num_workers=1))
    with pytest.raises(OptionError, match=r"out/further/more: lies within the dataset .*out; choose"):
        convert(ConvertOptions(tree, tmp_path / "out" / "further" / "more"))
    assert not (tmp_path / "out" / "further").exists()


# -- resuming -----------------------------------------------------------------------------------


def interrupted(tree: Path, out: Path, *, to: str = "webdataset") -> ConvertOptions:
    """A conversion of which one part of two is done."""
    options = ConvertOptions(tree, out, to=to, shard_nbytes=5_000, num_workers=1)
    convert(ConvertOptions(tree, out, to=to, shard_nbytes=5_000, num_workers=1, part=Part(1, 2)))
    return options


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shard_nbytes": 6_000}, "shard_size was 5000, now 6000"),
        ({"to": "hdf5"}, "to was 'webdataset', now 'hdf5'"),
        ({"seed": 1}, "seed was 0, now 1"),
        ({"resize": Resize("shorter", 8)}, "resize was None, now 'shorter:8'"),
        ({"encode": Encode("png")}, "encode was 'keep', now 'png'"),
        ({"check": Check.DECODE}, "check was 'header', now 'decode'"),
        ({"split": Split.parse_all("a=0.5,b=0.5")}, "split was None"),
    ],
)
def test_changed_options_are_named(tree: Path, tmp_path: Path, changes: dict[str, object], message: str) -> None:
    interrupted(tree, tmp_path / "out")
    options = {"shard_nbytes": 5_000, "num_workers": 1, **changes}
    before = contents(tmp_path / "out")
    with pytest.raises(OptionError, match=message):
        convert(ConvertOptions(tree, tmp_path / "out", **options))  # type: ignore[arg-type]
    after = contents(tmp_path / "out")
    assert {name: digest for name, digest in after.items() if not name.endswith(".lock")} == {
        name: digest for name, digest in before.items() if not name.endswith(".lock")
    }


def test_changed_source_is_named(tree: Path, tmp_path: Path) -> None:
    options = interrupted(tree, tmp_path / "out")
    victim = tree / "class_1" / "img 3.jpg"
    original, status = victim.read_bytes(), victim.stat()

    (tree / "class_1" / "img 30.jpg").write_bytes(original)
    with pytest.raises(IntegrityError, match=r"changed since the conversion began: class_1/img 30\.jpg is new"):
        convert(options)
    (tree / "class_1" / "img 30.jpg").unlink()

    victim.unlink()
    with pytest.raises(IntegrityError, match=r"class_1/img 3\.jpg is gone"):
        convert(options)

    victim.write_bytes(original + b"x")
    with pytest.raises(IntegrityError, match=rf"class_1/img 3\.jpg had {len(original)} bytes and has {len(original) + 1}"):
        convert(options)

    victim.write_bytes(original)
    os.utime(victim, ns=(0, status.st_mtime_ns + 1))
    with pytest.raises(IntegrityError, match=r"class_1/img 3\.jpg was modified"):
        convert(options)

    last = tree / "class_2" / "zzz.jpg"
    os.utime(victim, ns=(0, status.st_mtime_ns))
    last.write_bytes(original)
    with pytest.raises(IntegrityError, match=r"class_2/zzz\.jpg is new"):
        convert(options)
    last.unlink()
    (tree / "class_9").mkdir()
    with pytest.raises(OptionError, match="classes were 3, now 4"):
        convert(options)
    (tree / "class_9").rmdir()

    assert convert(options).is_finished


def test_a_source_that_changes_meanwhile(tree: Path, tmp_path: Path) -> None:
    """The plan is there, and the file is another one when its turn comes."""
    options = ConvertOptions(tree, tmp_path / "out", shard_nbytes=5_000, num_workers=1, seed=None)
    victim = tree / "class_2" / "img 7.jpg"

    def change(advance: object) -> None:
        if (tmp_path / "out" / ".building" / "plan.db").exists():
            victim.write_bytes(b"another")

    with pytest.raises(IntegrityError, match=r"img 7\.jpg: changed since the source was listed"):
        convert(options, change)
    victim.unlink()
    with pytest.raises(IntegrityError):
        convert(options)


def test_a_shard_that_was_noted_is_not_written_again(tree: Path, tmp_path: Path, to: str, target: Target) -> None:
    options = interrupted(tree, tmp_path / "out", to=to)
    done = sorted((tmp_path / "out" / ".building").glob(f"*{target.suffix}"))
    times = [path.stat().st_mtime_ns for path in done]
    report = convert(options)
    assert report.num_resumed == len(done) > 0
    assert report.num_written > 0
    assert [(tmp_path / "out" / path.name).stat().st_mtime_ns for path in done] == times


def test_a_noted_shard_whose_file_was_deleted_is_written_again(tree: Path, tmp_path: Path, to: str, target: Target) -> None:
    options = interrupted(tree, tmp_path / "out", to=to)
    next((tmp_path / "out" / ".building").glob(f"*{target.suffix}")).unlink()
    convert(options)
    convert(ConvertOptions(tree, tmp_path / "reference", to=to, shard_nbytes=5_000, num_workers=1))
    assert contents(tmp_path / "out") == contents(tmp_path / "reference")


# -- destinations in use ------------------------------------------------------------------------


def test_a_finished_dataset_is_not_overwritten_unasked(tree: Path, tmp_path: Path) -> None:
    convert(ConvertOptions(tree, tmp_path / "out", num_workers=1))
    before = contents(tmp_path / "out")
    with pytest.raises(OptionError, match=r"other options: encode was 'keep', now 'png'; seed was 0, now 3; pass --overwrite"):
        convert(ConvertOptions(tree, tmp_path / "out", num_workers=1, encode=Encode("png"), seed=3))
    assert contents(tmp_path / "out") == before


def test_overwrite_replaces_all_of_the_old(tree: Path, tmp_path: Path, to: str) -> None:
    """Whatever format the old has."""
    spoiled(tree)
    split = Split.parse_all("train=0.5,val=0.5")
    convert(ConvertOptions(tree, tmp_path / "out", num_workers=1, shard_nbytes=3_000, split=split, on_error=OnError.QUARANTINE))
    convert(ConvertOptions(tree, tmp_path / "out", to=to, num_workers=1, overwrite=True, on_error=OnError.SKIP))
    convert(ConvertOptions(tree, tmp_path / "reference", to=to, num_workers=1, on_error=OnError.SKIP))
    assert contents(tmp_path / "out") == contents(tmp_path / "reference")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        path.name for path in (tmp_path / "reference").iterdir()
    )


def test_a_failing_overwrite_leaves_the_old_bytes(tree: Path, tmp_path: Path) -> None:
    convert(ConvertOptions(tree, tmp_path / "out", num_workers=1))
    before = contents(tmp_path / "out")
    (tree / "class_0" / "text.jpg").write_bytes(b"hello")
    with pytest.raises(DecodeError):
        convert(ConvertOptions(tree, tmp_path / "out", num_workers=1, seed=3, overwrite=True))
    after = contents(tmp_path / "out")
    assert {name: digest for name, digest in after.items() if not name.startswith(".building")} == before
    with pytest.raises(OptionError, match="pass --overwrite again"):
        convert(ConvertOptions(tree, tmp_path / "out", num_workers=1, seed=3))


@pytest.mark.parametrize("overwrite", [False, True])
def test_foreign_files_are_never_touched(tree: Path, tmp_path: Path, *, overwrite: bool) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("x")
    with pytest.raises(OptionError, match=r"holds files that no conversion wrote \(thesis\.tex\)"):
        convert(ConvertOptions(tree, tmp_path / "out", num_workers=1, overwrite=overwrite))
    assert contents(tmp_path / "out").keys() == {"thesis.tex"}


def test_overwrite_refuses_a_dataset_with_foreign_files(tree: Path, tmp_path: Path) -> None:
    convert(ConvertOptions(tree, tmp_path / "out", num_workers=1))
    (tmp_path / "out" / "notes.txt").write_text("x")
    with pytest.raises(OptionError, match=r"notes\.txt"):
        convert(ConvertOptions(tree, tmp_path / "out", num_workers=1, overwrite=True))


def test_two_runs_at_once_are_refused(tree: Path, tmp_path: Path) -> None:
    options = interrupted(tree, tmp_path / "out")
    building = tmp_path / "out" / ".building"
    with (building / "part-1-of-1.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match="another process is converting part 1/1"):
            convert(options)
    with (building / "part-2-of-2.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match="divides the work differently"):
            convert(options)
    assert convert(options).is_finished


# -- sources ------------------------------------------------------------------------------------


def test_train_and_val_are_two_commands(tmp_path: Path) -> None:
    for name in ("train", "val"):
        make_tree(tmp_path / "source" / name, num_classes=1, per_class=1)
    done = run_cli("convert", tmp_path / "source", tmp_path / "out", "--to", "webdataset")
    assert done.returncode == 2
    for name in ("train", "val"):
        assert f"datapipe convert {tmp_path / 'source' / name} DST/{name} --to webdataset" in done.stderr
    assert not (tmp_path / "out").exists()


def test_sources_without_images(tmp_path: Path) -> None:
    (tmp_path / "source" / "k").mkdir(parents=True)
    (tmp_path / "source" / "k" / "readme.txt").write_text("x")
    with pytest.raises(MissingDataError, match=r"no images in its 1 class folders \(1 other files\)"):
        convert(ConvertOptions(tmp_path / "source", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_empty_classes_stay_and_are_said(tree: Path, tmp_path: Path) -> None:
    (tree / "class_00").mkdir()
    report = convert(ConvertOptions(tree, tmp_path / "out", num_workers=1))
    assert any("class_00" in warning for warning in report.warnings)
    assert read_manifest(tmp_path / "out").classes == ("class_0", "class_00", "class_1", "class_2")


@pytest.mark.parametrize("place", ["out", "source/out"])
def test_destination_within_the_source_is_refused(tmp_path: Path, place: str) -> None:
    make_tree(tmp_path / "source")
    source = tmp_path / "source" if place != "out" else tmp_path / "out" / "source"
    with pytest.raises(OptionError, match="lie within each other"):
        ConvertOptions(source, tmp_path / place)


# -- options and the command line ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "nbytes"), [("256MB", 256_000_000), ("256MiB", 1 << 28), ("1.5GB", 1_500_000_000), ("7", 7), ("2 kb", 2000)]
)
def test_sizes(text: str, nbytes: int) -> None:
    assert parse_nbytes(text) == nbytes


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *[(parse_nbytes, text) for text in ("", "0", "MB", "-1MB", "1XB", "0.1")],
        *[(Resize.parse, text) for text in ("256", "shorter", "shorter:0", "exact:5", "exact:5x", "wider:3", "shorter:100000")],
        *[(Resize.parse, text) for text in ("exact:99999x99999", "exact:13378x13378", "shorter:13378")],
        *[(Encode.parse, text) for text in ("jpg", "jpeg", "jpeg:0", "jpeg:101", "webp")],
        *[(Split.parse_all, text) for text in ("train", "a=0.5", "a=0.5,a=0.5", "a=0,b=1", "a/b=1", "quarantine=1", "a=.9,b=.2")],
        *[(Limit.parse, text) for text in ("-1", "x", "101%", "1.5")],
        *[(Part.parse, text) for text in ("0/2", "3/2", "1", "1/0")],
    ],
)
def test_nonsense_is_refused(parse: object, text: str) -> None:
    assert callable(parse)
    with pytest.raises(OptionError):
        parse(text)


@pytest.mark.parametrize("option", ["source", "destination", "root", "class_map"])
@pytest.mark.parametrize("name", ["a\0b", "\ud800", "n" * 256, "d/" * 2500], ids=["NUL", "half a character", "long", "deep"])
def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path, option: str, name: str) -> None:
    paths = {"source": tmp_path / "in", "destination": tmp_path / "out", option: tmp_path / name}
    with pytest.raises(OptionError, match=f"{option} is .* cannot be a file name"):
        ConvertOptions(**paths)
    if option == "source":
        with pytest.raises(OptionError, match="cannot be a file name"):
            verify(tmp_path / name)


@pytest.mark.parametrize("to", OF_SAMPLES)
def test_a_destination_may_be_called_by_any_bytes(tmp_path: Path, to: str) -> None:
    """Files are the same as elsewhere, though tables, databases and Arrow files are written by libraries of others."""
    make_tree(tmp_path / "in", num_classes=2, per_class=2)
    out = tmp_path / os.fsdecode(b"\xff\x1b?#%41'\n")
    for destination in (out / "a", tmp_path / "plain"):
        convert(ConvertOptions(tmp_path / "in", destination, to=to, num_workers=1))
    assert contents(out / "a") == contents(tmp_path / "plain")


def test_shares_are_exact() -> None:
    assert len(Split.parse_all("a=0.1,b=0.2,c=0.7")) == 3


def test_limit_and_fail_do_not_go_together(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--max-errors has no effect"):
        ConvertOptions(tree, tmp_path / "out", max_errors=Limit(3))


def test_parts_cannot_overwrite(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--overwrite with --part"):
        convert(ConvertOptions(tree, tmp_path / "out", part=Part(1, 2), overwrite=True))


@pytest.mark.nightly
def test_command_line(tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    usage = run_process("convert", tree, out, "--to", "webdataset", "--resize", "256")
    assert usage.returncode == 2
    assert "shorter:256" in usage.stderr
    dry = run_cli("convert", tree, out, "--to", "webdataset", "--dry-run")
    assert dry.returncode == 0
    assert "would hold 24 samples of 3 classes" in dry.stdout
    assert "free" in dry.stdout
    assert not out.exists()
    done = run_process("convert", tree, out, "--to", "webdataset", "--json", "--workers", "1")
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert (value["num_samples"], value["is_finished"]) == (24, True)
    again = run_cli("convert", tree, out, "--to", "webdataset", "--seed", "1")
    assert again.returncode == 2
    assert "pass --overwrite" in again.stderr
    missing = run_process("convert", tmp_path / "nothing", tmp_path / "other", "--to", "webdataset")
    assert missing.returncode == 1
    assert "no such file or directory" in missing.stderr
    assert "example:" in run_cli("convert", "--help").stdout
    for result in (usage, dry, done, again, missing):
        assert "Traceback" not in result.stderr


def test_bad_sample_on_the_command_line(tree: Path, tmp_path: Path) -> None:
    (tree / "class_1" / "text.jpg").write_bytes(b"hello")
    done = run_cli("convert", tree, tmp_path / "out", "--to", "webdataset", "--workers", "2")
    assert done.returncode == 1
    assert "class_1/text.jpg: bad sample: not an image" in done.stderr
    assert "Traceback" not in done.stderr
