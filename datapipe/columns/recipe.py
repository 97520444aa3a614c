"""`Columns`: assign operations to columns, fit them to a table, keep them in a file."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from datapipe.columns import operations as ops
from datapipe.columns.chains import Chain, Fitted, Vocabulary
from datapipe.columns.fitting import fit_columns
from datapipe.columns.operations import KINDS, Operation, checked_chain, is_finite_number, needs_fitting, statistics_of
from datapipe.containers.tables.files import open_table
from datapipe.core import arrow_maps, regular_files
from datapipe.core.atomic import atomic_writer, write_json
from datapipe.core.environment import num_usable_cores
from datapipe.core.printable import listed
from datapipe.errors import FormatError, IntegrityError, MissingDataError, OptionError
from datapipe.index.tables import TableColumn

_VERSION = 1
_STATISTICS = ("fill", "mean", "std")
VOCABULARIES_SUFFIX = ".vocabularies"  # of the directory beside a recipe


class Columns:
    """A recipe: shell patterns of column names, and the operations on the columns that they match, in order.

    >>> recipe = datapipe.Columns({"I*": datapipe.Columns.Normalize(), "C*": datapipe.Columns.Categorify()}).fit("train.parquet")
    >>> data = datapipe.Table("train.parquet", label="label", transform=recipe)

    `operations`: `{"I*": [dp.Columns.FillMissing("median"), dp.Columns.Normalize()], "C*": dp.Columns.Categorify()}`. A column
    that several patterns match follows the first of them; one that none matches is unchanged. FillMissing("mean") and
    "median", Normalize and Categorify need fitting: `fit` returns a fitted recipe, `save` and `load` keep it. Immutable.
    Raises OptionError for an invalid recipe.
    """

    FillMissing = ops.FillMissing
    Normalize = ops.Normalize
    Log1p = ops.Log1p
    Clip = ops.Clip
    Bucketize = ops.Bucketize
    HashBucket = ops.HashBucket
    Categorify = ops.Categorify
    Cast = ops.Cast
    PadList = ops.PadList

    def __init__(self, operations: Mapping[str, Operation | Sequence[Operation]]) -> None:
        if not isinstance(operations, Mapping) or not all(isinstance(pattern, str) for pattern in operations):
            raise OptionError(f"Columns({operations!r:.60}): pass a dict from patterns of column names to operations")
        self._operations = {pattern: checked_chain(chain, pattern) for pattern, chain in operations.items()}
        self._fitted: dict[str, Fitted] | None = None

    def __repr__(self) -> str:
        chains = ", ".join(f"{pattern!r}: {list(chain)}" for pattern, chain in self._operations.items())
        fitted = "; not fitted" if not self.is_fitted else "" if self._fitted is None else "; fitted"
        return f"<datapipe.Columns {{{chains}}}{fitted}>"

    @property
    def operations(self) -> dict[str, tuple[Operation, ...]]:
        """The operations by pattern, in the order in which patterns are tried."""
        return dict(self._operations)

    @property
    def is_fitted(self) -> bool:
        """True if everything that needs fitting is fitted."""
        return self._fitted is not None or not any(needs_fitting(one) for chain in self._operations.values() for one in chain)

    @property
    def vocabularies(self) -> dict[str, pa.Array]:
        """The values of each categorified column, in the order of their ids, of which the first is 3."""
        found = (self._fitted or {}).items()
        return {name: fitted.vocabulary.values for name, fitted in found if fitted.vocabulary is not None}

    def num_ids(self, name: str) -> int:
        """Return how many ids a column has: the rows of its embedding table. Raises OptionError for a column without ids."""
        chain = self._operations_of(name)
        for operation in chain or ():
            if isinstance(operation, ops.HashBucket):
                return operation.size
            if isinstance(operation, ops.Bucketize):
                return len(operation.boundaries) + 1
            if isinstance(operation, ops.Categorify):
                vocabulary = self._found(name, chain or ()).vocabulary
                assert vocabulary is not None
                return ops.FIRST + len(vocabulary)
        raise OptionError(f"num_ids({name!r}): the recipe makes no ids of this column")

    def fit(
        self,
        source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        num_workers: int | None = None,
        on_rows: Callable[[int], None] = lambda num: None,
    ) -> Columns:
        """Return this recipe, fitted to a table in one pass over it; the same for any number of threads.

        `on_rows`: called with each row group's number of rows. Raises what `open_table` and the reading of row groups raise, and
        OptionError if an operation is unsuitable for a column.
        """
        index = open_table(source)
        chains = {column.name: chain for column in index.columns if (chain := self._operations_of(column.name)) is not None}
        for name, chain in chains.items():
            Chain(chain).dtype_of(index.column(name))  # raises for unsuitable operations
        index.matching(list(self._operations))  # raises for a pattern that matches nothing
        fitted = Columns(self._operations)
        workers = num_usable_cores() if num_workers is None else num_workers
        fitted._fitted = fit_columns(index, chains, num_workers=workers, on_rows=on_rows)
        return fitted

    def chains_of(self, column: TableColumn) -> tuple[Chain, ...]:
        """Return the chains of a column: one, and a second if missing values are indicated; () if the recipe does not name it.

        Raises OptionError for a column that needs fitting and is not among those to which the recipe was fitted.
        """
        operations = self._operations_of(column.name)
        if operations is None:
            return ()
        chain = Chain(operations, self._found(column.name, operations))
        if operations and isinstance(operations[0], ops.PadList):
            return tuple(Chain(operations, chain.fitted, element=place) for place in range(operations[0].length))
        indicates = any(isinstance(one, ops.FillMissing) and one.indicator for one in operations)
        return (chain, Chain(operations, chain.fitted, indicator=True)) if indicates else (chain,)

    def describe(self) -> list[str]:
        """Return the results of fitting, a line for each column, for people."""
        lines = []
        for name, fitted in (self._fitted or {}).items():
            numbers = [f"{what} {value:.6g}" for what in _STATISTICS if (value := getattr(fitted, what)) is not None]
            if fitted.vocabulary is not None:
                first = ", ".join(str(value)[:20] for value in fitted.vocabulary.values[:3].to_pylist())
                numbers.append(f"{len(fitted.vocabulary)} values, the most frequent first: {first}")
            if numbers:
                lines.append(f"{name}: {', '.join(numbers)}")
        return lines

    # -- files ----------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recipe to a JSON file, and its vocabularies to Arrow files in a directory next to it. Atomic."""
        target = Path(path)
        document: dict[str, Any] = {
            "version": _VERSION,
            "columns": [[pattern, [_to_json(one) for one in chain]] for pattern, chain in self._operations.items()],
        }
        if self._fitted is not None:
            directory = target.with_name(target.name + VOCABULARIES_SUFFIX)
            document["fitted"] = {name: _fitted_to_json(fitted, directory) for name, fitted in self._fitted.items()}
        write_json(target, document)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Columns:
        """Return the recipe in a file that `save` wrote, or that was written by hand.

        Raises FormatError for an invalid recipe, IntegrityError for another vocabulary than it names, MissingDataError.
        """
        where = os.fspath(path)
        try:
            document = json.loads(regular_files.read_bytes(where))
            if type(document["version"]) is not int or document["version"] != _VERSION:
                raise ValueError(f"version {document['version']!r:.20}, expected {_VERSION}")
            if unknown := document.keys() - {"version", "columns", "fitted"}:
                raise ValueError(f"unknown members: {listed(sorted(unknown))}")
            patterns = [pattern for pattern, _ in document["columns"]]
            if len(set(patterns)) < len(patterns):
                raise ValueError("a pattern comes twice")
            if any(not isinstance(chain, list) for _, chain in document["columns"]):
                raise ValueError("operations are no list")
            recipe = cls({pattern: [_from_json(one) for one in chain] for pattern, chain in document["columns"]})
            if "fitted" in document:
                recipe._fitted = recipe._fitted_in(document["fitted"], Path(where + VOCABULARIES_SUFFIX))
        except FileNotFoundError as exc:
            raise MissingDataError(f"{exc.filename or where}: no such file") from exc
        except (FormatError, IntegrityError):
            raise
        except KeyError as exc:
            raise _no_recipe(where, f"{exc} is missing") from exc
        except (TypeError, ValueError, AttributeError, RecursionError, OverflowError) as exc:
            raise _no_recipe(where, exc) from exc
        return recipe

    def _fitted_in(self, values: Mapping[str, Any], directory: Path) -> dict[str, Fitted]:
        fitted = {name: _fitted_from_json(one, name, directory) for name, one in values.items()}
        for name, found in fitted.items():
            for operation in self._operations_of(name) or ():
                if missing := [one for one in statistics_of(operation) if getattr(found, one) is None]:
                    raise ValueError(f"{type(operation).__name__} of {name!r:.40} needs {missing[0]}, which was not fitted")
        return fitted

    # -- columns --------------------------------------------------------------------------------

    def _operations_of(self, name: str) -> tuple[Operation, ...] | None:
        return next((chain for pattern, chain in self._operations.items() if fnmatch.fnmatchcase(name, pattern)), None)

    def _found(self, name: str, operations: Sequence[Operation]) -> Fitted:
        if not any(map(needs_fitting, operations)):
            return Fitted()
        if self._fitted is None:
            needed = next(one for one in operations if needs_fitting(one))
            raise OptionError(
                f"column {name!r}: {needed!r:.60} needs fitting; run datapipe fit SRC recipe.json, or recipe.fit(SRC)"
            )
        if name not in self._fitted:
            raise OptionError(f"column {name!r} was not in the table that the recipe was fitted to; fit it to one that has it")
        return self._fitted[name]


