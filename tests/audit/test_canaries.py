"""V6: erased canaries look like unseen ones, unless the model kept them."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from scipy.stats import rankdata
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from letheon import NaiveUnlearner
from letheon.audit import Canaries, check_canaries
from letheon.audit._levels import rank_p_value
from letheon.measures.attacks import KeepsEverything

N_CANARIES = 20


def planted(model: Any, seed: int, *, numbers: bool = False) -> Canaries:
    """Fit a model with canaries of random labels, and let it forget them."""
    rng = np.random.default_rng(seed)
    X, pool = rng.normal(size=(100, 4)), rng.normal(size=(2 * N_CANARIES, 4))
    y: Any = (X[:, 0] > 0).astype(int)
    labels: Any = rng.integers(0, 2, 2 * N_CANARIES)
    if numbers:
        y, labels = X[:, 0], rng.normal(size=2 * N_CANARIES)
    half = N_CANARIES
    ids = np.arange(100 + half)
    model.fit(np.vstack([X, pool[:half]]), np.concatenate([y, labels[:half]]), ids=ids)
    model.forget(ids[100:])
    return Canaries(pool[:half], labels[:half], pool[half:], labels[half:])


@pytest.mark.parametrize("seed", range(5))
def test_a_model_that_forgot_passes(seed: int) -> None:
    model = NaiveUnlearner(DecisionTreeClassifier(), random_state=seed)
    assert check_canaries(model, planted(model, seed)).verdict == "pass"


@pytest.mark.parametrize("seed", range(5))
def test_a_model_that_kept_them_fails(seed: int) -> None:
    model = KeepsEverything(DecisionTreeClassifier(), random_state=seed)
    assert check_canaries(model, planted(model, seed)).verdict == "fail"


def test_numbers_are_judged_by_their_errors() -> None:
    model = KeepsEverything(DecisionTreeRegressor(), random_state=0)
    assert check_canaries(model, planted(model, 0, numbers=True)).verdict == "fail"


def test_too_few_canaries_show_nothing() -> None:
    model = NaiveUnlearner(LogisticRegression())
    some = planted(model, 0)
    few = Canaries(some.X_erased[:3], some.y_erased[:3], some.X_unseen, some.y_unseen)
    assert check_canaries(model, few).verdict == "skipped"


def test_labels_that_left_with_their_people_count_as_forgotten() -> None:
    model = NaiveUnlearner(DecisionTreeClassifier(), random_state=0)
    some = planted(model, 1)
    strange = Canaries(some.X_erased, np.full(N_CANARIES, 9), some.X_unseen, some.y_unseen)
    assert check_canaries(model, strange).verdict == "pass"


@pytest.mark.parametrize("kept", [True, False])
def test_labels_that_the_model_does_not_know_show_nothing(kept: bool) -> None:
    kind = KeepsEverything if kept else NaiveUnlearner
    model = kind(DecisionTreeClassifier(), random_state=0)
    some = planted(model, 1)
    texts = Canaries(
        some.X_erased, some.y_erased.astype(str), some.X_unseen, some.y_unseen.astype(str)
    )
    finding = check_canaries(model, texts)
    assert (finding.verdict, "no canary label" in finding.reason) == ("skipped", True)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 2.0])
def test_a_level_that_decides_nothing_is_refused(level: float) -> None:
    with pytest.raises(ValueError, match="not a probability"):
        Canaries([], [], [], [], level)


def test_a_level_that_so_few_cannot_reach_shows_nothing() -> None:
    model = KeepsEverything(DecisionTreeClassifier(), random_state=0)
    some = planted(model, 0)
    five = Canaries(some.X_erased[:5], some.y_erased[:5], some.X_unseen[:5], some.y_unseen[:5])
    assert check_canaries(model, dataclasses.replace(five, level=1 / 252)).verdict == "skipped"
    assert check_canaries(model, dataclasses.replace(five, level=1 / 100)).verdict != "skipped"


def test_the_level_of_the_test_is_kept() -> None:
    """Of scores that are exchangeable, ties included, few get a small p-value."""
    rng = np.random.default_rng(0)
    draws = rng.integers(0, 4, size=(60, 16)).astype(float)
    finding = np.array([rank_p_value(draw[:8], draw[8:]) for draw in draws])
    assert (finding < 0.1).mean() < 0.25
    assert finding.min() > 0.0


def test_equal_scores_show_nothing() -> None:
    assert rank_p_value(np.zeros(8), np.zeros(8)) == 1.0


def test_p_values_are_those_of_all_splits() -> None:
    scores = np.array([3.0, 3.0, 2.0, 2.0, 1.0, 2.0, 1.0])
    ranks = rankdata(scores)
    sums = [sum(chosen) for chosen in itertools.combinations(ranks, 3)]
    exact = np.mean([total >= ranks[:3].sum() - 1e-9 for total in sums])
    assert rank_p_value(scores[:3], scores[3:]) == pytest.approx(exact, abs=0.02)
