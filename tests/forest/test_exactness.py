"""The product's trees are the reference's, node by node, over all options."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from tests.forest.oracle import difference, expected, reference_leaves
from tests.forest.people import (
    DataSource,
    ForestPeople,
    any_comfort,
    any_parameters,
    any_seed,
    any_world,
    examples,
    fitted,
    lucks,
    pick,
    raw_predictions,
)
from tests.forest.requests import Played

# Random bounds of the target may be coarse, which `fit` says.
pytestmark = pytest.mark.filterwarnings("ignore::letheon.exceptions.PrecisionWarning")


def trouble(
    world: DataSource, params: dict[str, Any], people: ForestPeople, seed: int, model: Any
) -> str | None:
    """Return what tells the model from the reference's forest of these rows."""
    forest = expected(world, params, people, seed)
    probe = np.vstack([people.X, world.people(np.random.default_rng(1), 10).X])
    if not np.array_equal(raw_predictions(model, probe), forest.predict_raw(probe)):
        return "predictions differ"
    if not np.array_equal(model.apply(probe), reference_leaves(forest, probe)):
        return "leaves differ"
    return difference(model, forest)


@pytest.mark.parametrize("classifier", [True, False], ids=["classifier", "regressor"])
def test_a_fit_is_the_reference(classifier: bool) -> None:
    @examples(150)
    @given(lucks)
    def run(luck: int) -> None:
        rng = np.random.default_rng(luck)
        world = any_world(rng, classifier=classifier)
        params, seed = any_parameters(rng, world), any_seed(rng)
        people = world.people(rng, int(rng.integers(1, 50)))
        model = fitted(world, params | any_comfort(rng), people, seed)
        assert trouble(world, params, people, seed, model) is None

    run()


def test_requests_end_in_the_reference(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("forests")

    @examples(60)
    @given(lucks)
    def run(luck: int) -> None:
        rng = np.random.default_rng(luck)
        world = any_world(rng)
        params, seed = any_parameters(rng, world), any_seed(rng)
        people = world.people(rng, int(rng.integers(1, 40)))
        model = fitted(world, params | any_comfort(rng), people, seed)
        game = Played(world, model, people, folder)
        game.play(rng, 8)
        assert trouble(world, params, game.held, seed, game.model) is None

    run()


@examples(8)
@given(lucks)
def test_large_nodes_are_the_reference(luck: int) -> None:
    """Nodes that the product sorts, cuts and caches in other ways than small ones."""
    rng = np.random.default_rng(luck)
    world = any_world(rng)._replace(n_people=1000)
    params, seed = any_parameters(rng, world), any_seed(rng)
    params |= {"n_estimators": 1, "n_thresholds": pick(rng, 1, 5, 25), "min_samples_leaf": 1}
    people = world.people(rng, 600)
    model = fitted(world, params, people, seed)
    assert trouble(world, params, people, seed, model) is None
    gone = people.held().persons[:50]
    model.forget(gone)
    assert trouble(world, params, people.without(gone), seed, model) is None
