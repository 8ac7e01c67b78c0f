"""How a wrapper treats the estimator inside it: clone, seeds, errors, tags."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.utils import Tags, assert_all_finite, get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import validate_data

from letheon.exceptions import CannotForgetError, EmptyModelError
from letheon.rows import is_text_column
from letheon.seeds import Purpose, library_seed

_Method = TypeVar("_Method", bound=Callable[..., Any])


def seeded_clone(estimator: Any, seed: int, purpose: Purpose, *parts: int) -> Any:
    """Return an unfitted clone whose every `random_state` is derived from the keyed hash."""
    fresh = clone(estimator)
    _refuse_frozen(fresh)
    SeedSlots(fresh).fill(seed, purpose, *parts)
    return fresh


def _refuse_frozen(estimator: Any) -> None:
    """Raise for a part that `clone` leaves fitted: a retrain would keep what it learned before."""
    nested = [estimator, *estimator.get_params(deep=True).values()]
    if any(isinstance(part, FrozenEstimator) for part in nested):
        raise CannotForgetError(
            f"{type(estimator).__name__} holds a FrozenEstimator, which keeps what it learned "
            "before and cannot forget it; give the estimator inside it, unfitted"
        )


class SeedSlots:
    """Every place in an estimator where a `random_state` stands, found once and set often.

    Splitters inside parameters (a shuffled `KFold`, say) are replaced by copies of their own.
    """

    def __init__(self, estimator: Any) -> None:
        self._slots: list[tuple[str, Any]] = []
        params = estimator.get_params(deep=True)
        for name, value in sorted(params.items()):
            if name == "random_state":
                self._slots.append((name, estimator))
            elif name.endswith("__random_state"):
                self._slots.append((name, params[name.removesuffix("__random_state")]))
            elif hasattr(value, "random_state") and not hasattr(value, "get_params"):
                splitter = deepcopy(value)
                estimator.set_params(**{name: splitter})
                self._slots.append((name, splitter))

    def fill(self, seed: int, purpose: Purpose, *parts: int) -> None:
        """Set every slot from (seed, purpose, parts, parameter name)."""
        for name, owner in self._slots:
            owner.random_state = library_seed(seed, purpose, *parts, name)


@contextmanager
def retraining() -> Iterator[None]:
    """Turn a refusal by the inner `fit` into `EmptyModelError`: a fresh fit would raise too."""
    try:
        yield
    except EmptyModelError:
        raise
    except ValueError as error:
        raise EmptyModelError(
            f"fit on the remaining rows would fail, so nothing was changed: {error}"
        ) from error


def offered_by(find: Callable[[Any], Any]) -> Callable[[_Method], _Method]:
    """Return a decorator: the method exists where what `find` returns has one of that name."""

    def decorate(method: _Method) -> _Method:
        def check(model: Any) -> bool:
            getattr(find(model), method.__name__)
            return True

        offered: _Method = available_if(check)(method)
        return offered

    return decorate


def require_acceptable(estimator: Any, X: Any) -> None:
    """Raise for NaN and infinity where the estimator says it refuses them.

    For rows that the estimator itself is never shown.
    """
    numeric = sp.issparse(X) or (isinstance(X, np.ndarray) and X.dtype.kind == "f")
    if numeric and not get_tags(estimator).input_tags.allow_nan:
        assert_all_finite(X, estimator_name=type(estimator).__name__, input_name="X")


def inherit_tags(tags: Tags, estimator: Any) -> Tags:
    """Copy what the inner estimator can take and do into the wrapper's tags."""
    inner = get_tags(estimator)
    tags.input_tags = inner.input_tags
    tags.target_tags = inner.target_tags
    tags.classifier_tags = inner.classifier_tags
    tags.regressor_tags = inner.regressor_tags
    tags.non_deterministic = inner.non_deterministic
    tags.no_validation = inner.no_validation
    return tags


def remember_features(model: Any, X: Any) -> None:
    """Set `n_features_in_` and `feature_names_in_` as scikit-learn does."""
    if not is_text_column(X):
        validate_data(model, X, skip_check_array=True, reset=True)
