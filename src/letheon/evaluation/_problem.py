"""Inputs of an evaluation: rows with their ids, the metric, and the requests."""

import math
import operator
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn import metrics
from sklearn.base import clone, is_regressor
from sklearn.metrics import mean_absolute_error, r2_score

from letheon.data import People, as_ids
from letheon.datasets import Dataset, Requests
from letheon.exceptions import IdsTypeError
from letheon.guarantee import Task
from letheon.scoring import balanced_accuracy

# Seeds are reported elsewhere, threads are not used, and paths depend on the machine.
_LEFT_OUT = frozenset({"random_state", "noise_seed", "n_jobs", "checkpoint_dir"})
_PLAIN = (bool, int, str, type(None))


def describe_function(function: Any) -> str:
    """Return the name of a function, with the arguments of a partial.

    For any other callable, return the name of its class.
    """
    if isinstance(function, partial):
        arguments = [str(_to_text(value)) for value in function.args]
        arguments += [f"{name}={_to_text(value)}" for name, value in function.keywords.items()]
        return f"{describe_function(function.func)}({', '.join(arguments)})"
    return str(getattr(function, "__name__", type(function).__name__))


def list_settings(estimator: Any) -> dict[str, Any]:
    """Return the parameters of an estimator that differ from their defaults, objects as texts."""
    try:
        usual = clone(type(estimator)()).get_params(deep=False)
    except TypeError:  # The inner estimator has no default.
        usual = {}
    return {
        name: _to_text(value)
        for name, value in estimator.get_params(deep=False).items()
        if name not in _LEFT_OUT
        and not isinstance(value, os.PathLike)
        and not _is_equal(value, usual.get(name))
    }


def _to_text(value: Any) -> Any:
    """Return a plain value unchanged, and any other value as a text."""
    number = value.item() if isinstance(value, np.number | np.bool) else value
    # JSON has no infinite numbers.
    if isinstance(number, _PLAIN) or (isinstance(number, float) and math.isfinite(number)):
        return number
    if isinstance(value, list | tuple):
        return f"[{', '.join(str(_to_text(part)) for part in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_to_text(part)}' for key, part in value.items())}}}"
    if hasattr(value, "get_params") and not isinstance(value, type):
        settings = ", ".join(f"{name}={part!r}" for name, part in list_settings(value).items())
        return f"{type(value).__name__}({settings})"
    if callable(value):
        return describe_function(value)
    # The repr of an object, unless it contains a path or a memory address.
    is_quiet = isinstance(value, os.PathLike | np.ndarray) or " at 0x" in repr(value)
    return type(value).__name__ if is_quiet else repr(number)


def _is_equal(value: Any, usual: Any) -> bool:
    same = value is usual or (type(value) is type(usual) and value == usual)
    return bool(np.all(same))


Metric = Callable[[Any, Any], Any]
# Suffixes of scikit-learn metrics for which lower is better.
_LOWER_IS_BETTER = ("_loss", "_error", "_deviance")


class MetricFailedError(ValueError):
    """The metric raised an error."""


def accuracy(y_true: Any, y_pred: Any) -> float:
    """Return the share of correct labels, without the input checks of scikit-learn's version."""
    return float(np.mean(np.asarray(y_true) == np.asarray(y_pred)))


def choose_metrics(metric: Any, is_regression: bool) -> tuple[Metric, Metric, str]:
    """Return the metric for test rows, the metric for forgotten rows, and the name of the first.

    R2 is undefined for a single row, so the default for forgotten rows in regression is the mean
    absolute error. Forgotten rows may lack a class, so balanced accuracy is not used for them.
    """
    if metric is balanced_accuracy:
        return balanced_accuracy, accuracy, "balanced accuracy"
    if metric is not None:
        require_function(metric)
        function = metric
        while isinstance(function, partial):
            function = function.func
        if describe_function(function).endswith(_LOWER_IS_BETTER):
            raise ValueError(
                f"lower values of metric {describe_function(function)} are better; expected a "
                "metric whose higher values are better. Pass a function that returns the "
                "negative value"
            )
        return metric, metric, describe_function(metric).replace("_score", "").replace("_", " ")
    if is_regression:
        return r2_score, mean_absolute_error, "r2"
    return accuracy, accuracy, "accuracy"


def require_function(metric: Any) -> None:
    """Raise `TypeError` unless `metric` is a function of true and predicted values.

    Parameters
    ----------
    metric : object
        The value to check.

    Raises
    ------
    TypeError
        `metric` is a class, a scorer of scikit-learn, or not callable.

    Examples
    --------
    >>> from sklearn.metrics import f1_score
    >>> require_function(f1_score)
    >>> require_function("f1")
    Traceback (most recent call last):
    TypeError: metric must be a function of (y_true, y_pred), such as sklearn.metrics.f1_score; ...
    """
    is_scorer = hasattr(metric, "_score_func")  # A scorer of scikit-learn takes a model.
    if not callable(metric) or isinstance(metric, type) or is_scorer:
        hint = f"{metric}_score" if hasattr(metrics, f"{metric}_score") else "f1_score"
        raise TypeError(
            f"metric must be a function of (y_true, y_pred), such as sklearn.metrics.{hint}; "
            f"got {metric!r}"
        )


