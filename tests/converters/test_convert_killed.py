"""A conversion may die anywhere; the same command then gives the bytes of an undisturbed run."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fixtures import mostly_nightly
from index_trees import hugging_face
from source_trees import pairs
from trees import ROOT, cli_command, contents, make_tree, run_cli

from converters import ConvertOptions, Split, convert
from converters.publishing.destination import holds_dataset
from datapipe.errors import UnfinishedError
from datapipe.index.manifest import read_manifest

KILLS: list[tuple[Any, ...]] = [  # to, flags, the first change before which it is killed, and how many further on the next
    ("webdataset", (), 3, 11),
    ("webdataset", (), 1, 1),  # before every change; the others, most of whose changes are the same, before some
    ("webdataset", ("overwrite",), 2, 4), ("hdf5", (), 1, 3), ("parquet", (), 2, 3),
    ("webdataset", ("split",), 1, 4), ("webdataset", ("twice",), 3, 5), ("webdataset", ("pairs",), 1, 5), ("tfrecord", (), 1, 3),
    ("hdf5", ("overwrite",), 1, 5), ("hdf5", ("hub",), 1, 20), ("webdataset", ("videos",), 3, 12),
    ("parquet", ("sounds",), 2, 12),
]  # fmt: skip


@pytest.mark.promise("convert: Stopping and resuming")
@pytest.mark.parametrize(
    ("to", "flags", "first", "step"),
    mostly_nightly(KILLS, KILLS[0]),
    ids=lambda value: value if isinstance(value, str) else None if isinstance(value, int) else value[0] if value else "plain",
)
def test_killed_before_changes_to_the_disk(tmp_path: Path, to: str, flags: tuple[str, ...], first: int, step: int) -> None:
    source = tmp_path / "source"
    if "pairs" in flags:  # whose scan keeps a database of its own
        pairs(source)
    elif "hub" in flags:  # whose values are spooled
        hugging_face(source)
    elif "videos" in flags:  # whose packets are copied
        small_videos(source)
    elif "sounds" in flags:
        small_sounds(source)
    else:
        make_tree(source, num_classes=2, per_class=8)
    split = Split.parse_all("train=0.7,val=0.3") if "split" in flags else ()
    reference = tmp_path / "reference"
    convert(ConvertOptions(source, reference, to=to, shard_nbytes=12_000, num_workers=1, split=split))
    assert len(list(reference.rglob("*-000001.*"))) >= 2
    driver = Path(__file__).with_name("kill_driver.py")
    (tmp_path / "scratch").mkdir()
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{driver.parent}"}
    done = subprocess.run(
        [sys.executable, driver, source, tmp_path / "scratch", reference, to, str(first), str(step), *flags],
        capture_output=True, text=True, env=environment, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 30 // step


def small_sounds(root: Path) -> Path:
    """Six recordings of about 6 KB. Skips the test without soundfile."""
    pytest.importorskip("soundfile")
    from sound_files import sound, write_sound

    for number in range(6):
        write_sound(root / f"{number}.flac", sound(0.2, seed=number))
    return root


def small_videos(root: Path) -> Path:
    """Six videos of about 5 KB. Skips the test without PyAV."""
    pytest.importorskip("av")
    from video_files import pictures, write_video

    root.mkdir()
    for number in range(6):
        write_video(root / f"{number}.mp4", frames=pictures(12, 64, 48, number))
    return root


@pytest.mark.promise("convert: Stopping and resuming")
@pytest.mark.nightly
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """The whole program with two workers, killed up to a few times in a row, and resumed."""
    source = make_tree(tmp_path / "source", num_classes=4, per_class=150)
    arguments = ("--to", "webdataset", "--shard-size", "20KB", "--workers", "2", "--encode", "png")
    reference = tmp_path / "reference"
    assert run_cli("convert", source, reference, *arguments).returncode == 0
    moments, num_killed, out = random.Random(0), 0, tmp_path / "out"
    for _ in range(6):
        num_awaited = len(list(out.glob(".building/done/*"))) + moments.randrange(4)  # shards finished before the kill
        with subprocess.Popen(cli_command("convert", source, out, *arguments), cwd=ROOT, stderr=subprocess.PIPE) as process:
            while process.poll() is None and len(list(out.glob(".building/done/*"))) < num_awaited:
                time.sleep(0.002)
            time.sleep(moments.uniform(0, 0.02))
            workers = children(process.pid)
            num_killed += process.poll() is None
            process.kill()
        assert_gone(workers)
        if out.exists() and any(out.iterdir()) and (out / ".building").is_dir():
            with pytest.raises(UnfinishedError):
                read_manifest(out)
    last = run_cli("convert", source, out, *arguments)
    assert last.returncode == 0, last.stderr
    assert num_killed
    assert contents(out) == contents(reference)


@pytest.mark.promise("convert: Stopping and resuming")
@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(tmp_path: Path, number: signal.Signals) -> None:
    """Exit status 130, workers gone, no traceback, and a hint that it resumes."""
    source = make_tree(tmp_path / "source", num_classes=4, per_class=50, size=(150, 200))
    arguments = ("--to", "webdataset", "--shard-size", "100KB", "--workers", "2", "--encode", "png")
    out = tmp_path / "out"
    with subprocess.Popen(
        cli_command("convert", source, out, *arguments), cwd=ROOT, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 60
        while not list(out.glob(".building/done/*.json")) and time.monotonic() < deadline:
            time.sleep(0.01)
        workers = children(process.pid)
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "resume" in errors
    assert len(workers) >= 2
    assert_gone(workers)
    with pytest.raises(UnfinishedError):
        read_manifest(out)
    assert run_cli("convert", source, out, *arguments).returncode == 0
    assert run_cli("verify", out).returncode == 0


@pytest.mark.promise("convert: Several machines")
@pytest.mark.nightly
@pytest.mark.parametrize("parts", [("1/3", "2/3", "3/3"), (None, None, None)], ids=["parts", "the same run thrice"])
def test_runs_at_the_same_time(tmp_path: Path, parts: tuple[str | None, ...]) -> None:
    """Parts share the work; of equal runs one works and the others say so. No run disturbs another."""
    source = make_tree(tmp_path / "source", num_classes=2, per_class=30)
    arguments = ("--to", "webdataset", "--shard-size", "5KB", "--workers", "1")
    out, reference = tmp_path / "out", tmp_path / "reference"
    convert(ConvertOptions(source, reference, shard_nbytes=5_000, num_workers=1))
    commands = [cli_command("convert", source, out, *arguments, *(("--part", part) if part else ())) for part in parts]
    processes = [
        subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for command in commands
    ]
    results = [(process.communicate(timeout=60), process.returncode) for process in processes]
    if parts[0]:
        assert [status for _, status in results] == [0, 0, 0], results
    else:
        assert 0 in [status for _, status in results]
        for (_, errors), status in results:
            assert status == 0 or "another process is converting" in errors
    assert contents(out) == contents(reference)


def test_a_run_that_comes_too_late_leaves_the_finished_dataset_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process finishes between this run's look at the destination and its first step."""
    source, out = make_tree(tmp_path / "source"), tmp_path / "out"
    options = ConvertOptions(source, out, shard_nbytes=5_000, num_workers=1)
    convert(options)
    before = contents(out)
    monkeypatch.setattr("converters.conversion.already_ended", lambda destination, options: None)
    report = convert(options)
    assert report.is_finished
    assert (report.num_written, report.num_samples) == (0, 24)
    assert contents(out) == before
    assert not (out / ".building").exists()


def test_a_run_that_finishes_while_another_looks_is_not_called_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = make_tree(tmp_path / "source"), tmp_path / "out"
    options = ConvertOptions(source, out, shard_nbytes=5_000, num_workers=1)
    (out / ".building").mkdir(parents=True)
    looks = []

    def look(directory: Path) -> bool:
        looks.append(directory)
        if len(looks) == 1:
            convert(options)
        return holds_dataset(directory)

    monkeypatch.setattr("converters.publishing.destination.holds_dataset", look)
    report = convert(options)
    assert report.is_finished
    assert report.num_written == 0
    assert len(looks) > 2


def children(parent: int) -> list[int]:
    """Processes whose parent is `parent`."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(name))
    return found


def assert_gone(processes: list[int]) -> None:
    """Every process ends within seconds (a zombie has ended)."""
    deadline = time.monotonic() + 10
    while (left := [pid for pid in processes if is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
