"""Only the latest run of a part publishes shards."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from trees import ROOT, contents, make_tree

from converters import Advance, ConvertOptions, Part, convert
from converters.conversion import _Conversion
from converters.engines.local import Workers, run_shards
from converters.runs import Fence, begin_run
from converters.shards import ShardJob
from datapipe.errors import StorageError


@pytest.fixture
def building(tmp_path: Path) -> Path:
    path = tmp_path / "out" / ".building"
    path.mkdir(parents=True)
    return path


def test_a_later_run_shuts_out_the_earlier(building: Path) -> None:
    first = begin_run(building, Part(1, 2))
    other = begin_run(building, Part(2, 2))
    first.check()
    second = begin_run(building, Part(1, 2))
    with pytest.raises(StorageError, match="another run has taken this conversion over"):
        first.check()
    second.check()
    other.check()
    whole = begin_run(building, Part())  # divides the shards differently
    for one in (first, second, other):
        with pytest.raises(StorageError, match="another run"), one.passed():
            pytest.fail("passed")
    whole.check()
    assert [path.name for path in building.iterdir()] == ["part-1-of-1.fence"]


def test_a_finished_conversion_shuts_out_everyone(building: Path) -> None:
    old = begin_run(building, Part())
    building.rename(building.with_name("elsewhere"))
    with pytest.raises(StorageError, match="another run"):
        old.check()


def test_the_next_run_waits_for_what_is_being_published(building: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has compared the token finishes its renames before the token changes."""
    old = begin_run(building, Part())
    code = (
        "import sys; from pathlib import Path; from converters.runs import Fence\n"
        f"with Fence(Path({os.fspath(old.path)!r}), {old.token!r}).passed():\n"
        "    print('in', flush=True); sys.stdin.readline()"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        monkeypatch.setattr("converters.runs._WAIT_S", 0.1)
        with pytest.raises(StorageError, match="has been publishing a shard"):
            begin_run(building, Part())
        old.check()
        process.communicate("\n", timeout=30)
    begin_run(building, Part())
    with pytest.raises(StorageError):
        old.check()


def test_temporary_names_differ_by_run_host_and_process(building: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = begin_run(building, Part())
    names = {one.temporary("shard-000000.tar"), begin_run(building, Part()).temporary("shard-000000.tar")}
    monkeypatch.setattr(os, "getpid", lambda: 7)
    names.add(one.temporary("shard-000000.tar"))
    monkeypatch.setattr("socket.gethostname", lambda: "an/other host")
    names.add(one.temporary("shard-000000.tar"))
    assert len(names) == 4
    assert all(name.endswith(".part") and "/" not in name for name in names)


def test_an_orphan_publishes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task of a killed run that goes on, under another policy, after the next run has begun."""
    source, out = make_tree(tmp_path / "source"), tmp_path / "out"
    reference = ConvertOptions(source, tmp_path / "reference", shard_nbytes=5_000, num_workers=1)
    convert(reference)
    jobs: list[tuple[ShardJob, object]] = []

    def keep(job: ShardJob, shards: object, **settings: object) -> None:
        jobs.append((job, shards))
        raise KeyboardInterrupt

    options = ConvertOptions(source, out, shard_nbytes=5_000, num_workers=1)
    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr("converters.conversion.run_shards", keep)
        convert(options)
    ((orphan, shards),) = jobs
    at_work = _Conversion._write_shards

    def write_shards(self: _Conversion, plan: object) -> tuple[int, int]:
        begin_run(self.building, self.part)  # as the next run does, which is then slower than the orphan
        ignore = {"on_samples": lambda num, bad: None, "on_shard": lambda shard: None}
        with pytest.raises(StorageError, match="another run has taken this conversion over"):
            run_shards(orphan, shards, options=options, workers=Workers(), **ignore)  # type: ignore[arg-type]
        assert not list(self.building.glob("*shard*"))
        assert not list(self.building.glob("done/*"))
        return at_work(self, plan)  # type: ignore[arg-type]

    monkeypatch.setattr(_Conversion, "_write_shards", write_shards)
    convert(options)
    assert contents(out) == contents(tmp_path / "reference")


def test_a_fence_lost_in_the_middle(tmp_path: Path) -> None:
    """The comparison that counts is the one at the end."""
    source, out = make_tree(tmp_path / "source", per_class=50), tmp_path / "out"
    taken: list[Fence] = []

    def on_progress(advance: Advance) -> None:
        if advance.total and advance.num_samples and not taken:
            assert list(out.glob(".building/*.part"))
            taken.append(begin_run(out / ".building", Part()))

    with pytest.raises(StorageError, match="another run"):
        convert(ConvertOptions(source, out, num_workers=1), on_progress)
    assert taken
    assert not list(out.rglob("*.tar"))
    assert not list(out.glob(".building/*.part"))
    assert convert(ConvertOptions(source, out, num_workers=1)).num_samples == 150
