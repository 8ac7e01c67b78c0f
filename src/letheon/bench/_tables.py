"""From cells to the survey's Tables 2 and 3, with the published numbers beside ours."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from letheon.bench._grid import RECIPES, Options
from letheon.bench._published import PUBLISHED, Published, Spread, find_published
from letheon.evaluation.report import Cell, Table

__all__ = [
    "BASELINES",
    "Line",
    "attack_value",
    "brief_table",
    "lines_of",
    "main_table",
    "report_tables",
    "spread_of",
]

Record = dict[str, Any]
BASELINES = ("same algorithm", "ordinary model")
_ORDER: dict[tuple[str, ...], int] = {r[:3]: place for place, r in enumerate(RECIPES)}

_TITLE = "All methods, in the form of the survey's Tables 2 and 3"
_MAIN = (
    "method", "setting", "against", "people",
    ("efficiency", "min"), ("efficiency", "g. mean"), ("efficiency", "max"),
    ("efficiency", "x own training"),
    ("effectiveness", "worst, points"), ("effectiveness", "mean"),
    ("consistency", "min %"), ("consistency", "g. mean %"), ("consistency", "max %"),
    ("consistency", "parameters"),
    ("certificate", "claim"), ("certificate", "SAPE %"), ("storage", "x"),
    ("attacks (floor)", "RMIA AUC"), ("attacks (floor)", "RMIA TPR at 1 % FPR"),
    ("attacks (floor)", "backdoor SAPE"), ("attacks (floor)", "before/after AUC"),
)  # fmt: skip
_NOTE = (
    "One line for each method, setting and baseline; numbers over {sets}. In brackets or below: "
    "what the survey printed (Mercuri et al. 2022, Tables 2 and 3), from other data, machines and "
    "experiments; it warns against comparisons. *people*: who leave; for 1, one after the other. "
    "*efficiency*: time of the baseline's retrain over that of a request, data set by data set; "
    "the retrain of the *same algorithm* is by the fastest solver that reaches its loss. *x own "
    "training*: the method's own fit over a request, geometric mean, which is what papers on "
    "DeltaGrad and Descent-to-Delete report. *effectiveness*: absolute difference of test "
    "accuracy, in percentage points. *consistency*: equal answers on test rows; *parameters*: "
    "distance of the parameters, geometric mean. *claim*: exact, (epsilon, delta), or none. "
    "*SAPE*: 100 |a - b| / (a + b) of the accuracies on forgotten rows, mean. *storage*: bytes of "
    "the state over the baseline's. *attacks*: means over data sets, in brackets the floor (a "
    "retrain against a retrain); AUC 0.5 finds nothing. *before/after*: one person leaves and the "
    "attacker holds both versions, which reveals deletion whatever the method."
)
_SHORT = (
    "method", "setting", "against",
    ("efficiency", "min"), ("efficiency", "g. mean"), ("efficiency", "max"),
    ("effectiveness", "worst, points"), ("consistency", "g. mean %"), ("certificate", "SAPE %"),
    "data sets", "failed",
)  # fmt: skip
_DATASET = (
    "method", "setting", "people",
    ("efficiency", "same"), ("efficiency", "ordinary"),
    ("effectiveness", "same"), ("effectiveness", "ordinary"),
    ("agreement %", "same"), ("agreement %", "floor"), ("agreement %", "ordinary"),
    ("SAPE %", "same"), ("ms", "request"), ("ms", "retrain"), ("ms", "ordinary"),
    ("accuracy", "unlearned"), ("accuracy", "ordinary"),
)  # fmt: skip
_BRIEF = (
    "method", "setting", "people", "x same algorithm", "x ordinary model",
    "points off: same", "points off: ordinary", "agreement %", "claim", "RMIA AUC (floor)",
)  # fmt: skip
_BRIEF_NOTE = (
    "Published numbers in brackets. *x*: times faster than a retrain, geometric mean over {sets}. "
    "*points off*: largest difference of test accuracy, in percentage points. *agreement*: equal "
    "answers with a retrain of the same algorithm, geometric mean."
)
_PRINTED = (
    "method", "row", "efficiency", "effectiveness", "consistency", "certificate", "source", "note",
)  # fmt: skip


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

    @property
    def name(self) -> str:
        """Method and family."""
        return f"{self.method} ({self.family})"

    @property
    def key(self) -> tuple[str, str, str]:
        """Method, family and setting, as cells have them."""
        return self.method, self.family, self.setting


def spread_of(values: Iterable[float], *, geometric: bool = True) -> Spread:
    """Return least value, mean and largest value; a geometric mean with a zero in it is zero.

    Examples
    --------
    >>> spread = spread_of([1.0, 100.0])
    >>> spread.low, round(spread.mean, 6), spread.high
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
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        if record["cell"]["kind"] == "measure":
            groups.setdefault(_key(record), []).append(record)
    lines = []
    for key in sorted(groups, key=lambda key: _ORDER.get(key, len(_ORDER))):
        # A share counts as more than any number.
        wanted = removed or min(
            {str(record["cell"]["removed"]) for record in groups[key]},
            key=lambda text: (text.endswith("%"), float(text.rstrip("%"))),
        )
        chosen = [record for record in groups[key] if record["cell"]["removed"] == wanted]
        if any(record["error"] is None for record in chosen):
            lines += [_line(chosen, baseline) for baseline in BASELINES]
    return lines


