"""Attach the Python processes started under an attachment, which find this module first.

It runs the sitecustomize that would have run without it, and attaches after a loader's module is imported. Until then it
costs a millisecond and imports nothing.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_LOADERS = (
    "torch.utils.data.dataloader",
    "datapipe.kernel.loader",
    "datapipe.kernel.prefetching",
    "accelerate.data_loader",
)


def _await_loaders(environment: dict[str, str]) -> None:
    root = environment["DATAPIPE_ATTACH_ROOT"]
    file = os.path.join(root, "datapipe", "instruments", "torch_stages", "patching.py")
    names: dict[str, Any] = {"__name__": "_datapipe_patching", "__file__": file}
    with open(file, encoding="utf-8") as source:
        exec(compile(source.read(), file, "exec"), names)
    for name in _LOADERS:
        names["after_import"](name, lambda loaded: _attach(root, loaded, environment))


def _attach(root: str, loaded: ModuleType, environment: dict[str, str]) -> None:
    try:
        theirs = {}
        package = sys.modules.get("datapipe")
        places = [*getattr(package, "__path__", ()), getattr(package, "__file__", None) or ""]
        if package is not None and not any(os.path.realpath(place).startswith(os.path.join(root, "")) for place in places):
            if loaded.__name__.startswith("datapipe."):
                return  # a module of the user's package, not of ours
            theirs = {name: sys.modules.pop(name) for name in list(sys.modules) if (name + ".").startswith("datapipe.")}
        sys.path.insert(0, root)
        try:
            from datapipe.instruments.attach.startup import begin
        finally:
            sys.path.remove(root)
        begin(loaded, environment)
        sys.modules.update(theirs)
    except Exception as exc:
        print(f"datapipe diagnose: nothing is measured: {type(exc).__name__}: {exc}; the script continues", file=sys.stderr)


def _run_the_other() -> None:
    """Run the sitecustomize hidden by this one; without one, raise the ImportError of that name that `site` expects."""
    from _frozen_importlib import module_from_spec

    own = sys.modules.pop("sitecustomize")  # otherwise find_spec would return this module's own spec
    try:
        specs = (finder.find_spec("sitecustomize", None, None) for finder in sys.meta_path)
        spec = next(filter(None, specs), None)
        if spec is None or spec.loader is None:
            raise ImportError("No module named 'sitecustomize'", name="sitecustomize")
        other = module_from_spec(spec)
    except BaseException:
        sys.modules["sitecustomize"] = own
        raise
    sys.modules["sitecustomize"] = other
    spec.loader.exec_module(other)


if __name__ == "sitecustomize":
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    if sys.version_info >= (3, 11) and os.environ.get("DATAPIPE_ATTACH_ROOT"):
        try:
            _await_loaders(dict(os.environ))  # as it is now: the script may clear it
        except Exception as exc:
            print(f"datapipe diagnose: nothing is measured: {exc}; the script continues", file=sys.stderr)
    _run_the_other()
