"""The GPU check, as far as a CPU can hold it: a dry run of every stage, and what is arithmetic in it."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks.contenders.ours import open_loader
from benchmarks.contenders.ours_gpu import check_decoder
from benchmarks.environment import ROOT
from benchmarks.gpu import correct
from benchmarks.gpu import tests as gpu_tests
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.device_code import MACHINE_CODE, blank_others, fat_binaries
from benchmarks.gpu.earlier import best_settings
from benchmarks.gpu.job import Outcome, run_job
from benchmarks.gpu.look import telling_lines
from benchmarks.gpu.pace import Pace
from benchmarks.gpu.pack import MIB, drop_unneeded, pack
from benchmarks.gpu.pack import main as gather
from benchmarks.gpu.rates import Variant
from benchmarks.gpu.report import Report, read_reports
from benchmarks.gpu.settings import FIRST_HALF, SECOND_HALF, STAGES, Check, Deadline
from benchmarks.gpu.summary import as_text
from benchmarks.gpu.sweep import Sweep, merged
from benchmarks.task import Task
from datapipe.testing.synthetic_images import make_image_folder


def make_check(tmp_path: Path) -> Check:
    return Check(out=tmp_path / "results", data=tmp_path / "data", is_dry=True)


def call(work: Path, out: Path, home: Path, *stages: str) -> subprocess.CompletedProcess[str]:
    """A call as it is typed on a GPU machine, for a dry run: torch may have all cores. `home`: where `.gpu` is."""
    given = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    variables = {"WORK": str(work), "OUT": str(out), "PYTHON": sys.executable, "GPU_ARGS": "--dry-run", "COMMIT": "abc"}
    return subprocess.run(
        ["bash", str(ROOT / "benchmarks/gpu/call.sh"), *stages],
        cwd=home,
        env=given | {"PYTHONPATH": str(ROOT)} | variables,
        capture_output=True,
        text=True,
        timeout=550,
    )


@pytest.mark.nightly
def test_every_stage_runs_dry(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = call(tmp_path / "work", out, tmp_path, "all")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    reports = read_reports(out)
    assert set(reports) == set(STAGES)
    assert len(list(out.iterdir())) <= len(STAGES) + 1, "a result each, and a log"
    for report in reports.values():
        assert report["is_finished"]
        assert report["is_dry_run"]
        assert report["measurements"]
        assert not report["failures"]
        assert report["environment"]["commit"] == "abc"
    for stage in STAGES:
        assert f"== {stage}: done" in done.stdout
    correct = reports["correct"]["measurements"]
    assert reports["correct"]["decodes_regions"] is True
    compared = [entry for entry in correct if "p99.9" in entry]
    assert any(entry["mean"] > 0 for entry in compared), "DALI's pixels are never quite torch's: were they compared?"
    assert any("busy" in entry["against"] for entry in compared)
    verdicts = {entry["how"]: entry for entry in reports["damaged"]["measurements"]}
    assert verdicts["text"]["num_bad"] == verdicts["cut"]["num_bad"] == 9
    assert "zeros in the body" in verdicts, "damaged bodies are not exempted"
    assert [entry["ended_well"] for entry in correct if "ended_well" in entry] == [True]
    phases = {entry["phase"] for entry in reports["sweep"]["measurements"]}
    assert phases >= {"first", "settings", "rounds", "medians", "kept"}  # and "combined", where a setting was faster
    (accuracy,) = (entry for entry in reports["diagnose"]["measurements"] if entry["question"] == "accuracy")
    assert accuracy["pause_ms"] >= accuracy["delay_ms"] == 5
    assert accuracy["told_ms"] > 2.5, "it was told to wait 5 ms at each step"
    assert {entry["question"] for entry in reports["overlap"]["measurements"]} == {"bus", "supply", "idle", "hold"}
    further = reports["further"]["measurements"]
    assert {entry["mode"] for entry in correct if entry.get("phase") == "capture"} == {"thread_local", "global"}
    asked = [entry.get("question") or entry.get("of") for entry in correct]
    assert asked[1:5] == ["regions", "regions", "whole images", "whole images"]
    assert {(entry["of"], entry["load"]) for entry in correct if "of" in entry} == {
        (of, load) for of in ("regions", "whole images") for load in (0.0, 1.0)
    }
    first = [entry for entry in reports["sweep"]["measurements"] if entry["phase"] == "first"]
    by_hand = [entry["options"] for entry in first if entry["contender"] == "gpu-dali"]
    assert by_hand == [{}]
    assert {entry["options"]["copy_priority"] for entry in further if "copy_priority" in entry.get("options", {})} == {0, -1}
    tables = reports["tables"]["measurements"]
    assert [entry["num_different"] for entry in tables if entry["question"] == "parity"] == [0, 0]
    assert {entry["feed"] for entry in tables if entry["question"] == "rate"} == {"ours, cuDF", "ours, Arrow", "cuDF by hand"}
    assert all(entry["idle_share"] <= 1 for entry in tables if entry["question"] == "train")
    best = best_settings(Check(out=out, data=tmp_path, is_dry=True))
    assert best.keys() >= {"gpu-ours-dali", "gpu-dali", "gpu-ours-cpu"}


@pytest.mark.nightly
def test_a_call_unpacks_and_brings_what_was_found_before(tmp_path: Path) -> None:
    home, work, out = tmp_path / "home", tmp_path / "work", tmp_path / "out"
    tree = tmp_path / "tree"
    (tree / "site").mkdir(parents=True)
    (tree / "site" / "carried.py").write_text("import pathlib, os; pathlib.Path(os.environ['OUT'], 'carried').touch()\n")
    (tree / "site" / "sitecustomize.py").write_text("import carried\n")
    pack(tree, home / ".gpu" / "payload.tar.xz", filters=["-0"])
    (tmp_path / "spare" / "nvimgcodec-0.8").mkdir(parents=True)
    pack(tmp_path / "spare", home / ".gpu" / "spare.tar.xz", filters=["-0"])
    (home / ".gpu" / "results").mkdir()
    (home / ".gpu" / "results" / "gpu-sweep.json").write_text('{"measurements": []}')
    done = call(work, out, home, "no-such-stage")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "invalid choice: 'no-such-stage'" in done.stdout
    assert (out / "carried").exists(), "what the payload holds is imported"
    assert (out / "gpu-sweep.json").exists()
    assert (work / "results" / "gpu-sweep.json").exists()
    assert (work / "spare" / "nvimgcodec-0.8").is_dir()
    (work / "payload" / "site" / "crc32c.py").write_text("raise ImportError('built for another Python')")
    refused = call(work, out, home, "correct")
    assert refused.returncode == 2
    assert "built for another Python" in (out / "log.txt").read_text()
    assert not (out / "gpu-correct.json").exists()


def test_two_halves_of_the_time_that_one_has() -> None:
    assert list(FIRST_HALF) == ["tests", "correct", "sweep", "train", "diagnose"]
    assert sum(FIRST_HALF.values()) <= 28, "a machine that one has for half an hour takes minutes to start"
    assert sum(SECOND_HALF.values()) <= 15
    assert len(FIRST_HALF) * 5.5 <= 28, "as --minutes 5.5"
    assert max(STAGES.values()) <= 8, "a call may take ten minutes, with what comes before and after its stage"


def test_what_is_told_to_be_typed_can_be_typed() -> None:
    readme = (ROOT / "benchmarks/gpu/README.md").read_text()
    commands = [line.strip() for line in readme.splitlines() if line.startswith("    ") and "call.sh" in line]
    assert [stage for line in commands for stage in line.partition("call.sh")[2].split() if stage in STAGES] == list(STAGES)
    assert all(len(line) < 2000 for line in commands)


def test_without_a_gpu_it_says_so_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", "sweep", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="torch finds no GPU; --dry-run"):
        main()
    assert not list(tmp_path.iterdir())


# -- processes -----------------------------------------------------------------------------------


@pytest.mark.nightly
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


@pytest.mark.nightly
def test_a_job_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    arguments = {"data": "", "seconds": 60, "warmup_s": 0.0, "variants": [{"contender": "gpu-synthetic", "batch_size": 2}]}
    outcome = run_job(make_check(tmp_path), "rates", arguments, limit_s=3)
    assert outcome.problem is not None
    assert outcome.problem.startswith("stopped after 3 s")
    assert outcome.wall_s < 20


# -- results -------------------------------------------------------------------------------------


def test_regions_that_take_the_process_down_are_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As nvImageCodec does with regions on some GPUs; what comes after it is measured all the same."""
    asked: list[tuple[str, float]] = []

    def run(check: Check, module: str, arguments: dict[str, Any], *, limit_s: float) -> Outcome:
        asked.append((arguments["of"], arguments["load"]))
        if asked[-1] == ("regions", 0.0):
            return Outcome([], "killed by SIGSEGV\nFatal Python error", 1.0, "")
        return Outcome([{"load": arguments["load"], "worst_mean_difference": 0.2, "nvjpeg": "13.2.3"}], None, 1.0, "")

    monkeypatch.setattr(correct, "some_files", lambda check, num: tmp_path)
    monkeypatch.setattr(correct, "run_job", run)
    report = Report("correct", make_check(tmp_path))
    assert correct._regions(make_check(tmp_path), report) is False
    assert asked == [("regions", 0.0), ("regions", 1.0), ("whole images", 0.0), ("whole images", 1.0)]
    found = read_reports(tmp_path / "results")["correct"]
    assert [(entry["what"], entry["why"][:17]) for entry in found["failures"]] == [
        ("DALI decodes regions, without the JPEG engines", "killed by SIGSEGV")
    ]
    assert [entry["nvjpeg"] for entry in found["measurements"]] == ["13.2.3"] * 3


