"""Helpers for wrappers of an inner estimator: clones, seeds, errors, tags, data independence.

A transformer can be declared as data-independent: it learns nothing from the rows. The declaration
is compared with a list of known classes and tested: clones fitted on different rows must have equal
states, and the output for a row must not depend on other rows.
"""

import logging
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from importlib.metadata import PackageNotFoundError, version
from inspect import signature
from typing import Any, NamedTuple, TypeVar

import joblib
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn import config_context, get_config
from sklearn.base import BaseEstimator, clone, is_classifier, is_regressor
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.pipeline import Pipeline
from sklearn.utils import (
    Tags,
    assert_all_finite,
    check_random_state,
    get_tags,
    indexable,
    shuffle,
)
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import validate_data

from letheon import state
from letheon.data import Rows, is_text_column
from letheon.exceptions import (
    CannotForgetError,
    EmptyModelError,
    LetheonError,
    UnsupportedStateError,
)
from letheon.parallel import one_thread
from letheon.seeds import Purpose, library_seed

_logger = logging.getLogger(__name__)

# Rows of a trial fit: enough for most estimators, and few enough to be fast.
_FEW_ROWS = 32
# The only transformers of scikit-learn whose `fit` can be independent of the rows.
_CAN_BE_INDEPENDENT = (
    "AdditiveChi2Sampler Binarizer ColumnTransformer CountVectorizer FeatureHasher FeatureUnion "
    "FunctionTransformer GaussianRandomProjection HashingVectorizer MissingIndicator Normalizer "
    "OneHotEncoder OrdinalEncoder Pipeline PolynomialCountSketch PolynomialFeatures RBFSampler "
    "SimpleImputer SkewedChi2Sampler SparseRandomProjection SplineTransformer"
)
# Settings that make them learn from rows.
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
_WEIGHTS = "sample_weight"
_ALONE = 3
_training_lock = threading.RLock()
_Method = TypeVar("_Method", bound=Callable[..., Any])


def clone_with_seed(estimator: Any, seed: int, purpose: Purpose, *parts: int) -> Any:
    """Return an unfitted clone with derived seeds.

    Every `random_state` in the clone is derived from a keyed hash of the seed, the purpose, `parts`
    and the parameter's path. Estimators of XGBoost and LightGBM get repeatable settings.

    Raises
    ------
    CannotForgetError
        A nested estimator stays fitted in a clone, so retraining would keep what it learned; or a
        nested estimator draws noise that cannot be repeated, so a retrained model would differ.
    """
    fresh = clone(estimator)
    for _, part, params in iter_estimators(fresh):
        if isinstance(part, FrozenEstimator):
            raise CannotForgetError(
                f"{type(fresh).__name__} contains a FrozenEstimator, which keeps what it learned "
                "and cannot forget; pass the inner estimator unfitted instead"
            )
        if params.get("noise_seed", 0) is None:
            raise CannotForgetError(
                f"{type(part).__name__} draws secret noise, so no two fits are equal, and an "
                f"exact method cannot wrap it. Use {type(part).__name__} without a wrapper, "
                "because it can forget"
            )
        state.fix_settings(part)
    SeedSlots(fresh).fill(seed, purpose, *parts)
    return fresh


class NestedEstimator(NamedTuple):
    """Estimator inside another one, with its path in the outermost one and its own parameters."""

    path: str
    estimator: Any
    params: dict[str, Any]


def iter_estimators(estimator: Any, path: str = "") -> Iterator[NestedEstimator]:
    """Yield an estimator and all estimators nested in its parameters, even in lists and dicts."""
    params = estimator.get_params(deep=False)
    yield NestedEstimator(path, estimator, params)
    for name in sorted(params):
        yield from _iter_nested(params[name], f"{path}{name}__")


def _iter_nested(value: Any, path: str) -> Iterator[NestedEstimator]:
    if isinstance(value, str | int | float | type | None):
        return
    if hasattr(value, "get_params"):
        yield from iter_estimators(value, path)
    elif isinstance(value, list | tuple):
        for position, part in enumerate(value):
            yield from _iter_nested(part, f"{path}{position}__")
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _iter_nested(part, f"{path}{key}__")


