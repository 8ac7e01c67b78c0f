"""Tables of the results in the form of the survey's Tables 2 and 3, with the published numbers.

Mercuri et al., "An Introduction to Machine Unlearning", arXiv:2209.00939 (2022), took the numbers
from papers with different data, experiments and machines. The survey says that they must not be
used to compare methods with each other. Numbers are shown as printed; `note` states known printing
errors.
"""

import math
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, NamedTuple

from letheon.bench._grid import VARIANTS, BenchmarkOptions
from letheon.evaluation.report import Cell, Table


class Spread(NamedTuple):
    """Spread over experiments.

    Parameters
    ----------
    low, mean, high : float
        Minimum, mean (usually geometric) and maximum.

    Examples
    --------
    >>> Spread(low=2.0, mean=4.0, high=8.0).mean
    4.0
    """

    low: float
    mean: float
    high: float


@dataclass(frozen=True, kw_only=True)
class PublishedLine:
    """One line of the survey's Table 3, with its line of Table 2.

    Attributes
    ----------
    method : str
        Name of the method in the benchmark.
    settings : tuple of str
        Settings of the benchmark next to which the line is shown; may be empty.
    row : str
        The entry in the second column of Table 3.
    source : str
        The paper with the experiments.
    efficiency : Spread or str
        Time to retrain divided by time to forget; a formula if it was not measured.
    effectiveness : str
        The printed text: a bound over experiments, with an outlier in brackets.
    efficiency_against, effectiveness_against : str
        The baseline that the number belongs to. Papers on exact methods compare accuracy with an
        ordinary model; the SISA paper also compares times with an ordinary model.
    consistency : Spread, str or None
        The printed values; None if not reported.
    consistency_name : str
        The kind of consistency in the survey.
    certificate : str
        The entry in the last column of Table 2.
    certifiability : float or None
        SAPE on deleted rows in per cent, from Table 2: the geometric mean over data sets.
    note : str
        Caveats for comparisons, and printing errors.

    Examples
    --------
    >>> from letheon.bench import PUBLISHED
    >>> PUBLISHED[0].method, PUBLISHED[0].efficiency.mean
    ('SISA', 2.49)
    """

    method: str
    settings: tuple[str, ...]
    row: str
    source: str
    efficiency: Spread | str
    effectiveness: str
    efficiency_against: str = "same algorithm"
    effectiveness_against: str = "same algorithm"
    consistency: Spread | str | None = None
    consistency_name: str = ""
    certificate: str
    certifiability: float | None = None
    note: str = ""


def _read_line(entry: dict[str, Any]) -> PublishedLine:
    for name in ("efficiency", "consistency"):
        if isinstance(entry.get(name), list):
            entry[name] = Spread(*entry[name])
    return PublishedLine(**entry | {"settings": tuple(entry["settings"])})


_TABLES = tomllib.loads(files("letheon.bench").joinpath("published.toml").read_text("utf-8"))
PUBLISHED: tuple[PublishedLine, ...] = tuple(map(_read_line, _TABLES["line"]))


def find_published(method: str, setting: str) -> PublishedLine | None:
    """Return the survey's line for a method and setting of the benchmark, or None."""
    return next((p for p in PUBLISHED if p.method == method and setting in p.settings), None)


Record = dict[str, Any]
Columns = dict[str | tuple[str, str], Callable[[Any], Any]]
BASELINES = ("same algorithm", "ordinary model")
_ORDER: dict[tuple[str, ...], int] = {r[:3]: place for place, r in enumerate(VARIANTS)}

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
    "the numbers in the survey (Mercuri et al. 2022, Tables 2 and 3), from other data, machines "
    "and experiments; it warns against comparisons. *people*: people removed; for 1, one after the "
    "other. *efficiency*: time of the baseline's retrain divided by that of a request, per data "
    "set; the retrain of the *same algorithm* uses the fastest solver that reaches its loss. *x "
    "own training*: time of the method's own fit divided by that of a request, geometric mean, as "
    "in papers on DeltaGrad and Descent-to-Delete. *effectiveness*: absolute difference of test "
    "accuracy, in percentage points. *consistency*: equal predictions on test rows; *parameters*: "
    "distance of the parameters, geometric mean. *claim*: exact, (epsilon, delta), or none. "
    "*SAPE*: 100 |a - b| / (a + b) of the accuracies on forgotten rows, mean. *storage*: bytes of "
    "the state divided by the baseline's. *attacks*: means over data sets, in brackets the floor "
    "(one retrain compared with another); AUC 0.5 finds nothing. *before/after*: one person is "
    "removed and the attacker has both versions, which reveals the removal with any method."
)
_BRIEF_NOTE = (
    "Published numbers in brackets. *x*: times faster than a retrain, geometric mean over {sets}. "
    "*points off*: largest difference of test accuracy, in percentage points. *agreement*: equal "
    "predictions with a retrain of the same algorithm, geometric mean."
)


