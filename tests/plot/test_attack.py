"""Curves, tables and bars show what attacks found, and their floors."""

from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.collections import LineCollection
from sklearn.metrics import roc_auc_score

from letheon.measures import Measure
from letheon.measures.attacks import AttackResult
from letheon.plot import AttackDisplay
from tests.plot.drawn import ends, measure, overlapping_texts, xy

AT = "TPR at 1 % FPR"


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    plt.close("all")


def result(attack: str = "rmia", shift: float = 1.0, **options: Any) -> AttackResult:
    rng = np.random.default_rng(0)
    scores = np.r_[rng.normal(0, 1, 200), rng.normal(shift, 1, 200)].round(1)
    given: dict[str, Any] = {
        "attack": attack,
        "about": "forgotten",
        "n_models": 8,
        "measures": {"AUC": measure("AUC", 0.7), AT: measure(AT, 0.2)},
        "floor": {"AUC": measure("AUC", 0.5), AT: measure(AT, 0.01)},
        "scores": scores,
        "labels": np.repeat([0, 1], 200),
    }
    return AttackResult(**{**given, **options})


def klom(about: str = "forgotten", value: float = 2.0) -> AttackResult:
    def nats(v: float) -> dict[str, Measure]:
        return {"KLOM": measure("KLOM", v, unit="nats")}

    return result("klom", about=about, measures=nats(value), floor=nats(0.36), scores=None)


def test_the_curve_is_that_of_the_scores() -> None:
    given = result()
    line = AttackDisplay.from_results(given).lines_["rmia on forgotten"]
    fpr, tpr = xy(line).T
    assert given.scores is not None
    area = np.trapezoid(tpr, fpr)
    assert area == pytest.approx(roc_auc_score(given.labels, given.scores))
    assert line.get_drawstyle() == "steps-post"


def test_axes_are_logarithmic_and_chance_is_drawn() -> None:
    ax = AttackDisplay.from_results(result()).ax_[0]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("false positive rate", "true positive rate")
    (chance,) = [line for line in ax.lines if line.get_label() == "chance"]
    np.testing.assert_array_equal(xy(chance)[:, 0], xy(chance)[:, 1])
    assert ax.get_xlim()[0] <= 0.005


def test_rates_at_one_per_cent_and_their_floors_have_intervals() -> None:
    given = result()
    ax = AttackDisplay.from_results(given).ax_[0]
    bars = [c.get_segments()[0] for c in ax.collections if isinstance(c, LineCollection)]
    expected = [ends(given.measures[AT]), ends(given.floor[AT])]
    np.testing.assert_allclose([bar[:, 1] for bar in bars], expected)
    np.testing.assert_allclose([bar[0, 0] for bar in bars], [0.01, 0.01], rtol=0.1)


def test_the_table_has_each_measure_and_its_floor() -> None:
    table = AttackDisplay.from_results(result(), result("u-lira", about="retained")).table_
    assert table is not None
    texts = {place: cell.get_text().get_text() for place, cell in table.get_celld().items()}
    assert [texts[0, column] for column in range(2)] == ["AUC", AT]
    assert [texts[row, -1] for row in range(1, 5)] == [
        "rmia on forgotten",
        "floor",
        "u-lira on retained",
        "floor",
    ]
    assert texts[1, 0] == "0.7 [0.63, 0.84]"
    assert texts[2, 1] == "0.01 [0.009, 0.012]"


def test_attacks_without_a_curve_are_bars_with_floors() -> None:
    display = AttackDisplay.from_results(klom(), klom("retained", 0.4))
    assert display.table_ is None
    assert [bar.get_width() for bar in display.bars_["KLOM"]] == [2.0, 0.4]
    assert [bar.get_width() for bar in display.floor_bars_["KLOM"]] == [0.36, 0.36]
    arms = display.bars_["KLOM"].errorbar
    assert arms is not None
    drawn = [pair[:, 0] for pair in arms.lines[2][0].get_segments()]
    np.testing.assert_allclose(drawn, [[1.8, 2.4], [0.36, 0.48]])
    (ax,) = display.ax_
    assert ax.get_xlabel() == "KLOM [nats]\n95 % CI, lower is better"
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert names == ["klom on forgotten", "klom on retained"]


def test_curves_and_bars_share_a_figure() -> None:
    display = AttackDisplay.from_results(result(), klom(), result())
    assert len(display.ax_) == 3
    assert list(display.lines_) == ["rmia on forgotten", "rmia on forgotten (2)"]
    assert overlapping_texts(display.figure_) == []


def test_scores_of_one_world_have_no_curve() -> None:
    display = AttackDisplay.from_results(result(labels=np.ones(400)))
    assert display.lines_ == {}
    assert [bar.get_width() for bar in display.bars_["AUC"]] == [0.7]


def test_curves_alone_need_no_measures() -> None:
    display = AttackDisplay({"mine": ([0, 0.5, 1], [0, 0.8, 1])}).plot()
    np.testing.assert_array_equal(xy(display.lines_["mine"]), [[0, 0], [0.5, 0.8], [1, 1]])
    assert display.table_ is None


def test_given_axes_are_used() -> None:
    figure, axes = plt.subplots(1, 2)
    assert AttackDisplay.from_results(result(), ax=axes).figure_ is figure
    with pytest.raises(ValueError, match="must have 2 axes"):
        AttackDisplay.from_results(result(), ax=axes[:1])


@pytest.mark.parametrize(
    ("curves", "options", "text"),
    [
        ({}, {}, "at least one attack"),
        ({}, {"measures": {"a": {}}}, "at least one attack"),
        ({"a": ([0, 1], [0, 0.5, 1])}, {}, "arrays of equal length"),
        ({"a": ([0, 2], [0, 1])}, {}, "ascending numbers between 0 and 1"),
        ({"a": ([1, 0], [0, 1])}, {}, "ascending numbers between 0 and 1"),
        ({"a": ([0, 1], [0, 1])}, {"floors": {"b": {}}}, r"floors of unknown attacks: \['b'\]"),
    ],
)
def test_what_cannot_be_drawn_is_refused(curves: Any, options: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        AttackDisplay(curves, **options)
