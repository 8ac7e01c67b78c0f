"""How time and memory grow with rows, trees and depth; two threads against one."""

from functools import partial
from typing import Any

import numpy as np

from benchmarks._data import Split
from benchmarks._forest_fresh import NOTE, Fresh, Stored
from benchmarks._forest_models import Shape, seconds
from benchmarks._report import Table, Verdict

__all__ = [
    "depth_verdicts",
    "grow_depth",
    "grow_rows",
    "grow_trees",
    "growth_table",
    "row_verdicts",
    "threads",
]

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


def grow_rows(files: Stored, shape: Shape, sizes: tuple[int, ...], leaving: int) -> list[Fresh]:
    """Measure the same forest on more and more rows."""
    return [
        files.measure(shape, n, lazy=min(leaving, n // 5), eager=min(leaving, n // 5))
        for n in sizes
    ]


def grow_trees(files: Stored, shape: Shape, counts: tuple[int, ...], leaving: int) -> list[Fresh]:
    """Measure forests of more and more trees."""
    shapes = [shape._replace(n_estimators=count) for count in counts]
    return [files.measure(each, lazy=leaving, eager=leaving) for each in shapes]


def grow_depth(files: Stored, shape: Shape, depths: tuple[int, ...], leaving: int) -> list[Fresh]:
    """Measure deeper and deeper forests."""
    shapes = [shape._replace(max_depth=depth) for depth in depths]
    return [files.measure(each, lazy=leaving, eager=leaving) for each in shapes]


def growth_table(title: str, points: list[Fresh], note: str = "") -> Table:
    """Return one line per forest."""
    return Table(title, COLUMNS, [_row(point) for point in points], note)


def _row(point: Fresh) -> tuple[Any, ...]:
    lazy, eager = 1000 * np.array(point.lazy), 1000 * np.array(point.eager)
    return (
        point.n_rows, point.n_estimators, point.max_depth, point.fit,
        1e6 * point.fit / point.n_rows, lazy.mean(), np.quantile(lazy, 0.99),
        1000 * point.settled, eager.mean(), np.quantile(eager, 0.99),
        1000 * point.fit / eager.mean(), point.memory / 1e6, point.memory / point.n_rows,
        point.peak / 1e6,
    )  # fmt: skip


def row_verdicts(points: list[Fresh]) -> list[Verdict]:
    """Judge the largest table against one of a tenth of its rows."""
    large = points[-1]
    [small] = [point for point in points if 10 * point.n_rows == large.n_rows]
    per_row = large.fit / small.fit / 10
    lazy, part = float(np.quantile(large.lazy, 0.99)), large.fit / float(np.mean(large.eager))
    name = f"{large.n_rows:,} rows"
    return [
        Verdict(
            f"{name}: fit per row over that of {small.n_rows:,}",
            f"{per_row:.2f}x",
            f"<= {MOST_PER_ROW}x",
            per_row <= MOST_PER_ROW,
        ),
        Verdict(
            f"{name}: forget, lazy, p99",
            f"{1000 * lazy:.2f} ms",
            "< 5 ms",
            lazy < MOST_LAZY_SECONDS,
        ),
        Verdict(
            f"{name}: forget, eager, mean",
            f"fit/{part:,.0f}",
            f"<= fit/{LEAST_EAGER_PART:,}",
            part >= LEAST_EAGER_PART,
        ),
    ]


def depth_verdicts(points: list[Fresh]) -> list[Verdict]:
    """Judge the memory of the deepest forest."""
    deep = points[-1]
    megabytes = deep.memory / 1e6
    return [
        Verdict(
            f"synthetic: memory over the data at depth {deep.max_depth}",
            f"{megabytes:.0f} MB",
            f"<= {MOST_DEEP_MEGABYTES} MB",
            megabytes <= MOST_DEEP_MEGABYTES,
        )
    ]


def threads(split: Split, shape: Shape, repeats: int) -> tuple[Table, list[Verdict]]:
    """Time fits with one thread and with two, in turn."""
    one, two = [], []
    for _ in range(repeats):
        alone, both = shape.ours(0), shape.ours(0, n_jobs=2)
        one.append(seconds(partial(alone.fit, split.X, split.y, ids=split.ids)))
        two.append(seconds(partial(both.fit, split.X, split.y, ids=split.ids)))
    speed, same = min(one) / min(two), alone.digest() == both.digest()
    table = Table(
        "Two threads against one",
        ("repeats", "one thread s", "two threads s", "speed-up", "same digest"),
        [(repeats, min(one), min(two), speed, "yes" if same else "NO")],
        f"Shortest fit of each. {split.describe()}.",
    )
    return table, [
        Verdict("two threads on fit", f"{speed:.2f}x", ">= 1.8x", speed >= LEAST_SPEED_OF_TWO),
        Verdict(
            "two threads give the digest of one", "equal" if same else "differs", "equal", same
        ),
    ]
