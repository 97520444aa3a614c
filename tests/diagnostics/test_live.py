"""A run that is followed while it lasts: its figures, and the lines that are written about it."""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import attach_datasets as data
import pytest
from diagnosis_processes import FACTS, process
from fixtures import timed
from torch.utils.data import DataLoader

import datapipe as dp
from datapipe.cli.main import main
from datapipe.diagnostics.live import Lines, Live, Window, log_to, window_of
from datapipe.errors import OptionError, StorageError
from datapipe.instruments.attach.recording import Recording
from datapipe.instruments.measure.bracket import ThreadBracket
from datapipe.instruments.measure.clock import HostClock
from datapipe.instruments.measure.recorded import Process, read_processes, write_process

MS = 1e-3


def a_window(step: int, waiting: float, **others: Any) -> Window:
    return Window(step=step, waiting=waiting, is_starved=waiting >= 0.05, **others)


def test_the_figures_of_a_loop_that_decodes_too_slowly() -> None:
    window = window_of(process(make_s=30 * MS, work_s=10 * MS, num_steps=100), 100)
    assert window is not None
    assert window.is_starved
    figures = window.figures()
    assert figures["data/waiting"] == pytest.approx(2 / 3, abs=0.05)
    assert figures["data/waiting/decode"] > 0.3
    parts = [value for name, value in figures.items() if name.startswith("data/waiting/")]
    assert sum(parts) == pytest.approx(figures["data/waiting"], abs=0.02)
    assert figures["data/supply"] == pytest.approx(8 / 0.030, rel=0.02)  # one worker
    assert figures["data/demand"] == pytest.approx(8 / 0.011, rel=0.15)


def test_the_figures_of_a_loop_that_has_its_data() -> None:
    window = window_of(process(make_s=4 * MS, work_s=20 * MS, num_steps=100), 100)
    assert window is not None
    assert not window.is_starved
    assert window.waiting < 0.05
    assert window.supply is not None
    assert window.demand is not None
    assert window.supply > 4 * window.demand


def test_too_few_steps_have_no_figures() -> None:
    assert window_of(process(make_s=4 * MS, work_s=20 * MS, num_steps=8), 8) is None


def test_one_line_says_that_data_starves_the_run() -> None:
    lines = Lines("more")
    windows = [a_window(step, 0.43, stages={"decode": 0.4, "read": 0.03}) for step in range(100, 1000, 100)]
    found = [lines.line(one) for one in windows]
    assert found[0] is None
    assert found[1] == "waits for data 43% of the time: decode; more"
    assert not any(found[2:])


def test_a_loop_that_comes_to_wait_is_told_once_with_its_stage_and_rates() -> None:
    lines = Lines("more")
    fed = [a_window(step, 0.02, supply=900.0) for step in range(100, 8000, 100)]
    slow = [a_window(step, 0.47, supply=310.0, stages={"read": 0.47}) for step in range(8000, 9000, 100)]
    found = [line for one in (*fed, *slow) if (line := lines.line(one)) is not None]
    what = "waits for data 47% of the time, before 2%: read, since about step 8,000"
    assert found == [f"{what}; the loader makes 310 samples/s, before 900; more"]


@pytest.mark.parametrize("shares", [[0.02, 0.5, 0.02, 0.5] * 20, [0.10, 0.25] * 20, [0.5] * 20 + [0.02] * 20])
def test_a_single_slow_window_and_noise_and_recovery_are_not_told(shares: list[float]) -> None:
    lines = Lines("more")
    lines.line(a_window(200, shares[0]))
    assert not any(lines.line(a_window(300 + 100 * number, share)) for number, share in enumerate(shares))


def test_figures_go_wherever_people_log() -> None:
    seen: list[Any] = []

    class Writer:
        def add_scalar(self, name: str, value: float, step: int) -> None:
            seen.append((name, value, step))

    class Logger:
        def log_metrics(self, metrics: dict[str, float], step: int) -> None:
            seen.append((metrics, step))

    class Tracker:
        def log(self, values: dict[str, float], step: int | None = None) -> None:
            seen.append((values, step))

    class Run:
        __module__ = "wandb.sdk.wandb_run"

        def log(self, values: dict[str, float], step: int | None = None, commit: bool = True) -> None:
            seen.append((values, step, commit))

    for target in (Writer(), Logger(), Tracker(), Run(), lambda figures, step: seen.append((figures, step))):
        log_to(target)({"data/waiting": 0.5}, 100)
    figures = {"data/waiting": 0.5}
    assert seen == [("data/waiting", 0.5, 100), (figures, 100), (figures, 100), (figures, None, False), (figures, 100)]
    with pytest.raises(OptionError, match="log=3: pass a function"):
        dp.Monitor([1], log=3)
    with pytest.raises(OptionError, match="every=5: figures are those of at least 32 steps"):
        dp.Monitor([1], every=5)