def _to_json(operation: Operation) -> dict[str, Any]:
    return {"operation": type(operation).__name__, **asdict(operation)}


def _from_json(value: Mapping[str, Any]) -> Operation:
    arguments = dict(value)
    name = arguments.pop("operation")
    if name not in KINDS:
        raise ValueError(f"no operation is named {name!r:.30}")
    if "boundaries" in arguments:
        arguments["boundaries"] = tuple(arguments["boundaries"])
    made: Operation = KINDS[name](**arguments)
    return made


def _fitted_to_json(fitted: Fitted, directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = {name: value for name in _STATISTICS if (value := getattr(fitted, name)) is not None}
    if fitted.vocabulary is not None:
        directory.mkdir(exist_ok=True)
        name = f"{fitted.vocabulary.digest[:32]}.arrow"  # named by its contents, so that other recipes never replace it
        table = pa.table({"value": fitted.vocabulary.values})
        with atomic_writer(directory / name) as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        found["vocabulary"] = {"digest": fitted.vocabulary.digest, "size": len(fitted.vocabulary)}
    return found


def _no_recipe(where: str, why: object) -> FormatError:
    return FormatError(f"{where}: not a recipe for columns ({why!s:.160}); write it with dp.Columns(...).save")


def _fitted_from_json(value: Mapping[str, Any], name: str, directory: Path) -> Fitted:
    if unknown := value.keys() - {*_STATISTICS, "vocabulary"}:
        raise ValueError(f"unknown members of {name!r:.40}: {listed(sorted(unknown))}")
    numbers = {}
    for statistic in value.keys() & {*_STATISTICS}:
        number = value[statistic]
        if not is_finite_number(number) or (statistic == "std" and number < 0):
            raise ValueError(f"{statistic} of {name!r:.40} is {number!r:.30}, expected a finite number, and a std of 0 or more")
        numbers[statistic] = float(number)
    return Fitted(**numbers, vocabulary=_read_vocabulary(value["vocabulary"], name, directory) if "vocabulary" in value else None)


def _read_vocabulary(value: Mapping[str, Any], name: str, directory: Path) -> Vocabulary:
    digest, size = value["digest"], value["size"]
    if type(size) is not int or size < 0:
        raise ValueError(f"the vocabulary of {name!r:.40} has the size {size!r:.30}, expected a whole number")
    if (
        not isinstance(digest, str)
        or len(digest) != hashlib.sha256().digest_size * 2
        or not all(letter in "0123456789abcdef" for letter in digest)
    ):
        raise ValueError("a vocabulary's digest is not a sha256")
    path = directory / f"{digest[:32]}.arrow"
    try:
        with pa.ipc.open_file(arrow_maps.map_file(path)) as reader:
            values = reader.read_all()["value"].combine_chunks()
        values.validate(full=True)
    except FileNotFoundError:
        raise
    except arrow_maps.DAMAGE as exc:
        raise FormatError(f"{path}: not a vocabulary, or damaged ({exc!s:.100}); fit the recipe again") from exc
    found = Vocabulary.of(values.chunk(0) if isinstance(values, pa.ChunkedArray) else values)
    if found.digest != digest:
        raise IntegrityError(f"{path}: differs from the vocabulary that the recipe names; fit the recipe again")
    if len(found) != size:
        raise IntegrityError(f"{path}: holds {len(found)} values, and the recipe says {size}; fit the recipe again")
    return found
