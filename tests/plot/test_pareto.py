"""Pareto front, shaded tolerances and readable names."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

mpl.use("Agg")

from hypothesis import given
from hypothesis import strategies as st
from matplotlib import pyplot as plt
from matplotlib.patches import Rectangle

from letheon.measures import Better, Measure
from letheon.plot import ParetoDisplay, pareto_front
from tests.plot.drawn import ends, loss, measure, overlapping_texts, segments, speed, xy

Points = dict[str, dict[str, Measure]]


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    plt.close("all")


def point(x: float, y: float) -> dict[str, Measure]:
    return {"effectiveness": loss(x), "efficiency": speed(y)}


POINTS = {
    "naive": point(0.001, 1),
    "SISA": point(0.02, 8),
    "DaRE": point(0.005, 300),
    "slow": point(0.03, 2),
}


def crowd(n: int) -> Points:
    rng = np.random.default_rng(n)
    places = zip(rng.uniform(0, 0.03, n), rng.lognormal(2, 1, n), strict=True)
    return {f"SISAClassifier(n_shards={i})": point(x, y) for i, (x, y) in enumerate(places)}


def test_points_and_intervals_are_the_measures() -> None:
    display = ParetoDisplay(POINTS).plot()
    for name, row in POINTS.items():
        bars = display.bars_[name]
        for axis, m in enumerate((row["effectiveness"], row["efficiency"])):
            assert xy(bars.lines[0])[0, axis] == m.value
            np.testing.assert_allclose(segments(bars, axis, axis), [ends(m)])


def test_the_line_is_the_staircase_of_the_front() -> None:
    display = ParetoDisplay(POINTS).plot()
    assert display.front_ == ("naive", "DaRE")
    np.testing.assert_array_equal(display.line_.get_xydata(), [[0.001, 1], [0.005, 300]])
    assert display.line_.get_drawstyle() == "steps-post"


@pytest.mark.parametrize(("x", "y"), list(product(("lower", "higher"), repeat=2)))
def test_a_step_is_dominated_by_its_neighbours(x: Better, y: Better) -> None:
    """A point slightly better than a corner is not dominated; slightly worse is dominated."""
    places = [(1.0, 2.0), (3.0, 4.0)] if x != y else [(1.0, 4.0), (3.0, 2.0)]
    points = {
        str(i): {"x": measure("x", a, better=x), "y": measure("y", b, better=y)}
        for i, (a, b) in enumerate(places)
    }
    display = ParetoDisplay(points, x="x", y="y").plot()
    path = xy(display.line_)
    pre = display.line_.get_drawstyle() == "steps-pre"
    corner = (path[0, 0], path[1, 1]) if pre else (path[1, 0], path[0, 1])
    for shift, is_beaten in ((0.1, True), (-0.1, False)):
        signs = [-1 if way == "higher" else 1 for way in (x, y)]
        extra = {
            n: measure(n, c + s * shift, better=w)
            for n, c, s, w in zip("xy", corner, signs, (x, y), strict=True)
        }
        assert ("extra" not in pareto_front({**points, "extra": extra}, ("x", "y"))) == is_beaten


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6)), min_size=1),
    st.tuples(*[st.sampled_from(["lower", "higher"])] * 3),
)
def test_front_against_the_definition(values: Any, ways: Any) -> None:
    points = {
        str(i): {n: measure(n, v, better=w) for n, v, w in zip("abc", row, ways, strict=True)}
        for i, row in enumerate(values)
    }
    signs = np.array([1 if way == "lower" else -1 for way in ways])
    losses = np.array(values) * signs
    beaten = [((losses <= mine).all(1) & (losses < mine).any(1)).any() for mine in losses]
    expected = tuple(str(i) for i, is_beaten in enumerate(beaten) if not is_beaten)
    assert pareto_front(points, ("a", "b", "c")) == expected


def test_shade_begins_at_the_tolerance_and_covers_the_worse_side() -> None:
    tolerances = {"effectiveness": 0.015, "efficiency": 4.0, "certifiability": 1.0}
    ax = ParetoDisplay(POINTS, tolerances=tolerances).plot().ax_
    right, below = (p.get_bbox() for p in ax.patches if isinstance(p, Rectangle))
    assert (right.x0, right.x1) == (0.015, ax.get_xlim()[1])
    assert (below.y0, below.y1) == (ax.get_ylim()[0], 4.0)


def test_a_tolerance_that_all_meet_is_still_in_sight() -> None:
    display = ParetoDisplay(POINTS, tolerances={"effectiveness": 0.5, "efficiency": 1e-3}).plot()
    assert display.ax_.get_xlim()[1] > 0.5
    assert display.ax_.get_ylim()[0] < 1e-3


def test_the_chosen_one_is_ringed_and_the_legend_says_so() -> None:
    ax = ParetoDisplay(POINTS, chosen="DaRE").plot().ax_
    (ring,) = [line for line in ax.lines if line.get_label() == "chosen"]
    np.testing.assert_array_equal(ring.get_xydata(), [[0.005, 300]])
    assert ring.get_markerfacecolor() == "none"
    assert not [x for x in ParetoDisplay(POINTS).plot().ax_.lines if x.get_label() == "chosen"]


def test_axes_say_what_they_are() -> None:
    ax = ParetoDisplay(POINTS).plot().ax_
    assert ax.get_title() == "Efficiency against effectiveness"
    assert (ax.get_xscale(), ax.get_yscale()) == ("linear", "log")
    assert ax.get_xlabel() == "effectiveness\n95 % CI, lower is better"
    assert ax.get_ylabel() == "efficiency [x]\n95 % CI, higher is better"


def test_names_stand_beside_their_points() -> None:
    display = ParetoDisplay(POINTS).plot()
    assert {name: label.get_text() for name, label in display.labels_.items()} == {
        name: name for name in POINTS
    }
    assert all(label.xy == display._get_position(name) for name, label in display.labels_.items())


@pytest.mark.parametrize("n", [4, 12, 30])
def test_labels_do_not_overlap(n: int) -> None:
    display = ParetoDisplay(crowd(n), tolerances={"effectiveness": 0.015}).plot()
    assert overlapping_texts(display.figure_) == []


def test_a_crowd_is_numbered_with_a_key() -> None:
    display = ParetoDisplay(crowd(30)).plot()
    assert [label.get_text() for label in display.labels_.values()] == [
        str(number) for number in range(1, 31)
    ]
    legend = display.ax_.get_legend()
    assert legend is not None
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts[1] == "1: SISAClassifier(n_shards=0)"
    assert len(texts) == 31


def test_points_in_one_place_are_all_named() -> None:
    display = ParetoDisplay({name: point(0.01, 2) for name in "abcdef"}).plot()
    assert len(display.labels_) == 6
    assert display.front_ == tuple("abcdef")
    assert overlapping_texts(display.figure_) == []


def test_who_lacks_a_measure_is_left_out() -> None:
    endless = {"efficiency": speed(np.inf, None), "effectiveness": loss(0.1)}
    display = ParetoDisplay({**POINTS, "x": {"efficiency": speed(2)}, "y": endless})
    assert list(display.points) == list(POINTS)


def test_an_endless_interval_leaves_the_axes_but_does_not_stretch_them() -> None:
    endless = {**POINTS["DaRE"], "efficiency": replace(POINTS["DaRE"]["efficiency"], high=np.inf)}
    ax = ParetoDisplay({**POINTS, "DaRE": endless}).plot().ax_
    (line,) = [line for line in ax.lines if line.get_label() == "_endless"]
    assert xy(line)[:, 0].tolist() == [0.005, 0.005]
    assert xy(line)[0, 1] == 300
    assert xy(line)[1, 1] > ax.get_ylim()[1]
    assert ax.get_ylim()[1] < 1e4


def test_given_axes_are_used() -> None:
    figure, ax = plt.subplots(figsize=(9, 5))
    display = ParetoDisplay(POINTS).plot(ax)
    assert display.figure_ is figure
    assert figure.get_figheight() == 5


@pytest.mark.parametrize(
    ("points", "chosen", "text"),
    [
        ({}, None, "no method"),
        ({"a": {"efficiency": speed(2)}}, None, "both effectiveness and efficiency"),
        (POINTS, "who", "chosen must be one of .*, not 'who'"),
    ],
)
def test_what_cannot_be_drawn_is_refused(points: Any, chosen: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ParetoDisplay(points, chosen=chosen)


def test_who_is_not_surely_within_tolerance_is_hollow_and_the_legend_says_so() -> None:
    display = ParetoDisplay(POINTS, doubtful=["SISA", "slow"]).plot()
    fills = {name: bars.lines[0].get_markerfacecolor() for name, bars in display.bars_.items()}
    assert {name for name, fill in fills.items() if fill == "white"} == {"SISA", "slow"}
    legend = display.ax_.get_legend()
    assert legend is not None
    assert "not certainly within tolerance" in [text.get_text() for text in legend.get_texts()]
    sure = ParetoDisplay(POINTS).plot().ax_.get_legend_handles_labels()[1]
    assert "not certainly within tolerance" not in sure


def test_a_doubtful_method_must_be_among_the_points() -> None:
    with pytest.raises(ValueError, match="doubtful contains 'other'"):
        ParetoDisplay(POINTS, doubtful=["other"])
