"""Nested containers are rebuilt with their types, and only if something in them changed."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch

from datapipe.errors import OptionError
from datapipe.kernel.pytree import map_nest, moves_itself, tensors_of


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    image: Any
    name: str = "n"


@dataclasses.dataclass
class Counted:
    image: Any
    num: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.num = len(self.image)


class Words(list[Any]):
    language = "en"


class Triple(tuple[Any, ...]):
    __slots__ = ()


class OwnMapping(Mapping[str, Any]):
    """Not made from its values."""

    def __init__(self, one: torch.Tensor, two: torch.Tensor) -> None:
        self._values = {"one": one, "two": two}

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return 2


class Mover:
    def to(self, device: Any, non_blocking: bool = False) -> str:
        return f"moved to {device}"


class AnyMover:
    def to(self, *args: Any, **kwargs: Any) -> str:
        return "moved"


class Converter:
    """As units and currencies have it."""

    def to(self, unit: str) -> float:
        raise AssertionError("not a tensor's to")


def negated(nest: Any) -> Any:
    return map_nest(nest, lambda tensor: -tensor, lambda mover: mover.to("here", non_blocking=True))


X = torch.arange(3)
defaults: defaultdict[str, Any] = defaultdict(int, {"a": X})


@pytest.mark.parametrize("nest", [
    {"a": X, 2: [X, "b"]}, OrderedDict(b=X, a=X), defaults, UserDict({"a": X}), MappingProxyType({"a": X}), [X, (X,)], (X, None),
    Pair(X, [X]), Frozen(X), Counted(X), Words([X, 1]), Triple((X, 2)), {"deep": [{"a": (Pair(Frozen(X), 1),)}]},
], ids=lambda nest: type(nest).__name__)  # fmt: skip
def test_types_are_kept(nest: Any) -> None:
    found = negated(nest)
    assert type(found) is type(nest)
    assert tensors_of(found)
    assert all(torch.equal(a, -b) for a, b in zip(tensors_of(found), tensors_of(nest), strict=True))
    assert all(tensor is X for tensor in tensors_of(nest)), "the nest that was passed is as it was"


def test_what_containers_carry_beside_their_values_is_kept() -> None:
    assert negated(defaults).default_factory is int
    assert list(negated(OrderedDict(b=X, a=X))) == ["b", "a"]
    assert negated(Counted(X)).num == 3
    assert negated(Words([X])).language == "en"
    assert negated(Frozen(X, "m")).name == "m"
    assert negated(Pair(X, 5)).second == 5


def test_a_container_without_tensors_comes_back_itself() -> None:
    for nest in (
        {"a": 1},
        [1, [2]],
        (1,),
        Pair(1, 2),
        Frozen(1),
        torch.Size([2, 3]),
        OwnMapping(1, 2),
        "text",
        b"bytes",
        None,
        {1, 2},
    ):  # type: ignore[arg-type]
        assert negated(nest) is nest


def test_a_class_is_no_instance() -> None:
    assert negated([Frozen, Mover, X])[:2] == [Frozen, Mover]


def test_who_moves_itself() -> None:
    assert negated([Mover(), {"a": AnyMover()}]) == ["moved to here", {"a": "moved"}]
    thing = Converter()
    assert negated(thing) is thing
    assert [moves_itself(kind) for kind in (torch.Tensor, torch.nn.Parameter, Mover, AnyMover, Converter, str)] == [
        True, True, True, True, False, False,
    ]  # fmt: skip


def test_a_type_that_cannot_be_made_anew_is_named() -> None:
    with pytest.raises(OptionError, match=r"OwnMapping, which cannot be rebuilt .*give the type a \.to"):
        negated({"a": OwnMapping(X, X)})
