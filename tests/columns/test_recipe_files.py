"""Files of recipes that were tampered with: refused with an error that names them, or read as what they say."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import datapipe as dp
from datapipe.errors import DatapipeError, FormatError, IntegrityError

C = dp.Columns
DROPPED = object()
VALUES = [None, -1, 0, 1.5, True, "x", "", [], {}, 10**400, 1 << 63, float("nan"), float("inf"), -1e308, [[]], {"a": 1}, DROPPED]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fitted recipe with every kind of statistic, and its table next to it. Not to be changed."""
    place = tmp_path_factory.mktemp("recipe")
    columns = {"a": [1.0, None, 3.0] * 10, "b": ["x", "y", "z"] * 10, "c": [5, 6, 7] * 10, "label": [0, 1, 0] * 10}
    pq.write_table(pa.table(columns), place / "t.parquet")
    chain = [C.FillMissing("mean", indicator=True), C.Clip(-5, 5), C.Normalize()]
    recipe = C({"a": chain, "b": C.Categorify(max_size=5), "c": C.Bucketize((1, 6))})
    recipe.fit(place / "t.parquet").save(place / "r.json")
    return place / "r.json"


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*path, key))


def changed(document: Any, path: tuple[Any, ...], value: object) -> Any:
    document = copy.deepcopy(document)
    around = document
    for key in path[:-1]:
        around = around[key]
    if value is DROPPED:
        del around[path[-1]]
    else:
        around[path[-1]] = value
    return document


def written(saved: Path, document: object, name: str) -> Path:
    path = saved.with_name(name)
    path.write_text(json.dumps(document))
    vocabularies = Path(f"{path}.vocabularies")
    if not vocabularies.exists():
        vocabularies.symlink_to(f"{saved}.vocabularies")
    return path


def test_every_member_with_every_value_is_refused_or_used(saved: Path) -> None:
    document = json.loads(saved.read_text())
    refusals = []
    for path in places(document):
        for value in VALUES:
            try:
                recipe = C.load(written(saved, changed(document, path, value), "any.json"))
            except DatapipeError as exc:
                refusals.append(str(exc))
                continue
            recipe.describe()
            for name in "abc":
                with contextlib.suppress(DatapipeError):
                    recipe.num_ids(name)
    assert len(refusals) > 400
    assert all("any.json" in said for said in refusals)


@pytest.mark.parametrize(
    ("path", "value", "error", "said"),
    [
        (("fitted", "b", "vocabulary", "size"), None, FormatError, "the vocabulary of 'b' has the size None"),
        (("fitted", "b", "vocabulary", "size"), -1, FormatError, "the vocabulary of 'b' has the size -1"),
        (("fitted", "b", "vocabulary", "size"), 7, IntegrityError, "holds 3 values, and the recipe says 7"),
        (("fitted", "b", "vocabulary"), DROPPED, FormatError, "Categorify of 'b' needs vocabulary, which was not fitted"),
        (("fitted", "a", "std"), -1, FormatError, "std of 'a' is -1, expected a finite number, and a std of 0 or more"),
        (("fitted", "a", "std"), DROPPED, FormatError, "Normalize of 'a' needs std, which was not fitted"),
        (("fitted", "a", "fill"), DROPPED, FormatError, "FillMissing of 'a' needs fill, which was not fitted"),
        (("fitted", "a", "mean"), 10**400, FormatError, "mean of 'a' is 1000"),
        (("fitted", "a", "mean"), True, FormatError, "mean of 'a' is True"),
        (("fitted", "a", "median"), 1.0, FormatError, "unknown members of 'a': median"),
        (("columns", 0, 1, 1, "max"), 10**400, FormatError, r"Clip\(1000"),
        (("columns", 2, 1, 0, "boundaries"), [1, 10**400], FormatError, "Bucketize"),
        (("columns", 0, 1, 0, "indicator"), 3, FormatError, "indicator is 3; pass True or False"),
        (("columns", 0, 1), {}, FormatError, "operations are no list"),
        (("version",), True, FormatError, "version True, expected 1"),
    ],
)
def test_what_is_said(saved: Path, path: tuple[Any, ...], value: object, error: type[Exception], said: str) -> None:
    document = changed(json.loads(saved.read_text()), path, value)
    with pytest.raises(error, match=said):
        C.load(written(saved, document, "said.json"))
