"""Aggregation against numbers computed by hand."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import gmean

from letheon.bench import BenchmarkCell, BenchmarkOptions, brief_table, main_table, make_lines
from letheon.bench._tables import attack_value, make_spread, report_tables
from letheon.evaluation.report import Cell as Value
from tests.bench.records import attack, failed, measured


def cell(dataset: str, removed: str = "1", **others: Any) -> BenchmarkCell:
    usual: dict[str, Any] = {"method": "DaRE", "family": "forest", "setting": "least d_rmax"}
    return BenchmarkCell(dataset=dataset, removed=removed, **(usual | others))


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20))
def test_geometric_mean_is_that_of_scipy(values: list[float]) -> None:
    spread = make_spread(values)
    assert spread.mean == pytest.approx(gmean(values))
    assert spread.low <= spread.mean <= spread.high


def test_a_zero_makes_the_geometric_mean_zero() -> None:
    assert make_spread([0.0, 8.0]) == (0.0, 0.0, 8.0)


def test_no_values_and_negative_ones_are_refused() -> None:
    with pytest.raises(ValueError, match="values is empty"):
        make_spread([])
    with pytest.raises(ValueError, match="needs numbers >= 0"):
        make_spread([-1.0, 2.0])


def test_a_line_by_hand() -> None:
    records = [
        measured(cell("a"), efficiency=4.0, effectiveness=0.001, agreement=98.0, sape=0.0),
        measured(cell("b"), efficiency=25.0, effectiveness=0.005, agreement=99.0, sape=3.0),
    ]
    same, ordinary = make_lines(records)
    assert same.efficiency == pytest.approx((4.0, 10.0, 25.0))
    assert same.effectiveness == pytest.approx((0.1, 0.3, 0.5))
    assert same.consistency.mean == pytest.approx(math.sqrt(98 * 99))
    assert same.certifiability == pytest.approx((0.0, 1.5, 3.0))
    assert same.own_efficiency.mean == pytest.approx(8.0)
    assert same.storage is not None
    assert same.storage.mean == pytest.approx(3.0)
    assert ordinary.efficiency == pytest.approx((8.0, 20.0, 50.0))
    assert (same.baseline, ordinary.baseline) == ("same algorithm", "ordinary model")


def test_the_main_table_takes_the_least_number_of_people() -> None:
    records = [
        measured(cell("a", "10%"), efficiency=2.0),
        measured(cell("a", "100"), efficiency=3.0),
        measured(cell("a", "1"), efficiency=50.0),
    ]
    assert make_lines(records)[0].removed == "1"
    assert make_lines(records[:2])[0].removed == "100"
    assert make_lines(records, removed="10%")[0].efficiency.mean == pytest.approx(2.0)


def test_a_failed_cell_is_counted_and_in_no_number() -> None:
    line = make_lines([measured(cell("a"), efficiency=7.0), failed(cell("b"))])[0]
    assert (line.failed, line.datasets) == (1, ("a",))
    assert line.efficiency == pytest.approx((7.0, 7.0, 7.0))


def test_lines_stand_in_the_order_of_the_grid() -> None:
    naive = cell("a", method="Naive", setting="retrain")
    largest = cell("a", setting="largest d_rmax")
    lines = make_lines([measured(largest), measured(cell("a")), measured(naive)])
    assert [line.setting for line in lines[::2]] == ["retrain", "least d_rmax", "largest d_rmax"]


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        (("exact", "exact"), "exact"),
        (("certified", "certified"), "(1, 0.0001)"),
        (("empirical", "empirical"), "none"),
        (("certified", "empirical"), "(1, 0.0001) on 1 of 2, none on 1 of 2"),
    ],
)
def test_certificates_in_words(kinds: tuple[str, str], words: str) -> None:
    records = [measured(cell(name), kind=kind) for name, kind in zip("ab", kinds, strict=True)]
    assert make_lines(records)[0].certificate == words


def test_published_numbers_stand_beside_ours() -> None:
    table = main_table([measured(cell("a"), efficiency=123.4, kind="exact")])
    same, ordinary = table.to_dict()["rows"]
    assert same["efficiency: g. mean"] == Value("123x", "366x")
    assert same["efficiency: max"].published == "9,735x"
    assert ordinary["efficiency: g. mean"] == "247x"
    # Accuracy of exact methods was compared with ordinary models.
    assert same["effectiveness: worst, points"] == "1.00"
    assert ordinary["effectiveness: worst, points"].published == "<= 0.5 %"
    assert "123x [366x]" in "\n".join(table.lines())


def test_the_table_in_short_has_one_line_for_each_setting() -> None:
    sisa = {"method": "SISA", "family": "net", "setting": "S R = B"}
    table = brief_table([measured(cell("a")), measured(cell("a", **sisa), kind="exact")])
    dare, sharded = table.to_dict()["rows"]
    assert dare["x same algorithm"] == Value("10x", "366x")
    # SISA's times were compared with ordinary training.
    assert sharded["x same algorithm"] == "10x"
    assert sharded["x ordinary model"] == Value("20x", "39.6x")


def test_published_formulas_and_parameter_distances() -> None:
    descent = {"method": "Descent-to-Delete", "family": "linear", "setting": "PGD, I = 10"}
    row = main_table([measured(cell("a", **descent))]).to_dict()["rows"][0]
    assert row["efficiency: g. mean"].published == "1 + log(epsilon n / sqrt(p)) / I"
    delta = {"method": "DeltaGrad", "family": "linear", "setting": "T0 = 2"}
    row = main_table([measured(cell("a", **delta))]).to_dict()["rows"][0]
    assert row["consistency: parameters"] == Value("-", "1.1e-05")


def test_attacks_are_means_over_data_sets_with_their_floor() -> None:
    records = [
        attack(cell("a", kind="attack"), "rmia", 0.6, 0.5),
        attack(cell("b", kind="attack"), "rmia", 0.8, 0.52),
        attack(cell("b", kind="attack", setting="largest d_rmax"), "rmia", 0.1, 0.1),
    ]
    key = ("DaRE", "forest", "least d_rmax")
    assert attack_value(records, key, "rmia", "AUC") == pytest.approx((0.7, 0.51))
    assert attack_value(records, key, "before-after", "AUC") is None
    row = main_table([measured(cell("a")), *records]).to_dict()["rows"][0]
    assert row["attacks (floor): RMIA AUC"] == "0.7 (0.51)"


def test_other_tables_have_every_number_of_people_every_set_and_failures() -> None:
    records = [measured(cell("a")), measured(cell("a", "10%")), failed(cell("b"))]
    titles = [
        table.title
        for table in report_tables(records, BenchmarkOptions(removed=("1", "10%", "100")))
    ]
    assert titles == [
        "Removed: one person after the other",
        "Removed: 10% of the people at once",
        "Data set: a",
        "Numbers in the survey",
        "Cells that failed",
    ]
