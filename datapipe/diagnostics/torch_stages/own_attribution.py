"""Which stage of a datapipe loader is at fault for the time its consumer waited, from its stage events. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from datapipe.diagnostics.torch_stages.charging import Span, SpanIndex, charge
from datapipe.diagnostics.torch_stages.fault import IDLE, Attribution, find_fault, in_words, shares_of
from datapipe.diagnostics.torch_stages.makeup import Stage as StageKey
from datapipe.observe import Stage, StageEvent


def attribute_events(events: Sequence[StageEvent]) -> Attribution:
    """Why the consumer of one pass waited.

    A wait is charged to what went on for the batch that was waited for, in equal parts where that was several
    blocks at once; and where nothing was, to what the threads did for other batches meanwhile.
    """
    waits = [event for event in events if event.stage is Stage.WAIT]
    work = [event for event in events if event.stage is not Stage.WAIT and event.duration_ns > 0]
    of_step: defaultdict[int, list[Span]] = defaultdict(list)
    work_ns: defaultdict[StageKey, float] = defaultdict(float)
    for event in work:
        of_step[event.step].append(_span(event))
        work_ns[event.stage.value, None] += event.duration_ns
    of_all = SpanIndex(_span(event) for event in work)
    wait_ns: defaultdict[StageKey, float] = defaultdict(float)
    for wait in waits:
        start_ns, end_ns = wait.start_ns, wait.start_ns + wait.duration_ns
        layers = [of_step[wait.step], of_all.during(start_ns, end_ns)]
        for what, charged_ns in charge(start_ns, end_ns, layers, IDLE).items():
            assert isinstance(what, tuple)
            wait_ns[what[0], what[1]] += charged_ns
    shares = shares_of(wait_ns, work_ns)
    kind, name, share = find_fault(shares)
    return Attribution(
        stage=kind,
        name=name,
        worker=None,
        wait_s=sum(wait_ns.values()) * 1e-9,
        head_of_line_s=None,
        num_batches=len(waits),
        shares=shares,
        reason=in_words(kind, name, share, worker=None, head_of_line=None),
    )


def _span(event: StageEvent) -> Span:
    return Span((event.stage.value, None), event.start_ns, event.start_ns + event.duration_ns)
