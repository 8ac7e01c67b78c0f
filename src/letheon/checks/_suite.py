"""Which checks apply to which estimator, and how to run them."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from sklearn.base import is_classifier

from letheon.checks import (
    _certificates,
    _conduct,
    _digests,
    _effect,
    _exactness,
    _parameters,
    _readers,
    _residue,
    _secrecy,
)
from letheon.checks._people import has_noise
from letheon.checks._requirements import require_forgetting_estimator

Check = Callable[[Any], None]
_Test = TypeVar("_Test", bound=Callable[..., None])

_ALWAYS: tuple[Check, ...] = (
    _conduct.check_forget_unknown_id_raises,
    _conduct.check_forget_twice_raises,
    _conduct.check_forget_failure_leaves_model_unchanged,
    _conduct.check_forget_nobody_is_a_no_op,
    _conduct.check_forget_removes_all_rows_of_a_person,
    _conduct.check_receipt_digest_matches_model,
    _conduct.check_predict_is_pure,
    _readers.check_predict_while_forgetting,
    _parameters.check_changed_parameters_are_noticed,
    _conduct.check_guarantee_is_honest,
    _residue.check_canary_bytes_absent_from_saved_model,
    _residue.check_aggregates_do_not_reveal_the_row,
    _digests.check_digest_depends_on_state,
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
    _certificates.check_certificate_bounds_the_leak,
)


def yield_checks(estimator: Any) -> Iterator[Check]:
    """Return the checks that apply to this estimator, one after the other.

    Raises
    ------
    TypeError
        It is no forgetting estimator; the text lists everything that it lacks.
    """
    require_forgetting_estimator(estimator)
    return iter(_applicable(estimator))


def _applicable(estimator: Any) -> list[Check]:
    checks = [*_ALWAYS]
    if estimator.facts.exact:
        checks += _EXACT
        if hasattr(estimator, "learn"):
            checks.append(_exactness.check_learn_equals_fit)
    else:
        checks += _APPROXIMATE
    if has_noise(estimator):
        checks.append(_secrecy.check_noise_stays_secret)
    if is_classifier(estimator):
        checks.append(_conduct.check_forget_last_of_class)
    return checks


def check_forgetting_estimator(estimator: Any) -> None:
    """Run every check that applies; raise AssertionError at the first that fails.

    Parameters
    ----------
    estimator : forgetting estimator
        Unfitted; every check fits clones of it on small made-up data.
    """
    for check in yield_checks(estimator):
        check(estimator)


def parametrize_with_checks(estimators: Iterable[Any]) -> Callable[[_Test], _Test]:
    """Return a pytest decorator that gives a test each (estimator, check)."""
    import pytest

    cases = [
        pytest.param(estimator, check, id=f"{estimator!r}-{check.__name__}".replace("\n", ""))
        for estimator in estimators
        for check in yield_checks(estimator)
    ]
    mark: Callable[[_Test], _Test] = pytest.mark.parametrize(("estimator", "check"), cases)
    return mark
