"""Check the arguments of a loader, as users pass them, and make options of them; some may be assigned later, as with torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from datapipe.core.checks import callable_or_none, iterable_or_none, real_number, whole_number
from datapipe.core.environment import num_usable_cores, positive_environment
from datapipe.errors import OptionError
from datapipe.kernel.drawing import may_draw
from datapipe.kernel.samplers import WeightedSampler
from datapipe.order.plan import MAX_SAMPLES, Tail

MAX_BLOCK = 64  # samples that are read, and whose geometry is drawn, at once: they share the overhead

OnError = Literal["raise", "skip", "replace"]
Output = Literal["tuple", "dict"] | Mapping[str, str]
Shuffle = Literal[False, True, "windows"]
# torch raises ValueError when these are assigned.
FIXED = frozenset(("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"))
# These take effect with the next pass, as torch reads them again. The last three mean nothing to a datapipe.DataLoader.
SETTABLE = frozenset((
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "prefetch_factor",
    "multiprocessing_context", "pin_memory_device", "in_order",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """How batches are sized, scheduled and delivered; nothing about what a sample is."""

    batch_size: int
    shuffle: Shuffle
    tail: Tail
    num_workers: int  # threads that make batches; 0: the caller's
    prefetch_factor: int  # batches in the making beyond the one that is waited for
    on_error: OnError
    pin_memory: bool
    timeout_s: float  # the longest wait for one batch; 0: no limit
    batch_transform: Callable[..., Any] | None
    min_block: int = 1  # samples per unit of work, if a batch has so many
    max_block: int = MAX_BLOCK
    num_remote: int = 0  # further threads, each of which waits for a worker on another machine
    output: Literal["tuple", "dict"] = "tuple"
    rename: Mapping[str, str] = field(default_factory=dict)  # of the keys of a dict
    collate_fn: Callable[[list[Any]], Any] | None = None
    may_draw: str | None = None  # what in collate_fn may draw random numbers; None: nothing

    @property
    def num_threads(self) -> int:
        """Threads that make batches; 0: the caller's."""
        return self.num_workers + self.num_remote

    def block_size_of(self, num_samples: int, /) -> int:
        """Return the samples per unit of work in a batch of `num_samples`, with equally many units for every thread."""
        num_threads = max(1, self.num_threads)
        units_each = max(1, -(-num_samples // (self.max_block * num_threads)))
        return max(self.min_block, -(-num_samples // (units_each * num_threads)))

    def blocks(self, num_samples: int) -> list[range]:
        """Return the rows of each unit of work of a batch."""
        size = self.block_size_of(num_samples)
        return [range(start, min(start + size, num_samples)) for start in range(0, num_samples, size)]

    def is_ahead(self, batches: Iterable[int]) -> bool:
        """Return whether enough batches are in the making, given the number of samples of each.

        Enough is `prefetch_factor` batches, or more if they are too small to keep all threads busy.
        """
        sizes = list(batches)
        if not self.num_threads:
            return len(sizes) >= 1
        num_blocks = sum(max(1, -(-size // self.block_size_of(size))) for size in sizes)
        return len(sizes) >= self.prefetch_factor and num_blocks >= 2 * self.num_threads

    @property
    def depth(self) -> int:
        """Batches of `batch_size` in the making at once."""
        if not self.num_threads:
            return 1
        blocks_per_batch = -(-self.batch_size // self.block_size_of(self.batch_size))
        return max(self.prefetch_factor, -(-2 * self.num_threads // blocks_per_batch))


def parse_options(arguments: Mapping[str, Any], block_sizes: tuple[int, int] = (1, MAX_BLOCK)) -> LoaderOptions:
    """Return the options of a loader's arguments. Raises OptionError for arguments that make no sense, alone or together.

    `block_sizes`: the fewest and the most samples per unit of work.
    """
    _check_sampling(arguments)
    output, rename = _parse_output(arguments["output"])
    collate_fn = callable_or_none(arguments["collate_fn"], "collate_fn")
    num_workers, prefetch_factor, timeout = (arguments[name] for name in ("num_workers", "prefetch_factor", "timeout"))
    timeout_s = real_number(timeout, "timeout")
    if timeout_s < 0:
        raise OptionError(f"timeout is {timeout_s}; it must be 0 or more seconds")
    callable_or_none(arguments["worker_init_fn"], "worker_init_fn")
    return LoaderOptions(
        batch_size=whole_number(arguments["batch_size"], "batch_size", least=1, most=MAX_SAMPLES),
        shuffle=_parse_shuffle(arguments["shuffle"]),
        tail=_parse_tail(arguments["tail"], drop_last=arguments["drop_last"]),
        num_workers=default_num_workers() if num_workers is None else whole_number(num_workers, "num_workers", least=0),
        prefetch_factor=2 if prefetch_factor is None else whole_number(prefetch_factor, "prefetch_factor", least=1),
        on_error=one_of(OnError, arguments["on_error"], "on_error"),
        pin_memory=arguments["pin_memory"],
        timeout_s=timeout_s,
        batch_transform=callable_or_none(arguments["batch_transform"], "batch_transform"),
        min_block=block_sizes[0],
        max_block=block_sizes[1],
        output=output,
        rename=rename,
        collate_fn=collate_fn,
        may_draw=None if collate_fn is None else may_draw(collate_fn),
    )


def check_settable(name: str) -> None:
    """Raise OptionError for an argument that a loader does not read again."""
    if name not in SETTABLE:
        raise OptionError(
            f"{name} cannot be set on a loader that exists, as its batches would not change; make another loader with {name}="
        )


def default_num_workers() -> int:
    """Return the number of threads for this process: the cores it may use, shared with the other ranks of its node."""
    return max(1, num_usable_cores() // positive_environment("LOCAL_WORLD_SIZE", 1))


def _check_sampling(arguments: Mapping[str, Any]) -> None:
    """Refuse the combinations that torch refuses, and those that would fill up or drop a sampler's own batches."""
    batch_size, shuffle, drop_last, tail = (arguments[name] for name in ("batch_size", "shuffle", "drop_last", "tail"))
    sampler, batch_sampler = arguments["sampler"], arguments["batch_sampler"]
    if batch_size is None:
        raise OptionError("batch_size=None (no batching) is not available; pass a number of samples, such as 1")
    if sampler is not None and shuffle:
        raise OptionError("sampler and shuffle=True exclude each other: the sampler decides the order")
    if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
        raise OptionError("batch_sampler excludes batch_size, shuffle, sampler and drop_last: it decides them")
    if batch_sampler is not None and tail is not None:
        raise OptionError(f"batch_sampler excludes tail={tail!r}: it decides how the last samples are batched")
    iterable_or_none(batch_sampler, "batch_sampler")
    if isinstance(sampler, WeightedSampler):
        return
    if sampler is not None and tail == "mask":
        raise OptionError("sampler excludes tail='mask': its batches are not filled up; pass tail='pad' or 'drop'")
    iterable_or_none(sampler, "sampler")


def _parse_shuffle(shuffle: object) -> Shuffle:
    if isinstance(shuffle, str):
        if shuffle != "windows":
            raise OptionError(f"shuffle is {shuffle!r}; pass True, False or 'windows'")
        return "windows"
    return bool(shuffle)


def _parse_output(output: object) -> tuple[Literal["tuple", "dict"], Mapping[str, str]]:
    """Return the form of a batch, and the new names of a dict's keys."""
    if isinstance(output, Mapping):
        return "dict", dict(output)
    if isinstance(output, str) and output in ("tuple", "dict"):
        return cast(Literal["tuple", "dict"], output), {}
    raise OptionError(f"output is {output!r:.60}; choose 'tuple', 'dict', or new names for a dict: {{'image': 'pixel_values'}}")


def _parse_tail(tail: str | None, *, drop_last: bool) -> Tail:
    """Return the tail. `drop_last=True` is torch's name for tail="drop"; the two must not disagree."""
    if tail is None:
        return Tail.DROP if drop_last else Tail.PAD
    try:
        parsed = Tail(tail)
    except ValueError as exc:
        raise OptionError(f"tail is {tail!r}; choose one of: {', '.join(member.value for member in Tail)}") from exc
    if drop_last and parsed is not Tail.DROP:
        raise OptionError(f"drop_last=True contradicts tail={tail!r}; pass one of them")
    return parsed


def one_of(literal: Any, value: Any, name: str) -> Any:
    """Return the value if it is one of a Literal's."""
    *first, last = get_args(literal)
    if value not in (*first, last):
        raise OptionError(f"{name} is {value!r}; choose {', '.join(first)} or {last}")
    return value


def refuse_not_served(arguments: Mapping[str, Any], remedies: Mapping[str, str], data: str) -> None:
    """Raise OptionError for an argument that a kind of data does not serve, with its remedy. `data`: such as "a table"."""
    for name, remedy in remedies.items():
        if arguments.get(name) is not None:
            raise OptionError(f"{name} is {arguments[name]!r:.60}, and the data is {data}; {remedy}")


def refuse_backend(arguments: Mapping[str, Any], what: str) -> None:
    """Raise OptionError for a backend that was named, where the host does all. `what`: such as "sound is decoded"."""
    if arguments["backend"] != "auto":
        raise OptionError(f"backend is {arguments['backend']!r:.40}; {what} by the host alone: leave it out")


def refuse_unknown_fields(fields: Sequence[str] | None, possible: Sequence[str]) -> None:
    """Raise OptionError if a field that was asked for is none of the possible ones, or there is none; None asks for nothing."""
    if fields is not None:
        unknown = sorted({*fields} - {*possible})
        if unknown or not fields:
            found = f"has {unknown[0]!r:.40}" if unknown else "is empty"
            raise OptionError(f"fields {found}; choose of {', '.join(possible)}")


def refuse_unknown_names(rename: Mapping[str, str], fields: Sequence[str]) -> None:
    """Raise OptionError for a new name of what batches have not."""
    unknown = [name for name in rename if name not in (*fields, "real")]
    if unknown:
        raise OptionError(f"output renames {unknown[0]!r:.40}, which batches have not ({', '.join(fields)})")
