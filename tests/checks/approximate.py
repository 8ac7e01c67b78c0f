"""Toy methods that forget approximately and say so: the suite must let them pass."""

from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from letheon.base import ForgetMixin, Outcome, Removal, locate_in, lock_model
from letheon.data import Ids, Rows, row_ids
from letheon.guarantee import Guarantee, MethodFacts
from letheon.seeds import seed_from

Floats = NDArray[np.float64]
_DEFINITION = """**Claim.** Near a retrain, measured. **Assumptions.** A convex loss.
**Removal.** One Newton step on the remaining rows."""


class _ApproximatePlan(NamedTuple):
    rows: Rows
    coef: Floats
    classes: Any


class _Newton(ForgetMixin, BaseEstimator):
    """One Newton step from the old coefficients, then noise that depends on the seed."""

    facts: ClassVar[MethodFacts] = MethodFacts(
        method="toy",
        applicability="convex losses",
        exact=False,
        strength="not stated",
        efficiency_parameters=(),
        certifiability_parameters=(),
        requests="oblivious",
        releases="latest-only",
        state_holds_rows=True,
        definition_text=_DEFINITION,
        certificate="empirical",
    )
    rows_: Rows
    coef_: Floats
    classes_: Any
    seed_: int

    def __init__(self, *, l2: float = 1.0, noise: float = 0.0, random_state: Any = None) -> None:
        self.l2 = l2
        self.noise = noise
        self.random_state = random_state

    def fit(self, X: Any, y: Any, *, ids: Any = None) -> Self:
        with lock_model(self):
            seed = seed_from(self.random_state)
            rows = Rows(np.array(X, float), np.array(y), row_ids(ids, len(X)))
            self._install(seed, *self._from_scratch(rows))
        return self

    def _from_scratch(self, rows: Rows) -> _ApproximatePlan:
        classes = self._classes(rows)
        shape = (rows.X.shape[1] + 1, 1 if classes is None else len(classes))
        coef = np.zeros(shape)
        for _ in range(30):
            coef = self._newton(rows, coef, classes)
        return _ApproximatePlan(rows, coef, classes)

    def _newton(self, rows: Rows, coef: Floats, classes: Any) -> Floats:
        design = np.column_stack([rows.X, np.ones(len(rows))])
        slope, weights = self._slopes(design @ coef, rows.y, classes)
        gradient = design.T @ slope + self.l2 * coef
        ridge = self.l2 * np.eye(len(coef))
        steps = [
            np.linalg.solve((design * weights[:, [k]]).T @ design + ridge, gradient[:, k])
            for k in range(coef.shape[1])
        ]
        stepped: Floats = coef - np.column_stack(steps)
        return stepped

    def _slopes(self, scores: Floats, y: Any, classes: Any) -> tuple[Floats, Floats]:
        raise NotImplementedError

    def _classes(self, rows: Rows) -> Any:
        return None

    def _scores(self, X: Any) -> Floats:
        coef = self.coef_  # read once: a commit may replace it meanwhile
        noise = np.random.default_rng(self.seed_).normal(scale=self.noise, size=(len(coef), 1))
        scores: Floats = np.column_stack([X, np.ones(len(X))]) @ (coef + noise)
        return scores

    def _install(self, seed: int, rows: Rows, coef: Floats, classes: Any) -> None:
        vars(self).update(
            rows_=rows, coef_=coef, classes_=classes, seed_=seed, **self._remember_settings()
        )

    @property
    def n_rows_(self) -> int:
        return len(self.rows_)

    def _get_ids(self) -> Ids:
        return self.rows_.ids

    def _make_guarantee(self) -> Guarantee:
        return Guarantee(kind="empirical", reference="a toy")

    def _locate_rows(self, wanted: Ids) -> Removal:
        return locate_in(self.rows_, wanted)

    def _prepare(self, removal: Removal) -> _ApproximatePlan:
        rows = self.rows_.without(removal.where)
        classes = self._classes(rows)
        if not np.array_equal(classes, self.classes_):
            return self._from_scratch(rows)
        return _ApproximatePlan(rows, self._newton(rows, self.coef_, classes), classes)

    def _commit(self, plan: Any) -> Outcome:
        self._install(self.seed_, *plan)
        return Outcome(work=0.1)


class NewtonRidge(RegressorMixin, _Newton):
    """Squared loss, for which a Newton step is exact up to rounding."""

    def _slopes(self, scores: Floats, y: Any, classes: Any) -> tuple[Floats, Floats]:
        return scores - y[:, None], np.ones_like(scores)

    def predict(self, X: Any) -> Floats:
        return self._scores(X)[:, 0]


class NewtonLogistic(ClassifierMixin, _Newton):
    """Logistic loss, one class against the others."""

    def _classes(self, rows: Rows) -> Any:
        return np.unique(np.asarray(rows.y))

    def _slopes(self, scores: Floats, y: Any, classes: Any) -> tuple[Floats, Floats]:
        share = _logistic(scores)
        return share - (y[:, None] == classes), share * (1 - share)

    def predict_proba(self, X: Any) -> Floats:
        shares = _logistic(self._scores(X)) + 1e-9
        proba: Floats = shares / shares.sum(axis=1, keepdims=True)
        return proba

    def predict(self, X: Any) -> Any:
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


def _logistic(scores: Floats) -> Floats:
    return 0.5 + 0.5 * np.tanh(scores / 2)
