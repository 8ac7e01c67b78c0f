r"""How far two honest fits on the same rows may be apart where libraries or kernels differ.

Bytes then need not agree, and an operator may say so of a model that forgot nothing. So a
difference is compared with a bound that follows from the method, computed on the rows that remain:

- *exact*: whatever does not depend on rounding (rows, ids, counts, settings, the forest);
- *closed form* (means, variances, least squares): bounds of rounding for sums in any order, with
  the condition number of the problem (Higham 2002, sections 3.1, 4.2 and 20.1);
- *convex solver* (logistic regression): a solver stops where no entry of the gradient is above
  `tol`, and by strong convexity that fixes the model up to ``|gradient| / ridge``. The gradient of
  the remaining rows at the published coefficients is computed itself, which is sharper;
- anything else: nothing is known, so no difference is explained.

Beyond a bound the level fails. Within it the level is skipped, never passed.
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

from letheon.naive import NaiveUnlearner
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
# Saved states of shards are files of their own; what is in them shows in the final models.
_STATES = re.compile(r"\.states\[[0-9]+\]")


class Difference(NamedTuple):
    """A place, and how far its numbers are apart, as a share of the largest of them and as such.

    Gap and distance are None where it is no matter of rounding. `numbers` says whether only values
    differ: "float" or "whole" where both are arrays of one dtype and shape, "count" and "seed"
    where both are one whole number, of ordinary size or of 128 bits; anything else is "other".
    """

    place: str
    gap: float | None = None
    numbers: Numbers = "other"
    distance: float | None = None


def differences(left: Any, right: Any, most: int | None = _MOST) -> list[Difference]:
    """Return where two trees differ, up to a number of places."""
    return list(islice(_walk(left, right, ""), most))


def join_places(places: Sequence[str]) -> str:
    """Return the first places for a sentence."""
    more = " and elsewhere" if len(places) > _SHOWN else ""
    return f"{', '.join(places[:_SHOWN])}{more}"


def _walk(left: Any, right: Any, place: str) -> Iterator[Difference]:
    mine, theirs = _parts(left), _parts(right)
    if type(left) is not type(right) or (mine and theirs and mine[0] != theirs[0]):
        yield Difference(place or "the model")
    elif mine and theirs:
        both = mine[1], theirs[1]
        is_alike = both[0].keys() == both[1].keys()
        for key in both[0] if is_alike else sorted(both[0].keys() | both[1].keys()):
            where = f"{place}{key}" if place else key.removeprefix(".")
            if key in both[0] and key in both[1]:
                yield from _walk(both[0][key], both[1][key], where)
            else:
                yield Difference(where)
    elif to_bytes(left) != to_bytes(right):
        gap, distance = _gap(left, right)
        yield Difference(place or "the model", gap, _numbers(left, right), distance)


def _parts(node: Any) -> tuple[Any, dict[str, Any]] | None:
    """Return what two nodes must share, and the nodes below by place; None for a leaf."""
    if type(node) is Record:
        return "", {f".{key}": value for key, value in node.items}
    if type(node) is Instance or type(node) is Coded:
        return node.name, {"": node[1]}
    if type(node) is Items or type(node) is Objects:
        items = {f"[{number}]": item for number, item in enumerate(node.items)}
        return (node[0], len(items)), items
    return None


def _gap(left: Any, right: Any) -> tuple[float | None, float | None]:
    """Return how far two leaves of numbers are apart, relatively and absolutely.

    Whole numbers have no relative distance: they do not round. None stands for anything else.
    """
    if _numbers(left, right) == "whole":
        whole = [np.frombuffer(node.data, node.dtype).astype(float) for node in (left, right)]
        return None, float(np.abs(whole[0] - whole[1]).max(initial=0.0))
    one, other = floats_of(left), floats_of(right)
    if one is None or other is None or one.shape != other.shape:
        return None, None
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        return None, None
    size = max(float(np.abs(one).max(initial=0.0)), float(np.abs(other).max(initial=0.0)))
    distance = float(np.abs(one - other).max(initial=0.0))
    return (distance / size if size else 0.0), distance


def _numbers(left: Any, right: Any) -> Numbers:
    if type(left) is int:
        largest = max(abs(left), abs(right))
        if largest <= _LARGEST_COUNT:
            return "count"
        return "seed" if min(left, right) >= 0 and largest < _LARGEST_SEED else "other"
    if type(left) is float:
        return "float"
    if type(left) is ScalarNode and type(right.value) is type(left.value):
        numbers = _numbers(left.value, right.value)
        return "count" if numbers == "whole" else numbers
    if type(left) is not Array or (left.dtype, left.shape) != (right.dtype, right.shape):
        return "other"
    kind = np.dtype(left.dtype).kind
    return "float" if kind == "f" else "whole" if kind in "iu" else "other"


def floats_of(node: Any) -> NDArray[np.float64] | None:
    """Return the floats of a leaf, or None."""
    if type(node) is float:
        return np.array([node])
    if type(node) is ScalarNode:
        return floats_of(node.value)
    if type(node) is Array and np.dtype(node.dtype).kind == "f":
        return np.frombuffer(node.data, node.dtype).astype(np.float64).reshape(node.shape)
    return None


class Part(NamedTuple):
    """A fitted estimator inside a model, its re-derivation, and the rows that it was fitted to.

    `fresh` is None where nothing is known about what lies at `place`.
    """

    place: str
    found: Any = None
    fresh: Any = None
    X: Any = None
    y: Any = None


class Judgement(NamedTuple):
    """Places that differ by more than their bound, without a known bound, and within it."""

    beyond: list[str]
    unknown: list[str]
    within: list[str]


def judge_differences(model: Any, fresh: Any, found: Iterable[Difference]) -> Judgement:
    """Compare the differences between a model and its re-derivation with what rounding explains."""
    limits = {part.place: limits_of(part) for part in fitted_parts(model, fresh)}
    here, there = (vars(one).get("environment_", {}) for one in (fresh, model))
    rule = _Rule(limits, here.get("scikit-learn") != there.get("scikit-learn"))
    judgement = Judgement([], [], [])
    for difference in found:
        getattr(judgement, rule.judge(difference)).append(difference.place)
    return judgement


class _Rule(NamedTuple):
    """Limits of every fitted part, and whether scikit-learn is another version."""

    limits: dict[str, Limits | None]
    is_other_version: bool

    def judge(self, difference: Difference) -> str:
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
        # Another version may keep other attributes.
        if limits is None or (self.is_other_version and difference.numbers == "other"):
            return "unknown"
        distance = difference.distance
        is_within = distance is not None and name in limits and distance <= limits[name]
        return "within" if is_within else "beyond"


def _is_inside(place: str, outer: str) -> bool:
    return not outer or place == outer or place.startswith((f"{outer}.", f"{outer}["))


def fitted_parts(model: Any, fresh: Any, place: str = "") -> Iterator[Part]:
    """Yield the fitted estimators of a model beside those of its re-derivation."""
    prefix = f"{place}." if place else ""
    if hasattr(fresh, "steps_"):
        pairs = zip(model.steps_, fresh.steps_, strict=True)
        for number, ((_, found), (_, step)) in enumerate(pairs):
            yield from fitted_parts(found, step, f"{prefix}fitted_.steps[{number}][1]")
    elif type(fresh) is NaiveUnlearner:
        X, y = fresh.rows_.part(0, len(fresh.rows_))
        yield from _estimators(model.estimator_, fresh.estimator_, X, y, f"{prefix}estimator_")
    elif type(fresh) in (SISAClassifier, SISARegressor) and fresh.epochs is None:
        for number, shard in enumerate(fresh.ensemble_.shards):
            found = model.ensemble_.shards[number].model
            X, y = shard.rows.part(0, len(shard.rows))
            where = f"{prefix}ensemble_.shards[{number}].model"
            yield from _estimators(found, shard.model, X, y, where)
    else:
        yield Part(place)


def _estimators(found: Any, fresh: Any, X: Any, y: Any, place: str) -> Iterator[Part]:
    """Yield an estimator of scikit-learn, or the steps of its pipeline."""
    if type(fresh) is not Pipeline:
        yield Part(place, found, fresh, X, y)
        return
    for number, ((_, inner), (_, step)) in enumerate(zip(found.steps, fresh.steps, strict=True)):
        yield Part(f"{place}.steps[{number}][1]", inner, step, X, y)
        if number < len(fresh.steps) - 1 and hasattr(step, "transform"):
            X = step.transform(X)


def limits_of(part: Part) -> Limits | None:
    """Return how far each attribute may be off, or None where no bound is known."""
    derive = _DERIVED.get(type(part.fresh))
    if derive is None or type(part.found) is not type(part.fresh):
        return None
    try:
        X: Any = part.X if sp.issparse(part.X) else np.asarray(part.X)
        if X.dtype.kind not in "fiub" or len(X.shape) != 2 or X.shape[0] == 0:
            return None
        return derive(part._replace(X=X))
    except (TypeError, ValueError, np.linalg.LinAlgError):
        return None


def _rounding_of(X: Any) -> float:
    """Return the unit of rounding of computations on a table."""
    return float(np.finfo(X.dtype if X.dtype.kind == "f" else np.float64).eps) / 2


def _largest(X: Any) -> float:
    return float(abs(X).max()) if X.shape[0] else 0.0


def _moments(X: Any) -> tuple[float, float]:
    """Return how far two computations of a mean, and of a variance, may be apart."""
    unit, n, size = _rounding_of(X), X.shape[0], _largest(X)
    return 2 * (n + 2) * unit * size, 8 * (2 * n + 8) * unit * size**2


def _limits_of_scaler(part: Part) -> Limits | None:
    if sp.issparse(part.X):
        return None
    mean, var = _moments(part.X)
    least = float(np.min(part.fresh.scale_)) if part.fresh.scale_ is not None else 1.0
    return {"mean_": mean, "var_": var, "scale_": var / max(least, var**0.5) if var else 0.0}


def _limits_of_bayes(part: Part) -> Limits | None:
    if sp.issparse(part.X):
        return None
    mean, var = _moments(part.X)
    spread = float(part.fresh.var_smoothing) * var
    prior = 2 * _rounding_of(part.X)
    return {"theta_": mean, "var_": var + spread, "epsilon_": spread, "class_prior_": prior}


def _limits_of_least_squares(part: Part) -> Limits | None:
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
    unit = _rounding_of(part.X)
    coef = float(16 * n * p * unit * top / low * length)
    shift = 4 * (n + 2) * unit * (_largest(y) + _largest(X) * float(np.abs(fresh.coef_).sum()))
    singular = 16 * n * p * unit * float(sizes[0])
    intercept = coef * float(np.linalg.norm(middle)) + shift
    return {"coef_": coef, "intercept_": intercept, "singular_": singular}


def _limits_of_logistic(part: Part) -> Limits | None:
    """The solver could have stopped where the model is, or the model is not of these rows."""
    fresh = part.fresh
    is_ridge = getattr(fresh, "penalty", "l2") in ("l2", "deprecated") and not fresh.l1_ratio
    if not is_ridge or fresh.solver not in _SOLVERS or fresh.class_weight is not None:
        return None
    most = float(fresh.tol) + 64 * _rounding_of(part.X) * (1.0 + _largest(part.X))
    if not largest_slope(fresh, part) <= most:
        return None  # it ran out of steps, so where it stopped is no matter of its tolerance
    is_stop = largest_slope(part.found, part) <= most
    limit = float("inf") if is_stop else 0.0
    return {"coef_": limit, "intercept_": limit, "n_iter_": float("inf")}


def largest_slope(fitted: Any, part: Part) -> float:
    """Return the largest entry of the gradient that a logistic regression's solver looks at."""
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


_DERIVED: dict[type, Callable[[Part], Limits | None]] = {
    StandardScaler: _limits_of_scaler,
    GaussianNB: _limits_of_bayes,
    Ridge: _limits_of_least_squares,
    LinearRegression: _limits_of_least_squares,
    LogisticRegression: _limits_of_logistic,
}
