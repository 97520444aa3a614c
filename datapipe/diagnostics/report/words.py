"""Put a diagnosis into words, shared by the screen, the page and the comparison. Pure.

The intervals are not called 95% intervals: they come from resampling the steps of one run, with a model of how runs differ.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Sequence
from datetime import datetime

from datapipe.analysis.judge.bootstrap import Interval
from datapipe.analysis.judge.fault import MEANINGS, Fault, StageOfWait
from datapipe.analysis.judge.ranks import straggler_line
from datapipe.analysis.judge.steady import Regime
from datapipe.analysis.judge.verdict import Verdict, VerdictKind
from datapipe.analysis.predict.instructions import Instruction
from datapipe.analysis.predict.needs import Need
from datapipe.diagnostics.document import AppliedRemedy, Document, Outlook, RankResult, RunTime, RunWait, Saving
from datapipe.instruments.measure.observed import LockHolder

HOST_CLOCK = (
    "by the host's clock, as no GPU was measured: this is how long the loop spent in next(); a GPU that still had work "
    "meanwhile waited less"
)
_MISFIT = 0.05  # of a step: a larger error of the replay is reported
_COMPUTING = ("decode", "dataset", "transform", "augment", "collate")
_NOTABLE = 0.1  # of the run: a larger share is reported
_STEADY = ("waiting for data", "training steps")
_PARTS = {"first batches": "the first batches of passes, such as starting workers", "between passes": "what lies between passes"}
_NEARLY_FREE = 20.0  # times as fast, beyond which a stage counts as free
_SMALL = 0.02  # of a step: a smaller change gets no figure
INTERVALS = (
    "Ranges in brackets come from resampling the steps of this run. Those of predictions also contain how much runs usually "
    "differ from each other, and the error of replaying this run."
)


def plain(text: object) -> str:
    """Return one line without control characters, which names of files and datasets may hold."""
    return "".join(" " if one in "\r\n\t" else "\ufffd" if unicodedata.category(one)[0] == "C" else one for one in str(text))


def percent(share: float | None) -> str:
    """Return a share as a percentage with one decimal."""
    return "not measured" if share is None else f"{share:.1%}"


def percent_range(share: Interval | None) -> str:
    """Return a share as a percentage, with its range in brackets."""
    return "not measured" if share is None else f"{share.value:.1%} [{share.low:.1%}, {share.high:.1%}]"


def short(text: object, num: int = 100) -> str:
    """Return one line of at most `num` characters, cut if necessary."""
    line = plain(text)
    return line if len(line) <= num else line[: num - 3] + "..."


def seconds(value: float | None) -> str:
    """Return a time in a suitable unit, with three digits."""
    return "not measured" if value is None else " ".join(_scaled(value, value))


def seconds_range(value: Interval | None) -> str:
    """Return a time and its range, all in the unit that suits the value."""
    if value is None:
        return "not measured"
    (middle, unit), (low, _), (high, _) = (_scaled(one, value.value) for one in (value.value, value.low, value.high))
    return f"{middle} {unit} [{low}, {high}]"


def times(num: int) -> str:
    """Return how many times something happened."""
    return "once" if num == 1 else f"{num:,} times"


def change(gain: Interval) -> str:
    """Return how a step changes, with the range."""
    if abs(gain.value) < 0.005:
        return f"no change [{_signed(gain.low)}, {_signed(gain.high)}]"
    sign, word = (1, "shorter") if gain.value > 0 else (-1, "longer")
    low, high = sorted((sign * gain.low, sign * gain.high))
    return f"{sign * gain.value:.0%} {word} [{low:.0%}, {high:.0%}]"


def is_starved(verdict: Verdict) -> bool:
    """Return True if the verdict is that data is short, whatever the cause."""
    return verdict.kind in (VerdictKind.DATA_BOUND, VerdictKind.SYNC_EXPOSED)


def waiter(verdict: Verdict) -> str:
    """Return whose waiting was measured."""
    return "the GPU" if verdict.is_device else "the training loop"


def headline(diagnosis: Document) -> str:
    """Return the verdict in a sentence."""
    verdict, who = diagnosis.verdict, waiter(diagnosis.verdict)
    share = verdict.starvation
    spent = f"{share.value:.1%} of the time" if share is not None else "for a time that was not measured"
    notes = [] if verdict.is_device else ["host clock"]
    if len(diagnosis.ranks) > 1:
        why = "which waits most" if diagnosis.straggler is None else "the slowest"
        notes.append(f"rank {diagnosis.verdict.rank}, {why} of {len(diagnosis.ranks)}")
    note = f" ({', '.join(notes)})" if notes else ""
    if diagnosis.run_waiting is not None:
        return f"{_capital(who)} waits for data {_run_waiting(diagnosis, diagnosis.run_waiting)}{note}."
    match verdict.kind:
        case VerdictKind.DATA_BOUND:
            return f"{_capital(who)} waits for data {spent}{note}."
        case VerdictKind.SYNC_EXPOSED:
            return f"{_capital(who)} waits for data {spent}{note}, because the loop waits for the GPU at every step."
        case VerdictKind.HOST_BOUND:
            return f"Data is not the bottleneck: the GPU waits for Python and for kernels to be launched{note}."
        case VerdictKind.COMPUTE_BOUND:
            return f"Data is not the bottleneck: {who} waits for it only {spent}{note}."
        case VerdictKind.NOT_ENOUGH:
            return f"There were too few steady steps to tell whether {who} waits for data{note}."
        case VerdictKind.NOT_MEASURED:
            return f"It was not measured whether {who} waits for data{note}."


def _run_waiting(diagnosis: Document, wait: RunWait) -> str:
    """Return how long a run waits, where, and what its steady steps do."""
    text = f"{wait.share:.0%} of the run"
    if max(wait.of_starts, wait.of_earlier) > wait.share / 2:
        last = diagnosis.regimes[-1].first_pass if diagnosis.regimes else 0
        earlier = "in its first epoch" if last == 1 else f"in its first {last} epochs"
        text += f", most of it {earlier if wait.of_earlier > wait.of_starts else 'for the first batches of its epochs'}"
    share = diagnosis.verdict.starvation
    if share is None or diagnosis.verdict.kind is VerdictKind.NOT_ENOUGH:
        return f"{text}; there were too few steady steps to judge those"
    return f"{text}; {percent(share.value)} of the time in steady steps"


def nothing_line(diagnosis: Document) -> str:
    """Return that no remedy is needed."""
    if diagnosis.run_waiting is not None:
        return "Steady steps need no change: they hardly wait for data."
    return "Nothing needs to change: the loop hardly waits for data."


def badge(diagnosis: Document) -> str:
    """Return the verdict in a word or two."""
    return (diagnosis.verdict.kind if diagnosis.run_waiting is None else VerdictKind.DATA_BOUND).value


def late_rank_line(diagnosis: Document) -> str | None:
    """Return whom the ranks wait for and why; None if for nobody, or if it is not known."""
    if diagnosis.straggler is not None:
        return _capital(plain(straggler_line(diagnosis.straggler, len(diagnosis.ranks)))) + "."
    if diagnosis.in_turn_s is not None:
        lost = f"{seconds(diagnosis.in_turn_s)} of each step are lost to that"
        return f"The ranks wait for data one after the other: {lost}; batches prefetched further ahead even it out."
    return None


def ranks_line(diagnosis: Document) -> str | None:
    """Return what each of several ranks waits for; None for a single one."""
    ranks = diagnosis.ranks
    if len(ranks) < 2:
        return None
    has_others = any(of_others(row) is not None for row in ranks)
    title = "Waiting by rank, for data + for others  " if has_others else "Waiting by rank  "
    shares = [
        " + ".join([percent(share.value if (share := row.verdict.starvation) else None), *filter(None, [of_others(row)])])
        for row in ranks
    ]
    return title + ", ".join(f"{row.rank}: {share}" for row, share in zip(ranks, shares, strict=True))


def of_others(row: RankResult) -> str | None:
    """Return the share of its steps that a rank waits for the others; None if it was not measured."""
    return None if row.parts is None or row.parts.others_s is None else percent(row.parts.others_s / row.parts.step_s)


def detail(diagnosis: Document) -> str:
    """Return the figures behind the headline; the reason if there are none."""
    verdict = diagnosis.verdict
    step_s, data_s = verdict.figures.step_s, verdict.figures.data_s
    if (
        verdict.starvation is None
        or step_s is None
        or data_s is None
        or verdict.kind in (VerdictKind.NOT_ENOUGH, VerdictKind.NOT_MEASURED)
    ):
        return _capital(plain(verdict.reason)) + "."
    low, high = verdict.starvation.low, verdict.starvation.high
    text = f"{seconds(data_s)} of each {seconds(step_s)} step, range {low:.1%} to {high:.1%} over "
    if verdict.figures.has_short_passes:
        text += "the second half of all passes, each of which is too short to be judged."
    else:
        text += (
            f"{verdict.figures.num_steps} steady steps." if verdict.figures.is_settled else "the second half; it has not settled."
        )
    copy_s, exposed_s, hidden_s = verdict.figures.copy_s, verdict.figures.exposed_by_sync_s, verdict.figures.hidden_s
    if copy_s is not None and copy_s > data_s / 2:
        text += f" {seconds(copy_s)} of it goes to copies from the host that the loop requests."
    if exposed_s:
        text += f" Up to {seconds(exposed_s)} of it would be hidden if the loop did not wait for the GPU."
    if hidden_s is not None and hidden_s > 0.02 * step_s:
        text += f" A further {seconds(hidden_s)} of waiting is hidden behind its work."
    return text if verdict.is_device else text + f" Taken {HOST_CLOCK}."


def stage_name(stage: StageOfWait) -> str:
    """Return the name of a stage, such as "transform RandomResizedCrop" or "decode"."""
    return short(stage.detail or stage.name)


def meaning(stage: str) -> str | None:
    """Return what a stage's name means; None if the name says so itself."""
    text = MEANINGS.get(stage)
    return None if text is None or text.startswith(stage) else text


