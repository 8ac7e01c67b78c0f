"""Totals of streams: missed breaches, retrainings, over-estimates and costs."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks._monitor_streams import KINDS, ORACLE, TOLERANCES, WATCHERS, StreamStep


class StreamRecord(NamedTuple):
    """Totals of one stream."""

    n_requests: int
    n_retrains: int
    n_stretches: int
    """Periods that ended by a retraining or by a breach without one."""
    n_missed: int
    """Periods with a breach after which the model was kept."""
    n_caught: int
    """Periods that ended by a retraining at the request that exceeded a tolerance."""
    first_missed: bool
    """Whether the first breach was missed."""
    n_open: int
    """Requests after which a tolerance was exceeded and the model was kept."""
    excess: float
    """Sum of the excess over the tolerance for these requests, as a share of it."""
    n_over: int
    n_estimates: int
    n_trainings: int


def summarize_steps(steps: Sequence[StreamStep]) -> StreamRecord:
    """Return the record of one stream."""
    missed = [any(_is_open(step) for step in stretch) for stretch in _split_periods(steps)]
    ended = [stretch[-1].retrained for stretch in _split_periods(steps)]
    over = [
        step.estimate[name] >= step.truth[name]
        for step in steps
        for name in TOLERANCES.get_watched()
        if step.estimate
    ]
    return StreamRecord(
        n_requests=len(steps),
        n_retrains=sum(step.retrained for step in steps),
        n_stretches=sum(done or lost for done, lost in zip(ended, missed, strict=True)),
        n_missed=sum(missed),
        n_caught=sum(
            stretch[-1].retrained and stretch[-1].is_breach and not lost
            for stretch, lost in zip(_split_periods(steps), missed, strict=True)
        ),
        first_missed=missed[0],
        n_open=sum(_is_open(step) for step in steps),
        excess=sum(step.excess for step in steps if _is_open(step)),
        n_over=sum(over),
        n_estimates=len(over),
        n_trainings=sum(step.n_trainings for step in steps),
    )


def _is_open(step: StreamStep) -> bool:
    return step.is_breach and not step.retrained


def _split_periods(steps: Sequence[StreamStep]) -> list[list[StreamStep]]:
    groups: list[list[StreamStep]] = [[]]
    for step in steps:
        groups[-1].append(step)
        if step.retrained:
            groups.append([])
    return [stretch for stretch in groups if stretch]


class StreamTotal(NamedTuple):
    """All streams of one kind under one watcher."""

    n_streams: int
    n_breaching: int
    """Streams in which the oracle found a breach."""
    retrains: float
    """Per 100 requests."""
    trainings: float
    """Per 100 requests, rehearsals after retrains included."""
    n_stretches: int
    missed: float
    """Periods with a breach after which the model was kept, in per cent."""
    n_breaches: int
    """Periods in which a true value exceeded its tolerance."""
    breaches_missed: float
    """Breaches without a retraining at the same request, in per cent."""
    first_missed: float
    """First breaches that were missed, in per cent of the streams that have one."""
    open_requests: float
    """Requests after which a tolerance was exceeded and the model was kept, in per cent."""
    excess: float
    """Excess over the tolerance times requests, per 100 requests."""
    over: float
    """Estimates that were not below the truth, in per cent."""


def total_streams(records: Iterable[StreamRecord], oracle: Iterable[StreamRecord]) -> StreamTotal:
    """Return the totals of streams, compared with the oracle on the same streams."""
    own, best = list(records), list(oracle)
    n_requests = sum(r.n_requests for r in own)
    n_stretches, n_breaching = (
        sum(r.n_stretches for r in own),
        sum(r.n_retrains > 0 for r in best),
    )
    n_breaches = sum(r.n_missed + r.n_caught for r in own)
    n_estimates = sum(r.n_estimates for r in own)
    first = sum(r.first_missed and b.n_retrains > 0 for r, b in zip(own, best, strict=True))
    return StreamTotal(
        n_streams=len(own),
        n_breaching=n_breaching,
        retrains=100 * sum(r.n_retrains for r in own) / n_requests,
        trainings=100 * sum(r.n_trainings for r in own) / n_requests,
        n_stretches=n_stretches,
        n_breaches=n_breaches,
        breaches_missed=100 * sum(r.n_missed for r in own) / max(n_breaches, 1),
        missed=100 * sum(r.n_missed for r in own) / max(n_stretches, 1),
        first_missed=100 * first / max(n_breaching, 1),
        open_requests=100 * sum(r.n_open for r in own) / n_requests,
        excess=100 * sum(r.excess for r in own) / n_requests,
        over=100 * sum(r.n_over for r in own) / max(n_estimates, 1),
    )


ACCEPTED = 5.0


def draw_totals(totals: Mapping[tuple[str, str], StreamTotal], file: Path) -> None:
    """Draw breaches missed and retrains, one group of bars per kind of stream."""
    from matplotlib.figure import Figure

    from letheon.plot._axes import COLOURS

    figure = Figure(figsize=(12, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = (*WATCHERS, ORACLE)
    for number, name in enumerate(names):
        places = [at + 0.2 * (number - 1.5) for at in range(len(KINDS))]
        shown = [totals[name, kind] for kind in KINDS]
        colour = COLOURS[number]
        if name != ORACLE:
            left.bar(places, [t.breaches_missed for t in shown], 0.18, color=colour, label=name)
        right.bar(places, [t.retrains for t in shown], 0.18, color=colour, label=name)
    left.axhline(ACCEPTED, color="0.3", linestyle="--", linewidth=1, label="accepted: 5 %")
    left.set(title="Breaches that were missed", ylabel="% of breaches")
    right.set(title="Retrains", ylabel="per 100 requests")
    for ax in (left, right):
        ax.set_xticks(range(len(KINDS)), KINDS)
        ax.grid(axis="y", alpha=0.3)
    handles, labels = left.get_legend_handles_labels()
    oracle = right.get_legend_handles_labels()
    figure.legend(
        [*handles, oracle[0][-1]],
        [*labels, oracle[1][-1]],
        loc="outside lower center",
        ncols=5,
        frameon=False,
    )
    figure.savefig(file, dpi=110)
