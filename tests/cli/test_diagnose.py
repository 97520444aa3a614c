"""`datapipe diagnose` on real scripts, in processes of their own: planted faults are named, and scripts run as ever."""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import signal
import sys
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures import jpeg, timed

from datapipe.cli.main import main
from datapipe.diagnostics.command import _command
from datapipe.errors import OptionError

ROOT = Path(__file__).resolve().parents[2]

LOOP = """
import time, torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

class Numbers(Dataset):
    def __init__(self, stall_s=0.0, num=240):
        self.stall_s, self.num = stall_s, num
    def __len__(self):
        return self.num
    def __getitem__(self, index):
        time.sleep(self.stall_s)
        return torch.full((4,), float(index))

def train(loader, work_s=0.0):
    weight = torch.zeros(4, requires_grad=True)  # a step by hand: torch.optim takes more than a second to start
    for batch in loader:
        (batch @ weight).sum().backward()
        weight.data -= 1e-9 * weight.grad
        time.sleep(work_s)
"""
TORCHVISION = """
from benchmarks.contenders.torchvision_transforms import import_torchvision
import_torchvision()
"""


def _has(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def fault_of(found: dict[str, Any]) -> str:
    """The stage that is waited for most, leaving out waits for cores, which other processes on the machine may cause."""
    stages = [stage["name"] for stage in found["attribution"]["stages"]]
    return str(next(name for name in stages if name != "cores"))


Diagnose = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def diagnose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Diagnose:
    """Write a script as train.py and diagnose it, in a directory of its own; the status and the document.

    With `settles`, a run that a busy machine has kept from settling is made once more, and once again; with `waits=False`, also
    one whose loader a busy machine has held up.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(
        source: str,
        *options: str,
        command: tuple[str, ...] = ("train.py",),
        out: str = "out",
        settles: bool = True,
        waits: bool = True,
    ) -> tuple[int, dict[str, Any]]:
        (tmp_path / "train.py").write_text(textwrap.dedent(source))
        for _ in range(3):
            shutil.rmtree(tmp_path / out, ignore_errors=True)
            (tmp_path / "runs.txt").unlink(missing_ok=True)
            capfd.readouterr()
            status = main(["diagnose", "--out", out, *options, *command])
            found = json.loads((tmp_path / out / "diagnosis.json").read_text())
            held_up = {"not enough steps"} if waits else {"not enough steps", "data-bound"}
            if not settles or found["verdict"]["kind"] not in held_up:
                break
        return status, found

    return run


@pytest.mark.nightly
def test_a_stream_with_workers_and_what_is_left_behind(
    diagnose: Diagnose, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = LOOP + textwrap.dedent("""
    class Stream(IterableDataset):
        def __iter__(self):
            info = get_worker_info()
            for index in range(info.id, 240, info.num_workers):
                time.sleep(0.008)
                yield torch.full((4,), float(index))

    if __name__ == "__main__":
        train(DataLoader(Stream(), batch_size=4, num_workers=2), work_s=0.002)
        print("trained")
    """)
    status, found = diagnose(source, "--trace", "--steps", "40")
    assert status == 0
    assert (found["verdict"]["kind"], fault_of(found)) == ("data-bound", "read")
    assert found["ranks"][0]["num_steps"] == 40  # of 60
    assert found["loaders"][0]["where"] == "train.py:29"
    names = [one["name"] for one in found["remedies"]["predictions"]]
    assert "num_workers=4" in names
    assert "IterableDataset" in str(found["left_out"]) or "Stream" in str(found["left_out"])
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"diagnosis.json", "diagnosis.html", "trace.json"}
    printed = capfd.readouterr().out
    assert printed.startswith("trained\n")
    assert "waits for data" in printed
    assert str(Path("out") / "diagnosis.html") in printed


@pytest.mark.nightly
@timed
def test_a_slow_model_is_not_blamed_on_the_loader(diagnose: Diagnose) -> None:
    source = LOOP + "\nif __name__ == '__main__':\n    train(DataLoader(Numbers(num=132), batch_size=4), work_s=0.1)\n"
    status, found = diagnose(source, "--fail-if", "starvation>20%", waits=False)
    assert (status, found["verdict"]["kind"]) == (0, "compute-bound")
    if found["verdict"]["figures"]["starvation"]["value"] < 0.01:  # a busy machine takes its time for four numbers, too
        assert found["remedies"]["best"] == "change nothing"
    assert "does not wait for data" in found["left_out"][0]["reason"]


@pytest.mark.nightly
def test_fail_if_and_json_and_compare(diagnose: Diagnose, capfd: pytest.CaptureFixture[str]) -> None:
    source = LOOP + "\ntrain(DataLoader(Numbers(0.003), batch_size=4))\nprint('on stdout')\n"
    status, found = diagnose(
        source, "--json", "--no-html", "--profile", "--trials", "0", "--fail-if", "starvation>1%", "--fail-if", "step>10s"
    )
    assert (status, found["exit_code"]) == (1, 0)
    printed = capfd.readouterr()
    assert json.loads(printed.out) == found
    assert "on stdout" in printed.err
    assert "--fail-if starvation>1%: starvation is" in printed.err  # far below, as a busy machine measures wide intervals
    assert "step>10s" not in printed.err
    assert found["ranks"][0]["num_steps"] == 60 - 10  # the profiler's are not measured
    [profile] = Path("out").glob("profile-*.json")
    assert json.loads(profile.read_text())["traceEvents"]

    assert main(["diagnose", "--compare", "out", "out/diagnosis.json"]) == 0
    assert "data-bound" in capfd.readouterr().out
    assert main(["diagnose", "--json", "--compare", "out", "out"]) == 0
    assert json.loads(capfd.readouterr().out)


@pytest.mark.nightly
def test_a_script_that_fails_and_one_without_loaders(diagnose: Diagnose, capfd: pytest.CaptureFixture[str]) -> None:
    source = LOOP + "\ntrain(DataLoader(Numbers(num=40), batch_size=4))\nraise SystemExit(7)\n"
    status, found = diagnose(source, "--no-html", settles=False)
    assert (status, found["exit_code"], found["verdict"]["kind"]) == (7, 7, "not enough steps")
    status, found = diagnose("1 / 0\n", "--fail-if", "starvation>10%", out="none")
    assert (status, found["exit_code"], found["verdict"]["kind"]) == (1, 1, "not measured")
    said = capfd.readouterr().err
    assert "ZeroDivisionError" in said
    assert "starvation was not measured" in said


@pytest.mark.nightly
@timed
def test_a_remedy_is_applied_and_compared(diagnose: Diagnose, tmp_path: Path) -> None:
    source = LOOP + textwrap.dedent("""
    if __name__ == "__main__":
        with open("runs.txt", "a") as file:
            print("begun", file=file, flush=True)
            train(DataLoader(Numbers(0.003, num=640), batch_size=4, num_workers=1), work_s=0.002)
            print("ended", file=file, flush=True)
            train(DataLoader(Numbers(num=1600), batch_size=4), work_s=0.0001)
            print("ended", file=file)
    """)
    status, found = diagnose(source, "--apply", "--no-html")
    applied = found["applied"]
    assert status == 0
    assert applied["remedy"].startswith("num_workers=")
    # That both agree is shown elsewhere, where a clock cannot be disturbed; here stalls outweigh what a busy machine adds.
    before_s = found["remedies"]["measured_step_s"]
    assert applied["predicted_step_s"] < 0.8 * before_s
    if applied["reason"] is None:
        assert applied["measured_step_s"] < 0.8 * before_s
    else:  # eight workers on few busy cores
        assert "did not settle" in applied["reason"]
    # The second run is ended after 300 of 560 steps.
    assert (tmp_path / "runs.txt").read_text().split() == ["begun", "ended", "ended", "begun", "ended"]


@pytest.mark.nightly
def test_two_ranks_under_torchrun(diagnose: Diagnose) -> None:
    source = LOOP + textwrap.dedent("""
    import os
    from torch import distributed
    if __name__ == "__main__":
        distributed.init_process_group("gloo")
        loader = DataLoader(Numbers(0.006 if os.environ["RANK"] == "1" else 0.0005, num=160), batch_size=4, num_workers=1)
        weight = torch.zeros(4, requires_grad=True)
        for batch in loader:
            (batch @ weight).sum().backward()
            distributed.all_reduce(weight.grad)
            time.sleep(0.002)
        distributed.destroy_process_group()
    """)
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")
    status, found = diagnose(source, "--trials", "0", command=("--", *launcher))
    assert status == 0
    assert [rank["num_steps"] for rank in found["ranks"]] == [40, 40]
    assert (found["verdict"]["kind"], found["verdict"]["rank"]) == ("data-bound", 1)
    assert fault_of(found) == "read"


IMAGENET = TORCHVISION + textwrap.dedent("""
import sys, torch
import torchvision.datasets as datasets, torchvision.transforms as transforms

def main(data):
    recipe = [transforms.RandomResizedCrop(24), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    loader = torch.utils.data.DataLoader(
        datasets.ImageFolder(data, transforms.Compose(recipe)), batch_size=4, shuffle=True, num_workers=1
    )
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(12, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for epoch in range(1):
        for images, target in loader:
            loss = torch.nn.functional.cross_entropy(model(images), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

if __name__ == "__main__":
    main(sys.argv[1])
""")


PHOTO = jpeg(1, 800, 1000)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["SIGKILL"])  # a signal that the process cannot see
def test_a_script_that_a_signal_ends_leaves_what_was_seen(name: str, diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datapipe.diagnostics.runs._SNAPSHOT_S", 1.0)
    dies = f"""
    import os, pathlib, signal
    from datapipe.instruments.measure.recorded import read_process
    if __name__ == "__main__":
        for _ in range(100):  # half a second each
            train(DataLoader(Numbers(0.002), batch_size=4))
            for path in pathlib.Path(os.environ["DATAPIPE_ATTACH_RESULTS"]).glob("*.process"):
                if len(read_process(path).steps) > 150:
                    os.kill(os.getpid(), signal.{name})
    """
    status, found = diagnose(LOOP + textwrap.dedent(dies), settles=False)
    assert status == 128 + getattr(signal, name)
    assert found["verdict"]["figures"]["num_steps"] > 16
    assert any(f"{name} ended the script" in trouble for trouble in found["troubles"])


@pytest.mark.nightly
@pytest.mark.skipif(not _has("torchvision"), reason="torchvision is not installed")
def test_a_loop_over_an_image_folder_and_what_datapipe_would_bring(diagnose: Diagnose, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    for number in range(92):
        file = photos / f"class-{number % 3}" / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(PHOTO)
    status, found = diagnose(IMAGENET, "--apply", "--trials", "6", command=("train.py", str(photos)))
    assert status == 0
    assert found["verdict"]["kind"] == "data-bound"
    assert found["loaders"][0]["dataset"] == "ImageFolder"
    assert fault_of(found) in ("decode", "transform", "transfer")  # the last on cores that other processes keep busy
    predicted = found["remedies"]["predictions"] + found["remedies"]["within_noise"]
    assert {"datapipe's loader", "datapipe's loader on converted data", "num_workers=2"} <= {one["name"] for one in predicted}
    smaller = [one for one in predicted if one["name"] == "datapipe's loader on smaller images"]
    has_no_time = any("there was no time left" in one["reason"] for one in found["left_out"])
    assert has_no_time or any(
        f"datapipe convert {photos} DST --to webdataset --resize shorter:28, then" in one["how"] for one in smaller
    )
    applied = found["applied"]
    if applied is None:  # on cores that other processes keep busy
        assert any("nothing was applied: no remedy" in trouble for trouble in found["troubles"])
    else:
        assert (applied["measured_step_s"] or 0) > 0 or "did not settle" in applied["reason"]
    assert [path.name for path in (tmp_path / "out").iterdir() if path.is_dir()] == []


@pytest.mark.skipif(not _has("lightning"), reason="lightning is not installed")
@pytest.mark.nightly
def test_a_lightning_fit(diagnose: Diagnose) -> None:
    source = (TORCHVISION if _has("torchvision") else "") + LOOP
    source += textwrap.dedent("""
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
        def training_step(self, batch, batch_idx):
            return self.layer(batch).sum()
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-9)

    if __name__ == "__main__":
        trainer = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
                             enable_checkpointing=False, max_epochs=1)
        trainer.fit(Module(), DataLoader(Numbers(0.008, num=160), batch_size=4, num_workers=1))
    """)
    status, found = diagnose(source, "--trials", "0")
    assert (status, found["verdict"]["kind"], fault_of(found)) == (0, "data-bound", "read")


@pytest.mark.skipif(not _has("transformers") or not _has("accelerate"), reason="transformers is not installed")
@pytest.mark.nightly
def test_a_transformers_trainer(diagnose: Diagnose) -> None:
    source = (TORCHVISION if _has("torchvision") else "") + LOOP
    source += textwrap.dedent("""
    from transformers import Trainer, TrainingArguments

    class Rows(Numbers):
        def __getitem__(self, index):
            return {"x": super().__getitem__(index), "labels": torch.zeros(1)}

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
        def forward(self, x, labels):
            out = self.layer(x)
            return {"loss": ((out - labels) ** 2).mean(), "logits": out}

    if __name__ == "__main__":
        arguments = TrainingArguments(output_dir="trainer", per_device_train_batch_size=4, num_train_epochs=1, use_cpu=True,
                                      report_to="none", disable_tqdm=True, save_strategy="no", logging_strategy="no",
                                      dataloader_num_workers=1, learning_rate=1e-9)
        Trainer(model=Model(), args=arguments, train_dataset=Rows(0.008, num=160)).train()
    """)
    status, found = diagnose(source, "--trials", "0")
    assert (status, found["verdict"]["kind"], fault_of(found)) == (0, "data-bound", "read")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 2, "nothing to run"),
        (["--"], 2, "nothing to run"),
        (["-m"], 2, "nothing to run"),
        (["nosuch.py"], 1, "nosuch.py: no such script"),
        (["held"], 2, "held: holds a diagnosis; its page is held/diagnosis.html, and --compare A B says how two differ"),
        (["photos"], 2, "neither a Python script nor a recording; to measure a loader over it: `datapipe bench photos`"),
        (["photos.zip"], 2, "photos.zip: neither a Python script nor a recording"),
        (["run.sh"], 2, "no Python script; what else is to run goes after --: datapipe diagnose -- bash run.sh"),
        (["labels.csv", "--lr", "3"], 2, "labels.csv: neither a Python script nor a recording"),
        (["--steps", "0", "train.py"], 2, "--steps is 0"),
        (["--trials", "-1", "train.py"], 2, "--trials is -1"),
        (["--fail-if", "starvation>", "train.py"], 2, "is not NAME SIGN NUMBER UNIT"),
        (["--fail-if", "starvation>10", "train.py"], 2, "is not NAME SIGN NUMBER UNIT"),
        (["--fail-if", "step>10%", "train.py"], 2, "is not NAME SIGN NUMBER UNIT"),
        (["--fail-if", "starvation>10% or so", "train.py"], 2, "is not NAME SIGN NUMBER UNIT"),
        (["--compare", "a", "b", "train.py"], 2, "runs nothing"),
        (["--compare", "a", "b"], 1, "no such diagnosis"),
        (["--compare", "train.py", "train.py"], 1, "not a diagnosis"),
        (["--out", "held", "train.py"], 2, "holds a diagnosis already"),
        (["--", "no-such-command"], 1, "cannot be run"),
    ],
)
def test_wrong_options(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print('has run')")
    Path("labels.csv").write_text("a,1")
    Path("run.sh").write_text("true")
    Path("photos").mkdir()
    with zipfile.ZipFile("photos.zip", "w") as archive:
        archive.writestr("a.jpg", b"")
    Path("held").mkdir()
    Path("held/diagnosis.json").write_text("{}")
    assert main(["diagnose", *arguments]) == status
    printed = capfd.readouterr()
    assert message in printed.err
    assert "has run" not in printed.out
    assert "Traceback" not in printed.err


def test_options_behind_a_script_that_does_not_know_them_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("class Arguments:\n    batch_sizes: int\nparser.add_argument('--steps')")
    words = ["train.py", "--steps", "3", "--out=there", "--lr", "--batch-sizes", "8", "--no-html"]
    assert main(["diagnose", "--out", "found", *words]) != 0
    expected = "passed to train.py, which does not know it: --out, --no-html; options of diagnose come before that"
    assert f"datapipe diagnose: {expected}\n" in capfd.readouterr().err


def test_a_package_of_the_users_is_refused_where_the_script_would_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("datapipe/__init__.py", "train.py", "sub/train.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)

    def command_of(*words: str, module: list[str] | None = None) -> list[str]:
        return _command(argparse.Namespace(module=module, command=words))

    assert command_of("sub/train.py") == ["sub/train.py"], "the current folder is not where a script looks"
    for words, module in ((("train.py",), None), ((), ["package.train"])):
        with pytest.raises(OptionError, match="also named 'datapipe', so nothing is measured; rename it, or run from another"):
            command_of(*words, module=module)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(OptionError, match="also named 'datapipe'"):
        command_of("sub/train.py")
