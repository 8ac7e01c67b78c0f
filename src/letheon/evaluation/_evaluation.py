"""Result of an evaluation, as text, table, plot and JSON."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from letheon.evaluation._baselines import ORDINARY, SAME
from letheon.evaluation._trial import Trial
from letheon.evaluation.report import Table, format_measure
from letheon.guarantee import Guarantee
from letheon.measures import Measure, Strength, TextRepr, from_plain
from letheon.measures.attacks import AttackResult

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType

    from letheon.plot import EvaluationDisplay


def make_frame(rows: list[dict[str, Any]], hint: str = "; to_dict() has the same content") -> Any:
    """Return rows as a pandas DataFrame.

    Without pandas, raise an ImportError whose message ends with `hint`.

    Parameters
    ----------
    rows : list of dict
        One dict per row, with the values by column.
    hint : str, optional
        End of the message without pandas.

    Returns
    -------
    pandas.DataFrame

    Raises
    ------
    ImportError
        pandas is not installed.

    Examples
    --------
    >>> make_frame([{"method": "SISA", "efficiency": 8.0}]).columns.tolist()
    ['method', 'efficiency']
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError(
            f"to_frame needs pandas, which is not installed: pip install pandas{hint}"
        ) from error
    return pd.DataFrame(rows)


# Prefix of the names of attacks in the canary test.
CANARY = "canary "
_NOTICEABLE = 1.25
_COMPARED = (SAME, ORDINARY, "retrain against retrain")


@dataclass(frozen=True, kw_only=True, repr=False)
class Evaluation(TextRepr):
    """The four properties of one unlearner on one sequence of requests.

    Attributes
    ----------
    title, method : str
        Name of the unlearner in tables, and its method (`MethodFacts.method`).
    dataset : str
        Name of the data.
    settings : dict
        Parameters of the unlearner that differ from their defaults.
    requests : str
        Description of the deletion distribution.
    n_requests, n_people, n_rows : int
        Numbers of requests and people per trial, and of training rows at the start.
    measures : dict of str to dict of str to Measure
        Measures by name for each baseline, ``"same algorithm"`` and ``"ordinary model"``:
        efficiency, effectiveness, score lost, consistency, certifiability.
    floor : dict of str to Measure
        Measures of one retrained model against another, for approximate methods. They show the
        differences that randomness alone explains. Empty for exact methods.
    baselines : dict of str to str
        What each baseline is and how it was chosen.
    seconds : dict of str to Measure
        Mean seconds of a fit (``"fit"``), of a request (``"forget"``), until `forget` returned
        (``"returned"``), and of training each baseline.
    scores : dict of str to Measure
        Metric of the unlearned model and of both baselines on the test rows.
    metric : str
        Name of the metric.
    storage : dict of str to int
        Size of the state of each model in bytes, after the last request of the last trial. For
        the same algorithm it is the size of a fresh fit, including the data for removals.
    work : Measure
        Training work of one request as a share of retraining, as counted by the receipts.
    strength : Strength or None
        Whether the method is strong or weak, from the counted work. Undecided if processor time
        contradicts the receipts; None for fewer than 16 requests of equal size.
    work_check : str
        Comparison of the counted work with processor time.
    guarantee : Guarantee
        The guarantee of the model after the last request of the last trial.
    equal_digests : bool or None
        Whether the model had the digest and predictions of a fresh fit in every trial; None for
        approximate methods.
    attacks : tuple of AttackResult
        Results of attacks; the canary test comes first.
    failed_attacks : dict of str to str
        Attacks that failed, with the error.
    fairness : tuple of str
        How the comparison was kept fair.
    trials : tuple of Trial
        One trial for each seed.
    warnings : tuple of str
        Warnings about the method or its figures.
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
        """Text that lists the attacks that tested the forgetting, with their results."""
        return describe_attacks(self.attacks, self.failed_attacks)

    def to_dict(self) -> dict[str, Any]:
        """Return the evaluation as a dict of plain values; infinite numbers stay floats."""
        return {field.name: _to_plain(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "Evaluation":
        """Return the evaluation from the output of `to_dict`, or from the JSON of `to_json`."""
        numbers = {"inf": math.inf, "-inf": -math.inf}
        plain = {
            name: value if name in _TEXTS else _to_plain(value, numbers)
            for name, value in plain.items()
        }
        attacks = tuple(AttackResult.from_dict(attack) for attack in plain.pop("attacks"))
        evaluation: Evaluation = from_plain(cls, plain | {"attacks": ()})
        return replace(evaluation, attacks=attacks)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the evaluation as JSON; also write it to a file if a path is given.

        Infinite numbers are written as "inf" and "-inf"; `from_dict` reads them back.
        """
        plain = _to_plain(self.to_dict(), {math.inf: "inf", -math.inf: "-inf"})
        text = json.dumps(plain, indent=1, default=str, allow_nan=False)
        if path is not None:
            Path(path).write_text(text + "\n", encoding="utf-8")
        return text

    def to_frame(self) -> "pd.DataFrame":
        """Return a pandas DataFrame with one row for each baseline and measure."""
        about = {"method": self.method, "dataset": self.dataset}
        rows = [
            about
            | {"baseline": baseline, "measure": name}
            | {key: value for key, value in measure.to_dict().items() if key != "name"}
            for baseline, measures in self.measures.items()
            for name, measure in measures.items()
        ]
        return make_frame(rows)

    def plot(self) -> "EvaluationDisplay":
        """Draw the four properties against both baselines, and return the figure."""
        from letheon.plot import EvaluationDisplay

        return EvaluationDisplay.from_evaluations(self)

    def __rich__(self) -> "RenderableType":
        """Return the evaluation as a Rich object for a terminal."""
        from rich.console import Group
        from rich.text import Text

        table = _measure_table(self).to_rich(right=_COMPARED)
        above, below = ("\n".join(lines(self)) for lines in (_heading_lines, _detail_lines))
        return Group(Text(above), table, Text(below))

    def __str__(self) -> str:
        """Return the evaluation as plain text."""
        return "\n".join(
            [*_heading_lines(self), _measure_table(self).to_text(indent="  "), *_detail_lines(self)]
        )


