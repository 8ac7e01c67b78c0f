"""`suggest_skeleton`: the rule of choice, honest folds, costs, and what is shown."""

import re
from dataclasses import replace
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes

mpl.use("Agg")

from letheon import BoostingClassifier, BoostingRegressor, DaREForestClassifier
from letheon.boosting import SkeletonSearch, suggest_skeleton
from letheon.exceptions import NoCandidateError
from letheon.plot import SkeletonDisplay
from tests.pipelines.people import PEOPLE, mixed_frame

X, Y = load_breast_cancer(return_X_y=True)
X, Y = X[:240], Y[:240]
MODEL = BoostingClassifier(n_estimators=4, n_chains=2, min_samples_leaf=2, random_state=0)
BY_SIZE = {10: 0.5, 40: 0.895, 80: 0.9, 200: 0.898}


def by_size(model: Any, _X: Any, _y: Any) -> float:
    """Stand for a score that depends on the size alone."""
    return BY_SIZE.get(getattr(model, "skeleton_people", 0), 0.1)


def search_by_size(**options: Any) -> SkeletonSearch:
    usual: dict[str, Any] = {"sizes": [200, 10, 40, 80], "scoring": by_size, "cv": 2}
    return suggest_skeleton(X, Y, model=MODEL, **(usual | {"n_requests": 20} | options))


@pytest.mark.parametrize(("tolerance", "accepted"), [(0.0, {80}), (0.004, {80, 200})])
def test_the_cheapest_size_within_the_tolerance(tolerance: float, accepted: set[int]) -> None:
    search = search_by_size(tolerance=tolerance)
    assert [size.skeleton_people for size in search.sizes] == [10, 40, 80, 200]
    costs = {size.skeleton_people: size.cost for size in search.sizes}
    assert search.skeleton_people == min(accepted, key=lambda size: costs[size])


def test_sizes_no_better_than_a_constant_are_never_chosen() -> None:
    def bad(model: Any, _X: Any, _y: Any) -> float:
        return 0.1 if hasattr(model, "skeleton_people") else 0.9

    with pytest.raises(NoCandidateError, match="does not beat a constant prediction"):
        search_by_size(scoring=bad, tolerance=1.0)


def test_a_size_below_a_constant_is_not_chosen_within_a_large_tolerance() -> None:
    def score(model: Any, _X: Any, _y: Any) -> float:
        return {10: 0.1, 200: 0.9}.get(getattr(model, "skeleton_people", 0), 0.5)

    search = search_by_size(scoring=score, sizes=[10, 200], tolerance=1.0)
    assert search.sizes[0].cost < search.sizes[1].cost
    assert search.skeleton_people == 200


def test_the_seed_draws_the_people_whose_cost_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    forget_cost = BoostingClassifier.forget_cost

    def record(model: Any, ids: Any) -> Any:
        asked.extend(ids)
        return forget_cost(model, ids)

    monkeypatch.setattr(BoostingClassifier, "forget_cost", record)
    for seed in (0, 1):
        model = BoostingClassifier(**MODEL.get_params() | {"random_state": seed})
        suggest_skeleton(
            X, Y, model=model, n_requests=30, sizes=[10, 40], scoring=by_size, cv=2, tolerance=1.0
        )
    draws = [asked[begin : begin + 30] for begin in range(0, 120, 30)]
    assert draws[0] == draws[1] != draws[2] == draws[3]
    assert len(set(draws[0])) == 30
    assert max(draws[0]) > 100


def test_costs_are_those_of_forget_cost() -> None:
    search = search_by_size(n_requests=10_000, sizes=[40])
    fitted = BoostingClassifier(**MODEL.get_params()).set_params(skeleton_people=40).fit(X, Y)
    costs = [fitted.forget_cost([person]) for person in range(len(X))]
    assert search.n_asked == len(X) - 1
    assert search.sizes[0].largest_cost == max(cost.share for cost in costs)
    assert search.sizes[0].cost == pytest.approx(np.mean([cost.share for cost in costs]), rel=0.02)
    grown = np.mean([cost.chains > 0 for cost in costs])
    assert search.sizes[0].regrown == pytest.approx(grown, abs=0.01)


def test_a_progress_bar_counts_the_sizes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    quiet = search_by_size(sizes=[10])
    assert capsys.readouterr() == ("", "")
    assert search_by_size(sizes=[10], progress=True) == quiet
    assert "skeleton sizes" in capsys.readouterr().err


def test_two_runs_are_equal_and_the_model_is_not_changed() -> None:
    before = MODEL.get_params()
    first, second = (suggest_skeleton(X, Y, model=MODEL, sizes=[30, 200], cv=2) for _ in range(2))
    assert first == second
    assert MODEL.get_params() == before
    assert not hasattr(MODEL, "seed_")


