"""The diagnosis document: one set of types to write, read, check and describe it.

Times are seconds. None means *not measured*, never 0. `python -m datapipe.diagnostics.document` prints the JSON schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from datapipe.analysis.judge.bootstrap import Interval, Known, Number
from datapipe.analysis.judge.fault import Fault
from datapipe.analysis.judge.ranks import RankParts, Straggler
from datapipe.analysis.judge.steady import Regime
from datapipe.analysis.judge.verdict import Severity, Verdict, VerdictKind, severity_of
from datapipe.analysis.predict.instructions import Instruction, Snippet
from datapipe.analysis.predict.needs import Need
from datapipe.analysis.predict.workload import Contention
from datapipe.diagnostics.ceilings.roofline import Roofline
from datapipe.errors import FormatError
from datapipe.instruments.measure.observed import ModelCost
from datapipe.instruments.measure.timeline import Syncs

VERSION = 1
MAX_STEPS, MAX_SPANS = 2_000, 5_000
_NOTABLE = 0.1  # of the run: by so much more it must wait than its steady steps for the verdict to be about it


class Guided(msgspec.Struct, frozen=True, kw_only=True):
    """An action and its instruction: `how` says in one sentence what `code`, `where` and `note` say separately."""

    name: str
    how: str = ""
    code: tuple[Snippet, ...] = ()
    where: str | None = None  # file:line that the Python belongs to
    note: str | None = None

    @property
    def instruction(self) -> Instruction:
        """The instruction to carry out."""
        return Instruction(self.code, self.where, self.note or (self.how if not self.code else ""))


def guide_of(how: Instruction) -> dict[str, Any]:
    """Return an instruction as the fields of a `Guided`."""
    return {"how": how.sentence(), "code": how.code, "where": how.where, "note": how.note or None}


class Outlook(Guided, frozen=True, kw_only=True):
    """A remedy's predicted effect: seconds per step, and the reduction as a share."""

    step_s: Interval
    gain: Interval | None = None
    starvation: Interval | None = None
    needs_edit: bool | None = None  # of the script; None: unknown
    changes_results: bool | None = None  # other pixels or steps; then it is never chosen as best
    needs_machines: bool | None = None  # others than this one; then it is never chosen as best
    refuted: str | None = (
        None  # why it is not recommended although a gain was predicted: applying it, or one like it, gained nothing
    )

    @property
    def is_free(self) -> bool:
        """Whether it costs nothing but the change, as `Remedy.is_free`."""
        return not (self.changes_results or self.needs_machines)


