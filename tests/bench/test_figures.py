"""Pictures draw the numbers they are given."""

from typing import Any

import pytest

from letheon.bench import BenchmarkCell
from letheon.bench._report import draw_pictures
from tests.bench.records import attack, measured

pytest.importorskip("matplotlib")
DARE: dict[str, Any] = {"method": "DaRE", "family": "forest", "setting": "least d_rmax"}


def drawn(axes: Any) -> set[tuple[float, ...]]:
    return {tuple(float(x) for x in line.get_xdata()) for line in axes.lines}


def test_measured_and_published_ranges_are_drawn() -> None:
    records = [
        measured(BenchmarkCell(dataset="a", removed="1", **DARE), efficiency=4.0),
        measured(BenchmarkCell(dataset="b", removed="1", **DARE), efficiency=25.0),
    ]
    (picture,) = draw_pictures(records)
    left, right = picture.figure.axes
    assert {(4.0, 25.0), (8.0, 50.0), (10.0, 9735.0)} <= drawn(left)
    assert (1.0, 1.0) in drawn(right)


def test_attacks_are_drawn_with_their_floor() -> None:
    cell = BenchmarkCell(dataset="a", removed="1", **DARE)
    pictures = draw_pictures([measured(cell), attack(cell, "rmia", 0.75, 0.5)])
    assert len(pictures) == 2
    assert (0.5, 0.75) in drawn(pictures[1].figure.axes[0])


def test_no_cells_no_pictures() -> None:
    assert draw_pictures([]) == []