class Recorder(BoostingClassifier):
    """Keeps the people and the number of rows of every fit."""

    seen: list[tuple[set[Any], int]] = []  # noqa: RUF012

    def fit(self, X: Any, y: Any, *, ids: Any = None, sample_weight: Any = None) -> Any:
        Recorder.seen.append((set(np.asarray(ids).tolist()), len(X)))
        return super().fit(X, y, ids=ids, sample_weight=sample_weight)


def test_a_person_is_never_on_both_sides() -> None:
    Recorder.seen.clear()
    model = Recorder(n_estimators=1, random_state=0)
    owners = np.array([f"p{i}" for i in np.arange(240) % 60])
    suggest_skeleton(X, Y, model=model, ids=owners, sizes=[60])
    assert [n_rows for _, n_rows in Recorder.seen][-1] == 240
    assert len(Recorder.seen) == 6
    assert all(n_rows == 4 * len(people) for people, n_rows in Recorder.seen)


def test_weights_are_used_in_fits_and_scores() -> None:
    weights = np.where(np.arange(240) < 120, 1, 0)
    options: dict[str, Any] = {"model": MODEL, "sizes": [240], "n_requests": 5}
    options["cv"] = [(np.arange(0, 240, 2), np.arange(1, 240, 2))]
    weighted = suggest_skeleton(X, Y, sample_weight=weights, **options)
    half = [(np.arange(0, 120, 2), np.arange(1, 120, 2))]
    alone = suggest_skeleton(X[:120], Y[:120], **(options | {"cv": half}))
    assert weighted.sizes[0].score == alone.sizes[0].score


def test_frames_with_categories_and_missing_values() -> None:
    frame = mixed_frame()
    model = BoostingClassifier(n_estimators=10, n_chains=1, random_state=0)
    options: dict[str, Any] = {"model": model, "cv": 2, "n_requests": 5}
    search = suggest_skeleton(frame, frame["city"] == "Rome", ids=PEOPLE, **options)
    assert search.sizes[-1].score > 0.95
    assert [size.skeleton_people for size in search.sizes] == [10, 20, 40, 80, 160]


def test_many_floats_are_a_regression() -> None:
    search = suggest_skeleton(*load_diabetes(return_X_y=True), sizes=[400], cv=2, n_requests=5)
    assert search.sizes[0].score > 0.2
    assert search.constant < 0.05


def test_what_is_shown() -> None:
    search = search_by_size(tolerance=0.0)
    lines = str(search).splitlines()
    heads = ["skeleton people", "score", "mean cost", "median", "largest", "chains", "values"]
    assert re.split("  +", lines[0]) == heads
    assert sum(line.endswith("chosen") for line in lines) == 1
    assert max(map(len, lines)) <= 120
    assert repr(search) == (
        "<SkeletonSearch: skeleton_people=80: the cheapest of 4 sizes whose score is at most 0 "
        "below the best>"
    )
    assert search._repr_html_().count("<tr>") == 5
    model = BoostingClassifier(n_estimators=2).fit(X, Y).declare_tuning(search.tuning)
    assert "on 240 rows of 240 people" in str(model.guarantee_.tuning)


def test_the_plot_marks_the_chosen_size() -> None:
    search = search_by_size(tolerance=0.0)
    display = SkeletonDisplay(search).plot()
    assert [label.get_text() for label in display.labels_] == ["10", "40", "80", "200"]
    points = {size.skeleton_people: (100 * size.cost, size.score) for size in search.sizes}
    line = next(line for line in display.ax_.lines if line.get_label() == "chosen")
    np.testing.assert_array_equal(line.get_xydata(), [points[80]])
    moved = SkeletonDisplay(replace(search, skeleton_people=10)).plot(display.ax_)
    assert moved.ax_ is display.ax_


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": []}, "sizes is empty"),
        ({"sizes": [0]}, "sizes=0"),
        ({"sizes": ["a", 2]}, "sizes='a'"),
        ({"sizes": 5}, "sizes=5; expected numbers of people"),
        ({"tolerance": -1}, "tolerance=-1"),
        ({"cv": 1}, "cv=1"),
        ({"n_requests": 0}, "n_requests=0"),
        ({"ids": [1, 2]}, "2 ids for 240 rows"),
        ({"sample_weight": [1.0]}, "inconsistent numbers of samples"),
        ({"sample_weight": 2.0}, "Expected sequence or array-like|Input should have at least 1"),
        ({"model": DaREForestClassifier()}, r"BoostingClassifier or .* got DaREForestClassifier"),
    ],
)
def test_bad_input_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        suggest_skeleton(X, Y, **({"model": BoostingRegressor()} | options))
