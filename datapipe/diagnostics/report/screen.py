"""Render a diagnosis as one screen of a terminal: 24 lines of 100 columns, the verdict first. Pure."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Callable, Mapping
from typing import TextIO, TypeAlias

from datapipe.analysis.judge.verdict import VerdictKind
from datapipe.analysis.predict.instructions import Instruction, Snippet
from datapipe.analysis.predict.remedies import NO_REMEDY, NOTHING
from datapipe.diagnostics.document import Document, Readable, Remedies, read_document
from datapipe.diagnostics.report import words
from datapipe.diagnostics.report.grouping import RemedyGroup, grouped
from datapipe.diagnostics.report.model_words import batch_size_lines, model_lines

MAX_LINES, WIDTH = 24, 100
_MAX_STAGES, _FEW_STAGES, _MAX_HOW, _BAR, _LABEL = 4, 2, 4, 40, 36
_MAX_SIZES = 4  # of batches that were tried
_INDENT = " " * 5  # of the instructions of a remedy
_COLOURS = {"high": "1;31", "moderate": "1;33", "fine": "1;32", None: "1"}
_LONGEST_NAME = 44  # of what would make it slower: with its factor and with how many more there are it fits into a line


Paint: TypeAlias = Callable[[str, str], str]  # adds a colour, by its code, to a line; or leaves the line as it is


def _painted(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m"


def takes_colours(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Return True if this stream takes colours: a terminal that is not dumb, and NO_COLOR not set (no-color.org)."""
    return stream.isatty() and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


def screen(diagnosis: Readable, *, page: str | None = None, colours: bool = False) -> str:
    """Return at most 24 lines of at most 100 columns; only the path of the page is never cut.

    `page`: the path of the page, if there is one. `colours`: with escape sequences, see `takes_colours`.
    Raises FormatError if `diagnosis` is not of this version.
    """
    read = read_document(diagnosis)
    paint: Paint = _painted if colours else lambda text, code: text
    top = _verdict(read, paint) + _at_fault(read, paint)
    bottom = _applied(read) + _missing(read) + _troubles(read, paint)
    bottom += [] if page is None else [f"Page: {words.plain(page)}"]
    savings = _savings(read, paint, has_more=read.remedies is not None)
    worse = _worse(read.remedies)
    room = MAX_LINES - len(top) - len(savings) - len(worse) - len(bottom)
    lines = top + savings + _help(read, paint, room) + worse
    while len(lines) + len(bottom) > MAX_LINES and "" in lines:
        lines.remove("")
    lines = lines[: MAX_LINES - len(bottom)] + bottom
    return "\n".join(lines).rstrip("\n")


def _verdict(read: Document, paint: Paint) -> list[str]:
    first, *rest = _wrap(words.headline(read), num=2)
    lines = [paint(line, _COLOURS.get(read.severity, "1")) for line in (first, *rest)]
    lines += _wrap(words.detail(read), num=3, indent=2)
    lines += _wrap(words.late_rank_line(read) or "", num=2, indent=2)
    lines += _wrap(words.ranks_line(read) or "", num=1, indent=2)
    for line in model_lines(read):
        lines += _wrap(line, num=3, indent=2)
    for line in batch_size_lines(read)[:_MAX_SIZES]:
        lines += _wrap(line, num=1, indent=2)
    lines += _wrap(words.levels_line(read.regimes) or "", num=2, indent=2)
    if read.run is not None:
        for line in filter(None, [words.run_line(read.run), *words.loader_lines(read)[:2]]):
            lines += _wrap(line, num=2, indent=2)
    if read.verdict.kind is VerdictKind.SYNC_EXPOSED and read.syncs:
        calls = ", ".join(f"{name} {words.times(one.num)}" for name, one in read.longest_syncs)
        lines += _wrap(f"The loop waits for the GPU in {calls}", num=1, indent=2)
    return lines


