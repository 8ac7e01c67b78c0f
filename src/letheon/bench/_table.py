"""From cells to the survey's Tables 2 and 3, with the published numbers beside ours."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from letheon.bench._published import Published, Spread, find_published
from letheon.bench._recipes import RECIPES

__all__ = ["BASELINES", "Line", "attack_value", "lines_of", "spread_of"]

Record = dict[str, Any]
BASELINES = ("same algorithm", "ordinary model")
_ORDER: dict[tuple[str, str, str], int] = {
    (r.method, r.family, r.setting): place for place, r in enumerate(RECIPES)
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """One method with one setting against one baseline, over data sets.

    Attributes
    ----------
    method, family, setting, baseline, removed : str
        Which cells it is made from.
    datasets : tuple of str
        Data sets that gave a result.
    failed : int
        Cells that ended with an error; they are in no number.
    efficiency : Spread
        Times faster than the baseline's retrain.
    own_efficiency : Spread
        Training time of the method itself over the time of a request.
    effectiveness : Spread
        Absolute difference of test accuracy, in percentage points; `mean` is the arithmetic one.
    consistency : Spread
        Output consistency in per cent: equal answers on test rows.
    parameters : Spread or None
        Distance of the parameters, where both sides have the same ones.
    certifiability : Spread
        SAPE of the accuracies on forgotten rows, per cent; `mean` is the arithmetic one, since
        zeros are frequent.
    storage : Spread or None
        Bytes of the state over those of the baseline's.
    certificate : str
        What the method claims: exact, (epsilon, delta), or none; on how many data sets.
    published : Published or None
        The survey's line.
    """

    method: str
    family: str
    setting: str
    baseline: str
    removed: str
    datasets: tuple[str, ...]
    failed: int
    efficiency: Spread
    own_efficiency: Spread
    effectiveness: Spread
    consistency: Spread
    parameters: Spread | None
    certifiability: Spread
    storage: Spread | None
    certificate: str
    published: Published | None


def spread_of(values: Iterable[float], *, geometric: bool = True) -> Spread:
    """Return least value, mean and largest value; a geometric mean with a zero in it is zero.

    Examples
    --------
    >>> found = spread_of([1.0, 100.0])
    >>> found.low, round(found.mean, 6), found.high
    (1.0, 10.0, 100.0)
    >>> spread_of([0.0, 3.0], geometric=False).mean
    1.5
    """
    sample = [float(value) for value in values]
    if not sample:
        raise ValueError("no values")
    if not geometric:
        mean = math.fsum(sample) / len(sample)
    elif min(sample) < 0:
        raise ValueError(f"a geometric mean needs numbers from 0 on, not {min(sample)}")
    elif min(sample) == 0:
        mean = 0.0
    else:
        mean = math.exp(math.fsum(map(math.log, sample)) / len(sample))
    # Rounding of exp and log must not push the mean of equal values over its ends.
    return Spread(min(sample), min(max(mean, min(sample)), max(sample)), max(sample))


def lines_of(records: Sequence[Record], removed: str | None = None) -> list[Line]:
    """Return one line for each method, family, setting and baseline, in the grid's order.

    Parameters
    ----------
    records : sequence of dict
        Cells, as `run` returns them.
    removed : str, optional
        Cells with so many people removed. None: the first number of people that the setting was
        run with, which is the least, as in the survey's table.
    """
    cells = [record for record in records if record["cell"]["kind"] == "measure"]
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in cells:
        cell = record["cell"]
        groups.setdefault((cell["method"], cell["family"], cell["setting"]), []).append(record)
    found = []
    for key in sorted(groups, key=lambda key: _ORDER.get(key, len(_ORDER))):
        group = groups[key]
        wanted = removed if removed is not None else _least(group)
        chosen = [record for record in group if record["cell"]["removed"] == wanted]
        if any(record["error"] is None for record in chosen):
            found += [_line(chosen, baseline) for baseline in BASELINES]
    return found


def _least(group: Sequence[Record]) -> str:
    """Return the least number of people; a share counts as more than any number."""
    texts = {str(record["cell"]["removed"]) for record in group}
    return min(texts, key=lambda text: (text.endswith("%"), float(text.rstrip("%"))))


def _line(records: Sequence[Record], baseline: str) -> Line:
    good = [record for record in records if record["error"] is None]
    cell = good[0]["cell"]
    evaluations = [record["evaluation"] for record in good]
    measures = [evaluation["measures"][baseline] for evaluation in evaluations]
    return Line(
        method=cell["method"],
        family=cell["family"],
        setting=cell["setting"],
        baseline=baseline,
        removed=cell["removed"],
        datasets=tuple(record["cell"]["dataset"] for record in good),
        failed=len(records) - len(good),
        efficiency=spread_of(_values(measures, "efficiency")),
        own_efficiency=spread_of(
            e["seconds"]["fit"]["value"] / e["seconds"]["forget"]["value"] for e in evaluations
        ),
        effectiveness=spread_of(
            (100 * value for value in _values(measures, "effectiveness")), geometric=False
        ),
        consistency=spread_of(_values(measures, "output consistency")),
        parameters=_optional(_values(measures, "parameter consistency")),
        certifiability=spread_of(_values(measures, "certifiability"), geometric=False),
        storage=_optional(_storage(evaluations, baseline)),
        certificate=_certificate(evaluations),
        published=find_published(cell["method"], cell["setting"]),
    )


def _values(measures: Sequence[dict[str, Any]], name: str) -> list[float]:
    return [float(each[name]["value"]) for each in measures if name in each]


def _optional(values: Sequence[float]) -> Spread | None:
    return spread_of(values) if values else None


def _storage(evaluations: Sequence[Record], baseline: str) -> list[float]:
    """Return how many times the baseline's bytes the state takes, where both are known."""
    sizes = [evaluation["storage"] for evaluation in evaluations]
    return [
        size["unlearned"] / size[baseline] for size in sizes if {"unlearned", baseline} <= set(size)
    ]


def _certificate(evaluations: Sequence[Record]) -> str:
    """Return what is claimed; with how often, where data sets differ."""
    claims = [_claim(evaluation["guarantee"]) for evaluation in evaluations]
    kinds = dict.fromkeys(claims)
    if len(kinds) == 1:
        return claims[0]
    return ", ".join(f"{kind} on {claims.count(kind)} of {len(claims)}" for kind in kinds)


def _claim(guarantee: dict[str, Any]) -> str:
    if guarantee["kind"] == "certified":
        return f"({guarantee['epsilon']:g}, {guarantee['delta']:g})"
    return "exact" if guarantee["kind"] == "exact" else "none"


def attack_value(
    records: Sequence[Record],
    key: tuple[str, str, str],
    attack: str,
    measure: str,
    about: str = "forgotten",
) -> tuple[float, float] | None:
    """Return the mean over data sets of what an attack measured and of its floor, or None.

    Parameters
    ----------
    records : sequence of dict
        Cells.
    key : tuple of str
        Method, family and setting.
    attack, measure, about : str
        Names in `AttackResult`.
    """
    found = [
        (result["measures"][measure]["value"], result["floor"][measure]["value"])
        for record in records
        if record["cell"]["kind"] == "attack" and _key(record) == key
        for result in record["attacks"]
        if (result["attack"], result["about"]) == (attack, about) and measure in result["measures"]
    ]
    if not found:
        return None
    values, floors = zip(*found, strict=True)
    return math.fsum(values) / len(values), math.fsum(floors) / len(floors)


def _key(record: Record) -> tuple[str, str, str]:
    cell = record["cell"]
    return cell["method"], cell["family"], cell["setting"]
