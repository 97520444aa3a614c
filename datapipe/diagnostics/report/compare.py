"""Compare two diagnoses: what changed, in a sentence and in numbers. Pure."""

from __future__ import annotations

from typing import Any

from datapipe.analysis.judge.bootstrap import Interval
from datapipe.diagnostics.document import VERSION, Document, Readable, read_document
from datapipe.diagnostics.report import words
from datapipe.errors import FormatError

_SAME = 0.02  # of a step: less does not count as a change
_MAX_STAGES = 5


def differences(before: Readable, after: Readable) -> dict[str, Any]:
    """Return each figure as {before, after, change}, JSON-safe, null if either was not measured.

    `change` of starvation and of stages is a difference of shares, that of times and rates a factor less 1: -0.3 is 30%
    less. `starvation.is_clear`: the intervals do not overlap. `cautions`: what else differs between the two runs.
    Raises FormatError if one is not a diagnosis of this version, or their versions differ.
    """
    old, new = _read_both(before, after)
    shares = old.verdict.starvation, new.verdict.starvation
    starvation = _difference(_value(shares[0]), _value(shares[1]))
    starvation["is_clear"] = None if None in shares else _is_apart(*shares)
    return {
        "version": VERSION,
        "verdict": {"before": old.verdict.kind.value, "after": new.verdict.kind.value},
        "severity": {"before": old.verdict.severity, "after": new.verdict.severity},
        "starvation": starvation,
        "step_s": _factor(old.verdict.figures.step_s, new.verdict.figures.step_s),
        "data_s": _factor(old.verdict.figures.data_s, new.verdict.figures.data_s),
        "samples_per_s": _factor(old.samples_per_s, new.samples_per_s),
        "fault": {"before": _fault(old), "after": _fault(new)},
        "stages": _stages(old, new),
        "cautions": _cautions(old, new),
        "sentence": _sentence(old, new),
    }


def compare(before: Readable, after: Readable) -> str:
    """Return `differences` as text for people, the sentence first."""
    found = differences(before, after)
    lines = [found["sentence"], ""]
    lines += [
        _row("verdict", found["verdict"]["before"], found["verdict"]["after"], ""),
        _row("waiting for data", *_shares(found["starvation"])),
        _row("step", *_times(found["step_s"])),
        _row("of it waiting", *_times(found["data_s"])),
        _row("samples/s", *_rates(found["samples_per_s"])),
        _row("at fault", found["fault"]["before"] or "-", found["fault"]["after"] or "-", ""),
    ]
    if found["stages"]:
        lines += ["", "Stages, as shares of the waiting:"]
        lines += [_row(f"  {words.short(stage['name'], 30)}", *_shares(stage)) for stage in found["stages"][:_MAX_STAGES]]
        more = len(found["stages"]) - _MAX_STAGES
        lines += [f"  {more} more"] if more > 0 else []
    lines += ["", *(f"Caution: {caution}" for caution in found["cautions"])] if found["cautions"] else []
    return "\n".join(lines)


def _read_both(before: Readable, after: Readable) -> tuple[Document, Document]:
    versions = [one.get("version") if hasattr(one, "get") else None for one in (before, after)]
    if None not in versions and versions[0] != versions[1]:
        raise FormatError(
            f"the first diagnosis is of version {versions[0]}, the second of version {versions[1]}, whose figures differ in "
            "meaning; diagnose the older run again"
        )
    return read_document(before), read_document(after)


def _sentence(old: Document, new: Document) -> str:
    return " ".join(part for part in (_starvation_sentence(old, new), _step_sentence(old, new)) if part)


def _starvation_sentence(old: Document, new: Document) -> str:
    shares = old.verdict.starvation, new.verdict.starvation
    if shares[0] is None or shares[1] is None:
        which = "either run" if shares == (None, None) else "the first run" if shares[0] is None else "the second run"
        return f"The time spent waiting for data was not measured in {which}, so the two cannot be compared."
    who = words.waiter(new.verdict) if old.verdict.is_device == new.verdict.is_device else "the training"
    now, then = shares[1].value, shares[0].value
    waits = f"{who} waits for data {now:.1%} of the time"
    if not _is_apart(*shares):
        return f"No clear change: {waits}, was {then:.1%}, and the ranges overlap."
    return f"{waits[0].upper()}{waits[1:]}, {'less' if now < then else 'more'} than the {then:.1%} before."


