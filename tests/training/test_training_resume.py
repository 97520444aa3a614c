"""Killed, stopped and resumed runs are those that were never disturbed: the same samples, the same losses, bit for bit."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures import meeting_point
from training_driver import Settings, as_script, ids_of, step_lines, train

from datapipe.errors import FormatError, MissingDataError, OptionError, StateError
from datapipe.training import TrainOptions, fit, load_checkpoint

ROOT = Path(__file__).resolve().parents[2]
BATCHES = 6  # per epoch: 90 samples in batches of 16, the last with 10 real ones


@pytest.fixture
def settings(photos: Path, others: Path, tmp_path: Path) -> Callable[..., Settings]:
    def make(name: str, **changes: Any) -> Settings:
        run, _, part = name.partition("/")
        ids = tmp_path / f"{run}-{part or 'ids'}"
        return Settings(str(photos), str(others), str(tmp_path / run), str(ids), **changes)

    return make


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def weights(out: str) -> dict[str, torch.Tensor]:
    return dict(load_checkpoint(Path(out) / "last.pt").model)


@pytest.mark.nightly
def test_killed_and_stopped_runs_end_as_the_undisturbed_one(settings: Callable[..., Settings]) -> None:
    """SIGTERM in the first epoch, SIGKILL in the second, each in a process of its own; dropout and shuffling included."""
    whole = settings("whole", dropout=0.3)
    train(whole)
    common = {"dropout": 0.3, "save_every_steps": 4}
    stopped = settings("cut/1", signal=signal.SIGTERM, signal_before=3, **common)
    done = subprocess.run(as_script(stopped), env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert json.loads((Path(stopped.out) / "run.json").read_text())["status"] == "interrupted"
    assert len(step_lines(Path(stopped.out))) == 4, "the step that was under way is finished"
    killed = settings("cut/2", signal=signal.SIGKILL, signal_before=6, **common)
    done = subprocess.run(as_script(killed), env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(step_lines(Path(killed.out))) > load_checkpoint(Path(killed.out) / "last.pt").place.step == 8
    last = settings("cut/3", **common)
    train(last)

    expected = ids_of(Path(whole.ids))
    assert len(expected) == 3 * BATCHES
    assert ids_of(Path(stopped.ids)) == expected[:4]
    assert ids_of(Path(killed.ids)) == expected[4:10]
    assert ids_of(Path(last.ids)) == expected[8:]
    assert step_lines(Path(last.out)) == step_lines(Path(whole.out))
    ours, theirs = weights(last.out), weights(whole.out)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    records = [json.loads((Path(one.out) / "run.json").read_text()) for one in (last, whole)]
    for name in ("epoch", "step", "train_loss", "train_accuracy", "val_loss", "val_accuracy", "val_samples"):
        assert [epoch[name] for epoch in records[0]["epochs"]] == [epoch[name] for epoch in records[1]["epochs"]], name
    assert records[0]["resumed_at"] == [4, 8]
    assert records[0]["best"] == records[1]["best"]


@pytest.mark.nightly
def test_other_numbers_of_ranks_go_on_with_the_same_samples(settings: Callable[..., Settings]) -> None:
    """One rank, then two of which one is stopped, then one again, against one rank throughout.

    A step is four batches or, at the end of an epoch, the two that are left, the last of them partly masked: gradients must
    be weighted by what there is on all ranks.
    """
    handler = signal.getsignal(signal.SIGTERM)
    whole = settings("whole", accumulate=4)
    train(whole)
    expected = ids_of(Path(whole.ids))
    first = settings("cut/1", accumulate=4, signal=signal.SIGTERM, signal_before=2)
    with pytest.raises(SystemExit) as stopped:
        train(first)
    assert stopped.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is handler
    assert ids_of(Path(first.ids)) == expected[:4]

    _store, meeting = meeting_point()
    hit = {"signal": signal.SIGTERM, "signal_before": 4, "signal_rank": 1}
    ranks = [settings(f"cut/two{rank}", batch_size=8, accumulate=4, **hit) for rank in (0, 1)]
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", **meeting}
    processes = [
        subprocess.Popen(
            as_script(one), env=environment(RANK=str(rank), LOCAL_RANK=str(rank), **common), stderr=subprocess.PIPE, text=True
        )
        for rank, one in enumerate(ranks)
    ]
    said = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [128 + signal.SIGTERM] * 2, said
    place = load_checkpoint(Path(whole.out).parent / "cut" / "last.pt").place
    shares = [ids_of(Path(one.ids)) for one in ranks]
    assert len(shares[0]) == len(shares[1]) == place.epoch * BATCHES + place.batches_done - 4
    both = [left + right for left, right in zip(*shares, strict=True)]
    assert both == expected[4 : 4 + len(both)]
    assert place.step < 6, "the run was to be stopped before its end"

    last = settings("cut/3", accumulate=4)
    train(last)
    assert ids_of(Path(last.ids)) == expected[4 + len(both) :]
    ours, theirs = step_lines(Path(last.out)), step_lines(Path(whole.out))
    assert [line["step"] for line in ours] == [line["step"] for line in theirs] == [1, 2, 3, 4, 5, 6]
    assert [line["loss"] for line in ours] == pytest.approx([line["loss"] for line in theirs], rel=1e-4)
    for name, tensor in weights(whole.out).items():
        torch.testing.assert_close(weights(last.out)[name], tensor, rtol=1e-3, atol=1e-5)


def test_a_finished_run_has_nothing_left_and_goes_on_if_epochs_are_added(settings: Callable[..., Settings]) -> None:
    first = settings("run/1", epochs=1)
    assert train(first).step == BATCHES
    again = train(settings("run/2", epochs=1))
    assert (again.status, again.step, len(again.epochs)) == ("finished", BATCHES, 1)
    assert not Path(settings("run/2").ids).exists()
    longer = train(settings("run/3", epochs=2))
    assert (longer.step, [epoch.epoch for epoch in longer.epochs]) == (2 * BATCHES, [0, 1])


@pytest.mark.parametrize(("changes", "said"), [
    ({"batch_size": 8}, "choose batch_size so that the product is 16"),
    ({"photos": "others"}, "another dataset"),
], ids=str)  # fmt: skip
def test_what_would_not_go_on_exactly_is_refused(
    settings: Callable[..., Settings], others: Path, changes: dict[str, Any], said: str
) -> None:
    train(settings("run", epochs=1))
    changes = {name: str(others) if value == "others" else value for name, value in changes.items()}
    with pytest.raises(StateError, match=said):
        train(dataclasses.replace(settings("run"), **changes))


def batches(num: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(4, 6), torch.randint(0, 3, (4,))) for _ in range(num)]


def test_checkpoints_that_do_not_fit(tmp_path: Path) -> None:
    options = TrainOptions(epochs=1, out=tmp_path / "run", display="none")
    fit(torch.nn.Linear(6, 3), batches(), options=options)
    with pytest.raises(OptionError, match=r"already holds a run; resume it with --resume auto \(resume='auto'\), or choose"):
        fit(torch.nn.Linear(6, 3), batches(), options=options)
    last = tmp_path / "run" / "last.pt"
    go_on = dataclasses.replace(options, out=tmp_path / "other", resume=last)
    with pytest.raises(StateError, match=r"size mismatch for weight.*pass the model"):
        fit(torch.nn.Linear(6, 4), batches(), options=go_on)
    with pytest.raises(MissingDataError, match=r"none\.pt: no such file"):
        fit(torch.nn.Linear(6, 3), batches(), options=dataclasses.replace(go_on, resume=tmp_path / "none.pt"))
    cut = tmp_path / "cut.pt"
    cut.write_bytes(last.read_bytes()[:900])
    with pytest.raises(FormatError, match=r"cut\.pt: not tensors and plain values"):
        fit(torch.nn.Linear(6, 3), batches(), options=dataclasses.replace(go_on, resume=cut))
    torch.save({"weight": torch.zeros(3)}, cut)
    with pytest.raises(FormatError, match=r"cut\.pt: is not a checkpoint of this training loop"):
        fit(torch.nn.Linear(6, 3), batches(), options=dataclasses.replace(go_on, resume=cut))


def test_a_loader_without_a_state_goes_on_between_epochs_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    fit(torch.nn.Linear(6, 3), batches(), options=TrainOptions(epochs=1, out=out, display="none", lr=1e-3))
    more = TrainOptions(epochs=2, out=out, resume="auto", display="lines", lr=2e-3)
    assert fit(torch.nn.Linear(6, 3), batches(), options=more).step == 8
    said = capsys.readouterr().err
    assert "resuming from" in said
    assert "note: lr was 0.001 and is 0.002" in said
    assert "note: epochs was 1 and is 2" in said
    torch.manual_seed(0)
    middle = TrainOptions(epochs=3, out=out, resume="auto", display="none", save_every_steps=1)

    def stop_at_10(metrics: Any) -> None:
        if metrics.step == 10:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        fit(torch.nn.Linear(6, 3), batches(), options=dataclasses.replace(middle, log_every=1), on_step=stop_at_10)
    assert json.loads((out / "run.json").read_text())["status"] == "failed"
    with pytest.raises(StateError, match=r"after 1 batch of an epoch, and a loader without state_dict.*use datapipe\.DataLoader"):
        fit(torch.nn.Linear(6, 3), batches(), options=middle)
