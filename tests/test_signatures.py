"""Everything after `y` is given by keyword: ids could be taken for weights otherwise."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import letheon
from letheon import DaREForestClassifier, SISAClassifier
from letheon.base import ForgetMixin
from letheon.measures import attacks
from letheon.select import Comparison

# These hold no estimators and are slow to import.
SKIPPED = {"audit", "cli", "client", "ledger", "mlflow", "sandbox", "service", "verifier"}
METHODS = ("fit", "learn", "partial_fit", "fit_transform", "fit_predict", "score", "fit_best")


def public_modules() -> Iterator[Any]:
    yield from (letheon, attacks)
    names = {module.name for module in pkgutil.iter_modules(letheon.__path__)} - SKIPPED
    for name in sorted(name for name in names if not name.startswith("_")):
        with suppress(ModuleNotFoundError):  # an extra that is not installed
            yield importlib.import_module(f"letheon.{name}")


def learners() -> list[type]:
    """Every public class that is fitted with rows; subclasses that are not exported too."""
    classes: set[type] = {Comparison}
    for module in public_modules():
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if isinstance(value, type) and callable(getattr(value, "fit", None)):
                classes.add(value)
    waiting: list[type] = [ForgetMixin]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__module__.startswith("letheon.") and hasattr(kind, "fit"):
            classes.add(kind)
    return sorted(classes, key=lambda kind: kind.__qualname__)


def late_positional(method: Any) -> list[str]:
    """Names after (self, X, y) that a caller could give by position."""
    parameters = inspect.signature(method).parameters.values()
    by_position = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [each.name for each in parameters if each.kind in by_position][3:]


def test_the_walk_meets_every_family() -> None:
    names = {kind.__name__ for kind in learners()}
    exported = {name for name in letheon.__all__ if name.endswith(("Classifier", "Regressor"))}
    assert names >= exported | {"NaiveUnlearner", "ForgetPipeline", "DataIndependent"}
    assert names >= {"FineTuneOnly", "KeepsEverything", "Comparison"}


@pytest.mark.parametrize("kind", learners(), ids=lambda kind: kind.__name__)
def test_everything_after_y_is_keyword_only(kind: type) -> None:
    methods = [name for name in METHODS if hasattr(kind, name)]
    assert methods
    late = {name: late_positional(getattr(kind, name)) for name in methods}
    assert [name for name in methods if late[name]] == []


def test_ids_are_never_taken_for_weights() -> None:
    X, y, ids = np.arange(40.0).reshape(20, 2), np.arange(20) % 2, list(range(100, 120))
    forest: Any = DaREForestClassifier(n_estimators=2, random_state=0)
    with pytest.raises(TypeError, match="positional"):
        forest.fit(X, y, ids)
    assert not hasattr(forest, "forest_")
    forest.fit(X, y, ids=ids)
    with pytest.raises(TypeError, match="positional"):
        forest.learn(X, y, ids, ids=ids)
    with pytest.raises(TypeError, match="positional"):
        forest.score(X, y, ids)
    assert forest.n_rows_ == 20


def test_weights_are_given_by_keyword_to_fit_and_score() -> None:
    X, y = np.arange(40.0).reshape(20, 2), np.arange(20) % 2
    heavy = np.where(y == 1, 5, 1)
    forest = DaREForestClassifier(n_estimators=2, random_state=0).fit(X, y, sample_weight=heavy)
    right = forest.predict(X) == y
    assert forest.score(X, y, sample_weight=heavy) == np.average(right, weights=heavy)
    assert issubclass(SISAClassifier, ForgetMixin)
