"""Benchmarks of boosting that forgets: time against LightGBM's fit, accuracy, memory, threads.

Run ``python benchmarks/boosting.py`` (about 40 minutes on one core) or, for a first look,
``python benchmarks/boosting.py --quick``, or only some sections: ``--only tables,threads``. F is
the processor time of LightGBM's default fit (100 trees, 31 leaves, one thread) in the same run.
Fit, accuracy and cost of a line come from the same preset. Results go to ``benchmarks/results``.
"""

import resource
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import threadpoolctl
import typer
from sklearn.metrics import roc_auc_score

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script, not a module

from benchmarks._data import Split, load_split, make_synthetic_split, make_table
from benchmarks._report import BenchmarkReport, Table, TargetCheck, time_call
from letheon import BoostingClassifier, DaREForestClassifier
from letheon.data import as_ids

RESULTS = Path(__file__).resolve().parent / "results"
PRESETS = ("fast", "accurate")
SEEDS = (0, 1, 2)
LOSS = {"fast": 0.005, "accurate": 0.002}


class BoostingGoals(NamedTuple):
    """What must hold on one table: shares of F, or how often F contains the time."""

    fit: float
    person: float
    batch: float | None = None


class BoostingScale(NamedTuple):
    """Sizes and repetitions of a run."""

    small: int
    large: int
    huge: int
    people: int
    batches: int
    lives: int


FULL = BoostingScale(50_000, 1_000_000, 10_000_000, 400, 3, 50)
QUICK = BoostingScale(3_000, 6_000, 20_000, 20, 1, 2)
GOALS = {
    "synthetic, small": BoostingGoals(0.10, 250, 1_200),
    "synthetic, large": BoostingGoals(0.05, 4_000, 6_000),
    "adult": BoostingGoals(0.20, 100),
    "census": BoostingGoals(0.06, 1_500),
}


class RequestTimes(NamedTuple):
    """Times of requests, each with everything that it makes necessary."""

    seconds: list[float]

    @property
    def mean(self) -> float:
        """Mean time."""
        return float(np.mean(self.seconds))

    @property
    def cells(self) -> tuple[float, ...]:
        """Median, mean, 99th percentile and maximum in milliseconds."""
        points = [np.percentile(self.seconds, q) for q in (50, 99)]
        values = (points[0], self.mean, points[1], max(self.seconds))
        return tuple(round(1000 * float(value), 3) for value in values)


def at_least(what: str, ratio: float, least: float) -> TargetCheck:
    """Return the check of a ratio that should be large."""
    return TargetCheck(what, f"F/{ratio:,.0f}", f">= F/{least:,.0f}", ratio >= least)


def at_most(what: str, value: float, most: float) -> TargetCheck:
    """Return the check of a value that should be small."""
    return TargetCheck(what, f"{value:.3g}", f"<= {most:g}", value <= most)


def make_boosting(preset: str, seed: int = 0, n_jobs: int = 1) -> BoostingClassifier:
    """Return a classifier with all settings of a preset."""
    return BoostingClassifier.preset(preset, n_jobs=n_jobs, random_state=seed)


def make_lightgbm(seed: int, **settings: Any) -> Any:
    """Return LightGBM's classifier with one thread."""
    from lightgbm import LGBMClassifier

    return LGBMClassifier(n_jobs=1, verbose=-1, random_state=seed, **settings)


TUNED = {"learning_rate": 0.2, "num_leaves": 63}


def make_histogram(seed: int) -> Any:
    """Return scikit-learn's histogram boosting, with LightGBM's default size."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(early_stopping=False, random_state=seed)


def load_tables(scale: BoostingScale) -> list[Split]:
    """Return the tables: two synthetic ones and the real ones with more than 20,000 rows."""
    small = make_synthetic_split().head(scale.small)
    large = make_table(scale.large, 50_000, n_features=28, seed=2)
    tables = [small._replace(name="synthetic, small"), large._replace(name="synthetic, large")]
    real = [load_split(name) for name in ("adult", "census", "diabetes")]
    return tables + [split for split in real if split is not None]


def score_model(model: Any, split: Split) -> float:
    """Return the AUC on test rows."""
    return float(roc_auc_score(split.y_test, model.predict_proba(split.X_test)[:, 1]))


def forget_settled(model: Any, ids: Any) -> float:
    """Forget some people and finish all pending work; return the processor time, as for F."""
    start = time.process_time()
    model.forget(ids)
    model.settle()
    return time.process_time() - start


def time_quiet(model: Any, people: Sequence[Any]) -> float:
    """Forget one person after the other; return the core's median time if no value changes."""
    core, times = model.boosting_.core, []
    for person in people:
        slots = model.boosting_.find_rows(as_ids([person]))[0]
        start = time.perf_counter()
        core.forget(slots, False, 1)
        seconds = time.perf_counter() - start
        if core.is_settled:
            times.append(seconds)
        core.settle(1)
    return float(np.median(times)) if times else float("nan")


