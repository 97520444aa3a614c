"""What loaders, datasets and recipes say of themselves in an interactive session, and when they are taken for something else."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from fixtures import NUM_SAMPLES

import datapipe as dp


@pytest.fixture
def table(tmp_path: Path) -> str:
    pq.write_table(pa.table({"I0": [float(number) for number in range(1000)], "label": [0, 1] * 500}), tmp_path / "t.parquet")
    return str(tmp_path / "t.parquet")


def rows() -> torch.utils.data.DataLoader[Any]:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(1000)), batch_size=10)


def test_a_loader_of_images_says_what_and_where(folder: Path) -> None:
    loader = dp.DataLoader(folder, batch_size=4, device="cpu")
    data = f"{NUM_SAMPLES} samples (image, label) in loose files at {folder}"
    assert repr(loader) == f"<datapipe.DataLoader: {data}; batch_size=4, on cpu>"
    assert repr(loader.dataset) == f"<datapipe.Images: {data}>"
    chosen = dp.DataLoader(folder, batch_sampler=[[0, 1]], device="cpu")
    assert repr(chosen).endswith("; batches of its batch_sampler, on cpu>")
    assert repr(loader.dataset.repeat(2)) == f"<datapipe.Images: {2 * NUM_SAMPLES} an epoch of {data}>"


def test_a_loader_of_rows_says_what_and_where(table: str) -> None:
    loader = dp.TableLoader(table, batch_size=64, label="label", device="cpu")
    data = f"1,000 rows of 2 columns in parquet at {table}"
    assert repr(loader) == f"<datapipe.TableLoader: {data}; batch_size=64, on cpu>"
    assert repr(loader.dataset) == f"<datapipe.Table: {data}>"


def test_what_from_torch_returns_says_what_it_took(folder: Path) -> None:
    taken = dp.from_torch(rows(), device="cpu")
    way = "1,000 samples of TensorDataset, gathered in whole batches; batch_size=10, on cpu"
    assert repr(taken) == f"<datapipe.from_torch: {way}>"
    assert repr(dp.prefetch(taken, "cpu")) == f"<datapipe.prefetch onto cpu: {taken!r}>"


def test_a_recipe_says_its_operations_and_whether_it_is_fitted(table: str) -> None:
    recipe = dp.Columns({"I*": [dp.Columns.Normalize()]})
    assert repr(recipe) == "<datapipe.Columns {'I*': [Normalize()]}; not fitted>"
    assert repr(recipe.fit(table)) == "<datapipe.Columns {'I*': [Normalize()]}; fitted>"
    assert repr(dp.Columns({"I*": dp.Columns.Log1p()})) == "<datapipe.Columns {'I*': [Log1p()]}>"


def test_names_that_no_terminal_should_see_are_escaped(folder: Path, tmp_path: Path) -> None:
    odd = tmp_path / "odd\x1b[31m"
    odd.symlink_to(folder, target_is_directory=True)
    assert "\x1b" not in repr(dp.DataLoader(odd)) + repr(dp.DataLoader(odd).dataset)


def test_a_loader_taken_for_a_dataset_names_what_takes_loaders(folder: Path, table: str) -> None:
    taken = dp.from_torch(rows(), device="cpu")
    for loader in (dp.DataLoader(folder), dp.TableLoader(table, batch_size=64, label="label"), taken, dp.prefetch(taken, "cpu")):
        with pytest.raises(TypeError, match=r"not subscriptable: it gives batches.*LoaderMixin"):
            next(iter(torch.utils.data.DataLoader(loader)))  # type: ignore[arg-type]  # what the Trainer does with a dataset
        assert len(list(loader)) == len(loader)


@pytest.mark.nightly
def test_dir_has_the_public_names_only() -> None:
    code = "import datapipe; datapipe.DataLoader; import datapipe.cli; print(dir(datapipe) == sorted(datapipe.__all__))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"


def test_help_begins_with_an_example() -> None:
    for loader in (dp.DataLoader, dp.TableLoader):
        assert f">>> loader = datapipe.{loader.__name__}(" in (inspect.getdoc(loader) or "")


@pytest.mark.parametrize("nothing", ["shards", 3, None])
def test_an_explanation_of_what_is_no_loader_is_refused(nothing: object) -> None:
    with pytest.raises(dp.errors.OptionError, match="pass a loader"):
        dp.explain(nothing)
