"""The test of the exactness tests: each bug planted in the forest must be noticed."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from letheon.forest import _inputs, _model
from letheon.forest._model import ForestModel
from tests.forest.oracle import difference, expected, fresh_fit, identity_error
from tests.forest.people import DataSource, fitted
from tests.forest.requests import Played

# Random bounds of the target may be coarse, which `fit` says.
pytestmark = pytest.mark.filterwarnings("ignore::letheon.exceptions.PrecisionWarning")

WORLD = DataSource(("normal", "few", "binary"), (0.0, 0.3, 0.0), 3, True, False, 3, "normal", 1000)
PARAMS: dict[str, Any] = {
    "criterion": "gini",
    "n_estimators": 3,
    "max_depth": None,
    "max_features": 2,
    "n_thresholds": 5,
    "random_depth": 1,
    "min_samples_split": 2,
    "min_samples_leaf": 1,
    "subsample": 1.0,
}


def copy_of(model: Any) -> Any:
    return pickle.loads(pickle.dumps(model))


class StaleCore:
    """A core that answers some questions as it did before the last request."""

    def __init__(self, now: Any, before: Any, *stale: str) -> None:
        self._now, self._before, self._stale = now, before, stale

    def __getattr__(self, name: str) -> Any:
        return getattr(self._before if name in self._stale else self._now, name)


class StaleTree(StaleCore):
    """A core that forgot the rows everywhere but in one tree."""

    def tree(self, number: int) -> Any:
        return (self._before if number == 1 else self._now).tree(number)


def after_forget(patch: pytest.MonkeyPatch, spoil: Callable[[ForestModel, Any], None]) -> None:
    """Let `spoil` work on the forest after a request; it also gets the core of before."""
    real = ForestModel.forget

    def forget(self: ForestModel, *arguments: Any) -> Any:
        before = copy_of(self).core
        report = real(self, *arguments)
        spoil(self, before)
        return report

    patch.setattr(ForestModel, "forget", forget)


def skip_one_row(patch: pytest.MonkeyPatch) -> None:
    real = ForestModel.forget
    patch.setattr(ForestModel, "forget", lambda self, slots, *rest: real(self, slots[1:], *rest))


def forget_a_neighbour_too(patch: pytest.MonkeyPatch) -> None:
    real = ForestModel.forget

    def forget(self: ForestModel, slots: Any, *rest: Any) -> Any:
        others = np.setdiff1d(np.arange(self.core.n_rows, dtype=slots.dtype), slots)
        return real(self, np.sort(np.append(slots, others[:1])), *rest)

    patch.setattr(ForestModel, "forget", forget)


def forget_in_all_trees_but_one(patch: pytest.MonkeyPatch) -> None:
    after_forget(patch, lambda forest, old: setattr(forest, "core", StaleTree(forest.core, old)))


def answer_from_stale_trees(patch: pytest.MonkeyPatch) -> None:
    after_forget(
        patch, lambda forest, old: setattr(forest, "core", StaleCore(forest.core, old, "predict"))
    )


def digest_stale_trees(patch: pytest.MonkeyPatch) -> None:
    after_forget(
        patch, lambda forest, old: setattr(forest, "core", StaleCore(forest.core, old, "trees"))
    )


def keep_the_ids(patch: pytest.MonkeyPatch) -> None:
    after_forget(
        patch, lambda forest, old: setattr(forest, "core", StaleCore(forest.core, old, "ids"))
    )


def keep_a_lost_class(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_inputs.LabelTable, "without_empty", lambda self, counts: self)


def learn_without_weights(patch: pytest.MonkeyPatch) -> None:
    real = ForestModel.learn
    patch.setattr(
        ForestModel,
        "learn",
        lambda self, batch, *rest: real(self, replace(batch, weights=None), *rest),
    )


def learn_all_but_one_row(patch: pytest.MonkeyPatch) -> None:
    real = ForestModel.learn

    def learn(self: ForestModel, batch: Any, *rest: Any) -> Any:
        most = np.arange(len(batch.target) - 1)
        short = replace(
            batch,
            X=batch.X[most],
            target=batch.target[most],
            weights=None if batch.weights is None else batch.weights[most],
            ids=batch.ids.take(most),
        )
        return real(self, short, *rest)

    patch.setattr(ForestModel, "learn", learn)


def learn_with_classes_mixed_up(patch: pytest.MonkeyPatch) -> None:
    real = _inputs.LabelTable.add_labels

    def add_labels(self: Any, labels: Any) -> Any:
        table, codes = real(self, labels)
        return table, codes[::-1].copy()

    patch.setattr(_inputs.LabelTable, "add_labels", add_labels)


BUGS = (
    skip_one_row,
    forget_a_neighbour_too,
    forget_in_all_trees_but_one,
    answer_from_stale_trees,
    digest_stale_trees,
    keep_the_ids,
    keep_a_lost_class,
    learn_without_weights,
    learn_all_but_one_row,
    learn_with_classes_mixed_up,
)


def requests(folder: Path) -> str | None:
    """Forget a few people and a whole class, learn others; return what the judge says."""
    rng = np.random.default_rng(0)
    people = WORLD.people(rng, 60)
    game = Played(WORLD, fitted(WORLD, PARAMS, people, 9), people, folder)
    game.learn(WORLD.people(rng, 20, 2))
    rare = game.held.y == game.held.y.max()
    game.forget(sorted(set(game.held.ids[rare].tolist())))
    fresh = copy_of(fresh_fit(WORLD, PARAMS, game.held, game.model))
    return identity_error(game.model, fresh, people.X)


def test_without_a_bug_the_judge_is_content(tmp_path: Path) -> None:
    assert requests(tmp_path) is None


@pytest.mark.parametrize("plant", BUGS)
def test_the_judge_notices_the_bug(
    plant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert requests(tmp_path) is not None


def spoil(model: Any, name: str, change: Callable[[Any], Any]) -> None:
    """Change one array of the first tree that the model shows."""
    real = model.tree_
    model.tree_ = lambda t: replace(real(t), **{name: change(getattr(real(t), name).copy())})


def one_step_up(thresholds: Any) -> Any:
    return np.nextafter(thresholds, np.float32(np.inf))


SPOILS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a threshold one step beside": ("threshold", one_step_up),
    "another attribute": ("feature", lambda a: np.where(a >= 0, 2 - a, a)),
    "missing values on the other side": ("missing_left", lambda a: ~a),
    "a random split for a greedy one": ("kind", lambda a: np.where(a > 0, 3 - a, a)),
    "a count too many": ("value", lambda a: a + 1),
    "a row too many": ("n", lambda a: a + 1),
    "a child that is another node": ("left", lambda a: np.where(a >= 0, len(a) - 1, a)),
}


@pytest.mark.parametrize("name", SPOILS)
def test_the_oracle_notices_a_spoiled_tree(name: str) -> None:
    people = WORLD.people(np.random.default_rng(3), 40)
    model, forest = fitted(WORLD, PARAMS, people, 4), expected(WORLD, PARAMS, people, 4)
    assert difference(model, forest) is None
    spoil(model, *SPOILS[name])
    assert difference(model, forest) is not None


@pytest.mark.parametrize("name", ["n_thresholds", "max_features", "random_depth", "criterion"])
def test_the_oracle_notices_another_setting(name: str) -> None:
    other = {"n_thresholds": 1, "max_features": 1, "random_depth": 0, "criterion": "entropy"}
    people = WORLD.people(np.random.default_rng(3), 60)
    model = fitted(WORLD, PARAMS | {name: other[name]}, people, 4)
    assert difference(model, expected(WORLD, PARAMS, people, 4)) is not None


def test_the_oracle_notices_ignored_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    real = _model.core_arguments
    unweighted = lambda settings, batch, *rest: real(  # noqa: E731
        settings, replace(batch, weights=None), *rest
    )
    monkeypatch.setattr(_model, "core_arguments", unweighted)
    people = WORLD.people(np.random.default_rng(3), 60)
    model = fitted(WORLD, PARAMS, people, 4)
    assert difference(model, expected(WORLD, PARAMS, people, 4)) is not None
