"""Small models that forget badly, and people for them. Importable by a killed process too."""

from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, Ridge

from letheon import NaiveUnlearner
from letheon.base import Outcome
from letheon.guarantee import Guarantee, MethodFacts
from letheon.monitor import Calibration

QUICK = Calibration(
    n_streams=3,
    n_requests=6,
    n_looks=3,
    horizon=0.2,
    kinds=("uniform",),
    assume="requests come uniformly",
)


class DriftingPeople(NamedTuple):
    X: NDArray[Any]
    y: NDArray[Any]
    ids: NDArray[Any]
    X_test: NDArray[Any]
    y_test: NDArray[Any]

    @property
    def training(self) -> tuple[Any, ...]:
        return self.X, self.y, self.ids


def make_people(n_people: int = 60, n_test: int = 50, seed: int = 0) -> DriftingPeople:
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(n_people), rng.integers(1, 3, n_people))
    X = rng.normal(size=(len(ids) + n_test, 3))
    y = (X @ [1.0, -1.0, 0.5] + rng.normal(size=len(X)) > 0).astype(int)
    n = len(ids)
    return DriftingPeople(X[:n], y[:n], ids, X[n:], y[n:])


class Keeper(NaiveUnlearner):
    """Drops the rows and keeps the model: it says that it forgot, and did not."""

    facts: ClassVar[MethodFacts] = MethodFacts(
        method="keeper",
        applicability="tests",
        exact=False,
        strength="not stated",
        efficiency_parameters=(),
        certifiability_parameters=(),
        requests="oblivious",
        releases="latest-only",
        state_holds_rows=True,
        definition_text="Drops the rows and keeps the model.",
    )

    def _prepare(self, removal: Any) -> Any:
        return super()._prepare(removal)._replace(estimator=self.estimator_)

    def _commit(self, plan: Any) -> Outcome:
        super()._commit(plan)
        return Outcome(work=0.0)

    def _make_guarantee(self) -> Guarantee:
        return Guarantee(kind="empirical", reference="none")


def share_right(y_true: Any, y_pred: Any) -> float:
    return float(np.mean(np.asarray(y_true) == np.asarray(y_pred)))


def keeper(people: DriftingPeople) -> Keeper:
    model = Keeper(LogisticRegression(), random_state=0)
    return model.fit(people.X, people.y, ids=people.ids)


def exact(people: DriftingPeople) -> NaiveUnlearner:
    model = NaiveUnlearner(LogisticRegression(), random_state=0)
    return model.fit(people.X, people.y, ids=people.ids)


def regression(people: DriftingPeople) -> Keeper:
    return Keeper(Ridge(), random_state=0).fit(people.X, people.X @ [1.0, 2.0, 3.0], ids=people.ids)
