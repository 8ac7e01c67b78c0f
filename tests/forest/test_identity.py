"""After any sequence of requests the forest is the one that a fresh fit gives, bit by bit."""

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from sklearn.base import clone

from letheon.forest import DaREForestClassifier
from tests.forest.oracle import fresh_fit, identity_error
from tests.forest.people import (
    LABELS,
    DataSource,
    ForestPeople,
    any_comfort,
    any_parameters,
    any_seed,
    any_world,
    examples,
    fitted,
    lucks,
)
from tests.forest.requests import Played

# Random bounds of the target may be coarse, which `fit` says.
pytestmark = pytest.mark.filterwarnings("ignore::letheon.exceptions.PrecisionWarning")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def begin(
    rng: np.random.Generator, folder: Path, world: DataSource, params: dict[str, Any], n: int
) -> Played:
    """Fit a forest on `n` rows; some classes may come later."""
    people = world.people(rng, n, int(rng.integers(1, 21)))
    model = fitted(world, params | any_comfort(rng), people, any_seed(rng))
    return Played(world, model, people, folder)


def trouble(game: Played, params: dict[str, Any]) -> str | None:
    """Return what tells the model from a fresh fit on the rows it should hold."""
    fresh = fresh_fit(game.world, params, game.held, game.model)
    if game.model.n_rows_ != game.held.n_rows:
        return f"holds {game.model.n_rows_} rows, not {game.held.n_rows}"
    probe = game.world.people(np.random.default_rng(0), 20).X
    return identity_error(game.model, fresh, probe)


@pytest.mark.parametrize("classifier", [True, False], ids=["classifier", "regressor"])
def test_any_sequence_of_requests_ends_in_a_fresh_fit(classifier: bool, folder: Path) -> None:
    @examples(1_000)
    @given(lucks)
    def run(luck: int) -> None:
        rng = np.random.default_rng(luck)
        world = any_world(rng, classifier=classifier)
        params = any_parameters(rng, world)
        game = begin(rng, folder, world, params, int(rng.integers(1, 60)))
        game.play(rng, 8)
        assert trouble(game, params) is None

    run()


def test_forests_that_keep_caches_end_in_a_fresh_fit(folder: Path) -> None:
    """Hundreds of rows with many equal values: nodes large enough to be cached."""

    @examples(100)
    @given(lucks)
    def run(luck: int) -> None:
        rng = np.random.default_rng(luck)
        world = any_world(rng)._replace(n_people=1000)
        params = any_parameters(rng, world) | {"max_depth": 6}
        game = begin(rng, folder, world, params, int(rng.integers(300, 2000)))
        game.play(rng, 20, without="forget most")
        assert trouble(game, params) is None

    run()


def test_forgetting_one_by_one_down_to_one_person_and_back(folder: Path) -> None:
    @examples(40)
    @given(lucks)
    def run(luck: int) -> None:
        rng = np.random.default_rng(luck)
        world = any_world(rng)._replace(n_people=1000)
        params = any_parameters(rng, world)
        game = begin(rng, folder, world, params, int(rng.choice([20, 60, 120, 400])))
        all_rows, leaving = game.held, game.held.persons
        rng.shuffle(leaving)
        for person in leaving[1:]:
            game.forget([person])
            if rng.random() < 0.1:
                assert trouble(game, params) is None
        assert trouble(game, params) is None
        game.learn(all_rows.without(leaving[:1]))
        assert trouble(game, params) is None

    run()


PLAIN = DataSource(("normal", "few", "binary"), (0.0, 0.2, 0.0), 3, True, False, 0, "normal", 1000)


def test_a_class_may_come_and_go() -> None:
    params = {"n_estimators": 3, "max_depth": None}
    people = PLAIN.people(np.random.default_rng(0), 50, 2)
    model = fitted(PLAIN, params, people, 5)
    before, classes = model.digest(), model.classes_
    visitor = PLAIN.people(np.random.default_rng(1), 4)
    visitor = visitor._replace(y=LABELS[:1].repeat(4), ids=np.full(4, 7777))
    model.learn(visitor.X, visitor.y, ids=visitor.ids)
    assert model.classes_.tolist() == sorted([LABELS[0], *classes])
    fresh = fitted(PLAIN, params, people.plus(visitor), 5)
    assert identity_error(model, fresh, people.X) is None
    model.forget([7777])
    assert model.classes_.tolist() == classes.tolist()
    assert model.digest() == before


