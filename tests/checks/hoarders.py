"""Estimators that keep something of old rows in an attribute that no digest covers."""

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from letheon import NaiveUnlearner
from letheon.guarantee import Guarantee, MethodFacts


class Hoarder(NaiveUnlearner):
    """Base of them all; keeps what `_hoard` makes of the first rows."""

    _not_digested: ClassVar[frozenset[str]] = NaiveUnlearner._not_digested | {"attic_"}
    attic_: Any

    def fit(self, X: Any, y: Any = None, *, ids: Any = None, sample_weight: Any = None) -> Any:
        super().fit(X, y, ids=ids, sample_weight=sample_weight)
        self.attic_ = self._hoard(np.asarray(X, float), np.asarray(y), ids)
        return self

    def _hoard(self, X: Any, y: Any, ids: Any) -> Any:
        raise NotImplementedError


class ApproximateHoarder(Hoarder):
    """As before, by a method that claims less."""

    facts: ClassVar[MethodFacts] = replace(
        NaiveUnlearner.facts, exact=False, certificate="empirical"
    )

    def _make_guarantee(self) -> Guarantee:
        return Guarantee(kind="empirical", reference="none")


class KeepsTheRow(Hoarder):
    def _hoard(self, X: Any, y: Any, ids: Any) -> Any:
        return X.copy()


class ApproximatelyKeepsTheRow(KeepsTheRow, ApproximateHoarder):
    pass


class KeepsTheId(Hoarder):
    def _hoard(self, X: Any, y: Any, ids: Any) -> Any:
        return [str(name) for name in ids]


class ApproximatelyKeepsTheId(KeepsTheId, ApproximateHoarder):
    pass


class KeepsNumbers(Hoarder):
    def _hoard(self, X: Any, y: Any, ids: Any) -> Any:
        return X.tolist()


class ApproximatelyKeepsNumbers(KeepsNumbers, ApproximateHoarder):
    pass


class KeepsText(Hoarder):
    def _hoard(self, X: Any, y: Any, ids: Any) -> Any:
        return " ".join(repr(float(value)) for value in X[-1])


class ApproximatelyKeepsText(KeepsText, ApproximateHoarder):
    pass


class KeepsOneNumber(Hoarder):
    def _hoard(self, X: Any, y: Any, ids: Any) -> Any:
        return float(X[-1, 2])


class ApproximatelyKeepsOneNumber(KeepsOneNumber, ApproximateHoarder):
    pass


class KeepsSinglePrecision(Hoarder):
    def _hoard(self, X: Any, y: Any, ids: Any) -> Any:
        return X[-1].astype(">f4")


class ApproximatelyKeepsSinglePrecision(KeepsSinglePrecision, ApproximateHoarder):
    pass


class KeepsHexadecimal(Hoarder):
    def _hoard(self, X: Any, y: Any, ids: Any) -> Any:
        return ">" + X[-1].tobytes().hex()


class ApproximatelyKeepsHexadecimal(KeepsHexadecimal, ApproximateHoarder):
    pass


class KeepsTheTargets(Hoarder):
    def _hoard(self, X: Any, y: Any, ids: Any) -> Any:
        return y.copy()


class ApproximatelyKeepsTheTargets(KeepsTheTargets, ApproximateHoarder):
    pass


class KeepsTheSum(Hoarder):
    def _hoard(self, X: Any, y: Any, ids: Any) -> Any:
        return X.sum(axis=0)


class ApproximatelyKeepsTheSum(KeepsTheSum, ApproximateHoarder):
    pass


class KeepsTheMean(Hoarder):
    def _hoard(self, X: Any, y: Any, ids: Any) -> Any:
        return X.mean(axis=0)


class ApproximatelyKeepsTheMean(KeepsTheMean, ApproximateHoarder):
    pass


class KeepsTheSecondMoment(Hoarder):
    def _hoard(self, X: Any, y: Any, ids: Any) -> Any:
        return X.T @ X


class ApproximatelyKeepsTheSecondMoment(KeepsTheSecondMoment, ApproximateHoarder):
    pass


class KeepsTheRidge(Hoarder):
    def _hoard(self, X: Any, y: Any, ids: Any) -> Any:
        return X.T @ X + np.eye(X.shape[1])


class ApproximatelyKeepsTheRidge(KeepsTheRidge, ApproximateHoarder):
    pass


class KeepsTheCovariance(Hoarder):
    def _hoard(self, X: Any, y: Any, ids: Any) -> Any:
        return np.cov(X.T)


class ApproximatelyKeepsTheCovariance(KeepsTheCovariance, ApproximateHoarder):
    pass


class KeepsThePlainCovariance(Hoarder):
    def _hoard(self, X: Any, y: Any, ids: Any) -> Any:
        return np.cov(X.T, ddof=0)


class ApproximatelyKeepsThePlainCovariance(KeepsThePlainCovariance, ApproximateHoarder):
    pass


class KeepsTheCholeskyFactor(Hoarder):
    def _hoard(self, X: Any, y: Any, ids: Any) -> Any:
        return np.linalg.cholesky(X.T @ X + np.eye(X.shape[1]))


class ApproximatelyKeepsTheCholeskyFactor(KeepsTheCholeskyFactor, ApproximateHoarder):
    pass


class KeepsTheInverse(Hoarder):
    def _hoard(self, X: Any, y: Any, ids: Any) -> Any:
        return np.linalg.inv(X.T @ X + np.eye(X.shape[1]))


class ApproximatelyKeepsTheInverse(KeepsTheInverse, ApproximateHoarder):
    pass


class KeepsTheProduct(Hoarder):
    def _hoard(self, X: Any, y: Any, ids: Any) -> Any:
        return X.T @ y


class ApproximatelyKeepsTheProduct(KeepsTheProduct, ApproximateHoarder):
    pass


class KeepsTheGramWithIntercept(Hoarder):
    def _hoard(self, X: Any, y: Any, ids: Any) -> Any:
        return _with_intercept(X).T @ _with_intercept(X)


class ApproximatelyKeepsTheGramWithIntercept(KeepsTheGramWithIntercept, ApproximateHoarder):
    pass


class KeepsTheGradient(Hoarder):
    def _hoard(self, X: Any, y: Any, ids: Any) -> Any:
        return X.T @ (X @ self.estimator_.coef_ - y)


class KeepsTheNorm(Hoarder):
    def _hoard(self, X: Any, y: Any, ids: Any) -> Any:
        return float(np.linalg.norm(X))


class KeepsARank(Hoarder):
    def _hoard(self, X: Any, y: Any, ids: Any) -> Any:
        return int(np.argsort(X[:, 0])[0])


class KeepsALoss(Hoarder):
    def _hoard(self, X: Any, y: Any, ids: Any) -> Any:
        return [float(np.mean((self.estimator_.predict(X) - y) ** 2))]


def _with_intercept(X: Any) -> Any:
    return np.column_stack([X, np.ones(len(X))])
