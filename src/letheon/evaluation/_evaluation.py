"""The result of an evaluation: to be read, drawn, written and read back."""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from letheon.evaluation._baselines import ORDINARY, SAME
from letheon.evaluation._trial import Trial
from letheon.guarantee import Guarantee
from letheon.measures import Measure, Strength, from_plain
from letheon.measures.attacks import AttackResult

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType

    from letheon.plot import EvaluationDisplay


def make_frame(
    rows: list[dict[str, Any]], otherwise: str = "; to_dict() has the same content"
) -> Any:
    """Return rows as a pandas frame, or say how to get pandas and what to take `otherwise`."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError(
            f"to_frame needs pandas, which is not installed: pip install pandas{otherwise}"
        ) from error
    return pd.DataFrame(rows)


# What the names of attacks of the canary test begin with.
CANARY = "canary "
_NOTICEABLE = 1.25


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The four properties of one unlearner on one stream of requests.

    Attributes
    ----------
    title, method : str
        How the unlearner is called here, and its method (`MethodFacts.method`).
    dataset : str
        Name of the data.
    settings : dict
        Parameters of the unlearner that differ from their defaults.
    requests : str
        The deletion distribution in words.
    n_requests, n_people, n_rows : int
        Requests and people in each trial, and training rows at the start.
    measures : dict of str to dict of str to Measure
        For each baseline, ``"same algorithm"`` and ``"ordinary model"``, its measures by name:
        efficiency, effectiveness, score lost, consistencies, certifiability.
    floor : dict of str to Measure
        Measures of one retrain against another, for approximate methods: their randomness alone
        gives so much. Empty for exact methods.
    baselines : dict of str to str
        What each baseline is and how it was chosen.
    seconds : dict of str to Measure
        Mean time of a fit, of a request (``"forget"``), until `forget` returned (``"returned"``),
        and of a retrain of each baseline.
    scores : dict of str to Measure
        Metric on test rows: of the unlearned model and of both baselines.
    metric : str
        Name of the metric.
    storage : dict of str to int
        Bytes of each model's state after the last request, in the last trial. That of the same
        algorithm is a fresh unlearner's, with all that it needs for removals, whoever was
        faster to train.
    work : Measure
        Training work of one request as a share of retraining, as the receipts count it.
    strength : Strength or None
        Strong or weak, from the counted work; None for fewer than 16 requests of one size;
        undecided where processor time contradicts the receipts.
    work_check : str
        How the growth that receipts count compares with processor time.
    guarantee : Guarantee
        What the method claims about the model after the last request of the last trial.
    equal_digests : bool or None
        Whether the model had digest and answers of a fresh fit in every trial; None for
        approximate ones.
    attacks : tuple of AttackResult
        What attackers found; the canary test comes first.
    failed_attacks : dict of str to str
        Attacks that could not run, and why.
    fairness : tuple of str
        How the comparison was kept fair.
    trials : tuple of Trial
        One for each seed.
    warnings : tuple of str
        What speaks against the method or its figures; empty if nothing was found.
    """

    title: str
    method: str
    dataset: str
    settings: dict[str, Any]
    requests: str
    n_requests: int
    n_people: int
    n_rows: int
    measures: dict[str, dict[str, Measure]]
    floor: dict[str, Measure]
    baselines: dict[str, str]
    seconds: dict[str, Measure]
    scores: dict[str, Measure]
    metric: str
    storage: dict[str, int]
    work: Measure
    strength: Strength | None
    guarantee: Guarantee
    equal_digests: bool | None
    attacks: tuple[AttackResult, ...]
    fairness: tuple[str, ...]
    trials: tuple[Trial, ...] = field(repr=False)
    failed_attacks: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    work_check: str = "not compared with times"

    @property
    def tested(self) -> str:
        """Which attacks tested whether people were forgotten, and what they found."""
        return say_what_was_tested(self.attacks, self.failed_attacks)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values. An infinite number stays a float; see `to_json`."""
        return {each.name: _plain(getattr(self, each.name)) for each in fields(self)}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "Evaluation":
        """Return what `to_dict` took apart, or what was read from the JSON of `to_json`."""
        plain = {name: value if name in _TEXTS else _read(value) for name, value in plain.items()}
        attacks = tuple(AttackResult.from_dict(each) for each in plain.pop("attacks"))
        evaluation: Evaluation = from_plain(cls, plain | {"attacks": ()})
        return replace(evaluation, attacks=attacks)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the evaluation as JSON; also write it to a file if a path is given.

        JSON knows no infinite numbers: they are written as "inf" and "-inf", and `from_dict` reads
        them back.
        """
        text = json.dumps(_written(self.to_dict()), indent=1, default=str, allow_nan=False)
        if path is not None:
            Path(path).write_text(text + "\n", encoding="utf-8")
        return text

    def to_frame(self) -> "pd.DataFrame":
        """Return one row for each baseline and measure, as a pandas frame."""
        rows = [
            {"method": self.method, "dataset": self.dataset, "baseline": baseline}
            | {"measure": name}
            | {key: value for key, value in measure.to_dict().items() if key != "name"}
            for baseline, measures in self.measures.items()
            for name, measure in measures.items()
        ]
        return make_frame(rows)

    def plot(self) -> "EvaluationDisplay":
        """Draw the four properties against both baselines."""
        from letheon.plot import EvaluationDisplay

        return EvaluationDisplay.from_evaluations(self)

    def __rich__(self) -> "RenderableType":
        """Show the evaluation as a table."""
        return as_table(self)

    def __str__(self) -> str:
        """Say the evaluation in plain lines."""
        return as_text(self)


# Fields without numbers that could be infinite.
_TEXTS = frozenset({"title", "method", "dataset", "settings", "requests", "metric"})
_INFINITE = {"inf": math.inf, "-inf": -math.inf}


def _written(value: Any) -> Any:
    """Return infinite numbers, at any depth, as texts."""
    if isinstance(value, dict):
        return {name: _written(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_written(part) for part in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _read(value: Any) -> Any:
    """Return what `_written` turned into texts as numbers again."""
    if isinstance(value, dict):
        return {name: _read(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_read(part) for part in value]
    return _INFINITE.get(value, value) if isinstance(value, str) else value


def _plain(value: Any) -> Any:
    """Return dataclasses, at any depth, as dicts and tuples as lists."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return asdict(value) if is_dataclass(value) else value


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


def say_what_was_tested(attacks: Sequence[AttackResult], failed: dict[str, str]) -> str:
    """Return which attacks tested whether people were forgotten, and what they found."""
    about = [each for each in attacks if each.about == "forgotten"]
    able = [each for each in about if each.has_power is not False]
    parts = [f"{each.attack} ({each.verdict})" for each in able]
    if parts:
        text = f"Forgetting was tested by {', '.join(parts)}. Not found proves nothing."
        if any(each.attack.startswith(CANARY) for each in able):
            text += " Canaries leave in one request; people who leave one by one were not tested."
    else:
        text = "Forgetting was not tested: no attack " + ("had power here." if about else "ran.")
    weak = [each.attack for each in about if each not in able]
    if weak:
        text += f" Without power, as it finds nobody before the request either: {', '.join(weak)}."
    return text + (f" Could not run: {', '.join(failed)}." if failed else "")


def is_noticeable(returned: float, complete: float) -> bool:
    """Return whether a request is complete noticeably later than `forget` returns."""
    return complete > _NOTICEABLE * returned


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