@dataclass(frozen=True, kw_only=True)
class ResultLine:
    """One method with one setting, compared with one baseline over data sets.

    Attributes
    ----------
    method, family, setting, baseline, removed : str
        What the cells of the line have in common.
    datasets, failed : tuple of str, int
        Data sets with a result; number of cells with an error, which are not included below.
    efficiency, own_efficiency : Spread
        Time to retrain the baseline, and to train the method itself, divided by time to forget.
    effectiveness : Spread
        Absolute difference of test accuracy, in percentage points; `mean` is the arithmetic one.
    consistency, parameters : Spread, Spread or None
        Equal predictions on test rows in per cent; distance of the parameters, if comparable.
    certifiability : Spread
        SAPE of the accuracies on forgotten rows, per cent; `mean` is the arithmetic one.
    storage : Spread or None
        Bytes of the state divided by those of the baseline.
    certificate, published : str, PublishedLine or None
        The claim: exact, (epsilon, delta), or none, for each data set; the survey's line.
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
    published: PublishedLine | None

    @property
    def name(self) -> str:
        """Method and family, as text."""
        return f"{self.method} ({self.family})"

    @property
    def key(self) -> tuple[str, str, str]:
        """Method, family and setting, as in the cells of the line."""
        return self.method, self.family, self.setting


def make_spread(values: Iterable[float], *, geometric: bool = True) -> Spread:
    """Return minimum, mean and maximum of the values.

    The mean is geometric by default, and then 0 if any value is 0.

    Examples
    --------
    >>> spread = make_spread([1.0, 100.0])
    >>> spread.low, round(spread.mean, 6), spread.high
    (1.0, 10.0, 100.0)
    >>> make_spread([0.0, 3.0], geometric=False).mean
    1.5
    """
    sample = [float(value) for value in values]
    if not sample:
        raise ValueError("values is empty; expected at least one number")
    if not geometric:
        mean = math.fsum(sample) / len(sample)
    elif min(sample) < 0:
        raise ValueError(f"values contains {min(sample)}; a geometric mean needs numbers >= 0")
    elif min(sample) == 0:
        mean = 0.0
    else:
        mean = math.exp(math.fsum(map(math.log, sample)) / len(sample))
    # Rounding of exp and log must not move the mean outside of minimum and maximum.
    return Spread(min(sample), min(max(mean, min(sample)), max(sample)), max(sample))


def make_lines(records: Sequence[Record], removed: str | None = None) -> list[ResultLine]:
    """Return one line for each method, family, setting and baseline, in the grid's order.

    Parameters
    ----------
    records : sequence of dict
        Cells, as `run` returns them.
    removed : str, optional
        Use cells with this number of people removed. By default, the smallest number that each
        setting was run with, as in the survey's table.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from letheon.bench import BenchmarkOptions, run
    >>> sizes = {"datasets": ("breast-cancer",), "removed": ("1",), "seeds": 1, "rows": 100}
    >>> options = BenchmarkOptions.quick(methods=("NearestCentroid",), attacks=False, **sizes)
    >>> with TemporaryDirectory() as folder:
    ...     lines = make_lines(run(options, folder))
    >>> [(line.name, line.baseline, line.certificate) for line in lines]
    [('NearestCentroid (linear)', 'same algorithm', 'exact'),
     ('NearestCentroid (linear)', 'ordinary model', 'exact')]
    """
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        if record["cell"]["kind"] == "measure":
            groups.setdefault(_get_key(record), []).append(record)
    lines = []
    for key in sorted(groups, key=lambda key: _ORDER.get(key, len(_ORDER))):
        # A share counts as more than any number.
        chosen_removed = removed or min(
            {str(record["cell"]["removed"]) for record in groups[key]},
            key=lambda text: (text.endswith("%"), float(text.rstrip("%"))),
        )
        chosen = [record for record in groups[key] if record["cell"]["removed"] == chosen_removed]
        if any(record["error"] is None for record in chosen):
            lines += [_make_line(chosen, baseline) for baseline in BASELINES]
    return lines


def _get_key(record: Record) -> tuple[str, ...]:
    cell = record["cell"]
    return cell["method"], cell["family"], cell["setting"]


def _make_line(records: Sequence[Record], baseline: str) -> ResultLine:
    good = [record for record in records if record["error"] is None]
    cell, evaluations = good[0]["cell"], [record["evaluation"] for record in good]

    def spread(name: str, factor: float = 1, *, geometric: bool = True) -> Any:
        measures = [evaluation["measures"][baseline] for evaluation in evaluations]
        values = [factor * each[name]["value"] for each in measures if name in each]
        return make_spread(values, geometric=geometric) if values else None

    sizes = [evaluation["storage"] for evaluation in evaluations]
    known = [size for size in sizes if {"unlearned", baseline} <= set(size)]
    times = [evaluation["seconds"] for evaluation in evaluations]
    return ResultLine(
        **{name: cell[name] for name in ("method", "family", "setting", "removed")},
        baseline=baseline,
        datasets=tuple(record["cell"]["dataset"] for record in good),
        failed=len(records) - len(good),
        efficiency=spread("efficiency"),
        own_efficiency=make_spread(
            each["fit"]["value"] / each["forget"]["value"] for each in times
        ),
        effectiveness=spread("effectiveness", 100, geometric=False),
        consistency=spread("output consistency"),
        parameters=spread("parameter consistency"),
        certifiability=spread("certifiability", geometric=False),
        storage=make_spread(size["unlearned"] / size[baseline] for size in known)
        if known
        else None,
        certificate=_describe_claim(evaluations),
        published=find_published(cell["method"], cell["setting"]),
    )


def _describe_claim(evaluations: Sequence[Record]) -> str:
    """Return the claimed guarantee as text; if data sets differ, each claim with its count."""
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
    """Return the mean of an attack's measure, and of its floor, over data sets; None if not run.

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
        if record["cell"]["kind"] == "attack" and _get_key(record) == key
        for result in record["attacks"]
        if (result["attack"], result["about"]) == (attack, about) and measure in result["measures"]
    ]
    if not pairs:
        return None
    values, floors = zip(*pairs, strict=True)
    return math.fsum(values) / len(values), math.fsum(floors) / len(floors)


