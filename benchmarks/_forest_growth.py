"""Growth with rows, trees and depth; and forests that must equal a fresh fit."""

from collections import Counter
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks._data import Split
from benchmarks._forest_fresh import NOTE, Fresh, Stored
from benchmarks._forest_models import ForestSize, time_call
from benchmarks._report import Table, TargetCheck
from letheon.forest import DaREForestClassifier


class Life(NamedTuple):
    """One random sequence of operations, and whether it ended at the fresh fit."""

    data: str
    settings: dict[str, Any]
    done: Counter[str]
    n_rows: int
    equal: bool


def run_sequence(split: Split, seed: int, n_rows: int, n_steps: int) -> Life:
    """Fit some rows, change the forest many times, and compare with a fresh fit."""
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.permutation(len(split.y))[:n_rows])
    ids = rows if split.ids is None else split.ids[rows]
    being = _Being(split.X[rows], split.y[rows], ids, _draw_settings(rng), rng)
    done: Counter[str] = Counter()
    steps = (being.forget, being.learn, being.settle, being.predict)
    for step in rng.choice(len(steps), size=n_steps, p=(0.45, 0.35, 0.1, 0.1)).tolist():
        done[steps[step].__name__] += steps[step]()
    fresh = being.new(random_state=being.model.seed_)
    equal = fresh.digest() == being.model.digest()
    return Life(split.name, being.settings, done, int(being.held.sum()), equal)


def _draw_settings(rng: np.random.Generator) -> dict[str, Any]:
    """Draw the options of a forest."""
    choices: dict[str, tuple[Any, ...]] = {
        "criterion": ("gini", "entropy"),
        "max_depth": (6, 10, None),
        "max_features": ("sqrt", 0.5),
        "n_thresholds": (1, 5, 25, None),
        "random_depth": (0, 1, 3),
        "min_samples_leaf": (1, 5),
        "min_samples_split": (2, 20),
        "subsample": (1.0, 1.0, 0.3),
        "rebuild": ("lazy", "eager"),
    }
    drawn = {name: values[rng.integers(len(values))] for name, values in choices.items()}
    return {"n_estimators": 10, "n_jobs": 1, **drawn}


