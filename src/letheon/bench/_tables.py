"""The report's tables: the survey's own form first, then every number of people, then each set."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from letheon.bench._grid import Options
from letheon.bench._published import PUBLISHED, Published, Spread
from letheon.bench._table import BASELINES, Line, attack_value, lines_of
from letheon.evaluation.report import Cell, Table

__all__ = ["brief_table", "error_table", "main_table", "report_tables"]

Record = dict[str, Any]

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


def report_tables(records: Sequence[Record], options: Options) -> list[Table]:
    """Return every table but the main one."""
    tables = [
        _short_table(records, removed)
        for removed in options.removed
        if lines_of(records, removed=removed)
    ]
    tables += [_dataset_table(records, dataset) for dataset in _datasets(records)]
    tables.append(_published_table())
    errors = error_table(records)
    return [*tables, errors] if errors.rows else tables


def main_table(records: Sequence[Record]) -> Table:
    """Return the survey's table with our numbers and the published ones."""
    rows = [_main_row(records, line) for line in lines_of(records)]
    names = ", ".join(_datasets(records)) or "nothing"
    return Table(_TITLE, _MAIN, rows, _NOTE.format(sets=names))


_BRIEF = (
    "method", "setting", "people", "x same algorithm", "x ordinary model",
    "points off: same", "points off: ordinary", "agreement %", "claim", "RMIA AUC (floor)",
)  # fmt: skip
_BRIEF_NOTE = (
    "Published numbers in brackets. *x*: times faster than a retrain, geometric mean over {sets}. "
    "*points off*: largest difference of test accuracy, in percentage points. *agreement*: equal "
    "answers with a retrain of the same algorithm, geometric mean."
)


def brief_table(records: Sequence[Record]) -> Table:
    """Return the main table with one line for each method and setting, for narrow places."""
    rows = []
    lines = lines_of(records)
    for same, ordinary in zip(lines[::2], lines[1::2], strict=True):
        found = attack_value(records, (same.method, same.family, same.setting), "rmia", "AUC")
        rows.append(
            (
                f"{same.method} ({same.family})",
                same.setting,
                same.removed,
                _plainly(_efficiency(same)[1]),
                _plainly(_efficiency(ordinary)[1]),
                _effectiveness(same),
                _effectiveness(ordinary),
                _plainly(_consistency(same, same.published)[1]),
                same.certificate,
                _with_floor(found),
            )
        )
    names = ", ".join(_datasets(records)) or "nothing"
    return Table("In short", _BRIEF, rows, _BRIEF_NOTE.format(sets=names))


def _plainly(cell: Any) -> Any:
    """Return a cell with the word "theory" in the place of a formula."""
    if isinstance(cell, Cell) and "(" in cell.published:
        return replace(cell, published="theory")
    return cell


def _datasets(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(r["cell"]["dataset"] for r in records if r["error"] is None))


def _main_row(records: Sequence[Record], line: Line) -> tuple[Any, ...]:
    key = (line.method, line.family, line.setting)
    # Consistency and certificates are about a retrain of the same algorithm.
    known = line.published if line.baseline == BASELINES[0] else None
    attacks: list[Any] = [None] * 4
    if line.baseline == BASELINES[0]:
        attacks = [
            _with_floor(attack_value(records, key, "rmia", "AUC")),
            _with_floor(attack_value(records, key, "rmia", "TPR at 1 % FPR")),
            _with_floor(attack_value(records, key, "backdoor", "certifiability")),
            _with_floor(attack_value(records, key, "before-after", "AUC")),
        ]
    return (
        f"{line.method} ({line.family})",
        line.setting,
        line.baseline,
        line.removed,
        *_efficiency(line),
        _factor(line.own_efficiency.mean),
        _effectiveness(line),
        _points(line.effectiveness.mean),
        *_consistency(line, known),
        _beside(line.certificate, known and known.certificate),
        _beside(f"{line.certifiability.mean:.2g}", _percent(known)),
        "-" if line.storage is None else f"{line.storage.mean:.3g}",
        *attacks,
    )


def _beside(value: str, published: Any) -> Any:
    return value if published is None else Cell(value, published)


def _efficiency(line: Line) -> list[Any]:
    known, texts = line.published, [_factor(value) for value in line.efficiency]
    if known is None or known.efficiency_against != line.baseline:
        return texts
    if isinstance(known.efficiency, str):
        return [texts[0], _beside(texts[1], known.efficiency), texts[2]]
    return [_beside(*pair) for pair in zip(texts, map(_factor, known.efficiency), strict=True)]


