"""Whether a transformer that is declared to learn nothing from rows keeps its word.

A known list and a trial: clones that are fitted on different rows must hold equal states, and a row
must come out the same alone and among others.
"""

import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn import get_config
from sklearn.base import clone
from sklearn.utils import indexable, shuffle

from letheon import state
from letheon.exceptions import CannotForgetError
from letheon.inner import controlled, parts_of
from letheon.seeds import Purpose, library_seed

# Transformers of scikit-learn whose `fit` can do without the values of rows; others cannot.
_CAN_DO_WITHOUT_ROWS = (
    "AdditiveChi2Sampler Binarizer ColumnTransformer CountVectorizer FeatureHasher FeatureUnion "
    "FunctionTransformer GaussianRandomProjection HashingVectorizer MissingIndicator Normalizer "
    "OneHotEncoder OrdinalEncoder Pipeline PolynomialCountSketch PolynomialFeatures RBFSampler "
    "SimpleImputer SkewedChi2Sampler SparseRandomProjection SplineTransformer"
)
# Settings with which they learn from rows all the same.
_LEARNS_WITH: dict[str, tuple[str, tuple[str | None, ...]]] = {
    "CountVectorizer": ("vocabulary", (None,)),
    "GaussianRandomProjection": ("n_components", ("auto",)),
    "MissingIndicator": ("features", ("missing-only",)),
    "OneHotEncoder": ("categories", ("auto",)),
    "OrdinalEncoder": ("categories", ("auto",)),
    "SimpleImputer": ("strategy", ("mean", "median", "most_frequent")),
    "SparseRandomProjection": ("n_components", ("auto",)),
    "SplineTransformer": ("knots", ("uniform", "quantile")),
}
_TRIAL_ROWS = 64
_ALONE = 3


def refuse_learner(transformer: Any) -> None:
    """Raise for a transformer that is known to learn from rows, at any depth."""
    for _, part, params in parts_of(transformer):
        if not type(part).__module__.startswith("sklearn."):
            continue
        kind = type(part).__name__
        setting, learning = _LEARNS_WITH.get(kind, ("", ()))
        value = params.get(setting)
        if kind not in _CAN_DO_WITHOUT_ROWS.split():
            raise _no_independence(transformer, f"the fit of {kind} depends on the rows")
        if isinstance(value, str | None) and value in learning:
            raise _no_independence(
                transformer, f"the fit of {kind}({setting}={value!r}) depends on the rows"
            )


def _no_independence(transformer: Any, reason: str) -> CannotForgetError:
    kind = type(transformer).__name__
    return CannotForgetError(
        f"{kind} is not data-independent: {reason}, so what it keeps of people would stay when "
        f"they are forgotten. Use NaiveUnlearner({kind}(...)) as the step, or put the whole "
        "Pipeline inside SISAClassifier or NaiveUnlearner"
    )


def require_independence(fresh: Any, fitted: Any, X: Any, y: Any) -> None:
    """Raise if clones of `fresh` learn different things from different rows, or rows are mixed."""
    expected = state.digest(fitted)
    X, y = indexable(X, y)
    few = min(_TRIAL_ROWS, _count_rows(X))
    with controlled(get_config(), library_seed(0, Purpose.STEP)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = transform_alone(fitted, _draw_rows(X, y, few, 0)[0])
        samples = enumerate((few, (few + 1) // 2, 1, 1, 1))
        digests = {_digest_of_fit(fresh, *_draw_rows(X, y, size, seed)) for seed, size in samples}
        if digests - {None} != {expected}:
            raise _no_independence(fresh, "fits on different rows differ")
        rows, labels = _draw_rows(X, y, few, 0)
        if isinstance(rows, np.ndarray) and rows.dtype.kind in "iuf":
            altered = (rows * 2 + 1).astype(rows.dtype)
            if _digest_of_fit(fresh, altered, labels) not in {expected, None}:
                raise _no_independence(fresh, "fits on different values differ")
        after = fitted.transform(_draw_rows(X, y, few, 0)[0])
        if not _is_close(_as_array(before), _as_array(after)):
            raise _no_independence(fresh, "fits on other rows change what it makes of a row")
        if state.digest(fitted) != expected:
            raise _no_independence(fresh, "it learns when it transforms")


def transform_alone(transformer: Any, X: Any) -> Any:
    """Transform all rows; raise if some of them come out otherwise than alone."""
    n_rows = _count_rows(X)
    # Copies: a transformer may work in place.
    rows, places = shuffle(X, np.arange(n_rows), n_samples=min(_ALONE, n_rows), random_state=0)
    together = transformer.transform(X)
    for number, place in enumerate(places):
        alone = _as_array(transformer.transform(rows[number : number + 1]))
        is_complete = _count_rows(together) == n_rows
        if not is_complete or not _is_close(alone, _as_array(together[place : place + 1])):
            inner = getattr(transformer, "transformer", transformer)
            raise _no_independence(inner, "what it makes of a row depends on other rows")
    return together


def _count_rows(X: Any) -> int:
    return int(X.shape[0]) if hasattr(X, "shape") else len(X)


def _draw_rows(X: Any, y: Any, size: int, seed: int) -> tuple[Any, Any]:
    if y is None:
        return shuffle(X, n_samples=size, random_state=seed), None
    rows, labels = shuffle(X, y, n_samples=size, random_state=seed)
    return rows, labels


def _digest_of_fit(fresh: Any, X: Any, y: Any) -> str | None:
    """Digest of a clone that was fitted on these rows, None if it cannot be."""
    try:
        return state.digest(clone(fresh).fit(X, y))
    except Exception:  # noqa: BLE001 - a trial may have too few rows
        return None


def _as_array(table: Any) -> Any:
    return table.toarray() if sp.issparse(table) else np.asarray(table)


def _is_close(one: Any, other: Any) -> bool:
    if one.dtype.kind in "biuf" and other.dtype.kind in "biuf":
        return one.shape == other.shape and np.allclose(one, other, rtol=1e-5, equal_nan=True)
    return np.array_equal(one, other)
