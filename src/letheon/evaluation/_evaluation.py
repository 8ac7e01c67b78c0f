"""The result of an evaluation: to be read, drawn, written and read back."""

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
_COMPARED = (SAME, ORDINARY, "retrain against retrain")


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
        return describe_attacks(self.attacks, self.failed_attacks)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values. An infinite number stays a float; see `to_json`."""
        return {each.name: _to_plain(getattr(self, each.name)) for each in fields(self)}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "Evaluation":
        """Return what `to_dict` took apart, or what was read from the JSON of `to_json`."""
        numbers = {"inf": math.inf, "-inf": -math.inf}
        plain = {
            name: value if name in _TEXTS else _to_plain(value, numbers)
            for name, value in plain.items()
        }
        attacks = tuple(AttackResult.from_dict(each) for each in plain.pop("attacks"))
        evaluation: Evaluation = from_plain(cls, plain | {"attacks": ()})
        return replace(evaluation, attacks=attacks)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the evaluation as JSON; also write it to a file if a path is given.

        JSON knows no infinite numbers: they are written as "inf" and "-inf", and `from_dict` reads
        them back.
        """
        plain = _to_plain(self.to_dict(), {math.inf: "inf", -math.inf: "-inf"})
        text = json.dumps(plain, indent=1, default=str, allow_nan=False)
        if path is not None:
            Path(path).write_text(text + "\n", encoding="utf-8")
        return text

    def to_frame(self) -> "pd.DataFrame":
        """Return one row for each baseline and measure, as a pandas frame."""
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
        """Draw the four properties against both baselines."""
        from letheon.plot import EvaluationDisplay

        return EvaluationDisplay.from_evaluations(self)

    def __rich__(self) -> "RenderableType":
        """Show the evaluation as a table, with what must be known before and after it."""
        from rich.console import Group
        from rich.text import Text

        table = _measure_table(self).to_rich(right=_COMPARED)
        return Group(
            Text("\n".join(_heading_lines(self))), table, Text("\n".join(_detail_lines(self)))
        )

    def __str__(self) -> str:
        """Say the evaluation in plain lines."""
        return "\n".join(
            [*_heading_lines(self), _measure_table(self).to_text(indent="  "), *_detail_lines(self)]
        )


# Fields without numbers that could be infinite.
_TEXTS = frozenset({"title", "method", "dataset", "settings", "requests", "metric"})


def _to_plain(value: Any, numbers: Mapping[Any, Any] = MappingProxyType({})) -> Any:
    """Return plain values, at any depth, some of them replaced; tuples become lists."""
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
    """Return one row for each measure: which way is better, both baselines, and the floor."""
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


def _heading_lines(evaluation: "Evaluation") -> list[str]:
    """Return what the reader must know before any number."""
    heading = f"{evaluation.title} on {evaluation.dataset}: {evaluation.requests}"
    return [heading, evaluation.tested, *(f"WARNING: {each}" for each in evaluation.warnings)]


def _detail_lines(evaluation: "Evaluation") -> list[str]:
    size, claim, seconds = (
        evaluation.storage.get("unlearned"),
        evaluation.guarantee,
        evaluation.seconds,
    )
    returned, later = seconds.get("returned"), ""
    if returned is not None and seconds["forget"].value > _NOTICEABLE * returned.value:
        later = f" (forget returns after {format_measure(returned)}, the rest is done later)"
    lines = [
        f"Unlearned model: {evaluation.metric} {format_measure(evaluation.scores['unlearned'])}, a "
        f"request takes {format_measure(seconds['forget'])}{later}"
        + (f", its state {size:,} bytes" if size is not None else "")
        + f", the first fit {format_measure(seconds['fit'])}.",
        f"Guarantee: {claim.kind}"
        + (f", epsilon {claim.epsilon:g}" if claim.epsilon is not None else "")
        + (f", delta {claim.delta:g}" if claim.delta is not None else "")
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