def report_tables(records: Sequence[Record], options: BenchmarkOptions) -> list[Table]:
    """Return every table except the main one."""
    tables = []
    for removed in options.removed:
        people = (
            "one person after the other" if removed == "1" else f"{removed} of the people at once"
        )
        if lines := make_lines(records, removed):
            tables.append(_make_table(f"Removed: {people}", _SHORT, lines))
    for dataset in _list_datasets(records):
        good = [r for r in records if r["cell"]["dataset"] == dataset and r["evaluation"]]
        titles = dict.fromkeys(f"{r['cell']['family']}: {r['data']}" for r in good)
        note = "; ".join(titles) + ". *floor*: agreement of one retrain with another."
        tables.append(_make_table(f"Data set: {dataset}", _DATASET, good, note))
    note = "Minimum, geometric mean and maximum over experiments, as printed. Formulas are theory."
    tables.append(_make_table("Numbers in the survey", _PRINTED, PUBLISHED, note))
    failed = [record for record in records if record["error"] is not None]
    return [*tables, _make_table("Cells that failed", _ERRORS, failed)] if failed else tables


def _make_table(title: str, columns: Columns, items: Sequence[Any], note: str = "") -> Table:
    rows = [[make_cell(item) for make_cell in columns.values()] for item in items]
    return Table(title, [*columns], rows, note)


def main_table(records: Sequence[Record]) -> Table:
    """Return the main table: the survey's table with the numbers of this benchmark added.

    Parameters
    ----------
    records : sequence of dict
        Cells, as `run` returns them.

    Examples
    --------
    >>> main_table([]).rows
    []
    """
    rows = [_main_row(records, line) for line in make_lines(records)]
    names = ", ".join(_list_datasets(records)) or "nothing"
    return Table(_TITLE, _MAIN, rows, _NOTE.format(sets=names))


