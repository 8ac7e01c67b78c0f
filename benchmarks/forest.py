"""Benchmarks of DaRE forests: time, memory, ranking, growth, parameters and identity.

Run ``python benchmarks/forest.py`` (about 20 minutes on one core) or, for a first look,
``python benchmarks/forest.py --quick`` (under a minute), or only some sections:
``--only adult,synthetic,growth``. Results go to ``benchmarks/results``.
"""

import os
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import threadpoolctl
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script, not a module

from benchmarks import _forest_curves as curves
from benchmarks import _forest_growth as growth
from benchmarks import _forest_pictures as pictures
from benchmarks import _forest_sets as sets
from benchmarks._data import Split, load_split, make_synthetic_split, make_table
from benchmarks._forest_fresh import store_rows
from benchmarks._forest_growth import check_identity, make_identity_table, run_sequence
from benchmarks._forest_models import ForestSize, time_call
from benchmarks._report import BenchmarkReport

RESULTS = Path(__file__).resolve().parent / "results"
SETS = ("synthetic", "adult", "higgs", "census", "diabetes")
SUMMARY = "summary"
CURVES = ("synthetic", "adult", "higgs")
SEED = 20260


class ForestScale(NamedTuple):
    """Sizes and repetitions of a run."""

    shape: ForestSize
    most_rows: int | None
    repeats: dict[str, int]
    effort: sets.SetEffort
    growth_rows: tuple[int, ...]
    tree_rows: int
    trees: tuple[int, ...]
    depths: tuple[int, ...]
    leaving: int
    thresholds: tuple[int, ...]
    curves: curves.CurveEffort
    thread_repeats: int
    lives: int
    life_rows: int
    life_steps: int


FULL = ForestScale(
    shape=ForestSize(),
    most_rows=None,
    repeats={"adult": 3, "higgs": 3, "synthetic": 3},
    effort=sets.SetEffort(1, 300, 200, 1000, 20),
    growth_rows=(1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000),
    tree_rows=20_000,
    trees=(10, 30, 100, 300),
    depths=(5, 10, 15, 20),
    leaving=200,
    thresholds=(1, 5, 25, 100),
    curves=curves.CurveEffort(300, 1000, 3, 10_000, 5),
    thread_repeats=2,
    lives=50,
    life_rows=4_000,
    life_steps=100,
)
QUICK = ForestScale(
    shape=ForestSize(10, 8),
    most_rows=2_000,
    repeats={},
    effort=sets.SetEffort(1, 50, 20, 100, 3),
    growth_rows=(1_000, 3_000, 10_000),
    tree_rows=2_000,
    trees=(3, 10),
    depths=(5, 10),
    leaving=20,
    thresholds=(1, 5, 25),
    curves=curves.CurveEffort(50, 50, 2, 1_000, 3),
    thread_repeats=1,
    lives=5,
    life_rows=500,
    life_steps=20,
)