class _Being:
    """A forest with all rows that it can learn."""

    def __init__(
        self,
        X: NDArray[np.float32],
        y: NDArray[np.int64],
        ids: NDArray[np.int64],
        settings: dict[str, Any],
        rng: np.random.Generator,
    ) -> None:
        self.X, self.y, self.ids, self.settings, self.rng = X, y, ids, settings, rng
        self.held = rng.random(len(y)) < 0.75
        self.model = self.new(random_state=int(rng.integers(2**31)))

    def new(self, *, random_state: Any) -> Any:
        """Return a fresh fit on the remaining rows."""
        model: Any = DaREForestClassifier(random_state=random_state, **self.settings)
        return model.fit(self.X[self.held], self.y[self.held], ids=self.ids[self.held])

    def forget(self) -> int:
        """Forget some people with all their rows; return their number."""
        here = np.unique(self.ids[self.held])
        leaving = self.rng.permutation(here)[: self._some(len(here) // 2)]
        if len(leaving):
            self.model.forget(leaving.tolist())
            self.held &= ~np.isin(self.ids, leaving)
        return len(leaving)

    def learn(self) -> int:
        """Learn some rows that are not in the forest; return their number."""
        rows = self.rng.permutation(np.flatnonzero(~self.held))[: self._some(len(self.y))]
        if len(rows):
            self.model.learn(self.X[rows], self.y[rows], ids=self.ids[rows])
            self.held[rows] = True
        return len(rows)

    def settle(self) -> int:
        """Settle the forest."""
        self.model.settle()
        return 1

    def predict(self) -> int:
        """Predict a few rows, which regrows the subtrees that they reach."""
        rows = self.rng.integers(len(self.y), size=3)
        self.model.predict_proba(self.X[rows])
        return len(rows)

    def _some(self, most: int) -> int:
        """Return a batch size: mostly small, sometimes large."""
        number = 1 + self.rng.geometric(0.3) if self.rng.random() < 0.9 else most // 4
        return int(min(number, most))


def make_identity_table(lives: list[Life], n_steps: int) -> Table:
    """Return the operations and results by table."""
    rows = []
    for data in dict.fromkeys(life.data for life in lives):
        mine = [life for life in lives if life.data == data]
        done = sum((life.done for life in mine), Counter[str]())
        equal = sum(life.equal for life in mine)
        counts = (done[name] for name in ("forget", "learn", "settle", "predict"))
        rows.append((data, len(mine), *counts, f"{equal} of {len(mine)}"))
    columns = (
        "data", "lives", "people forgotten", "rows learnt", "settled", "rows predicted",
        "digest of a fresh fit",
    )  # fmt: skip
    note = f"Each life: random options, then {n_steps} random steps on a few thousand rows."
    return Table("Identity: long random lives", columns, rows, note)


def check_identity(lives: list[Life]) -> TargetCheck:
    """Check that all digests are equal; name the first sequence that fails."""
    wrong = [life for life in lives if not life.equal]
    reached = f"{len(lives) - len(wrong)} of {len(lives)}"
    if wrong:
        reached += f"; first: {wrong[0].data} {wrong[0].settings}"
    return TargetCheck(
        "random lives end at the digest of a fresh fit", reached, f"all {len(lives)}", not wrong
    )


MOST_PER_ROW = 1.5
MOST_LAZY_SECONDS = 0.005
LEAST_EAGER_PART = 5_000
MOST_DEEP_MEGABYTES = 600
LEAST_SPEED_OF_TWO = 1.8
ALONE = f"Each line in a process of its own, one thread. {NOTE}"
COLUMNS = (
    "rows", "trees", "depth", "fit s", "fit µs per row", "lazy mean ms", "lazy p99 ms",
    "forget + settle ms", "eager mean ms", "eager p99 ms", "fit / eager", "memory MB",
    "bytes per row", "peak MB",
)  # fmt: skip


def grow_rows(
    files: Stored, shape: ForestSize, sizes: tuple[int, ...], leaving: int
) -> list[Fresh]:
    """Measure the same forest on increasing numbers of rows."""
    return [
        files.measure(shape, n, lazy=min(leaving, n // 5), eager=min(leaving, n // 5))
        for n in sizes
    ]


def grow_trees(
    files: Stored, shape: ForestSize, counts: tuple[int, ...], leaving: int
) -> list[Fresh]:
    """Measure forests with increasing numbers of trees."""
    shapes = [shape._replace(n_estimators=count) for count in counts]
    return [files.measure(each, lazy=leaving, eager=leaving) for each in shapes]


def grow_depth(
    files: Stored, shape: ForestSize, depths: tuple[int, ...], leaving: int
) -> list[Fresh]:
    """Measure forests of increasing depth."""
    shapes = [shape._replace(max_depth=depth) for depth in depths]
    return [files.measure(each, lazy=leaving, eager=leaving) for each in shapes]


def make_growth_table(title: str, points: list[Fresh], note: str = "") -> Table:
    """Return one row per forest."""
    return Table(title, COLUMNS, [_make_row(point) for point in points], note)


def _make_row(point: Fresh) -> tuple[Any, ...]:
    lazy, eager = 1000 * np.array(point.lazy), 1000 * np.array(point.eager)
    return (
        point.n_rows, point.n_estimators, point.max_depth, point.fit,
        1e6 * point.fit / point.n_rows, lazy.mean(), np.quantile(lazy, 0.99),
        1000 * point.settled, eager.mean(), np.quantile(eager, 0.99),
        1000 * point.fit / eager.mean(), point.memory / 1e6, point.memory / point.n_rows,
        point.peak / 1e6,
    )  # fmt: skip


def check_rows(points: list[Fresh]) -> list[TargetCheck]:
    """Compare the largest table with one of a tenth of its rows."""
    large = points[-1]
    [small] = [point for point in points if 10 * point.n_rows == large.n_rows]
    per_row = large.fit / small.fit / 10
    lazy, part = float(np.quantile(large.lazy, 0.99)), large.fit / float(np.mean(large.eager))
    name = f"{large.n_rows:,} rows"
    return [
        TargetCheck(
            f"{name}: fit per row over that of {small.n_rows:,}",
            f"{per_row:.2f}x",
            f"<= {MOST_PER_ROW}x",
            per_row <= MOST_PER_ROW,
        ),
        TargetCheck(
            f"{name}: forget, lazy, p99",
            f"{1000 * lazy:.2f} ms",
            "< 5 ms",
            lazy < MOST_LAZY_SECONDS,
        ),
        TargetCheck(
            f"{name}: forget, eager, mean",
            f"fit/{part:,.0f}",
            f"<= fit/{LEAST_EAGER_PART:,}",
            part >= LEAST_EAGER_PART,
        ),
    ]


def check_depth(points: list[Fresh]) -> list[TargetCheck]:
    """Check the memory of the deepest forest."""
    deep = points[-1]
    megabytes = deep.memory / 1e6
    return [
        TargetCheck(
            f"synthetic: memory over the data at depth {deep.max_depth}",
            f"{megabytes:.0f} MB",
            f"<= {MOST_DEEP_MEGABYTES} MB",
            megabytes <= MOST_DEEP_MEGABYTES,
        )
    ]


def compare_threads(
    split: Split, shape: ForestSize, repeats: int
) -> tuple[Table, list[TargetCheck]]:
    """Time fits with one thread and with two, in turn."""
    one, two = [], []
    for _ in range(repeats):
        alone, both = shape.ours(0), shape.ours(0, n_jobs=2)
        one.append(time_call(partial(alone.fit, split.X, split.y, ids=split.ids)))
        two.append(time_call(partial(both.fit, split.X, split.y, ids=split.ids)))
    speed, same = min(one) / min(two), alone.digest() == both.digest()
    table = Table(
        "Two threads against one",
        ("repeats", "one thread s", "two threads s", "speed-up", "same digest"),
        [(repeats, min(one), min(two), speed, "yes" if same else "NO")],
        f"Shortest fit of each. {split.describe()}.",
    )
    return table, [
        TargetCheck("two threads on fit", f"{speed:.2f}x", ">= 1.8x", speed >= LEAST_SPEED_OF_TWO),
        TargetCheck(
            "two threads give the digest of one", "equal" if same else "differs", "equal", same
        ),
    ]
