"""Neutral settings of a model, put into the tree of its re-derivation.

A fresh fit runs with one thread and in silence. What the model says instead is taken over where it
was declared, as a parameter of the model or of an estimator in its parameters. A fitted copy of an
estimator, one of a thousand shards perhaps, must say what was declared for its class: otherwise a
thousand copies with a small number each could carry a row.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from letheon.audit._settings import TAKEN_OVER
from letheon.state._nodes import Instance, Items, Record, Scalar

__all__ = ["with_neutral"]

# Fitted steps of a pipeline keep the seed that each was given, which may be none.
_STEPS = ("fitted_", "steps")


def with_neutral(found: Any, fresh: Any) -> Any:
    """Return the tree of a fresh fit with the neutral settings that the other tree has."""
    return _Merge(frozenset(_declared(found))).node(found, fresh, ())


def _is_declared(path: tuple[str, ...]) -> bool:
    """Whether a path leads through parameters only: fitted attributes end with an underscore."""
    return not any(name.endswith("_") or name.startswith("_") for name in path)


def _declared(node: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield class, name and value of every neutral setting among the parameters of a model."""
    if type(node) is Instance:
        for key, value in node.state.items:
            if key in TAKEN_OVER and TAKEN_OVER[key](value):
                yield node.name, key, value
            elif _is_declared((key,)):
                yield from _declared(value)
    elif type(node) is Items:
        for value in node.items:
            yield from _declared(value)


@dataclass(frozen=True)
class _Merge:
    declared: frozenset[tuple[str, str, Any]]

    def node(self, found: Any, fresh: Any, path: tuple[str, ...]) -> Any:
        if type(found) is not type(fresh):
            return fresh
        if type(found) is Instance and found.name == fresh.name:
            return fresh._replace(state=self.record(found.state, fresh.state, path, found.name))
        if type(found) is Record:
            return self.record(found, fresh, path, None)
        if type(found) is Items and len(found.items) == len(fresh.items):
            pairs = zip(found.items, fresh.items, strict=True)
            return fresh._replace(items=tuple([self.node(*pair, path) for pair in pairs]))
        return fresh

    def record(
        self, found: Record, fresh: Record, path: tuple[str, ...], owner: str | None
    ) -> Record:
        mine = dict(found.items)
        return Record(
            tuple(
                [
                    (key, self.value(owner, key, mine[key], value, path) if key in mine else value)
                    for key, value in fresh.items
                ]
            )
        )

    def value(
        self, owner: str | None, key: str, found: Any, fresh: Any, path: tuple[str, ...]
    ) -> Any:
        """Return the value of an attribute of the expected tree."""
        if owner is not None and key == "random_state":
            return found if _may_be(found, fresh, path) else fresh
        if owner is not None and key in TAKEN_OVER:
            plain = TAKEN_OVER[key](found)
            return found if plain and (owner, key, found) in self.declared else fresh
        return self.node(found, fresh, (*path, key))


def _may_be(found: Any, fresh: Any, path: tuple[str, ...]) -> bool:
    """Whether a seed was not given, or is the one of the fit as a NumPy number.

    What was drawn then is `seed_`, which the fresh fit was given.
    """
    if found is None:
        return _is_declared(path) or path == _STEPS
    return type(found) is Scalar and _is_declared(path) and _whole(found) == fresh


def _whole(node: Scalar) -> int | None:
    array: Any = node.value
    kind = np.dtype(array.dtype)
    return int(np.frombuffer(array.data, kind)[0]) if kind.kind in "iu" else None
