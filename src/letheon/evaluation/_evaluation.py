"""What an evaluation found, to be read, drawn, written and read back."""

import json
import math
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from letheon.evaluation._doubts import say_what_was_tested
from letheon.evaluation._trial import Trial
from letheon.guarantee import Guarantee
from letheon.measures import Measure, Strength
from letheon.measures.attacks import AttackResult

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType

    from letheon.plot import EvaluationDisplay

__all__ = ["Evaluation"]


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
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        plain["attacks"] = [attack.to_dict() for attack in self.attacks]
        return {name: _plain(value) for name, value in plain.items()}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "Evaluation":
        """Return what `to_dict` took apart, or what was read from the JSON of `to_json`."""
        plain = {name: value if name in _TEXTS else _read(value) for name, value in plain.items()}
        whole = dict(plain)
        whole["measures"] = {
            baseline: _measures(measures) for baseline, measures in plain["measures"].items()
        }
        for name in ("floor", "seconds", "scores"):
            whole[name] = _measures(plain[name])
        whole["work"] = Measure(**plain["work"])
        strength = plain["strength"]
        whole["strength"] = None if strength is None else Strength.from_dict(strength)
        whole["guarantee"] = _guarantee(plain["guarantee"])
        whole["attacks"] = tuple(AttackResult.from_dict(attack) for attack in plain["attacks"])
        whole["fairness"] = tuple(plain["fairness"])
        whole["warnings"] = tuple(plain.get("warnings", ()))
        whole["trials"] = tuple(_trial(trial) for trial in plain["trials"])
        return cls(**whole)

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
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError(
                "to_frame needs pandas, which is not installed: pip install pandas; "
                "to_dict() has the same content"
            ) from error
        rows = [
            {"method": self.method, "dataset": self.dataset, "baseline": baseline}
            | {"measure": name}
            | {key: value for key, value in measure.to_dict().items() if key != "name"}
            for baseline, measures in self.measures.items()
            for name, measure in measures.items()
        ]
        return pd.DataFrame(rows)

    def plot(self) -> "EvaluationDisplay":
        """Draw the four properties against both baselines."""
        from letheon.plot import EvaluationDisplay

        return EvaluationDisplay.from_evaluations(self)

    def __rich__(self) -> "RenderableType":
        """Show the evaluation as a table."""
        from letheon.evaluation._show import as_table

        return as_table(self)

    def __str__(self) -> str:
        """Say the evaluation in plain lines."""
        from letheon.evaluation._show import as_text

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
    return asdict(value) if hasattr(value, "__dataclass_fields__") else value


def _measures(plain: dict[str, Any]) -> dict[str, Measure]:
    return {name: Measure(**measure) for name, measure in plain.items()}


def _guarantee(plain: dict[str, Any]) -> Guarantee:
    names = ("assumptions", "residual_state")
    return Guarantee(**plain | {name: tuple(plain[name]) for name in names})


def _trial(plain: dict[str, Any]) -> Trial:
    times = {name: tuple(seconds) for name, seconds in plain["retrain_seconds"].items()}
    measures = {name: _measures(found) for name, found in plain["measures"].items()}
    late = {
        name: tuple(plain.get(name, ()))
        for name in ("returned_seconds", "processor_seconds", "is_repeated")
    }
    return Trial(
        **plain
        | late
        | {
            "forget_seconds": tuple(plain["forget_seconds"]),
            "retrain_seconds": times,
            "work": tuple(plain["work"]),
            "rows_left": tuple(plain["rows_left"]),
            "measures": measures,
            "floor": _measures(plain["floor"]),
            "guarantee": _guarantee(plain["guarantee"]),
        }
    )
