"""An estimator that cannot be checked is told everything it lacks, at once."""

from typing import Any

import pytest
from sklearn.base import BaseEstimator
from sklearn.linear_model import LogisticRegression

from letheon import NaiveUnlearner
from letheon.base import ForgetMixin
from letheon.checks import check_forgetting_estimator, parametrize_with_checks, yield_checks


class Duck:
    """Has some of the names."""

    def fit(self, X: Any, y: Any, ids: Any = None) -> Any: ...
    def predict(self, X: Any) -> Any: ...
    def forget(self, ids: Any) -> Any: ...
    def digest(self) -> Any: ...


class Unfinished(ForgetMixin, BaseEstimator):
    """Begun, not finished."""

    def fit(self, X: Any, y: Any) -> Any: ...
    def _prepare(self, removal: Any) -> Any: ...


def _lacks(estimator: Any) -> str:
    with pytest.raises(TypeError, match="not a forgetting estimator") as caught:
        yield_checks(estimator)
    return str(caught.value)


def test_a_plain_estimator_is_told_to_be_wrapped() -> None:
    text = _lacks(LogisticRegression())
    for part in ("ForgetMixin", "forget", "digest", "ids_", "MethodFacts", "ids=None", "Naive"):
        assert part in text
    assert "get_params" not in text


def test_a_duck_lacks_the_mixin_and_the_base() -> None:
    text = _lacks(Duck())
    for part in ("ForgetMixin", "get_params", "set_params", "MethodFacts", "guarantee_"):
        assert part in text
    assert "ids=None" not in text
    assert "- fit(X, y, *, ids): keyword-only parameters after y" in text


def test_an_unfinished_method_is_told_what_to_write() -> None:
    text = _lacks(Unfinished())
    for part in (
        "_commit: not",
        "_make_guarantee: not",
        "n_rows_: not",
        "MethodFacts",
        "ids=None",
    ):
        assert part in text
    assert "_prepare" not in text
    assert "an output method: one of predict" in text


@pytest.mark.parametrize(
    "run", [check_forgetting_estimator, lambda e: parametrize_with_checks([e])]
)
def test_every_entry_says_so(run: Any) -> None:
    with pytest.raises(TypeError, match="LogisticRegression is not a forgetting estimator"):
        run(LogisticRegression())


def test_a_class_is_no_instance() -> None:
    with pytest.raises(TypeError, match="NaiveUnlearner is a class; pass an unfitted instance"):
        yield_checks(NaiveUnlearner)