def brief_table(records: Sequence[Record]) -> Table:
    """Return a narrower main table, with one line for each method and setting.

    Parameters
    ----------
    records : sequence of dict
        Cells, as `run` returns them.

    Examples
    --------
    >>> brief_table([]).title
    'In short'
    """
    lines = make_lines(records)
    pairs = [*zip(lines[::2], lines[1::2], strict=True)]
    attacks: Columns = {
        "RMIA AUC (floor)": lambda both: _format_attack(records, both[0], "rmia", "AUC")
    }
    names = ", ".join(_list_datasets(records)) or "nothing"
    return _make_table("In short", _BRIEF | attacks, pairs, _BRIEF_NOTE.format(sets=names))


def _without_formula(cell: Any) -> Any:
    """Return a cell with the word "theory" in place of a formula."""
    if isinstance(cell, Cell) and "(" in cell.published:
        return replace(cell, published="theory")
    return cell


def _list_datasets(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(r["cell"]["dataset"] for r in records if r["error"] is None))


def _main_row(records: Sequence[Record], line: ResultLine) -> tuple[Any, ...]:
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
        *_efficiency_cells(line),
        _format_factor(line.own_efficiency.mean),
        _effectiveness_cell(line),
        f"{line.effectiveness.mean:.2f}",
        *_consistency_cells(line, known),
        _with_published(line.certificate, known and known.certificate),
        _with_published(f"{line.certifiability.mean:.2g}", None if sape is None else f"{sape:g} %"),
        "-" if line.storage is None else f"{line.storage.mean:.3g}",
        *(_format_attack(records, line, *attack) if is_same else None for attack in attacks),
    )


def _with_published(value: str, published: Any) -> Any:
    return value if published is None else Cell(value, published)


def _efficiency_cells(line: ResultLine) -> list[Any]:
    known, texts = line.published, [_format_factor(value) for value in line.efficiency]
    if known is None or known.efficiency_against != line.baseline:
        return texts
    if isinstance(known.efficiency, str):
        return [texts[0], _with_published(texts[1], known.efficiency), texts[2]]
    return [*map(_with_published, texts, map(_format_factor, known.efficiency))]


def _effectiveness_cell(line: ResultLine) -> Any:
    known, worst = line.published, f"{line.effectiveness.high:.2f}"
    is_here = known is not None and known.effectiveness_against == line.baseline
    return _with_published(worst, known.effectiveness if known and is_here else None)


def _consistency_cells(line: ResultLine, known: PublishedLine | None) -> list[Any]:
    """Return the table cells for consistency: agreement of predictions, distance of parameters."""
    if line.certificate == "exact" and line.baseline == BASELINES[0]:
        return ["exact", _with_published("exact", known and "exact"), "exact", "-"]
    ours = [f"{value:.4g}" for value in line.consistency]
    parameters = "-" if line.parameters is None else f"{line.parameters.mean:.2g}"
    if known is None or known.consistency is None:
        return [*ours, parameters]
    if isinstance(known.consistency, str):
        return [ours[0], _with_published(ours[1], known.consistency), ours[2], parameters]
    if known.consistency_name == "parameter consistency":
        return [*ours, _with_published(parameters, f"{known.consistency.mean:.2g}")]
    return [
        *map(_with_published, ours, (f"{value:.4g}" for value in known.consistency)),
        parameters,
    ]


def _format_factor(value: float) -> str:
    return f"{value:,.0f}x" if value >= 100 else f"{value:.3g}x"


def _format_attack(records: Sequence[Record], line: ResultLine, attack: str, measure: str) -> str:
    pair = attack_value(records, line.key, attack, measure)
    return "-" if pair is None else f"{pair[0]:.3g} ({pair[1]:.3g})"


def _format_interval(record: Record, baseline: str) -> str:
    measure = record["evaluation"]["measures"][baseline]["efficiency"]
    low, high = measure["low"], measure["high"]
    ends = (
        "" if low is None or high is None else f" [{_format_factor(low)}, {_format_factor(high)}]"
    )
    return _format_factor(measure["value"]) + ends


def _format_measure(record: Record, baseline: str, name: str, form: str, factor: float = 1) -> str:
    value = record["evaluation"]["measures"][baseline][name]["value"]
    return format(factor * value, form)


def _agreement_floor(record: Record) -> str:
    floor = record["evaluation"]["floor"].get("output consistency")
    return "-" if floor is None else f"{floor['value']:.4g}"