class SeedSlots:
    """All `random_state` parameters in an estimator.

    Splitters among the parameters (such as a shuffled `KFold`) are replaced with copies, so that
    their seeds can be set.
    """

    def __init__(self, estimator: Any) -> None:
        self._slots: list[tuple[str, Any]] = []
        for path, part, params in iter_estimators(estimator):
            for name, value in sorted(params.items()):
                if name == "random_state":
                    self._slots.append((path + name, part))
                elif hasattr(value, "random_state") and not hasattr(value, "get_params"):
                    splitter = deepcopy(value)
                    part.set_params(**{name: splitter})
                    self._slots.append((path + name, splitter))

    def fill(self, seed: int, purpose: Purpose, *parts: int) -> None:
        """Set every `random_state` to a hash of the seed, the purpose, `parts` and its path."""
        for path, owner in self._slots:
            owner.random_state = library_seed(seed, purpose, *parts, path)


def refuse_nested_files(estimator: Any) -> None:
    """Raise `CannotForgetError` if a nested estimator stores its states in files.

    Files of a nested model cannot be destroyed reliably.
    """
    for part in iter_estimators(estimator):
        if part.params.get("checkpoint_dir") is not None:
            raise CannotForgetError(
                f"{type(part.estimator).__name__} inside another estimator has checkpoint_dir "
                "set, but files of a nested model cannot be destroyed reliably; set "
                "checkpoint_dir=None"
            )


def refuse_unencodable(estimator: Any, rows: Rows, seed: int, config: dict[str, Any]) -> None:
    """Raise an error before training if the trained model would have no repeatable digest.

    The state of a class that is not on the allow-list is known only after a fit. Therefore two
    clones are fitted on a few rows, and their digests must be equal. If such a trial fails (for
    example because it has too few rows), `require_encodable` still checks the trained model.
    """
    state.ensure_supported(estimator)
    for part in iter_estimators(estimator):
        state.require_repeatable(part.estimator)
    if len(rows) <= _FEW_ROWS or _is_surely_encodable(estimator, rows):
        return
    few = rows.take(np.linspace(0, len(rows) - 1, _FEW_ROWS).astype(np.int64))
    try:
        trial = again = _fit_trial(estimator, few, seed, config)
        if not state.has_listed_classes(estimator):
            again = _fit_trial(estimator, few, seed, config)
    except Exception:  # noqa: BLE001 - of the trial only; training raises the error again
        return
    require_encodable(trial, estimator, rows)
    if state.digest(trial) != state.digest(again):
        raise CannotForgetError(
            f"two fits of {type(estimator).__name__} on the same rows differ, so digests cannot "
            "be compared. Draw random numbers from random_state, and store no times, counters or "
            "results of earlier fits"
        )


