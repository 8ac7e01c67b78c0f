"""People with wrong labels, which only a model trained on them predicts."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, SGDClassifier


class CanaryData(NamedTuple):
    X: NDArray[Any]
    y: NDArray[Any]
    forget: NDArray[Any]
    population: tuple[NDArray[Any], NDArray[Any]]


def make_canaries(
    n: int = 200, *, n_canaries: int = 24, n_features: int = 300, seed: int = 0
) -> CanaryData:
    """More columns than rows: a linear model memorises every label, the wrong ones too."""
    rng = np.random.default_rng(seed)
    slope = rng.normal(size=n_features)
    X, others = rng.normal(size=(n, n_features)), rng.normal(size=(200, n_features))
    y = (X @ slope > 0).astype(int)
    y[:n_canaries] = 1 - y[:n_canaries]
    return CanaryData(X, y, np.arange(n_canaries), (others, (others @ slope > 0).astype(int)))


def memoriser() -> LogisticRegression:
    return LogisticRegression(C=1e3, max_iter=3000)


def learner() -> SGDClassifier:
    """Random in its order of rows, and able to go on training."""
    return SGDClassifier(
        loss="log_loss", alpha=1e-6, learning_rate="constant", eta0=0.05, max_iter=15, tol=None
    )
