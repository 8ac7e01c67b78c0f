"""Toy methods with a certificate: an honest one, and cheats whose noise or claim is wrong."""

import copy
import logging
from dataclasses import replace
from math import log, sqrt
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from letheon.base import ForgetMixin, Outcome, Removal, locate_in, lock_model
from letheon.data import Ids, Rows, row_ids
from letheon.guarantee import Guarantee, MethodFacts
from letheon.noise import NoiseSource, SecretArray
from letheon.seeds import seed_from

Floats = NDArray[np.float64]
_DEFINITION = """**Claim.** The Gaussian mechanism. **Assumptions.** Secret noise. **Removal.**
Move to within the permitted distance of the new optimum, and draw noise anew."""


class _CertifiedPlan(NamedTuple):
    rows: Rows
    state: SecretArray
    published: tuple[Floats, Any]
    noise: NoiseSource


class _Lazy(ForgetMixin, BaseEstimator):
    """Least squares with noise on the coefficients, and no more forgetting than it must do.

    It publishes ``w + sigma N(0, I)``. A request moves the secret ``w`` only so far that
    ``|w - argmin| <= sigma epsilon / sqrt(2 log(1.25 / delta))``: with epsilon <= 1 the Gaussian
    mechanism makes the published model (epsilon, delta)-indistinguishable from a fresh one, whose
    secret is the argmin itself. So the certificate is used up to the last bit.
    """

    facts: ClassVar[MethodFacts] = MethodFacts(
        method="lazy",
        applicability="least squares",
        exact=False,
        strength="not stated",
        efficiency_parameters=(),
        certifiability_parameters=("sigma",),
        requests="oblivious",
        releases="latest-only",
        state_holds_rows=True,
        definition_text=_DEFINITION,
        certificate="certified",
    )
    rows_: Rows
    state_: SecretArray
    published_: tuple[Floats, Any]  # coefficients and classes, replaced together
    noise_: NoiseSource
    seed_: int

    def __init__(
        self,
        *,
        l2: float = 1.0,
        sigma: float = 0.05,
        epsilon: float = 1.0,
        delta: float = 1e-4,
        noise_seed: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.l2 = l2
        self.sigma = sigma
        self.epsilon = epsilon
        self.delta = delta
        self.noise_seed = noise_seed
        self.random_state = random_state

    def fit(self, X: Any, y: Any, *, ids: Any = None) -> Self:
        with lock_model(self):
            rows = Rows(np.array(X, float), np.array(y), row_ids(ids, len(X)))
            plan = self._plan(rows, self._argmin(rows), NoiseSource(self.noise_seed), first=True)
            self._install(plan, seed_=seed_from(self.random_state), **self._remember_settings())
        return self

    def _plan(
        self, rows: Rows, state: Floats, noise: NoiseSource, *, first: bool
    ) -> _CertifiedPlan:
        coef = state + self._noise(noise, state.shape, first=first)
        return _CertifiedPlan(rows, SecretArray(state.copy()), (coef, self._classes(rows)), noise)

    def _noise(self, noise: NoiseSource, shape: tuple[int, ...], *, first: bool) -> Floats:
        return self.sigma * noise.normals(shape)

    def _argmin(self, rows: Rows) -> Floats:
        design = _design(rows.X)
        ridge = self.l2 * np.eye(design.shape[1])
        solution = np.linalg.solve(design.T @ design + ridge, design.T @ self._targets(rows))
        return np.asarray(solution, np.float64)

    def _targets(self, rows: Rows) -> Floats:
        return np.asarray(rows.y, np.float64)

    def _classes(self, rows: Rows) -> Any:
        return None

    @property
    def _permitted(self) -> float:
        return self.sigma * self.epsilon / sqrt(2 * log(1.25 / self.delta))

    def _install(self, plan: _CertifiedPlan, **settings: Any) -> None:
        vars(self).update(
            rows_=plan.rows,
            state_=plan.state,
            published_=plan.published,
            noise_=plan.noise,
            **settings,
        )

    @property
    def n_rows_(self) -> int:
        return len(self.rows_)

    def _get_ids(self) -> Ids:
        return self.rows_.ids

    def _make_guarantee(self) -> Guarantee:
        if self.noise_.is_repeatable or self.sigma == 0:
            return Guarantee(kind="empirical", reference="none", residual_state=("state_",))
        return self._certificate()

    def _certificate(self) -> Guarantee:
        return Guarantee(
            kind="certified",
            reference="Dwork and Roth (2014), Theorem A.1",
            epsilon=self.epsilon,
            delta=self.delta,
            residual_state=("state_",),
        )

    def _locate_rows(self, wanted: Ids) -> Removal:
        return locate_in(self.rows_, wanted)

    def _prepare(self, removal: Removal) -> _CertifiedPlan:
        rows = self.rows_.without(removal.where)
        goal, state = self._argmin(rows), self.state_.open()
        if goal.shape != state.shape:
            return self._plan(rows, goal, copy.copy(self.noise_), first=False)
        distance = float(np.linalg.norm(goal - state))
        if distance > self._permitted:
            state = goal + (state - goal) * (self._permitted / distance)
        return self._plan(rows, np.array(state), copy.copy(self.noise_), first=False)

    def _commit(self, plan: Any) -> Outcome:
        old = self.state_
        self._install(plan)
        old.wipe()
        return Outcome(work=0.1)


class LazyRidge(RegressorMixin, _Lazy):
    def predict(self, X: Any) -> Floats:
        return np.asarray(_design(X) @ self.published_[0], np.float64)


class LazyClassifier(ClassifierMixin, _Lazy):
    """Least squares on labels, one class against the others."""

    def _classes(self, rows: Rows) -> Any:
        return np.unique(np.asarray(rows.y))

    def _targets(self, rows: Rows) -> Floats:
        return np.asarray(np.asarray(rows.y)[:, None] == self._classes(rows), np.float64)

    @property
    def classes_(self) -> Any:
        return self.published_[1]

    def decision_function(self, X: Any) -> Floats:
        return np.asarray(_design(X) @ self.published_[0], np.float64)

    def predict(self, X: Any) -> Any:
        coef, classes = self.published_
        return classes[np.argmax(_design(X) @ coef, axis=1)]


class LazyLabels(LazyClassifier):
    """Publishes labels only."""

    facts: ClassVar[MethodFacts] = replace(LazyClassifier.facts, releases="labels-only")

    def _certificate(self) -> Guarantee:
        return replace(super()._certificate(), releases="labels-only")


def _design(X: Any) -> Floats:
    return np.column_stack([X, np.ones(len(X))])


class ForgetsTheNoise(LazyRidge):
    """Adds noise when it fits, and none when it forgets."""

    def _noise(self, noise: NoiseSource, shape: tuple[int, ...], *, first: bool) -> Floats:
        return super()._noise(noise, shape, first=first) * first


class WhispersAfterwards(LazyRidge):
    """Its noise is an eighth of what it was, once it forgot."""

    def _noise(self, noise: NoiseSource, shape: tuple[int, ...], *, first: bool) -> Floats:
        return super()._noise(noise, shape, first=first) / (1 if first else 8)


class WhispersAlways(LazyRidge):
    """Its noise was halved five times, and the certificate still speaks of all of it."""

    def _noise(self, noise: NoiseSource, shape: tuple[int, ...], *, first: bool) -> Floats:
        return super()._noise(noise, shape, first=first) / 32


class KeepsTheInfluence(LazyRidge):
    """Takes the row out of its rows, and draws new noise around the old coefficients."""

    def _prepare(self, removal: Removal) -> _CertifiedPlan:
        state = self.state_.open().copy()
        rows = self.rows_.without(removal.where)
        return self._plan(rows, state, copy.copy(self.noise_), first=False)


class KeepsTheLabels(LazyLabels):
    """Takes the row out of its rows, and goes on with the labels that it gave before."""

    def _prepare(self, removal: Removal) -> _CertifiedPlan:
        plan = super()._prepare(removal)
        return plan._replace(published=self.published_)


class StepsTheWrongWay(LazyRidge):
    def _prepare(self, removal: Removal) -> _CertifiedPlan:
        plan = super()._prepare(removal)
        wrong = 2 * self.state_.open() - plan.state.open()
        return self._plan(plan.rows, wrong, copy.copy(self.noise_), first=False)


class RepeatsItsNoise(LazyRidge):
    """Takes a missing seed for seed 0."""

    def fit(self, X: Any, y: Any, *, ids: Any = None) -> Self:
        super().fit(X, y, ids=ids)
        noise = NoiseSource(self.noise_seed or 0)
        state = self.state_.open().copy()
        plan = self._plan(self.rows_, state, noise, first=True)
        plan.noise.seed = self.noise_seed
        self._install(plan)
        return self


class RepeatsItsNoiseWithoutAClaim(RepeatsItsNoise):
    def _certificate(self) -> Guarantee:
        return Guarantee(kind="empirical", reference="none", residual_state=("state_",))


class CertifiesASeed(LazyRidge):
    def _make_guarantee(self) -> Guarantee:
        return self._certificate()


class OverdrawsItsBudget(LazyRidge):
    def _certificate(self) -> Guarantee:
        claim = super()._certificate()
        vars(claim).update(spent=1.25, budget=1.0)
        return claim


class LogsItsNoise(LazyRidge):
    def _plan(
        self, rows: Rows, state: Floats, noise: NoiseSource, *, first: bool
    ) -> _CertifiedPlan:
        logging.getLogger("tests.checks.toy").debug("from %s", state)
        return super()._plan(rows, state, noise, first=first)


class PrintsItsNorm(LazyRidge):
    def _commit(self, plan: Any) -> Outcome:
        print(f"{np.linalg.norm(plan.state.open()):.8f}")  # noqa: T201  (that is the cheat)
        return super()._commit(plan)


class ShowsItsNoise(LazyRidge):
    def __repr__(self) -> str:
        return f"LazyRidge({vars(self)['state_'].open()[-1]})" if "state_" in vars(self) else ""


class ExplainsItsClaim(LazyRidge):
    """Writes a secret number into the guarantee, in hexadecimal."""

    def _certificate(self) -> Guarantee:
        claim = super()._certificate()
        vars(claim).update(reference=self.state_.open()[0].tobytes().hex())
        return claim


class CountsItsNoise(LazyRidge):
    """Puts the noise where a receipt has numbers of parts."""

    def _commit(self, plan: Any) -> Outcome:
        return super()._commit(plan)._replace(rebuilt={"steps": plan.state.open()[0]})


class LosesItsNoise(LazyRidge):
    """A loaded model starts its draws anew."""

    def _to_state(self) -> dict[str, Any]:
        return vars(self) | {"noise_": NoiseSource(self.noise_seed)}

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        model = cls()
        vars(model).update(state)
        return model

    def _digest_state(self) -> dict[str, Any]:
        return {k: v for k, v in super()._digest_state().items() if k != "noise_"}


class LosesItsSecret(LazyRidge):
    """The secret is not part of its digest."""

    def _digest_state(self) -> dict[str, Any]:
        return {k: v for k, v in super()._digest_state().items() if k != "state_"}


class SealsAnAggregate(LazyRidge):
    """Keeps the old X'y under a seal, with the intercept."""

    attic_: SecretArray

    def fit(self, X: Any, y: Any, *, ids: Any = None) -> Self:
        super().fit(X, y, ids=ids)
        self.attic_ = SecretArray(_design(self.rows_.X).T @ self._targets(self.rows_))
        return self
