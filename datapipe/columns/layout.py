"""Lay out the columns of a table in the matrices of a batch, with their dtypes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from datapipe.columns.chains import Chain
from datapipe.columns.operations import DTYPES
from datapipe.errors import OptionError
from datapipe.index.tables import ColumnKind, TableColumn, TableIndex

LABEL = "label"
_EXACT_BITS = {"float16": 11, "float32": 24, "float64": 53}  # integers of this many bits are exact

Patterns = Sequence[str]
ColumnGroups = Patterns | Mapping[str, Patterns] | None


@dataclass(frozen=True, slots=True)
class MatrixColumn:
    """One column of a matrix."""

    column: TableColumn  # of the table
    dtype: str  # numpy's name of the values' dtype before they are put into the matrix
    chain: Chain | None = None  # the operations on the values; None: none

    @property
    def name(self) -> str:
        if self.chain is not None and self.chain.element is not None:
            return f"{self.column.name}[{self.chain.element}]"
        return self.column.name + (".missing" if self.chain is not None and self.chain.indicator else "")

    @property
    def fingerprint(self) -> str:
        """A hash that differs for features with other values."""
        return self.name if self.chain is None else f"{self.name} {self.chain.fingerprint}"


@dataclass(frozen=True, slots=True)
class Matrix:
    """Features side by side, (rows, features) row-major in one dtype; a vector has one feature and is delivered as (rows,)."""

    name: str
    features: tuple[MatrixColumn, ...]
    dtype: str  # numpy's name
    is_vector: bool = False

    @property
    def width(self) -> int:
        return len(self.features)

    @property
    def row_nbytes(self) -> int:
        return self.width * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class ListGroup:
    """Columns of lists whose elements are delivered one after the other, as `loader.jagged.Jagged`."""

    name: str
    columns: tuple[TableColumn, ...]
    dtype: str  # of the elements


@dataclass(frozen=True, slots=True)
class MatrixLayout:
    """The matrices of a batch: the groups of columns in order, then the label if there is one; and the groups of lists."""

    groups: tuple[Matrix, ...]
    label: Matrix | None
    lists: tuple[ListGroup, ...] = ()
    names: tuple[str, ...] = ()  # of all groups, in the order in which they were named; (): those of matrices

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        return self.groups if self.label is None else (*self.groups, self.label)

    @property
    def row_nbytes(self) -> int:
        """The size of a row in memory, over all matrices."""
        return sum(matrix.row_nbytes for matrix in self.matrices)

    @property
    def columns(self) -> tuple[TableColumn, ...]:
        """The columns that are read, each once."""
        found = {feature.column.name: feature.column for matrix in self.matrices for feature in matrix.features}
        found |= {column.name: column for group in self.lists for column in group.columns}
        return tuple(found.values())

    @property
    def fingerprint(self) -> str:
        """A hash that differs for layouts that give other batches of the same rows."""
        parts = [(one.name, one.dtype, one.is_vector, [feature.fingerprint for feature in one.features]) for one in self.matrices]
        words = repr(parts) + "".join(f" {one.name} {one.dtype} {[column.name for column in one.columns]}" for one in self.lists)
        return hashlib.sha256(words.encode()).hexdigest()[:16]


def layout_of(
    index: TableIndex,
    *,
    columns: ColumnGroups,
    label: str | Patterns | None,
    dtypes: Mapping[str, str] | str | None,
    chains_of: Callable[[TableColumn], tuple[Chain, ...]] = lambda column: (),
    lists: str | None = None,
) -> MatrixLayout:
    """Return the layout that a loader's arguments describe. Raises OptionError for invalid ones, with the remedy.

    `columns`: shell patterns; a mapping of names to patterns for several groups; None: all but the label. `label`: a column,
    delivered as a vector, or patterns of several. `dtypes`: the dtype of each group, or of the only one. `chains_of`: returns the
    chains of a column, one feature for each; (): the column unchanged. `lists`: "jagged" for groups of lists as they are.
    """
    if lists not in (None, "jagged"):
        raise OptionError(f"lists is {lists!r:.30}; choose 'jagged', or None")
    label_columns = _label_columns(index, label)
    names = {column.name for column in label_columns}
    if columns is None:
        named = {"x": [column for column in index.columns if column.name not in names]}
        if not named["x"]:
            raise OptionError("the table has no column besides the label; pass columns=")
    elif isinstance(columns, Mapping):
        named = {str(name): _matching(index, patterns, names, str(name)) for name, patterns in columns.items()}
    else:
        named = {"x": _matching(index, columns, names, "x")}
    if not named:
        raise OptionError("columns is empty; name groups of columns, or leave it out for all")
    if LABEL in named and label is not None:
        raise OptionError(f"columns: a group is named {LABEL!r}, like the label's matrix; rename it")
    wanted = _dtypes(dtypes, [*named, *([LABEL] if label_columns else [])])
    jagged = {name: found for name, found in named.items() if lists and _are_lists(found, name, chains_of)}
    of_lists = tuple(_list_group(name, found, wanted.get(name)) for name, found in jagged.items())
    groups = tuple(
        _matrix(name, _features(found, name, chains_of), wanted.get(name)) for name, found in named.items() if name not in jagged
    )
    vector = isinstance(label, str) and len(label_columns) == 1
    answer = (
        _matrix(LABEL, _features(label_columns, LABEL, chains_of), wanted.get(LABEL), is_vector=vector) if label_columns else None
    )
    layout = MatrixLayout(groups, answer, of_lists, tuple(named))
    index.check_present(column.name for column in layout.columns)
    return layout


def _label_columns(index: TableIndex, label: str | Patterns | None) -> list[TableColumn]:
    if label is None:
        return []
    if isinstance(label, str):
        return [index.column(label)]
    return index.matching(_patterns(label, "label"))


def _matching(index: TableIndex, patterns: Patterns, without: Iterable[str], name: str) -> list[TableColumn]:
    return index.matching(_patterns(patterns, f"columns[{name!r}]"), without=without)


def _patterns(value: object, what: str) -> list[str]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Sequence) or not all(isinstance(one, str) for one in value):
        raise OptionError(f"{what} is {value!r:.60}; pass names or patterns, such as ['I*', 'age']")
    return list(value)


def _dtypes(dtypes: Mapping[str, str] | str | None, names: Sequence[str]) -> dict[str, str]:
    """Return the requested dtype by group."""
    if dtypes is None:
        return {}
    if not isinstance(dtypes, Mapping):
        return dict.fromkeys((name for name in names if name != LABEL), _dtype(dtypes))
    for name in dtypes:
        if name not in names:
            raise OptionError(f"dtypes names the group {name!r:.60}; the groups are {', '.join(names)}")
    return {name: _dtype(value) for name, value in dtypes.items()}


def _dtype(value: object) -> str:
    name = str(value).removeprefix("torch.").replace("half", "float16") if not isinstance(value, type) else np.dtype(value).name
    if name not in DTYPES:
        raise OptionError(f"dtypes: {value!r:.60} is not one of {', '.join(DTYPES)}")
    return name


def _features(
    columns: Sequence[TableColumn], group: str, chains_of: Callable[[TableColumn], tuple[Chain, ...]]
) -> tuple[MatrixColumn, ...]:
    found: list[MatrixColumn] = []
    for column in columns:
        chains = chains_of(column)
        if not chains:
            _check_numeric(column, group)
            found.append(MatrixColumn(column, column.dtype))
        found += [MatrixColumn(column, chain.dtype_of(column), chain) for chain in chains]
    return tuple(found)


def _matrix(name: str, features: tuple[MatrixColumn, ...], dtype: str | None, *, is_vector: bool = False) -> Matrix:
    if not features:
        raise OptionError(f"columns: the group {name!r} is empty; name a column or a pattern in it")
    if dtype is None:
        return Matrix(name, features, _common_dtype(name, features), is_vector)
    for feature in features:
        if feature.dtype.startswith("float") and not dtype.startswith("float"):
            raise OptionError(f"dtypes: {feature.name} of the group {name!r} is {feature.dtype}, and {dtype} would cut it off")
    return Matrix(name, features, dtype, is_vector)


def _are_lists(columns: Sequence[TableColumn], group: str, chains_of: Callable[[TableColumn], tuple[Chain, ...]]) -> bool:
    """Return True if a group is delivered as lists. Raises OptionError for a group that mixes lists with other columns."""
    found = [column for column in columns if column.kind is ColumnKind.LIST and not chains_of(column)]
    if found and len(found) < len(columns):
        raise OptionError(
            f"columns: the group {group!r} has the list {found[0].name!r} beside others; give lists a group of their own, or pad "
            "them by transform=dp.Columns({NAME: dp.Columns.PadList(length)})"
        )
    return bool(found)


def _list_group(name: str, columns: Sequence[TableColumn], dtype: str | None) -> ListGroup:
    return ListGroup(
        name, tuple(columns), dtype or _common_dtype(name, [MatrixColumn(column, column.dtype) for column in columns])
    )


def _check_numeric(column: TableColumn, group: str) -> None:
    if column.kind is ColumnKind.NUMBER:
        return
    remedy = {
        ColumnKind.TEXT: "strings are not numbers: leave it out of columns=, or make ids of it by "
        "transform=dp.Columns({NAME: dp.Columns.Categorify()})",
        ColumnKind.LIST: "lists have no fixed width: give them a group of their own and pass lists='jagged', or pad them by "
        "transform=dp.Columns({NAME: dp.Columns.PadList(length)})",
        ColumnKind.DECIMAL: "tensors cannot hold decimals: leave it out of columns=, or pass "
        "transform=dp.Columns({NAME: dp.Columns.Cast('float64')})",
        ColumnKind.UNREAD: "tensors cannot hold it: leave it out of columns=",
    }[column.kind]
    advice = remedy.replace("NAME", repr(column.name))
    raise OptionError(f"column {column.name!r} of the group {group!r} is {column.type}: {advice}")


def _common_dtype(name: str, features: Sequence[MatrixColumn]) -> str:
    """Return the smallest dtype that holds all of them exactly; never a float that does not."""
    common = np.result_type(*(feature.dtype for feature in features))
    floats = [feature for feature in features if feature.dtype.startswith("float")]
    if not floats:
        return common.name
    widest = max(floats, key=lambda feature: np.dtype(feature.dtype).itemsize).dtype
    for feature in features:
        kind = np.dtype(feature.dtype)
        if kind.kind in "iu" and 8 * kind.itemsize > _EXACT_BITS[widest]:
            raise OptionError(
                f"columns: the group {name!r} has {feature.name} ({feature.dtype}) and {floats[0].name} ({floats[0].dtype}), "
                f"and {widest} does not hold every {feature.dtype}; give each kind a group of its own, or pass "
                f"dtypes={{{name!r}: 'float32'}}"
            )
    return widest
