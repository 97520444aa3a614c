"""A diagnosis as one HTML page that needs nothing but itself: no network, no other files. Pure.

The main facts are text and drawings that need no script; `page.js` adds zooming and figures under the pointer.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from importlib import resources

from datapipe.diagnostics.document import Document, Readable, read_document
from datapipe.diagnostics.remedies import NO_REMEDY, NOTHING
from datapipe.diagnostics.report import words
from datapipe.diagnostics.report.bars import stage_bars, step_parts, what_if_bars
from datapipe.diagnostics.report.markup import Child, Markup, element, join
from datapipe.diagnostics.report.step_chart import step_chart
from datapipe.diagnostics.report.tables import environment_table, figures_table, loaders_table, pairs_table, ranks_table

_SYNCS = "Such waits bring to light the waiting for data that the GPU's work would otherwise hide."
_STEPS = "How long each step took, and the part of it that went by waiting. Shaded steps do not count for the verdict."
_OF_STEADY = "Means per step, over the steady steps."


def page(diagnosis: Readable) -> str:
    """The whole page, to be written as UTF-8.

    Below 400 KB with 2,000 steps. Its own policy forbids it to load anything and to run any script but
    its own; names in the document are escaped. Raises FormatError where `diagnosis` is none of this version.
    """
    read = read_document(diagnosis)
    style, script = _resource("page.css"), _resource("page.js")
    share = read.verdict.starvation
    title = f"datapipe: {read.verdict.kind.value}" + ("" if share is None else f", {share.value:.1%}")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(style)),
    )
    body = element("body", element("main", _sections(read)), element("script", Markup(script)))
    return "<!doctype html>\n" + element("html", head, body, lang="en").text + "\n"


def _sections(read: Document) -> Markup:
    on_device = read.verdict.is_device
    return join(
        _verdict(read),
        _fault(read),
        _syncs(read),
        _help(read),
        _whole_run(read),
        _chart("Steps", step_chart(read.steps.rows if read.steps else (), on_device=on_device), _STEPS, "No step was kept."),
        _section("Ranks", ranks_table(read.ranks)) if read.ranks else None,
        _section("Loaders", loaders_table(read.loaders)) if read.loaders else None,
        _section(
            "Figures", element("details", element("summary", "all that was measured"), figures_table(read.verdict)), _OF_STEADY
        ),
        _troubles(read),
        _section("Run", join(pairs_table(_run(read)), environment_table(read.environment) if read.environment else None)),
    )


def _verdict(read: Document) -> Markup:
    verdict = read.verdict
    severity = verdict.severity if verdict.severity in ("fine", "moderate", "high") else "unknown"
    missing, tiles, command = words.unmeasured(read), _tiles(read), shlex.join(read.command)
    return element(
        "header",
        element("p", element("span", verdict.kind.value, class_="badge"), element("code", command), class_="over"),
        element("h1", words.headline(read)),
        element("p", words.detail(read)),
        None if (levels := words.levels_line(read.regimes)) is None else element("p", levels),
        element("div", tiles, class_="tiles") if tiles else None,
        step_parts(verdict),
        element("p", "Not measured: " + "; ".join(missing) + ".", class_="note") if missing else None,
        element("p", words.INTERVALS, class_="note") if verdict.starvation is not None else None,
        class_=f"severity-{severity}",
    )


def _tiles(read: Document) -> list[Markup]:
    verdict, share = read.verdict, read.verdict.starvation
    step_s, rate = verdict.figures.step_s, read.samples_per_s
    tiles = []
    if share is not None:
        tiles.append(_tile("waiting for data", words.percent(share.value), f"{share.low:.1%} to {share.high:.1%}"))
    if step_s is not None:
        tiles.append(_tile("a step", words.seconds(step_s), f"{1 / step_s:,.3g} steps/s" if step_s else None))
    if rate is not None:
        tiles.append(_tile("rate", f"{rate:,.0f}/s", "samples" if len(read.ranks) < 2 else "samples, of one rank"))
    if read.remedies is not None:
        best = next((one for one in read.remedies.predictions if one.name == read.remedies.best), None)
        gain = f"steps {best.gain.value:.0%} shorter" if best and best.gain else None
        tiles.append(_tile("what to do", words.short(read.remedies.best, 60), gain))
    return tiles


def _tile(label: str, value: str, note: str | None) -> Markup:
    size = "long" if len(value) > 14 else None
    return element(
        "div", element("small", label), element("strong", value, class_=size), element("small", note or ""), class_="tile"
    )


def _fault(read: Document) -> Markup:
    title = "What is at fault" if words.is_starved(read.verdict) else "Where waiting comes from"
    if read.attribution is None:
        why = f": {words.plain(read.why_no_attribution)}" if read.why_no_attribution else ""
        return _section(title, f"It was not measured which stage is at fault{why}.")
    notes = [words.plain(read.attribution.reason)]
    if read.attribution.worker is not None and f"Worker {read.attribution.worker}" not in notes[0]:
        notes.append(f"Worker {read.attribution.worker} is much slower than the others.")
    if read.attribution.head_of_line_s:
        waited = words.seconds(read.attribution.head_of_line_s)
        notes.append(f"For {waited} of it a later batch was ready, and the next one was not.")
    bars = stage_bars(read.attribution) if read.attribution.stages else None
    return _section(title, bars, " ".join(notes))


def _help(read: Document) -> Markup:
    title = "What would help"
    applied = None if read.applied is None else element("p", f"Applied: {words.applied_line(read.applied)}.")
    if read.remedies is None:
        why = f": {words.plain(read.why_no_remedies)}" if read.why_no_remedies else ""
        return _section(title, applied, f"It was not predicted what remedies would bring{why}.")
    text = {
        NOTHING: "Nothing needs to change: the loop hardly waits for data. ",
        NO_REMEDY: "No change that is known for this loader is predicted to help. ",
    }.get(
        read.remedies.best,
        "Predicted by replaying the measured batches with each remedy. The best comes first; of those as good, the easiest. ",
    )
    text += "The first part of a bar is waiting for data; thin lines are the ranges of the predictions."
    left_out = None
    if read.left_out:
        reasons = (element("li", f"{one.name}: {one.reason}" if one.name else one.reason) for one in read.left_out)
        left_out = join(element("p", "Not tried:", class_="note"), element("ul", reasons))
    needs = None
    if read.remedies.needs:
        lines = (element("li", words.need_line(need)) for need in read.remedies.needs)
        needs = join(element("p", "What would have to become faster:", class_="note"), element("ul", lines))
    bars = what_if_bars(read.remedies, read.applied, read.verdict.starvation)
    return _section(title, join(applied, needs, bars, left_out), text)


def _whole_run(read: Document) -> Markup | None:
    """Where the time of the run went, and what would shorten it outside of its steady steps."""
    run = read.run
    if run is None or not run.wall_s:
        return None
    rows = [(name, f"{words.seconds(spent)}, {spent / run.wall_s:.0%}") for name, spent in run.parts.items()]
    lines = [*words.loader_lines(read), *(words.saving_line(saving, run.wall_s) for saving in run.savings)]
    notes = element("ul", (element("li", line) for line in lines)) if lines else None
    return _section("The whole run", join(pairs_table(rows), notes), f"Where its {words.seconds(run.wall_s)} went.")


def _syncs(read: Document) -> Markup | None:
    if not read.syncs:
        return None
    rows = [(name, f"{words.times(one.num)}, {words.seconds(one.host_s)} in all") for name, one in read.longest_syncs]
    return _section("Where the loop waits for the GPU", pairs_table(rows), _SYNCS)


def _troubles(read: Document) -> Markup | None:
    if not read.troubles:
        return None
    return _section("Troubles", element("ul", (element("li", trouble) for trouble in read.troubles)))


def _run(read: Document) -> list[tuple[str, str]]:
    return [
        ("Command", shlex.join(read.command)),
        ("Started", words.when(read.started_at)),
        ("Took", words.seconds(read.duration_s)),
        ("Exit status", "not known" if read.exit_code is None else str(read.exit_code)),
        ("Clock", "the GPU's (CUDA events)" if read.clock == "cuda" else "the host's; no GPU was measured"),
    ]


def _chart(title: str, chart: Markup | None, text: str, nothing: str) -> Markup:
    return _section(title, nothing) if chart is None else _section(title, chart, text)


def _section(title: str, content: Child, text: str | None = None, /) -> Markup:
    content = element("p", content) if isinstance(content, str) else content
    return element("section", element("h2", title), element("p", text) if text else None, content)


def _resource(name: str) -> str:
    return (resources.files(__package__) / name).read_text("utf-8")


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
