"""The same 37 samples as a folder, as webdataset shards and converted, made once, not to be changed; and the backends."""

from __future__ import annotations

import gc
import time
import warnings
from pathlib import Path

import pytest
import torch
from fixtures import convert, make_folder, write_webdataset

from datapipe.errors import DependencyError
from datapipe.kinds.images.choice import BackendRequest, Choice
from datapipe.kinds.images.dali.installation import installation
from datapipe.kinds.images.dali.settings import Dali
from datapipe.kinds.images.evidence import DataEvidence
from datapipe.testing.loaders.kind import own_threads


@pytest.fixture(autouse=True)
def _no_iterator_of_others() -> None:
    """Collect iterators that a test before this one left open in the traceback of an exception that it caught.

    Their threads may be in the middle of a read.
    """
    if own_threads():
        gc.collect()
        end_s = time.monotonic() + 10
        while own_threads() and time.monotonic() < end_s:
            time.sleep(0.01)
        if names := own_threads():
            warnings.warn(f"an earlier test left passes open: {', '.join(names)}", stacklevel=1)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEGs of one size, 40 x 48."""
    return make_folder(tmp_path_factory.mktemp("folder") / "set", size=(40, 48))


@pytest.fixture(scope="session")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEGs of sizes that differ, in a folder."""
    return make_folder(tmp_path_factory.mktemp("uneven") / "set")


@pytest.fixture(scope="session")
def shards(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder as webdataset writes it."""
    return write_webdataset(folder, tmp_path_factory.mktemp("shards") / "set")


@pytest.fixture(scope="session")
def converted(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder as a converted dataset."""
    return convert(folder, tmp_path_factory.mktemp("converted") / "set")


@pytest.fixture(params=["images_cpu", pytest.param("dali", marks=pytest.mark.nightly)])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What decodes in loaders of backend="auto" in this process; DALI as far as it can do what they ask for."""
    if request.param == "dali":
        choose = BackendRequest.choose

        def choose_dali(asked: BackendRequest, device: torch.device, evidence: DataEvidence) -> Choice:
            if asked.backend == "auto" and asked.problem_for_dali(device) is None:
                return Choice(device, Dali(), "for the test")
            return choose(asked, device, evidence)

        monkeypatch.setattr(BackendRequest, "choose", choose_dali)
        try:
            installation()
        except DependencyError as exc:
            pytest.skip(str(exc))
    return str(request.param)