# Fields without numbers.
_TEXTS = frozenset({"title", "method", "dataset", "settings", "requests", "metric"})


def _to_plain(value: Any, numbers: Mapping[Any, Any] = MappingProxyType({})) -> Any:
    """Return a value as plain values, recursively; `numbers` are replaced, tuples become lists."""
    if isinstance(value, dict):
        return {name: _to_plain(part, numbers) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(part, numbers) for part in value]
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return numbers.get(value, value) if isinstance(value, str | float) else value


def _measure_table(evaluation: "Evaluation") -> Table:
    """Return a table with one row per measure: better direction, both baselines, and the floor."""
    both = [evaluation.measures[baseline] for baseline in (SAME, ORDINARY)]
    rows: list[tuple[Any, ...]] = []
    for name in dict.fromkeys([*both[0], *both[1]]):
        pair = [measures.get(name) for measures in both]
        better = next(measure.better for measure in pair if measure is not None)
        rows.append((name, better, *pair, evaluation.floor.get(name)))
    scores, seconds, storage = evaluation.scores, evaluation.seconds, evaluation.storage
    sizes = [f"{storage[name]:,}" if name in storage else None for name in (SAME, ORDINARY)]
    sizes[0] = sizes[0] and f"{sizes[0]} (fresh unlearner)"
    rows += [
        (evaluation.metric, "higher", scores[SAME], scores[ORDINARY], None),
        ("time of a retrain", "", seconds[SAME], seconds[ORDINARY], None),
        ("state in bytes", "lower", *sizes, None),
    ]
    columns = ("measure", "better", *_COMPARED)
    n_columns = 5 if evaluation.floor else 4
    return Table("", columns[:n_columns], [row[:n_columns] for row in rows])


def describe_attacks(attacks: Sequence[AttackResult], failed: dict[str, str]) -> str:
    """Return a text that lists the attacks that tested the forgetting, with their results."""
    tests = [attack for attack in attacks if attack.about == "forgotten"]
    able = [attack for attack in tests if attack.has_power is not False]
    parts = [f"{attack.attack} ({attack.verdict})" for attack in able]
    if parts:
        text = f'Forgetting was tested by {", ".join(parts)}. "Not found" proves nothing.'
        if any(attack.attack.startswith(CANARY) for attack in able):
            text += " All canaries are removed in one request; single removals were not tested."
    else:
        text = "Forgetting was not tested: no attack " + ("had any power." if tests else "ran.")
    weak = [attack.attack for attack in tests if attack not in able]
    if weak:
        text += f" Without power (finds no one even before the request): {', '.join(weak)}."
    return text + (f" Failed: {', '.join(failed)}." if failed else "")


def _heading_lines(evaluation: "Evaluation") -> list[str]:
    """Return the lines of the heading, the attacks and the warnings."""
    heading = f"{evaluation.title} on {evaluation.dataset}: {evaluation.requests}"
    return [heading, evaluation.tested, *(f"WARNING: {warning}" for warning in evaluation.warnings)]


def _detail_lines(evaluation: "Evaluation") -> list[str]:
    size, claim, seconds = (
        evaluation.storage.get("unlearned"),
        evaluation.guarantee,
        evaluation.seconds,
    )
    returned, later = seconds.get("returned"), ""
    if returned is not None and seconds["forget"].value > _NOTICEABLE * returned.value:
        later = f" (forget returns after {format_measure(returned)}; the rest is deferred)"
    lines = [
        f"Unlearned model: {evaluation.metric} {format_measure(evaluation.scores['unlearned'])}; "
        f"time per request {format_measure(seconds['forget'])}{later}; first fit "
        + format_measure(seconds["fit"])
        + (f"; state {size:,} bytes" if size is not None else "")
        + ".",
        f"Guarantee: {claim.kind}"
        + (f", epsilon {claim.epsilon:g}" if claim.epsilon is not None else "")
        + (f", delta {claim.delta:g}" if claim.delta is not None else "")
        + ".",
    ]
    if evaluation.equal_digests is not None:
        verdict = "equal" if evaluation.equal_digests else "NOT equal"
        lines.append(f"Digests: {verdict} to a fresh fit, in {len(evaluation.trials)} trial(s).")
    if evaluation.strength is not None:
        lines.append(
            f"Growth of the work per request: {evaluation.strength.kind}, according to receipts; "
            f"{evaluation.work_check}."
        )
    lines += [str(attack) for attack in evaluation.attacks]
    failed = evaluation.failed_attacks.items()
    lines += [f"Attack {name!r} failed: {error}" for name, error in failed]
    return [*lines, "", *(f"- {line}" for line in evaluation.fairness)]
