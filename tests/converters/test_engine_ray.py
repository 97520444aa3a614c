"""Conversions on a Ray cluster of two nodes: the bytes, errors and stops of the local engine, whatever dies."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import TwoNodes, two_nodes
from test_convert_killed import assert_gone, children
from trees import ROOT, cli_command, contents, make_tree, run_main, run_process

from converters import Advance, ConvertOptions, Encode, OnError, Part, convert
from converters.engines.ray import task
from datapipe.errors import DecodeError, DependencyError, OptionError, StorageError

ray = pytest.importorskip("ray", reason="Ray is not installed (the extra `ray`)")

pytestmark = pytest.mark.nightly

SHARD_NBYTES = 40_000


@pytest.fixture(scope="module")
def nodes() -> Iterator[TwoNodes]:
    with two_nodes() as nodes:
        yield nodes


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images for a dozen shards, one of them damaged."""
    top = make_tree(tmp_path_factory.mktemp("ray") / "source", num_classes=4, per_class=100)
    (top / "class_1" / "img 7.jpg").write_bytes(b"not an image")
    return top


def options_of(source: Path, out: Path, **settings: Any) -> ConvertOptions:
    settings = {"shard_nbytes": SHARD_NBYTES, "num_workers": 2, "on_error": OnError.QUARANTINE, **settings}
    return ConvertOptions(source, out, **settings)


