"""Open the loaders that torch's workers go on serving, and those whose batches are gathered whole in their place."""

from __future__ import annotations

import functools
import hashlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from datapipe.adapt.array_rows import ArrayRows
from datapipe.adapt.device_decoding import DecodingByDali
from datapipe.adapt.explaining import lines_about
from datapipe.adapt.facts import LoaderFacts, TakeoverSettings
from datapipe.adapt.keys import KeyOf, KeySource, SampleDataset, given_keys, keys_of, picked_keys, places_of, request_of_samples
from datapipe.adapt.loaders import length_of
from datapipe.adapt.number_rows import NumberRows, picked_rows
from datapipe.adapt.torch_loader import TorchLoader
from datapipe.datasets import DatasetFiles, Original
from datapipe.deferral.dataset import DeferringDataset
from datapipe.deferral.requests import request_of_picks
from datapipe.errors import OptionError
from datapipe.index.concat import Repeats
from datapipe.kernel.loader import Loader
from datapipe.kernel.prefetching import PrefetchedLoader, prefetch
from datapipe.kernel.samplers import SamplerChecksum
from datapipe.kinds.images.choice import Choice
from datapipe.order.row_order import ShuffledRows
from datapipe.order.sample_order import ShuffledOrder
from datapipe.transforms import Recipe

AnyLoader = Loader | TorchLoader | PrefetchedLoader


def decoding_loader(facts: LoaderFacts, settings: TakeoverSettings, files: DatasetFiles, recipe: Recipe, why: str) -> TorchLoader:
    """Return a loader in whose workers datapipe decodes and cuts, and the user's code does what follows."""
    key_of: KeyOf = functools.partial(request_of_samples if settings.reseeds else keys_of, repeats=Repeats.of(files.index))
    samples = SampleDataset(files.index, recipe)
    return TorchLoader(
        facts.loader,
        dataset=DeferringDataset(samples, defers=False) if settings.reseeds else samples,
        open_source=functools.partial(
            picked_keys,
            loader=facts.loader,
            key_of=key_of,
            shares=settings.shares,
            original=Original.of(facts.dataset, facts.recipe),
        ),
        seed=settings.seed,
        workers=settings.workers,
        fingerprint=files.index.fingerprint,
        origin=facts.origin(f"datapipe reads its files, in torch's workers, since {why}"),
        is_seeded=settings.reseeds or not (recipe.rest or facts.collates),
    )


def gathering_loader(facts: LoaderFacts, settings: TakeoverSettings, rows: NumberRows | ArrayRows) -> TorchLoader:
    """Return a loader that gathers its batches from `rows`, in the training process."""
    open_source = _keys_of_dataset(facts, settings, rows)
    if not isinstance(rows, NumberRows):
        _warn_of_state(facts)
    return TorchLoader(
        facts.loader,
        dataset=rows,
        open_source=open_source,
        seed=settings.seed,
        fingerprint=_name_of(facts.dataset),
        origin=facts.origin(f"datapipe gathers whole batches from {_what_is_gathered(rows)}"),
    )


def own_code_loader(facts: LoaderFacts, settings: TakeoverSettings, why: str, decoding: Choice | None) -> TorchLoader:
    """Return a loader that reads the dataset itself. `decoding`: which backend makes deferred images; None: none are deferred."""
    open_source = _keys_of_dataset(facts, settings, None)
    _warn_of_state(facts)
    dataset = facts.dataset
    if decoding is not None or settings.reseeds or settings.on_error != "raise":
        encodes = decoding is not None and decoding.dali is not None
        dataset = DeferringDataset(dataset, defers=decoding is not None, on_error=settings.on_error, encodes=encodes)
    return TorchLoader(
        facts.loader,
        dataset=dataset,
        open_source=open_source,
        seed=settings.seed,
        workers=settings.workers,
        fingerprint=_name_of(facts.dataset),
        origin=facts.origin(f"left to torch's workers: {why}"),
        is_seeded=settings.reseeds,
        decoding=decoding,
    )


def unchanged_loader(facts: LoaderFacts, settings: TakeoverSettings, why: str) -> AnyLoader:
    """Return the loader itself; for a GPU, one that copies its batches there."""
    place = settings.place
    if settings.shares:
        raise OptionError(
            f"share_among_ranks=True: {why}, so datapipe cannot divide its samples among ranks; "
            "leave it out, and let the dataset itself give each rank a part"
        )
    result: AnyLoader = facts.given
    what = "the loader is unchanged, and has no state to save"
    if place.type != "cpu":
        result, what = prefetch(result, place), f"its batches are copied to {place} ahead, and it has no state to save"
    vars(result).update(origin=f"{facts.name}: left to torch: {why}; {what}", explanation=lines_about(facts.loader, None))
    return result


def moved_to_device(loader: TorchLoader, settings: TakeoverSettings) -> AnyLoader:
    """Return a loader of the same batches where they are to come, in which DALI perhaps makes those that are deferred."""
    place, decoding = settings.place, loader.decoding
    if decoding is not None and decoding.dali is not None:
        opened = DecodingByDali(decoding.dali, place)
        return PrefetchedLoader(loader, place, depth=max(2, decoding.dali.num_pipelines), open_mover=opened)
    return loader if place.type == "cpu" else prefetch(loader, place)


def _keys_of_dataset(
    facts: LoaderFacts, settings: TakeoverSettings, rows: NumberRows | ArrayRows | None
) -> Callable[[SamplerChecksum], KeySource]:
    """Return what gives the keys of a pass. Raises OptionError if the samples cannot be shared as was asked."""
    is_of_numbers = isinstance(rows, NumberRows)
    if not (is_of_numbers or facts.is_shuffle or settings.shares):
        return functools.partial(given_keys, loader=facts.loader, reseeds=settings.reseeds)
    key_of = picked_rows if rows is not None else request_of_picks if settings.reseeds else places_of
    shuffled = ShuffledRows if is_of_numbers else ShuffledOrder
    open_source = functools.partial(picked_keys, loader=facts.loader, key_of=key_of, shares=settings.shares, shuffled=shuffled)
    open_source(SamplerChecksum())
    return open_source


def _warn_of_state(facts: LoaderFacts) -> None:
    if callable(getattr(facts.dataset, "state_dict", None)):
        warnings.warn(
            f"{facts.name} has a state_dict of its own, which the loader's state does not include; save and load it in addition",
            stacklevel=5,  # at the `from_torch`
        )


def _what_is_gathered(rows: NumberRows | ArrayRows) -> str:
    if isinstance(rows, NumberRows):
        return "its columns" if isinstance(rows.columns, Mapping) else "its tensors"
    return f"the arrays that {rows.source} slices"


def _name_of(dataset: Any) -> str:
    kind = f"{type(dataset).__module__}.{type(dataset).__qualname__} {length_of(dataset)}"
    return hashlib.sha256(kind.encode()).hexdigest()[:16]