def test_a_logger_that_fails_is_told_and_the_run_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    def log(figures: dict[str, float], step: int) -> None:
        raise ConnectionError("no server")

    live = Live(lambda num: process(make_s=4 * MS, work_s=20 * MS, num_steps=num), log=log, every=40, more="")
    live(40)
    live.close()
    assert "figures cannot be logged any more: ConnectionError: no server" in capsys.readouterr().err


def test_windows_that_nobody_can_judge_cost_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    def look(num: int) -> Process:
        raise RuntimeError("a recording that is broken")

    live = Live(look, every=40, more="")
    live(40)
    live.close()
    assert live.take() is None
    assert "a run cannot be followed any more: RuntimeError: a recording that is broken" in capsys.readouterr().err


@pytest.mark.nightly
@timed
def test_a_starved_loop_writes_one_line_logs_and_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    saves = tmp_path / str(time.perf_counter_ns())  # another one for each try
    logged: list[tuple[dict[str, float], int]] = []
    loader = DataLoader(data.Numbers(stall_s=0.001, num=1300), batch_size=4)
    monitor = dp.Monitor(loader, log=lambda *one: logged.append(one), every=50, saves=saves)
    for _ in monitor:
        time.sleep(0.002)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("datapipe: the training waits for data ")
    assert lines[0].endswith(f"of the time: read; `datapipe diagnose {saves}` says more")
    assert len(logged) >= 4
    steps = [step for _, step in logged]
    assert all(50 <= after - before <= 80 for before, after in itertools.pairwise([0, *steps]))
    assert all(0.3 < figures["data/waiting"] < 1 for figures, _ in logged)
    processes, notes = read_processes(saves)
    assert not notes
    assert [len(one.steps) for one in processes] == [325]


def test_a_fed_loop_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    with dp.Monitor(every=50) as monitor:
        for _ in DataLoader(data.Numbers(num=900), batch_size=4):
            time.sleep(0.002)
    assert capsys.readouterr().err == ""
    assert monitor.figures() is not None
    assert monitor.figures() is None
    found = monitor.diagnosis()
    assert [one["num_steps"] for one in found["loaders"]] == [225]
    with pytest.raises(OptionError, match="a Monitor of no loader has no batches"):
        next(iter(monitor))


def test_a_directory_that_cannot_be_made_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="saves="), dp.Monitor([1], saves=tmp_path / "file" / "run.dpr"):
        pass


def test_a_window_holds_what_its_steps_are_about() -> None:
    one = process(make_s=4 * MS, work_s=20 * MS)
    part = replace(one, loaders={0: one.loaders[0], 1: one.loaders[0]}).part(1, since_ns=0)
    assert (len(part.steps), part.profiles, list(part.loaders)) == (0, (), [1])
    assert one.part(None, since_ns=0).steps.tobytes() == one.steps.tobytes()


def test_a_window_that_is_asked_for_at_the_end_does_not_hold_the_training_up() -> None:
    live = Live(lambda num: process(make_s=4 * MS, work_s=20 * MS, num_steps=num), every=40, more="")
    live(40)
    thread = live._thread
    assert thread is not None
    live.close()
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert live.take() is not None


def test_files_of_earlier_runs_are_replaced_by_a_monitor_alone(tmp_path: Path) -> None:
    """Of two scripts that one command runs, one after the other, both are kept."""
    earlier = tmp_path / "0-1.process"
    for saves_since_ns, is_kept in ((0, True), (time.perf_counter_ns(), False)):
        earlier.write_bytes(b"")
        os.utime(earlier, (1, 1))
        recording = Recording(ThreadBracket(HostClock()))
        recording.note_loader(FACTS, loader=None)
        recording.save_into(tmp_path, since_ns=saves_since_ns)
        recording.save()
        assert earlier.exists() == is_kept
        recording._ended.set()


def test_options_after_a_recording_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_process(tmp_path / "0-1.process", process(make_s=4 * MS, work_s=20 * MS))
    assert main(["diagnose", str(tmp_path), "--no-html"]) != 0
    assert "put options of diagnose before it" in capsys.readouterr().err