def test_tests_that_fail_on_the_gpu_are_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(
        "import os, pytest\n@pytest.mark.gpu\ndef test_right(): pass\n@pytest.mark.gpu\ndef test_wrong(): assert 1 == 2, 'late'\n"
        "@pytest.mark.gpu\ndef test_crash():\n    if os.environ.get('CRASH'): os.abort()\ndef test_other(): assert False\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    monkeypatch.setattr(gpu_tests, "ROOT", tmp_path)
    report = Report("tests", make_check(tmp_path))
    gpu_tests.run(make_check(tmp_path), report, Deadline.after(1))
    (found,) = report.measurements
    assert (found["passed"], found["failed"], found["skipped"]) == (2, 1, 0)
    monkeypatch.setenv("CRASH", "1")
    gpu_tests.run(make_check(tmp_path), report, Deadline.after(1))
    failures = read_reports(tmp_path / "results")["tests"]["failures"]
    assert [entry["what"] for entry in failures] == ["tests.test_it::test_wrong", "pytest -m gpu"]
    assert "late" in failures[0]["why"]
    assert "exit code -6" in failures[1]["why"]


def test_a_report_is_on_disk_at_every_moment(tmp_path: Path) -> None:
    report = Report("correct", make_check(tmp_path))
    report.add("first", {"value": 1.5})
    assert read_reports(tmp_path / "results")["correct"]["measurements"] == [{"what": "first", "value": 1.5}]
    report.skip("second", "no time")
    with report.attempt("third"):
        raise SystemExit("ValueError: broken")
    report.expect("fourth", True, "holds")
    found = read_reports(tmp_path / "results")["correct"]
    assert not found["is_finished"]
    assert [entry["what"] for entry in found["skipped"]] == ["second"]
    assert [entry["what"] for entry in found["failures"]] == ["third"]
    text = as_text(tmp_path / "results")
    assert "correct: CUT OFF" in text
    assert "ValueError: broken" in text
    assert "sweep: did not run" in text


def test_training_takes_the_settings_that_were_fastest(tmp_path: Path) -> None:
    check = make_check(tmp_path)
    assert best_settings(check) == {}
    report = Report("sweep", check)
    for phase, load, rate in (
        ("first", 0.65, 5000.0),
        ("settings", 0.12, 7000.0),
        ("combined", 0.9, 6000.0),
        ("cores", 0.0, 8000.0),
    ):
        options = {"dali": {"hw_decoder_load": load}}
        report.add(phase, {"phase": phase, "contender": "gpu-ours-dali", "options": options, "images_per_s": rate})
    assert best_settings(check) == {"gpu-ours-dali": {"dali": {"hw_decoder_load": 0.12}}}


def test_where_regions_take_the_process_down_nobody_asks_for_them(tmp_path: Path) -> None:
    check = make_check(tmp_path)
    correct = Report("correct", check)
    correct.note(decodes_regions=False)
    assert best_settings(check) == {name: {"decodes_regions": False} for name in ("gpu-dali", "gpu-dali-smooth")}
    sweep = Sweep(check, Report("sweep", check), Deadline.after(1), tmp_path)
    by_hand = [variant for variant in [*sweep.as_they_come(), *sweep.changed("gpu-dali")] if variant.contender == "gpu-dali"]
    assert len(by_hand) > 1
    assert all(variant.options["decodes_regions"] is False for variant in by_hand)


def test_the_best_of_each_setting_is_put_together(tmp_path: Path) -> None:
    report = Report("sweep", make_check(tmp_path))
    sweep = Sweep(make_check(tmp_path), report, Deadline.after(1), tmp_path)
    assert sweep.combined("gpu-ours-dali") == []
    for options, rate in (
        ({}, 5000.0),
        ({"dali": {"hw_decoder_load": 0.65}}, 6000.0),
        ({"dali": {"hw_decoder_load": 1.0}}, 5500.0),
        ({"dali": {"hybrid_huffman_threshold": 0, "num_pipelines": 3}}, 5100.0),
        ({"dali": {"hybrid_huffman_threshold": 0}}, 4000.0),
    ):
        report.add("settings", {"phase": "settings", "contender": "gpu-ours-dali", "options": options, "images_per_s": rate})
    (variant,) = sweep.combined("gpu-ours-dali")
    assert variant.options == {"dali": {"hw_decoder_load": 0.65, "hybrid_huffman_threshold": 0, "num_pipelines": 3}}
    assert merged({"a": 1, "b": {"c": 1}}, {"b": {"d": 2}}) == {"a": 1, "b": {"c": 1, "d": 2}}


def test_rates_of_a_graph_elsewhere_are_no_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = make_image_folder(tmp_path / "shards", num_images=8, num_classes=2, scale="small").parent
    task = Task("gpu-ours-dali", str(images), batch_size=4, num_threads=2)
    loader = open_loader(task, part="shards", dtype="float32", device="cpu", backend="dali")
    check_decoder(loader, "cpu")
    with pytest.raises(RuntimeError, match="DALI's graph decodes on the cpu, and batches were asked for on cuda"):
        check_decoder(loader, "cuda")
    next(iter(Variant("gpu-ours-dali", {"dali": {}}).bound_to("cpu").make(task)))
    monkeypatch.setattr("datapipe.kinds.images.kind.ImageKind.decoder_device", lambda kind, settings: "gpu")
    with pytest.raises(RuntimeError, match="DALI's graph decodes on the gpu, and batches were asked for on cpu"):
        next(iter(Variant("gpu-ours-dali", {"dali": {}}).bound_to("cpu").make(task)))
    next(iter(Variant("gpu-ours-cpu").bound_to("cpu").make(task)))


def test_idle_share_is_gaps_over_steps() -> None:
    pace = Pace(gap_ms=[1.0, 0.0, 2.0], compute_ms=[9.0, 10.0, 8.0], host_wait_ms=[0.1, 0.2, 5.0])
    found = pace.summed_up(batch_size=30)
    assert found["idle_share"] == pytest.approx(0.1)
    assert found["images_per_s"] == pytest.approx(3000)
    assert (found["gap_ms"], found["gap_ms_highest"], found["compute_ms"]) == (1.0, 2.0, 9.0)


@pytest.mark.nightly
def test_plots_are_made_of_results(tmp_path: Path) -> None:
    from benchmarks.gpu.plots import plot_all

    with pytest.raises(SystemExit, match="nothing to plot"):
        plot_all(tmp_path)
    rate: dict[str, Any] = {"options": {}, "batch_size": 256, "num_threads": 16}
    sweep, further = (
        [
            {**rate, "phase": phase, "contender": contender, "images_per_s": value, **about}
            for contender, value in (("gpu-ours-dali", 9000.0), ("gpu-torch", 4000.0))
            for phase, about in phases
        ]
        for phases in ([("first", {}), ("rounds", {})], [("cores", {"num_cores": 4})])
    )
    train = [{"model": "resnet18", "contender": "gpu-torch", "images_per_s": 4000.0, "idle_share": 0.5}]
    diagnose = [{"question": "accuracy", "is_synced": True, "true_ms": 5.0, "told_ms": 5.1}, {"question": "overhead"}]
    for stage, measurements in (("sweep", sweep), ("train", train), ("diagnose", diagnose), ("further", further)):
        (tmp_path / f"gpu-{stage}.json").write_text(json.dumps({"is_dry_run": False, "measurements": measurements}))
    names = {path.name for path in plot_all(tmp_path)}
    trained = {"gpu-train-rate-resnet18.png", "gpu-train-idle-resnet18.png"}
    assert names == trained | {"gpu-rates.png", "gpu-cores.png", "gpu-diagnose.png"}


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


def test_the_payload_holds_what_is_needed_and_no_more(tmp_path: Path) -> None:
    site = tmp_path / "tree" / "site"
    kept = [
        "pkg/mod.py",
        "pkg/ext.cpython-312-x86_64-linux-gnu.so",
        "pkg-1.dist-info/METADATA",
        "nvidia/cu13/lib/libnvjpeg.so.13",
        "nvidia/nvimgcodec/extensions/libnvjpeg_ext.so.0.9.0",
    ]
    dropped = [
        "pkg/ext.cpython-311-x86_64-linux-gnu.so",
        "pkg/tests/test_mod.py",
        "pkg/include/a.h",
        "pkg/a.pyx",
        "nvidia/nvimgcodec/extensions/libnvjpeg2k_ext.so.0.9.0",
        "nvidia/nvimgcodec/extensions/libnvtiff_ext.so.0.9.0",
    ]
    for name in kept + dropped:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(name.encode() * 50)
    assert drop_unneeded(site, "3.12") == sum(50 * len(name) for name in dropped)
    archive = pack(site.parent, tmp_path / "payload.tar.xz", filters=["--x86", "--lzma2=preset=0"])
    again = pack(site.parent, tmp_path / "again.tar.xz", filters=["--x86", "--lzma2=preset=0"])
    assert archive.read_bytes() == again.read_bytes()
    unpacked = tmp_path / "unpacked"
    subprocess.run([sys.executable, "-W", "ignore", "-m", "tarfile", "-e", str(archive), str(unpacked)], check=True)
    assert sorted(str(path.relative_to(unpacked / "site")) for path in unpacked.rglob("*") if path.is_file()) == sorted(kept)
    assert all((unpacked / "site" / name).read_bytes() == name.encode() * 50 for name in kept)


def test_a_payload_that_is_too_large_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def download(names: tuple[str, ...], python: str, folder: Path) -> list[Path]:
        folder.mkdir()
        wheel = folder / f"{names[0].partition('=')[0]}-1-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as file:
            file.writestr("module.bin", random.Random(0).randbytes(2 * MIB))
        return [wheel]

    monkeypatch.setattr("benchmarks.gpu.pack.download", download)
    arguments = ["benchmarks.gpu.pack", "--out", str(tmp_path), "--xz", "-0", "--limit-mib"]
    monkeypatch.setattr(sys, "argv", [*arguments, "5"])
    gather()
    assert "of at most 5 MiB" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*arguments, "1"])
    with pytest.raises(SystemExit, match="is larger than 1 MiB"):
        gather()