def _key(record: Record) -> tuple[str, ...]:
    cell = record["cell"]
    return cell["method"], cell["family"], cell["setting"]


def _line(records: Sequence[Record], baseline: str) -> Line:
    good = [record for record in records if record["error"] is None]
    cell, evaluations = good[0]["cell"], [record["evaluation"] for record in good]

    def spread(name: str, factor: float = 1, *, geometric: bool = True) -> Any:
        measures = [evaluation["measures"][baseline] for evaluation in evaluations]
        values = [factor * each[name]["value"] for each in measures if name in each]
        return spread_of(values, geometric=geometric) if values else None

    sizes = [evaluation["storage"] for evaluation in evaluations]
    known = [size for size in sizes if {"unlearned", baseline} <= set(size)]
    times = [evaluation["seconds"] for evaluation in evaluations]
    return Line(
        **{name: cell[name] for name in ("method", "family", "setting", "removed")},
        baseline=baseline,
        datasets=tuple(record["cell"]["dataset"] for record in good),
        failed=len(records) - len(good),
        efficiency=spread("efficiency"),
        own_efficiency=spread_of(each["fit"]["value"] / each["forget"]["value"] for each in times),
        effectiveness=spread("effectiveness", 100, geometric=False),
        consistency=spread("output consistency"),
        parameters=spread("parameter consistency"),
        certifiability=spread("certifiability", geometric=False),
        storage=spread_of(size["unlearned"] / size[baseline] for size in known) if known else None,
        certificate=_certificate(evaluations),
        published=find_published(cell["method"], cell["setting"]),
    )


def _certificate(evaluations: Sequence[Record]) -> str:
    """Return what is claimed; with how often, where data sets differ."""
    claims = []
    for guarantee in (evaluation["guarantee"] for evaluation in evaluations):
        if guarantee["kind"] == "certified":
            claims.append(f"({guarantee['epsilon']:g}, {guarantee['delta']:g})")
        else:
            claims.append("exact" if guarantee["kind"] == "exact" else "none")
    kinds = dict.fromkeys(claims)
    if len(kinds) == 1:
        return claims[0]
    return ", ".join(f"{kind} on {claims.count(kind)} of {len(claims)}" for kind in kinds)


