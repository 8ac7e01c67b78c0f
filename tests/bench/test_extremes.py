"""Both extremes of an efficiency parameter are what their names say."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import letheon.forest
from letheon.bench import _run
from letheon.bench._grid import CellContext, find_variant


@pytest.mark.parametrize("method", ["Fisher", "Influence"])
def test_batches_are_all_who_leave_or_an_eighth_of_them(method: str) -> None:
    place = CellContext(n_rows=1000, n_columns=5, n_removed=80)
    sizes = {
        setting: find_variant(method, "linear", setting).make(place).batch_size
        for setting in ("m' = m/8", "m' = m")
    }
    assert sizes == {"m' = m/8": 10, "m' = m": 80}


@pytest.mark.parametrize(
    ("drops", "chosen", "expected"),
    [
        ([0.0, 0.0005, 0.002, 0.009, 0.02], 3, (1, 3)),
        ([0.0, 0.0, 0.0], 2, (2, 2)),
        ([0.0, 0.005, 0.02], 1, (0, 1)),
    ],
)
def test_random_levels_cost_at_most_a_thousandth_and_a_hundredth(
    drops: list[float], chosen: int, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fake_tune(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(scores=0.9 - np.array(drops), random_depth=chosen)

    monkeypatch.setattr(letheon.forest, "tune_random_depth", fake_tune)
    _run.random_depths.cache_clear()
    try:
        assert _run.random_depths("breast-cancer", 50, 0) == expected
    finally:
        _run.random_depths.cache_clear()
