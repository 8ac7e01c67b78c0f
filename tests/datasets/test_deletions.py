"""Deletion distributions: who leaves, how many at once, no person twice."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import coo_matrix, csr_matrix
from scipy.stats import chisquare
from sklearn.linear_model import LogisticRegression

from letheon.datasets import Requests
from letheon.forest import DaREForestClassifier
from tests.sharded.people import examples

KINDS = ("uniform", "person", "class", "worst", "adaptive")


def table(n_rows: int = 60, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return rows of which some people own several."""
    rng = np.random.default_rng(seed)
    y = np.arange(n_rows) % 2
    X = rng.normal(size=(n_rows, 3)) + y[:, None]
    ids = np.array([f"p{number}" for number in rng.integers(n_rows // 2, size=n_rows)])
    return X, y, ids


class Confident:
    """A model that is as sure of the true label as the first column says."""

    classes_ = np.array([0, 1])

    def __init__(self, y: NDArray[Any], sure: NDArray[Any], X: NDArray[Any]) -> None:
        self.p = {tuple(row): (label, p) for row, label, p in zip(X, y, sure, strict=True)}

    def predict_proba(self, X: NDArray[Any]) -> NDArray[Any]:
        shares = [self.p[tuple(row)] for row in X]
        return np.array([[1 - p, p] if label else [p, 1 - p] for label, p in shares])


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 2**32), n=st.integers(1, 15), batch=st.integers(1, 6))
@examples(25)
def test_no_person_leaves_twice_and_every_request_has_its_size(
    kind: Any, seed: int, n: int, batch: int
) -> None:
    X, y, ids = table()
    model = LogisticRegression().fit(X, y)
    requests = Requests(kind=kind, n=n, batch=batch)
    asked = list(requests.stream(model, X, y, ids, seed=seed))
    people = np.concatenate(asked)
    assert len(people) == n == len(set(people.tolist()))
    assert set(people.tolist()) <= set(ids.tolist())
    assert [len(each) for each in asked] == requests.sizes(len(set(ids.tolist())))
    assert max(map(len, asked)) == min(n, batch)


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides(kind: Any) -> None:
    X, y, ids = table()
    model = LogisticRegression().fit(X, y)

    def who(seed: int) -> list[str]:
        drawn = Requests(kind=kind, n=10, candidates=5).stream(model, X, y, ids, seed=seed)
        return [str(person) for each in drawn for person in each]

    assert who(3) == who(3)
    # The wrongest of all are the wrongest whatever the seed.
    assert (who(3) == who(4)) == (kind == "adaptive")


def test_uniform_draws_rows_and_person_draws_people() -> None:
    """One person owns half of the rows: half of the first requests, against one in eleven."""
    y = np.arange(20) % 2
    X, ids = np.arange(20.0)[:, None], np.array([0] * 10 + list(range(1, 11)))
    first = {}
    for kind in ("uniform", "person"):
        requests = Requests(kind=kind, n=1)
        drawn = [next(requests.stream(None, X, y, ids, seed=s))[0] for s in range(2200)]
        first[kind] = np.array([Counter(drawn)[person] for person in range(11)])
    assert chisquare(first["uniform"], 2200 * np.array([0.5] + [0.05] * 10)).pvalue > 1e-3
    assert chisquare(first["person"]).pvalue > 1e-3


def test_one_class_leaves_first_and_two_people_of_it_stay() -> None:
    X, y = np.arange(40.0)[:, None], np.repeat(["a", "b"], [30, 10])
    stream = list(Requests(kind="class", label="b", n=12).stream(None, X, y, seed=1))
    labels = [str(y[ids[0]]) for ids in stream]
    assert labels == ["b"] * 8 + ["a"] * 4


def test_the_worst_of_all_candidates_leaves() -> None:
    X, y = np.arange(30.0)[:, None], np.arange(30) % 2
    asked = Requests(kind="worst", n=3, cost=lambda _, ids: float(ids[0] % 10)).stream(
        "any model", X, y, seed=0
    )
    assert sorted(int(ids[0]) for ids in asked) == [9, 19, 29]
    few = Requests(kind="worst", n=1, candidates=2, cost=lambda _, ids: float(ids[0]))
    means = np.mean([next(few.stream("m", X, y, seed=s))[0] for s in range(400)])
    # The larger of two of thirty: (2 * 30 - 1) / 3 = 19.7 on average.
    assert abs(means - 59 / 3) < 1.1


def test_a_forest_is_asked_what_a_removal_costs() -> None:
    X, y, _ = table(80)
    forest = DaREForestClassifier(n_estimators=5, random_state=0).fit(X, y)
    costs = [forest.forget_cost([person]).rows for person in range(80)]
    worst = next(Requests(kind="worst", n=1).stream(forest, X, y, seed=0))[0]
    assert costs[worst] == max(costs)


def test_people_whom_the_model_gets_wrong_ask_first() -> None:
    X, y = np.arange(30.0)[:, None], np.arange(30) % 2
    sure = np.linspace(1.0, 0.01, 30)
    model = Confident(y, sure, X)
    asked = [int(ids[0]) for ids in Requests(kind="adaptive", n=5).stream(model, X, y, seed=0)]
    assert asked == [29, 28, 27, 26, 25]


def test_adaptive_requests_see_the_model_as_it_is_then() -> None:
    """The stream depends on the model only when the next request is drawn."""
    X, y = np.arange(30.0)[:, None], np.arange(30) % 2
    model = Confident(y, np.linspace(1.0, 0.01, 30), X)
    stream = Requests(kind="adaptive", n=2).stream(model, X, y, seed=0)
    assert next(stream)[0] == 29
    model.p = Confident(y, np.linspace(0.01, 1.0, 30), X).p
    assert next(stream)[0] == 0


def test_a_person_is_as_wrong_as_their_worst_row() -> None:
    """The second of two rows is right."""
    X, y = np.arange(30.0)[:, None], np.arange(30) % 2
    sure = np.full(30, 0.5)
    sure[[6, 7]] = 0.1, 0.9
    asked = Requests(kind="adaptive", n=1).stream(Confident(y, sure, X), X, y, np.arange(30) // 2)
    assert next(asked).tolist() == [3]


def test_a_model_is_quite_wrong_about_a_class_it_does_not_know() -> None:
    """Classes 0 and 1 are known; the rows of class 2 have the probability of neither."""
    X, y = np.arange(30.0)[:, None], np.arange(30) % 3
    model = Confident(np.minimum(y, 1), np.full(30, 0.99), X)
    drawn = Requests(kind="adaptive", n=5).stream(model, X, y)
    assert {int(y[ids[0]]) for ids in drawn} == {2}


def test_a_batch_does_not_take_a_whole_class() -> None:
    """Of three people of the class that leaves first, two stay."""
    X, y = np.arange(20.0)[:, None], np.repeat(["rare", "usual"], [3, 17])
    first = next(Requests(kind="class", label="rare", n=4, batch=4).stream(None, X, y))
    assert sum(y[ids] == "rare" for ids in first) == 1


@pytest.mark.parametrize("table", [coo_matrix, csr_matrix, np.ndarray.tolist])
def test_a_table_of_any_kind_can_be_looked_at(table: Any) -> None:
    X, y, _ = table_of(table)
    model = LogisticRegression().fit(X, y)
    assert len(list(Requests(kind="adaptive", n=3).stream(model, X, y))) == 3


def table_of(kind: Any) -> tuple[Any, NDArray[Any], NDArray[Any]]:
    X, y, ids = table()
    return kind(X), y, ids


def test_shares_are_shares_of_people() -> None:
    assert Requests(n=0.1, batch=0.05).sizes(200) == [10, 10]
    assert Requests(n=0.001).sizes(200) == [1]
    assert Requests(n=7, batch=3).sizes(200) == [3, 3, 1]


@pytest.mark.parametrize("y", [np.linspace(0.5, 3.2, 30), np.arange(30.0)])
def test_regression_targets_have_no_classes_to_keep(y: NDArray[Any]) -> None:
    X = np.arange(30.0)[:, None]
    assert len(list(Requests(n=29).stream(None, X, y, seed=0))) == 29
    whole = np.arange(30)
    assert len(list(Requests(n=29).stream(None, X, whole, seed=0, task="regression"))) == 29
    with pytest.raises(ValueError, match="every class must remain"):
        list(Requests(n=29).stream(None, X, whole % 3, seed=0))
    with pytest.raises(ValueError, match="needs class labels"):
        next(Requests(kind="class", n=2).stream(None, X, y, seed=0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "random"}, "is unknown; expected one of"),
        ({"n": 0}, "expected a number of people"),
        ({"n": 2.5}, "expected a number of people"),
        ({"batch": -1}, "expected a number of people"),
        ({"candidates": 0}, "at least 1"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Requests(**settings)


def test_too_many_requests_are_refused_with_the_reason() -> None:
    X, y = np.arange(10.0)[:, None], np.arange(10) % 2
    with pytest.raises(ValueError, match="the data has only 10"):
        next(Requests(n=10).stream(None, X, y))
    with pytest.raises(ValueError, match="every class must remain"):
        list(Requests(n=8).stream(None, X, y))
    with pytest.raises(ValueError, match="depends on the model"):
        next(Requests(kind="adaptive", n=1).stream(None, X, y))
    with pytest.raises(ValueError, match="one id per row"):
        next(Requests(n=1).stream(None, X, y, ids=[1, 2]))
    with pytest.raises(ValueError, match="is not in y"):
        next(Requests(kind="class", label=7, n=1).stream(None, X, y))
