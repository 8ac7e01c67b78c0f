"""SISA in numbers: cost against the closed form, overhead, accuracy, storage, import time.

Run ``python benchmarks/sisa.py`` (about ten minutes on two cores) or, for a first look,
``python benchmarks/sisa.py --quick`` (under a minute). Results go to ``benchmarks/results``.
"""

import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script, not a module

from benchmarks._accuracy import (
    AccuracyRun,
    accuracy_table,
    aggregation_table,
    draw_accuracy,
    draw_plan,
    run_splits,
)
from benchmarks._data import Data, load_data
from benchmarks._report import BenchmarkReport, Seconds, TargetCheck
from benchmarks._training import (
    Race,
    Setting,
    SettingCost,
    compare_with_refit,
    make_cost_table,
    make_latency_table,
    make_overhead_table,
    make_storage_table,
    measure_race,
    measure_removals,
    time_imports,
    time_naive,
)
from letheon.state import encode

RESULTS = Path(__file__).resolve().parent / "results"
SEED = 20260
# Removals of one person by setting. R + 1 divides 2 e, so that no stage's epochs are rounded.
SETTINGS = {
    Setting(1, 1, 20): 3,
    Setting(5, 1, 20): 10,
    Setting(20, 1, 20): 20,
    Setting(5, 10, 22): 20,
    Setting(20, 50, 51): 30,
}
LIGHT = Setting(5, 1, 5)


class SisaSize(NamedTuple):
    """Sizes and repetitions of a run."""

    n_rows: int
    repeats: int
    divide_removals: int
    n_train: int
    n_test: int
    splits: int
    tables: tuple[str, ...]
    batches: dict[int, int]


FULL = SisaSize(24_000, 2, 1, 6_000, 4_000, 5, ("adult", "covtype", "mnist"), {8: 4, 18: 3, 39: 3})
QUICK = SisaSize(1_000, 1, 5, 1_000, 1_000, 2, ("covtype",), {8: 2})


class Costs(NamedTuple):
    """Races and removals, refits by setting, and the checks of exactness."""

    races: list[Race]
    costs: list[SettingCost]
    refits: dict[Setting, list[Seconds]]
    exact: list[TargetCheck]


def measure_costs(data: Data, size: SisaSize) -> Costs:
    """Train every setting in turn with its bare loop, forget with the last model, refit."""
    X, y, rng = data.X, data.y, np.random.default_rng(SEED)
    naive = {e: time_naive(Setting(1, 1, e), X, y, SEED) for e in {s.epochs for s in SETTINGS}}
    costs = Costs([], [], {}, [])
    for setting in SETTINGS:
        raced = measure_race(setting, X, y, SEED, size.repeats)
        costs.races.append(raced)
        for people, n_batches in _list_jobs(setting, size).items():
            times = naive[setting.epochs]
            costs.costs.append(
                measure_removals(setting, raced.model, times, people, n_batches, rng)
            )
        seconds, verdict = compare_with_refit(setting, raced.model, X, y)
        costs.refits[setting] = [*raced.sisa, seconds]
        costs.exact.append(verdict)
        print(f"{setting}: done", flush=True)
    return costs


def _list_jobs(setting: Setting, size: SisaSize) -> dict[int, int]:
    """Return how many batches of how many people to forget."""
    jobs = {1: SETTINGS[setting]} | (size.batches if setting.n_slices == 50 else {})
    return {people: max(2, n // size.divide_removals) for people, n in jobs.items()}


def measure_accuracy(size: SisaSize) -> list[AccuracyRun]:
    """Return the accuracy of every data set, learner and number of shards."""
    results = []
    for name in size.tables:
        results += run_splits(load_data(name), size.n_train, size.n_test, range(size.splits))
        print(f"accuracy on {name}: done", flush=True)
    return results


def run(size: SisaSize, *, quick: bool) -> BenchmarkReport:
    """Run all sections and print each table."""
    start = time.perf_counter()
    data = load_data("mnist").sample(size.n_rows, SEED)
    settings: dict[str, Any] = {"quick": quick, "seed": SEED, "data": data.describe()}
    report = BenchmarkReport("SISA benchmarks", settings, file=RESULTS / _choose_name(quick))
    Setting(2, 2, 3).model(0).fit(data.X[:200], data.y[:200]).forget([0])  # trigger lazy imports
    report.add(*time_imports(5 if quick else 15))
    races, costs, refits, exact = measure_costs(data, size)
    judged = [v for cost in costs for v in cost.verdicts(refits[cost.setting])]
    report.add(make_cost_table(costs, refits, data.describe()), [*judged, *exact])
    light = measure_race(LIGHT, data.X, data.y, SEED, size.repeats)
    overheads = [v for raced in races for v in raced.verdicts()]
    report.add(make_overhead_table([*races, light], size.repeats), overheads)
    models = {r.setting: r.model for r in races}
    report.add(make_storage_table(models))
    report.add(make_latency_table(models, 3 if quick else 8))
    results = measure_accuracy(size)
    sizes = f"{size.n_train:,} training and {size.n_test:,} test rows, {size.splits} splits"
    report.add(accuracy_table(results, sizes))
    report.add(aggregation_table(results))
    draw_accuracy(results, RESULTS / f"{_choose_name(quick)}_accuracy.png")
    state_bytes = len(encode(races[0].model.estimators_[0]))
    draw_plan(size.n_rows, state_bytes, RESULTS / f"{_choose_name(quick)}_plan.png")
    report.settings["seconds"] = round(time.perf_counter() - start)
    return report


def _choose_name(quick: bool) -> str:
    return "sisa_quick" if quick else "sisa"


def main(quick: bool = typer.Option(False, help="Small sizes: indicative only.")) -> None:
    """Run the SISA benchmarks; exit with 1 if a target is missed."""
    report = run(QUICK if quick else FULL, quick=quick)
    report.write()
    held = sum(verdict.passed for verdict in report.verdicts)
    print(f"\n{held} of {len(report.verdicts)} hold; {report.settings['seconds']} s")
    raise typer.Exit(0 if quick or report.passed else 1)


if __name__ == "__main__":
    typer.run(main)
