"""The table of forms names modules; each keeps the contract that the table says."""

from __future__ import annotations

import importlib
import inspect
import typing
from types import ModuleType

import pytest

from datapipe.containers.form import Form
from datapipe.containers.forms import FORMS
from datapipe.containers.look import Evidence, Look
from datapipe.kinds.registry import KINDS
from datapipe.stores.location import Place


def module_of(name: str) -> ModuleType:
    facts = FORMS[name]
    return importlib.import_module(facts.known_by or facts.source or facts.shards)


@pytest.mark.parametrize("name", FORMS)
def test_a_form_says_whether_a_place_is_of_it(name: str) -> None:
    """By the names of its files, by a list of them, or by a function of a look and a form."""
    facts = FORMS[name]
    recognise = getattr(module_of(name), "recognise", None)
    if recognise is None:
        assert facts.files is not None or facts.lists
        assert facts.shards
        return
    hints = typing.get_type_hints(recognise)
    assert list(hints.values()) == [Look, Form, Evidence | None]
    assert facts.kind in KINDS


@pytest.mark.parametrize("name", FORMS)
def test_its_modules_open_it(name: str) -> None:
    facts = FORMS[name]
    if facts.shards:
        assert callable(importlib.import_module(facts.shards).index_shard)
    if facts.source:
        open_source = importlib.import_module(facts.source).open_source
        function = open_source.__init__ if inspect.isclass(open_source) else open_source
        hints = typing.get_type_hints(function)
        assert [hints[one] for one in ("place", "form")] == [Place, Form]
    if facts.rows:
        rows = importlib.import_module(facts.rows)
        assert callable(rows.read_rows)
        assert all(issubclass(one, Exception) for one in rows.DAMAGE)
    assert facts.source or facts.shards or facts.known_by