def time_requests(model: Any, people: Sequence[Any]) -> RequestTimes:
    """Forget one group after the other."""
    return RequestTimes([forget_settled(model, group) for group in people])


class SeededFit(NamedTuple):
    """Processor time of one fit, and the AUC of each seed."""

    seconds: float
    scores: list[float]

    @property
    def mean(self) -> float:
        """Mean AUC."""
        return float(np.mean(self.scores))


def fit_seeds(make: Callable[[int], Any], split: Split, seeds: Sequence[int]) -> SeededFit:
    """Fit once per seed; the time is the least of all."""
    times, scores = [], []
    for seed in seeds:
        ids = {} if not isinstance(make(seed), BoostingClassifier) else {"ids": split.ids}
        model, seconds = time_call(partial(make(seed).fit, split.X, split.y, **ids))
        times.append(seconds.cpu)
        scores.append(score_model(model, split))
    return SeededFit(min(times), scores)


def table_section(report: BenchmarkReport, scale: BoostingScale) -> None:
    """Fit, accuracy and requests on every table, for both presets."""
    for split in load_tables(scale):
        default = fit_seeds(make_lightgbm, split, SEEDS)
        rivals = {
            "LightGBM, default": default,
            "LightGBM, rate 0.2, 63 leaves": fit_seeds(
                lambda seed: make_lightgbm(seed, **TUNED), split, SEEDS[:1]
            ),
            "scikit-learn, histograms": fit_seeds(make_histogram, split, SEEDS[:1]),
        }
        if len(split.y) <= 200_000:
            rivals["DaRE forest"] = fit_seeds(
                lambda seed: DaREForestClassifier(n_jobs=1, random_state=seed), split, SEEDS[:1]
            )
        rows: list[tuple[Any, ...]] = [
            (name, f"{result.seconds / default.seconds:.3f}", f"{result.mean:.4f}") + ("",) * 7
            for name, result in rivals.items()
        ]
        checks: list[TargetCheck] = []
        for preset in PRESETS:
            cells, verdicts = measure_preset(preset, split, default, scale)
            rows.append(cells)
            checks += verdicts
        columns = (
            *("model", "fit, F", "AUC", "person p50, ms", "mean", "p99", "max"),
            *("quiet, us", "batch of 100, per person", "1 % at once, F"),
        )
        note = f"{split.describe()}. F = {default.seconds:.3f} s. AUC of three seeds."
        report.add(Table(split.name, columns, rows, note), checks)


