"""Settings that may differ between a model and its re-derivation, and what they may be.

A fresh fit takes its settings from the model itself. Those that change what is learned show in
every byte that is learned. Those that do not (threads, talk) could carry anything, so each may
have a few plain values only.

A fresh fit runs with one thread and in silence. What the model says instead is taken over where it
was declared, as a parameter of the model or of an estimator in its parameters. A fitted copy of an
estimator, one of a thousand shards perhaps, must say what was declared for its class: otherwise a
thousand copies with a small number each could carry a row.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn import get_config

from letheon.base import ForgetMixin, neutral_parameters
from letheon.inner import parts_of
from letheon.state import Instance, Items, Record, Scalar

_MOST_JOBS = 1024
_MOST_TALK = 100
_MOST_MEMORY = 2**20
_MOST_BYTES = 2**48
_MOST_ROWS = 2**32
_WORDS = frozenset({"default", "pandas", "polars", "diagram", "text", "spmatrix", "sparray"})
# Neutral settings and the values that each may have, whatever the fresh fit was run with.
_DEVICE = re.compile("auto|cpu|mps|cuda(:[0-9]{1,2})?")
# Fitted steps of a pipeline keep the seed that each was given, which may be none.
_STEPS = ("fitted_", "steps")


def _is_whole(value: Any, most: int) -> bool:
    return type(value) is int and -most <= value <= most


def _is_size(value: Any) -> bool:
    whole = type(value) is int or (type(value) is float and value.is_integer())
    return whole and 0 <= value <= _MOST_BYTES


TAKEN_OVER: dict[str, Callable[[Any], bool]] = {
    "n_jobs": lambda value: value is None or _is_whole(value, _MOST_JOBS),
    "verbose": lambda value: type(value) is bool or _is_whole(value, _MOST_TALK),
    "rebuild": lambda value: value in ("lazy", "eager"),
}


# Neutral settings that a fresh fit takes from the model; no certificate has them.
_COPIED: dict[str, Callable[[Any], bool]] = {
    "checkpoint_dir": lambda value: value is None,
    "device": lambda value: (
        value is None or (type(value) is str and bool(_DEVICE.fullmatch(value)))
    ),
    "max_memory": lambda value: value is None or _is_size(value),
    "batch_size": lambda value: value is None or _is_whole(value, _MOST_ROWS),
}


def wrong_settings(model: Any) -> list[str]:
    """Return the settings of a model, nested ones included, that no re-derivation can vouch for.

    A setting that changes nothing is in no certificate, so one that is not known here is refused.
    """
    return [
        f"{part.path}{name}"
        for part in parts_of(model)
        for name, value in part.params.items()
        if not _is_vouched_for(part.estimator, name, value)
    ]


def _is_vouched_for(estimator: Any, name: str, value: Any) -> bool:
    if name == "random_state":
        return _is_seed(value, _bits_of_seed(estimator))
    if name in TAKEN_OVER:
        return TAKEN_OVER[name](value)
    is_neutral = name in neutral_parameters(estimator)
    return not is_neutral or (name in _COPIED and _COPIED[name](value))


def _bits_of_seed(estimator: Any) -> int:
    return 128 if isinstance(estimator, ForgetMixin) else 32


def _is_seed(value: Any, bits: int) -> bool:
    """Whether a seed has no more room than a seed: the state of a generator has."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return value is None or (whole and 0 <= int(value) < 2**bits)


def config_of(model: Any) -> dict[str, Any] | None:
    """Return scikit-learn's settings of the model's fit, or None if they are not plausible ones.

    A model that does not keep them is fitted with those of this process.
    """
    here = get_config()
    config = vars(model).get("config_", here)
    if type(config) is not dict or config.keys() != here.keys():
        return None
    return config if all(_is_plain(value) for value in config.values()) else None


def _is_plain(value: Any) -> bool:
    if value is None or type(value) is bool:
        return True
    return _is_whole(value, _MOST_MEMORY) or (type(value) is str and value in _WORDS)


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
