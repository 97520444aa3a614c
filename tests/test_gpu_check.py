"""The GPU check, as far as a CPU can hold it: a dry run of every stage, and what is arithmetic in it."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.environment import ROOT
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.device_code import MACHINE_CODE, blank_others, fat_binaries
from benchmarks.gpu.job import run_job
from benchmarks.gpu.look import telling_lines
from benchmarks.gpu.pace import Pace
from benchmarks.gpu.pack import drop_unneeded, pack
from benchmarks.gpu.report import Report, read_reports
from benchmarks.gpu.settings import STAGES, Check
from benchmarks.gpu.summary import as_text
from benchmarks.gpu.train import best_settings


def make_check(tmp_path: Path) -> Check:
    return Check(out=tmp_path / "results", data=tmp_path / "data", is_dry=True)


def test_every_stage_runs_dry(tmp_path: Path) -> None:
    out = tmp_path / "results"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "all", "--dry-run", "--out", str(out), "--data", str(tmp_path / "data")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    reports = read_reports(out)
    assert set(reports) == set(STAGES)
    for report in reports.values():
        assert report["is_finished"]
        assert report["is_dry_run"]
        assert report["measurements"]
        assert not report["failures"]
    for stage in STAGES:
        assert f"== {stage}: done" in done.stdout
    compared = [entry for entry in reports["parity"]["measurements"] if "p99.9" in entry]
    assert any(entry["mean"] > 0 for entry in compared), "DALI's pixels are never quite torch's: were they compared?"
    assert {entry["question"] for entry in reports["overlap"]["measurements"]} == {"bus", "supply", "idle", "hold"}
    assert {entry["phase"] for entry in reports["sweep"]["measurements"]} >= {"first", "settings", "rounds", "medians", "batch"}
    best = best_settings(Check(out=out, data=tmp_path, is_dry=True), "photos")
    assert best.keys() >= {"gpu-ours-dali", "gpu-dali", "gpu-ours-cpu"}


def test_without_a_gpu_it_says_so_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", "sweep", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="torch finds no GPU; --dry-run"):
        main()
    assert not list(tmp_path.iterdir())


# -- processes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("environment", [None, {}], ids=["forked", "fresh"])
def test_a_job_that_fails_keeps_what_it_had(tmp_path: Path, environment: dict[str, str] | None) -> None:
    arguments = {"data": str(tmp_path), "seconds": 0.05, "warmup_s": 0.0, "variants": [
        {"contender": "gpu-synthetic", "batch_size": 2}, {"contender": "gpu-ours-cpu", "batch_size": 2}, {"contender": "no such"},
    ]}  # fmt: skip
    outcome = run_job(make_check(tmp_path), "rates", arguments, limit_s=60, environment=environment)
    assert outcome.results[0]["images_per_s"] > 0
    assert "error" in outcome.results[1], "there are no images"
    assert "error" in outcome.results[2]
    assert outcome.problem is None
    broken = run_job(make_check(tmp_path), "rates", {"variants": [{}]}, limit_s=60, environment=environment)
    assert broken.problem is not None
    assert "TypeError" in broken.problem
    assert "exit code 1" in broken.problem


def test_a_job_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    arguments = {"data": "", "seconds": 60, "warmup_s": 0.0, "variants": [{"contender": "gpu-synthetic", "batch_size": 2}]}
    outcome = run_job(make_check(tmp_path), "rates", arguments, limit_s=3)
    assert outcome.problem is not None
    assert outcome.problem.startswith("stopped after 3 s")
    assert outcome.wall_s < 20


# -- results -------------------------------------------------------------------------------------


def test_a_report_is_on_disk_at_every_moment(tmp_path: Path) -> None:
    report = Report("look", make_check(tmp_path))
    report.add("first", {"value": 1.5})
    assert read_reports(tmp_path / "results")["look"]["measurements"] == [{"what": "first", "value": 1.5}]
    report.skip("second", "no time")
    with report.attempt("third"):
        raise SystemExit("ValueError: broken")
    report.expect("fourth", True, "holds")
    found = read_reports(tmp_path / "results")["look"]
    assert not found["is_finished"]
    assert [entry["what"] for entry in found["skipped"]] == ["second"]
    assert [entry["what"] for entry in found["failures"]] == ["third"]
    text = as_text(tmp_path / "results")
    assert "look: CUT OFF" in text
    assert "ValueError: broken" in text
    assert "sweep: did not run" in text


def test_training_takes_the_settings_that_were_fastest(tmp_path: Path) -> None:
    check = make_check(tmp_path)
    assert best_settings(check, "photos") == {}
    report = Report("sweep", check)
    for phase, name, load, rate in (
        ("first", "photos", 0.65, 5000.0),
        ("settings", "photos", 0.12, 7000.0),
        ("settings", "photos", 0.9, 6000.0),
        ("settings", "256", 1.0, 9000.0),
        ("cores", "photos", 0.0, 8000.0),
    ):
        options = {"dali": {"hw_decoder_load": load}}
        report.add(phase, {"phase": phase, "set": name, "contender": "gpu-ours-dali", "options": options, "images_per_s": rate})
    assert best_settings(check, "photos") == {"gpu-ours-dali": {"dali": {"hw_decoder_load": 0.12}}}


def test_idle_share_is_gaps_over_steps() -> None:
    pace = Pace(gap_ms=[1.0, 0.0, 2.0], compute_ms=[9.0, 10.0, 8.0], host_wait_ms=[0.1, 0.2, 5.0])
    found = pace.summed_up(batch_size=30)
    assert found["idle_share"] == pytest.approx(0.1)
    assert found["images_per_s"] == pytest.approx(3000)
    assert (found["gap_ms"], found["gap_ms_highest"], found["compute_ms"]) == (1.0, 2.0, 9.0)


def test_plots_are_made_of_results(tmp_path: Path) -> None:
    from benchmarks.gpu.plots import plot_all

    with pytest.raises(SystemExit, match="nothing to plot"):
        plot_all(tmp_path)
    rate: dict[str, Any] = {"set": "photos", "options": {}, "batch_size": 256, "num_threads": 16}
    sweep = [
        {**rate, "phase": phase, "contender": contender, "images_per_s": value, **about}
        for contender, value in (("gpu-ours-dali", 9000.0), ("gpu-torch", 4000.0))
        for phase, about in (("first", {}), ("rounds", {}), ("cores", {"num_cores": 4}))
    ]
    train = [{"model": "resnet18", "set": "photos", "contender": "gpu-torch", "images_per_s": 4000.0, "idle_share": 0.5}]
    for stage, measurements in (("sweep", sweep), ("train", train)):
        (tmp_path / f"gpu-{stage}.json").write_text(json.dumps({"is_dry_run": False, "measurements": measurements}))
    names = {path.name for path in plot_all(tmp_path)}
    rates = {"gpu-rates-photos.png", "gpu-cores-photos.png"}
    assert names == rates | {"gpu-train-rate-resnet18-photos.png", "gpu-train-idle-resnet18-photos.png"}


def test_log_lines_that_tell_something() -> None:
    log = "\x1b[0;32m[INFO] \x1b[0m[nvjpeg-ext] nvJPEG version: 13.2.0\nregistering decoder\n[WARNING] HW decoder not supported\n"
    assert telling_lines(log * 2) == ["[INFO] [nvjpeg-ext] nvJPEG version: 13.2.0", "[WARNING] HW decoder not supported"]


# -- carrying ------------------------------------------------------------------------------------


def fat_binary(payloads: list[tuple[int, int, bytes]]) -> bytes:
    """(kind, architecture, code) each, as the compiler embeds them."""
    entries = b"".join(
        struct.pack("<HHIQ", kind, 0x101, 64, len(code)) + bytes(12) + struct.pack("<I", architecture) + bytes(32) + code
        for kind, architecture, code in payloads
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


def test_only_other_gpus_code_is_blanked(tmp_path: Path) -> None:
    mine, other, text = b"\x90" * 40, b"\x80" * 24, b"//ptx" * 8
    with_mine = fat_binary([(MACHINE_CODE, 80, other), (MACHINE_CODE, 90, mine), (1, 120, text)])
    without = fat_binary([(MACHINE_CODE, 80, other), (1, 80, text)])
    magic_alone = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 10**9)
    image = b"head" + with_mine + b"between" + magic_alone + without + b"tail"
    assert [[payload.architecture for payload in found] for found in fat_binaries(image)] == [[80, 90, 120], [80, 80]]
    path = tmp_path / "lib.so"
    path.write_bytes(image)
    assert blank_others(path, 90) == len(other) + len(text)
    blanked = path.read_bytes()
    assert blanked == image.replace(other, bytes(len(other)), 1).replace(text, bytes(len(text)), 1)
    assert mine in blanked
    assert blanked.count(other) == 1, "a fat binary without code for this GPU stays whole"
    assert blank_others(path, 90) == len(other) + len(text), "again changes nothing"
    assert path.read_bytes() == blanked


def test_parts_hold_what_is_needed_and_no_more(tmp_path: Path) -> None:
    site = tmp_path / "site"
    kept = [
        "pkg/mod.py",
        "pkg/ext.cpython-312-x86_64-linux-gnu.so",
        "pkg-1.dist-info/METADATA",
        "nvidia/cu13/lib/libnvjpeg.so.13",
    ]
    dropped = ["pkg/ext.cpython-311-x86_64-linux-gnu.so", "pkg/tests/test_mod.py", "pkg/include/a.h", "pkg/a.pyx"]
    for name in kept + dropped:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(name.encode() * 50)
    assert drop_unneeded(site, "3.12") == sum(50 * len(name) for name in dropped)
    (tmp_path / "set.tar.xz.07").write_bytes(b"of an earlier run")
    parts = pack(site, tmp_path / "set.tar.xz", part_nbytes=150, level="0")
    assert len(parts) > 1
    assert parts == sorted(tmp_path.glob("set.tar.xz.*"))
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    command = f"cat '{tmp_path}'/set.tar.xz.* | xz -dc -T0 | tar -x -C '{unpacked}'"
    subprocess.run(command, shell=True, check=True)
    assert sorted(str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()) == sorted(kept)
    assert all((unpacked / name).read_bytes() == name.encode() * 50 for name in kept)