@pytest.fixture(scope="module")
def reference(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the local engine writes."""
    out = tmp_path_factory.mktemp("ray") / "reference"
    report = convert(options_of(source, out))
    assert (report.num_errors, report.num_samples) == (1, 399)
    assert report.num_written > 8
    return contents(out)


def temporaries(out: Path) -> list[Path]:
    return list((out / ".building").glob("*.part"))


def assert_nothing_goes_on(out: Path) -> None:
    """No task writes any more. Files that a killed one has not finished may lie there; the next run removes them."""

    def written() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in (out / ".building").rglob("*")}

    before = written()
    time.sleep(0.5)
    assert written() == before


def test_the_bytes_and_the_progress_of_the_local_engine(
    nodes: TwoNodes, source: Path, reference: dict[str, str], tmp_path: Path
) -> None:
    told: list[Advance] = []
    report = convert(options_of(source, tmp_path / "out", engine="ray", num_workers=None), told.append)
    assert contents(tmp_path / "out") == reference
    assert report.num_errors == 1
    written = [advance for advance in told if advance.phase.value != told[0].phase.value]
    assert (sum(one.num_samples for one in written), sum(one.num_errors for one in written)) == (400, 1)
    assert convert(options_of(source, tmp_path / "out")).compared is not None, "the engine is no property of the dataset"


def test_parts_and_engines_mix(nodes: TwoNodes, source: Path, reference: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert not convert(options_of(source, out, part=Part(2, 2))).is_finished
    report = convert(options_of(source, out, engine="ray"))
    assert report.num_resumed > 0 < report.num_written
    assert contents(out) == reference


def test_a_bad_sample_ends_the_run_as_locally(nodes: TwoNodes, source: Path, tmp_path: Path) -> None:
    found = []
    for engine in ("local", "ray"):
        with pytest.raises(DecodeError) as caught:
            convert(options_of(source, tmp_path / "out", engine=engine, on_error=OnError.FAIL))
        found.append(str(caught.value))
        assert_nothing_goes_on(tmp_path / "out")
    assert not temporaries(tmp_path / "out"), "tasks clear up; the local engine's workers are killed"
    assert found[0] == found[1]
    assert "img 7.jpg: bad sample" in found[0]


def test_an_interrupt_ends_every_task(nodes: TwoNodes, source: Path, reference: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"

    def interrupt(advance: Advance) -> None:
        if advance.total and advance.num_samples:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(options_of(source, out, engine="ray", encode=Encode("png")), interrupt)
    assert not temporaries(out)
    num_done = len(list(out.glob(".building/done/*")))
    assert_nothing_goes_on(out)
    report = convert(options_of(source, out, engine="ray", encode=Encode("png")))
    assert report.num_resumed == num_done


def test_a_task_that_comes_after_the_end_builds_nothing(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    stop.touch()
    assert list(task.build({}, (), str(stop), {}, frozenset())) == []


def test_nodes_with_other_versions_are_refused_by_name(
    nodes: TwoNodes, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command has another pyarrow than the nodes; then a node that joined later has."""
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.2.3" if name == "pyarrow" else version(name))
    out = tmp_path / "out"
    with pytest.raises(DependencyError, match=rf"\(\S+\) has pyarrow {version('pyarrow')} instead of 1\.2\.3; "):
        convert(options_of(source, out, engine="ray"))
    monkeypatch.setattr("converters.engines.ray._compare_versions", lambda ray, expected: frozenset())
    with pytest.raises(DependencyError, match=r"has pyarrow \S+ instead of 1\.2\.3; install the same versions on every node"):
        convert(options_of(source, out, engine="ray"))
    assert not list(out.rglob("*.tar"))


def test_a_disk_that_nodes_do_not_see_is_named(
    nodes: TwoNodes, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from converters.engines import ray as engine

    to_json = engine.to_json
    monkeypatch.setattr(engine, "to_json", lambda job: {**to_json(job), "root": "/mnt/only-here"})
    with pytest.raises(StorageError, match=r"/mnt/only-here: not found on node .*; source and destination must be on a disk"):
        convert(options_of(source, tmp_path / "out", engine="ray"))


def test_the_command_killed_and_run_again(nodes: TwoNodes, source: Path, reference: dict[str, str], tmp_path: Path) -> None:
    """SIGTERM ends it as it ends a local run. After SIGKILL while tasks write, the same command gives the same bytes.

    In this order: tasks of a killed command may finish a shard before the next command can be interrupted.
    """
    out = tmp_path / "out"
    arguments = ("--to", "webdataset", "--shard-size", str(SHARD_NBYTES), "--workers", "2", "--on-error", "quarantine")
    command = cli_command("convert", source, out, *arguments, "--engine", "ray", "--address", nodes.address)
    for number in (signal.SIGTERM, signal.SIGKILL):
        num_before = len(list(out.glob(".building/done/*")))
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            deadline = time.monotonic() + 90
            while len(list(out.glob(".building/done/*"))) <= num_before and time.monotonic() < deadline:
                assert process.poll() is None, process.communicate()
                time.sleep(0.01)
            process.send_signal(number)
            output, errors = process.communicate(timeout=60)
        assert output == ""
        if number == signal.SIGTERM:
            assert process.returncode == 130
            assert "interrupted; run the same command again to resume" in errors
            assert "Traceback" not in errors
            assert not temporaries(out)
    assert run_main("convert", source, out, *arguments, "--engine", "ray") == 0
    assert contents(out) == reference


def test_a_node_killed_in_the_middle(nodes: TwoNodes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It leaves one node, which builds the rest."""
    source = make_tree(tmp_path / "source", num_classes=2, per_class=30, size=(300, 400))
    settings = {"encode": Encode("png"), "shard_nbytes": sum(path.stat().st_size for path in source.glob("*/*")) // 6}
    convert(options_of(source, tmp_path / "reference", **settings))
    out = tmp_path / "out"
    killed: list[int] = []

    def kill() -> None:
        deadline = time.monotonic() + 60
        while len(temporaries(out)) < 2 and time.monotonic() < deadline:  # one core each, so one shard on either node
            time.sleep(0.002)
        raylet = nodes.second.all_processes["raylet"][0].process.pid
        killed.extend([raylet, *children(raylet)])
        for pid in killed:  # at once, as when a machine dies
            os.kill(pid, signal.SIGKILL)

    killing = threading.Thread(target=kill)
    killing.start()
    report = convert(options_of(source, out, engine="ray", **settings))
    killing.join()
    nodes.cluster.remove_node(nodes.second, allow_graceful=False)
    assert len(killed) > 1
    assert report.num_samples == 60
    assert "is built again: its task died" in caplog.text
    assert contents(out) == contents(tmp_path / "reference")


def test_a_cluster_of_its_own_ends_with_the_command(source: Path, reference: dict[str, str], tmp_path: Path) -> None:
    """Without an address; and one whose command is killed leaves no process."""
    out = tmp_path / "out"
    arguments = ("--to", "webdataset", "--shard-size", str(SHARD_NBYTES), "--on-error", "quarantine", "--engine", "ray")
    command = cli_command("convert", source, out, *arguments, "--workers", "1")
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 90
        while not list(out.glob(".building/done/*")) and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        started = children(process.pid)
        process.kill()
    assert started
    assert_gone(started)
    again = run_process("convert", source, out, *arguments)
    assert again.returncode == 0, again.stderr
    assert contents(out) == reference


def test_another_cluster_than_that_of_this_process(nodes: TwoNodes, tree: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=rf"--address 10\.0\.0\.1:6379: this process is connected to {nodes.address}; "):
        convert(ConvertOptions(tree, tmp_path / "out", engine="ray", address="10.0.0.1:6379"))


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ray://127.0.0.1:10001", "Ray's client (ray://) is no part of the cluster"),
        ("127.0.0.1:1", "no Ray cluster at --address"),
    ],
)
def test_addresses_where_no_cluster_answers(address: str, message: str, tree: Path, tmp_path: Path) -> None:
    """By a process of its own, as this one is connected."""
    done = run_process("convert", tree, tmp_path / "out", "--to", "webdataset", "--engine", "ray", "--address", address)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
