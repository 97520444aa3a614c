"""Every module of the package can be imported first, and again after an import that was cut short."""

from __future__ import annotations

import subprocess
import sys

import pytest

import converters

# A cancelled task of a cluster leaves a process with some modules of the package, and without the package itself.
_CUT_SHORT = """
import sys
import converters.planning
for name in list(sys.modules):
    if name.partition(".")[0] == "converters" and name != "converters.planning":
        del sys.modules[name]
import {module}
"""


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "module", ["converters.planning.plan", "converters.engines.local", "converters.shards", "converters.conversion"]
)
def test_modules_are_imported_after_an_import_that_was_cut_short(module: str) -> None:
    ran = subprocess.run([sys.executable, "-c", _CUT_SHORT.format(module=module)], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("name", converters.__all__)
def test_every_public_name_is_importable(name: str) -> None:
    assert getattr(converters, name).__name__ == {"Resize": "ResizeRule"}.get(name, name)


def test_names_that_do_not_exist_are_refused() -> None:
    with pytest.raises(AttributeError, match="module 'converters' has no attribute 'missing'"):
        _ = converters.missing