def _fit_trial(estimator: Any, few: Rows, seed: int, config: dict[str, Any]) -> Any:
    trial = clone_with_seed(estimator, seed, Purpose.RETRAIN)
    with fix_environment(config, library_seed(seed, Purpose.RETRAIN)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return trial.fit(*few.slice(0, len(few)))


def require_encodable(model: Any, estimator: Any, rows: Rows) -> None:
    """Raise `UnsupportedStateError` unless a trained model can be saved and have a digest.

    `model` is the result of fitting `estimator` on these rows.
    """
    if _is_surely_encodable(estimator, rows):
        return
    try:
        state.ensure_supported(model)
    except UnsupportedStateError as error:
        raise UnsupportedStateError(
            f"{type(estimator).__name__} cannot be saved or have a digest once it is fitted; "
            f"nothing was changed: {error}"
        ) from error


def _is_surely_encodable(estimator: Any, rows: Rows) -> bool:
    """Return whether the classes and the type of the rows guarantee that there is a digest."""
    is_array = isinstance(rows.X, np.ndarray) or sp.issparse(rows.X)
    return is_array and state.has_listed_classes(estimator)


def versions_of(estimator: Any) -> dict[str, str]:
    """Return the versions of the packages that the estimator and its parts come from."""
    kinds = {type(part.estimator) for part in iter_estimators(estimator)}
    packages = {kind.__module__.partition(".")[0] for kind in kinds}
    versions = {}
    for package in sorted(packages - {"sklearn", "letheon"}):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:  # a distribution with another name, such as xgboost-cpu
            with suppress(AttributeError, KeyError):
                versions[package] = str(sys.modules[package].__version__)
    return versions


@contextmanager
def fix_environment(config: dict[str, Any], seed: int) -> Iterator[None]:
    """Fix everything outside an estimator that could change what it learns.

    Inside the context, BLAS and OpenMP use one thread, joblib runs no parallel loops (the order of
    sums would vary), and scikit-learn has the settings of the first fit. The global generators of
    Python and NumPy are seeded, and restored afterwards. Because they are global, only one thread
    of a process can train at a time.
    """
    shared = check_random_state(None)
    with (
        one_thread(),
        joblib.parallel_config(backend="sequential"),
        config_context(**config),
        _training_lock,
    ):
        before = shared.get_state(), random.getstate()
        try:
            seed_globally(seed)
            yield
        finally:
            shared.set_state(before[0])
            random.setstate(before[1])


def seed_globally(seed: int) -> None:
    """Seed Python's and NumPy's global generators. Use it only inside `fix_environment`."""
    check_random_state(None).seed(seed)  # the generator of np.random.rand etc.
    random.seed(seed)


_NOTE = "raised by the estimator inside"


@contextmanager
def inner_training(name: str) -> Iterator[None]:
    """Add a note to errors of the inner estimator that names the wrapper `name`; log its time."""
    start = time.perf_counter()
    try:
        yield
    except Exception as error:
        error.add_note(f"{_NOTE} {name}")
        raise
    seconds = time.perf_counter() - start
    _logger.debug("trained the estimator inside %s: %.3g s", name.partition(";")[0], seconds)


@contextmanager
def refuse_impossible_removals() -> Iterator[None]:
    """Turn a ValueError into `EmptyModelError`: a fit on the remaining rows would fail."""
    try:
        yield
    except LetheonError:
        raise
    except ValueError as error:
        raise EmptyModelError(
            f"fit on the remaining rows would fail, so nothing was changed: {error}"
        ) from error


@contextmanager
def translate_fit_errors() -> Iterator[None]:
    """Turn errors of the inner `fit` into `EmptyModelError`.

    A fresh fit on the remaining rows would fail too.
    """
    try:
        yield
    except (LetheonError, OSError, MemoryError):
        raise
    except Exception as error:
        if not any(note.startswith(_NOTE) for note in getattr(error, "__notes__", ())):
            raise
        raise EmptyModelError(
            f"fit on the remaining rows would fail, so nothing was changed: {error}"
        ) from error


def available_from(find: Callable[[Any], Any]) -> Callable[[_Method], _Method]:
    """Return a decorator that hides a method unless the object from `find` has the same method."""

    def decorate(method: _Method) -> _Method:
        def has_method(model: Any) -> bool:
            getattr(find(model), method.__name__)
            return True

        available: _Method = available_if(has_method)(method)
        return available

    return decorate


def require_acceptable(estimator: Any, X: Any) -> None:
    """Raise `ValueError` for NaN and infinity if the tags of the estimator do not allow them.

    Use this function for rows that are not passed to the estimator itself.
    """
    numeric = sp.issparse(X) or (isinstance(X, np.ndarray) and X.dtype.kind == "f")
    if numeric and not get_tags(estimator).input_tags.allow_nan:
        assert_all_finite(X, estimator_name=type(estimator).__name__, input_name="X")


def inherit_tags(tags: Tags, estimator: Any) -> Tags:
    """Copy the tags of the inner estimator into the tags of the wrapper, and return these."""
    inner = get_tags(estimator)
    tags.input_tags = inner.input_tags
    tags.target_tags = inner.target_tags
    tags.classifier_tags = inner.classifier_tags
    tags.regressor_tags = inner.regressor_tags
    tags.non_deterministic = inner.non_deterministic
    tags.no_validation = inner.no_validation
    return tags


def require_features(model: Any, X: Any) -> None:
    """Raise `ValueError` unless X has the columns that the model was fitted with."""
    if not is_text_column(X):
        validate_data(model, X, skip_check_array=True, reset=False)


def remember_features(model: Any, X: Any) -> None:
    """Set `n_features_in_` and `feature_names_in_` of the model from X, like scikit-learn."""
    if not is_text_column(X):
        validate_data(model, X, skip_check_array=True, reset=True)


def require_copy(prototype: Any, copy: Any) -> Any:
    """Return the clone `copy`; raise `TypeError` if it is not a new object of the same class."""
    if copy is prototype or type(copy) is not type(prototype):
        name = type(prototype).__name__
        returned = "the same object" if copy is prototype else f"a {type(copy).__name__}"
        raise TypeError(
            f"clone of a {name} returned {returned}; expected a new {name}. Remove or correct "
            f"{name}.__sklearn_clone__"
        )
    return copy


def fresh_copy(prototype: Any, seed: int) -> Any:
    """Return an unfitted copy with this seed and without a checkpoint directory.

    The copy may be trained on rows that the original forgets later or never had. Therefore neither
    the copy nor a nested estimator may write states to the `checkpoint_dir` of the original.

    Parameters
    ----------
    prototype : estimator
        The estimator to clone; it is not changed.
    seed : int
        The new `random_state`. If the estimator has no such parameter (a pipeline), every nested
        `random_state` is derived from the seed and the path of the parameter.

    Returns
    -------
    estimator
    """
    copy = require_copy(prototype, clone(prototype))
    parts = list(iter_estimators(copy))
    for part in parts:
        if part.params.get("checkpoint_dir") is not None:
            part.estimator.set_params(checkpoint_dir=None)
    if "random_state" in parts[0].params:
        return copy.set_params(random_state=seed)
    SeedSlots(copy).fill(seed, Purpose.STEP)
    return copy


def find_learner(transformer: Any) -> str:
    """Return which part of a transformer of scikit-learn learns from rows; empty if none does."""
    for _, part, params in iter_estimators(transformer):
        if not type(part).__module__.startswith("sklearn."):
            continue
        kind = type(part).__name__
        setting, learning = _LEARNS_WITH.get(kind, ("", ()))
        value = params.get(setting)
        if kind not in _CAN_BE_INDEPENDENT.split():
            return kind
        if isinstance(value, str | None) and value in learning:
            return f"{kind}({setting}={value!r})"
    return ""


def refuse_learner(transformer: Any) -> None:
    """Raise `CannotForgetError` if the transformer or a part of it is known to learn from rows."""
    learner = find_learner(transformer)
    if learner:
        raise _no_independence(transformer, f"the fit of {learner} depends on the rows")


def _no_independence(transformer: Any, reason: str) -> CannotForgetError:
    kind = type(transformer).__name__
    return CannotForgetError(
        f"{kind} is not data-independent: {reason}, so it would keep information about forgotten "
        f"rows. Use NaiveUnlearner({kind}(...)) as the step, or put the whole Pipeline inside "
        "SISAClassifier or NaiveUnlearner"
    )


def explain_unforgettable(model: Any) -> CannotForgetError:
    """Return the error for a model without `forget`; its text says what to do instead."""
    kind = type(model).__name__
    if not isinstance(model, BaseEstimator):
        return CannotForgetError(f"{kind} cannot forget; expected a model of letheon")
    name, reason = f"{kind}(...)", ""
    if isinstance(model, Pipeline):
        kind, name = "a plain Pipeline", "pipeline"
        reason = ": its steps keep what they learned from the rows"
    convert = f"Convert it before fitting, letheon.convert({name}), or "
    if isinstance(model, GridSearchCV | RandomizedSearchCV):
        reason = ": its parameters were chosen on the rows"
        convert += "use letheon.ForgetSearchCV(estimator, param_grid) with an estimator of letheon"
        return CannotForgetError(f"{kind} cannot forget{reason}. {convert}")
    try:
        state.ensure_supported(model)
    except UnsupportedStateError as error:
        return CannotForgetError(f"{kind} cannot forget: {error}")
    shards = ["SISAClassifier"] * is_classifier(model) + ["SISARegressor"] * is_regressor(model)
    wrapped = " or ".join(f"{wrapper}({name})" for wrapper in [*shards, "NaiveUnlearner"])
    return CannotForgetError(f"{kind} cannot forget{reason}. {convert}wrap it, {wrapped}")


def require_independence(fresh: Any, fitted: Any, X: Any, y: Any) -> None:
    """Raise `CannotForgetError` if a transformer is not data-independent.

    Clones of `fresh` must be equal after fits on different rows, and the output of `fitted` for a
    row must not depend on other rows.
    """
    expected = state.digest(fitted)
    X, y = indexable(X, y)
    few = min(_TRIAL_ROWS, _count_rows(X))
    with fix_environment(get_config(), library_seed(0, Purpose.STEP)), warnings.catch_warnings():
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
            raise _no_independence(fresh, "its output for a row changes with the rows of the fit")
        if state.digest(fitted) != expected:
            raise _no_independence(fresh, "its state changes when it transforms rows")


def transform_alone(transformer: Any, X: Any) -> Any:
    """Transform all rows and return the output.

    Raise `CannotForgetError` if the output for a row depends on other rows.
    """
    n_rows = _count_rows(X)
    # `shuffle` copies: a transformer may work in place.
    rows, positions = shuffle(X, np.arange(n_rows), n_samples=min(_ALONE, n_rows), random_state=0)
    together = transformer.transform(X)
    for number, position in enumerate(positions):
        alone = _as_array(transformer.transform(rows[number : number + 1]))
        is_complete = _count_rows(together) == n_rows
        if not is_complete or not _is_close(alone, _as_array(together[position : position + 1])):
            inner = getattr(transformer, "transformer", transformer)
            raise _no_independence(inner, "its output for a row depends on other rows")
    return together


def _count_rows(X: Any) -> int:
    return int(X.shape[0]) if hasattr(X, "shape") else len(X)


def _draw_rows(X: Any, y: Any, size: int, seed: int) -> tuple[Any, Any]:
    if y is None:
        return shuffle(X, n_samples=size, random_state=seed), None
    rows, labels = shuffle(X, y, n_samples=size, random_state=seed)
    return rows, labels


def _digest_of_fit(fresh: Any, X: Any, y: Any) -> str | None:
    """Return the digest of a clone fitted on these rows, or None if the fit fails."""
    try:
        return state.digest(clone(fresh).fit(X, y))
    except Exception:  # noqa: BLE001 - a trial may have too few rows
        return None


def _as_array(table: Any) -> Any:
    return table.toarray() if sp.issparse(table) else np.asarray(table)


def _is_close(a: Any, b: Any) -> bool:
    if a.dtype.kind in "biuf" and b.dtype.kind in "biuf":
        return a.shape == b.shape and np.allclose(a, b, rtol=1e-5, equal_nan=True)
    return np.array_equal(a, b)


def add_weights(estimator: Any, rows: Rows, sample_weight: Any, method: str = "fit") -> Rows:
    """Return rows with their weights, without the rows of weight 0.

    Parameters
    ----------
    estimator : estimator
        The inner estimator, whose `method` takes the weights.
    rows : Rows
        The rows.
    sample_weight : array-like of shape (n_rows,) or None
        The weights; None returns the rows unchanged.
    method : {"fit", "partial_fit"}
        The method that trains the estimator.

    Raises
    ------
    TypeError
        The estimator takes no weights.
    ValueError
        The weights are not finite numbers of at least 0, one per row, or all of them are 0.
    """
    if sample_weight is None:
        return rows
    if _WEIGHTS not in signature(getattr(estimator, method)).parameters:
        raise TypeError(
            f"sample_weight was given, but {type(estimator).__name__}.{method} does not accept it; "
            "omit it, or use an estimator that accepts it"
        )
    weights = np.array(sample_weight, np.float64)
    if weights.shape != (len(rows),) or not (np.isfinite(weights) & (weights >= 0)).all():
        raise ValueError(
            f"sample_weight has shape {weights.shape} or contains NaN, infinity or negative "
            f"numbers; expected {len(rows)} finite numbers of at least 0"
        )
    if not weights.any():
        raise ValueError("Sample weights must contain at least one non-zero number.")
    weighted = Rows(rows.X, rows.y, rows.ids, {**rows.extra, _WEIGHTS: weights})
    return weighted if weights.all() else weighted.take(np.flatnonzero(weights))


def slice_weights(rows: Rows, begin: int, end: int) -> dict[str, NDArray[np.float64]]:
    """Return the weights of some rows as an argument of `fit`; empty without weights."""
    values = rows.extra.get(_WEIGHTS)
    return {} if values is None else {_WEIGHTS: values[begin:end].copy()}