def fault_line(attribution: Fault) -> str:
    """Return which stage is at fault."""
    if attribution.fault is None:
        return _capital(plain(attribution.reason)) if attribution.reason else "No stage is at fault."
    same = [stage for stage in attribution.stages if stage.name == attribution.fault]
    share = sum(stage.share or 0.0 for stage in same)
    what = meaning(attribution.fault)
    name = f"{plain(attribution.fault)}s" if attribution.fault == "transform" and len(same) > 1 else plain(attribution.fault)
    line = f"{name}, {share:.0%} of waiting" if same else name
    if attribution.fault == "cores" and (computing := _computing(attribution)) is not None:
        return f"{line}: more threads want to run than there are cores, and most of it is {stage_name(computing)}"
    if attribution.holder is not None:
        return f"{line}: {_taken_by(attribution.holder)}"
    return line if what is None else f"{line} ({what})"


def head_of_line(attribution: Fault) -> str | None:
    """Return how long the next batch was waited for though a later one was ready; None if that was not seen."""
    waited_s = attribution.head_of_line_s
    return f"for {seconds(waited_s)} of it the next batch was not ready, but a later one was" if waited_s else None


def _taken_by(holder: LockHolder) -> str:
    place, _, function = holder.where.rpartition(" ")
    return plain(f"thread {holder.thread!r} holds Python's lock in {function} ({os.path.basename(place)})")


