from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import norm
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC

from letheon.data import Rows, row_ids
from letheon.measures.attacks import auc, cross_lira, lira, margins
from letheon.measures.attacks._shadows import mean_by_person, observe_model, split_halves


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=5), st.integers(0, 4))
def test_margin_is_the_logit_of_the_true_class(weights: list[float], which: int) -> None:
    p, k = np.array(weights) / sum(weights), which % len(weights)
    (margin,) = margins(np.log(p)[None], [k], np.arange(len(p)))
    assert margin == pytest.approx(np.log(p[k] / (1 - p[k])), abs=1e-9)


def test_margin_of_a_sure_model_is_not_rounded_to_infinity() -> None:
    # 1 - p_y is 0 in floats here
    assert margins([[40.0, 0.0]], [0], [0, 1]).tolist() == [40.0]


def test_margins_are_cut_and_unknown_labels_are_hopeless() -> None:
    margin = margins([[0.0, -np.inf], [0.0, -np.inf], [0.0, 0.0]], [0, 1, 7], [0, 1])
    assert margin.tolist() == [100.0, -100.0, -100.0]
    assert margins([[0.0]], ["b"], ["a"]).tolist() == [-100.0]


def rows_of(X: Any, y: Any) -> Rows:
    return Rows(np.asarray(X, float), np.asarray(y), row_ids(None, len(y)))


def test_decision_values_are_read_through_a_logistic_link() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    rows = rows_of(X, (X[:, 0] > 0).astype(int))
    model = LogisticRegression().fit(rows.X, rows.y)
    machine = LinearSVC().fit(rows.X, rows.y)
    machine.coef_, machine.intercept_ = model.coef_, model.intercept_
    np.testing.assert_allclose(
        observe_model(machine, rows).signal, observe_model(model, rows).signal
    )
    assert observe_model(model, rows).correct.mean() == model.score(rows.X, rows.y)


def test_signal_of_a_regressor_is_minus_the_squared_error() -> None:
    rows = rows_of([[0.0], [1.0], [2.0]], [0.0, 1.0, 4.0])
    model = Ridge(alpha=1e-9).fit(rows.X, rows.y)
    np.testing.assert_allclose(
        observe_model(model, rows).signal, -((model.predict(rows.X) - rows.y) ** 2)
    )


def test_a_model_that_only_says_labels_is_refused() -> None:
    class Mute(ClassifierMixin, BaseEstimator):
        pass

    with pytest.raises(TypeError, match="neither predict_proba nor decision_function"):
        observe_model(Mute(), rows_of([[0.0]], [0]))


@pytest.mark.parametrize("n_models", [5, 40])
def test_score_is_the_ratio_of_two_normal_densities(n_models: int) -> None:
    rng = np.random.default_rng(n_models)
    inside, outside = rng.normal(1, 2, size=(n_models, 3)), rng.normal(size=(n_models, 3))
    target = rng.normal(size=3)
    expected = []
    for side in (inside, outside):
        deviation = side.std(axis=0, ddof=1)
        if n_models < 32:
            deviation = np.full(3, np.sqrt((deviation**2).mean()))
        expected.append(norm.logpdf(target, side.mean(axis=0), deviation))
    np.testing.assert_allclose(lira(target, inside, outside), expected[0] - expected[1])


def test_crossed_score_is_that_of_the_other_folds() -> None:
    rng = np.random.default_rng(0)
    signals, members = rng.normal(size=(8, 1)), np.tile([[True], [False]], (4, 1))
    folds = np.arange(8) // 2
    scores = cross_lira(signals, members, folds)
    others = folds != 2
    expected = lira(signals[4:6], signals[others & members[:, 0]], signals[others & ~members[:, 0]])
    np.testing.assert_allclose(scores[4:6], expected)


def _mean_area(score: Any) -> float:
    """Mean AUC over 200 worlds in which there is nothing to be found."""
    rng = np.random.default_rng(1)
    areas = []
    for seed in range(200):
        members = split_halves(np.ones(10, bool), 16, seed)
        # what the models have in common moves all people at once
        signals = rng.normal(size=(16, 10)) + rng.normal(size=(16, 1))
        areas.append(auc(score(signals, members).ravel(), members.ravel()).value)
    return float(np.mean(areas))


def _in_sample(signals: NDArray[Any], members: NDArray[Any]) -> NDArray[Any]:
    """The planted bug: every model is also among its own references."""
    return np.column_stack(
        [
            lira(signals[:, [k]], signals[members[:, k]][:, [k]], signals[~members[:, k]][:, [k]])
            for k in range(signals.shape[1])
        ]
    )


def _by_pairs(signals: NDArray[Any], members: NDArray[Any]) -> NDArray[Any]:
    return cross_lira(signals, members, np.arange(16) // 2)


def test_guessing_scores_one_half() -> None:
    assert abs(_mean_area(_by_pairs) - 0.5) < 0.02


def test_planted_bug_in_sample_references_score_above_one_half() -> None:
    assert _mean_area(_in_sample) > 0.55


def test_planted_bug_leaving_out_one_of_a_pair_scores_below_one_half() -> None:
    alone = _mean_area(lambda signals, members: cross_lira(signals, members, np.arange(16)))
    assert alone < _mean_area(_by_pairs) - 0.005


@given(st.integers(4, 30), st.integers(1, 3), st.integers(0, 10**6))
def test_halves_are_complements_and_split_candidates_evenly(
    n_people: int, n_pairs: int, seed: int
) -> None:
    candidates = np.arange(n_people) < 2 * (n_people // 4)
    members = split_halves(candidates, 2 * n_pairs, seed)
    assert (members[::2] ^ members[1::2]).all()
    assert set(members[:, candidates].sum(axis=1)) == {n_people // 4}


def test_means_are_taken_over_the_rows_of_each_person() -> None:
    values = np.array([[1.0, 2.0, 3.0, 5.0]])
    assert mean_by_person(values, np.array([4, 1, 4, 1])).tolist() == [[3.5, 2.0]]


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected \(n_models, n\)"):
        cross_lira(np.zeros((4, 2)), np.zeros((4, 3), bool), np.zeros(4))
    with pytest.raises(ValueError, match="at least one model that was trained on it"):
        cross_lira(np.zeros((4, 1)), np.ones((4, 1), bool), [0, 0, 1, 1])
