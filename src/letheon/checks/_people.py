"""What all checks need: people with one or more rows, models fitted on them, and saved files."""

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


def saved_bytes(model: Any) -> bytes:
    """Return the bytes that `letheon.save` writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.letheon"
        save(model, path)
        return path.read_bytes()


def loaded_copy(model: Any) -> Any:
    """Return the model after a round trip through a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.letheon"
        save(model, path)
        # Classes that are not on the allow-list: a user's own estimator, say.
        return load(path, trusted=list(classes_of(model)))


def make_people(estimator: Any, *, seed: int = 0, n_people: int = 24) -> People:
    """Return rows that suit the estimator: labels, targets or none; non-negative if it must be.

    Everybody owns one to three rows. One person is called `CANARY`; their only row holds large
    and unmistakable numbers.
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
    return People(X, target_of(estimator, labels + X[:, 0] / 10, labels), ids)


def target_of(estimator: Any, numbers: NDArray[Any], labels: NDArray[Any]) -> NDArray[Any] | None:
    """Return what the estimator predicts: numbers, the names of classes, or nothing."""
    if is_regressor(estimator):
        return np.asarray(numbers)
    is_labelled = is_classifier(estimator) or get_tags(estimator).target_tags.required
    return np.asarray(np.array(CLASSES)[labels]) if is_labelled else None


def fit(estimator: Any, people: People, *, seed: int = 0) -> Any:
    """Return a fitted clone; `random_state` and `noise_seed`, where it has them, are the seed."""
    return fit_with(estimator, people, random_state=seed, noise_seed=seed)


def fit_people(estimator: Any) -> tuple[People, Any]:
    """Return people that suit the estimator, and a clone of it fitted on them."""
    people = make_people(estimator)
    return people, fit(estimator, people)


def fit_in_secret(estimator: Any, people: People, *, random_state: int | None = None) -> Any:
    """Return a fitted clone whose noise nobody can repeat."""
    return fit_with(estimator, people, random_state=random_state, noise_seed=None)


def refit(model: Any, people: People) -> Any:
    """Return a fresh fit with the settings, noise seed and seed of a fitted model."""
    return fit_with(model, people, random_state=model.seed_)


def fit_with(estimator: Any, people: People, **settings: Any) -> Any:
    """Return a fitted clone with those of the settings that it has."""
    model = clone(estimator)
    own = model.get_params(deep=False)
    model.set_params(**{name: value for name, value in settings.items() if name in own})
    return model.fit(people.X, people.y, ids=people.ids)


def forget_each(model: Any, people: list[Any]) -> Any:
    """Let people leave, one request each; return the model."""
    for person in people:
        model.forget([person])
    return model


def has_noise(estimator: Any) -> bool:
    """Whether the estimator adds noise that nobody can repeat unless it is told how."""
    return "noise_seed" in estimator.get_params(deep=False)


def answers(model: Any, X: NDArray[Any]) -> NDArray[Any]:
    """Return what the model says: probabilities where it has them."""
    for method in ("predict_proba", "predict", "transform"):
        if hasattr(model, method):
            said = getattr(model, method)(X)
            return np.asarray(said.toarray() if sp.issparse(said) else said)
    raise TypeError(f"{type(model).__name__} neither predicts nor transforms")


def as_numbers(said: NDArray[Any]) -> NDArray[np.float64]:
    """Return answers as numbers: labels become one indicator per class."""
    if said.dtype.kind in "USO":
        said = said[..., None] == np.array(CLASSES)
    return np.asarray(said, float)