def _at_fault(read: Document, paint: Paint) -> list[str]:
    attribution = read.attribution
    if attribution is None:
        return []
    label = "At fault: " if words.is_starved(read.verdict) else "What waiting there is: "
    label = "" if attribution.fault is None else label
    lines = ["", paint(_cut(label + words.fault_line(attribution)), "1")]
    shown = [stage for stage in attribution.stages if stage.share is not None]
    has_needs = read.remedies is not None and read.remedies.best == NO_REMEDY and read.remedies.needs
    num = _FEW_STAGES if has_needs or read.straggler else _MAX_STAGES  # the needs, and a late rank's line, name stages again
    for stage in shown[:num]:
        share = stage.share or 0.0
        name = _cut(words.stage_name(stage), _LABEL)
        bar = "#" * round(min(1.0, share) * _BAR)
        lines.append(f"  {name:<{_LABEL}} {bar:.<{_BAR}} {share:>6.1%}  {_seconds(stage.wait_s)}".rstrip())
    if shown[num:]:
        rest = sum(stage.share or 0.0 for stage in shown[num:])
        lines.append(f"  {len(shown) - num} others, {rest:.1%}")
    slow = None if attribution.worker is None else f"worker {attribution.worker} is much slower than the others"
    lines += _wrap("; ".join(filter(None, [slow, words.head_of_line(attribution)])), num=1, indent=2)
    return lines + _wrap(words.contention_line(read) or "", num=2, indent=2)


def _help(read: Document, paint: Paint, room: int) -> list[str]:
    """Return `room` lines of remedies, the best first.

    Listing all remedies comes before saying how each is done, and the best one's instructions before the others'. A command is
    given in full or not at all: part of it may do harm.
    """
    what_if = read.remedies
    if what_if is None:
        return []
    if what_if.best == NOTHING:
        title = words.nothing_line(read)
    elif what_if.best == NO_REMEDY:
        title = "What would help: no change that is known for this loader is predicted to help."
    else:
        title = "What would help, best first"
    now_s = what_if.measured_step_s
    if now_s is None and what_if.now is not None:
        now_s = what_if.now.step_s.value
    if now_s is not None and what_if.best not in (NOTHING, NO_REMEDY):
        title += f" (a step takes {words.seconds(now_s)} now)"
    lines = ["", paint(_cut(title), "1")]
    room -= len(lines)
    if what_if.best == NO_REMEDY:
        lines += _needs(what_if, room)
        room -= len(lines) - 2
    groups = grouped(what_if.best_first)
    hows = [_how(group.first.instruction) for group in groups]
    hows = [how if len(how) <= _MAX_HOW else [f"{_INDENT}(how: see the page)"] for how in hows]
    for_titles = room - len(hows[0]) if hows and room - len(hows[0]) >= min(2, len(hows)) else room
    num_shown = len(hows) if len(hows) <= for_titles else max(0, for_titles - 1)
    num_more = len(hows) - num_shown
    spare = room - num_shown - (num_more > 0)
    for number, (group, how) in enumerate(zip(groups[:num_shown], hows, strict=False), 1):
        how = how if len(how) <= spare else []
        spare -= len(how)
        lines += [_remedy(number, group), *how]
    first = next(filter(None, map(words.by_hand, what_if.needs)), None) if what_if.best not in (NOTHING, NO_REMEDY) else None
    if first is not None and spare > 0:
        shown = _wrap(f"By hand: {first}", num=min(2, spare), indent=2)
        lines += shown
        spare -= len(shown)
    if num_more and room > 0:
        lines.append(f"  {num_more} more in the page")
    elif what_if.within_noise and spare > 0:
        others = grouped(one for one in what_if.within_noise if not words.is_worse(one))
        lines += _all_named("Not recommended: ", [words.no_gain(group.first, group.name) for group in others], num=min(2, spare))
    return lines


def _worse(what_if: Remedies | None) -> list[str]:
    """Return one line of what would make a step longer, the worst first, and how many times as long; none if nothing would."""
    found = [] if what_if is None else [one for one in what_if.within_noise if words.is_worse(one)]
    groups = sorted(grouped(found), key=lambda group: -group.first.step_s.value)
    names = [words.worse(group.first, words.short(group.name, _LONGEST_NAME)) for group in groups]
    return _all_named("Would make it slower: ", names, num=1)


def _all_named(title: str, names: list[str], *, num: int) -> list[str]:
    """Return at most `num` lines that name as many as fit, whole, and say how many more there are; none without names."""
    for count in range(len(names), 0, -1):
        num_more = len(names) - count
        for more in ([f"{num_more} more in the page"], [f"{num_more} more"]) if num_more else ([],):
            text = words.plain(title + ", ".join([*names[:count], *more]))
            lines = textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ")
            if len(lines) <= num:
                return lines
    return []


