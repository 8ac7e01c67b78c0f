"""Negative controls: models that claim to forget but do not. An attack must detect them."""

from copy import deepcopy
from typing import Any, ClassVar, NamedTuple, Self

from sklearn.utils.metaestimators import available_if

from letheon.base import Outcome, Removal
from letheon.data import Rows
from letheon.exceptions import CannotForgetError
from letheon.guarantee import Guarantee, MethodFacts
from letheon.inner_estimator import (
    fix_environment,
    inner_training,
    slice_weights,
    translate_fit_errors,
)
from letheon.naive import NaiveUnlearner
from letheon.seeds import Purpose, library_seed


def _control_facts(method: str, applicability: str, behaviour: str) -> MethodFacts:
    return MethodFacts(
        method=method,
        applicability=applicability,
        exact=False,
        strength="not stated",
        efficiency_parameters=(),
        certifiability_parameters=(),
        requests="oblivious",
        releases="latest-only",
        state_holds_rows=True,
        definition_text=(
            f"Negative control. This method does NOT forget. {behaviour} It exists so that "
            "an attack can be shown to find a model that kept what it should have forgotten. "
            "Never use it to answer a request."
        ),
    )


class _ControlRemoval(NamedTuple):
    """The remaining rows, and an estimator that was trained on the removed rows too."""

    rows: Rows
    estimator: Any


class _Control(NaiveUnlearner):
    """Base class of the controls: removes rows, but keeps an estimator that was fitted on them."""

    @available_if(lambda _: False)
    def learn(self, X: Any, y: Any = None, *, ids: Any, sample_weight: Any = None) -> Self:
        """Raise AttributeError: to learn, the estimator would be fitted again and would forget."""
        raise NotImplementedError

    def _make_guarantee(self) -> Guarantee:
        return Guarantee(
            kind="empirical",
            reference="none: a negative control, which does not forget",
            requests=self.facts.requests,
            releases=self.facts.releases,
            residual_state=("estimator_",),
        )


class KeepsEverything(_Control):
    """Negative control that claims to forget, but keeps the same fitted estimator.

    The rows are removed from its table, so receipts, `ids_` and `n_rows_` look correct. Only an
    attack on the model reveals that nothing was forgotten.

    Parameters
    ----------
    estimator : estimator
        Any estimator; fitted once.
    random_state : int, RandomState, Generator or None, default=None
        Seed of everything random.

    Notes
    -----
    Guarantee: none. It does not forget.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> from letheon.measures.attacks import KeepsEverything
    >>> X, y = load_iris(return_X_y=True)
    >>> model = KeepsEverything(DecisionTreeClassifier(), random_state=0).fit(X, y)
    >>> model.forget([7]).guarantee.reference
    'none: a negative control, which does not forget'
    """

    facts: ClassVar[MethodFacts] = _control_facts(
        "keeps everything (control)",
        "any estimator",
        "On a request it drops the rows from its table and keeps the fitted model.",
    )

    def _prepare(self, removal: Removal) -> Any:
        return _ControlRemoval(self.rows_.without(removal.where), self.estimator_)

    def _commit(self, plan: Any) -> Outcome:
        super()._commit(plan)
        return Outcome(work=0.0)


class FineTuneOnly(_Control):
    """Negative control that continues training on the remaining rows.

    It relies on "catastrophic forgetting": further training on other rows is supposed to overwrite
    the forgotten ones. In fact the model retains memorised rows for a long time.

    Parameters
    ----------
    estimator : estimator with `partial_fit`
        Fitted once, then trained further with `partial_fit`.
    n_passes : int, default=1
        Passes over the remaining rows per request.
    random_state : int, RandomState, Generator or None, default=None
        Seed of everything random.

    Attributes
    ----------
    n_fit_passes_ : int or None
        Passes of `fit`, or None if the estimator does not count them. `Receipt.work` is the passes
        of a removal divided by this number.

    Notes
    -----
    Guarantee: none. It does not forget.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import SGDClassifier
    >>> from letheon.measures.attacks import FineTuneOnly
    >>> X, y = load_iris(return_X_y=True)
    >>> model = FineTuneOnly(SGDClassifier(), random_state=0).fit(X, y)
    >>> model.forget([7]).rebuilt
    {'passes': 1}
    """

    facts: ClassVar[MethodFacts] = _control_facts(
        "fine-tune only (control)",
        "estimators with partial_fit",
        "On a request it trains the fitted model on for a few passes over the remaining rows.",
    )

    n_fit_passes_: Any

    def __init__(self, estimator: Any, *, n_passes: int = 1, random_state: Any = None) -> None:
        super().__init__(estimator, random_state=random_state)
        self.n_passes = n_passes

    def fit(self, X: Any, y: Any = None, *, ids: Any = None, sample_weight: Any = None) -> Self:
        """Fit the estimator on all rows and keep the rows; see `NaiveUnlearner.fit`."""
        if not hasattr(self.estimator, "partial_fit"):
            raise CannotForgetError(
                f"FineTuneOnly needs an estimator with partial_fit, such as SGDClassifier; "
                f"{type(self.estimator).__name__} has none"
            )
        if self.n_passes < 1:
            raise ValueError(f"n_passes must be at least 1, not {self.n_passes}")
        super().fit(X, y, ids=ids, sample_weight=sample_weight)
        # A later `partial_fit` may overwrite the count.
        self.n_fit_passes_ = getattr(self.estimator_, "n_iter_", None)
        return self

    def _prepare(self, removal: Removal) -> Any:
        rows = self.rows_.without(removal.where)
        with translate_fit_errors():
            return _ControlRemoval(rows, self._train_further(rows))

    def _train_further(self, rows: Rows) -> Any:
        """Return a copy of the estimator after further passes over these rows."""
        estimator, seed = deepcopy(self.estimator_), library_seed(self.seed_, Purpose.RETRAIN)
        with fix_environment(self.config_, seed), inner_training("it"):
            for _ in range(self.n_passes):
                weights = slice_weights(rows, 0, len(rows))
                estimator.partial_fit(*rows.slice(0, len(rows)), **weights)
        return estimator

    def _commit(self, plan: Any) -> Outcome:
        super()._commit(plan)
        counted, passes = isinstance(self.n_fit_passes_, int), {"passes": self.n_passes}
        return Outcome(work=self.n_passes / self.n_fit_passes_ if counted else 1.0, rebuilt=passes)