def measure_preset(
    preset: str, split: Split, default: SeededFit, scale: BoostingScale
) -> tuple[tuple[Any, ...], list[TargetCheck]]:
    """Return the cells of a line and its checks."""
    yardstick = default.seconds
    result = fit_seeds(partial(make_boosting, preset), split, SEEDS)
    model = make_boosting(preset).fit(split.X, split.y, ids=split.ids)
    people = np.random.default_rng(1).permutation(split.people)
    n_single = scale.people if len(split.y) < 500_000 or preset == "fast" else scale.people // 4
    singles = time_requests(model, [[person] for person in people[:n_single]])
    begin, batches = n_single, []
    size = min(100, len(people) // 20)
    for _ in range(scale.batches):
        batches.append(people[begin : begin + size])
        begin += size
    batch = time_requests(model, batches).mean / size
    share = people[begin : begin + max(1, len(people) // 100)]
    whole = forget_settled(model, share) / yardstick
    begin += len(share)
    quiet = time_quiet(model, list(people[begin : begin + n_single]))
    begin += min(n_single, len(people) - begin)
    cells = (
        *(f"boosting, {preset}", f"{result.seconds / yardstick:.3f}", f"{result.mean:.4f}"),
        *(*singles.cells, f"{1e6 * quiet:.1f}", f"F/{yardstick / batch:,.0f}", f"{whole:.3f}"),
    )
    where = f"{split.name}, {preset}"
    checks = [
        TargetCheck(
            f"AUC against LightGBM's default, {where}",
            f"{result.mean - default.mean:+.4f}",
            f">= -{LOSS[preset]:g}",
            result.mean - default.mean >= -LOSS[preset],
        ),
        TargetCheck(
            f"worst request / own fit, {where}",
            f"{max(singles.seconds) / result.seconds:.2f}",
            "<= 1",
            max(singles.seconds) <= result.seconds,
        ),
        check_fresh(model, preset, split, people[begin:], where),
    ]
    goals = GOALS.get(split.name)
    if preset == "fast":
        checks.append(at_most(f"quiet removal in the core, us, {where}", 1e6 * quiet, 10))
    if preset == "accurate":
        checks.append(at_most(f"fit, F, {where}", result.seconds / yardstick, 0.5))
        if len(split.y) >= 50_000:
            checks.append(at_least(f"one person, mean, {where}", yardstick / singles.mean, 20))
    elif goals is not None:
        checks.append(at_most(f"fit, F, {where}", result.seconds / yardstick, goals.fit))
        checks.append(
            at_least(f"one person, mean, {where}", yardstick / singles.mean, goals.person)
        )
        p99 = float(np.percentile(singles.seconds, 99)) / yardstick
        checks.append(at_most(f"one person, p99, F, {where}", p99, 0.03))
        if goals.batch is not None:
            checks.append(
                at_least(f"batch of 100, per person, {where}", yardstick / batch, goals.batch)
            )
        if split.name == "synthetic, large":
            checks.append(at_most(f"1 % at once, F, {where}", whole, 0.05))
    return cells, checks


def check_fresh(model: Any, preset: str, split: Split, remaining: Any, where: str) -> TargetCheck:
    """Compare the digest after all requests with that of a fresh fit on the remaining people."""
    ids = np.arange(len(split.y)) if split.ids is None else split.ids
    keep = np.isin(ids, remaining)
    fresh = make_boosting(preset).fit(split.X[keep], split.y[keep], ids=ids[keep])
    equal = model.digest() == fresh.digest()
    return TargetCheck(f"digest equals a fresh fit, {where}", str(equal), "True", equal)


def thread_section(report: BenchmarkReport, scale: BoostingScale) -> None:
    """Fit with two threads: time and digest; memory over the data; time of predictions."""
    split = make_table(scale.large, 50_000, n_features=28, seed=2)
    model, one = time_call(lambda: make_boosting("fast").fit(split.X, split.y))
    other, two = time_call(lambda: make_boosting("fast", n_jobs=2).fit(split.X, split.y))
    equal = model.digest() == other.digest()
    rival = make_lightgbm(0).fit(split.X, split.y)
    predict = time_call(lambda: model.predict_proba(split.X_test))[1].cpu
    predict_rival = time_call(lambda: rival.predict_proba(split.X_test, num_threads=1))[1].cpu
    memory = (model.boosting_.core.n_bytes - split.X.nbytes) / 2**20
    rows = [
        ("fit, seconds of the clock, 1 and 2 threads", f"{one.wall:.2f}", f"{two.wall:.2f}"),
        (
            "predict, us per row, ours and LightGBM's",
            *(f"{1e6 * seconds / len(split.X_test):.2f}" for seconds in (predict, predict_rival)),
        ),
        ("memory over the data, MiB", f"{memory:.0f}", ""),
    ]
    speed_up = one.wall / two.wall
    report.add(
        Table("Threads, predictions, memory", ("what", "", ""), rows, split.describe()),
        [
            TargetCheck("two threads on fit", f"{speed_up:.2f}x", ">= 1.8x", speed_up >= 1.8),
            TargetCheck("same digest with two threads", str(equal), "True", equal),
            at_most("predict / LightGBM's", predict / predict_rival, 1.0),
            at_most("memory over the data, MiB", memory, 150 * 1e6 / 2**20),
        ],
    )


# Chosen on synthetic tables of other seeds.
LARGE: dict[str, Any] = {"n_estimators": 300, "learning_rate": 0.2, "step_bits": 6}


def skeleton_section(report: BenchmarkReport, scale: BoostingScale) -> None:
    """A large skeleton against a LightGBM with more capacity."""
    rows, checks = [], []
    for split in load_tables(scale)[:2]:
        tuned = fit_seeds(lambda seed: make_lightgbm(seed, **TUNED), split, SEEDS[:1])
        many = 2 * len(split.y) // 5
        make_large = partial(BoostingClassifier, skeleton_people=many, n_jobs=1, **LARGE)
        large = fit_seeds(lambda seed: make_large(random_state=seed), split, SEEDS[:1])  # noqa: B023
        loss = large.mean - tuned.mean
        rows.append((split.name, many, f"{tuned.mean:.4f}", f"{large.mean:.4f}", f"{loss:+.4f}"))
        checks.append(
            TargetCheck(
                f"AUC against a tuned LightGBM, {split.name}", f"{loss:+.4f}", ">= -0.005",
                loss >= -0.005,
            )
        )  # fmt: skip
    columns = ("table", "skeleton people", "LightGBM, tuned", "boosting", "difference")
    note = "LightGBM: rate 0.2, 63 leaves. Boosting: 300 rounds, rate 0.2, steps of 1/64."
    report.add(Table("Large skeletons", columns, rows, note), checks)


def huge_section(report: BenchmarkReport, scale: BoostingScale) -> None:
    """Ten million rows: fits in memory, and one person."""
    rng = np.random.default_rng(5)
    n = scale.huge
    X = rng.standard_normal((n, 28), dtype=np.float32)
    y = ((X[:, 0] * X[:, 1] + X[:, 2] + X[:, 3] ** 2 + rng.standard_normal(n)) > 1).astype(int)
    model, fit = time_call(lambda: make_boosting("fast").fit(X, y))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # before LightGBM's fit
    _, fit_rival = time_call(lambda: make_lightgbm(0).fit(X, y))
    singles = time_requests(model, [[person] for person in range(scale.people)])
    fresh = make_boosting("fast").fit(
        X[scale.people :], y[scale.people :], ids=np.arange(scale.people, n)
    )
    equal = model.digest() == fresh.digest()
    ratio = fit_rival.cpu / singles.mean
    rows = [(f"{n:,} x 28", f"{fit.cpu / fit_rival.cpu:.3f}", *singles.cells, f"F/{ratio:,.0f}")]
    columns = ("rows", "fit, F", "p50, ms", "mean", "p99", "max", "one person, mean")
    note = f"F = {fit_rival.cpu:.1f} s. Peak of the process with our fit, {peak:.1f} GiB."
    report.add(
        Table("Ten million rows", columns, rows, note),
        [
            at_least("one person, mean, ten million rows", ratio, 15_000),
            at_most("peak of the process, GiB, ten million rows", peak, 16e9 / 2**30),
            TargetCheck("digest equals a fresh fit, ten million rows", str(equal), "True", equal),
        ],
    )


def life_section(report: BenchmarkReport, scale: BoostingScale) -> None:
    """Long lives on real data: forget and learn in turn, compared with a fresh fit."""
    split = load_split("adult") or make_synthetic_split()
    split = split.head(6_000)
    n, equal = len(split.y), 0
    for life in range(scale.lives):
        rng = np.random.default_rng(life)
        held = np.sort(rng.choice(n, n // 2, replace=False))
        model = make_boosting("fast", life).fit(split.X[held], split.y[held], ids=held)
        for _ in range(20):
            gone = rng.choice(held, rng.integers(1, 40), replace=False)
            model.forget(gone)
            held = np.setdiff1d(held, gone)
            new = rng.choice(np.setdiff1d(np.arange(n), held), rng.integers(1, 40), replace=False)
            model.learn(split.X[new], split.y[new], ids=new)
            held = np.union1d(held, new)
        fresh = make_boosting("fast", life).fit(split.X[held], split.y[held], ids=held)
        equal += model.digest() == fresh.digest()
    rows = [(split.name, scale.lives, 40, equal)]
    report.add(
        Table("Long lives", ("table", "lives", "changes each", "equal to a fresh fit"), rows, ""),
        [TargetCheck("long lives", f"{equal}", f"{scale.lives}", equal == scale.lives)],
    )


SECTIONS = {
    "tables": table_section,
    "threads": thread_section,
    "skeletons": skeleton_section,
    "lives": life_section,
    "huge": huge_section,
}


def main(
    quick: bool = typer.Option(False, help="Small numbers, as a smoke test."),
    only: str = typer.Option("", help="Sections to run, separated by commas."),
) -> None:
    """Measure and write the report."""
    scale = QUICK if quick else FULL
    name = "boosting_quick" if quick or only else "boosting"
    report = BenchmarkReport("Boosting that forgets", dict(scale._asdict()), file=RESULTS / name)
    with threadpoolctl.threadpool_limits(1):
        for section in only.split(",") if only else SECTIONS:
            SECTIONS[section](report, scale)
    raise typer.Exit(0 if report.passed or quick else 1)


if __name__ == "__main__":
    typer.run(main)