def _computing(attribution: Fault) -> StageOfWait | None:
    """Return the stage that occupies the cores longest."""
    stages = [stage for stage in attribution.stages if stage.name in _COMPUTING and stage.work_share]
    return max(stages, key=lambda stage: stage.work_share or 0.0, default=None)


def contention_line(diagnosis: Document) -> str | None:
    """Return that workers wait for each other; None if they do not, or if it is unknown."""
    contention = None if diagnosis.remedies is None else diagnosis.remedies.contention
    if contention is None or not contention.grows:
        return None
    most = contention.levels[-1].num_workers
    then_s = contention.now_s + contention.added_s(most)
    now = f"{contention.now} worker{'s' * (contention.now > 1)}"
    what = f"a batch waits {seconds(contention.now_s)} with {now} and {seconds(then_s)} with {most}"
    return f"Workers wait for each other, as behind a lock or a saturated disk: {what}."


def levels_line(levels: Sequence[Regime]) -> str | None:
    """Return how passes differ; None if they do not."""
    if len(levels) < 2:
        return None
    shares = []
    for one in levels:
        first, last = one.first_pass + 1, one.last_pass + 1
        name = f"epoch {first} waits" if first == last else f"epochs {first} to {last} wait"
        shares.append(f"{name} {one.waiting:.0%} ({seconds(one.step_s)} a step)")
    return f"Epochs differ: {', '.join(shares)}. What follows is about the last of them."


