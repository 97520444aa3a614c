"""Scripts and launchers in processes of their own: they run as they would alone, and each rank leaves its results."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from datapipe.errors import MissingDataError
from datapipe.instruments.attach.launching import CommandResult, child_environment, run_command, run_script
from datapipe.instruments.measure.recorded import SUFFIX, Process, read_process

ROOT = Path(__file__).resolve().parents[2]
RECORDING = "datapipe.instruments.attach.recording:open_recording"

LOOP = """
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        return torch.full((2,), float(index))

def train(**options):
    loader = DataLoader(Numbers(), batch_size=4, **options)
    print(sum(batch.sum().item() for batch in loader))
"""


@dataclass(frozen=True)
class Run:
    """The results of a script's run."""

    exit_code: int
    out: str
    err: str


@dataclass
class Scripts:
    """A directory of scripts, run alone and attached, with `root` where our package is not on the path."""

    directory: Path
    results: Path

    def write(self, name: str, source: str) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))

    def run(self, *argv: str, attached: bool, **environment: str) -> Run:
        """`python *argv`, in the directory."""
        env = os.environ | environment
        if attached:
            env = child_environment(env, self.results, open_watch=RECORDING)
        done = subprocess.run(
            [sys.executable, *argv], cwd=self.directory, env=env, capture_output=True, text=True, timeout=200, check=False
        )
        return Run(done.returncode, done.stdout, done.stderr)

    def both(self, *argv: str, **environment: str) -> Run:
        """Attached; after making sure that it is the same alone."""
        alone, attached = (self.run(*argv, attached=value, **environment) for value in (False, True))
        assert attached == alone
        return attached

    def found(self) -> list[Process]:
        """Results of all processes, by rank."""
        return sorted((read_process(path) for path in self.results.glob(f"*{SUFFIX}")), key=lambda one: one.rank)


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    for name in ("scripts", "results"):
        (tmp_path / name).mkdir()
    return Scripts(tmp_path / "scripts", tmp_path / "results")


ENDS = {
    "returns": ("print('done')", 0),
    "exits": ("sys.exit(3)", 3),
    "exits with words": ("sys.exit('no such thing')", 1),
    "raises": ("def f():\n    raise ValueError('planted')\nf()", 1),
    "has a syntax error": ("def f(:", 1),
    "leaves at once": ("os._exit(5)", 5),
    "is terminated": ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    "is interrupted": ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_script_ends_as_it_would_alone(scripts: Scripts, end: str) -> None:
    source, code = ENDS[end]
    scripts.write("script.py", f"import os, signal, sys\nprint('begun', flush=True)\n{source}\n")
    assert scripts.both("script.py").exit_code == code
    assert scripts.found() == []  # it never iterated a loader


def test_a_script_without_loaders_does_not_get_us(scripts: Scripts) -> None:
    source = "import sys\nprint(sys.argv, __name__, sys.path)\nprint([name for name in sys.modules if 'datapipe.' in name])"
    scripts.write("script.py", source)
    scripts.write("package/__init__.py", "")
    scripts.write("package/__main__.py", source + "\nprint(__package__)")
    assert scripts.both("script.py", "--option", "-m").out.endswith("[]\n")
    assert "package" in scripts.both("-m", "package", "a").out


@pytest.mark.nightly
def test_a_training_script_runs_unmodified(scripts: Scripts) -> None:
    """What it prints, its traceback and its exit code are those of a run alone."""
    scripts.write(
        "train.py",
        LOOP
        + textwrap.dedent("""
        import argparse, atexit, sys

        class Broken(Numbers):
            def __getitem__(self, index):
                return 1 / (index - 6) * super().__getitem__(index)

        if __name__ == "__main__":
            parser = argparse.ArgumentParser()
            parser.add_argument("--workers", type=int)
            args = parser.parse_args()
            atexit.register(print, "at exit")
            print(sys.argv, file=sys.stderr)
            train(num_workers=args.workers)
            for batch in DataLoader(Broken(), batch_size=4, num_workers=1):
                pass
        """),
    )
    run = scripts.both("train.py", "--workers", "2")
    assert (run.exit_code, run.out) == (1, "132.0\nat exit\n")
    assert "ZeroDivisionError" in run.err
    assert "diagnostics" not in run.err
    [found] = scripts.found()
    assert found.num_training_steps == 3 + 1
    assert [Path(facts.site or "").name for facts in found.loaders.values()] == ["train.py:12", "train.py:28"]
    assert [profile.made.worker for profile in found.profiles] == [0, 1, 0, 0]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["converters", "datapipe"])
def test_packages_of_the_users_keep_their_names(scripts: Scripts, name: str) -> None:
    scripts.write(f"{name}/__init__.py", "from .more import VALUE")
    scripts.write(f"{name}/more.py", "VALUE = 'of the user'")
    last = f"    train(num_workers=2)\n    import {name}.more\n    print({name}.VALUE)"
    scripts.write("train.py", f"import {name}\n{LOOP}\nif __name__ == '__main__':\n{last}")
    run = scripts.run("train.py", attached=True)
    assert (run.exit_code, run.out) == (0, "132.0\nof the user\n")
    if name == "datapipe":
        assert "a package of yours is also named 'datapipe', so nothing is measured; rename it" in run.err
        assert scripts.found() == []
        return
    [found] = scripts.found()
    assert found.num_training_steps == 3
    assert run.err == ""
    assert len(found.profiles) == 3