def _savings(read: Document, paint: Paint, *, has_more: bool) -> list[str]:
    """Return what would shorten the run outside of its steady steps."""
    if read.run is None or not read.run.savings:
        return []
    saving = read.run.savings[0]
    title = f"What would shorten the run: {words.saving_line(saving, read.run.wall_s)}"
    return ["", paint(_cut(title), "1"), *_wrap(words.instruction_note(saving.instruction), num=2, indent=len(_INDENT))]


def _needs(what_if: Remedies, room: int) -> list[str]:
    """Return what must become faster, each in at most two lines."""
    lines: list[str] = []
    for need in what_if.needs:
        wrapped, advice = _wrap(f"- {words.need_line(need)}", num=2, indent=2), need.advice
        if len(lines) + len(wrapped) > room - 1:
            break
        lines += wrapped
        if advice is not None and len(lines) < room - 1:
            lines += _wrap(f"to try: {advice}", num=min(2, room - 1 - len(lines)), indent=4)
    return lines


def _remedy(number: int, group: RemedyGroup) -> str:
    outlook = group.first
    text = f"{number:>3}. {_cut(words.plain(group.name), _LABEL):<{_LABEL}} {words.seconds(outlook.step_s.value):>8}"
    text += "" if outlook.gain is None else f"  {words.change(outlook.gain)}"
    text += ", changes what is trained" if outlook.changes_results else ", takes other machines" if outlook.needs_machines else ""
    return _cut(text)


def _how(how: Instruction) -> list[str]:
    """Return the lines of an instruction: commands after a `$`, Python unchanged, and a note as a comment.

    The note goes to the end of the last line, if it fits there.
    """
    lines = [line for snippet in how.code for line in _code(snippet)]
    comment = words.instruction_note(how)
    if not comment or not lines:
        return _wrap(comment, num=_MAX_HOW + 1, indent=len(_INDENT))
    if any(len(line) > WIDTH for line in lines):
        return lines + [""] * _MAX_HOW  # too long, as it would have to be cut
    last = f"{lines[-1]}  # {comment}"
    return [*lines[:-1], last] if len(last) <= WIDTH else [*lines, _cut(f"{_INDENT}# {comment}")]


def _code(snippet: Snippet) -> list[str]:
    if snippet.language == "python":
        return [_INDENT + words.plain(line) for line in snippet.text.splitlines()]
    lines = [f"{_INDENT}$"]
    for word in _words_of(snippet.text):
        if len(lines[-1]) + len(word) + 3 > WIDTH and lines[-1] != f"{_INDENT}$":
            lines[-1] += " \\"
            lines.append(f"{_INDENT} ")
        lines[-1] += f" {word}"
    return lines


def _words_of(command: str) -> list[str]:
    """Return the words of a shell command, each of which may stand on a line of its own."""
    try:
        return [shlex.quote(words.plain(word)) for word in shlex.split(command)]
    except ValueError:  # an unterminated quotation
        return [words.plain(command)]


def _applied(read: Document) -> list[str]:
    if read.applied is None:
        return []
    return ["", *_wrap("Applied: " + words.applied_line(read.applied, is_refuted=read.is_applied_refuted), num=2)]


def _missing(read: Document) -> list[str]:
    missing = words.unmeasured(read)
    return ["", *_wrap("Not measured: " + "; ".join(missing), num=2)] if missing else [""]


def _troubles(read: Document, paint: Paint) -> list[str]:
    if not read.troubles:
        return []
    more = f" (and {len(read.troubles) - 1} more)" if len(read.troubles) > 1 else ""
    first = _cut(f"Trouble: {words.plain(read.troubles[0])}", WIDTH - len(more)) + more
    return [paint(first, "33")]


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{words.seconds(value):>7}"


def _cut(text: str, width: int = WIDTH) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _wrap(text: str, *, num: int, indent: int = 0) -> list[str]:
    """Return at most `num` lines; words, and so commands and paths, are broken only if longer than a line."""
    margin = " " * indent
    return textwrap.wrap(
        words.plain(text),
        WIDTH,
        initial_indent=margin,
        subsequent_indent=margin,
        max_lines=num,
        placeholder=" ...",
        break_on_hyphens=False,
    )
