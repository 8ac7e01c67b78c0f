"""Choosing the number of random levels: the rule itself, and honest folds."""

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import KFold

from letheon import DaREForestClassifier, DaREForestRegressor
from letheon.forest import tune_random_depth

X, Y = load_breast_cancer(return_X_y=True)
X, Y = X[:120], Y[:120]
MODEL = DaREForestClassifier(n_estimators=2, max_depth=3, random_state=0)
BY_DEPTH = [0.90, 0.897, 0.894, 0.5]


def by_depth(model: Any, _X: Any, _y: Any) -> float:
    """Stand for a score that falls with every level."""
    return BY_DEPTH[int(model.random_depth)]


@pytest.mark.parametrize(
    ("tolerance", "depth", "tried"), [(0.0, 0, 2), (0.004, 1, 3), (0.01, 2, 4), (1.0, 3, 4)]
)
def test_the_last_depth_before_the_score_falls_too_far(
    tolerance: float, depth: int, tried: int
) -> None:
    search = tune_random_depth(MODEL, X, Y, tolerance=tolerance, scoring=by_depth, cv=3)
    assert search.random_depth == depth
    assert search.depths.tolist() == list(range(tried))
    np.testing.assert_allclose(search.scores, BY_DEPTH[:tried])
    np.testing.assert_allclose(search.std, 0, atol=1e-12)
    assert search.tolerance == tolerance


def test_it_stops_where_it_is_told() -> None:
    search = tune_random_depth(MODEL, X, Y, tolerance=1, scoring=by_depth, cv=2, max_random_depth=1)
    assert search.depths.tolist() == [0, 1]


def test_a_progress_bar_counts_the_levels(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    options: dict[str, Any] = {"tolerance": 1, "scoring": by_depth, "cv": 2, "max_random_depth": 1}
    quiet = tune_random_depth(MODEL, X, Y, **options)
    assert capsys.readouterr() == ("", "")
    loud = tune_random_depth(MODEL, X, Y, progress=True, **options)
    assert "random levels" in capsys.readouterr().err
    assert loud.random_depth == quiet.random_depth


def test_the_model_is_not_touched() -> None:
    before = MODEL.get_params()
    tune_random_depth(MODEL, X, Y, tolerance=1, max_random_depth=1)
    assert MODEL.get_params() == before
    assert not hasattr(MODEL, "seed_")


def test_real_scores_of_both_kinds() -> None:
    search = tune_random_depth(MODEL, X, Y, tolerance=1, max_random_depth=2)
    again = tune_random_depth(MODEL, X, Y, tolerance=1, max_random_depth=2)
    assert search.scores[0] > 0.8
    np.testing.assert_array_equal(search.scores, again.scores)
    numbers = DaREForestRegressor(n_estimators=5, max_depth=None, random_state=0)
    search = tune_random_depth(
        numbers, *load_diabetes(return_X_y=True), tolerance=9, max_random_depth=1
    )
    assert search.scores[0] > 0.2


class FitRecorder(DaREForestClassifier):
    """Keeps the people of every fit."""

    seen: list[tuple[Any, Any]] = []  # noqa: RUF012

    def fit(self, X: Any, y: Any, *, ids: Any = None, sample_weight: Any = None) -> Any:
        FitRecorder.seen.append((set(np.asarray(ids).tolist()), len(X)))
        return super().fit(X, y, ids=ids, sample_weight=sample_weight)


@pytest.mark.parametrize("text", [False, True])
def test_a_person_is_never_on_both_sides(text: bool) -> None:
    FitRecorder.seen.clear()
    owners: Any = np.arange(120) % 30
    owners = [f"p{i}" for i in owners] if text else owners
    model = FitRecorder(n_estimators=1, max_depth=2, random_state=0)
    tune_random_depth(model, X, Y, ids=owners, max_random_depth=0)
    assert len(FitRecorder.seen) == 5
    for people, n_rows in FitRecorder.seen:
        assert n_rows == 4 * len(people)  # all rows of each person


def test_own_folds_are_used() -> None:
    FitRecorder.seen.clear()
    model = FitRecorder(n_estimators=1, random_state=0)
    tune_random_depth(model, X, Y, cv=KFold(3), max_random_depth=0)
    tune_random_depth(model, X, Y, cv=[(np.arange(70), np.arange(70, 120))], max_random_depth=0)
    assert [n_rows for _, n_rows in FitRecorder.seen] == [80, 80, 80, 70]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tolerance": -0.1}, "tolerance=-0.1"),
        ({"tolerance": np.nan}, "tolerance=nan"),
        ({"cv": 1}, "cv=1"),
        ({"max_random_depth": -1}, "max_random_depth=-1"),
        ({"ids": [1, 2]}, "2 ids for 120 rows"),
        ({"tolerance": "a"}, "tolerance='a'; expected a number"),
        ({"tolerance": None}, "tolerance=None; expected a number"),
    ],
)
def test_nonsense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        tune_random_depth(MODEL, X, Y, **options)


def test_another_forest_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"DaREForestClassifier or .* got RandomForestClassifier"):
        tune_random_depth(RandomForestClassifier(), X, Y)
