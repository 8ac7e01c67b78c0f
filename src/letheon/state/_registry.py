"""Codecs: how objects that are not plain attributes become plain values, and back.

Codecs of the package stand in literal tables by qualified name, so nothing is imported to look
one up. `register_codec` adds codecs of the caller by class.
"""

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from letheon.state._tags import tag_of

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
