"""`dp.Columns`: operations against pandas, fitting, files, and the loader that applies them."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import datapipe as dp
from datapipe.columns.fitting import Moments, histogram_of, median_of
from datapipe.columns.hashing import IdTable, keys_of_numbers, keys_of_texts
from datapipe.errors import FormatError, IntegrityError, OptionError

C = dp.Columns
NUM = 5000


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    words = np.array([f"word {number}" for number in range(40)] + ["", "ä", "日本", "x" * 50])
    data = {
        "price": pd.array(np.where(rng.random(NUM) < 0.1, np.nan, rng.gamma(2, 50, NUM)).astype(np.float32), "float32"),
        "count": pd.array(rng.poisson(20, NUM), "Int32"),
        "full": rng.integers(-50, 50, NUM),
        "word": pd.array(rng.choice(words, NUM, p=(weights := rng.random(44)) / weights.sum()), "string"),
        "id": pd.array((rng.zipf(1.5, NUM) % 1000) * 10**12 - 5, "Int64"),
        "label": rng.integers(0, 2, NUM).astype(np.float32),
    }
    table = pd.DataFrame(data)
    for name in ("count", "word", "id"):
        table.loc[rng.random(NUM) < 0.05, name] = pd.NA
    return table


@pytest.fixture(scope="module")
def table(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("columns") / "t.parquet"
    frame.to_parquet(path, row_group_size=700, index=False)
    return path


def column(path: Path, name: str, chain: Any, *, dtypes: Any = None, fit: bool = True) -> torch.Tensor:
    """What a loader in stored order gives for one column."""
    recipe = C({name: chain})
    recipe = recipe.fit(path, num_workers=2) if fit else recipe
    loader = dp.TableLoader(path, NUM, columns=[name], transform=recipe, num_workers=1, dtypes=dtypes)
    (batch,) = list(loader)
    return batch if batch.shape[1] > 1 else batch[:, 0]


def assert_close(found: torch.Tensor, expected: Any) -> None:
    np.testing.assert_allclose(found.numpy(), np.asarray(expected, np.float64), rtol=2e-6, atol=1e-6)


# -- against pandas ----------------------------------------------------------------------------------


def test_fill_missing(table: Path, frame: pd.DataFrame) -> None:
    assert_close(column(table, "price", C.FillMissing(-1.5)), frame["price"].astype("float64").fillna(-1.5))
    assert_close(
        column(table, "price", C.FillMissing("mean")),
        frame["price"].astype("float64").fillna(frame["price"].astype("float64").mean()),
    )
    median = frame["count"].median()
    found = column(table, "count", C.FillMissing("median"))
    assert found.dtype is torch.int32
    assert_close(found, frame["count"].fillna(int(median)))
    near = column(table, "price", C.FillMissing("median")).numpy()[frame["price"].isna()]
    np.testing.assert_allclose(near, frame["price"].median(), rtol=1 / 2048)


def test_an_indicator_is_a_further_column(table: Path, frame: pd.DataFrame) -> None:
    found = column(table, "price", [C.FillMissing(0, indicator=True), C.Log1p()])
    assert_close(found[:, 0], np.log1p(frame["price"].fillna(0).astype("float64")))
    assert_close(found[:, 1], frame["price"].isna())


def test_normalize(table: Path, frame: pd.DataFrame) -> None:
    full = frame["full"]
    assert_close(column(table, "full", C.Normalize()), (full - full.mean()) / full.std(ddof=0))
    chain = [C.FillMissing("median"), C.Log1p(), C.Normalize()]
    recipe = C({"price": chain}).fit(table)
    (batch,) = list(dp.TableLoader(table, NUM, columns=["price"], transform=recipe))
    assert abs(float(batch.double().mean())) < 1e-5
    assert abs(float(batch.double().std(correction=0)) - 1) < 1e-5
    partly = column(table, "price", C.Normalize())  # nulls stay
    values = frame["price"].astype("float64")
    assert_close(partly, (values - values.mean()) / values.std(ddof=0))


def test_clip_bucketize_cast(table: Path, frame: pd.DataFrame) -> None:
    full = frame["full"]
    assert column(table, "full", C.Clip(-3, 7)).tolist() == full.clip(-3, 7).tolist()
    assert_close(column(table, "full", C.Clip(max=1.5)), full.clip(upper=1.5))
    assert_close(column(table, "price", C.Clip(min=30)), frame["price"].clip(lower=30))
    bounds = [-10, 0, 2.5, 20]
    found = column(table, "full", C.Bucketize(tuple(bounds)))
    assert found.dtype is torch.int32
    assert found.tolist() == pd.cut(full, [-np.inf, *bounds, np.inf], right=False, labels=False).tolist()
    assert column(table, "full", C.Cast("int8")).dtype is torch.int8
    assert_close(column(table, "full", [C.Cast("float32"), C.Clip(-1.5)]), full.clip(lower=-1.5))


def expected_ids(values: pd.Series, *, min_count: int = 1, max_size: int | None = None) -> list[int]:
    counts = values.dropna().value_counts()
    ordered = sorted(counts.index, key=lambda value: (-counts[value], value.encode() if isinstance(value, str) else value))
    kept = [value for value in ordered if counts[value] >= min_count][:max_size]
    ids = {value: number for number, value in enumerate(kept, 3)}
    return [1 if pd.isna(value) else ids.get(value, 2) for value in values]


@pytest.mark.parametrize("name", ["word", "id", "count"])
@pytest.mark.parametrize("options", [{}, {"min_count": 100}, {"max_size": 7}, {"min_count": 3, "max_size": 20}], ids=str)
def test_categorify(table: Path, frame: pd.DataFrame, name: str, options: dict[str, int]) -> None:
    found = column(table, name, C.Categorify(**options))
    assert found.dtype is torch.int32
    assert found.tolist() == expected_ids(frame[name], **options)


def test_values_that_fitting_has_not_seen(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": ["x", "y", "x"], "b": [1, 2, 2]}), tmp_path / "fit.parquet")
    pq.write_table(pa.table({"a": ["y", "new", None], "b": [9, 1, None]}), tmp_path / "use.parquet")
    recipe = C({"*": C.Categorify()}).fit(tmp_path / "fit.parquet")
    (batch,) = list(dp.TableLoader(tmp_path / "use.parquet", 3, transform=recipe))
    assert batch.tolist() == [[4, 2], [2, 4], [1, 1]]
    assert recipe.vocabularies["a"].to_pylist() == ["x", "y"]
    assert recipe.num_ids("a") == 5


def test_hash_buckets(table: Path, frame: pd.DataFrame) -> None:
    for name in ("word", "id"):
        found = column(table, name, C.HashBucket(50), fit=False)
        assert (found == 0).tolist() == frame[name].isna().tolist()
        assert int(found.max()) <= 49
        by_value = pd.DataFrame({"value": frame[name], "bucket": found.numpy()}).dropna().groupby("value")["bucket"].nunique()
        assert (by_value == 1).all()


def test_hashes_are_the_same_for_ever() -> None:
    """Trained embeddings depend on them."""
    assert keys_of_texts(pa.array(["", "a", "datapipe", "nine char"])).tolist() == TEXT_KEYS
    assert keys_of_numbers(np.array([0, 1, -1])).tolist() == NUMBER_KEYS


TEXT_KEYS = [16852473371444490038, 5380889132093080620, 17373057668909782978, 14626061846280022939]
NUMBER_KEYS = [16852473371444490038, 9368744190824693952, 3002701955108872896]


@settings(max_examples=100)
@given(st.lists(st.one_of(st.none(), st.text(max_size=30)), max_size=40), st.integers(0, 5))
def test_hashes_of_texts_are_of_their_bytes_alone(texts: list[str | None], offset: int) -> None:
    array = pa.array(texts, pa.string())
    alone = [int(keys_of_texts(pa.array([text or ""]))[0]) for text in texts]
    for kind in (pa.string(), pa.large_string(), pa.binary()):
        found = keys_of_texts(array.cast(kind).slice(offset)).tolist()
        assert [one for one, text in zip(found, texts[offset:], strict=True) if text is not None] == [
            one for one, text in zip(alone[offset:], texts[offset:], strict=True) if text is not None
        ]
    assert len(set(alone)) == len({text or "" for text in texts})


@settings(max_examples=50)
@given(st.sets(st.integers(-(2**63), 2**63 - 1), max_size=200), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=50))
def test_id_table_finds_what_is_in_it(keys: set[int], others: list[int]) -> None:
    listed = np.array(sorted(keys), np.int64).view(np.uint64)
    table = IdTable.of(listed)
    assert table.find(listed, otherwise=-9).tolist() == list(range(len(keys)))
    asked = np.array(others, np.int64)
    places = {key: place for place, key in enumerate(sorted(keys))}
    assert table.find(asked.view(np.uint64), otherwise=-9).tolist() == [places.get(key, -9) for key in others]


def test_id_table_with_many_collisions() -> None:
    keys = np.arange(1000, dtype=np.uint64) << np.uint64(32)  # all want the first slot
    table = IdTable.of(keys)
    assert table.find(keys, otherwise=-1).tolist() == list(range(1000))
    with pytest.raises(FormatError, match="same 64-bit key"):
        IdTable.of(np.array([5, 7, 5], np.uint64))


# -- statistics --------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=20), min_size=1, max_size=8))
def test_moments_merge(parts: list[list[float]]) -> None:
    together = Moments()
    for part in parts:
        together = together.merged(Moments.of(np.array(part)))
    values = np.array([value for part in parts for value in part])
    assert together.num == len(values)
    if len(values):
        np.testing.assert_allclose([together.mean, together.std], [values.mean(), values.std()], rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e200, 1e305, 1.7e308])
def test_moments_of_large_and_small_numbers(scale: float) -> None:
    unit = np.array([0.3, -1.0, 0.7, 0.0, 1.0, 0.25])
    for parts in ([unit], [unit[:3], unit[3:4], unit[4:]], [unit[3:4], unit[:3], unit[4:]]):
        together = Moments()
        for part in parts:
            together = together.merged(Moments.of(part * scale))
        expected = [unit.mean() * scale, unit.std() * scale]
        np.testing.assert_allclose([together.mean, together.std], expected, rtol=1e-12 if scale > 1e-300 else 1e-3)


def test_moments_of_numbers_of_all_sizes() -> None:
    together = Moments()
    for value in (1e-300, 1e300, 1.0, 0.0):
        together = together.merged(Moments.of(np.array([value])))
    np.testing.assert_allclose([together.num, together.mean, together.std], [4, 2.5e299, 1e300 * math.sqrt(3) / 4], rtol=1e-12)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(
    ("kind", "scale"), [("float64", 1e300), ("float64", 1.7e308), ("float64", 1e-300), ("float32", 3e38), ("float32", 1e-30)]
)
def test_large_and_small_finite_numbers_are_normalised(tmp_path: Path, kind: str, scale: float) -> None:
    unit = np.array([0.3, -1.0, 0.7, 0.0, 1.0, -1.0, -1.0])
    pq.write_table(pa.table({"x": (unit * scale).astype(kind)}), tmp_path / "t.parquet", row_group_size=2)
    for chain, values in (([C.Normalize()], unit), ([C.FillMissing("mean"), C.Normalize()], unit)):
        recipe = C({"x": chain}).fit(tmp_path / "t.parquet")
        (batch,) = list(dp.TableLoader(tmp_path / "t.parquet", NUM, transform=recipe))
        np.testing.assert_allclose(batch[:, 0].numpy(), (values - values.mean()) / values.std(), rtol=1e-5)


@pytest.mark.parametrize(
    ("chain", "words"),
    [
        ([C.Cast("float32")], r"'x' holds 1e\+300, which becomes infinite in float32; Clip it before Cast"),
        (
            [C.Clip(0, None)],
            r"row group 0: column 'x' has 1e\+300 in row 1 of it, which becomes infinite in float32; ask for a wider",
        ),
    ],
)
def test_results_that_become_infinite_are_refused(tmp_path: Path, chain: list[Any], words: str) -> None:
    pq.write_table(pa.table({"x": [1.0, 1e300]}), tmp_path / "t.parquet")
    with pytest.raises(OptionError, match=words):
        list(dp.TableLoader(tmp_path / "t.parquet", 2, dtypes="float32", transform=C({"x": chain})))


@settings(max_examples=50)
@given(st.lists(st.integers(-4095, 4095), min_size=1, max_size=50))
def test_medians_of_whole_numbers_are_exact(values: list[int]) -> None:
    histogram = sum(histogram_of(part) for part in np.array_split(np.array(values), 3))
    assert median_of(histogram) == np.median(values)  # type: ignore[arg-type]


@settings(max_examples=50)
@given(st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=21).filter(lambda values: len(values) % 2 == 1))
def test_medians_of_others_are_near(values: list[float]) -> None:
    histogram = histogram_of(np.array(values, np.float32))
    np.testing.assert_allclose(median_of(histogram), np.median(values), rtol=1 / 2000, atol=1e-38)


# -- fitting and files -------------------------------------------------------------------------------

EVERYTHING = {
    "price": [C.FillMissing("median", indicator=True), C.Log1p(), C.Normalize()],
    "count": [C.FillMissing("mean"), C.Clip(0, 30)],
    "full": C.Bucketize((-5, 5)),
    "word": C.Categorify(min_count=2),
    "id": C.Categorify(max_size=100),
}


def test_any_number_of_threads_fits_the_same_bytes(table: Path, tmp_path: Path) -> None:
    found = []
    for workers in (1, 2, 5):
        C(EVERYTHING).fit(table, num_workers=workers).save(tmp_path / f"{workers}.json")
        names = sorted((tmp_path / f"{workers}.json.vocabularies").iterdir())
        found.append(((tmp_path / f"{workers}.json").read_bytes(), [(one.name, one.read_bytes()) for one in names]))
    assert found[0] == found[1] == found[2]
    assert len(found[0][1]) == 2


def test_a_saved_recipe_gives_the_same(table: Path, tmp_path: Path) -> None:
    recipe = C(EVERYTHING).fit(table)
    recipe.save(tmp_path / "recipe.json")
    loaded = C.load(tmp_path / "recipe.json")
    columns = list(EVERYTHING)
    groups = {"numbers": columns[:2], "ids": columns[2:]}
    one, other = (
        dp.TableLoader(table, 512, True, columns=groups, label="label", transform=each, seed=2) for each in (recipe, loaded)
    )
    for (x, y), (x2, y2) in zip(one, other, strict=True):
        assert x["numbers"].shape[1] == 3
        assert all(torch.equal(x[name], x2[name]) for name in x)
        assert torch.equal(y, y2)
    other.load_state_dict(one.state_dict())


def test_states_keep_the_recipe(table: Path) -> None:
    small, large = (C({"word": C.Categorify(max_size=size)}).fit(table) for size in (3, 5))
    state = dp.TableLoader(table, 512, columns=["word"], transform=small, seed=1).state_dict()
    with pytest.raises(dp.errors.StateError, match="transform"):
        dp.TableLoader(table, 512, columns=["word"], transform=large, seed=1).load_state_dict(state)


def test_a_recipe_written_by_hand(tmp_path: Path, table: Path) -> None:
    document = {"version": 1, "columns": [["price", [{"operation": "FillMissing", "value": 3}, {"operation": "Log1p"}]]]}
    (tmp_path / "recipe.json").write_text(json.dumps(document))
    recipe = C.load(tmp_path / "recipe.json")
    assert recipe.is_fitted
    assert recipe.operations == {"price": (C.FillMissing(3), C.Log1p())}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"version": 2, "columns": []}', '{"version": 1, "columns": [["a", [{"operation": "Eval"}]]]}',
     "[" * 100_000, '{"version": 1, "columns": [["a", [{"operation": "Clip", "low": 3}]]]}',
     '{"version": 1, "columns": [], "fitted": {"a": {"mean": NaN}}}',
     '{"version": 1, "columns": [], "fitted": {"a": {"vocabulary": {"digest": "../../x"}}}}'],
)  # fmt: skip
def test_what_is_no_recipe(tmp_path: Path, text: str) -> None:
    (tmp_path / "recipe.json").write_text(text)
    with pytest.raises(FormatError, match="not a recipe for columns"):
        C.load(tmp_path / "recipe.json")


def test_a_vocabulary_that_is_gone_or_another(table: Path, tmp_path: Path) -> None:
    C({"word": C.Categorify(), "id": C.Categorify()}).fit(table).save(tmp_path / "recipe.json")
    first, second = sorted((tmp_path / "recipe.json.vocabularies").iterdir())
    kept = first.read_bytes()
    first.write_bytes(second.read_bytes())
    with pytest.raises(IntegrityError, match="differs from the vocabulary"):
        C.load(tmp_path / "recipe.json")
    first.write_bytes(kept[: len(kept) // 2])
    with pytest.raises(FormatError, match="not a vocabulary"):
        C.load(tmp_path / "recipe.json")
    first.unlink()
    with pytest.raises(dp.errors.MissingDataError):
        C.load(tmp_path / "recipe.json")


# -- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operations", "reason"),
    [
        ({"a": "Log1p"}, "pass operations such as"),
        (["a"], "pass a dict"),
        ({"a": [C.Log1p(), C.Categorify()]}, "Categorify takes the stored values; put it first"),
        ({"a": [C.Categorify(), C.Normalize()]}, "Normalize after ids"),
        ({"a": [C.Normalize(), C.FillMissing(0)]}, "FillMissing fills stored values"),
        ({"a": [C.Normalize(), C.Normalize()]}, "Normalize twice"),
    ],
)
def test_recipes_that_mean_nothing(operations: Any, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        C(operations)


@pytest.mark.parametrize(
    "make",
    [
        lambda: C.FillMissing("mode"), lambda: C.FillMissing(float("nan")), lambda: C.Clip(), lambda: C.Clip(3, 1),
        lambda: C.Bucketize(()),
        lambda: C.Bucketize((2, 1)), lambda: C.Bucketize((1, 1)),
        lambda: C.HashBucket(1), lambda: C.Categorify(min_count=0), lambda: C.Categorify(max_size=0),
        lambda: C.Cast("complex64"),
    ],
)  # fmt: skip
def test_arguments_that_mean_nothing(make: Any) -> None:
    with pytest.raises(OptionError):
        make()


def test_columns_that_do_not_go_with_operations(table: Path, tmp_path: Path) -> None:
    with pytest.raises(
        OptionError, match=r"column 'word' is .*string, and Log1p does not accept such values; start with Categorify"
    ):
        column(table, "word", C.Log1p(), fit=False)
    with pytest.raises(OptionError, match=r"'word' of the group 'x' is .*: strings are not numbers.*Categorify"):
        dp.TableLoader(table, 10, columns=["word"])
    with pytest.raises(OptionError, match=r"no column matches 'X\*'"):
        C({"X*": C.Normalize()}).fit(table)
    with pytest.raises(OptionError, match=r"column 'full': Normalize\(\) needs fitting"):
        column(table, "full", C.Normalize(), fit=False)
    with pytest.raises(OptionError, match="'price' has nulls or NaN, which are in no bucket"):
        column(table, "price", C.Bucketize((1,)))
    with pytest.raises(OptionError, match=r"t\.parquet: column 'count' has \d+ nulls? in row group \d+, and int32 has no value"):
        column(table, "count", C.Clip(0, 5))
    with pytest.raises(OptionError, match="'full' holds -50 to 49, which uint8 cannot hold"):
        column(table, "full", C.Cast("uint8"))
    with pytest.raises(OptionError, match=r"pass a dp\.Columns"):
        dp.TableLoader(table, 10, columns=["full"], transform=[C.Log1p()])  # type: ignore[arg-type]
    fitted = C({"fu*": C.Normalize()}).fit(table)
    pq.write_table(pa.table({"fuller": [1.0]}), tmp_path / "other.parquet")
    with pytest.raises(OptionError, match="'fuller' was not in the table that the recipe was fitted to"):
        dp.TableLoader(tmp_path / "other.parquet", 1, transform=fitted)


def test_a_column_without_a_value_cannot_be_fitted(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([None, None], pa.float32())}), tmp_path / "t.parquet")
    with pytest.raises(OptionError, match="'a' has no value, so there is no median"):
        C({"a": C.FillMissing("median")}).fit(tmp_path / "t.parquet")
    with pytest.raises(OptionError, match="no value to normalise"):
        C({"a": C.Normalize()}).fit(tmp_path / "t.parquet")
    empty = C({"a": C.Categorify()}).fit(tmp_path / "t.parquet")
    assert next(iter(dp.TableLoader(tmp_path / "t.parquet", 2, transform=empty))).tolist() == [[1], [1]]


def test_decimals_are_cast(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array([1, 2, None], pa.int32()).cast(pa.decimal128(20, 2))})
    pq.write_table(table, tmp_path / "t.parquet")
    found = column(tmp_path / "t.parquet", "a", [C.Cast("float32"), C.FillMissing(7)], fit=False)
    assert found.tolist() == [1, 2, 7]


@settings(max_examples=20)
@given(
    st.lists(st.one_of(st.none(), st.floats(-100, 100, width=32)), min_size=1, max_size=60),
    st.lists(st.sampled_from([C.Clip(-3, 50), C.Clip(min=-0.5), C.Log1p(), C.Cast("float64")]), max_size=3),
    st.booleans(),
)
def test_any_chain_against_pandas(tmp_path: Path, values: list[float | None], chain: list[Any], fills: bool) -> None:
    pq.write_table(pa.table({"a": pa.array(values, pa.float32())}), tmp_path / "t.parquet", row_group_size=13)
    expected = pd.Series(values, dtype="float64")
    expected = expected.fillna(2) if fills else expected
    for operation in chain:
        if isinstance(operation, C.Clip):
            expected = expected.clip(operation.min, operation.max)
        if isinstance(operation, C.Log1p):
            with np.errstate(all="ignore"):
                expected = np.log1p(expected)
    found = column(tmp_path / "t.parquet", "a", [*([C.FillMissing(2)] if fills else []), *chain], fit=False)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("chain", "message"),
    [([C.Log1p(), C.Normalize()], "'x' has infinite values where Normalize gets them, so their mean is -inf; put Clip before it"),
     ([C.FillMissing("mean")], "'x' has infinite values, and their mean is inf; pass a number to fill with")],
)  # fmt: skip
def test_infinite_values_are_refused_when_fitting(tmp_path: Path, chain: list[Any], message: str) -> None:
    value = -1.0 if len(chain) == 2 else math.inf
    pq.write_table(pa.table({"x": pa.array([1.0, value, None])}), tmp_path / "t.parquet")
    with pytest.raises(OptionError, match=re.escape(message)):
        C({"x": chain}).fit(tmp_path / "t.parquet")
