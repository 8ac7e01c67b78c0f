"""The history shows proxies, tolerances, breaches and retrains as they were."""

from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.patches import Rectangle

from letheon.plot import MonitorDisplay
from tests.plot.drawn import overlapping_texts, xy

REQUESTS = [1, 2, 3, 4, 5]
PROXIES = {
    "certifiability": [0.0, 1.0, 2.5, 3.0, 0.1],
    "efficiency": [90.0, np.nan, 110.0, 30.0, 95.0],
}
LIMIT = {"certifiability": 2.0}
TOLERANCES = {"certifiability": 2.0, "efficiency": 50.0}


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    plt.close("all")


def drawn(**options: Any) -> MonitorDisplay:
    return MonitorDisplay(REQUESTS, PROXIES, tolerances=TOLERANCES, **options).plot()


def labelled(ax: Any, label: str) -> list[Any]:
    return [line for line in ax.lines if line.get_label() == label]


def test_lines_are_the_proxies_and_unknown_values_are_gaps() -> None:
    display = drawn()
    for name, values in PROXIES.items():
        np.testing.assert_array_equal(xy(display.lines_[name]), np.c_[REQUESTS, values])


def test_breaches_are_on_the_bad_side_of_each_measure() -> None:
    display = drawn()
    assert display.breaches_["certifiability"].tolist() == [3, 4]
    assert display.breaches_["efficiency"].tolist() == [4]
    for ax, expected in zip(display.ax_, ([[3, 2.5], [4, 3.0]], [[4, 30.0]]), strict=True):
        (rings,) = labelled(ax, "outside tolerance")
        np.testing.assert_array_equal(xy(rings), expected)


def test_a_value_at_the_tolerance_is_no_breach() -> None:
    display = MonitorDisplay([1], {"certifiability": [2.0]}, tolerances=LIMIT)
    assert display.breaches_["certifiability"].size == 0
    assert labelled(display.plot().ax_[0], "outside tolerance") == []


def test_direction_of_an_own_proxy_can_be_given() -> None:
    own = MonitorDisplay(
        [1, 2], {"kept": [5, 1]}, tolerances={"kept": 2}, better={"kept": "higher"}
    )
    assert own.breaches_["kept"].tolist() == [2]
    assert own.plot().ax_[0].get_ylabel() == "kept\nhigher is better"


def test_tolerance_lines_and_shades() -> None:
    for ax, limit, is_low_bad in zip(drawn().ax_, (2.0, 50.0), (False, True), strict=True):
        (line,) = labelled(ax, "tolerance")
        np.testing.assert_array_equal(xy(line)[:, 1], [limit, limit])
        (shade,) = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
        low, high = ax.get_ylim()
        ends = (low, limit) if is_low_bad else (limit, high)
        assert (shade.get_bbox().y0, shade.get_bbox().y1) == pytest.approx(ends)


def test_retrains_are_marked_in_every_panel() -> None:
    for ax in drawn(retrains=[4]).ax_:
        assert [xy(line)[:, 0].tolist() for line in labelled(ax, "retrain")] == [[4, 4]]


def test_truths_are_drawn_beside_their_proxy_only() -> None:
    truth = [0.0, 0.5, 1.0, 1.5, 0.0]
    first, second = drawn(truths={"certifiability": truth}).ax_
    np.testing.assert_array_equal(xy(labelled(first, "true value")[0])[:, 1], truth)
    assert labelled(second, "true value") == []


def test_axes_and_one_legend_for_all_panels() -> None:
    first, second = drawn(retrains=[2, 4]).ax_
    assert first.get_ylabel() == "certifiability [%]\nlower is better"
    assert (second.get_yscale(), second.get_xlabel()) == ("log", "requests served")
    legend = first.get_legend()
    assert legend is not None
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == ["retrain", "proxy", "tolerance", "outside tolerance"]
    assert second.get_legend() is None


def test_texts_do_not_overlap() -> None:
    many = np.arange(500.0)
    series = dict.fromkeys(("certifiability", "effectiveness", "efficiency"), many + 1)
    display = MonitorDisplay(many, series, tolerances={"effectiveness": 90}, retrains=[9])
    assert overlapping_texts(display.plot().figure_) == []


def test_a_proxy_that_is_never_known_is_an_empty_panel() -> None:
    display = MonitorDisplay([1, 2], {"efficiency": [np.nan, np.nan]}).plot()
    assert np.isnan(xy(display.lines_["efficiency"])[:, 1]).all()


def test_infinite_values_are_marked_at_the_edge() -> None:
    values = [0.5, np.inf, 1.0]
    display = MonitorDisplay([1, 2, 3], {"certifiability": values}, tolerances=LIMIT).plot()
    (marks,) = labelled(display.ax_[0], "infinite")
    np.testing.assert_array_equal(xy(marks), [[2, 0.95]])
    assert display.breaches_["certifiability"].tolist() == [2]
    assert display.ax_[0].get_ylim()[1] < 10


def test_given_axes_are_used() -> None:
    figure, axes = plt.subplots(2, 1)
    display = MonitorDisplay(REQUESTS, PROXIES).plot(axes)
    assert display.figure_ is figure
    with pytest.raises(ValueError, match="must have 2 axes for these proxies, not 1"):
        MonitorDisplay(REQUESTS, PROXIES).plot(axes[:1])


@pytest.mark.parametrize(
    ("requests", "proxies", "options", "text"),
    [
        ([], {"a": []}, {}, "must not be empty"),
        ([1], {}, {}, "must not be empty"),
        ([2, 1], {"a": [0, 0]}, {}, "ascending"),
        ([1, 2], {"a": [0]}, {}, r"proxies\['a'\] has shape \(1,\), but there are 2 requests"),
        ([1], {"a": [0]}, {"truths": {"a": [0, 1]}}, r"truths\['a'\] has shape"),
        ([1], {"a": [0]}, {"truths": {"b": [0]}}, r"truths of unknown proxies: \['b'\]"),
        ([1], {"a": [0]}, {"tolerances": {"b": 0}}, r"tolerances of unknown proxies: \['b'\]"),
    ],
)
def test_bad_histories_are_refused(requests: Any, proxies: Any, options: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        MonitorDisplay(requests, proxies, **options)
