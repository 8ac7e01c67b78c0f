"""Settings that an audited file and its re-derivation may state differently."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from letheon import state
from letheon.inner_estimator import iter_estimators
from letheon.state import Instance, Items, Record, Scalar, to_bytes

_MOST_JOBS = 1024
_MOST_TALK = 100
# Paths to parameters, and to fitted steps, which keep their seed parameter.
_STEPS = re.compile(r"(fitted_/steps/|parts_/step/|[a-z]([a-z0-9_]*[a-z0-9])?/)*")

MERGED_SETTINGS: dict[str, Callable[[Any], bool]] = {
    "n_jobs": lambda value: value is None or is_whole(value, _MOST_JOBS),
    "verbose": lambda value: type(value) is bool or is_whole(value, _MOST_TALK),
    "rebuild": lambda value: value in ("lazy", "eager"),
}


def is_whole(value: Any, most: int) -> bool:
    """Return whether a value is an int of at most this size."""
    return type(value) is int and -most <= value <= most


def merge_neutral_settings(model: Any, audited: Any, fresh: Any) -> Any:
    """Return the state tree of a fresh fit with the neutral settings of the audited model.

    Parameters that the class received after the model was saved are omitted while they have their
    defaults.
    """
    later = {
        (state.tag_of(type(part.estimator)), name, to_bytes(state.to_tree(default)))
        for part in iter_estimators(model)
        for name, default in getattr(type(part.estimator), "_later_parameters", {}).items()
    }
    merge = _Merge(frozenset(_iter_declared_settings(audited)), later)
    return merge.merge_node(audited, fresh, ())


def _is_declared(path: tuple[str, ...]) -> bool:
    """Return whether all names in a path are parameters: no leading or trailing underscore."""
    return not any(name.endswith("_") or name.startswith("_") for name in path)


def _iter_declared_settings(node: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield class, name and value of each neutral setting among the parameters of a model."""
    if type(node) is Instance:
        for key, value in node.state.items:
            if key in MERGED_SETTINGS and MERGED_SETTINGS[key](value):
                yield node.name, key, value
            elif _is_declared((key,)):
                yield from _iter_declared_settings(value)
    elif type(node) is Items:
        for value in node.items:
            yield from _iter_declared_settings(value)


@dataclass(frozen=True)
class _Merge:
    declared: frozenset[tuple[str, str, Any]]
    later: set[tuple[str, str, bytes]]

    def merge_node(self, audited: Any, fresh: Any, path: tuple[str, ...]) -> Any:
        if type(audited) is not type(fresh):
            return fresh
        if type(audited) is Instance and audited.name == fresh.name:
            return fresh._replace(
                state=self.merge_record(audited.state, fresh.state, path, audited.name)
            )
        if type(audited) is Record:
            return self.merge_record(audited, fresh, path, None)
        if type(audited) is Items and len(audited.items) == len(fresh.items):
            pairs = zip(audited.items, fresh.items, strict=True)
            return fresh._replace(items=tuple([self.merge_node(*pair, path) for pair in pairs]))
        return fresh

    def merge_record(
        self, audited: Record, fresh: Record, path: tuple[str, ...], owner: str | None
    ) -> Record:
        mine = dict(audited.items)
        return Record(
            tuple(
                [
                    (
                        key,
                        self.merge_value(owner, key, mine[key], value, path)
                        if key in mine
                        else value,
                    )
                    for key, value in fresh.items
                    if key in mine or not self.is_later(owner, key, value)
                ]
            )
        )

    def is_later(self, owner: str | None, key: str, value: Any) -> bool:
        """Return whether a value is the default of a parameter that older files do not have."""
        names = {(tag, name) for tag, name, _ in self.later}
        return (owner, key) in names and (owner, key, to_bytes(value)) in self.later

    def merge_value(
        self, owner: str | None, key: str, audited: Any, fresh: Any, path: tuple[str, ...]
    ) -> Any:
        """Return the audited value if it may differ from a fresh fit, else the fresh value."""
        if owner is not None and key == "random_state":
            return audited if _is_same_seed(audited, fresh, path) else fresh
        if owner is not None and key in MERGED_SETTINGS:
            plain = MERGED_SETTINGS[key](audited)
            return audited if plain and (owner, key, audited) in self.declared else fresh
        return self.merge_node(audited, fresh, (*path, key))


def _is_same_seed(audited: Any, fresh: Any, path: tuple[str, ...]) -> bool:
    """Return whether a seed parameter is None, or equals the seed of the fit as a NumPy integer.

    The fresh fit has `seed_`, the seed drawn when the model was fitted, as its parameter.
    """
    if audited is None:
        return _STEPS.fullmatch("".join(f"{name}/" for name in path)) is not None
    return type(audited) is Scalar and _is_declared(path) and _read_integer(audited) == fresh


def _read_integer(node: Scalar) -> int | None:
    array: Any = node.value
    kind = np.dtype(array.dtype)
    return int(np.frombuffer(array.data, kind)[0]) if kind.kind in "iu" else None