def _effectiveness(line: Line) -> Any:
    known, worst = line.published, _points(line.effectiveness.high)
    if known is None or known.effectiveness_against != line.baseline:
        return worst
    return _beside(worst, known.effectiveness)


def _consistency(line: Line, known: Published | None) -> list[Any]:
    """Return least, mean and largest agreement, and the distance of parameters."""
    if line.certificate == "exact" and line.baseline == BASELINES[0]:
        published = known and "exact"
        return ["exact", _beside("exact", published), "exact", "-"]
    ours = [f"{value:.4g}" for value in line.consistency]
    parameters = "-" if line.parameters is None else f"{line.parameters.mean:.2g}"
    if known is None or known.consistency is None:
        return [*ours, parameters]
    if isinstance(known.consistency, str):
        return [ours[0], _beside(ours[1], known.consistency), ours[2], parameters]
    if known.consistency_name == "parameter consistency":
        return [*ours, _beside(parameters, f"{known.consistency.mean:.2g}")]
    printed = [f"{value:.4g}" for value in known.consistency]
    return [*(_beside(*pair) for pair in zip(ours, printed, strict=True)), parameters]


def _factor(value: float) -> str:
    return f"{value:,.0f}x" if value >= 100 else f"{value:.3g}x"


def _points(value: float) -> str:
    return f"{value:.2f}"


def _percent(known: Published | None) -> str | None:
    if known is None or known.certifiability is None:
        return None
    return f"{known.certifiability:g} %"


def _with_floor(found: tuple[float, float] | None) -> str:
    return "-" if found is None else f"{found[0]:.3g} ({found[1]:.3g})"


def _short_table(records: Sequence[Record], removed: str) -> Table:
    people = "1 person after the other" if removed == "1" else f"{removed} of the people at once"
    rows: list[tuple[Any, ...]] = [
        (
            f"{line.method} ({line.family})",
            line.setting,
            line.baseline,
            *(_factor(value) for value in line.efficiency),
            _points(line.effectiveness.high),
            f"{line.consistency.mean:.4g}",
            f"{line.certifiability.mean:.2g}",
            len(line.datasets),
            line.failed,
        )
        for line in lines_of(records, removed=removed)
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
    cell, found = record["cell"], record["evaluation"]
    same, ordinary = (found["measures"][baseline] for baseline in BASELINES)
    floor = found["floor"].get("output consistency")
    seconds = found["seconds"]
    return (
        f"{cell['method']} ({cell['family']})",
        record["setting"],
        cell["removed"],
        *(_interval(each["efficiency"]) for each in (same, ordinary)),
        *(_points(100 * each["effectiveness"]["value"]) for each in (same, ordinary)),
        f"{same['output consistency']['value']:.4g}",
        "-" if floor is None else f"{floor['value']:.4g}",
        f"{ordinary['output consistency']['value']:.4g}",
        f"{same['certifiability']['value']:.3g}",
        *(f"{1000 * seconds[name]['value']:.3g}" for name in ("forget", *BASELINES)),
        *(f"{found['scores'][name]['value']:.4f}" for name in ("unlearned", BASELINES[1])),
    )


def _interval(measure: dict[str, Any]) -> str:
    low, high = measure["low"], measure["high"]
    text = _factor(measure["value"])
    return text if low is None or high is None else f"{text} [{_factor(low)}, {_factor(high)}]"


def _published_table() -> Table:
    columns = (
        "method", "row", "efficiency", "effectiveness", "consistency", "certificate", "source",
        "note",
    )  # fmt: skip
    rows: list[tuple[Any, ...]] = [
        (
            line.method,
            line.row or "-",
            _printed(line.efficiency, "x"),
            line.effectiveness,
            _printed(line.consistency, ""),
            line.certificate,
            line.source,
            line.note,
        )
        for line in PUBLISHED
    ]
    note = "Least, geometric mean and largest over experiments, as printed. Formulas are theory."
    return Table("What the survey printed", columns, rows, note)


def _printed(value: Spread | str | None, unit: str) -> str:
    if value is None or isinstance(value, str):
        return value or "not reported"
    return " / ".join(f"{number:.6g}{unit}" for number in value)


def error_table(records: Sequence[Record]) -> Table:
    """Return the cells that failed, and why."""
    rows: list[tuple[Any, ...]] = [
        (
            *(record["cell"][name] for name in ("dataset", "method", "setting", "removed", "kind")),
            record["error"]["kind"],
            record["error"]["text"],
        )
        for record in records
        if record["error"] is not None
    ]
    columns = ("data set", "method", "setting", "people", "kind", "error", "text")
    return Table("Cells that failed", columns, rows)
