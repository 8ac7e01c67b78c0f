"""The plots show the computed values."""

import builtins
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from letheon.measures import Measure
from letheon.plot import AccuracyShardsDisplay, PlanDisplay
from letheon.sharded import Plan, compare_plans, plan


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    plt.close("all")


def score(value: float, arm: float | None = 0.02) -> Measure:
    low, high = (None, None) if arm is None else (value - arm, value + 2 * arm)
    return Measure(
        name="accuracy", value=value, low=low, high=high, n=9, better="higher", basis="measured"
    )


SCORES = {"adult": {20: score(0.8), 1: score(0.85)}, "census": {1: score(0.95), 5: score(0.9)}}


def overlapping_texts(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of drawn tick labels, titles, legends or bar labels that cover each other."""
    figure.canvas.draw()
    texts: list[tuple[str, Any]] = []
    for ax in figure.axes:
        boxed: list[Any] = [ax.title, ax.xaxis.label, ax.yaxis.label, *ax.texts]
        boxed += ax.get_xticklabels() + ax.get_yticklabels()
        texts += [(t.get_text(), t.get_window_extent()) for t in boxed if t.get_text()]
        legend = ax.get_legend()
        if legend is not None:
            texts.append(("legend", legend.get_window_extent()))
    return [(a, b) for (a, x), (b, y) in combinations(texts, 2) if x.overlaps(y)]


def test_lines_and_bars_are_the_plans_numbers() -> None:
    settings, sizes = [(5, 1), (20, 50)], [1, 8, 18]
    display = PlanDisplay.from_grid(9000, sizes, settings=settings, state_bytes=2**20)
    for line, (s, r) in zip(display.lines_, settings, strict=True):
        expected = [plan(9000, k, n_shards=s, n_slices=r).speed_up for k in sizes]
        np.testing.assert_array_equal(line.get_xdata(), sizes)
        np.testing.assert_allclose(np.asarray(line.get_ydata()), expected)
        assert line.get_label() == f"{s} × {r}"
    assert [bar.get_height() for bar in display.bars_] == [5, 1000]


def test_labels_have_units() -> None:
    speed, storage = PlanDisplay.from_grid(9000, state_bytes=2**20).ax_
    assert speed.get_title() == "Expected speed-up, 9,000 rows"
    assert speed.get_xlabel() == "people forgotten in one batch"
    assert speed.get_ylabel() == "speed-up over naive retraining"
    assert storage.get_ylabel() == "saved states [MiB]"
    assert PlanDisplay.from_grid(9000).ax_[1].get_ylabel() == "saved states [models]"


def test_the_label_names_single_removals() -> None:
    speed, _ = PlanDisplay.from_grid(9000, batch=False).ax_
    assert speed.get_xlabel() == "people forgotten one by one"


def test_plans_of_any_order_are_drawn_by_batch_size() -> None:
    plans = compare_plans(500, [9, 1, 4], n_shards=[3], n_slices=[2, 1])
    display = PlanDisplay(plans).plot()
    assert [line.get_label() for line in display.lines_] == ["3 × 2", "3 × 1"]
    np.testing.assert_array_equal(display.lines_[0].get_xdata(), [1, 4, 9])


def test_from_plan_keeps_all_but_the_batch_size() -> None:
    base = plan(600, 7, n_shards=4, n_slices=3, epochs=5, rows_per_person=2)
    display = PlanDisplay.from_plan(base, n_requests=np.array([1, 7]))
    assert display.plans[1] == base
    assert [p.n_requests for p in PlanDisplay.from_plan(base).plans] == [1, 2, 5, 10, 20]


def test_default_batches_do_not_remove_all_people() -> None:
    assert [p.n_requests for p in PlanDisplay.from_plan(plan(7, n_shards=5)).plans] == [1, 2, 5]
    assert [p.n_requests for p in PlanDisplay.from_plan(plan(2)).plans] == [1]


@pytest.mark.parametrize("n_lines", [1, 4, 8])
def test_plan_texts_do_not_overlap(n_lines: int) -> None:
    settings = [(s, r) for s in (5, 20, 50, 100) for r in (10, 50)][:n_lines]
    display = PlanDisplay.from_grid(1_000_000, settings=settings, state_bytes=123_456)
    assert overlapping_texts(display.figure_) == []


def test_overlap_is_noticed() -> None:
    display = PlanDisplay.from_grid(9000)
    display.ax_[0].text(0.5, 1.02, "in the way", transform=display.ax_[0].transAxes)
    assert overlapping_texts(display.figure_) == [("Expected speed-up, 9,000 rows", "in the way")]


def test_lines_are_distinguishable() -> None:
    settings = [(s, r) for s in (1, 2, 3, 4, 5) for r in (1, 2)]
    lines = PlanDisplay.from_grid(9000, [1, 2], settings=settings).lines_
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 10


def test_draws_on_given_axes() -> None:
    figure, axes = plt.subplots(1, 2)
    display = PlanDisplay.from_grid(9000, ax=axes)
    assert display.figure_ is figure
    assert display.ax_ == tuple(axes)


@pytest.mark.parametrize(
    ("plans", "text"),
    [
        ([], "must not be empty"),
        ([plan(10), plan(20)], "must not differ in n_rows"),
        ([plan(10), plan(10, batch=False)], "must not differ in batch"),
        ([plan(10), plan(10, state_bytes=1)], "must not differ in state_bytes"),
    ],
)
def test_plans_that_cannot_share_a_plot(plans: list[Plan], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        PlanDisplay(plans)


def test_accuracy_points_and_intervals() -> None:
    display = AccuracyShardsDisplay(SCORES).plot()
    points, _, (bars,) = display.bars_[0].lines
    assert points is not None
    np.testing.assert_allclose(np.asarray(points.get_ydata(), float), [0.85, 0.8])
    np.testing.assert_allclose(np.asarray(points.get_xdata(), float), [1, 20], rtol=0.03)
    ends = [segment[:, 1].tolist() for segment in bars.get_segments()]
    np.testing.assert_allclose(ends, [[0.83, 0.89], [0.78, 0.84]])


def test_accuracy_labels() -> None:
    ax = AccuracyShardsDisplay(SCORES, naive={"adult": 0.86}).plot().ax_
    assert ax.get_title() == "Accuracy by number of shards"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("number of shards", "accuracy, 95 % CI")
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["1", "5", "20"]
    legend = ax.get_legend()
    assert legend is not None
    assert {t.get_text() for t in legend.get_texts()} == {"adult", "adult, one model", "census"}


def test_accuracy_without_intervals_claims_none() -> None:
    display = AccuracyShardsDisplay({"adult": {1: score(0.8, None)}}, metric="AUC").plot()
    assert display.ax_.get_ylabel() == "AUC"
    assert display.ax_.get_legend() is None


def test_accuracy_texts_do_not_overlap_and_axes_are_kept() -> None:
    figure, ax = plt.subplots(layout="constrained")
    many = {s: score(0.9 - s / 1000) for s in (1, 2, 3, 5, 8, 10, 15, 20, 30, 50, 100)}
    display = AccuracyShardsDisplay({"adult": many}).plot(ax)
    assert display.figure_ is figure
    assert overlapping_texts(display.figure_) == []


@pytest.mark.parametrize(
    ("scores", "naive", "text"),
    [
        ({}, None, "must not be empty"),
        ({"adult": {}}, None, "must not be empty"),
        (SCORES, {"iris": 0.9}, r"unknown names: \['iris'\]"),
        ({"adult": {0: score(0.8)}}, None, "at least 1"),
    ],
)
def test_bad_scores_are_refused(scores: Any, naive: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        AccuracyShardsDisplay(scores, naive=naive)


def test_missing_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'letheon\[plot\]'"):
        PlanDisplay.from_grid(9000)


def test_import_needs_no_matplotlib() -> None:
    code = "import sys, letheon.plot; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
