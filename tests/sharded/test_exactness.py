"""After any sequence of requests the model has the digest of a fresh fit."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from letheon import SISAClassifier, SISARegressor
from tests.sharded.people import ShardPeople, examples, make_people

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

MODELS = {
    "sgd-slices": SISAClassifier(SGDClassifier(loss="log_loss"), n_shards=2, n_slices=3, epochs=3),
    "mlp-slices": SISAClassifier(MLPClassifier((3,)), n_shards=2, n_slices=3, epochs=2),
    "bayes-new": SISAClassifier(GaussianNB(), n_shards=2, n_slices=4, stage_data="new"),
    "tree": SISAClassifier(DecisionTreeClassifier(), n_shards=3),
    "forest": SISAClassifier(RandomForestClassifier(2), n_shards=2),
    "pipeline": SISAClassifier(
        make_pipeline(StandardScaler(), SGDClassifier(max_iter=5, tol=None)), n_shards=2
    ),
    "regressor": SISARegressor(SGDRegressor(), n_shards=2, n_slices=3, epochs=2),
    "sgd-epochs": SISAClassifier(SGDClassifier(), n_shards=2, epochs=3, aggregation="vote"),
}


@st.composite
def requests(draw: st.DrawFn) -> tuple[ShardPeople, list[list[int]]]:
    """People, and batches of requests in any order, with ids repeated inside a batch."""
    n_people = draw(st.integers(4, 14))
    people = make_people(
        n_people, seed=draw(st.integers(0, 2**16)), n_classes=draw(st.integers(1, 3))
    )
    leaving = draw(st.lists(st.integers(0, n_people - 1), unique=True, max_size=n_people - 1))
    batches: list[list[int]] = []
    while leaving:
        size = draw(st.integers(1, len(leaving)))
        batch, leaving = leaving[:size], leaving[size:]
        batches.append(batch + draw(st.lists(st.sampled_from(batch), max_size=2)))
    return people, batches


def fitted(model: Any, people: ShardPeople, seed: int, n_jobs: int | None = None) -> Any:
    return (
        clone(model).set_params(random_state=seed, n_jobs=n_jobs).fit(*people[:2], ids=people.ids)
    )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore::letheon.exceptions.ShardingWarning")
def test_any_sequence_of_requests_ends_in_a_fresh_fit(name: str) -> None:
    @examples(44)
    @given(requests(), st.integers(0, 2**128 - 1))
    def run(case: tuple[ShardPeople, list[list[int]]], seed: int) -> None:
        people, batches = case
        model = fitted(MODELS[name], people, seed)
        for batch in batches:
            model.forget(batch)
        rest = people.without(np.concatenate(batches) if batches else [])
        assert model.digest() == fitted(MODELS[name], rest, seed).digest()

    run()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore::letheon.exceptions.ShardingWarning")
def test_two_processes_give_the_same_bytes_as_one(name: str) -> None:
    @examples(3)
    @given(requests(), st.integers(0, 2**128 - 1))
    def run(case: tuple[ShardPeople, list[list[int]]], seed: int) -> None:
        people, batches = case
        first, second = (fitted(MODELS[name], people, seed, jobs) for jobs in (None, 2))
        for batch in batches:
            first.forget(batch)
            second.forget(batch)
        assert first.digest() == second.digest()

    run()


@pytest.mark.parametrize("name", ["sgd-slices", "bayes-new", "tree", "regressor"])
@pytest.mark.filterwarnings("ignore::letheon.exceptions.ShardingWarning")
def test_learning_and_forgetting_in_any_order_ends_in_a_fresh_fit(name: str) -> None:
    @examples(25)
    @given(st.integers(0, 2**16), st.lists(st.integers(0, 9), min_size=1, max_size=12))
    def run(seed: int, moves: list[int]) -> None:
        people = make_people(10, seed=seed)
        start = people.without(range(5, 10))
        model, remaining = fitted(MODELS[name], start, seed), start
        for person in moves:
            mine = people.without(set(range(10)) - {person})
            if person not in remaining.ids:
                model.learn(mine.X, mine.y, ids=mine.ids)
                remaining = ShardPeople(
                    *(np.concatenate(parts) for parts in zip(remaining, mine, strict=True))
                )
            elif len(set(remaining.ids.tolist())) > 1:
                model.forget([person])
                remaining = remaining.without([person])
        assert model.digest() == fitted(MODELS[name], remaining, seed).digest()

    run()