def run_line(run: RunTime) -> str | None:
    """Return where a run's time went besides steady steps; None if that is little."""
    notable = [(name, spent) for name, spent in run.parts.items() if name not in _STEADY and spent >= _NOTABLE * run.wall_s]
    if not notable or not run.wall_s:
        return None
    shares = ", ".join(f"{spent / run.wall_s:.0%} to {_PARTS.get(name, name)}" for name, spent in notable)
    steady = sum(run.parts.get(name, 0.0) for name in _STEADY)
    rest = f"{steady / run.wall_s:.0%} to training steps and waiting between them"
    return f"Of the run's {seconds(run.wall_s)} went {shares}; {rest}."


def loader_lines(diagnosis: Document) -> list[str]:
    """Return each further loader that takes a share of the run, and how much of that is waiting."""
    run, lines = diagnosis.run, list[str]()
    if run is None or not run.wall_s:
        return lines
    known = {loader.id: loader for loader in diagnosis.loaders}
    for one in run.loaders:
        loader = known.get(one.id)
        is_judged = loader is not None and loader.is_judged and not one.is_evaluation
        if is_judged or one.total_s < _NOTABLE * run.wall_s:
            continue
        what = f"The {'validation' if one.is_evaluation else 'training'} loader"
        what += f" at {short(loader.where, 40)}" if loader is not None and loader.where else ""
        share, waited = one.total_s / run.wall_s, (one.first_wait_s + one.wait_s) / one.total_s
        lines.append(f"{what} takes {share:.0%} of the run; {waited:.0%} of that is waiting for data.")
    return lines


def saving_line(saving: Saving, wall_s: float) -> str:
    """Return what a remedy does to the whole run."""
    return f"{plain(saving.name)}: the run {seconds(wall_s)} -> {seconds(wall_s - saving.saved_s)}, {saving.gain:.0%} shorter"


def need_line(need: Need) -> str:
    """Return how much faster a stage must become."""
    stage = _stage_and_place(need)
    if need.step_s is None:
        return f"{stage}: how much faster it must be could not be predicted"
    free = f"if it cost nothing, a step would take {seconds(need.step_s)}"
    free += "" if need.gain is None else f", {need.gain:.0%} shorter at most"
    if need.times_faster is None:
        return f"{stage}: {free}, and the loop would still wait"
    if need.times_faster > _NEARLY_FREE:
        return f"{stage}: the loop would not wait if it cost next to nothing; {free}"
    return f"{stage}: {need.times_faster:.1f} times as fast, and the loop would not wait; {free}"


def by_hand(need: Need) -> str | None:
    """Return what to try for a stage, and the most that it can gain; None if there is no general advice."""
    if need.advice is None or need.gain is None:
        return None
    return f"{_stage_and_place(need)} (at most {need.gain:.0%} shorter): {plain(need.advice)}"


def _stage_and_place(need: Need) -> str:
    stage = short(need.stage if need.name is None else f"{need.stage} {need.name}")
    return f"{stage} in {short(need.where, 60)}" if need.where else stage


