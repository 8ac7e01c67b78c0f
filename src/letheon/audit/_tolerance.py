r"""How far two correct fits on the same rows may differ if libraries or kernels differ.

Then bytes may differ, and an operator could blame the libraries for a model that forgot nothing. So
a difference is compared with a bound that follows from the method and the remaining rows:

- *exact*: values that do not depend on rounding (rows, ids, counts, sums, settings, forests);
- *closed form* (means, variances, least squares): rounding bounds for sums in any order, with the
  condition number of the problem (Higham 2002, sections 3.1, 4.2 and 20.1);
- *convex solver* (logistic regression): a solver stops when no entry of the gradient is above
  `tol`. By strong convexity that determines the model up to ``|gradient| / ridge``. The code uses
  the gradient on the remaining rows at the published coefficients, which gives a sharper bound;
- anything else: there is no bound, so no difference is excused.

If a difference exceeds its bound, the level fails. Otherwise the level is skipped; it never passes.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import expit, softmax
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from letheon.ledger.certificates.facts import list_fitted_steps, replay_of
from letheon.naive import NaiveUnlearner
from letheon.preprocessing import KeyedSample
from letheon.search import ForgetSearchCV
from letheon.sharded import SISAClassifier, SISARegressor
from letheon.state import Array, Coded, Instance, Items, Objects, Record, to_bytes
from letheon.state import Scalar as ScalarNode

_MOST = 64
_SHOWN = 3
_LARGEST_COUNT = 2**53
_LARGEST_SEED = 2**128


Numbers = Literal["float", "whole", "count", "seed", "other"]
Limits = dict[str, float]
_SOLVERS = ("lbfgs", "newton-cg", "newton-cholesky")
_SINGULAR = 1e-12
_ROWS = re.compile(r"(^|\.)rows_?\.(X|y|ids)\b")
_LATER_STEP = re.compile(r"(^|\.)fitted_\.steps\[[1-9][0-9]*\]")
_EXACT = re.compile(r"(^|\.)(seed_|parameters_|config_|environment_)($|[.\[])")
# Saved states of shards are separate files; their effect is visible in the final models.
_STATES = re.compile(r"\.states\[[0-9]+\]")


class Difference(NamedTuple):
    """A difference between two models: path, relative size (`gap`), absolute size (`distance`).

    Gap and distance are None if rounding cannot be the cause. `numbers` says what
    differs: "float" or "whole" for arrays of one dtype and shape, "count" for whole numbers of
    ordinary size, "seed" for whole numbers of up to 128 bits, and "other" for anything else.
    """

    place: str
    gap: float | None = None
    numbers: Numbers = "other"
    distance: float | None = None


def list_differences(left: Any, right: Any, most: int | None = _MOST) -> list[Difference]:
    """Return the first `most` differences between two state trees; all if `most` is None."""
    return list(islice(_iter_differences(left, right, ""), most))


def join_places(places: Sequence[str]) -> str:
    """Return the first few places as text, followed by "and elsewhere" if there are more."""
    more = " and elsewhere" if len(places) > _SHOWN else ""
    return f"{', '.join(places[:_SHOWN])}{more}"


def _iter_differences(left: Any, right: Any, place: str) -> Iterator[Difference]:
    mine, theirs = _get_children(left), _get_children(right)
    if type(left) is not type(right) or (mine and theirs and mine[0] != theirs[0]):
        yield Difference(place or "the model")
    elif mine and theirs:
        both = mine[1], theirs[1]
        is_alike = both[0].keys() == both[1].keys()
        for key in both[0] if is_alike else sorted(both[0].keys() | both[1].keys()):
            where = f"{place}{key}" if place else key.removeprefix(".")
            if key in both[0] and key in both[1]:
                yield from _iter_differences(both[0][key], both[1][key], where)
            else:
                yield Difference(where)
    elif to_bytes(left) != to_bytes(right):
        gap, distance = _measure_gap(left, right)
        yield Difference(place or "the model", gap, _classify_numbers(left, right), distance)


def _get_children(node: Any) -> tuple[Any, dict[str, Any]] | None:
    """Return the properties that must be equal, and the child nodes by path; None for a leaf."""
    if type(node) is Record:
        return "", {f".{key}": value for key, value in node.items}
    if type(node) is Instance or type(node) is Coded:
        return node.name, {"": node[1]}
    if type(node) is Items or type(node) is Objects:
        items = {f"[{number}]": item for number, item in enumerate(node.items)}
        return (node[0], len(items)), items
    return None


def _measure_gap(left: Any, right: Any) -> tuple[float | None, float | None]:
    """Return the relative and the absolute difference of two leaves of numbers.

    Whole numbers are not rounded, so their relative difference is None. Both values are None for
    leaves that are not numbers.
    """
    if _classify_numbers(left, right) == "whole":
        whole = [np.frombuffer(node.data, node.dtype).astype(float) for node in (left, right)]
        return None, float(np.abs(whole[0] - whole[1]).max(initial=0.0))
    first, second = read_floats(left), read_floats(right)
    if first is None or second is None or first.shape != second.shape:
        return None, None
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return None, None
    size = max(float(np.abs(first).max(initial=0.0)), float(np.abs(second).max(initial=0.0)))
    distance = float(np.abs(first - second).max(initial=0.0))
    return (distance / size if size else 0.0), distance


def _classify_numbers(left: Any, right: Any) -> Numbers:
    if type(left) is int:
        largest = max(abs(left), abs(right))
        if largest <= _LARGEST_COUNT:
            return "count"
        return "seed" if min(left, right) >= 0 and largest < _LARGEST_SEED else "other"
    if type(left) is float:
        return "float"
    if type(left) is ScalarNode and type(right.value) is type(left.value):
        numbers = _classify_numbers(left.value, right.value)
        return "count" if numbers == "whole" else numbers
    if type(left) is not Array or (left.dtype, left.shape) != (right.dtype, right.shape):
        return "other"
    kind = np.dtype(left.dtype).kind
    return "float" if kind == "f" else "whole" if kind in "iu" else "other"


def read_floats(node: Any) -> NDArray[np.float64] | None:
    """Return the floats of a leaf, or None for other leaves."""
    if type(node) is float:
        return np.array([node])
    if type(node) is ScalarNode:
        return read_floats(node.value)
    if type(node) is Array and np.dtype(node.dtype).kind == "f":
        return np.frombuffer(node.data, node.dtype).astype(np.float64).reshape(node.shape)
    return None


class FittedPart(NamedTuple):
    """A fitted estimator inside a model, its re-derivation, and the rows that it was fitted to.

    `fresh` is None if no tolerance is known for the part at `place`.
    """

    place: str
    audited: Any = None
    fresh: Any = None
    X: Any = None
    y: Any = None


class Judgement(NamedTuple):
    """Places that differ by more than their bound, without a known bound, or within the bound."""

    beyond: list[str]
    unknown: list[str]
    within: list[str]


def judge_differences(model: Any, fresh: Any, differences: Iterable[Difference]) -> Judgement:
    """Classify the differences between a model and its re-derivation."""
    limits = {part.place: derive_limits(part) for part in iter_fitted_parts(model, fresh)}
    own, other = (vars(each).get("environment_", {}) for each in (fresh, model))
    rule = _ToleranceRule(limits, own.get("scikit-learn") != other.get("scikit-learn"))
    judgement = Judgement([], [], [])
    for difference in differences:
        getattr(judgement, rule.judge_difference(difference)).append(difference.place)
    return judgement


class _ToleranceRule(NamedTuple):
    """The rule for judging a difference, from the limits of every fitted part.

    `is_other_version` says whether the model was made with another version of scikit-learn.
    """

    limits: dict[str, Limits | None]
    is_other_version: bool

    def judge_difference(self, difference: Difference) -> str:
        place = difference.place
        inside = [part for part in self.limits if _is_inside(place, part)]
        if _EXACT.search(place):
            return "beyond"
        if _ROWS.search(place):
            is_float = difference.numbers == "float"
            return "unknown" if is_float and _LATER_STEP.search(place) else "beyond"
        if not inside:
            return "unknown" if _STATES.search(place) else "beyond"
        part = max(inside, key=len)
        return self._judge_part(difference, self.limits[part], place[len(part) :].lstrip("."))

    def _judge_part(self, difference: Difference, limits: Limits | None, name: str) -> str:
        # Another version may have other attributes.
        if limits is None or (self.is_other_version and difference.numbers == "other"):
            return "unknown"
        distance = difference.distance
        is_within = distance is not None and name in limits and distance <= limits[name]
        return "within" if is_within else "beyond"


def _is_inside(place: str, outer: str) -> bool:
    return not outer or place == outer or place.startswith((f"{outer}.", f"{outer}["))


def iter_fitted_parts(model: Any, fresh: Any, place: str = "") -> Iterator[FittedPart]:
    """Yield each fitted estimator of a model together with the same one of the re-derived model.

    Steps that other libraries cannot change have no tolerance and are omitted.
    """
    prefix = f"{place}." if place else ""
    steps = list_fitted_steps(fresh)
    if steps is not None:
        audited_steps = list_fitted_steps(model) or {}
        for where, step in steps.items():
            audited = audited_steps.get(where)
            if type(audited) is type(step):
                yield from iter_fitted_parts(audited, step, f"{prefix}{where}")
    elif type(fresh) is ForgetSearchCV:
        yield from _iter_search(model, fresh, prefix)
    elif type(fresh) is KeyedSample:
        # Who is in the sample does not depend on libraries; what is fitted to them may.
        names = ("transformer", "n_outputs", "n_together")
        yield from (FittedPart(f"{prefix}published_.{name}") for name in names)
    elif place and hasattr(fresh, "forget") and replay_of(fresh) == "bitwise":
        return
    elif type(fresh) is NaiveUnlearner:
        X, y = fresh.rows_.slice(0, len(fresh.rows_))
        yield from _iter_estimators(model.estimator_, fresh.estimator_, X, y, f"{prefix}estimator_")
    elif type(fresh) in (SISAClassifier, SISARegressor) and fresh.epochs is None:
        for number, shard in enumerate(fresh.ensemble_.shards):
            audited = model.ensemble_.shards[number].model
            X, y = shard.rows.slice(0, len(shard.rows))
            where = f"{prefix}ensemble_.shards[{number}].model"
            yield from _iter_estimators(audited, shard.model, X, y, where)
    else:
        yield FittedPart(place)


def _iter_search(model: Any, fresh: Any, prefix: str) -> Iterator[FittedPart]:
    # Scores may depend on libraries, and so may the choice; the size of the sample may not.
    yield from (FittedPart(f"{prefix}search_.{name}") for name in ("scores", "best"))
    audited, chosen = (getattr(getattr(m, "search_", None), "best", None) for m in (model, fresh))
    if audited == chosen and type(model.model_) is type(fresh.model_):
        yield from iter_fitted_parts(model.model_, fresh.model_, f"{prefix}model_")
    else:
        yield FittedPart(f"{prefix}model_")


def _iter_estimators(audited: Any, fresh: Any, X: Any, y: Any, place: str) -> Iterator[FittedPart]:
    """Yield a scikit-learn estimator as one part, or each step of a scikit-learn pipeline."""
    if type(fresh) is not Pipeline:
        yield FittedPart(place, audited, fresh, X, y)
        return
    for number, ((_, inner), (_, step)) in enumerate(zip(audited.steps, fresh.steps, strict=True)):
        yield FittedPart(f"{place}.steps[{number}][1]", inner, step, X, y)
        if number < len(fresh.steps) - 1 and hasattr(step, "transform"):
            X = step.transform(X)


def derive_limits(part: FittedPart) -> Limits | None:
    """Return the largest allowed difference of each attribute, or None if no bound is known."""
    derive = _DERIVED.get(type(part.fresh))
    if derive is None or type(part.audited) is not type(part.fresh):
        return None
    try:
        X: Any = part.X if sp.issparse(part.X) else np.asarray(part.X)
        if X.dtype.kind not in "fiub" or len(X.shape) != 2 or X.shape[0] == 0:
            return None
        return derive(part._replace(X=X))
    except (TypeError, ValueError, np.linalg.LinAlgError):
        return None


def _unit_roundoff(X: Any) -> float:
    """Return the unit roundoff of the dtype in which computations on X are done."""
    return float(np.finfo(X.dtype if X.dtype.kind == "f" else np.float64).eps) / 2


def _max_abs(X: Any) -> float:
    return float(abs(X).max()) if X.shape[0] else 0.0


def _bound_moments(X: Any) -> tuple[float, float]:
    """Return how much two computations of the means, and of the variances, of X may differ."""
    unit, n, size = _unit_roundoff(X), X.shape[0], _max_abs(X)
    return 2 * (n + 2) * unit * size, 8 * (2 * n + 8) * unit * size**2


def _limits_of_scaler(part: FittedPart) -> Limits | None:
    if sp.issparse(part.X):
        return None
    mean, var = _bound_moments(part.X)
    least = float(np.min(part.fresh.scale_)) if part.fresh.scale_ is not None else 1.0
    return {"mean_": mean, "var_": var, "scale_": var / max(least, var**0.5) if var else 0.0}


def _limits_of_bayes(part: FittedPart) -> Limits | None:
    if sp.issparse(part.X):
        return None
    mean, var = _bound_moments(part.X)
    spread = float(part.fresh.var_smoothing) * var
    prior = 2 * _unit_roundoff(part.X)
    return {"theta_": mean, "var_": var + spread, "epsilon_": spread, "class_prior_": prior}


def _limits_of_least_squares(part: FittedPart) -> Limits | None:
    fresh, alpha = part.fresh, float(getattr(part.fresh, "alpha", 0.0))
    is_plain = getattr(fresh, "solver", "auto") in ("auto", "cholesky", "svd")
    if sp.issparse(part.X) or fresh.positive or not is_plain:
        return None
    X, y = part.X.astype(np.float64), np.asarray(part.y, np.float64)
    middle = X.mean(axis=0) if fresh.fit_intercept else np.zeros(X.shape[1])
    sizes = np.linalg.svd(X - middle, compute_uv=False)
    top, low = sizes[0] ** 2 + alpha, sizes[-1] ** 2 * (X.shape[0] > X.shape[1]) + alpha
    if low <= _SINGULAR * top:
        return None
    n, p = X.shape
    target = float(np.linalg.norm(y - y.mean() if fresh.fit_intercept else y))
    length = float(np.linalg.norm(fresh.coef_)) + sizes[0] * target / top
    unit = _unit_roundoff(part.X)
    coef = float(16 * n * p * unit * top / low * length)
    shift = 4 * (n + 2) * unit * (_max_abs(y) + _max_abs(X) * float(np.abs(fresh.coef_).sum()))
    singular = 16 * n * p * unit * float(sizes[0])
    intercept = coef * float(np.linalg.norm(middle)) + shift
    return {"coef_": coef, "intercept_": intercept, "singular_": singular}


def _limits_of_logistic(part: FittedPart) -> Limits | None:
    """Return limits for logistic regression.

    Any difference is allowed if the solver could have stopped at the audited coefficients, and no
    difference otherwise. None if no bound is known.
    """
    fresh = part.fresh
    is_ridge = getattr(fresh, "penalty", "l2") in ("l2", "deprecated") and not fresh.l1_ratio
    if not is_ridge or fresh.solver not in _SOLVERS or fresh.class_weight is not None:
        return None
    most = float(fresh.tol) + 64 * _unit_roundoff(part.X) * (1.0 + _max_abs(part.X))
    if not largest_slope(fresh, part) <= most:
        return None  # the solver reached its step limit, so its tolerance does not apply
    is_stop = largest_slope(part.audited, part) <= most
    limit = float("inf") if is_stop else 0.0
    return {"coef_": limit, "intercept_": limit, "n_iter_": float("inf")}


def largest_slope(fitted: Any, part: FittedPart) -> float:
    """Return the largest absolute entry of the gradient of logistic regression.

    The gradient is the one in the stopping rule of the solver, at the coefficients of `fitted`.
    """
    X, classes = part.X, part.fresh.classes_
    W, b = np.asarray(fitted.coef_, np.float64), np.asarray(fitted.intercept_, np.float64)
    scores = np.asarray(X @ W.T) + b
    labels = np.asarray(part.y)
    if len(classes) == 2:
        gaps = expit(scores) - (labels == classes[1])[:, None]
    else:
        gaps = softmax(scores, axis=1) - (labels[:, None] == classes[None, :])
    slopes = np.asarray(gaps.T @ X) / X.shape[0] + W / (float(part.fresh.C) * X.shape[0])
    both = [slopes.ravel(), gaps.mean(axis=0)] if part.fresh.fit_intercept else [slopes.ravel()]
    return float(np.abs(np.concatenate(both)).max())


_DERIVED: dict[type, Callable[[FittedPart], Limits | None]] = {
    StandardScaler: _limits_of_scaler,
    GaussianNB: _limits_of_bayes,
    Ridge: _limits_of_least_squares,
    LinearRegression: _limits_of_least_squares,
    LogisticRegression: _limits_of_logistic,
}
