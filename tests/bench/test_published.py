"""The survey's numbers stand as printed and find their places."""

import pytest

from letheon.bench import METHODS, PUBLISHED, Spread
from letheon.bench._grid import VARIANTS
from letheon.bench._tables import find_published


def test_every_published_line_is_of_a_method_we_measure() -> None:
    assert {line.method for line in PUBLISHED} <= set(METHODS) - {"Naive"}


def test_settings_of_published_lines_exist_in_the_grid() -> None:
    ours = {(variant.method, variant.setting) for variant in VARIANTS}
    theirs = {(line.method, setting) for line in PUBLISHED for setting in line.settings}
    assert theirs <= ours


@pytest.mark.parametrize(
    ("method", "setting", "efficiency"),
    [
        ("SISA", "S = 5, R = 1", (1.36, 2.49, 4.63)),
        ("SISA", "S R = B", (14.0, 39.6, 75.0)),
        ("DaRE", "least d_rmax", (10, 366, 9735)),
        ("DaRE", "largest d_rmax", (145, 1272, 35856)),
        ("Fisher", "m' = m/8", (1.0, 3.3, 36.8)),
        ("Fisher", "m' = m", (1.5, 13.0, 282.4)),
        ("Influence", "m' = m/8", (0.3, 5.9, 75.7)),
        ("Influence", "m' = m", (2.5, 38.2, 215.1)),
        ("DeltaGrad", "T0 = 2", (1.6, 2.7, 6.5)),
        ("DeepObliviate", "epsilon = 0.05", (6.17, 13.97, 45.45)),
        ("DeepObliviate", "epsilon = 0.1", (9.26, 22.81, 66.67)),
    ],
)
def test_efficiency_as_printed_in_table_3(
    method: str, setting: str, efficiency: tuple[float, float, float]
) -> None:
    line = find_published(method, setting)
    assert line is not None
    assert line.efficiency == Spread(*efficiency)


def test_spreads_are_in_order() -> None:
    spreads = [
        value
        for line in PUBLISHED
        for value in (line.efficiency, line.consistency)
        if isinstance(value, Spread)
    ]
    assert len(spreads) == 14
    assert all(each.low <= each.mean <= each.high for each in spreads)


def test_settings_of_our_own_have_no_published_line() -> None:
    assert find_published("Fisher", "kept Hessian") is None
    assert find_published("Naive", "retrain") is None
