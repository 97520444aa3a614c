"""Say for `explain` what torch's workers and datapipe each do for a loader, and what would make more of it fast."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch.utils.data

from datapipe.adapt.array_rows import ArrayRows
from datapipe.adapt.hub_columns import ListColumn
from datapipe.adapt.keys import handover_point
from datapipe.adapt.loaders import TorchDataLoader, has_collate_fn
from datapipe.adapt.number_rows import NumberRows
from datapipe.codecs.decode import default_decoder_name
from datapipe.core.printable import counted
from datapipe.deferral.reports import Tally
from datapipe.formulas.values import Position, RowValues
from datapipe.kernel.options import default_num_workers
from datapipe.kinds.images.choice import Choice
from datapipe.kinds.images.dali.installation import installation
from datapipe.transforms import Recipe
from datapipe.transforms.lowering import described

_GATHERED = (
    "workers   none: whole batches are gathered in the training process, which is cheaper than receiving them from a worker"
)


def lines_about(
    loader: TorchDataLoader, recipe: Recipe | None, deferral: Tally | None = None, decoding: Choice | None = None
) -> list[str]:
    """Return the lines, each with its heading. `recipe`: what follows datapipe's decoding; None if datapipe does not decode.

    `deferral`: what was deferred so far; None if nothing is. `decoding`: which backend makes what is deferred.
    """
    dataset = type(loader.dataset).__qualname__
    lines = [f"workers   {_workers(loader)}", *_lines_about_calls(loader)]
    is_stream = isinstance(loader.dataset, torch.utils.data.IterableDataset)
    if deferral is not None and not is_stream:
        alone = deferral.paying.runs_alone
        lines += [
            *([] if decoding is None or (alone and decoding.dali is None) else _lines_about_backend(decoding, _place(loader))),
            _line_about_decoder(dataset, _place(loader), alone=alone),
            *([f"measured  {deferral.paying.measured(dataset)}"] if decoding is None or decoding.dali is None else []),
            *[f"{'deferred' if number == 0 else '':<10}{line}" for number, line in enumerate(deferral.lines())],
        ]
    elif recipe is None:
        why = "images of an IterableDataset are not deferred" if is_stream else "datapipe does not see its files"
        lines += [
            f"decoder   that of {dataset}'s code: {why}",
            f"recipe    {dataset}'s code runs all transforms, in {_place(loader)}",
        ]
    else:
        lines.append(f"decoder   datapipe's ({default_decoder_name()}), in {_place(loader)}; Pillow for what it does not decode")
        steps = _steps(recipe, _place(loader))
        lines += [f"{'recipe' if number == 0 else '':<10}{step}" for number, step in enumerate(steps)]
    lines.append(f"batches   {_batches(loader)}")
    seen = None if is_stream else deferral
    gains = [*_gains_of_workers(loader), _gain_of_loader(loader, recipe) if seen is None else seen.gain(dataset)]
    return lines + [f"{'to gain' if number == 0 else '':<10}{gain}" for number, gain in enumerate(gains)]


def _line_about_decoder(dataset: str, place: str, *, alone: bool) -> str:
    if alone:
        return f"decoder   that of {dataset}'s code, in {place}, which runs alone"
    own = default_decoder_name()
    return f"decoder   datapipe's ({own}) for JPEGs that {dataset} opens with Pillow, in {place}; Pillow for the rest"


def _lines_about_backend(decoding: Choice, place: str) -> list[str]:
    lines = [f"backend   {decoding.backend}: {decoding.reason}"]
    if decoding.dali is None:
        return lines
    pipelines = counted(decoding.dali.num_pipelines, "pipeline")
    return [
        *lines,
        f"          DALI {installation().version}, in {pipelines} on {decoding.device}, makes the tensors of JPEGs that are cut, "
        f"resized, flipped and normalised, and no more than that; {place} read the bytes, and make all others",
    ]


def lines_about_rows(rows: NumberRows | ArrayRows) -> list[str]:
    """Return the lines about batches that are gathered whole: from arrays, tensors in memory, or columns of numbers."""
    if isinstance(rows, ArrayRows):
        return [*_lines_about_arrays(rows), _GATHERED]
    if isinstance(rows.columns, Mapping):
        kinds = {name: "lists of " if isinstance(column, ListColumn) else "" for name, column in rows.columns.items()}
        what = "columns: " + ", ".join(f"{name} {kinds[name]}{column.dtype}" for name, column in rows.columns.items())
    else:
        shapes = (f"{tuple(tensor.shape[1:])} {str(tensor.dtype).removeprefix('torch.')}" for tensor in rows.columns)
        what = "tensors in memory: " + ", ".join(shapes)
    return [f"data      {counted(len(rows), 'row')} of {what}", _GATHERED]


def _lines_about_arrays(rows: ArrayRows) -> list[str]:
    formula, trial = rows.formula, rows.trial
    parts = "unknown since it changed" if formula is None else ", ".join(map(_part, formula.leaves))
    lines = [f"data      {counted(len(rows), 'sample')} of parts of arrays, as {rows.source} takes them: {parts}"]
    if trial is not None:
        per_batch = f"of CPU for {counted(trial.num_samples, 'sample')}"
        lines.append(
            f"          tried: {trial.gathered * 1e6:.0f} us {per_batch} gathered, {trial.plain * 1e6:.0f} us by {rows.source}"
        )
    lines.append(f"          compared with {rows.source} in this process since: {counted(rows.num_compared, 'sample')}, ")
    if rows.difference:
        lines[-1] += f"of which {rows.difference} differed, so all batches are made by {rows.source}"
    else:
        lines[-1] += f"all equal; {rows.num_plain:,} of {counted(rows.num_batches, 'batch')} made by {rows.source}"
    return lines


def _part(leaf: RowValues | Position) -> str:
    return "whole numbers" if isinstance(leaf, Position) else f"{leaf.shape} {leaf.dtype}"


def _workers(loader: TorchDataLoader) -> str:
    if not loader.num_workers:
        return "none: the training process makes each batch itself, while it waits (num_workers=0)"
    ahead = (loader.prefetch_factor or 2) * loader.num_workers
    return f"{counted(loader.num_workers, 'process')} of torch's, {counted(ahead, 'batch')} ahead in all"


def _lines_about_calls(loader: TorchDataLoader) -> list[str]:
    """Return what of the user's own is called besides the dataset and the collate_fn, and where."""
    lines = []
    if loader.worker_init_fn is not None:
        where = "at the start of each of torch's workers" if loader.num_workers else "never, as there are no workers"
        lines.append(f"          worker_init_fn: {_name(loader.worker_init_fn)}, called {where}")
    if loader.batch_sampler is not None and type(loader.batch_sampler) is not torch.utils.data.BatchSampler:
        lines.append(f"          batch_sampler: {_name(loader.batch_sampler)}, called in the training process")
    return lines


