"""Patch a dataset's transforms so that their calls are timed while one batch is fetched.

An object temporarily gets a class derived from its own in which only `__call__` differs, so it keeps its identity, state
and behaviour. A function is replaced in the attribute or list that holds it. All patches are undone before the batch is
collated. Classes of torch are not patched: compiled code checks for them.

torchvision's Compose may be held anywhere, so its class is patched: one of its methods is replaced.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

from datapipe.instruments.torch_stages.patching import forget_us
from datapipe.instruments.torch_stages.timing import TransformClock

Undo = Callable[[], None]
Slot = tuple[dict[str, Any], str]  # an object's attributes, and the name of one of them

_MAX_PARTS = 64
_MAX_OWNERS = 64
_HEAP_TYPE = 1 << 9
_current = threading.local()
_composes: dict[type, tuple[str, Callable[..., Any], Callable[..., Any]]] = {}  # name, method, timed method
_borrowers: set[object] = set()  # batches in progress for which these are patched


def set_clock(clock: TransformClock | None) -> TransformClock | None:
    """Set the clock that times the transforms called in this thread; return the previous one."""
    before: TransformClock | None = getattr(_current, "clock", None)
    _current.clock = clock
    return before


def find_slots(dataset: object, dataset_type: type) -> list[Slot]:
    """Return the attributes where a dataset, and datasets inside it, hold transforms."""
    slots: list[Slot] = []
    owners, seen = [dataset], {id(dataset)}
    for owner in owners:  # grows during the loop
        for name, value in _attributes(owner).items():
            within = value[:_MAX_PARTS] if isinstance(value, (list, tuple)) else (value,)
            inner = [other for other in within if isinstance(other, dataset_type)]
            if _is_named_transform(name) or _parts_of(value):
                slots.append((_attributes(owner), name))
                if callable(value) and not _parts_of(value):
                    inner.append(value)  # torchvision's StandardTransform holds two
            for other in inner:
                if id(other) not in seen and len(owners) < _MAX_OWNERS:
                    seen.add(id(other))
                    owners.append(other)
    return slots


def lend_slots(slots: list[Slot], undos: list[Undo]) -> None:
    """Patch what the slots hold now; append functions that undo it to `undos`."""
    for held, name in slots:
        value = held.get(name)
        if isinstance(value, (list, tuple)):
            undos += _lend_all(value)
        elif (undo := _lend(value, held, name)) is not None:
            undos.append(undo)


def add_compose(compose: type, method: str) -> None:
    """Register a class that `lend_composes` patches, which defines this method itself."""
    if compose not in _composes:
        own = vars(compose)[method]
        _composes[compose] = method, own, timed_method(own)


def lend_composes(undos: list[Undo]) -> None:
    """Time calls of these classes in threads with a clock; in other threads they behave as before."""
    borrower = object()
    _borrowers.add(borrower)
    for compose, (name, own, timed) in _composes.items():
        if vars(compose).get(name) is own:
            setattr(compose, name, timed)

    def undo() -> None:
        _borrowers.discard(borrower)
        for compose, (name, own, timed) in _composes.items():
            if not _borrowers and vars(compose).get(name) is timed:
                setattr(compose, name, own)

    undos.append(undo)


def take_back(undos: list[Undo]) -> None:
    """Undo the patches, the latest first."""
    while undos:
        undos.pop()()


def timed_method(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that calls a transform, such as `Compose.__call__`, timed while a clock is set."""

    @functools.wraps(method)
    def timed(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return _call(self, type(self).__name__, method, self, *args, **kwargs)
        except BaseException as exc:
            forget_us(exc)
            raise

    return timed


def _call(called: object, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    clock: TransformClock | None = getattr(_current, "clock", None)
    if clock is None or clock.is_under_way(called):
        return function(*args, **kwargs)
    if not clock.is_due(name):
        return clock.call(function, *args, **kwargs)
    undos: list[Undo] = []
    try:
        undos += _lend_all(_parts_of(called))
        return clock.call_timed(called, name, function, *args, **kwargs)
    finally:
        take_back(undos)


def _lend_all(parts: list[Any] | tuple[Any, ...]) -> Iterator[Undo]:
    for place, part in enumerate(parts[:_MAX_PARTS]):
        if (undo := _lend(part, parts if isinstance(parts, list) else None, place)) is not None:
            yield undo


def _lend(lent: Any, holder: Any, place: Any) -> Undo | None:
    """Patch one callable, which `holder[place]` holds; None if that is not possible."""
    if isinstance(lent, (types.FunctionType, types.MethodType, functools.partial)):
        return None if holder is None or hasattr(lent, "_datapipe_times") else _replace(lent, holder, place)
    own = type(lent)
    ours = _timed_class(own) if callable(lent) and not isinstance(lent, type) else None
    if ours is None:
        return None
    try:
        object.__setattr__(lent, "__class__", ours)  # bypasses the __setattr__ of frozen objects and modules
    except TypeError:  # the memory layout differs
        return None

    def undo() -> None:
        if type(lent) is ours:
            object.__setattr__(lent, "__class__", own)

    return undo


def _replace(function: Any, holder: Any, place: Any) -> Undo:
    name = getattr(getattr(function, "func", function), "__name__", type(function).__name__)

    def timed(*args: Any, **kwargs: Any) -> Any:
        try:
            return _call(function, name, function, *args, **kwargs)
        except BaseException as exc:
            forget_us(exc)
            raise

    functools.update_wrapper(timed, function)
    timed.__dict__["_datapipe_times"] = True
    holder[place] = timed

    def undo() -> None:
        if holder[place] is timed:
            holder[place] = function

    return undo


_timed_classes: dict[type, type | None] = {}


def _timed_class(own: type) -> type | None:
    """Return `own` with a timed `__call__`; None if it cannot be derived."""
    if own not in _timed_classes:
        _timed_classes[own] = _derive(own)
    return _timed_classes[own]


def _derive(own: type) -> type | None:
    method = getattr(own, "__call__", None)  # noqa: B004
    module = own.__module__.partition(".")[0]
    if not own.__flags__ & _HEAP_TYPE or method is None or module in ("torch", "builtins", "functools"):
        return None
    if own.__dict__.get("_datapipe_times"):
        return None
    names = {"__call__": timed_method(method), "__slots__": (), "_datapipe_times": True}
    names |= {name: own.__dict__[name] for name in ("__module__", "__qualname__", "__doc__") if name in own.__dict__}
    names["__qualname__"] = own.__qualname__
    try:
        # bypasses metaclasses that register their classes
        return type.__new__(type(own), own.__name__, (own,), names)
    except TypeError:
        return None


def _attributes(owner: object) -> dict[str, Any]:
    found = getattr(owner, "__dict__", None)
    return found if type(found) is dict else {}


def _parts_of(called: object) -> list[Any] | tuple[Any, ...]:
    """Return the parts of a Compose; empty for other objects."""
    parts = _attributes(called).get("transforms") if callable(called) else None
    return parts if isinstance(parts, (list, tuple)) and len(parts) <= _MAX_PARTS else ()


def _is_named_transform(name: str) -> bool:
    return name.endswith(("transform", "transforms")) or "augment" in name