def test_rows_of_weight_zero_leave_no_trace() -> None:
    X, y = np.zeros((3, 1)), np.array(["elm", "a very long label", "ash"])
    plain = DaREForestClassifier(n_estimators=1, random_state=0)
    weighted = clone(plain).fit(X, y, sample_weight=[1, 0, 1], ids=["a", "someone else", "b"])
    absent = clone(plain).fit(X[::2], y[::2], ids=["a", "b"])
    assert weighted.digest() == absent.digest()
    weighted.learn(X, y, sample_weight=[0, 0, 1], ids=["unknown", "unknown", "b"])
    absent.learn(X[2:], y[2:], ids=["b"])
    assert weighted.digest() == absent.digest()


@examples(20)
@given(lucks)
def test_one_batch_is_the_same_as_one_by_one_in_any_order(luck: int) -> None:
    rng = np.random.default_rng(luck)
    world, seed = any_world(rng), any_seed(rng)
    people = world.people(rng, 40).held()
    gone = people.persons[1:]
    batch, single, mixed = (fitted(world, {"n_estimators": 2}, people, seed) for _ in range(3))
    batch.forget(gone)
    for person in gone:
        single.forget([person])
    for place in rng.permutation(len(gone)):
        mixed.forget([gone[place]])
    assert batch.digest() == single.digest() == mixed.digest()


@examples(20)
@given(lucks)
def test_options_of_comfort_change_nothing(luck: int) -> None:
    rng = np.random.default_rng(luck)
    world, seed = any_world(rng), any_seed(rng)
    params, people = any_parameters(rng, world), world.people(rng, 50)
    lazy = fitted(world, params, people, seed)
    eager = fitted(world, params | {"rebuild": "eager", "n_jobs": 2}, people, seed)
    for model in (lazy, eager):
        model.forget(people.held().persons[1:5])
    assert identity_error(lazy, eager, people.X) is None


@examples(40)
@given(lucks)
def test_the_cost_is_what_forgetting_then_rebuilds(luck: int) -> None:
    rng = np.random.default_rng(luck)
    world = any_world(rng)._replace(n_people=1000)
    people = world.people(rng, int(rng.integers(2, 200))).held()
    model = fitted(world, any_parameters(rng, world) | any_comfort(rng), people, 1).settle()
    gone, before = people.persons[1 : int(rng.integers(2, 20))], model.digest()
    cost = model.forget_cost(gone)
    assert model.digest() == before
    assert model.forget(gone).rebuilt["rows"] == cost.rows


def changed_rows(people: ForestPeople) -> Iterator[ForestPeople]:
    """Yield the same rows with one small thing changed."""
    X, first = people.X.copy(), np.arange(people.n_rows) == 0
    X[0, 0] = np.nextafter(np.float32(X[0, 0]), np.float32(np.inf))
    yield people._replace(X=X)
    yield people._replace(y=np.where(first, LABELS[0], people.y))
    yield people._replace(weight=people.weight + first)
    yield people._replace(ids=np.where(first, 4321, people.ids))
    yield people.plus(people.take([0]))


def test_the_digest_sees_every_part_of_a_row() -> None:
    people = PLAIN.people(np.random.default_rng(0), 30, 2)
    params = {"max_depth": 0, "n_estimators": 1}
    digests = {fitted(PLAIN, params, rows, 1).digest() for rows in changed_rows(people)}
    assert len(digests | {fitted(PLAIN, params, people, 1).digest()}) == 6


def test_the_digest_sees_the_seed_and_every_setting_that_matters() -> None:
    people = PLAIN.people(np.random.default_rng(0), 30, 2)
    settings: list[dict[str, Any]] = [
        {},
        {"criterion": "entropy"},
        {"n_estimators": 2},
        {"max_depth": 3},
        {"max_features": 1},
        {"n_thresholds": 2},
        {"random_depth": 1},
        {"min_samples_split": 4},
        {"min_samples_leaf": 3},
        {"subsample": 0.5},
    ]
    plain = {"n_estimators": 1, "max_features": None}
    digests = {fitted(PLAIN, plain | other, people, 1).digest() for other in settings}
    assert len(digests | {fitted(PLAIN, plain, people, 2).digest()}) == len(settings) + 1


def test_readers_together_build_what_lazy_requests_dropped() -> None:
    people = PLAIN.people(np.random.default_rng(0), 800)
    params = {"n_estimators": 8, "max_depth": None, "n_jobs": 1}
    fresh = fitted(PLAIN, params, people.without(people.persons[::3]), 3)
    wanted = fresh.predict_proba(people.X)
    for _ in range(5):
        model = fitted(PLAIN, params, people, 3)
        model.forget(people.persons[::3])
        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(model.predict_proba, [people.X] * 8))
        assert all(np.array_equal(answer, wanted) for answer in answers)
        assert model.digest() == fresh.digest()
