"""Ray that does not start or import is an error with its reason and a remedy."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from converters.engines import ray as engine
from datapipe.core.ray_cluster import import_ray
from datapipe.errors import DependencyError, OptionError


class RayError(Exception):
    """Stands for Ray's own errors, which derive from Exception alone."""


@pytest.mark.parametrize(
    "error", [RayError("the raylet\n did not start"), OSError(28, "No space left"), TimeoutError("timed out")]
)
@pytest.mark.parametrize(
    ("address", "words"),
    [
        (
            None,
            r"--engine ray: Ray does not start on this machine \({}: .*\); start a cluster by `ray start.*leave out --engine",
        ),
        ("auto", "no Ray cluster at --address auto: {}: .*; see docs/clusters.md"),
    ],
)
def test_ray_that_does_not_start(error: Exception, address: str | None, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> None:
        raise error

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray = SimpleNamespace(is_initialized=lambda: False, init=init)
    with pytest.raises(OptionError, match=words.format(type(error).__name__)), engine._connected(ray, address, 1):
        pass


def test_ray_that_does_not_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ray.py").write_text("raise AttributeError('no protobuf')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    with pytest.raises(DependencyError, match=r"Ray does not import \(AttributeError: no protobuf\); install it again"):
        import_ray(engine.ENGINE)
