"""What an estimator must have before it makes sense to check how it forgets."""

import inspect
from typing import Any

from letheon.base import ForgetMixin
from letheon.guarantee import MethodFacts

_OFFERED = ("forget", "digest", "ids_", "n_rows_", "guarantee_", "residual_state_")
_TO_WRITE = ("n_rows_", "_held_ids", "_claim", "_locate", "_prepare", "_commit")
_ANSWERS = ("predict", "predict_proba", "transform")


def require_forgetting_estimator(estimator: Any) -> None:
    """Raise one TypeError that says everything the estimator lacks."""
    if isinstance(estimator, type):
        raise TypeError(f"{estimator.__name__} is a class; give an instance, unfitted")
    lacking = [*_of_scikit_learn(estimator), *_of_letheon(estimator)]
    if lacking:
        listed = "".join(f"\n- {lack}" for lack in lacking)
        raise TypeError(
            f"{type(estimator).__name__} is no forgetting estimator that can be checked; it lacks:"
            f"{listed}\nWrap a scikit-learn estimator (NaiveUnlearner(...), SISAClassifier(...)), "
            "or derive your own class from letheon.base.ForgetMixin and BaseEstimator."
        )


def _of_scikit_learn(estimator: Any) -> list[str]:
    lacking = [
        f"{name}(): derive it from sklearn.base.BaseEstimator"
        for name in ("get_params", "set_params", "__sklearn_tags__")
        if not hasattr(estimator, name)
    ]
    if not any(hasattr(estimator, name) for name in _ANSWERS):
        lacking.append(f"a way to answer: one of {', '.join(_ANSWERS)}")
    return lacking


def _of_letheon(estimator: Any) -> list[str]:
    kind = type(estimator)
    lacking = []
    if not isinstance(getattr(estimator, "facts", None), MethodFacts):
        lacking.append("facts: a letheon.guarantee.MethodFacts that declares the method")
    if not _takes_ids(estimator):
        lacking.append("fit(X, y, *, ids=None): ids say whose row each is")
    lacking += [line for name in ("fit", "learn") for line in _positional(estimator, name)]
    if isinstance(estimator, ForgetMixin):
        return lacking + [f"{name}: still to be written" for name in _TO_WRITE if _open(kind, name)]
    absent = [name for name in _OFFERED if not hasattr(kind, name)]
    alike = (
        f", which brings {', '.join(absent)}" if absent else " (to have its names is not enough)"
    )
    return [f"letheon.base.ForgetMixin among its bases{alike}", *lacking]


def _takes_ids(estimator: Any) -> bool:
    if not callable(getattr(estimator, "fit", None)):
        return False
    parameters = inspect.signature(estimator.fit).parameters.values()
    return any(each.name == "ids" or each.kind is each.VAR_KEYWORD for each in parameters)


def _positional(estimator: Any, name: str) -> list[str]:
    """Say which arguments after y could be given by position, where ids could be taken for them."""
    method = getattr(estimator, name, None)
    parameters = inspect.signature(method).parameters.values() if callable(method) else ()
    by_position = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    late = ", ".join(by_position[2:])
    return [f"{name}(X, y, *, {late}): everything after y by keyword only"] if late else []


def _open(kind: type, name: str) -> bool:
    """Whether a class leaves a part of the contract to its subclasses."""
    return getattr(kind, name, None) is getattr(ForgetMixin, name, None)
