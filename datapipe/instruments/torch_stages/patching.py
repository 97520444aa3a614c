"""Patch other libraries' code after its import, and leave no trace of datapipe in its exceptions.

Every Python process started under an attachment loads this module, so it imports next to nothing itself.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    Act = Callable[[ModuleType], None]


def after_import(name: str, act: Act) -> None:
    """Call `act(module)` after the first import of `name`, or now if it is imported already. `act` must not raise."""
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        act(module)
    else:
        sys.meta_path.insert(0, _Finder(name, act))


class _Finder:
    """Finds as the finders after it do, and makes the loader call `act` when it has finished."""

    def __init__(self, name: str, act: Act) -> None:
        self._name, self._act = name, act

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        place = sys.meta_path.index(self)
        for finder in sys.meta_path[place + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, self._act, self)  # type: ignore[assignment]
                return spec
        return None


class _Loader:
    """Loads as `loader` does; the module never sees this object."""

    def __init__(self, loader: object, act: Act, finder: _Finder) -> None:
        self._loader, self._act, self._finder = loader, act, finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[attr-defined,no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader  # type: ignore[assignment]
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader  # type: ignore[assignment]
        self._loader.exec_module(module)  # type: ignore[attr-defined]
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        self._act(module)


_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


def forget_us(exc: BaseException) -> None:
    """Remove datapipe's own frames from the start of the traceback.

    For an `except` clause that ends with a bare `raise`, which adds none.
    """
    trace = exc.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    exc.__traceback__ = trace
