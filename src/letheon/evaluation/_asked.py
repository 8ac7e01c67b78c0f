"""Who asks to be forgotten in a trial."""

from collections.abc import Callable, Iterable
from functools import partial
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from letheon.datasets import Requests
from letheon.evaluation._problem import Problem
from letheon.guarantee import Task

__all__ = ["Asked"]

_LOOK_AT_THE_MODEL = ("worst", "adaptive")


class Asked(NamedTuple):
    """The requests of every trial.

    `stream` yields the ids of one request after the other, given the model and the seed; `sizes`
    are the numbers of people in them. `looks` says whether they depend on the model, and
    `is_fixed` whether every trial forgets the same people.
    """

    stream: Callable[[Any, int], Iterable[NDArray[Any]]]
    sizes: tuple[int, ...]
    words: str
    looks: bool = False
    is_fixed: bool = False

    @classmethod
    def of(cls, requests: Any, problem: Problem) -> "Asked":
        """Return what the argument of `evaluate` describes."""
        if isinstance(requests, Real):
            requests = Requests(n=_number(requests))
        if not isinstance(requests, Requests):
            return cls._given(requests, problem)
        n_people = len(np.unique(problem.train.ids))
        sizes = _sizes(requests, n_people, problem)
        words = f"{sum(sizes):,} of {n_people:,} people in {len(sizes):,} request(s), "
        return cls(
            partial(_drawn, requests, problem),
            sizes,
            words + requests.kind,
            looks=requests.kind in _LOOK_AT_THE_MODEL,
        )

    @classmethod
    def _given(cls, requests: Any, problem: Problem) -> "Asked":
        fixed = [np.atleast_1d(np.asarray(ids)) for ids in requests]
        asked = np.concatenate(fixed) if fixed else np.array([])
        if len(asked) == 0:
            raise ValueError("requests is empty; there is nothing to measure")
        if len(np.unique(asked)) != len(asked):
            raise ValueError("somebody is named twice in requests; who has left cannot leave again")
        strangers = asked[~np.isin(asked, problem.train.ids)]
        if len(strangers):
            raise ValueError(
                f"ids not among the training rows: {strangers[:5].tolist()}{_held_out(problem)}"
            )
        n_people = len(np.unique(problem.train.ids))
        words = f"{len(asked):,} of {n_people:,} people in {len(fixed):,} request(s), as given"
        return cls(lambda _model, _seed: fixed, tuple(map(len, fixed)), words, is_fixed=True)


def _sizes(requests: Requests, n_people: int, problem: Problem) -> tuple[int, ...]:
    try:
        return tuple(requests.sizes(n_people))
    except ValueError as error:
        where = f" to train on{_held_out(problem)}" if problem.n_held_out else ""
        raise ValueError(f"{error}{where}") from None


def _held_out(problem: Problem) -> str:
    if not problem.n_held_out:
        return ""
    n_people = len(np.unique(problem.train.ids)) + problem.n_held_out
    return (
        f" ({problem.n_held_out:,} of {n_people:,} people are held out for testing; give test= to "
        "choose the test rows)"
    )


def _number(requests: Any) -> float:
    return int(requests) if isinstance(requests, Integral) else float(requests)


def _drawn(requests: Requests, problem: Problem, model: Any, seed: int) -> Iterable[NDArray[Any]]:
    train = problem.train
    task: Task = "regression" if problem.is_regression else "classification"
    return requests.stream(model, train.X, train.y, train.ids, seed=seed, task=task)
