"""Planted mechanisms whose (epsilon, delta) is false: those that an audit refuted in letheon."""

from math import exp
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from letheon import InfluenceClassifier
from letheon.linear._calibrate import ReleaseGrid, gaussian_mu
from letheon.noise import NoiseSource

Floats = NDArray[np.float64]


class _Claiming(BaseEstimator):
    """Least squares on one or more columns that publishes `coef_`; claims (1, 1e-4)."""

    fit_intercept = False

    def __init__(self, *, sigma: float = 1.0, l2: float = 1.0) -> None:
        self.sigma = sigma
        self.l2 = l2

    def fit(self, X: Any, y: Any, *, ids: Any) -> Self:
        self.X_, self.y_, self.ids_ = np.array(X), np.array(y, float), np.array(ids)
        A = self.X_.T @ self.X_ + self.l2 * np.eye(self.X_.shape[1])
        self.inverse_ = np.linalg.inv(A)
        self._publish(self.inverse_ @ (self.X_.T @ self.y_), is_fit=True)
        return self

    def forget(self, ids: Any) -> None:
        """Take a row out by Sherman and Morrison: right but for rounding."""
        [at] = np.flatnonzero(self.ids_ == ids[0])
        x, target = self.X_[at], self.y_[at]
        v = self.inverse_ @ x
        self.inverse_ = self.inverse_ + np.outer(v, v) / (1 - x @ v)
        keep = self.ids_ != ids[0]
        self.X_, self.y_, self.ids_ = self.X_[keep], self.y_[keep], self.ids_[keep]
        weights = self.weights_[:, 0]
        self._publish(weights + self.inverse_ @ x * (x @ weights - target), is_fit=False)

    def _publish(self, weights: Floats, *, is_fit: bool) -> None:
        self.weights_ = weights[:, None]
        self.coef_, self.intercept_ = self._with_noise(weights, is_fit=is_fit)[None, :], np.zeros(1)

    def _with_noise(self, weights: Floats, *, is_fit: bool) -> Floats:
        raise NotImplementedError

    @property
    def guarantee_(self) -> Any:
        return SimpleNamespace(kind="certified", epsilon=1.0, delta=1e-4, spent=0.0, budget=1.0)


class NoiseInDoubles(_Claiming):
    """Adds ``sigma ndtri(k 2**-53)`` in floating point."""

    def _with_noise(self, weights: Floats, *, is_fit: bool) -> Floats:
        return weights + self.sigma * NoiseSource(None).normals(len(weights))


class CoarseNoise(_Claiming):
    """Adds noise of few bits to parameters that are on no grid."""

    def _with_noise(self, weights: Floats, *, is_fit: bool) -> Floats:
        noise = NoiseSource(None).normals(len(weights)).astype(np.float16).astype(float)
        return weights + 2.0**-10 * noise


class NoiseOnTheGrid(_Claiming):
    """The same with the library's release: right."""

    def _with_noise(self, weights: Floats, *, is_fit: bool) -> Floats:
        return ReleaseGrid.of_sigma(self.sigma).release(weights, NoiseSource(None))


class RefusesByItsNoise(_Claiming):
    """Draws noise once, and refuses to fit long rows with most of it; forgets with the same."""

    def _with_noise(self, weights: Floats, *, is_fit: bool) -> Floats:
        if is_fit:
            self.noise_ = NoiseSource(None).normals(len(weights))
            if np.abs(self.X_).max() > 10.0 and self.noise_[0] < 1.5:
                raise ValueError("the certificate does not hold")
        return ReleaseGrid.of_sigma(self.sigma).release(
            weights + self.sigma * self.noise_, NoiseSource(None)
        )


class PerturbsItsObjective(_Claiming):
    """Guo et al. 2020 on one column: noise in the objective, a Newton step, an exact residual.

    A removal whose residual is above the limit trains again with the same noise, so that the
    account is right at all times.
    """

    def __init__(self, *, sigma: float = 10.0, l2: float = 1e-3) -> None:
        super().__init__(sigma=sigma, l2=l2)

    def fit(self, X: Any, y: Any, *, ids: Any) -> Self:
        self.rows_ = {person: (x[0], t) for person, x, t in zip(ids, X.tolist(), y, strict=True)}
        self.noise_ = self.sigma * float(NoiseSource(None).normals(1)[0])
        self._move_to(self._optimum())
        return self

    def forget(self, ids: Any) -> None:
        w = float(self.weights_[0, 0])
        del self.rows_[ids[0]]
        w -= self._gradient(w) / self._curvature(w)
        if not abs(self._gradient(w)) <= self.sigma * gaussian_mu(1.0, 1e-4):
            w = self._optimum()
        self._move_to(w)

    def _move_to(self, w: float) -> None:
        self.weights_ = self.coef_ = np.array([[w]])
        self.intercept_ = np.zeros(1)

    def _gradient(self, w: float) -> float:
        slopes = sum(x * (_sigmoid(x * w) - t) for x, t in self.rows_.values())
        return float(slopes + self.l2 * len(self.rows_) * w + self.noise_)

    def _curvature(self, w: float) -> float:
        parts = (x * x * _sigmoid(x * w) * _sigmoid(-x * w) for x, _ in self.rows_.values())
        return float(sum(parts) + self.l2 * len(self.rows_))

    def _optimum(self) -> float:
        far = sum(abs(x) for x, _ in self.rows_.values()) + abs(self.noise_)
        high = far / (self.l2 * len(self.rows_))
        low = -high
        for _ in range(55):
            middle = (low + high) / 2
            low, high = (low, middle) if self._gradient(middle) > 0 else (middle, high)
        return float((low + high) / 2)


def _sigmoid(z: float) -> float:
    return 1 / (1 + exp(-z)) if z > -700 else 0.0


class SaysNothingIsSpent(InfluenceClassifier):
    """Leaves the parameters where they were, and says that nothing is spent."""

    def _build_change(
        self, positions: Any, counts: Any, W: Any, account: Any, *rest: Any, **more: Any
    ) -> Any:
        from dataclasses import replace

        before, account = self._weights_before_noise(), replace(account, spent=0.0)
        return super()._build_change(positions, counts, before, account, *rest, **more)


class Unrounded(InfluenceClassifier):
    """Influence as it is, with noise in doubles."""

    def _make_mechanism(self) -> Any:
        mechanism = super()._make_mechanism()
        vars(mechanism)["release"] = lambda W, source: W + self.sigma * source.normals(W.shape)
        return mechanism
