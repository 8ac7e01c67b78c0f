"""An evaluation as a table and as text."""

from typing import TYPE_CHECKING

from letheon.evaluation._baselines import ORDINARY, SAME
from letheon.evaluation._doubts import is_noticeable
from letheon.measures import Measure

if TYPE_CHECKING:
    from rich.console import RenderableType

    from letheon.evaluation._evaluation import Evaluation

__all__ = ["as_table", "as_text", "figures"]


def figures(measure: Measure) -> str:
    """Return value and interval in few digits; times in the unit that suits them."""
    scale, unit = _unit(measure)
    text = f"{measure.value * scale:.3g}{unit}"
    if measure.basis == "by proof":
        return f"{text} (proof)"
    if measure.low is None or measure.high is None or measure.low == measure.high:
        return text
    rough = "roughly " if measure.is_rough else ""
    return f"{text} {rough}[{measure.low * scale:.3g}, {measure.high * scale:.3g}]"


def _unit(measure: Measure) -> tuple[float, str]:
    if measure.unit != "s":
        return 1.0, measure.unit if measure.unit in ("x", "%") else ""
    scales = ((1.0, " s"), (1e3, " ms"), (1e6, " us"))
    return next((pair for pair in scales if measure.value * pair[0] >= 1), scales[-1])


def _lines(evaluation: "Evaluation") -> list[tuple[str, ...]]:
    """Return name, better way, both baselines' cells and the floor, for each line of the table."""
    both = [evaluation.measures[baseline] for baseline in (SAME, ORDINARY)]
    rows = []
    for name in dict.fromkeys([*both[0], *both[1]]):
        pair = [measures.get(name) for measures in both]
        better = next(measure.better for measure in pair if measure is not None)
        pair.append(evaluation.floor.get(name))
        rows.append((name, better, *("-" if m is None else figures(m) for m in pair)))
    sizes = [evaluation.storage.get(baseline) for baseline in (SAME, ORDINARY)]
    rows += [
        (evaluation.metric, "higher", *_pair(evaluation.scores), "-"),
        ("time of a retrain", "", *_pair(evaluation.seconds), "-"),
        ("state in bytes", "lower", *map(_size, sizes, ("fresh unlearner", "")), "-"),
    ]
    return rows if evaluation.floor else [row[:4] for row in rows]


def _size(size: int | None, whose: str) -> str:
    return "-" if size is None else f"{size:,}" + (f" ({whose})" if whose else "")


def _pair(measures: dict[str, Measure]) -> tuple[str, str]:
    return figures(measures[SAME]), figures(measures[ORDINARY])


def _heading(evaluation: "Evaluation") -> str:
    return f"{evaluation.title} on {evaluation.dataset}: {evaluation.requests}"


def _put_off(evaluation: "Evaluation") -> str:
    """Return when forget returns, where the request is complete noticeably later."""
    returned, whole = (evaluation.seconds.get(name) for name in ("returned", "forget"))
    if returned is None or whole is None or not is_noticeable(returned.value, whole.value):
        return ""
    return f" (forget returns after {figures(returned)}, the rest is done later)"


def _first(evaluation: "Evaluation") -> list[str]:
    """Return what the reader must know before any number."""
    return [evaluation.tested, *(f"WARNING: {each}" for each in evaluation.warnings)]


def _below(evaluation: "Evaluation") -> list[str]:
    size = evaluation.storage.get("unlearned")
    lines = [
        f"Unlearned model: {evaluation.metric} {figures(evaluation.scores['unlearned'])}, a "
        f"request takes {figures(evaluation.seconds['forget'])}{_put_off(evaluation)}"
        + (f", its state {size:,} bytes" if size is not None else "")
        + f", the first fit {figures(evaluation.seconds['fit'])}.",
        f"Guarantee: {evaluation.guarantee.kind}"
        + (
            f", epsilon {evaluation.guarantee.epsilon:g}, delta {evaluation.guarantee.delta:g}"
            if evaluation.guarantee.epsilon is not None and evaluation.guarantee.delta is not None
            else ""
        )
        + ".",
    ]
    if evaluation.equal_digests is not None:
        verdict = "equal to a fresh fit, byte for byte" if evaluation.equal_digests else "NOT EQUAL"
        lines.append(f"Digests: {verdict}, in {len(evaluation.trials)} trial(s).")
    if evaluation.strength is not None:
        lines.append(
            f"Growth of the work along the requests: {evaluation.strength.kind} by the receipts; "
            f"{evaluation.work_check}."
        )
    lines += [str(attack) for attack in evaluation.attacks]
    failed = evaluation.failed_attacks.items()
    lines += [f"Attack {name!r} could not run: {why}" for name, why in failed]
    return [*lines, "", *(f"- {line}" for line in evaluation.fairness)]


def as_table(evaluation: "Evaluation") -> "RenderableType":
    """Return the evaluation as a table of rich, with lines below it."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD)
    table.add_column("measure")
    table.add_column("better")
    for baseline in (SAME, ORDINARY):
        table.add_column(f"against the\n{baseline}", justify="right")
    if evaluation.floor:
        table.add_column("retrain against\nretrain", justify="right")
    for row in _lines(evaluation):
        table.add_row(*row)
    below = _below(evaluation)
    first = Text("\n".join(_first(evaluation)))
    return Group(Text(_heading(evaluation)), first, table, Text("\n".join(below)))


def as_text(evaluation: "Evaluation") -> str:
    """Return the evaluation in plain lines."""
    table = _lines(evaluation)
    heads = ("measure", "better", SAME, ORDINARY, "retrain against retrain")
    rows = [heads[: len(table[0])], *table]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    lines = [f"  {'  '.join(row)}".rstrip() for row in padded]
    return "\n".join([_heading(evaluation), *_first(evaluation), *lines, *_below(evaluation)])