_TEST_SHARE = 0.25


@dataclass(frozen=True)
class LearningProblem:
    """Training rows, test rows and metric.

    Parameters
    ----------
    name : str
        Name of the data.
    train, test : People
        The rows.
    metric, forgotten_metric : callable
        The metric, and the one for forgotten rows.
    metric_name : str
        Name of the metric.
    is_regression : bool
        Whether the targets are numbers.
    n_held_out : int
        Number of people held out of the training rows for testing.

    Examples
    --------
    >>> from letheon import NearestCentroid
    >>> data = np.arange(80.0).reshape(40, 2), np.repeat([0, 1], 20)
    >>> problem = LearningProblem.from_args(NearestCentroid(), data, 0.25, None, 0)
    >>> problem.metric_name, len(problem.train), len(problem.test)
    ('accuracy', 30, 10)
    """

    name: str
    train: People
    test: People
    metric: Metric
    forgotten_metric: Metric
    metric_name: str
    is_regression: bool
    n_held_out: int = 0

    @classmethod
    def from_args(
        cls, unlearner: Any, data: Any, test: Any, metric: Metric | None, seed: int
    ) -> "LearningProblem":
        """Return the problem that the arguments of `evaluate` describe."""
        is_regression = bool(is_regressor(unlearner))
        judgement = choose_metrics(metric, is_regression)
        name, train, test_rows = _read_data(data)
        if test is not None and not isinstance(test, float):
            if not isinstance(test, tuple | list):
                raise TypeError(
                    "test must be (X, y), (X, y, ids) or a share such as 0.25, not "
                    f"{type(test).__name__}"
                )
            test_rows = _test_rows(*test)
        n_held_out = 0
        if test_rows is None:
            train, test_rows = _split_people(train, _TEST_SHARE if test is None else test, seed)
            n_held_out = len(np.unique(test_rows.ids))
        _require_target(name, train.y, unlearner)
        # A person may have training and test rows; forgotten people lose their test rows too.
        return cls(name, train, test_rows, *judgement, is_regression, n_held_out)

    @staticmethod
    def require_finite(value: Any, n_rows: int) -> float:
        """Return a score of `n_rows` rows as a number; raise `ValueError` if it is not finite."""
        number = float(value)
        if not np.isfinite(number):
            raise ValueError(
                f"the metric is {number} on {n_rows} row(s); pass a metric that is finite for "
                "these rows"
            )
        return number

    def score_predictions(self, y_true: Any, y_pred: Any) -> float:
        """Return the metric of predictions; raise an error if it fails or is not finite."""
        try:
            value = self.metric(y_true, y_pred)
        except Exception as error:
            raise MetricFailedError(
                f"the metric {self.metric_name} fails on these labels and predictions: {error}"
            ) from error
        return self.require_finite(value, len(y_true))

    def score(self, model: Any, rows: People) -> float:
        """Return the metric of a model on some rows."""
        return self.score_predictions(rows.y, model.predict(rows.X))


def _read_data(data: Any) -> tuple[str, People, People | None]:
    if isinstance(data, Dataset):
        test = None
        if data.X_test is not None:
            test = _test_rows(data.X_test, data.y_test, data.test_ids)
        return data.name, _check_rows(data.name, data.X, data.y, data.ids), test
    if isinstance(data, tuple | list) and len(data) in (2, 3):
        return "data", _check_rows("data", *data), None
    raise TypeError(
        f"data must be (X, y), (X, y, ids) or a letheon.datasets.Dataset, not {type(data).__name__}"
    )


def _check_rows(name: str, X: Any, y: Any, ids: Any = None) -> People:
    if X is None or y is None:
        raise ValueError(f"{name} has no X or no y; both are required")
    X = np.asarray(X) if isinstance(X, list | tuple) else X
    X = X.tocsr() if sparse.issparse(X) else X
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels.ravel()
    if labels.ndim != 1:
        raise ValueError(f"{name}: y has shape {labels.shape}; expected one dimension")
    if X.shape[0] != len(labels):
        raise ValueError(f"{name}: X has {X.shape[0]} rows, but y has {len(labels)} values")
    owners = np.arange(len(labels)) if ids is None else np.asarray(ids)
    missing = [n for n, owner in enumerate(owners.tolist()) if _is_missing(owner)]
    if missing:
        raise IdsTypeError(
            f"{name}: ids has {len(missing):,} missing value(s), the first in row {missing[0]}; "
            "expected an id for every row"
        )
    as_ids(owners)  # Raises for types other than int and str.
    if len(owners) != len(labels):
        raise ValueError(f"{name}: ids has {len(owners)} entries, but there are {len(labels)} rows")
    return People(X, labels, owners)


