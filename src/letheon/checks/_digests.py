"""The check that a digest covers the whole state."""

import dataclasses
import pickle
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.base import NEUTRAL_PARAMETERS, ForgetMixin, neutral_parameters
from letheon.checks._people import fit, make_people
from letheon.checks._walk import Leaf, leaves

# How many threads or which cache a library used: a matter of the machine.
_OF_THE_MACHINE = NEUTRAL_PARAMETERS | {"memory", "n_threads", "_n_threads"}


def check_digest_depends_on_state(estimator: Any) -> None:
    """A change of any stored number, text, id or label changes the digest."""
    model = fit(estimator, make_people(estimator))
    copy = pickle.loads(pickle.dumps(model))
    digest = model.digest()
    assert copy.digest() == digest, "a pickled copy has another digest"
    for leaf in list(leaves(copy, attributes=_digested, brief=True)):
        changed = _another(leaf.value)
        if leaf.put is not None and changed is not None:
            leaf.put(changed)
            assert _digest(copy) != digest, f"changing {leaf.path} does not change the digest"
            _put_back(leaf)
    other = fit(estimator, make_people(estimator, seed=1))
    assert other.digest() != digest, "models of different people have the same digest"


def _digest(model: Any) -> str | None:
    """Return the digest; None when the changed state is refused, which is noticing it too."""
    try:
        digest: str = model.digest()
    except (ValueError, TypeError, IndexError):
        return None
    return digest


def _put_back(leaf: Leaf) -> None:
    assert leaf.put is not None
    leaf.put(leaf.value)


def _digested(value: Any) -> dict[str, Any]:
    """Attributes of an object that a digest must cover.

    An estimator cannot excuse its state by a `_digest_state` of its own: only what it names in
    `_not_digested` and `_neutral_parameters`, and settings that never change a result, are left
    out.
    """
    own = vars(value)
    if isinstance(value, ForgetMixin):
        return _only(own, own.keys() - neutral_parameters(value) - value._not_digested)
    for method in ("_digest_state", "_to_state"):
        if hasattr(type(value), method):
            return _only(own, getattr(value, method)())
    if dataclasses.is_dataclass(value):
        return _only(own, [field.name for field in dataclasses.fields(value)])
    return _only(own, own.keys() - _OF_THE_MACHINE)


def _only(own: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: own[name] for name in sorted(names) if name in own}


def _another(value: Any) -> Any:
    """Return a different value of the same kind; None where there is no telling."""
    if isinstance(value, np.ndarray):
        return _another_array(value)
    if isinstance(value, np.generic):
        return _another_array(np.array([value]))[0]
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return f"{value}x"
    if isinstance(value, int):
        return value + 1
    return _another_float(value) if isinstance(value, float) else None


def _another_array(array: NDArray[Any]) -> Any:
    if array.size == 0 or array.dtype.kind not in "fiubUS":
        return None
    changed = array.copy()
    first = changed.flat[0]
    if array.dtype.kind == "f":
        changed.flat[0] = _another_float(first)
    elif array.dtype.kind in "US":
        changed.flat[0] = first[:-1] if len(first) else first + type(first)("x")
    else:
        changed.flat[0] = not first if array.dtype.kind == "b" else first ^ 1
    return changed


def _another_float(value: Any) -> Any:
    return value * 2 + 1 if np.isfinite(value) and value != -1 else 0.0
