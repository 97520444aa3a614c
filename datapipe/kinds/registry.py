"""The kinds of data: loaders and commands tell by this which kind something is, and find the modules that each kind has.

What lies at a path, and of which kind it is, says `opening/recognise` for all of them. A kind is a folder beside this module. It
has `inspection` (`open_place(path, form)`: the index of what lies at a path or URL, read as that form; `describe(index, args)`:
facts, JSON-safe; `as_text(path, facts)`), `data` (`make_data(source, index)`: the data object of what was opened, or of an object
that is no path, with None for the index; None if that is not of this kind) and `bench` (`measure(index, args)`: rates, JSON-safe;
`as_text(result)`; `loader(index, args)`: the loader whose ceilings are measured). Each but images, whose photographs lie in
`datapipe/testing`, has `trial_data` (`TITLE`, what its file or folder is called; `make(path)`: generated data;
`convert_options(path)`: those of `datapipe convert` where that makes what is loaded; `bench_options(path)`, where it needs any).
Inspections work without torch.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from datapipe.containers.form import Form, errors_in_python
from datapipe.containers.forms import AUTO, FORMS
from datapipe.core.checks import path_name
from datapipe.core.pinning import opened_at
from datapipe.core.remembering import remembered
from datapipe.errors import OptionError
from datapipe.opening.recognise import recognise
from datapipe.stores.location import is_url
from datapipe.stores.places import parse_place
from datapipe.stores.requests import apply_settings
from datapipe.stores.settings import Remote

if TYPE_CHECKING:
    from datapipe.kernel.kind import Data

KINDS = {
    "tokens": "datapipe.kinds.tokens",
    "conversations": "datapipe.kinds.conversations",
    "clips": "datapipe.kinds.clips",
    "audio": "datapipe.kinds.audio",
    "tables": "datapipe.kinds.tables",
    "images": "datapipe.kinds.images",
}


def part(kind: str, name: str) -> Any:
    """Return a module of a kind, such as its `bench`. It is imported when it is needed."""
    return importlib.import_module(f"{KINDS[kind]}.{name}")


def open_path(path: str | os.PathLike[str], form: Form | None = None) -> tuple[str, Any]:
    """Return the kind of what lies at a path or URL, and its index. Raises what recognising and opening it raise.

    `form`: how the path is read, which also says the kind; None: that is recognised.
    """
    text = path_name(path, "the path to the dataset")
    if not text:
        raise OptionError("the path to the dataset is empty")
    form = form or Form()
    with remembered():
        kind = FORMS[form.name].kind if form.name != AUTO else ""
        if not kind:
            found = recognise(parse_place(text), form)
            kind, form = found.kind, form.named(found.form)
        return kind, part(kind, "inspection").open_place(text, form)


def open_data(source: Any) -> Data:
    """Return what a user passed as `dataset`: data, or that of a path or another object. Raises OptionError for what is none."""
    if hasattr(source, "open_kind") and not isinstance(source, type):
        data: Data = source
        return data
    if isinstance(source, (str, os.PathLike)):
        if isinstance(source, str) and is_url(source):
            apply_settings(Remote())  # another loader may have applied others
        with opened_at({}):  # what the data notes, too
            with errors_in_python():
                kind, index = open_path(source)
            return part(kind, "data").make_data(source, index)  # type: ignore[no-any-return]
    for kind in KINDS:
        found: Data | None = part(kind, "data").make_data(source, None)
        if found is not None:
            return found
    raise OptionError(
        f"dataset is {source!r:.80}; pass the path of a converted dataset, of shards, of an image folder or of a table; or "
        "datapipe.Images(...), datapipe.Table(...), or a torch Dataset; a loader of torch's goes into datapipe.from_torch"
    )


def mix(datasets: Sequence[Any], weights: Sequence[float] | None = None, *, num_samples: int | None = None) -> Any:
    """Return one dataset of several, each of which makes up a fixed share of every epoch.

    >>> data = datapipe.mix([datapipe.Tokens("web", 4096), datapipe.Tokens("code", 4096)], weights=[0.7, 0.3])
    >>> loader = datapipe.DataLoader(data, batch_size=8, shuffle=True)

    `datasets`: data objects of one kind, such as `Images`, or paths. `weights`: one for each, to any scale; None: each by its
    size. `num_samples`: length of an epoch; None: the sum of their sizes. Shares hold in every batch, to within a sample or two.
    All samples of a dataset come before any of them comes again, also across epochs; one that comes again is augmented again.
    Batches have the fields that all datasets have; labels are those of the datasets, which are not renumbered.

    Raises OptionError for invalid weights, an epoch of no samples, datasets of several kinds, and those without samples or a
    common field.
    """
    if isinstance(datasets, (str, bytes, os.PathLike)) or not len(datasets):
        raise OptionError(f"mix({datasets!r:.60}): pass a list of at least one dataset")
    first, *others = [open_data(dataset) for dataset in datasets]
    for other in others:
        if type(other) is not type(first):
            kinds = f"{type(first).__qualname__} and {type(other).__qualname__}"
            raise OptionError(f"mix() of {kinds}: a batch has samples of one kind; make a loader for each")
    return first.mixed(others, weights=weights, num_samples=num_samples)