def no_gain(outlook: Outlook, called: str) -> str:
    """Return a remedy that is not recommended, and why. `called`: its name, or that of several that are alike."""
    name, gain = plain(called), outlook.gain
    if outlook.refuted is not None:
        return f"{name} ({plain(outlook.refuted)})"
    if gain is None:
        return name
    return f"{name} ({'no change' if gain.value < _SMALL else f'{gain.value:.0%} shorter, but not surely'})"


def is_worse(outlook: Outlook) -> bool:
    """Return True if a step is predicted to take noticeably longer."""
    return outlook.refuted is None and outlook.gain is not None and outlook.gain.value < -_SMALL


def worse(outlook: Outlook, called: str) -> str:
    """Return a remedy that makes a step longer, and how many times as long it becomes. `called`: as for `no_gain`."""
    factor = 1.0 if outlook.gain is None else 1 - outlook.gain.value
    return f"{plain(called)} ({factor:.2g} times as long)" if factor >= 2 else f"{plain(called)} ({factor:.2f} times as long)"


def unmeasured(diagnosis: Document) -> list[str]:
    """Return what could not be measured, a phrase each."""
    verdict, missing = diagnosis.verdict, []
    if diagnosis.clock == "host" or not verdict.is_device:
        missing.append("the GPU's idle time")
    else:
        names = {"copy_s": "copies to the GPU that the loop requests", "sync_share": "where the loop waits for the GPU"}
        missing += [phrase for name, phrase in names.items() if getattr(verdict.figures, name) is None]
    if verdict.starvation is None:
        missing.append("the share of time spent waiting")
    if verdict.figures.ready_share is None:
        missing.append("whether batches were ready")
    if diagnosis.attribution is None:
        missing.append("which stage is at fault" + _because(diagnosis.why_no_attribution))
    misfit = None if diagnosis.remedies is None else diagnosis.remedies.misfit
    if misfit is not None and abs(misfit) > _MISFIT:
        missing.append(f"gains below {abs(misfit):.0%} (replayed steps of this run differ from the measured ones by as much)")
    if diagnosis.remedies is None:
        missing.append("the effect of remedies" + _because(diagnosis.why_no_remedies))
    missing += [f"{one.name}{_because(one.reason)}" for one in diagnosis.left_out]
    return missing


def applied_line(applied: AppliedRemedy, *, is_refuted: bool = False) -> str:
    """Return the predicted and the measured effect of an applied remedy. `is_refuted`: it gained nothing."""
    line = f"{short(applied.remedy)}: predicted {seconds_range(applied.predicted)} per step, "
    if applied.measured_step_s is None:
        return line + "not measured" + _because(applied.reason)
    share = "" if applied.starvation is None else f", waiting for data {percent(applied.starvation.value)} of the time"
    line += f"measured {seconds(applied.measured_step_s)}{share}"
    return line + ". It gained nothing and is no longer recommended" if is_refuted else line


def instruction_note(how: Instruction) -> str:
    """Return where code goes, and the accompanying note."""
    return plain(": ".join(filter(None, [how.where if how.code else None, how.note])))


def when(started_at: str | None) -> str:
    """Return a point in time as people write it; unchanged if it does not parse."""
    if started_at is None:
        return "not known"
    try:
        return datetime.fromisoformat(started_at).strftime("%Y-%m-%d %H:%M:%S %Z").strip()
    except ValueError:
        return plain(started_at)


def _scaled(value: float, like: float) -> tuple[str, str]:
    """Return a time in the unit and with the decimals that suit another."""
    size = abs(like)
    if size >= 3600:
        factor, unit, decimals = 1 / 3600, "h", 1
    elif size >= 1:
        factor, unit, decimals = 1.0, "s", 0 if size >= 100 else 1 if size >= 10 else 2
    elif size >= 1e-4 or not size:
        factor, unit, decimals = 1e3, "ms", 0 if size >= 0.1 or not size else 1 if size >= 0.01 else 2
    else:
        factor, unit, decimals = 1e6, "us", 0
    return f"{value * factor:.{decimals}f}", unit


def _signed(share: float) -> str:
    return f"{round(100 * share):+d}%" if round(100 * share) else "0%"


def _because(reason: str | None) -> str:
    return f" ({plain(reason)})" if reason else ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