def _step_sentence(old: Document, new: Document) -> str:
    rates, steps = (old.samples_per_s, new.samples_per_s), (old.verdict.figures.step_s, new.verdict.figures.step_s)
    # With another batch size steps cannot be compared, but rates can.
    if rates[0] and rates[1]:
        gain = rates[1] / rates[0] - 1
        if abs(gain) < _SAME:
            return f"It trains as fast as before, {rates[1]:,.0f} samples/s."
        return f"It trains {abs(gain):.0%} {'faster' if gain > 0 else 'slower'}: {rates[1]:,.0f} samples/s, were {rates[0]:,.0f}."
    if not steps[0] or not steps[1]:
        return ""
    gain = 1 - steps[1] / steps[0]
    if abs(gain) < _SAME:
        return f"Steps take as long as before, {words.seconds(steps[1])}."
    now, then = words.seconds(steps[1]), words.seconds(steps[0])
    return f"Steps are {abs(gain):.0%} {'shorter' if gain > 0 else 'longer'}: {now}, were {then}."


def _cautions(old: Document, new: Document) -> list[str]:
    found = []
    measured = None not in (old.verdict.starvation, new.verdict.starvation)
    if measured and old.verdict.is_device != new.verdict.is_device:
        found.append("one run was measured on the GPU, the other by the host's clock: shares of waiting do not mean the same")
    pairs = {
        "command": (" ".join(old.command), " ".join(new.command)),
        "batch size": (old.batch_size, new.batch_size),
        "number of ranks": (len(old.ranks) or None, len(new.ranks) or None),
        "host": (old.environment.get("host"), new.environment.get("host")),
        "GPU": (old.environment.get("gpu"), new.environment.get("gpu")),
        "cores": (old.environment.get("cores"), new.environment.get("cores")),
    }
    for name, (then, now) in pairs.items():
        if then != now and then is not None and now is not None:
            found.append(f"the {name} differs: {words.short(then, 60)} before, {words.short(now, 60)} after")
    for which, one in (("before", old), ("after", new)):
        if one.exit_code not in (0, None):
            found.append(f"the run {which} ended with exit status {one.exit_code}")
    return found


def _stages(old: Document, new: Document) -> list[dict[str, Any]]:
    """Return the stages of either, the largest change first."""
    shares = [
        {words.stage_name(stage): stage.share for stage in (one.attribution.stages if one.attribution else ())}
        for one in (old, new)
    ]
    names = list(dict.fromkeys([*shares[0], *shares[1]]))
    # A stage that one run does not name had no part in its waiting, if that was measured at all.
    absent = [0.0 if one.attribution else None for one in (old, new)]
    found = [{"name": name, **_difference(shares[0].get(name, absent[0]), shares[1].get(name, absent[1]))} for name in names]
    return sorted(found, key=lambda one: -abs(one["change"] or 0.0))


def _fault(one: Document) -> str | None:
    return None if one.attribution is None or one.attribution.fault is None else words.plain(one.attribution.fault)


def _difference(before: float | None, after: float | None) -> dict[str, Any]:
    return {"before": before, "after": after, "change": None if before is None or after is None else after - before}


def _factor(before: float | None, after: float | None) -> dict[str, Any]:
    return {"before": before, "after": after, "change": None if not before or after is None else after / before - 1}


def _value(share: Interval | None) -> float | None:
    return None if share is None else share.value


def _is_apart(before: Interval | None, after: Interval | None) -> bool:
    return before is not None and after is not None and (before.high < after.low or after.high < before.low)


def _row(name: str, before: str, after: str, change: str) -> str:
    return f"{name:<32} {before:>18} -> {after:<18} {change}".rstrip()


def _shares(found: dict[str, Any]) -> tuple[str, str, str]:
    change = "" if found["change"] is None else f"{100 * found['change']:+.1f} points"
    return words.percent(found["before"]), words.percent(found["after"]), change


def _times(found: dict[str, Any]) -> tuple[str, str, str]:
    return words.seconds(found["before"]), words.seconds(found["after"]), _relative(found)


def _rates(found: dict[str, Any]) -> tuple[str, str, str]:
    before, after = ("not known" if value is None else f"{value:,.0f}" for value in (found["before"], found["after"]))
    return before, after, _relative(found)


def _relative(found: dict[str, Any]) -> str:
    return "" if found["change"] is None else f"{found['change']:+.1%}"