def attack_value(
    records: Sequence[Record],
    key: tuple[str, ...],
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
    pairs = [
        (result["measures"][measure]["value"], result["floor"][measure]["value"])
        for record in records
        if record["cell"]["kind"] == "attack" and _key(record) == key
        for result in record["attacks"]
        if (result["attack"], result["about"]) == (attack, about) and measure in result["measures"]
    ]
    if not pairs:
        return None
    values, floors = zip(*pairs, strict=True)
    return math.fsum(values) / len(values), math.fsum(floors) / len(floors)


def report_tables(records: Sequence[Record], options: Options) -> list[Table]:
    """Return every table but the main one."""
    by_people = [(removed, lines_of(records, removed)) for removed in options.removed]
    tables = [_short_table(lines, removed) for removed, lines in by_people if lines]
    tables += [_dataset_table(records, dataset) for dataset in _datasets(records)]
    tables.append(_published_table())
    errors = _error_table(records)
    return [*tables, errors] if errors.rows else tables


def main_table(records: Sequence[Record]) -> Table:
    """Return the survey's table with our numbers and the published ones."""
    rows = [_main_row(records, line) for line in lines_of(records)]
    names = ", ".join(_datasets(records)) or "nothing"
    return Table(_TITLE, _MAIN, rows, _NOTE.format(sets=names))


def brief_table(records: Sequence[Record]) -> Table:
    """Return the main table with one line for each method and setting, for narrow places."""
    lines = lines_of(records)
    rows = [
        (
            same.name,
            same.setting,
            same.removed,
            _without_formula(_efficiency(same)[1]),
            _without_formula(_efficiency(ordinary)[1]),
            _effectiveness(same),
            _effectiveness(ordinary),
            _without_formula(_consistency(same, same.published)[1]),
            same.certificate,
            _attack(records, same, "rmia", "AUC"),
        )
        for same, ordinary in zip(lines[::2], lines[1::2], strict=True)
    ]
    names = ", ".join(_datasets(records)) or "nothing"
    return Table("In short", _BRIEF, rows, _BRIEF_NOTE.format(sets=names))


def _without_formula(cell: Any) -> Any:
    """Return a cell with the word "theory" in the place of a formula."""
    if isinstance(cell, Cell) and "(" in cell.published:
        return replace(cell, published="theory")
    return cell


def _datasets(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(r["cell"]["dataset"] for r in records if r["error"] is None))


def _main_row(records: Sequence[Record], line: Line) -> tuple[Any, ...]:
    # Consistency, certificates and attacks are about a retrain of the same algorithm.
    is_same = line.baseline == BASELINES[0]
    known = line.published if is_same else None
    sape = None if known is None else known.certifiability
    attacks = (
        ("rmia", "AUC"),
        ("rmia", "TPR at 1 % FPR"),
        ("backdoor", "certifiability"),
        ("before-after", "AUC"),
    )
    return (
        line.name,
        line.setting,
        line.baseline,
        line.removed,
        *_efficiency(line),
        _factor(line.own_efficiency.mean),
        _effectiveness(line),
        f"{line.effectiveness.mean:.2f}",
        *_consistency(line, known),
        _beside(line.certificate, known and known.certificate),
        _beside(f"{line.certifiability.mean:.2g}", None if sape is None else f"{sape:g} %"),
        "-" if line.storage is None else f"{line.storage.mean:.3g}",
        *(_attack(records, line, *attack) if is_same else None for attack in attacks),
    )


def _beside(value: str, published: Any) -> Any:
    return value if published is None else Cell(value, published)


def _efficiency(line: Line) -> list[Any]:
    known, texts = line.published, [_factor(value) for value in line.efficiency]
    if known is None or known.efficiency_against != line.baseline:
        return texts
    if isinstance(known.efficiency, str):
        return [texts[0], _beside(texts[1], known.efficiency), texts[2]]
    return [*map(_beside, texts, map(_factor, known.efficiency))]


def _effectiveness(line: Line) -> Any:
    known, worst = line.published, f"{line.effectiveness.high:.2f}"
    is_here = known is not None and known.effectiveness_against == line.baseline
    return _beside(worst, known.effectiveness if known and is_here else None)


def _consistency(line: Line, known: Published | None) -> list[Any]:
    """Return least, mean and largest agreement, and the distance of parameters."""
    if line.certificate == "exact" and line.baseline == BASELINES[0]:
        return ["exact", _beside("exact", known and "exact"), "exact", "-"]
    ours = [f"{value:.4g}" for value in line.consistency]
    parameters = "-" if line.parameters is None else f"{line.parameters.mean:.2g}"
    if known is None or known.consistency is None:
        return [*ours, parameters]
    if isinstance(known.consistency, str):
        return [ours[0], _beside(ours[1], known.consistency), ours[2], parameters]
    if known.consistency_name == "parameter consistency":
        return [*ours, _beside(parameters, f"{known.consistency.mean:.2g}")]
    return [*map(_beside, ours, (f"{value:.4g}" for value in known.consistency)), parameters]


def _factor(value: float) -> str:
    return f"{value:,.0f}x" if value >= 100 else f"{value:.3g}x"


def _attack(records: Sequence[Record], line: Line, attack: str, measure: str) -> str:
    pair = attack_value(records, line.key, attack, measure)
    return "-" if pair is None else f"{pair[0]:.3g} ({pair[1]:.3g})"


def _short_table(lines: Sequence[Line], removed: str) -> Table:
    people = "1 person after the other" if removed == "1" else f"{removed} of the people at once"
    rows = [
        (
            line.name,
            line.setting,
            line.baseline,
            *map(_factor, line.efficiency),
            f"{line.effectiveness.high:.2f}",
            f"{line.consistency.mean:.4g}",
            f"{line.certifiability.mean:.2g}",
            len(line.datasets),
            line.failed,
        )
        for line in lines
    ]
    return Table(f"Removed: {people}", _SHORT, rows)


def _dataset_table(records: Sequence[Record], dataset: str) -> Table:
    good = [
        record
        for record in records
        if record["cell"]["dataset"] == dataset and record["evaluation"] is not None
    ]
    titles = dict.fromkeys(f"{r['cell']['family']}: {r['data']}" for r in good)
    note = "; ".join(titles) + ". *floor*: agreement of one retrain with another."
    return Table(f"Data set: {dataset}", _DATASET, [_dataset_row(r) for r in good], note)


def _dataset_row(record: Record) -> tuple[Any, ...]:
    cell, evaluation = record["cell"], record["evaluation"]
    both = same, ordinary = [evaluation["measures"][baseline] for baseline in BASELINES]
    floor, seconds = evaluation["floor"].get("output consistency"), evaluation["seconds"]
    return (
        f"{cell['method']} ({cell['family']})",
        record["setting"],
        cell["removed"],
        *(_interval(**each["efficiency"]) for each in both),
        *(f"{100 * each['effectiveness']['value']:.2f}" for each in both),
        f"{same['output consistency']['value']:.4g}",
        "-" if floor is None else f"{floor['value']:.4g}",
        f"{ordinary['output consistency']['value']:.4g}",
        f"{same['certifiability']['value']:.3g}",
        *(f"{1000 * seconds[name]['value']:.3g}" for name in ("forget", *BASELINES)),
        *(f"{evaluation['scores'][name]['value']:.4f}" for name in ("unlearned", BASELINES[1])),
    )


def _interval(*, value: float, low: float | None, high: float | None, **_: Any) -> str:
    ends = "" if low is None or high is None else f" [{_factor(low)}, {_factor(high)}]"
    return _factor(value) + ends


def _published_table() -> Table:
    def as_printed(value: Spread | str | None, unit: str) -> str:
        if value is None or isinstance(value, str):
            return value or "not reported"
        return " / ".join(f"{number:.6g}{unit}" for number in value)

    rows = [
        (
            line.method,
            line.row or "-",
            as_printed(line.efficiency, "x"),
            line.effectiveness,
            as_printed(line.consistency, ""),
            line.certificate,
            line.source,
            line.note,
        )
        for line in PUBLISHED
    ]
    note = "Least, geometric mean and largest over experiments, as printed. Formulas are theory."
    return Table("What the survey printed", _PRINTED, rows, note)


def _error_table(records: Sequence[Record]) -> Table:
    """Return the cells that failed, and why."""
    names = ("dataset", "method", "setting", "removed", "kind")
    failed = [record for record in records if record["error"] is not None]
    rows = [
        (
            *(record["cell"][name] for name in names),
            record["error"]["kind"],
            record["error"]["text"],
        )
        for record in failed
    ]
    columns = ("data set", "method", "setting", "people", "kind", "error", "text")
    return Table("Cells that failed", columns, rows)
