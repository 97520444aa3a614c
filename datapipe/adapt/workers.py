"""Take over loaders that torch's workers go on serving, or whose batches are gathered whole in their place."""

from __future__ import annotations

import functools
import hashlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from torch.utils.data import IterableDataset

from datapipe.adapt.asked import Asked
from datapipe.adapt.device_decoding import DecodingByDali, choose_decoder
from datapipe.adapt.explaining import lines_about
from datapipe.adapt.introspection import Introspection
from datapipe.adapt.keys import KeyOf, KeySource, SampleDataset, given_keys, keys_of, picked_keys, places_of, request_of_samples
from datapipe.adapt.loaders import TorchDataLoader, has_collate_fn, is_plain_shuffle, length_of, sampler_of
from datapipe.adapt.number_rows import NumberRows, picked_rows
from datapipe.adapt.torch_loader import TorchLoader
from datapipe.adapt.whole_batches import GatheredRows, gathered_rows
from datapipe.datasets import Original, Unseen
from datapipe.deferral.dataset import DeferringDataset
from datapipe.deferral.own_code import reads_batches
from datapipe.deferral.requests import request_of_picks
from datapipe.errors import OptionError
from datapipe.index.concat import Repeats
from datapipe.kernel.loader import Loader
from datapipe.kernel.prefetching import PrefetchedLoader, prefetch
from datapipe.kernel.ranks import resolve_device
from datapipe.kernel.samplers import SamplerChecksum
from datapipe.kernel.seeding import SeedSource
from datapipe.kinds.images.choice import Choice
from datapipe.order.row_order import ShuffledRows
from datapipe.order.sample_order import ShuffledOrder

AnyLoader = Loader | TorchLoader | PrefetchedLoader


def of_workers(loader: Any, taken: TorchDataLoader, found: Introspection | Unseen, seed: SeedSource, asked: Asked) -> AnyLoader:
    """Return a loader whose samples torch's workers make, or whose batches are gathered whole; `loader` itself for a stream."""
    why = found.reason if isinstance(found, Unseen) else str(found.in_workers)
    asked.refuse(why, "data")
    if isinstance(found, Introspection):
        asked.refuse(why, "on_error")
    else:
        _check_policy(taken, asked)
    place, rows, decoding = resolve_device(asked.device)(), None, None
    if isinstance(found, Unseen) and not _is_stream(taken):
        rows = gathered_rows(taken, tries=not asked.differs("on_error", "backend"))
        decoding = choose_decoder(taken, asked.backend, place) if rows is None and asked.defers else None
    if decoding is None:
        asked.refuse(why if asked.defers or asked.is_faithful else "their images are not deferred", "backend")
    if isinstance(found, Introspection):
        kept = _decoding_ahead(taken, found, seed, asked)
    elif _is_stream(taken):
        return unchanged(loader, taken, why, asked)
    else:
        kept = _as_it_is(taken, why, seed, asked, rows, decoding)
    if decoding is not None and decoding.dali is not None:
        opened = DecodingByDali(decoding.dali, place)
        return PrefetchedLoader(kept, place, depth=max(2, decoding.dali.num_pipelines), open_mover=opened)
    return kept if place.type == "cpu" else prefetch(kept, place)


def _decoding_ahead(loader: TorchDataLoader, found: Introspection, seed: SeedSource, asked: Asked) -> TorchLoader:
    """Return a loader in whose workers datapipe decodes and cuts, and the user's code does what follows."""
    key_of: KeyOf = functools.partial(request_of_samples if asked.reseeds else keys_of, repeats=Repeats.of(found.index))
    samples = SampleDataset(found.index, found.recipe)
    return TorchLoader(
        loader,
        dataset=DeferringDataset(samples, defers=False) if asked.reseeds else samples,
        open_source=functools.partial(
            picked_keys, loader=loader, key_of=key_of, shares=asked.shares, original=Original.of(loader.dataset)
        ),
        seed=seed,
        fingerprint=found.index.fingerprint,
        origin=origin_of(loader, f"datapipe reads its files, in torch's workers, since {found.in_workers}"),
        is_seeded=asked.reseeds or not (found.recipe.rest or has_collate_fn(loader)),
    )