class ForestBench:
    """One run: size, report, and data that several sections use."""

    def __init__(self, size: ForestScale, report: BenchmarkReport, file: Path) -> None:
        self.size, self.report, self.file = size, report, file
        self.results: list[sets.SetFindings] = []

    def split(self, name: str) -> Split | None:
        """Return a table, truncated in a quick run; None if its files are missing."""
        data = _load_table(name)
        return data.head(self.size.most_rows) if data and self.size.most_rows else data

    def splits(self, names: tuple[str, ...]) -> list[Split]:
        """Return the available tables."""
        return [split for name in names if (split := self.split(name)) is not None]

    def unit(self, split: Split) -> float:
        """Return F of a table, measured once per run."""
        for result in self.results:
            if result.split.name == split.name:
                return result.unit
        model = self.size.shape.random_forest(0)
        return time_call(lambda: model.fit(split.X, split.y))

    def measure_set(self, name: str) -> None:
        """Measure everything about one table."""
        split = self.split(name)
        if split is None:
            print(f"{name}: files are missing, skipped", flush=True)
            return
        repeats = self.size.repeats.get(name, 1)
        effort = self.size.effort._replace(repeats=repeats)
        findings = sets.measure_set(split, self.size.shape, effort)
        self.results.append(findings)
        self.report.add(sets.make_set_table(findings), sets.check_set(findings))

    def summarise(self) -> None:
        """Write the summary of all tables."""
        if self.results:
            self.report.add(sets.make_summary_table(self.results))
            self.report.add(sets.make_quality_table(self.results))
            pictures.draw_sets(self.results, self._picture("sets"))

    def measure_growth(self) -> None:
        """Measure growth with rows, trees and depth."""
        size, shape = self.size, self.size.shape
        with store_rows(make_table(max(size.growth_rows), 0, n_features=28, seed=SEED)) as files:
            rows = growth.grow_rows(files, shape, size.growth_rows, size.leaving)
        title = "Growth with rows (made up, 28 columns)"
        self.report.add(
            growth.make_growth_table(title, rows, growth.ALONE), growth.check_rows(rows)
        )
        split = self.splits(("synthetic",))[0]
        with store_rows(split.head(size.tree_rows)) as files:
            trees = growth.grow_trees(files, shape, size.trees, size.leaving)
        self.report.add(growth.make_growth_table("Growth with trees (synthetic)", trees))
        with store_rows(split) as files:
            depth = growth.grow_depth(files, shape, size.depths, size.leaving)
        table = growth.make_growth_table("Growth with depth (synthetic)", depth)
        self.report.add(table, growth.check_depth(depth))
        pictures.draw_growth(pictures.Growth(rows, trees, depth), self._picture("growth"))

    def measure_thresholds(self) -> None:
        """Measure the curve over k."""
        size, dials = self.size, []
        for split in self.splits(CURVES):
            unit = self.unit(split)
            dials += curves.vary_thresholds(split, size.shape, unit, size.thresholds, size.curves)
        self.report.add(curves.make_threshold_table(dials, size.curves))
        file = self._picture("thresholds")
        pictures.draw_curves(dials, "thresholds per attribute (k)", file, logarithmic=True)

    def measure_random_depth(self) -> None:
        """Measure the survey's five models."""
        size, dials = self.size, []
        for split in self.splits(CURVES):
            dials += curves.vary_random_depths(split, size.shape, self.unit(split), size.curves)
        self.report.add(curves.make_random_table(dials, size.curves))
        file = self._picture("random_depth")
        pictures.draw_curves(dials, "levels of random nodes", file, logarithmic=False)

    def measure_threads(self) -> None:
        """Compare two threads with one."""
        split = self.splits(("synthetic",))[0]
        if (os.cpu_count() or 1) > 1:
            self.report.add(
                *growth.compare_threads(split, self.size.shape, self.size.thread_repeats)
            )

    def measure_identity(self) -> None:
        """Run long random sequences of operations on real rows."""
        size = self.size
        real = self.splits(SETS[1:]) or self.splits(SETS[:1])
        lives = [
            run_sequence(real[i % len(real)], SEED + i, size.life_rows, size.life_steps)
            for i in range(size.lives)
        ]
        self.report.add(make_identity_table(lives, size.life_steps), [check_identity(lives)])

    def _picture(self, name: str) -> Path:
        return self.file.with_name(f"{self.file.name}_{name}.png")


@cache
def _load_table(name: str) -> Split | None:
    return make_synthetic_split() if name == "synthetic" else load_split(name)


def list_sections(bench: ForestBench) -> dict[str, Callable[[], None]]:
    """Return the sections of a run, in order."""
    return {
        **{name: lambda name=name: bench.measure_set(name) for name in SETS},  # type: ignore[misc]
        SUMMARY: bench.summarise,
        "growth": bench.measure_growth,
        "thresholds": bench.measure_thresholds,
        "random_depth": bench.measure_random_depth,
        "threads": bench.measure_threads,
        "identity": bench.measure_identity,
    }


def run(
    size: ForestScale, chosen: list[str], file: Path, settings: dict[str, Any]
) -> BenchmarkReport:
    """Run the chosen sections, or all of them."""
    report = BenchmarkReport("DaRE forest benchmarks", settings, file=file)
    bench = ForestBench(size, report, file)
    every = list_sections(bench)
    if unknown := set(chosen) - set(every):
        raise typer.BadParameter(f"unknown: {sorted(unknown)}; known: {list(every)}")
    start = time.perf_counter()
    with threadpoolctl.threadpool_limits(1):
        for name, section in every.items():
            if name in {*chosen, SUMMARY} or not chosen:
                begun = time.perf_counter()
                section()
                print(f"\n== {name}: {time.perf_counter() - begun:.0f} s", flush=True)
    report.settings["seconds"] = round(time.perf_counter() - start)
    return report


def main(
    quick: bool = typer.Option(False, help="Small sizes: indicative only."),
    only: str = typer.Option("", help="Sections to run, separated by commas."),
) -> None:
    """Run the benchmarks; exit with 1 if a target is missed."""
    chosen = [name.strip() for name in only.split(",") if name.strip()]
    # A partial run must not replace the results of a complete one.
    file = RESULTS / ("forest_quick" if quick or chosen else "forest")
    settings = {"quick": quick, "only": only or "everything", "seed": SEED, "threads": 1}
    report = run(QUICK if quick else FULL, chosen, file, settings)
    report.write()
    held = sum(verdict.passed for verdict in report.verdicts)
    print(f"\n{held} of {len(report.verdicts)} hold; {report.settings['seconds']} s")
    raise typer.Exit(0 if quick or report.passed else 1)


if __name__ == "__main__":
    typer.run(main)