@pytest.mark.nightly
def test_processes_below_are_attached_and_workers_are_none_of_them(scripts: Scripts) -> None:
    """A rank started by `torch.multiprocessing`, whose worker is spawned."""
    scripts.write(
        "train.py",
        LOOP
        + textwrap.dedent("""
        import os, sys
        def rank(number):
            os.environ["RANK"] = str(number + 5)
            train(num_workers=1, multiprocessing_context="spawn")
        if __name__ == "__main__":
            torch.multiprocessing.spawn(rank, nprocs=1, daemon=False)
        """),
    )
    run = scripts.run("train.py", attached=True)
    assert (run.exit_code, run.out, run.err) == (0, "132.0\n", "")
    [found] = scripts.found()
    assert found.rank == 5
    assert len(found.profiles) == 3


@pytest.mark.nightly
def test_ranks_under_accelerate_launch(scripts: Scripts) -> None:
    """With `--multi_gpu` it starts as many, also without a GPU; what it starts them with is torchrun."""
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    scripts.write(
        "train.py",
        LOOP
        + textwrap.dedent("""
        from accelerate import Accelerator
        accelerator = Accelerator(cpu=True)
        loader = accelerator.prepare(DataLoader(Numbers(), batch_size=2))
        print(sum(batch.sum().item() for batch in loader))
        accelerator.end_training()
        """),
    )
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    assert run_command([*launch, str(scripts.directory / "train.py")], scripts.results) == CommandResult(0)
    assert [(one.rank, len(one.steps)) for one in scripts.found()] == [(0, 3), (1, 3)]
    assert {facts.kind for one in scripts.found() for facts in one.loaders.values()} == {"accelerate.data_loader.DataLoaderShard"}


def test_a_sitecustomize_that_was_there_is_run(scripts: Scripts) -> None:
    scripts.write("site/sitecustomize.py", "print('customised', __file__)")
    scripts.write("site/usercustomize.py", "")
    scripts.write("script.py", "import sitecustomize, sys\nprint(sitecustomize.__file__, sys.path[1])")
    run = scripts.both("script.py", PYTHONPATH=str(scripts.directory / "site"))
    assert run.out.startswith("customised")


def test_without_a_sitecustomize_there_is_none(scripts: Scripts) -> None:
    scripts.write("script.py", "try:\n    import sitecustomize\nexcept ImportError as exc:\n    print(exc, exc.name)")
    assert scripts.both("script.py").out == "No module named 'sitecustomize' sitecustomize\n"


@pytest.mark.nightly
def test_our_own_failure_is_told_and_nothing_else(scripts: Scripts) -> None:
    scripts.write("train.py", LOOP + "\ntrain()\n")
    env = child_environment(os.environ, scripts.results, open_watch="datapipe.no_such_module:f")
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=scripts.directory, env=env, capture_output=True, text=True, timeout=200
    )
    assert (done.returncode, done.stdout) == (0, "132.0\n")
    assert len(done.stderr.splitlines()) == 1
    assert "No module named 'datapipe.no_such_module'" in done.stderr


def test_run_script_starts_what_is_named(scripts: Scripts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(scripts.directory)
    scripts.write("script.py", "import sys\nsys.exit(len(sys.argv))")
    scripts.write("module.py", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert run_script(["script.py", "-x", "--y"], scripts.results) == CommandResult(3)
    assert run_script(["-m", "module"], scripts.results) == CommandResult(137, signal.SIGKILL)


def test_a_launcher_that_cannot_be_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="on PATH"):
        run_command(["no-such-launcher"], tmp_path)


WAITS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
signal.signal(signal.SIGINT, lambda *_: sys.exit(8))
print("ready", flush=True)
for _ in range(600):
    time.sleep(0.1)  # a signal that comes just before a sleep does not cut it short
"""


@pytest.fixture
def waiting(scripts: Scripts) -> Iterator[subprocess.Popen[str]]:
    """A process that runs a script, which waits."""
    scripts.write("script.py", WAITS)
    code = (
        "import sys; from pathlib import Path\nfrom datapipe.instruments.attach.launching import run_script\n"
        f"sys.exit(run_script(['script.py'], Path({str(scripts.results)!r})).exit_code)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=scripts.directory,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 7), (signal.SIGINT, 8)])
def test_signals_are_passed_on(number: int, status: int, waiting: subprocess.Popen[str]) -> None:
    waiting.send_signal(number)
    assert waiting.wait(30) == status


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child")
def test_a_script_ends_with_a_process_that_is_killed(waiting: subprocess.Popen[str]) -> None:
    began = time.monotonic()
    waiting.kill()
    assert waiting.stdout is not None
    assert waiting.stdout.read() == ""  # until the script has closed it, which otherwise takes a minute
    assert time.monotonic() - began < 40


@pytest.mark.nightly
def test_a_script_that_clears_its_environment_is_measured(scripts: Scripts) -> None:
    scripts.write("train.py", "import os\nos.environ.clear()\n" + LOOP + "\ntrain()\n")
    assert scripts.both("train.py").out == "132.0\n"
    assert len(scripts.found()) == 1