def _as_it_is(
    loader: TorchDataLoader, why: str, seed: SeedSource, asked: Asked, rows: GatheredRows | None, decoding: Choice | None
) -> TorchLoader:
    """Return a loader that reads the dataset itself, or gathers its `rows`. `decoding`: which backend makes deferred images."""
    open_source = _keys_of_dataset(loader, rows, asked)
    if not isinstance(rows, NumberRows) and callable(getattr(loader.dataset, "state_dict", None)):
        warnings.warn(
            f"{type(loader.dataset).__qualname__} has a state_dict of its own, which the loader's state does not include; save "
            "and load it in addition",
            stacklevel=4,
        )
    dataset, origin = loader.dataset, f"left to torch's workers: {why}"
    if rows is not None:
        dataset, origin = rows, f"datapipe gathers whole batches from {_what_is_gathered(rows)}"
    elif decoding is not None or asked.reseeds or asked.on_error != "raise":
        encodes = decoding is not None and decoding.dali is not None
        dataset = DeferringDataset(dataset, defers=decoding is not None, on_error=asked.on_error, encodes=encodes)
    return TorchLoader(
        loader,
        dataset=dataset,
        open_source=open_source,
        seed=seed,
        fingerprint=_name_of(loader.dataset),
        origin=origin_of(loader, origin),
        is_seeded=rows is not None or asked.reseeds,
        decoding=decoding,
    )


def _keys_of_dataset(loader: TorchDataLoader, rows: GatheredRows | None, asked: Asked) -> Callable[[SamplerChecksum], KeySource]:
    """Return what gives the keys of a pass. Raises OptionError if the samples cannot be shared as was asked."""
    is_of_numbers = isinstance(rows, NumberRows)
    if not (is_of_numbers or is_plain_shuffle(loader) or asked.shares):
        return functools.partial(given_keys, loader=loader, reseeds=asked.reseeds)
    key_of = picked_rows if rows is not None else request_of_picks if asked.reseeds else places_of
    shuffled = ShuffledRows if is_of_numbers else ShuffledOrder
    open_source = functools.partial(picked_keys, loader=loader, key_of=key_of, shares=asked.shares, shuffled=shuffled)
    open_source(SamplerChecksum())
    return open_source


def _what_is_gathered(rows: GatheredRows) -> str:
    if isinstance(rows, NumberRows):
        return "its columns" if isinstance(rows.columns, Mapping) else "its tensors"
    return f"the arrays that {rows.source} slices"


def _is_stream(loader: TorchDataLoader) -> bool:
    """Return whether torch's workers are not asked for the samples of batches by their keys."""
    return isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None


def unchanged(loader: Any, inner: TorchDataLoader, reason: str, asked: Asked) -> AnyLoader:
    """Return the loader itself; for a GPU, one that copies its batches there. `inner`: torch's loader in it."""
    place = resolve_device(asked.device)()
    if asked.shares:
        raise OptionError(
            f"share_among_ranks=True: {reason}, so datapipe cannot divide its samples among ranks; "
            "leave it out, and let the dataset itself give each rank a part"
        )
    result: AnyLoader = loader
    what = "the loader is unchanged, and has no state to save"
    if place.type != "cpu":
        result, what = prefetch(loader, place), f"its batches are copied to {place} ahead, and it has no state to save"
    origin = f"{type(inner.dataset).__qualname__}: left to torch: {reason}; {what}"
    vars(result).update(origin=origin, explanation=lines_about(inner, None))
    return result


def _check_policy(loader: TorchDataLoader, asked: Asked) -> None:
    """Raise OptionError if samples that raise cannot be left out: if they are not asked for one by one, with seeds."""
    if asked.on_error == "raise":
        return
    name = type(loader.dataset).__qualname__
    if _is_stream(loader) or reads_batches(loader.dataset):
        raise OptionError(
            f"on_error={asked.on_error!r}: {name} is not asked for samples one by one, so it is unknown which one raised; "
            "leave it out, and catch the exception in the Dataset"
        )
    if asked.on_error == "replace" and not asked.reseeds:
        raise OptionError("on_error='replace' takes another sample by the seed of the bad one; leave faithful=True out")


def _name_of(dataset: Any) -> str:
    kind = f"{type(dataset).__module__}.{type(dataset).__qualname__} {length_of(dataset)}"
    return hashlib.sha256(kind.encode()).hexdigest()[:16]


def origin_of(loader: TorchDataLoader, *parts: str) -> str:
    """Return what was taken over, and how."""
    facts = list(parts)
    if not isinstance(loader.dataset, IterableDataset):
        replaced = ", replaced by a shuffle that resumes exactly" if is_plain_shuffle(loader) else ""
        facts.append(f"{type(sampler_of(loader)).__qualname__}{replaced}")
    if not getattr(loader, "in_order", True):
        facts.append("in_order=False is left out: batches come in order")
    return f"{type(loader.dataset).__qualname__}: {'; '.join(facts)}"