def _place(loader: TorchDataLoader) -> str:
    return "torch's workers" if loader.num_workers else "the training process"


def _steps(recipe: Recipe, place: str) -> list[str]:
    """Return what is done to an image, a line for each step, and by whom."""
    own = [op for op in recipe.rest if op is not handover_point]
    steps = [f"by datapipe, {step}" for step in recipe.explain_own()] or ["by datapipe: only the decoding"]
    if own:
        return [*steps, f"by {place}, unchanged: {', '.join(map(described, own))}", f"  since {recipe.rest_reason}"]
    return [*steps, "passed on as the transforms would pass it on"]


def _batches(loader: TorchDataLoader) -> str:
    if loader.batch_size is None and loader.batch_sampler is None:
        return f"not made by the loader: single samples, or the dataset's own batches, in {_place(loader)}"
    own = "collate_fn " if has_collate_fn(loader) else ""
    return f"by {own}{_name(loader.collate_fn)}, in {_place(loader)}"


def _gains_of_workers(loader: TorchDataLoader) -> list[str]:
    usable = default_num_workers()
    if loader.num_workers >= usable or (usable == 1 and loader.num_workers):
        return []
    instead = f"instead of {loader.num_workers}" if loader.num_workers else "so that batches are made while the model computes"
    return [f"num_workers={usable} {instead}: this process may use {counted(usable, 'core')}"]


def _gain_of_loader(loader: TorchDataLoader, recipe: Recipe | None) -> str:
    """Return what would let datapipe's threads make whole batches, or more of them."""
    if recipe is None:
        return (
            "let datapipe see the files, as it does those of ImageFolder, Subset and ConcatDataset (the line `from` says what "
            "prevents it), or run `datapipe convert` and use datapipe.DataLoader on the result: datapipe then decodes, cuts and "
            "resizes"
        )
    own = next((op for op in recipe.rest if op is not handover_point), None)
    if own is not None:
        return (
            f"use transforms that datapipe has (docs/transforms.md) in place of {described(own)} and what follows it; or move "
            "that towards the end of the list: datapipe does what comes before it"
        )
    if has_collate_fn(loader):
        return (
            f"end the transforms in ToTensor(), and in place of {_name(loader.collate_fn)} use a collate_fn that takes plain "
            "tensors, certainly draws no random numbers and needs no worker_init_fn: datapipe's threads then make the batches"
        )
    return "end the transforms in ToTensor(): datapipe's threads then make the batches"


def _name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__qualname__))
