"""Ranges of parameters that are tried where the caller gives none, by method."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

# A shard of fewer people is hardly a training set.
_FEWEST_PEOPLE = 50


class Size(NamedTuple):
    """How much there is: training people, people in the smallest request, levels of a tree."""

    n_people: int
    n_together: int
    max_depth: int | None = None


class Ranges(NamedTuple):
    """Values by parameter; those of efficiency from slow to fast."""

    efficiency: Mapping[str, tuple[Any, ...]] = {}
    certifiability: Mapping[str, tuple[Any, ...]] = {}


def _shards(size: Size) -> Ranges:
    fitting = (n for n in (4, 8, 16, 32, 64) if size.n_people // n >= _FEWEST_PEOPLE)
    return Ranges({"n_shards": (2, *fitting)})


def _depths(size: Size) -> Ranges:
    deepest = 8 if size.max_depth is None else size.max_depth
    return Ranges({"random_depth": tuple(d for d in (0, 1, 2, 4, 6, 8) if d <= deepest)})


def _steps(*sigmas: float) -> Callable[[Size], Ranges]:
    """Both extremes of Mahadevan and Mathioudakis: m' = m/8 and m; and some scales of noise."""

    def ranges(size: Size) -> Ranges:
        batches = {"batch_size": (size.n_together // 8, None)} if size.n_together >= 8 else {}
        return Ranges(batches, {"sigma": sigmas})

    return ranges


def _period(*periods: int) -> Callable[[Size], Ranges]:
    return lambda _: Ranges({"period": periods})


_TABLE: dict[str, Callable[[Size], Ranges]] = {
    "dare": _depths,
    "sisa": _shards,
    "sisa-net": _shards,
    "fisher": _steps(0.01, 0.1),
    "influence": _steps(0.01, 0.1),
    "descent-to-delete": lambda _: Ranges({}, {"sigma": (0.01, 0.1)}),
    "deltagrad": _period(2, 5, 20),
    "deltagrad-net": _period(2, 5, 20),
    "fisher-net": lambda _: Ranges({}, {"sigma": (1e-4, 1e-3)}),
    "deepobliviate": lambda _: Ranges({"epsilon": (0.05, 0.1)}),
}


def ranges_of(method: str, size: Size) -> Ranges:
    """Return the values to try for a method; none for one that is not in the table."""
    return _TABLE[method](size) if method in _TABLE else Ranges()
