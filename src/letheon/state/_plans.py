"""How instances of a class become nodes: decided once per class."""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from importlib import import_module
from types import BuiltinFunctionType
from typing import Any, NamedTuple

import numpy as np

from letheon.exceptions import UnsupportedStateError
from letheon.state._allowed import REFUSED
from letheon.state._tags import is_ours, require_stable_tag, tag_of

Encode = Callable[[Any], Any]
Decode = Callable[[type, Any], Any]
Cost = Callable[[type, Any], int]


class Codec(NamedTuple):
    """Object to plain value, (class, plain value) to object, and the name if it is another.

    `cost` returns a bound of the bytes that `decode` takes, from the same arguments.
    """

    encode: Encode
    decode: Decode
    name: str | None = None
    cost: Cost | None = None


_registered: dict[type, Codec] = {}


def register_codec(cls: type, encode: Callable[[Any], Any], decode: Callable[[Any], Any]) -> None:
    """Teach letheon a class of yours or of a third party.

    Parameters
    ----------
    cls : type
        The class; instances of subclasses are not covered.
    encode : callable
        Takes an object and returns a plain value: anything that has canonical bytes. Two objects
        that behave alike should give the same value, and two that do not must not.
    decode : callable
        Takes that value and returns an object. It sees what a file says, so it must validate.

    Notes
    -----
    Registering a class is trusting it: files that name it are decoded in this process.

    Examples
    --------
    >>> from fractions import Fraction
    >>> from letheon.state import decode, encode, register_codec
    >>> register_codec(Fraction, lambda f: (f.numerator, f.denominator), lambda v: Fraction(*v))
    >>> decode(encode([Fraction(1, 3)]))
    [Fraction(1, 3)]
    """
    _registered[cls] = Codec(encode, lambda _, plain: decode(plain))


@cache
def _built_in() -> Mapping[str, Codec]:
    # Late, because the tables use the nodes and the allow-list of this package.
    tables: dict[str, Codec] = {}
    for module in ("_numpy_types", "_frames", "_sklearn_types"):
        tables.update(import_module(f"letheon.state.{module}").CODECS)
    return tables


def codec_of(cls: type) -> Codec | None:
    """Return the codec of a class, if there is one."""
    found = _registered.get(cls)
    return found if found is not None else _built_in().get(tag_of(cls))


def codec_named(name: str) -> tuple[Codec, type | None] | None:
    """Return the codec of a qualified name, and the class if the caller registered it."""
    for cls, codec in _registered.items():
        if tag_of(cls) == name:
            return codec, cls
    built_in = _built_in().get(name)
    return None if built_in is None else (built_in, None)


# Settings that say how the work is done, never what comes out.
NEUTRAL_PARAMETERS = frozenset({"n_jobs", "verbose", "rebuild", "checkpoint_dir"})
_NEUTRAL = NEUTRAL_PARAMETERS | {"memory", "_n_threads"}
_NOTHING: frozenset[str] = frozenset()
# Attributes that depend on the machine, or that using a fitted object fills.
_NEUTRAL_ATTRIBUTES = {
    "sklearn.ensemble._hist_gradient_boosting.binning._BinMapper": frozenset({"n_threads"}),
    "sklearn.preprocessing._label.MultiLabelBinarizer": frozenset({"_cached_dict"}),
}
_HEAP_TYPE = 1 << 9


class _Ordinary:
    """Has room for a `__dict__` and weak references, as every class written in Python."""


class Plan(NamedTuple):
    """How instances of one class are encoded."""

    name: str
    codec: Codec | None
    fields: tuple[str, ...] | None
    own_state: bool
    digest_state: bool
    is_estimator: bool
    is_ours: bool
    neutral: frozenset[str]


@lru_cache(maxsize=4096)
def plan_of(cls: type, codec: Codec | None) -> Plan:
    """Return how instances of a class are encoded, or refuse the class."""
    name = tag_of(cls)
    require_stable_tag(name)
    for base in cls.__mro__:
        reason = REFUSED.get(tag_of(base))
        if reason is not None:
            raise UnsupportedStateError(f"{cls.__name__} cannot be inside a model: {reason}")
    fields = dataclass_fields(cls)
    own_state = hasattr(cls, "_to_state") and hasattr(cls, "_from_state")
    if codec is None and fields is None and not own_state:
        require_plain_attributes(cls)
    is_estimator = hasattr(cls, "get_params")
    return Plan(
        name=name if codec is None or codec.name is None else codec.name,
        codec=codec,
        fields=fields,
        own_state=own_state,
        digest_state=hasattr(cls, "_digest_state"),
        is_estimator=is_estimator,
        is_ours=is_ours(name),
        neutral=_NEUTRAL_ATTRIBUTES.get(name, _NOTHING) | (_NEUTRAL if is_estimator else _NOTHING),
    )


def dataclass_fields(cls: type) -> tuple[str, ...] | None:
    """Return the fields of a dataclass of this package, None for estimators and other classes."""
    is_estimator = hasattr(cls, "get_params")
    if is_estimator or not (dataclasses.is_dataclass(cls) and is_ours(tag_of(cls))):
        return None
    return tuple(field.name for field in dataclasses.fields(cls))


def require_plain_attributes(cls: type) -> None:
    """Refuse classes whose instances hold more than a `__dict__`."""
    small = cls.__basicsize__ <= _Ordinary.__basicsize__ and cls.__itemsize__ == 0
    made_in_python = all(base.__flags__ & _HEAP_TYPE for base in cls.__mro__[:-1])
    if not (small and made_in_python and cls.__dictoffset__):
        raise UnsupportedStateError(
            f"{tag_of(cls)} keeps state outside its attributes; "
            "teach it with letheon.state.register_codec, or use a class that keeps plain values"
        )


def without_neutral(state: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """Return the state without what does not affect the result."""
    skipped = plan.neutral
    if plan.is_ours and "seed_" in state:
        skipped = skipped | {"random_state"}
    return {key: value for key, value in state.items() if key not in skipped}


def importable_name(value: Any) -> str | None:
    """Return the name under which a class or function is found in its module, or None."""
    if isinstance(value, np.ufunc):
        return _ufunc_name(value)
    module, name = value.__module__, value.__qualname__
    # Compiled functions of torch are static methods of a class that their module does not show.
    if isinstance(value, BuiltinFunctionType) and value.__self__ is None:
        name = value.__name__
    found: Any = sys.modules.get(module or "")
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not value:
        return None
    return tag_of(value) if isinstance(value, type) else f"{module}.{name}"


def _ufunc_name(value: np.ufunc) -> str | None:
    for module in ("numpy", "scipy.special"):
        if getattr(sys.modules.get(module), value.__name__, None) is value:
            return f"{module}.{value.__name__}"
    return None