class Remedies(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted remedies. `best` is the name of a prediction, "change nothing" or, if the loop waits, "no remedy known"."""

    best: str
    predictions: tuple[Outlook, ...]  # certainly worth a change, the best first
    within_noise: tuple[Outlook, ...] = ()  # the gain may be chance, or is too small
    now: Outlook | None = None  # the replay of what was measured, with nothing changed
    measured_step_s: Known = None
    misfit: Known = None  # error of that replay: 0.1 is 10% too long
    needs: tuple[Need, ...] = ()  # the stages that would have to be faster, the most waited for first
    contention: Contention | None = None  # whether workers wait for each other; None: datapipe's loader, or no workers

    @property
    def best_first(self) -> tuple[Outlook, ...]:
        """The predictions with the best remedy first, before others with shorter steps."""
        return tuple(sorted(self.predictions, key=lambda one: one.name != self.best))


class Saving(Guided, frozen=True, kw_only=True):
    """A remedy that shortens the run rather than a steady step."""

    saved_s: Number
    gain: Number  # as a share of the run


class LoaderTime(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a run spent with one loader, in seconds."""

    id: int  # the loader's number
    is_evaluation: bool
    num_passes: int
    first_wait_s: float  # in the first next() of its passes: starting workers, making the first batch
    wait_s: float  # in all other next() calls
    work_s: float  # in the steps between

    @property
    def total_s(self) -> float:
        return self.first_wait_s + self.wait_s + self.work_s


class RunWait(msgspec.Struct, frozen=True, kw_only=True):
    """The waiting of a run for data, as shares of it from its second batch on: its start-up happens once, however long it is."""

    share: Number
    of_starts: Number  # part of share: for the first batches of later passes
    of_earlier: Number  # part of share: in epochs before those that the verdict is about


class RunTime(msgspec.Struct, frozen=True, kw_only=True):
    """The account of the slowest rank's process."""

    wall_s: Number
    parts: dict[str, Number]  # seconds by kind of time; they add up to wall_s
    loaders: tuple[LoaderTime, ...] = ()  # the longest first
    savings: tuple[Saving, ...] = ()  # the largest first
    waiting: RunWait | None = None  # None: a document of an earlier version


class StepRow(msgspec.Struct, frozen=True):
    """The times of one step."""

    start_s: Number
    step_s: Known
    gap_s: Known
    host_wait_s: Known
    phase: str | None  # "edge" (the first of a pass), "warm-up", "steady" or "evaluation"
    loader: int | None


class StepColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Steps, thinned evenly to MAX_STEPS; seconds since the first. An empty column was not measured."""

    start_s: tuple[Number, ...] = ()
    step_s: tuple[Known, ...] = ()
    gap_s: tuple[Known, ...] = ()
    host_wait_s: tuple[Known, ...] = ()
    phase: tuple[str | None, ...] = ()
    loader: tuple[int | None, ...] = ()

    def __post_init__(self) -> None:
        lengths = {name: len(getattr(self, name)) for name in self.__struct_fields__}
        if any(num not in (0, len(self.start_s)) for num in lengths.values()):
            raise ValueError(f"columns of steps differ in length: {lengths}")

    @property
    def rows(self) -> tuple[StepRow, ...]:
        """The steps in order of time."""
        nothing = (None,) * len(self.start_s)
        columns = (getattr(self, name) or nothing for name in StepRow.__struct_fields__)
        return tuple(sorted(map(StepRow, *columns), key=lambda row: row.start_s))


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a worker's work, and its time."""

    start_s: Number
    duration_s: Number
    stage: str
    worker: int | None = None  # None: the training process
    batch: int | None = None


class LoaderRow(msgspec.Struct, frozen=True, kw_only=True):
    """A loader of the slowest rank."""

    id: int
    where: str | None = None
    kind: str = ""
    dataset: str | None = None
    num_workers: int | None = None
    prefetch_factor: int | None = None
    batch_size: int | None = None
    pin_memory: bool | None = None
    is_evaluation: bool | None = None
    is_judged: bool = False  # attribution and remedies concern this loader
    num_steps: int | None = None


class RankResult(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of one rank."""

    rank: int | None = None
    pid: int | None = None
    verdict: Verdict
    num_steps: int | None = None
    parts: RankParts | None = None  # of its mean step


class BatchSizeRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a step takes with another batch size, when it was tried."""

    batch_size: int
    step_s: Known = None
    data_s: Known = None  # part of step_s: waiting for data
    model: ModelCost | None = None
    reason: str | None = None  # why it was not measured


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A remedy that could not be measured, and the reason."""

    name: str
    reason: str


class AppliedRemedy(msgspec.Struct, frozen=True, kw_only=True):
    """A remedy that was applied, and its measured effect."""

    remedy: str
    predicted_step_s: Known = None
    low_s: Known = None
    high_s: Known = None
    measured_step_s: Known = None
    starvation: Interval | None = None
    reason: str | None = None  # why it was not measured

    @property
    def predicted(self) -> Interval | None:
        """The predicted step with its interval."""
        if self.predicted_step_s is None:
            return None
        low, high = (self.predicted_step_s if end is None else end for end in (self.low_s, self.high_s))
        return Interval(self.predicted_step_s, low, high)


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of a run, with verdict and explanation."""

    version: int = VERSION
    command: tuple[str, ...] = ()
    exit_code: int | None = None  # None: it is still running, or there was no command
    started_at: str | None = None  # ISO 8601
    duration_s: Known = None
    clock: Literal["cuda", "host"] = "host"  # host: no device was measured, and waits are the host's in next()
    verdict: Verdict  # of the rank that the others wait for, else of the one that waits most for data
    ranks: tuple[RankResult, ...] = ()
    straggler: Straggler | None = None  # the rank that the others wait for; None: there is none
    in_turn_s: Known = None  # lost per step, as ranks wait for data one after the other; None: little, or not known
    model: ModelCost | None = None  # what a step costs the device; None: not counted
    batch_sizes: tuple[BatchSizeRow, ...] = ()  # others than the script's, as far as they were tried
    ceilings: Roofline | None = None  # of the judged rank; None: too little was measured
    loaders: tuple[LoaderRow, ...] = ()
    attribution: Fault | None = None
    why_no_attribution: str | None = None
    remedies: Remedies | None = None
    why_no_remedies: str | None = None
    run: RunTime | None = None
    regimes: tuple[Regime, ...] = ()  # training passes that differ in level, in order; the verdict is about the last
    left_out: tuple[LeftOut, ...] = ()
    steps: StepColumns | None = None
    spans: tuple[Span, ...] = ()
    syncs: dict[str, Syncs] = {}  # waits for the device within steps, by the names of the calls
    applied: AppliedRemedy | None = None
    environment: dict[str, Any] = {}
    troubles: tuple[str, ...] = ()

    @property
    def run_waiting(self) -> RunWait | None:
        """The waiting of the run, if that is notably more than that of its steady steps; None otherwise."""
        wait = None if self.run is None else self.run.waiting
        if wait is None or self.verdict.kind is VerdictKind.NOT_MEASURED:
            return None
        steady = 0.0 if self.verdict.starvation is None else self.verdict.starvation.value
        return wait if wait.share - steady >= _NOTABLE else None

    @property
    def severity(self) -> Severity | None:
        """The severity of the waiting of the run, or of its steady steps, whichever is worse; None if unknown."""
        wait = self.run_waiting
        return self.verdict.severity if wait is None else severity_of(wait.share)

    @property
    def is_applied_refuted(self) -> bool:
        """True if the applied remedy gained nothing."""
        outlooks = () if self.remedies is None else self.remedies.within_noise
        return self.applied is not None and any(one.name == self.applied.remedy and one.refuted for one in outlooks)

    @property
    def longest_syncs(self) -> tuple[tuple[str, Syncs], ...]:
        """The waits for the device by name, the longest first."""
        return tuple(sorted(self.syncs.items(), key=lambda one: -one[1].host_s))

    @property
    def batch_size(self) -> int | None:
        """The batch size of the judged loader; if the document does not name it, of the loader with the most steps."""
        judged = [loader for loader in self.loaders if loader.is_judged]
        judged = judged or [loader for loader in self.loaders if not loader.is_evaluation]
        return max(judged, key=lambda one: one.num_steps or 0).batch_size if judged else None

    @property
    def samples_per_s(self) -> float | None:
        """The rate of one rank in the steady state."""
        step_s, batch_size = self.verdict.figures.step_s, self.batch_size
        return batch_size / step_s if batch_size and step_s else None


Readable: TypeAlias = Document | Mapping[str, Any]  # the document itself, or its parsed JSON


def read_document(value: Readable) -> Document:
    """Return the document. Unknown keys are ignored, so that it may grow within its version.

    Raises FormatError if `value` is not a diagnosis, or has another version.
    """
    if isinstance(value, Document):
        return value
    if not isinstance(value, Mapping) or "version" not in value or "verdict" not in value:
        raise FormatError("this is not a diagnosis: it has no version and verdict; `datapipe diagnose --out DIR` writes one")
    if value["version"] != VERSION:
        raise FormatError(
            f"the diagnosis has version {value['version']!r}, but this datapipe reads version {VERSION}; diagnose the run "
            "again, or read it with the datapipe that wrote it"
        )
    try:
        return msgspec.convert(value, Document)
    except (msgspec.ValidationError, RecursionError) as exc:
        raise FormatError(f"the diagnosis is damaged ({exc}); diagnose the run again") from exc


def as_json(document: Document) -> dict[str, Any]:
    """Return the document as parsed JSON. Raises ValueError for a number that is not finite."""
    found: dict[str, Any] = json.loads(json.dumps(msgspec.to_builtins(document), allow_nan=False))
    return found


def schema() -> dict[str, Any]:
    """Return the JSON schema of the document."""
    return msgspec.json.schema(Document)


if __name__ == "__main__":
    print(json.dumps(schema(), indent=1))
