"""Pictures of the results, through `letheon.plot`."""

from pathlib import Path

from benchmarks._accuracy import Run


def draw_accuracy(results: list[Run], file: Path) -> None:
    """Draw accuracy against shards, one panel per data set."""


def draw_plan(n_rows: int, file: Path) -> None:
    """Draw the planned speed-up against shards, slices and batch size."""
