"""Small made-up problems for the tests of the convex methods."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from letheon import InfluenceClassifier, InfluenceRegressor
from letheon.linear import _influence_base, _solve
from letheon.linear._problem import FitProblem, Logistic, Loss, PseudoHuber, Softmax, Squared
from tests.linear.reference import Floats, LinearCase

KINDS = ("logistic", "ovr", "softmax", "squared", "huber")


@dataclass(frozen=True)
class ProblemRecipe:
    """What a random problem is made of; `spread` is that of the rows' lengths, in powers of e."""

    kind: str
    seed: int
    n: int
    d: int
    n_gone: int
    log_l2: float
    reg: str = "per_sample"
    n_classes: int = 3
    spread: float = 0.0
    noise: float = 0.0
    wide: float = 1.0
    separable: bool = False

    @property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    def case(self) -> LinearCase:
        """Return the problem, its noise included."""
        rng = self.rng
        X = rng.normal(size=(self.n, self.d)) * np.exp(self.spread * rng.normal(size=(self.n, 1)))
        n_scores = self.n_classes if self.kind in ("ovr", "softmax") else 1
        tilt = self.noise * rng.normal(size=(self.d, n_scores))
        y = self._target(rng, X, n_scores)
        reg, scale = self.reg, float(np.exp(rng.normal()))
        return LinearCase(X, y, self.kind, 10**self.log_l2, reg, tilt, max(n_scores, 2), scale)

    def _target(self, rng: np.random.Generator, X: Floats, n_scores: int) -> NDArray[Any]:
        scores = X @ rng.normal(size=(self.d, n_scores))
        if not self.separable:
            scores += rng.logistic(size=scores.shape)
        if self.kind in ("squared", "huber"):
            return np.asarray(scores[:, 0])
        if n_scores == 1:
            return np.asarray(scores[:, 0] > 0, np.int64)
        return np.asarray(scores.argmax(axis=1), np.int64)

    def point(self, size: float, seed: int = 1) -> Floats:
        """Return parameters of about this size."""
        case = self.case()
        rng = np.random.default_rng(self.seed + seed)
        return np.asarray(size * rng.normal(size=case.shape) / np.sqrt(case.shape[0]))

    @property
    def gone(self) -> NDArray[np.int64]:
        return np.sort(self.rng.permutation(self.n)[: self.n_gone]).astype(np.int64)


@st.composite
def recipes(draw: st.DrawFn, kinds: tuple[str, ...] = KINDS) -> ProblemRecipe:
    """Any small problem: many or few rows, alike or not, hardly or heavily regularised."""
    n = draw(st.integers(3, 14))
    return ProblemRecipe(
        kind=draw(st.sampled_from(kinds)),
        seed=draw(st.integers(0, 2**32)),
        n=n,
        d=draw(st.integers(1, 5)),
        n_gone=draw(st.integers(1, min(n - 2, 5))),
        log_l2=draw(st.floats(-4, 1)),
        reg=draw(st.sampled_from(["per_sample", "total"])),
        n_classes=draw(st.integers(3, 4)),
        spread=draw(st.sampled_from([0.0, 0.5, 2.0])),
        noise=draw(st.sampled_from([0.0, 1.0])),
        separable=draw(st.booleans()),
    )


def library_loss(case: LinearCase) -> Loss:
    """The library's loss of the same kind."""
    if case.kind in ("logistic", "ovr"):
        return Logistic(case.n_scores)
    if case.kind == "softmax":
        return Softmax(case.n_classes)
    return Squared() if case.kind == "squared" else PseudoHuber(case.scale)


def library_problem(case: LinearCase) -> FitProblem:
    """The library's view of the same problem."""
    reg: Any = case.reg
    return FitProblem(case.X, case.y, library_loss(case), len(case.y), case.l2, reg, case.tilt)


def longest(X: Any) -> float:
    """Largest norm of a row."""
    dense = X.toarray() if sp.issparse(X) else np.asarray(X, np.float64)
    return float(np.linalg.norm(dense, axis=1).max())


def examples(count: int) -> settings:
    """`count` examples in `make test`, ten times as many in `make soak`."""
    return settings(max_examples=max(1, count * settings().max_examples // 100))


def form_no_matrix(patch: pytest.MonkeyPatch, above: int) -> None:
    """Let blocks of more than `above` columns be too large for a Hessian."""
    patch.setattr(_solve, "_SMALL_BLOCK", 0)
    patch.setattr(_solve, "DENSE_LIMIT", above)
    patch.setattr(_influence_base, "DENSE_LIMIT", above)


def table_of_section_1() -> LinearCase:
    """n = 400, p = 6, rows of length 1, l2 = 1e-2: the numbers of the published error table."""
    rng = np.random.default_rng(1)
    X, w = rng.normal(size=(400, 6)), rng.normal(size=6)
    y = (X @ w + rng.logistic(size=400) > 0).astype(np.int64)
    return LinearCase(X / np.linalg.norm(X, axis=1, keepdims=True), y, "logistic", 1e-2)


def make_rows(
    kind: str = "logistic", n: int = 60, p: int = 4, seed: int = 0
) -> tuple[Floats, NDArray[Any]]:
    """Rows and targets for an estimator of this kind; every class has several rows."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p))
    if kind in ("squared", "huber"):
        return X, X @ rng.normal(size=p) + rng.standard_t(3, size=n)
    y = np.arange(n) % (2 if kind == "logistic" else 3)
    return X + 0.7 * y[:, None] * rng.normal(size=p), y


def estimator(kind: str = "logistic", **settings: Any) -> Any:
    """An unfitted model of this kind, with repeatable noise unless told otherwise."""
    settings = {"noise_seed": 1, "random_state": 0, "l2": 0.05} | settings
    if kind in ("squared", "huber"):
        loss = "squared" if kind == "squared" else "pseudo_huber"
        return InfluenceRegressor(loss=loss, **settings)
    return InfluenceClassifier(multi_class="softmax" if kind == "softmax" else "ovr", **settings)


def case_of(model: Any, kind: str, X: Any, y: Any) -> LinearCase:
    """The problem that a fitted model should have solved on these rows, with its own noise."""
    X = X.toarray() if sp.issparse(X) else np.asarray(X, np.float64)
    if model.fit_intercept:
        X = np.column_stack([X, np.ones(len(X))])
    n_scores = model.weights_.open().shape[1]
    tilt = tilt_of(model)
    return LinearCase(X, np.asarray(y), kind, model.l2, model.reg, tilt, max(n_scores, 2))


def weights_of(model: Any) -> Floats:
    """Return the parameters without noise, as they are now."""
    return np.array(model.weights_.open())


def tilt_of(model: Any) -> Floats:
    """Return the secret term of the objective: none where noise is added to what is released."""
    if model.noise_ is None:
        return np.zeros(model.weights_.open().shape)
    return np.array(model.noise_.open())
