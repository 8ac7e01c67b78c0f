"""Which checks apply to which estimator, and how to run them."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from sklearn.base import is_classifier

from letheon.base import ForgetMixin
from letheon.checks import _conduct, _effect, _exactness, _residue
from letheon.checks._people import ANSWERS, has_secret_noise
from letheon.guarantee import MethodFacts

_OFFERED = ("forget", "digest", "ids_", "n_rows_", "guarantee_", "residual_state_")
_TO_WRITE = ("n_rows_", "_get_ids", "_make_guarantee", "_locate_rows", "_prepare", "_commit")
Check = Callable[[Any], None]
_Test = TypeVar("_Test", bound=Callable[..., None])
_ALWAYS: tuple[Check, ...] = (
    _conduct.check_forget_unknown_id_raises,
    _conduct.check_forget_twice_raises,
    _conduct.check_forget_failure_leaves_model_unchanged,
    _conduct.check_forget_no_ids_is_a_no_op,
    _conduct.check_forget_removes_all_rows_of_a_person,
    _conduct.check_receipt_digest_matches_model,
    _conduct.check_predict_is_pure,
    _conduct.check_predict_while_forgetting,
    _conduct.check_changed_parameters_are_noticed,
    _conduct.check_guarantee_is_honest,
    _residue.check_canary_bytes_absent_from_saved_model,
    _residue.check_aggregates_do_not_reveal_the_row,
    _exactness.check_digest_depends_on_state,
    _exactness.check_save_load_then_forget,
    _effect.check_forget_moves_answers_towards_retrain,
)
_EXACT: tuple[Check, ...] = (
    _exactness.check_forget_equals_retrain,
    _exactness.check_forget_in_one_batch_equals_one_by_one,
    _exactness.check_forget_order_does_not_matter,
    _residue.check_forgotten_values_leave_no_trace,
)
_APPROXIMATE: tuple[Check, ...] = (
    _effect.check_forget_law_close_to_retrain,
    _effect.check_certificate_bounds_the_leak,
)


def require_forgetting_estimator(estimator: Any) -> None:
    """Raise a TypeError that lists all missing parts of a forgetting estimator."""
    if isinstance(estimator, type):
        raise TypeError(f"{estimator.__name__} is a class; pass an unfitted instance")
    lacking = [
        f"{name}(): derive it from sklearn.base.BaseEstimator"
        for name in ("get_params", "set_params", "__sklearn_tags__")
        if not hasattr(estimator, name)
    ]
    if not any(hasattr(estimator, name) for name in ANSWERS):
        lacking.append(f"an output method: one of {', '.join(ANSWERS)}")
    lacking += _list_missing(estimator)
    if lacking:
        listed = "".join(f"\n- {lack}" for lack in lacking)
        raise TypeError(
            f"{type(estimator).__name__} is not a forgetting estimator; it lacks:"
            f"{listed}\nWrap a scikit-learn estimator (NaiveUnlearner(...), SISAClassifier(...)), "
            "or derive your own class from letheon.base.ForgetMixin and BaseEstimator."
        )


def _list_missing(estimator: Any) -> list[str]:
    kind = type(estimator)
    lacking = []
    if not isinstance(getattr(estimator, "facts", None), MethodFacts):
        lacking.append("facts: a letheon.guarantee.MethodFacts that declares the method")
    parameters = _list_parameters(estimator, "fit")
    if not any(each.name == "ids" or each.kind is each.VAR_KEYWORD for each in parameters):
        lacking.append("fit(X, y, *, ids=None): the id of each row")
    for name in ("fit", "learn"):
        # A positional argument after y could be confused with ids.
        parameters = _list_parameters(estimator, name)
        by_position = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        late = ", ".join(by_position[2:])
        if late:
            lacking.append(f"{name}(X, y, *, {late}): keyword-only parameters after y")
    if isinstance(estimator, ForgetMixin):
        left = [n for n in _TO_WRITE if getattr(kind, n, None) is getattr(ForgetMixin, n, None)]
        return lacking + [f"{name}: not implemented" for name in left]
    absent = [name for name in _OFFERED if not hasattr(kind, name)]
    alike = (
        f", which provides {', '.join(absent)}" if absent else " (its methods alone are not enough)"
    )
    return [f"letheon.base.ForgetMixin among its bases{alike}", *lacking]


def _list_parameters(estimator: Any, name: str) -> Iterable[inspect.Parameter]:
    """Return the parameters of a method; empty if there is no such method."""
    method = getattr(estimator, name, None)
    return inspect.signature(method).parameters.values() if callable(method) else ()


def yield_checks(estimator: Any) -> Iterator[Check]:
    """Return an iterator over the checks that apply to this estimator.

    Parameters
    ----------
    estimator : forgetting estimator
        Unfitted.

    Returns
    -------
    iterator of callable
        Each check is a function of the estimator.

    Raises
    ------
    TypeError
        `estimator` is not a forgetting estimator; the message lists what is missing.

    Examples
    --------
    >>> from letheon import NearestCentroid
    >>> names = [check.__name__ for check in yield_checks(NearestCentroid())]
    >>> "check_forget_equals_retrain" in names
    True
    """
    require_forgetting_estimator(estimator)
    is_exact = estimator.facts.exact
    checks = [*_ALWAYS, *(_EXACT if is_exact else _APPROXIMATE)]
    if is_exact and hasattr(estimator, "learn"):
        checks.append(_exactness.check_learn_equals_fit)
    if has_secret_noise(estimator):
        checks.append(_residue.check_noise_stays_secret)
    if is_classifier(estimator):
        checks.append(_conduct.check_forget_last_of_class)
    return iter(checks)


def check_forgetting_estimator(estimator: Any) -> None:
    """Run all applicable checks; raise AssertionError at the first failure.

    Parameters
    ----------
    estimator : forgetting estimator
        Unfitted; every check fits clones of it on small synthetic data.

    Raises
    ------
    AssertionError
        A check fails.
    TypeError
        `estimator` is not a forgetting estimator; the message lists what is missing.

    Examples
    --------
    >>> from letheon import NearestCentroid
    >>> check_forgetting_estimator(NearestCentroid())
    """
    for check in yield_checks(estimator):
        check(estimator)


def parametrize_with_checks(estimators: Iterable[Any]) -> Callable[[_Test], _Test]:
    """Return a pytest decorator that runs a test once for each (estimator, check) pair.

    Parameters
    ----------
    estimators : iterable of forgetting estimators
        Unfitted.

    Returns
    -------
    callable
        Decorator of a test with the arguments `estimator` and `check`.

    Raises
    ------
    TypeError
        An estimator is not a forgetting estimator.

    Examples
    --------
    >>> from letheon import NearestCentroid
    >>> @parametrize_with_checks([NearestCentroid()])
    ... def test_forgetting(estimator, check):
    ...     check(estimator)
    """
    import pytest

    cases = [
        pytest.param(estimator, check, id=f"{estimator!r}-{check.__name__}".replace("\n", ""))
        for estimator in estimators
        for check in yield_checks(estimator)
    ]
    mark: Callable[[_Test], _Test] = pytest.mark.parametrize(("estimator", "check"), cases)
    return mark
