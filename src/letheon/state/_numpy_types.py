"""Codecs of random generators, sparse matrices, partial functions and paths."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.exceptions import CorruptFileError, UnsupportedStateError
from letheon.state._budget import MAX_DIMENSIONS, array_bytes
from letheon.state._plans import Codec

_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
# Where a generator stands in its own buffer: an index into memory that nobody checks later.
_POSITIONS = {("state", "pos"): 624, ("buffer_pos",): 4}
_RANDOM_STATE_KEYS = {"bit_generator", "state", "has_uint32", "uinteger", "buffer", "buffer_pos"}
# Any seed: the state is set afterwards.
_SEED = np.random.SeedSequence(0)
_COMPRESSED = ("csr", "csc", "bsr")


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise CorruptFileError(f"not a valid {what}")


def _generator_state(value: Any) -> dict[str, Any]:
    state: dict[str, Any] = value.bit_generator.state
    if state["bit_generator"] not in _BIT_GENERATORS:
        raise UnsupportedStateError(f"a generator of kind {state['bit_generator']}")
    return state


def _random_state_state(value: Any) -> dict[str, Any]:
    state: dict[str, Any] = value.get_state(legacy=False)
    if state["bit_generator"] not in _BIT_GENERATORS:
        raise UnsupportedStateError(f"a generator of kind {state['bit_generator']}")
    return state


def _bit_generator(state: dict[str, Any]) -> Any:
    """Return a generator of the right kind, still to be set to a state that is safe to set."""
    _require(state.get("bit_generator") in _BIT_GENERATORS, "random generator")
    for path, limit in _POSITIONS.items():
        found: Any = state
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        _require(found is None or (type(found) is int and 0 <= found <= limit), "position")
    _check_parts(state)
    return getattr(np.random, state["bit_generator"])(_SEED)


def _check_parts(state: Any) -> None:
    """Check that NumPy finds numbers and small arrays in a state, nothing that it would convert."""
    for value in state.values():
        if isinstance(value, dict):
            _check_parts(value)
        elif isinstance(value, np.ndarray):
            _require(value.dtype.kind in "iu" and value.nbytes <= 1 << 13, "random generator")
        else:
            _require(type(value) in {int, float, str}, "random generator")


def _generator_from(_: type, state: Any) -> Any:
    generator = _bit_generator(state)
    _require(set(state) == set(generator.state), "random generator")
    generator.state = state
    return np.random.Generator(generator)


def _random_state_from(_: type, state: Any) -> Any:
    value = np.random.RandomState(_bit_generator(state))
    _require(set(state) - {"has_gauss", "gauss"} <= _RANDOM_STATE_KEYS, "random generator")
    value.set_state(state)
    return value


def _sparse_plain(value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {"shape": tuple(int(n) for n in value.shape)}
    if value.format in _COMPRESSED:
        plain |= {"data": value.data, "indices": value.indices, "indptr": value.indptr}
    elif value.format == "dia":
        plain |= {"data": value.data, "offsets": value.offsets}
    else:
        entries = value.tocoo()
        plain |= {"data": entries.data, "coords": tuple(entries.coords)}
    return plain


def _sparse_shape(plain: Any) -> tuple[int, ...]:
    shape = plain["shape"]
    _require(type(shape) is tuple and 0 < len(shape) <= MAX_DIMENSIONS, "sparse shape")
    _require(all(type(n) is int and 0 <= n < 2**63 for n in shape), "sparse shape")
    dimensions: tuple[int, ...] = shape
    return dimensions


def _sparse_cost(cls: type, plain: Any) -> int:
    """Return what a sparse container takes beside the arrays that it is made of."""
    n_rows, kind = _sparse_shape(plain)[0], cls.__name__[:3]
    n_stored: int = plain["data"].size
    # Every row of a lil_matrix is two lists, and an index to it on the way; every entry of a
    # dok_matrix is an item of a dict, its place two ints and a tuple.
    each = {"lil": (240, 160), "dok": (16, 400)}.get(kind, (0, 0))
    return 2048 + 2 * array_bytes(plain) + each[0] * n_rows + each[1] * n_stored


def _sparse_from(cls: Any, plain: Any) -> Any:
    """Build a sparse container and let scipy check that no index leaves it."""
    import scipy.sparse

    shape, data = _sparse_shape(plain), plain["data"]
    kind = cls.__name__[:3]
    if kind in _COMPRESSED:
        for part in (plain["indices"], plain["indptr"]):
            _require(part.dtype in (np.int32, np.int64), "sparse index")
        value = cls((data, plain["indices"], plain["indptr"]), shape=shape)
        value.check_format(full_check=True)
        _check_pointers(plain["indptr"], plain["indices"])
        # scipy has narrowed the indices; compiled code of scikit-learn may insist on their width.
        value.indices, value.indptr = plain["indices"], plain["indptr"]
        return value
    if kind == "dia":
        return cls((data, plain["offsets"]), shape=shape)
    coo = scipy.sparse.coo_array if cls.__name__.endswith("array") else scipy.sparse.coo_matrix
    for part, limit in zip(plain["coords"], shape, strict=True):
        inside = part.size == 0 or (part.min() >= 0 and part.max() < limit)
        _require(part.dtype.kind == "i" and bool(inside), "sparse index")
    entries: Any = coo((data, plain["coords"]), shape=shape)
    entries.coords = tuple(plain["coords"])
    return entries if kind == "coo" else entries.asformat(kind)


def _check_pointers(indptr: NDArray[Any], indices: NDArray[Any]) -> None:
    """Check what scipy skips if the last pointer says that nothing is stored."""
    _require(indptr[0] == 0 and bool(np.all(indptr[1:] >= indptr[:-1])), "sparse pointer")
    _require(indptr[-1] <= len(indices), "sparse pointer")


def _partial_plain(value: Any) -> dict[str, Any]:
    if vars(value):
        raise UnsupportedStateError("a partial with attributes of its own")
    return {"func": value.func, "args": value.args, "keywords": value.keywords}


def _partial_from(_: type, plain: Any) -> Any:
    _require(type(plain["args"]) is tuple and type(plain["keywords"]) is dict, "partial")
    return functools.partial(plain["func"], *plain["args"], **plain["keywords"])


_SPARSE = Codec(_sparse_plain, _sparse_from, cost=_sparse_cost)


def _generator_cost(_: type, __: Any) -> int:
    return 1 << 13


def _path_from(_: type, plain: Any) -> Path:
    _require(type(plain) is str, "path")
    return Path(plain)


CODECS: dict[str, Codec] = {
    # One name for all kinds of path: a file saved on one system is read on another.
    "pathlib.PosixPath": Codec(str, _path_from, name="pathlib.Path"),
    "pathlib.WindowsPath": Codec(str, _path_from, name="pathlib.Path"),
    "pathlib.Path": Codec(str, _path_from),
    "numpy.random._generator.Generator": Codec(
        _generator_state, _generator_from, cost=_generator_cost
    ),
    "numpy.random.mtrand.RandomState": Codec(
        _random_state_state, _random_state_from, cost=_generator_cost
    ),
    "functools.partial": Codec(_partial_plain, _partial_from),
    **{
        f"scipy.sparse._{kind}.{kind}_{form}": _SPARSE
        for kind in ("bsr", "coo", "csc", "csr", "dia", "dok", "lil")
        for form in ("matrix", "array")
    },
}
