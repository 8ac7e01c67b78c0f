"""Helpers for the checks: people with one or more rows, models fitted on them, saved files."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.utils import get_tags

from letheon.data import People
from letheon.persist import load, save
from letheon.state import classes_of

CANARY = "canary-9f2c51d7"
CLASSES = ("ash", "elm", "oak")
# Methods whose output shows what a model has learned.
ANSWERS = ("predict_proba", "predict", "transform", "query")


def save_to_bytes(model: Any) -> bytes:
    """Return the bytes that `letheon.save` writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.letheon"
        save(model, path)
        return path.read_bytes()


def load_copy(model: Any) -> Any:
    """Return the model after a round trip through a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.letheon"
        save(model, path)
        # The classes may be a user's own estimators, which are not on the allow-list.
        return load(path, trusted=list(classes_of(model)))


def make_people(estimator: Any, *, seed: int = 0, n_people: int = 24) -> People:
    """Return rows with suitable targets for the estimator; non-negative if it requires that.

    Every person has one to three rows. The id of one person is `CANARY`; their only row has large
    and distinctive numbers.

    Parameters
    ----------
    estimator : forgetting estimator
        The estimator to be checked; its kind and tags determine the targets.
    seed : int, default=0
        Seed of the rows.
    n_people : int, default=24
        Number of people, without `CANARY`.

    Returns
    -------
    People

    Examples
    --------
    >>> from letheon import NearestCentroid
    >>> people = make_people(NearestCentroid(), n_people=2)
    >>> people.X.shape, len(people.unique_ids)
    ((6, 4), 3)
    """
    rng = np.random.default_rng(seed)
    owners = np.repeat(np.arange(n_people), rng.integers(1, 4, n_people))
    rng.shuffle(owners)
    labels = rng.integers(0, len(CLASSES), len(owners))
    X = rng.normal(size=(len(owners), 4)) + labels[:, None]
    X = np.vstack([X, [[812.0625, -977.1875, 655.4375, -733.3125]]])
    labels = np.append(labels, 1)
    ids = np.array([*(f"person-{owner:02d}" for owner in owners), CANARY])
    X = np.abs(X) if get_tags(estimator).input_tags.positive_only else X
    return People(X, make_target(estimator, labels + X[:, 0] / 10, labels), ids)


def make_target(estimator: Any, numbers: NDArray[Any], labels: NDArray[Any]) -> NDArray[Any] | None:
    """Return the target for the estimator: numbers, names of classes, or None."""
    if is_regressor(estimator):
        return np.asarray(numbers)
    is_labelled = is_classifier(estimator) or get_tags(estimator).target_tags.required
    return np.asarray(np.array(CLASSES)[labels]) if is_labelled else None


def fit(estimator: Any, people: People, *, seed: int = 0) -> Any:
    """Return a fitted clone; `random_state` and `noise_seed`, if any, are set to `seed`."""
    return fit_with(estimator, people, random_state=seed, noise_seed=seed)


def fit_people(estimator: Any) -> tuple[People, Any]:
    """Return people for the estimator, and a clone of it fitted on them."""
    people = make_people(estimator)
    return people, fit(estimator, people)


def fit_with_secret_noise(
    estimator: Any, people: People, *, random_state: int | None = None
) -> Any:
    """Return a fitted clone with secret noise, which cannot be reproduced."""
    return fit_with(estimator, people, random_state=random_state, noise_seed=None)


def refit(model: Any, people: People) -> Any:
    """Return a fresh fit with the settings, noise seed and seed of a fitted model."""
    return fit_with(model, people, random_state=model.seed_)


def fit_with(estimator: Any, people: People, **settings: Any) -> Any:
    """Return a clone with these settings, fitted on the people; unknown settings are ignored."""
    model = clone(estimator)
    own = model.get_params(deep=False)
    model.set_params(**{name: value for name, value in settings.items() if name in own})
    return model.fit(people.X, people.y, ids=people.ids)


def forget_each(model: Any, people: list[Any]) -> Any:
    """Forget people, one request each; return the model."""
    for person in people:
        model.forget([person])
    return model


def has_secret_noise(estimator: Any) -> bool:
    """Return whether the estimator adds secret noise, which only a `noise_seed` reproduces."""
    return "noise_seed" in estimator.get_params(deep=False)


def get_outputs(model: Any, X: NDArray[Any]) -> NDArray[Any]:
    """Return what a model answers: class probabilities if it has them, else its other output.

    The output of an index is the distances of its answers.
    """
    for method in ANSWERS:
        if hasattr(model, method):
            outputs = getattr(model, method)(X)
            outputs = outputs.distances if method == "query" else outputs
            return np.asarray(outputs.toarray() if sp.issparse(outputs) else outputs)
    raise TypeError(f"{type(model).__name__} has none of {', '.join(ANSWERS)}")


def as_numbers(outputs: NDArray[Any]) -> NDArray[np.float64]:
    """Return outputs as numbers: labels become one indicator per class."""
    if outputs.dtype.kind in "USO":
        outputs = outputs[..., None] == np.array(CLASSES)
    return np.asarray(outputs, float)
