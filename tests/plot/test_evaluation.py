"""The panels show the measures of each method against each baseline."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.colors import to_hex

from letheon.measures import Measure, by_proof
from letheon.plot import EvaluationDisplay
from tests.plot.drawn import ends, loss, measure, overlapping_texts, segments, speed, xy

Rows = dict[str, dict[str, dict[str, Measure]]]


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    plt.close("all")


def rows() -> Rows:
    exact = by_proof("effectiveness", 0, note="exact")
    return {
        "SISA": {
            "same algorithm": {"efficiency": speed(8), "effectiveness": exact},
            "ordinary model": {"efficiency": speed(3), "effectiveness": loss(0.02)},
        },
        "Fisher": {
            "same algorithm": {"efficiency": speed(40), "effectiveness": loss(0.001)},
            "ordinary model": {"efficiency": speed(0.5)},
        },
    }


def many(n: int) -> Rows:
    names = ("output consistency", "certifiability")
    more = {name: measure(name, 3.0, unit="%") for name in names}
    row = {"efficiency": speed(8), "effectiveness": loss(0.02), **more}
    long = "a method with rather many settings (depth=10, trees=100)"
    return {f"{long} {i}": {"same algorithm": row, "ordinary model": row} for i in range(n)}


def test_markers_and_intervals_are_the_measures() -> None:
    given = rows()
    display = EvaluationDisplay(given).plot()
    assert display.measures == ("efficiency", "effectiveness")
    for (name, baseline), bars in display.bars_.items():
        expected = [row[baseline][name] for row in given.values() if name in row[baseline]]
        values, _, _ = bars.lines
        assert values is not None
        np.testing.assert_array_equal(values.get_xdata(), [m.value for m in expected])
        np.testing.assert_allclose(segments(bars, 0), [ends(m) for m in expected])


def test_methods_stand_at_their_names_and_baselines_do_not_hide_each_other() -> None:
    display = EvaluationDisplay(rows()).plot()
    same, ordinary = (
        np.asarray(display.bars_["efficiency", name].lines[0].get_ydata(), float)
        for name in ("same algorithm", "ordinary model")
    )
    np.testing.assert_array_equal(np.round(same), [0, 1])
    np.testing.assert_array_equal(np.round(ordinary), [0, 1])
    assert (ordinary - same > 0.1).all()
    assert [text.get_text() for text in display.ax_[0].get_yticklabels()] == ["SISA", "Fisher"]
    assert display.ax_[0].yaxis_inverted()


def test_a_method_that_lacks_a_measure_keeps_its_line_empty() -> None:
    bars = EvaluationDisplay(rows()).plot().bars_["effectiveness", "ordinary model"]
    assert np.round(np.asarray(bars.lines[0].get_ydata(), float)).tolist() == [0]


def test_axes_say_scale_unit_confidence_and_direction() -> None:
    first, second = EvaluationDisplay(rows()).plot().ax_
    assert (first.get_title(), first.get_xscale()) == ("Efficiency", "log")
    assert first.get_xlabel() == "efficiency [x]\n95 % CI, higher is better"
    assert (second.get_title(), second.get_xscale()) == ("Effectiveness", "linear")
    assert second.get_xlabel() == "effectiveness\n95 % CI, lower is better"


def test_no_interval_is_claimed_where_there_is_none() -> None:
    display = EvaluationDisplay({"SISA": {"same algorithm": {"efficiency": speed(2, None)}}}).plot()
    assert display.ax_[0].get_xlabel() == "efficiency [x]\nhigher is better"
    np.testing.assert_array_equal(
        segments(display.bars_["efficiency", "same algorithm"], 0), [[2, 2]]
    )


def test_what_follows_from_a_theorem_is_hollow() -> None:
    ax = EvaluationDisplay(rows()).plot().ax_[1]
    markers = [line for line in ax.lines if one(line)]
    fills = {float(xy(line)[0, 0]): line.get_markerfacecolor() for line in markers}
    assert to_hex(fills[0.0]) == "#ffffff"
    assert to_hex(fills[0.02]) != "#ffffff"
    legend = ax.get_legend()
    assert legend is not None
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == ["compared with same algorithm", "compared with ordinary model", "by proof"]


def one(line: Any) -> bool:
    """Whether a line is the marker of one value."""
    return len(line.get_xdata()) == 1 and line.get_marker() not in ("None", "|", "")


def test_infinity_is_written() -> None:
    endless = replace(speed(1), value=np.inf, low=3.0, high=None)
    row = {"same algorithm": {"efficiency": endless}}
    display = EvaluationDisplay(
        {"a": row, "b": {"same algorithm": {"efficiency": speed(3)}}}
    ).plot()
    assert [text.get_text() for text in display.ax_[0].texts] == ["∞"]
    np.testing.assert_array_equal(
        display.bars_["efficiency", "same algorithm"].lines[0].get_xdata(), [3]
    )


def test_from_evaluations_numbers_equal_titles() -> None:
    measures = rows()["SISA"]
    same = [SimpleNamespace(title="SISA", method="x", measures=measures)] * 2
    untitled = SimpleNamespace(title="", method="Fisher", measures=measures)
    display = EvaluationDisplay.from_evaluations(*same, untitled, measures=["effectiveness"])
    assert list(display.rows) == ["SISA", "SISA (2)", "Fisher"]
    assert [ax.get_title() for ax in display.ax_] == ["Effectiveness"]


@pytest.mark.parametrize("n_methods", [1, 9])
def test_texts_do_not_overlap(n_methods: int) -> None:
    assert overlapping_texts(EvaluationDisplay(many(n_methods)).plot().figure_) == []


def test_given_axes_are_used() -> None:
    figure, axes = plt.subplots(1, 2)
    display = EvaluationDisplay(rows()).plot(axes)
    assert display.figure_ is figure
    assert display.ax_ == tuple(axes)
    with pytest.raises(ValueError, match="must have 2 axes for these measures, not 1"):
        EvaluationDisplay(rows()).plot(axes[:1])


@pytest.mark.parametrize(
    ("given", "measures", "text"),
    [
        ({}, None, "no measure"),
        ({"SISA": {"same algorithm": {}}}, None, "no measure"),
        (rows(), ["speed"], r"unknown measures: \['speed'\]"),
    ],
)
def test_what_cannot_be_drawn_is_refused(given: Any, measures: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        EvaluationDisplay(given, measures=measures)