def _format_seconds(record: Record, name: str) -> str:
    return f"{1000 * record['evaluation']['seconds'][name]['value']:.3g}"


def _format_score(record: Record, name: str) -> str:
    return f"{record['evaluation']['scores'][name]['value']:.4f}"


def _as_printed(value: Spread | str | None, unit: str) -> str:
    if value is None or isinstance(value, str):
        return value or "not reported"
    return " / ".join(f"{number:.6g}{unit}" for number in value)


_SAME, _OTHER = BASELINES
# Columns of a line.
_SHORT: Columns = {
    "method": lambda line: line.name,
    "setting": lambda line: line.setting,
    "against": lambda line: line.baseline,
    ("efficiency", "min"): lambda line: _format_factor(line.efficiency.low),
    ("efficiency", "g. mean"): lambda line: _format_factor(line.efficiency.mean),
    ("efficiency", "max"): lambda line: _format_factor(line.efficiency.high),
    ("effectiveness", "worst, points"): lambda line: f"{line.effectiveness.high:.2f}",
    ("consistency", "g. mean %"): lambda line: f"{line.consistency.mean:.4g}",
    ("certificate", "SAPE %"): lambda line: f"{line.certifiability.mean:.2g}",
    "data sets": lambda line: len(line.datasets),
    "failed": lambda line: line.failed,
}
# Columns of both lines of a setting.
_BRIEF: Columns = {
    "method": lambda both: both[0].name,
    "setting": lambda both: both[0].setting,
    "people": lambda both: both[0].removed,
    "x same algorithm": lambda both: _without_formula(_efficiency_cells(both[0])[1]),
    "x ordinary model": lambda both: _without_formula(_efficiency_cells(both[1])[1]),
    "points off: same": lambda both: _effectiveness_cell(both[0]),
    "points off: ordinary": lambda both: _effectiveness_cell(both[1]),
    "agreement %": lambda both: _without_formula(_consistency_cells(both[0], both[0].published)[1]),
    "claim": lambda both: both[0].certificate,
}
# Columns of a record.
_DATASET: Columns = {
    "method": lambda r: f"{r['cell']['method']} ({r['cell']['family']})",
    "setting": lambda r: r["setting"],
    "people": lambda r: r["cell"]["removed"],
    ("efficiency", "same"): lambda r: _format_interval(r, _SAME),
    ("efficiency", "ordinary"): lambda r: _format_interval(r, _OTHER),
    ("effectiveness", "same"): lambda r: _format_measure(r, _SAME, "effectiveness", ".2f", 100),
    ("effectiveness", "ordinary"): lambda r: _format_measure(
        r, _OTHER, "effectiveness", ".2f", 100
    ),
    ("agreement %", "same"): lambda r: _format_measure(r, _SAME, "output consistency", ".4g"),
    ("agreement %", "floor"): _agreement_floor,
    ("agreement %", "ordinary"): lambda r: _format_measure(r, _OTHER, "output consistency", ".4g"),
    ("SAPE %", "same"): lambda r: _format_measure(r, _SAME, "certifiability", ".3g"),
    ("ms", "request"): lambda r: _format_seconds(r, "forget"),
    ("ms", "retrain"): lambda r: _format_seconds(r, _SAME),
    ("ms", "ordinary"): lambda r: _format_seconds(r, _OTHER),
    ("accuracy", "unlearned"): lambda r: _format_score(r, "unlearned"),
    ("accuracy", "ordinary"): lambda r: _format_score(r, _OTHER),
}
_ERRORS: Columns = {
    "data set": lambda r: r["cell"]["dataset"],
    "method": lambda r: r["cell"]["method"],
    "setting": lambda r: r["cell"]["setting"],
    "people": lambda r: r["cell"]["removed"],
    "kind": lambda r: r["cell"]["kind"],
    "error": lambda r: r["error"]["kind"],
    "text": lambda r: r["error"]["text"],
}
_PRINTED: Columns = {
    "method": lambda known: known.method,
    "row": lambda known: known.row or "-",
    "efficiency": lambda known: _as_printed(known.efficiency, "x"),
    "effectiveness": lambda known: known.effectiveness,
    "consistency": lambda known: _as_printed(known.consistency, ""),
    "certificate": lambda known: known.certificate,
    "source": lambda known: known.source,
    "note": lambda known: known.note,
}
