"""What all checks need: people with one or more rows, models fitted on them, and saved files."""

import pickle
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.utils import get_tags

from letheon.persist import load, save

CANARY = "canary-9f2c51d7"
CLASSES = ("ash", "elm", "oak")


def _trusted(model: Any) -> list[type]:
    """Classes that are not on the allow-list: a user's own estimator, say."""
    from letheon.state import classes_of

    return list(classes_of(model))


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
        return load(path, trusted=_trusted(model))


def all_bytes(model: Any) -> Iterable[tuple[str, bytes]]:
    """Return every form in which the model could leave the process."""
    yield "the saved file", saved_bytes(model)
    yield "the pickled object", pickle.dumps(model)


@dataclass(frozen=True)
class People:
    """Rows of several people."""

    X: NDArray[np.float64]
    y: NDArray[Any] | None
    ids: NDArray[Any]

    @property
    def names(self) -> list[str]:
        """Every person once, in order of first appearance."""
        return list(dict.fromkeys(self.ids.tolist()))

    def without(self, leaving: list[str]) -> "People":
        """Return the rows of everybody else."""
        keep = ~np.isin(self.ids, leaving)
        return People(self.X[keep], None if self.y is None else self.y[keep], self.ids[keep])

    def only(self, staying: list[str]) -> "People":
        """Return the rows of these people."""
        return self.without([name for name in self.names if name not in staying])


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
    if get_tags(estimator).input_tags.positive_only:
        X = np.abs(X)
    ids = np.array([*(f"person-{owner:02d}" for owner in owners), CANARY])
    return People(X, _target(estimator, X, labels), ids)


def _target(estimator: Any, X: NDArray[np.float64], labels: NDArray[Any]) -> NDArray[Any] | None:
    if is_regressor(estimator):
        return np.asarray(labels + X[:, 0] / 10)
    if is_classifier(estimator) or get_tags(estimator).target_tags.required:
        return np.asarray(np.array(CLASSES)[labels])
    return None


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


def fit_with(estimator: Any, people: People, **settings: int | None) -> Any:
    """Return a fitted clone with those of the settings that it has."""
    model = clone(estimator)
    own = model.get_params(deep=False)
    model.set_params(**{name: value for name, value in settings.items() if name in own})
    return model.fit(people.X, people.y, ids=people.ids)


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