def _is_missing(value: Any) -> bool:
    is_nan = isinstance(value, float) and np.isnan(value)
    # pandas has its own missing values, and may not be installed.
    return value is None or is_nan or type(value).__name__ in ("NAType", "NaTType")


def _require_target(name: str, y: NDArray[Any], unlearner: Any) -> None:
    """Raise `ValueError` for strings in regression, or for a single class in classification."""
    if not is_regressor(unlearner):
        classes = np.unique(y)
        if len(classes) < 2:
            raise ValueError(
                f"{name}: all training rows have the class {classes.tolist()[0]!r}; a classifier "
                "needs at least two classes"
            )
        return
    words = [value for value in y.tolist() if isinstance(value, str)]
    if words:
        raise ValueError(
            f"{name}: {type(unlearner).__name__} is a regressor and needs numbers, but y contains "
            f"strings ({', '.join(map(repr, sorted(set(words))[:2]))})"
        )


def _test_rows(X: Any, y: Any, ids: Any = None) -> People:
    """Return test rows. Without ids, they belong to people who have no training rows."""
    return replace(_check_rows("test", X, y, ids), has_owners=ids is not None)


def _split_people(rows: People, share: float, seed: int) -> tuple[People, People]:
    """Return training and test rows, split by person: no person has rows in both."""
    if not 0 < share < 1:
        raise ValueError(f"test={share!r} is invalid; expected a share between 0 and 1")
    people = np.unique(rows.ids)
    if len(people) < 2:
        raise ValueError(
            "the data has fewer than two people, so it cannot be split into training and test "
            "rows; pass test rows as test="
        )
    order = np.random.default_rng(seed).permutation(people)
    held_out = order[: max(1, round(share * len(people)))]
    return rows.without(held_out), rows.rows_of(held_out)


_ADAPTIVE = ("worst", "adaptive")


class RequestPlan(NamedTuple):
    """The requests of every trial.

    `stream` takes a model and a seed and yields the ids of each request. `sizes` has the number of
    people of each request, and `words` describes the requests. `is_adaptive` means that the
    requests depend on the model, `is_fixed` that every trial forgets the same people.
    """

    stream: Callable[[Any, int], Iterable[NDArray[Any]]]
    sizes: tuple[int, ...]
    words: str
    is_adaptive: bool = False
    is_fixed: bool = False

    @classmethod
    def from_argument(cls, requests: Any, problem: LearningProblem) -> "RequestPlan":
        """Return the plan for the argument `requests` of `evaluate`."""
        if isinstance(requests, Real):
            requests = Requests(
                n=operator.index(requests) if isinstance(requests, Integral) else float(requests)
            )
        if not isinstance(requests, Requests):
            return cls._from_ids(requests, problem)
        train, n_people = problem.train, len(np.unique(problem.train.ids))
        task: Task = "regression" if problem.is_regression else "classification"

        def stream(model: Any, seed: int) -> Any:
            return requests.stream(model, train.X, train.y, train.ids, seed=seed, task=task)

        try:
            sizes = tuple(requests.sizes(n_people))
        except ValueError as error:
            raise ValueError(f"{error}{_describe_held_out(problem)}") from None
        words = f"{sum(sizes):,} of {n_people:,} people in {len(sizes):,} request(s), "
        is_adaptive = requests.kind in _ADAPTIVE
        return cls(stream, sizes, words + requests.kind, is_adaptive=is_adaptive)

    @classmethod
    def _from_ids(cls, requests: Any, problem: LearningProblem) -> "RequestPlan":
        fixed = [np.atleast_1d(np.asarray(request)) for request in requests]
        ids = np.concatenate(fixed) if fixed else np.array([])
        if len(ids) == 0:
            raise ValueError("requests is empty; expected at least one id")
        if len(np.unique(ids)) != len(ids):
            raise ValueError(
                "requests contains an id more than once; each id can be forgotten only once"
            )
        unknown = ids[~np.isin(ids, problem.train.ids)]
        if len(unknown):
            listed = unknown[:5].tolist()
            raise ValueError(
                "requests contains ids without training rows, such as "
                f"{listed}{_describe_held_out(problem)}"
            )
        n_people = len(np.unique(problem.train.ids))
        words = f"{len(ids):,} of {n_people:,} people in {len(fixed):,} request(s), as given"
        return cls(lambda _model, _seed: fixed, tuple(map(len, fixed)), words, is_fixed=True)


def _describe_held_out(problem: LearningProblem) -> str:
    if not problem.n_held_out:
        return ""
    n_people = len(np.unique(problem.train.ids)) + problem.n_held_out
    return (
        f" ({problem.n_held_out:,} of {n_people:,} people are held out for testing; pass test= to "
        "choose the test rows)"
    )
