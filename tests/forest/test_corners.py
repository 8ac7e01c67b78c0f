"""Corners that random tables reach too rarely: one test for each."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

from letheon.forest import DaREForestClassifier
from tests.forest import reference
from tests.forest.oracle import difference, fresh_fit, identity_error
from tests.forest.people import DataSource, ForestPeople, examples, fitted, lucks
from tests.forest.reference import ReferenceSettings, grow_forest, lg24
from tests.forest.requests import Played

# Random bounds of the target may be coarse, which `fit` says.
pytestmark = pytest.mark.filterwarnings("ignore::letheon.exceptions.PrecisionWarning")

NORMAL = DataSource(("normal",) * 3, (0.0,) * 3, 2, False, False, 0, "normal", 1000)
GREEDY: dict[str, Any] = {"n_estimators": 3, "max_depth": 3, "max_features": None}


def people_of(rng: np.random.Generator, n: int, columns: list[Any]) -> ForestPeople:
    """Return `n` people with the given columns and two classes."""
    people = NORMAL.people(rng, n)
    return people._replace(X=np.column_stack(columns), ids=np.arange(n))


def begin(people: ForestPeople, params: dict[str, Any], seed: int) -> Played:
    return Played(NORMAL, fitted(NORMAL, params, people, seed), people, Path())


def trouble(game: Played, params: dict[str, Any]) -> str | None:
    fresh = fresh_fit(NORMAL, params, game.held, game.model)
    return identity_error(game.model, fresh, game.held.X)


@examples(30)
@given(lucks)
def test_the_missing_values_of_a_random_node_leave(luck: int) -> None:
    """One value and a few missing ones: without these the attribute is constant."""
    rng = np.random.default_rng(luck)
    holes = np.where(np.arange(60) < 2, np.nan, 1.0)
    people = people_of(rng, 60, [holes, rng.normal(size=60), rng.normal(size=60)])
    params = GREEDY | {"random_depth": 2}
    game = begin(people, params, luck)
    game.forget([0])
    assert trouble(game, params) is None
    game.forget([1])
    assert trouble(game, params) is None


@examples(30)
@given(lucks)
def test_a_column_that_was_constant_begins_to_vary(luck: int) -> None:
    rng = np.random.default_rng(luck)
    y_like = rng.integers(0, 2, 80).astype(float)
    people = people_of(rng, 80, [rng.integers(0, 3, 80), np.zeros(80), rng.integers(0, 3, 80)])
    game = begin(people, GREEDY, luck)
    more = people_of(rng, 30, [rng.integers(0, 3, 30), y_like[:30], rng.integers(0, 3, 30)])
    game.learn(more._replace(y=7 - 3 * y_like[:30].astype(int), ids=np.arange(100, 130)))
    assert trouble(game, GREEDY) is None


@examples(60)
@given(lucks)
def test_a_new_value_joins_a_complete_list(luck: int) -> None:
    rng = np.random.default_rng(luck)
    values = rng.choice([0.0, 4.0, 8.0], 60)
    people = people_of(rng, 60, [values, np.zeros(60), np.zeros(60)])
    params = GREEDY | {"n_thresholds": 5}
    game = begin(people._replace(y=np.where(values > 0, 7, 4)), params, luck)
    game.learn(
        people_of(rng, 3, [np.full(3, 2.0), np.zeros(3), np.zeros(3)])._replace(
            y=np.array([4, 4, 7]), ids=np.arange(100, 103)
        )
    )
    assert trouble(game, params) is None


@examples(30)
@given(lucks)
def test_counts_pass_sixteen_bits_and_come_back(luck: int) -> None:
    """The rare class lies beyond all others; a heavy newcomer moves the best split into it.

    The new row has the values of another row, so that no list of candidates changes.
    """
    rng, params = np.random.default_rng(luck), GREEDY | {"n_estimators": 20}
    rare = np.arange(60) < 4
    x = np.where(rare, 10.0 + np.arange(60), rng.normal(size=60))
    people = people_of(rng, 60, [x, np.zeros(60), np.zeros(60)])
    people = people._replace(y=np.where(rare, 4, 7), weight=np.full(60, 1_080))
    game = begin(people, params, luck)
    newcomer = people.take([0])._replace(y=np.array([7]), weight=np.array([12_000]))
    game.learn(newcomer._replace(ids=np.array([100])))
    assert trouble(game, params) is None
    game.forget([100])
    assert trouble(game, params) is None


def duel(first: tuple[int, int], second: tuple[int, int], totals: tuple[int, int]) -> ForestPeople:
    """Return weighted rows whose two columns put these weights of each class on the left."""
    rows = []
    for label in (0, 1):
        both = max(0, first[label] + second[label] - totals[label])
        weights = (both, first[label] - both, second[label] - both)
        for x, weight in zip(((0, 0), (0, 1), (1, 0)), weights, strict=True):
            rows.append((*x, label, weight))
        rows.append((1, 1, label, totals[label] - sum(weights)))
    table = np.array(rows)
    return ForestPeople(table[:, :2].astype(float), table[:, 2], table[:, 3], np.arange(len(rows)))


def stumps(people: ForestPeople, criterion: str, seed: int) -> tuple[Any, Any]:
    """Return the product's and the reference's stump."""
    settings = ReferenceSettings(criterion, 1, 1, 2, None, 0, 2, 1)
    model = DaREForestClassifier(
        criterion=criterion,
        n_estimators=1,
        max_depth=1,
        max_features=None,
        n_thresholds=None,
        random_state=seed,
    ).fit(people.X, people.y, sample_weight=people.weight, ids=people.ids)
    return model, grow_forest(*people[:3], people.ids.tolist(), settings, seed)


def rounded_gini(left: Any, right: Any, n_left: int, n_right: int) -> float:
    """The score with squares in double precision: wrong from 2**26 on."""
    sums = [sum(float(c) * float(c) for c in side) for side in (left, right)]
    return sums[0] / n_left + sums[1] / n_right


def test_squares_of_large_counts_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits that say nothing have equal scores, if nothing is rounded on the way."""
    rng, most, fooled = np.random.default_rng(0), 2**26, 0
    for seed in range(80):
        h, k = (int(share) for share in rng.integers(most // 8, most, 2))
        people = duel((10 * h, h), (10 * k, k), (10 * most, most))
        model, exact = stumps(people, "gini", seed)
        with monkeypatch.context() as patch:
            patch.setitem(reference.SCORES, "gini", rounded_gini)
            rounded = stumps(people, "gini", seed)[1]
        assert difference(model, exact) is None
        fooled += difference(model, rounded) is not None
    assert fooled > 5


def near_ties(total: int) -> NDArray[np.int64]:
    """Return pairs of splits (left weights of two classes) whose entropies nearly agree."""
    splits = np.random.default_rng(1).integers(1, total, (100_000, 2))
    scores = [
        reference.entropy((a, b), (total - a, total - b), a + b, 2 * total - a - b)
        for a, b in splits.tolist()
    ]
    order = np.argsort(scores)
    gaps = np.diff(np.array(scores)[order])
    closest = np.argsort(np.where(gaps > 0, gaps, gaps.max()))[:200]
    return np.stack([splits[order[closest]], splits[order[closest + 1]]], axis=1)


def coarse_logarithm(x: int) -> int:
    """A logarithm with one binary place less."""
    return lg24(x) // 2 * 2


def test_entropy_uses_all_24_places(monkeypatch: pytest.MonkeyPatch) -> None:
    total, fooled = 3_000, 0
    for seed, (first, second) in enumerate(near_ties(total).tolist()):
        people = duel(tuple(first), tuple(second), (total, total))
        model, exact = stumps(people, "entropy", seed)
        with monkeypatch.context() as patch:
            patch.setattr(reference, "lg24", coarse_logarithm)
            coarse = stumps(people, "entropy", seed)[1]
        assert difference(model, exact) is None
        fooled += difference(model, coarse) is not None
    assert fooled > 5
